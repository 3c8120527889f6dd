# SPDX-License-Identifier: Apache-2.0
"""Where each tensor of a model lies in one flat buffer. Pure: knows no numpy, no torch and no file.

A model travels, is stored and is averaged as `nbytes` contiguous bytes: tensors in the manifest's order,
little-endian, row major, each at a multiple of ALIGNMENT, gaps filled with zeros. Host and board each build the
manifest from the task, and its digest must agree before any byte is sent, so that a peer can never say what the bytes
mean.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

ALIGNMENT = 16  # a vector register; keeps every view aligned for any dtype, mapped or received
MAX_TENSORS = 4096
MAX_MODEL_BYTES = 1 << 34  # 16 GiB: above what any board of the fleet holds, so a damaged manifest is refused early
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

Role = Literal["parameter", "buffer"]  # how it is averaged: buffers of integers take the maximum (DECISIONS 5)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: bytes offset..offset+nbytes-1 of the model."""

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    role: Role = "parameter"

    @property
    def items(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))


@dataclass(frozen=True)
class Manifest:
    """All tensors of a model; `nbytes` is a multiple of ALIGNMENT."""

    tensors: tuple[TensorSpec, ...]
    nbytes: int

    @classmethod
    def build(cls, entries: Iterable[tuple[str, str, tuple[int, ...], Role]]) -> Manifest:
        """Lay out (name, dtype, shape, role) one after the other."""
        tensors: list[TensorSpec] = []
        offset = 0
        for name, dtype, shape, role in entries:
            if dtype not in ITEM_BYTES:
                raise ValueError(f"tensor {name!r} has dtype {dtype!r}; expected one of {', '.join(ITEM_BYTES)}")
            if any(extent < 1 for extent in shape):
                raise ValueError(f"tensor {name!r} has shape {shape}; every extent must be at least 1")
            nbytes = math.prod(shape) * ITEM_BYTES[dtype]
            tensors.append(TensorSpec(name, dtype, tuple(shape), offset, nbytes, role))
            offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
        names = {tensor.name for tensor in tensors}
        if not tensors or len(tensors) > MAX_TENSORS or len(names) < len(tensors) or offset > MAX_MODEL_BYTES:
            raise ValueError(
                f"a model has 1 to {MAX_TENSORS} tensors of different names and at most {MAX_MODEL_BYTES} bytes, "
                f"not {len(tensors)} tensors of {len(names)} names and {offset} bytes"
            )
        return cls(tuple(tensors), offset)

    def digest(self) -> str:
        """Return the sha256 (hex) of the layout: equal digests mean the same bytes mean the same model."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the canonical text of the layout (sorted keys, no blanks); offsets follow from it."""
        rows = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "role": t.role} for t in self.tensors]
        return json.dumps(rows, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read `to_json` back; offsets and sizes are computed anew, never believed. ValueError: not such a text."""
        try:
            rows = json.loads(text)
            return cls.build([_entry(row) for row in rows])
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a tensor manifest: {error}") from None

    def __getitem__(self, name: str) -> TensorSpec:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def view(self, buffer: bytes | bytearray | memoryview, tensor: TensorSpec) -> memoryview:
        """Return the bytes of one tensor, without a copy; `buffer` is a whole model."""
        whole = memoryview(buffer).cast("B")
        if len(whole) != self.nbytes:
            raise ValueError(f"the model has {self.nbytes} bytes, the buffer {len(whole)}")
        return whole[tensor.offset : tensor.offset + tensor.nbytes]


def _entry(row: dict[str, Any]) -> tuple[str, str, tuple[int, ...], Role]:
    role = row["role"]
    shape = row["shape"]
    if type(row["name"]) is not str or type(row["dtype"]) is not str or role not in ("parameter", "buffer"):
        raise TypeError(f"bad entry {row!r:.80}")
    if type(shape) is not list or any(type(extent) is not int for extent in shape):
        raise TypeError(f"bad shape {shape!r:.80}")
    return row["name"], row["dtype"], tuple(shape), role
