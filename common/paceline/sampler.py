# SPDX-License-Identifier: Apache-2.0
"""Which client's samples make up a step of parallel split learning: a batch drawn without replacement from all pools.

A step's counts are exactly multivariate hypergeometric, and an epoch uses each sample once. The schedule is named by
(seed, epoch, step): every machine and every data structure draws the same. Knows no network and no sample.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, MutableSequence

from paceline import core
from paceline.errors import CoreError

_HEAD = struct.Struct("<4sIII")  # magic, bytes of the core's state, clients at the epoch's start or NO_START, removed
_MAGIC = b"GSP1"
_NO_START = 0xFFFFFFFF


class GlobalSampler:
    """Draws global batches from the pools of K clients.

    A step is drawn, then committed. `draw` commits the one before it, so plain use needs no more; where a client may be
    lost inside a step, `void` gives all draws of the step back and the next `draw` repeats it with fresh random words.
    One object may be used by one thread at a time.
    """

    def __init__(self, counts: Iterable[int], seed: int = 0, epoch: int = 0) -> None:
        start = array("I", _whole(counts))
        self._core = core.SamplerHandle.init(start, seed, epoch)
        self._start: array[int] | None = start  # None after churn: then there is nothing to replay from
        self._removed: dict[int, int] = {}  # client -> what it had left
        self._drawn: tuple[list[int], list[int]] | None = None

    def draw(self, batch: int) -> tuple[list[int], list[int]]:
        """Return clients in increasing order and how many samples each gives; fewer than batch at the end."""
        self.commit()
        if batch < 0:
            raise CoreError(f"batch is {batch}; expected 0 or more")
        self._drawn = self._core.draw(batch)
        ids, counts = self._drawn
        return list(ids), list(counts)

    def draw_dense(self, batch: int, out: MutableSequence[int] | None = None) -> MutableSequence[int]:
        """Draw, and return how many samples each client gives, 0s included, in `out` if one is given."""
        ids, counts = self.draw(batch)
        dense: MutableSequence[int] = [0] * len(self) if out is None else out
        if len(dense) != len(self):
            raise CoreError(f"out holds {len(dense)} places for {len(self)} clients; expected one each")
        if out is not None:
            for k in range(len(dense)):
                dense[k] = 0
        for k, count in zip(ids, counts, strict=True):
            dense[k] = count
        return dense

    def commit(self) -> None:
        """Say that the step that was drawn is done. Without one, nothing happens."""
        if self._drawn is not None:
            self._core.commit()
            self._drawn = None

    def void(self, lost: int | None = None) -> None:
        """Give the draws of the step back, remove client `lost`, and have the step drawn anew with fresh words."""
        if self._drawn is None:
            raise CoreError("void: no step is open; draw one first")
        (ids, counts), self._drawn = self._drawn, None
        self._core.void(ids, counts)
        for k in self._removed:  # who was removed meanwhile gets its draws back when it returns
            self._removed[k] += self._core.count(k)
            self._core.set_count(k, 0)
        if lost is not None:
            self.remove(lost)

    def remove(self, k: int) -> None:
        """Take client k out; what it has left is kept for `restore`."""
        if k not in self._removed:
            self._removed[k] = self._core.count(k)
            self._core.set_count(k, 0)
            self._start = None

    def restore(self, k: int) -> None:
        """Bring client k back with the samples it had left."""
        self._core.count(k)
        if k in self._removed:
            self._core.set_count(k, self._removed[k])
            del self._removed[k]
            self._start = None

    def add(self, n: int) -> int:
        """Add a client with n samples and return its index."""
        k = self._core.add(n)
        self._start = None
        return k

    def set_count(self, k: int, n: int) -> None:
        """Let client k have n samples left."""
        if k in self._removed:
            if not 0 <= n <= core.U32_MAX:
                raise CoreError(f"count is {n}; expected a whole number from 0 to {core.U32_MAX}")
            self._removed[k] = n
        else:
            self._core.set_count(k, n)
        self._start = None

    def seek(self, step: int, batch: int) -> None:
        """Go to the start of a step by replaying the epoch from its beginning, `batch` samples a step.

        CoreError after churn: then the beginning no longer says where this pool stands.
        """
        if self._start is None:
            raise CoreError(
                "seek: clients joined, left or changed in this epoch, so it cannot be replayed; use state()"
            )
        self._core = core.SamplerHandle.init(self._start, self._core.seed, self._core.epoch)
        self._drawn = None
        self._core.skip(step, batch)

    def state(self) -> bytes:
        """Return everything needed to go on. A step that is drawn and not committed will be drawn again, the same."""
        if self._drawn is None:
            own = self._core.save()
        else:
            copy = core.SamplerHandle.load(self._core.save())
            for k, count in zip(*self._drawn, strict=True):
                copy.set_count(k, copy.count(k) + count)
            own = copy.save()
        start = b"" if self._start is None else _little(self._start)
        clients = _NO_START if self._start is None else len(self._start)
        gone = b"".join(struct.pack("<II", k, self._removed[k]) for k in sorted(self._removed))
        return _HEAD.pack(_MAGIC, len(own), clients, len(self._removed)) + own + start + gone

    @classmethod
    def from_state(cls, state: bytes) -> GlobalSampler:
        """Return the sampler that `state` describes; CoreError when the bytes are damaged."""
        self = cls.__new__(cls)
        wrong = CoreError("GlobalSampler state: the bytes are damaged, cut short or of another version")
        if len(state) < _HEAD.size:
            raise wrong
        magic, size, clients, removed = _HEAD.unpack_from(state)
        n_start = 0 if clients == _NO_START else clients
        if magic != _MAGIC or len(state) != _HEAD.size + size + 4 * n_start + 8 * removed:
            raise wrong
        middle = _HEAD.size + size
        self._core = core.SamplerHandle.load(state[_HEAD.size : middle])
        words = struct.unpack_from(f"<{n_start + 2 * removed}I", state, middle)
        self._start = None if clients == _NO_START else array("I", words[:n_start])
        self._removed = dict(zip(words[n_start::2], words[n_start + 1 :: 2], strict=True))
        self._drawn = None
        if any(k >= len(self) for k in self._removed) or clients not in (_NO_START, len(self)):
            raise wrong
        return self

    def __len__(self) -> int:
        """Clients, removed ones included."""
        return self._core.n

    @property
    def remaining(self) -> list[int]:
        """What each client has left; 0 for the removed."""
        return list(self._core.counts())

    @property
    def total(self) -> int:
        """What all have left, the removed not counted."""
        return self._core.total

    @property
    def seed(self) -> int:
        return self._core.seed

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def step(self) -> int:
        """The step that is open, or the next one."""
        return self._core.step

    @property
    def redraw(self) -> int:
        """How often the step at hand has been void."""
        return self._core.redraw


def _whole(counts: Iterable[int]) -> Iterable[int]:
    """Return counts as plain integers; what they are not is a CoreError."""
    try:
        items = memoryview(counts).tolist() if not isinstance(counts, list | tuple) else counts  # type: ignore[arg-type]
    except TypeError:
        items = list(counts)
    for count in items:
        if not isinstance(count, int) or not 0 <= count <= core.U32_MAX:
            raise CoreError(f"counts holds {count!r}; expected whole numbers from 0 to {core.U32_MAX}")
    return items


def _little(words: array[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)
