# SPDX-License-Identifier: Apache-2.0
"""Updates -> the next model: verified, then averaged by samples in slice order. Knows no board, link or disk.

Floating-point sums depend on their order, so it is fixed: slice 0, 1, 2, ..., whatever arrives first (DECISIONS 2).
Accumulators are float64; float32 is added by the core in one pass, other types in blocks that the cache holds. Memory
is one accumulator, plus what waits its turn.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import core
from paceline.tensors import Manifest, TensorSpec

BLOCK = 1 << 15  # elements; some float64 blocks fit the second-level cache
NORM_FACTOR = 10.0  # refuse above so many times the median of the board's own history (DECISIONS 6)
NORM_HISTORY = 10  # updates that make the history
NORM_FROM = 2  # so many must be known: the guard holds from the third update on

Buffer = bytes | bytearray | memoryview
Array = NDArray[Any]


@dataclass(frozen=True)
class Verified:
    """An update that may be added: the norm of (update - base) over all floating-point tensors, and its mean batch."""

    norm_per_step: float
    samples_per_step: float


@dataclass(frozen=True)
class Refused:
    """An update that may not, and why."""

    reason: str


class Reducer:
    """One round after the other: `begin`, for each slice `add` or `skip` in any order, `finish`."""

    def __init__(self, manifest: Manifest, *, norm_factor: float = NORM_FACTOR) -> None:
        self._manifest = manifest
        self._norm_factor = norm_factor
        self._waiting: dict[
            int, tuple[int, Buffer] | None
        ] = {}  # slice -> (samples, update); None: contributes nothing
        self._next = 0
        self._counted = 0
        self._budget = 0
        self._sums: dict[str, Array] = {}

    def begin(self, base: Buffer, budget: int) -> None:
        """Start a round from the model `base`; its slices will hold `budget` samples."""
        if budget < 1 or memoryview(base).nbytes != self._manifest.nbytes:
            raise ValueError(
                f"budget {budget}, {memoryview(base).nbytes} bytes: expected a model and at least 1 sample"
            )
        self._waiting.clear()
        self._next, self._counted, self._budget = 0, 0, budget
        self._sums = {
            t.name: np.zeros(t.items, np.float64) if t.is_float else _array(base, t).copy()
            for t in self._manifest.tensors
        }

    def verify(
        self, update: Buffer, base: Buffer, samples: int, steps: int, history: Sequence[Verified]
    ) -> Verified | Refused:
        """Judge an update of `samples` in `steps`. `history`: the same board's accepted updates, oldest first."""
        size = memoryview(update).nbytes
        if size != self._manifest.nbytes:
            return Refused(f"it has {size} bytes, the model {self._manifest.nbytes}")
        if steps < 1:
            return Refused(f"it reports {steps} local steps")
        squares = 0.0
        for tensor in self._manifest.tensors:
            if not tensor.is_float:
                if tensor.dtype == "bool" and int(_array(update, tensor).max()) > 1:
                    return Refused(f"tensor {tensor.name} is boolean and holds other bytes than 0 and 1")
                continue
            part = _squares(update, base, tensor)
            if part is None:
                return Refused(f"tensor {tensor.name} holds values that are not finite (NaN or infinity)")
            squares += part
        norm = squares**0.5 / steps
        if not np.isfinite(norm):
            return Refused("its distance from the round's model is beyond all numbers")
        verified = Verified(norm, samples / steps)
        recent = history[-NORM_HISTORY:]
        usual = statistics.median(one.norm_per_step for one in recent) if len(recent) >= NORM_FROM else 0.0
        if usual > 0 and norm > (most := self._norm_factor * _room(verified, recent)) * usual:
            return Refused(
                f"its norm per step is {norm:.3g}, more than {most:g} times the {usual:.3g} that is usual "
                "for this board"
            )
        return verified

    def are_finite(self, memory: Buffer) -> bool:
        """Tell whether an optimiser's memory, numbers of the model's own type, holds no NaN and no infinity."""
        tensor = next(t for t in self._manifest.tensors if t.is_float)
        return bool(np.isfinite(_floats(np.frombuffer(memory, _dtype(tensor.dtype)), tensor)).all())

    def add(self, slice_index: int, samples: int, update: Buffer) -> None:
        """Take a verified update of a slice; nobody may change the buffer until the round is finished."""
        if samples < 1 or memoryview(update).nbytes != self._manifest.nbytes:
            raise ValueError(f"slice {slice_index}: {samples} samples, {memoryview(update).nbytes} bytes")
        self._enter(slice_index, (samples, update))

    def skip(self, slice_index: int) -> None:
        """Let a slice contribute nothing (its ranges were dealt out again)."""
        self._enter(slice_index, None)

    def finish(self) -> bytes:
        """Return the new model. Raises ValueError while a slice or a sample is missing."""
        if self._waiting:
            raise ValueError(f"slice {self._next} is missing, {len(self._waiting)} later ones wait for it")
        if not 0 < self._budget == self._counted:
            raise ValueError(f"{self._counted} of {self._budget} samples are there")
        model = bytearray(self._manifest.nbytes)
        for tensor in self._manifest.tensors:
            if tensor.is_float:
                _store(model, tensor, self._sums[tensor.name], self._counted)
            else:
                _array(model, tensor)[:] = self._sums[tensor.name]
        self._sums = {}
        self._budget = 0
        return bytes(model)

    def _enter(self, slice_index: int, entry: tuple[int, Buffer] | None) -> None:
        if not self._sums or slice_index < self._next or slice_index in self._waiting:
            raise ValueError(f"slice {slice_index} is in this round's model already, or no round has begun")
        self._waiting[slice_index] = entry
        while self._next in self._waiting:
            ready = self._waiting.pop(self._next)
            self._next += 1
            if ready is not None:
                self._accumulate(*ready)

    def _accumulate(self, samples: int, update: Buffer) -> None:
        for tensor in self._manifest.tensors:
            total = self._sums[tensor.name]
            values = _array(update, tensor)
            if not tensor.is_float:  # counters and masks: the maximum over the round's updates (DECISIONS 5)
                total[:] = np.maximum(total, values) if self._counted else values
                continue
            if _in_c(tensor):
                core.sums_add(values, samples, total)
                continue
            for part in _blocks(tensor.items):
                total[part] += np.multiply(_floats(values[part], tensor), samples, dtype=np.float64)
        self._counted += samples


def mixed(manifest: Manifest, model: Buffer, update: Buffer, weight: float) -> bytes:
    """Return (1 - weight) * model + weight * update, both verified; weight in (0, 1].

    Computed in float64, rounded once to each tensor's own type; counters and masks become the larger of both.
    """
    out = bytearray(manifest.nbytes)
    for tensor in manifest.tensors:
        old, new = _array(model, tensor), _array(update, tensor)
        if not tensor.is_float:
            np.maximum(old, new, out=_array(out, tensor))
            continue
        rounded = _array(out, tensor)
        if _in_c(tensor):
            core.sums_mix(old, new, weight, rounded)
            continue
        for part in _blocks(tensor.items):
            wide = np.multiply(_floats(old[part], tensor), 1.0 - weight, dtype=np.float64)
            wide += np.multiply(_floats(new[part], tensor), weight, dtype=np.float64)
            rounded[part] = _bfloat16(wide) if tensor.dtype == "bfloat16" else wide
    return bytes(out)


def _array(buffer: Buffer, tensor: TensorSpec) -> Array:
    """View a tensor of a whole model, flat. bool as bytes, bfloat16 as its 16 bits: numpy has no such type."""
    array: Array = np.frombuffer(buffer, _dtype(tensor.dtype), tensor.items, tensor.offset)
    return array


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    names = {"bool": "u1", "bfloat16": "<u2"}
    return np.dtype(names.get(name, name)).newbyteorder("<")


def _in_c(tensor: TensorSpec) -> bool:
    """Whether one pass of the core does it, with the bits that numpy's passes give."""
    return tensor.dtype == "float32" and _dtype("float32").isnative


def _floats(values: Array, tensor: TensorSpec) -> Array:
    """Return the values of a type that numpy knows; bfloat16 is the upper half of a float32."""
    return (values.astype("<u4") << 16).view("<f4") if tensor.dtype == "bfloat16" else values


def _room(update: Verified, recent: Sequence[Verified]) -> float:
    """Return how much longer than usual an honest step may be because its batch is smaller than usual.

    One sample may bear the whole gradient of its batch, and does where a model has learned the others. Alone it makes
    a step longer by the size of that batch. The mean over the round gives it as much less weight.
    """
    return max(1.0, statistics.median(one.samples_per_step for one in recent) / update.samples_per_step)


def _squares(update: Buffer, base: Buffer, tensor: TensorSpec) -> float | None:
    """Return the sum of squares of (update - base); None: the update is not finite."""
    values, origin = _array(update, tensor), _array(base, tensor)
    if _in_c(tensor):
        distance = core.sums_distance(values, origin)
        return distance if math.isfinite(distance) else None  # no difference of two float32 has too large a square
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(tensor.items):
            floats = _floats(values[part], tensor)
            wide = np.subtract(floats, _floats(origin[part], tensor), dtype=np.float64)
            squares = float(np.square(wide, out=wide).sum())
            if not math.isfinite(squares) and not np.isfinite(floats).all():
                return None  # else they are only beyond all numbers; the base is finite, as `finish` made it
            total += squares
    return total


def _store(model: bytearray, tensor: TensorSpec, total: Array, samples: int) -> None:
    """Write total/samples, rounded once to the tensor's own type."""
    out = _array(model, tensor)
    for part in _blocks(tensor.items):
        mean = total[part] / samples
        out[part] = _bfloat16(mean) if tensor.dtype == "bfloat16" else mean.astype(out.dtype)


def _bfloat16(values: NDArray[np.float64]) -> Array:
    """Round finite values to bfloat16, ties to even, by way of float32 rounded to odd, which keeps it one rounding."""
    near = values.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = near.astype(np.float64) != values
    too_far = inexact & (np.abs(near.astype(np.float64)) > np.abs(values))
    odd = np.where(too_far, bits - np.uint32(1), bits) | inexact.astype(np.uint32)
    rounded: Array = (odd + np.uint32(0x7FFF) + ((odd >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")


def _blocks(items: int) -> Iterator[slice]:
    return (slice(begin, begin + BLOCK) for begin in range(0, items, BLOCK))
