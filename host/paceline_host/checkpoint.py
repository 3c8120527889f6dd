# SPDX-License-Identifier: Apache-2.0
"""A model on disk, whole or not at all: safetensors, written beside its name, synced, renamed, folder synced.

The journal's round row, written after that, names the hash of the model's bytes; so a row never names a file that a
power cut could take. The writer is ours, because it streams from the flat buffer; reading is left to the strict parser.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from paceline.errors import StorageError
from paceline.tensors import Manifest
from paceline_host.journal import Buffer, sync_folder

# paceline's name of a dtype -> the format's
CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def sha256(model: Buffer) -> str:
    """Return the hash (hex) by which plans, ledger and link name a model."""
    return hashlib.sha256(model).hexdigest()


def path(folder: Path, number: int) -> Path:
    """Return where a run's folder keeps the model that a round left."""
    return folder / "checkpoints" / f"round-{number:05d}.safetensors"


def newest(folder: Path) -> int:
    """Return the last round whose model a run's folder holds; 0: none."""
    numbers = [each.stem.partition("-")[2] for each in (folder / "checkpoints").glob("round-*.safetensors")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def make_folder(folder: Path, *, fsync: bool) -> None:
    """Make the folder of models, if need be, so that no power cut takes it with all that is synced in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if fsync and not any(folder.iterdir()):  # a host that was killed right here may have made it
        sync_folder(folder.parent)


def save(
    path: Path, manifest: Manifest, model: Buffer, metadata: Mapping[str, str] | None = None, *, fsync: bool = True
) -> str:
    """Write a model and return its sha256. Whatever happens, `path` holds the old file or the new one."""
    digest = sha256(model)
    notes = {**(metadata or {}), "model_sha256": digest, "manifest_sha256": manifest.digest()}
    partial = path.with_name(f".{path.name}.partial")
    try:
        make_folder(path.parent, fsync=fsync)
        try:
            with partial.open("wb") as file:
                _write(file, manifest, model, notes)
                file.flush()
                if fsync:
                    os.fsync(file.fileno())
            os.rename(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        if fsync:
            sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: the checkpoint cannot be written: {error.strerror}") from error
    return digest


def load(path: Path, manifest: Manifest) -> tuple[bytes, str]:
    """Return a model and its sha256. Raises StorageError for a file that is torn, rotten, or of another model."""
    import safetensors  # here: needed by runs alone, and not by every command that only starts

    try:
        content = path.read_bytes()
        parsed = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
        found = {name: (tensor["dtype"], tuple(tensor["shape"]), tensor["data"]) for name, tensor in parsed}
        notes = _notes(content)
    except OSError as error:
        raise StorageError(f"{path}: the checkpoint cannot be read: {error.strerror}") from None
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise StorageError(f"{path}: is damaged or no checkpoint ({error}); use the one of the round before") from None
    if found.keys() != {tensor.name for tensor in manifest.tensors}:
        raise StorageError(f"{path}: holds another model: its tensors are {_few(found)}")
    model = bytearray(manifest.nbytes)
    for tensor in manifest.tensors:
        dtype, shape, data = found[tensor.name]
        if (dtype, shape, len(data)) != (CODES[tensor.dtype], tensor.shape, tensor.nbytes):
            raise StorageError(
                f"{path}: holds another model: tensor {tensor.name} is {dtype} {list(shape)}, "
                f"expected {CODES[tensor.dtype]} {list(tensor.shape)}"
            )
        model[tensor.offset : tensor.offset + tensor.nbytes] = data
    digest = sha256(model)
    if notes.get("model_sha256") != digest:
        raise StorageError(f"{path}: is damaged: its bytes do not match its hash; use the one of the round before")
    return bytes(model), digest


def _write(file: IO[bytes], manifest: Manifest, model: Buffer, notes: Mapping[str, str]) -> None:
    """Write length of the header, header, tensors without gaps."""
    header: dict[str, object] = {"__metadata__": dict(notes)}
    end = 0
    for tensor in manifest.tensors:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors then begin at a multiple of 8
    file.write(len(text).to_bytes(8, "little") + text)
    whole = memoryview(model)
    for tensor in manifest.tensors:
        file.write(manifest.view(whole, tensor))


def _notes(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    notes = json.loads(content[8 : 8 + length]).get("__metadata__")
    return notes if isinstance(notes, dict) else {}


def _few(names: Mapping[str, object]) -> str:
    shown = sorted(names)[:4]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")
