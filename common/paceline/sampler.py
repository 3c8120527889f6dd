# SPDX-License-Identifier: Apache-2.0
"""Which client's samples make up a step of parallel split learning: a batch drawn without replacement from all pools.

A step's counts are exactly multivariate hypergeometric, and an epoch uses each sample once. The schedule is named by
(seed, epoch, step): every machine and every data structure draws the same. Knows no network and no sample.
"""

from __future__ import annotations

import operator
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import core
from paceline.errors import CoreError

_HEAD = struct.Struct("<4sIII")  # magic, bytes of the core's state, clients at the epoch's start or NO_START, removed
_MAGIC = b"GSP2"  # a CRC-32 of all of it stands at the end
_NO_START = 0xFFFFFFFF
STRUCTURES = {"auto": core.EngineHandle, "tree16": core.EngineHandle, "fenwick": core.SamplerHandle}


@dataclass(frozen=True)
class Schedule:
    """An epoch's steps: pairs (client, samples) one step after the other, and where in them each step ends."""

    ids: array[int]
    counts: array[int]
    ends: array[int]

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[tuple[array[int], array[int]]]:
        """Yield the clients of each step, in increasing order, and how many samples each gives."""
        start = 0
        for end in self.ends:
            yield self.ids[start:end], self.counts[start:end]
            start = end


class GlobalSampler:
    """Draws global batches from the pools of K clients.

    A step is drawn, then committed. `draw` commits the one before it, so plain use needs no more; where a client may be
    lost inside a step, `void` gives all draws of the step back and the next `draw` repeats it with fresh random words.
    One object may be used by one thread at a time.

    structure: "tree16" (4.27 bytes a client; up to 64 clients sit in registers; "auto" means this one, the faster at
    every K and B) or "fenwick" (4 bytes, what a microcontroller runs). simd: "best", or what to use instead of it
    ("portable", "sse2", "avx2", "avx512", "neon"). The schedule depends on neither.
    replay: keep the epoch's first counts, 4 bytes a client more, so that `seek` can begin there.
    """

    def __init__(
        self,
        counts: Iterable[int],
        seed: int = 0,
        epoch: int = 0,
        structure: str = "auto",
        simd: str = "best",
        replay: bool = True,
    ) -> None:
        start = _whole(counts, copy=replay)
        self._kind = _structure(structure)
        self._simd = simd
        self._core = self._kind.init(start, seed, epoch, simd)
        self._start: Sequence[int] | None = start if replay else None  # None after churn: nothing to replay from
        self._removed: dict[int, int] = {}  # client -> what it had left
        self._open = False

    def draw(self, batch: int) -> tuple[list[int], list[int]]:
        """Return clients in increasing order and how many samples each gives; fewer than batch at the end.

        batch: 1 or more. An empty pool gives nothing.
        """
        self._draw(batch)
        return self._core.drawn()

    def _draw(self, batch: int) -> None:
        batch = _batch(batch)  # before the step that is open is done for
        self.commit()
        self._core.draw(batch)
        self._open = True

    def draw_dense(self, batch: int, out: MutableSequence[int] | None = None) -> MutableSequence[int]:
        """Draw, and return how many samples each client gives, 0s included, in `out` if one is given.

        Fastest into a buffer of unsigned 32-bit integers, as array("I") or numpy's uint32.
        """
        dense: MutableSequence[int] = [0] * len(self) if out is None else out
        if len(dense) != len(self):
            raise CoreError(f"out holds {len(dense)} places for {len(self)} clients; expected one each")
        self._draw(batch)
        if not self._core.spread(dense):
            if out is not None:
                for k in range(len(dense)):
                    dense[k] = 0
            for k, count in zip(*self._core.drawn(), strict=True):
                dense[k] = count
        return dense

    def draw_by_client(self, batch: int) -> tuple[list[int], list[int]]:
        """Draw as `draw` does, by one number a client: the same law, but NOT the one schedule of (seed, epoch, step).

        Faster from some 100 samples a client and step; `seek` does not replay such steps.
        """
        batch = _batch(batch)
        self.commit()
        self._core.draw_by_client(batch)
        self._start = None
        self._open = True
        return self._core.drawn()

    def schedule(self, batch: int, near_equal: bool = False, by_client: bool = False) -> Schedule:
        """Draw and commit all steps until the pool is empty, in one call.

        Fixed batches and a last one of what is left, or, with near_equal, as many steps whose sizes differ by at most
        one, the larger first. Nobody joins or leaves meanwhile. by_client: as `draw_by_client` draws.
        """
        self.commit()
        if self.total == 0:
            raise CoreError(
                "schedule: the pool is empty; every sample of this epoch has been drawn, or no client has any"
            )
        steps, larger, n_larger = core.near_equal(self.total, batch)
        size, first = (larger, self.step + n_larger) if near_equal else (batch, core.U32_MAX)
        if by_client:
            self._start = None
        return Schedule(*self._core.steps(size, min(first, core.U32_MAX), steps, by_client))

    def commit(self) -> None:
        """Say that the step that was drawn is done. Without one, nothing happens."""
        if self._open:
            self._core.commit()
            self._open = False

    def void(self, lost: int | None = None) -> None:
        """Give the draws of the step back, remove client `lost`, and have the step drawn anew with fresh words."""
        if not self._open:
            raise CoreError("void: no step is open; draw one first")
        self._open = False
        self._start = None  # a replay would draw the step with the words that it had at first
        self._core.void()
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
            self._removed[k] = _number(n, "count")
        else:
            self._core.set_count(k, n)
        self._start = None

    def seek(self, step: int, batch: int) -> None:
        """Go to the start of a step by replaying the epoch from its beginning, `batch` samples a step.

        CoreError after churn, or after a void step: then the beginning no longer says where this pool stands.
        """
        step, batch = _number(step, "step"), _batch(batch)
        if self._start is None:
            raise CoreError(
                "seek: clients joined, left or changed in this epoch, or a step was void, so it cannot be replayed; "
                "use state()"
            )
        self._core = self._kind.init(self._start, self._core.seed, self._core.epoch, self._simd)
        self._open = False
        self._core.skip(step, batch)

    def state(self) -> bytes:
        """Return everything needed to go on. A step that is drawn and not committed will be drawn again, the same.

        Or without those who were removed while it was open: what they had given is kept for `restore`.
        """
        removed = dict(self._removed)
        if not self._open:
            own = self._core.save()
        else:
            copy = self._kind.load(self._core.save(), self._simd)
            for k, count in zip(*self._core.drawn(), strict=True):
                if k in removed:
                    removed[k] += count
                else:
                    copy.set_count(k, copy.count(k) + count)
            own = copy.save()
        start = b"" if self._start is None else _little(self._start)
        clients = _NO_START if self._start is None else len(self._start)
        gone = b"".join(struct.pack("<II", k, removed[k]) for k in sorted(removed))
        body = _HEAD.pack(_MAGIC, len(own), clients, len(removed)) + own + start + gone
        return body + zlib.crc32(body).to_bytes(4, "little")

    @classmethod
    def from_state(cls, state: bytes, structure: str = "auto", simd: str = "best") -> GlobalSampler:
        """Return the sampler that `state` describes, in any structure; CoreError when the bytes are damaged."""
        self = cls.__new__(cls)
        self._kind, self._simd = _structure(structure), simd
        wrong = CoreError("GlobalSampler state: the bytes are damaged, cut short or of another version")
        state, check = state[:-4], state[-4:]
        if len(state) < _HEAD.size or zlib.crc32(state) != int.from_bytes(check, "little"):
            raise wrong
        magic, size, clients, removed = _HEAD.unpack_from(state)
        n_start = 0 if clients == _NO_START else clients
        if magic != _MAGIC or len(state) != _HEAD.size + size + 4 * n_start + 8 * removed:
            raise wrong
        middle = _HEAD.size + size
        self._core = self._kind.load(state[_HEAD.size : middle], simd)
        words = struct.unpack_from(f"<{n_start + 2 * removed}I", state, middle)
        self._start = None if clients == _NO_START else array("I", words[:n_start])
        self._removed = dict(zip(words[n_start::2], words[n_start + 1 :: 2], strict=True))
        self._open = False
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

    @property
    def simd(self) -> str:
        """The instructions that are used."""
        return self._core.simd

    @property
    def memory_bytes(self) -> int:
        """Bytes of the structure, and of the first counts where they are kept."""
        return self._core.memory_bytes + (0 if self._start is None else 4 * len(self._start))


def _structure(name: str) -> type[core.SamplerHandle]:
    if name not in STRUCTURES:
        raise CoreError(f"structure is {name!r}; expected one of {', '.join(STRUCTURES)}")
    return STRUCTURES[name]


def _whole(counts: Iterable[int], copy: bool) -> Sequence[int]:
    """Return counts as unsigned 32-bit integers, or raise CoreError; a buffer of such is copied only if asked."""
    try:
        view = memoryview(counts)  # type: ignore[arg-type]  # what is no buffer is caught
        if view.format == "I" and view.ndim == 1 and view.c_contiguous and view.itemsize == 4:
            own = array("I")
            if copy:
                own.frombytes(view.cast("B"))
            return own if copy else view
        items: list[Any] = view.tolist()
    except (TypeError, NotImplementedError):  # no buffer, or one of another byte order
        try:
            items = list(counts)
        except TypeError:
            raise CoreError(f"counts is {counts!r}; expected how many samples each client has") from None
    for place, count in enumerate(items):
        try:
            items[place] = whole = operator.index(count)
        except TypeError:
            whole = -1
        if not 0 <= whole <= core.U32_MAX:
            raise CoreError(f"counts holds {count!r}; expected whole numbers from 0 to {core.U32_MAX}")
    return array("I", items)


def _batch(batch: int) -> int:
    """Return a batch size as a whole number of 1 or more, or raise CoreError."""
    if type(batch) is int and 0 < batch <= core.U32_MAX:
        return batch  # as nearly always
    return _number(batch, "batch", 1)


def _number(value: int, name: str, least: int = 0) -> int:
    """Return a whole number from `least` on as such, of whatever type, or raise CoreError."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = -1
    if not least <= whole <= core.U32_MAX:
        expected = f"a whole number from 0 to {core.U32_MAX}" if least == 0 else f"{least} or more, a whole number"
        raise CoreError(f"{name} is {value!r}; expected {expected}")
    return whole


def _little(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)
