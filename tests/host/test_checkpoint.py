# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: any safetensors reader opens them, damage is named, and a kill leaves the old file or the new one."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from paceline.errors import StorageError
from paceline.tensors import ITEM_BYTES, Manifest
from paceline_host import checkpoint
from paceline_host.psl import store

MANIFEST = Manifest.build(
    [
        ("layer.weight", "float32", (3, 5), "parameter"), ("layer.bias", "float64", (3,), "parameter"),
        ("steps", "int64", (), "buffer"), ("mask", "bool", (7,), "buffer"),
    ]
)  # fmt: skip


def model_of(manifest: Manifest, value: int) -> bytes:
    """Return a model whose every byte is `value`, gaps apart."""
    model = bytearray(manifest.nbytes)
    for tensor in manifest.tensors:
        model[tensor.offset : tensor.offset + tensor.nbytes] = bytes([value]) * tensor.nbytes
    return bytes(model)


def test_it_reads_back_bit_for_bit(tmp_path: Path) -> None:
    model = model_of(MANIFEST, 1)
    digest = checkpoint.save(tmp_path / "new" / "a.safetensors", MANIFEST, model, {"round": "3"})
    assert checkpoint.load(tmp_path / "new" / "a.safetensors", MANIFEST) == (model, digest)
    assert digest == checkpoint.sha256(model)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.safetensors"]


def test_a_new_folder_of_checkpoints_is_synced_into_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    path = tmp_path / "checkpoints" / "a.safetensors"
    monkeypatch.setattr(checkpoint, "sync_folder", lambda folder: synced.append((folder, path.exists())))
    for _ in range(2):
        checkpoint.save(path, MANIFEST, model_of(MANIFEST, 1))
    assert synced == [(tmp_path, False), (path.parent, True), (path.parent, True)]


def test_a_state_that_comes_first_makes_the_folder_as_a_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(checkpoint, "sync_folder", synced.append)
    monkeypatch.setattr(store, "sync_folder", synced.append)
    store.write_state(tmp_path, 1, b"state", fsync=True)
    checkpoint.save(checkpoint.path(tmp_path, 1), MANIFEST, model_of(MANIFEST, 1))
    models = tmp_path / "checkpoints"
    assert synced == [tmp_path, models, models], "a power cut would take the folder, and the run with it"


def test_a_folder_that_a_killed_host_has_made_is_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(checkpoint, "sync_folder", synced.append)
    checkpoint.save(checkpoint.path(tmp_path, 1), MANIFEST, model_of(MANIFEST, 1))
    assert synced[0] == tmp_path


def test_the_librarys_own_reader_sees_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    model = bytearray(MANIFEST.nbytes)
    MANIFEST.view(model, MANIFEST["layer.weight"])[:] = np.arange(15, dtype="<f4").tobytes()
    MANIFEST.view(model, MANIFEST["steps"])[:] = (2**40).to_bytes(8, "little")
    checkpoint.save(path, MANIFEST, model, {"round": "3"})
    tensors = safetensors.numpy.load_file(path)
    assert tensors["layer.weight"].tolist() == np.arange(15.0).reshape(3, 5).tolist()
    assert tensors["steps"].shape == ()
    assert int(tensors["steps"]) == 2**40
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata()["round"] == "3"


def test_every_dtype_of_a_manifest_has_a_code(tmp_path: Path) -> None:
    manifest = Manifest.build([(name, name, (2,), "buffer") for name in ITEM_BYTES])
    model = model_of(manifest, 1)
    checkpoint.save(tmp_path / "a", manifest, model)
    assert checkpoint.load(tmp_path / "a", manifest)[0] == model


@pytest.mark.parametrize("cut", [0, 4, 9, 200, -1])
def test_a_torn_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, MANIFEST, model_of(MANIFEST, 1))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StorageError, match="is damaged or no checkpoint"):
        checkpoint.load(path, MANIFEST)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, MANIFEST, model_of(MANIFEST, 1))
    content = bytearray(path.read_bytes())
    content[-30] ^= 8
    path.write_bytes(content)
    with pytest.raises(StorageError, match="do not match its hash"):
        checkpoint.load(path, MANIFEST)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("other", "float32", (3, 5), "parameter")], "its tensors are layer.bias, layer.weight, mask, steps"),
        (
            [(t.name, t.dtype, (5, 3) if t.name == "layer.weight" else t.shape, t.role) for t in MANIFEST.tensors],
            r"layer\.weight is F32 \[3, 5\], expected F32 \[5, 3\]",
        ),
    ],
    ids=["names", "shape"],
)
def test_another_models_file_is_refused(tmp_path: Path, entries: list[tuple[str, str, tuple[int, ...], str]],
                                        message: str) -> None:  # fmt: skip
    checkpoint.save(tmp_path / "a", MANIFEST, model_of(MANIFEST, 1))
    with pytest.raises(StorageError, match=message):
        checkpoint.load(tmp_path / "a", Manifest.build(entries))  # type: ignore[arg-type]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        checkpoint.load(tmp_path / "a", MANIFEST)


def test_a_disk_that_takes_no_more_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    checkpoint.save(path, MANIFEST, model_of(MANIFEST, 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StorageError, match="cannot be written: File too large"):
            checkpoint.save(path, MANIFEST, model_of(MANIFEST, 0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.load(path, MANIFEST)[0] == model_of(MANIFEST, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


WRITER = """
import sys
from pathlib import Path
from paceline.tensors import Manifest
from paceline_host import checkpoint

manifest = Manifest.build([("w", "float32", (1 << 18,), "parameter")])
models = [bytes([value]) * manifest.nbytes for value in (1, 2)]
print("writing", flush=True)
for turn in range(1 << 30):
    checkpoint.save(Path(sys.argv[1]), manifest, models[turn % 2])
    print(turn, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    manifest = Manifest.build([("w", "float32", (1 << 18,), "parameter")])
    whole = {bytes([value]) * manifest.nbytes for value in (1, 2)}
    for kill in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(2 + kill):  # each kill falls into another write, somewhere
                assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        model, _ = checkpoint.load(path, manifest)
        assert model in whole
        assert set(os.listdir(tmp_path)) <= {path.name, f".{path.name}.partial"}
    checkpoint.save(path, manifest, bytes(manifest.nbytes))  # what a killed writer left is in nobody's way
    assert os.listdir(tmp_path) == [path.name]
