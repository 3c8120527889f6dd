# SPDX-License-Identifier: Apache-2.0
"""What ought to come out, computed apart from what is checked: updates from base and ranges, means from updates.

An update of this task tells by its bytes from which model and which ranges it was made, so one that is counted for
another slice, or from a stale model, is found out.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from paceline.tensors import Manifest
from paceline.wire import Range
from paceline_host.simulation.task import STEP, TrivialTask

_HEAD = struct.Struct("<2d")  # these change, what lies behind is ballast; sums of doubles depend on their order

_TAIL = struct.Struct("<32sQ")  # of a state


class ChaosTask(TrivialTask):
    """A task of `nbytes`, in doubles."""

    def __init__(self, samples: int, nbytes: int, reference_s: float) -> None:
        super().__init__(samples, reference_s)
        self.manifest = Manifest.build([("weight", "float64", (nbytes // 8,), "parameter")])
        self.digest = self.manifest.digest()

    def initial(self) -> bytes:
        return bytes(_HEAD.size) + struct.pack("<d", 1.5) * ((self.manifest.nbytes - _HEAD.size) // 8)


def sha(data: bytes | bytearray | memoryview) -> str:
    """Return the hash by which a model or an update goes."""
    return hashlib.sha256(data).hexdigest()


def samples_of(ranges: Sequence[Range]) -> int:
    """Return how many samples there are in ranges."""
    return sum(end - begin for _, begin, end in ranges)


def update(base: bytes | bytearray, ranges: Sequence[Range], batch: int) -> bytes:
    """Return what training on these ranges makes of a model. Norms per step differ by a factor of two at most."""
    steps = -(-samples_of(ranges) // batch)
    mark = int.from_bytes(hashlib.sha256(repr(tuple(ranges)).encode()).digest()[:4], "little") / 2**32
    head = [number + STEP * steps * (1.0 + mark) for number in _HEAD.unpack_from(base)]
    return _HEAD.pack(*head) + bytes(base[_HEAD.size :])


def first_state(task: ChaosTask) -> bytes:
    """Return the state of synchronised ranks before training."""
    return begun(task.initial())


def begun(model: bytes) -> bytes:
    """Return the state in which nothing was done with a model: it, a memory, steps."""
    return model + bytes(_TAIL.size)


def weights(state: bytes) -> bytes:
    """Return the model in a state."""
    return state[: -_TAIL.size]


def stepped(state: bytes, places: Sequence[int]) -> bytes:
    """Return the state that a step of all ranks leaves: its memory tells which places were taken in which step."""
    memory, steps = _TAIL.unpack_from(state, len(state) - _TAIL.size)
    memory = hashlib.sha256(memory + repr(sorted(places)).encode()).digest()
    moved = STEP * (1.0 + int.from_bytes(memory[:4], "little") / 2**32)
    head = [number + moved for number in _HEAD.unpack_from(state)]
    return _HEAD.pack(*head) + state[_HEAD.size : -_TAIL.size] + _TAIL.pack(memory, steps + 1)


def mean(base: bytes, updates: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the next model from (samples, update) in slice order; the ballast of all is the base's."""
    total = [0.0] * 2
    for samples, one in updates:
        total = [old + number * samples for old, number in zip(total, _HEAD.unpack_from(one), strict=True)]
    whole = sum(samples for samples, _ in updates)
    return _HEAD.pack(*(number / whole for number in total)) + base[_HEAD.size :]
