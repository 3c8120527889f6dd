# SPDX-License-Identifier: Apache-2.0
"""What a board's joules were spent on: one contiguous window, cut into five categories that add up to it (DECISIONS
29).

Pure: no clock, no thread, no sensor. Marks say from when on time is spent on what; `settle` attributes the energy as it
becomes final, so a window may be longer than what the integrator remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline.energy import Energy
from paceline.quick import quicken

CATEGORIES = ("compute", "wait", "transfer", "wasted", "other")
# Bits of the flags that travel. saturated: there may have been more; overflow: only the chip's own arithmetic is void.
FLAGS = {"unknown": 1, "gap": 2, "reset": 4, "saturated": 8, "overflow": 16, "negative": 32}

LATE_US = 1_000_000  # the present is settled this far behind, so that an edge heard late still finds its own time
VERDICTS = 4  # leases whose verdict may still come; a board holds one at a time

Window = Callable[[int, int], Energy | None]  # of an integrator


@dataclass
class Tally:
    """Energy of some stretches of time; `energy_uj` None once any of it is unknown."""

    energy_uj: int | None = 0
    bound_uj: int = 0
    span_us: int = 0
    covered_us: int = 0
    flags: int = 0

    def add(self, energy: Energy | None, span_us: int) -> None:
        """Count one more stretch; None: nothing is known of it."""
        self.span_us += span_us
        if energy is None or energy.energy_uj is None:
            self.energy_uj = None
            self.flags |= FLAGS["unknown"]
            return
        if self.energy_uj is not None:
            self.energy_uj += energy.energy_uj
        self.bound_uj += energy.bound_uj
        self.covered_us += energy.covered_us
        for flag in energy.flags:
            self.flags |= FLAGS.get(flag, 0)

    def absorb(self, other: Tally) -> None:
        """Count what another tally has counted."""
        known = self.energy_uj is not None and other.energy_uj is not None
        self.energy_uj = (self.energy_uj or 0) + (other.energy_uj or 0) if known else None
        self.bound_uj += other.bound_uj
        self.span_us += other.span_us
        self.covered_us += other.covered_us
        self.flags |= other.flags


@dataclass(frozen=True)
class Split:
    """The five categories since the window was opened, each None when unknown; they sum to `total` exactly."""

    parts_uj: dict[str, int | None]
    total: Tally


@dataclass(frozen=True)
class _Segment:
    begin_us: int
    category: str
    lease: int


quicken((Split, _Segment))


class Ledger:
    """Open at `t_us` with time spent on "other".

    The mark that comes last tells best: it supersedes what was marked from its time on, so the trainer's edge wins over
    a younger mark that was heard before it. What is settled stays settled: a mark older than that counts from there.
    """

    def __init__(self, t_us: int) -> None:
        self._segments = deque([_Segment(t_us, "other", 0)])  # the first is being settled, the last is the present
        self._settled_us = t_us
        self._settled = {category: Tally() for category in CATEGORIES}
        self._leases: dict[int, Tally] = {}  # compute whose verdict is not known yet
        self._void: set[int] = set()
        self._asked: deque[tuple[int, object]] = deque()

    def mark(self, t_us: int, category: str, lease: int = 0) -> None:
        """From t_us on time is spent on `category`, compute for a lease; no time after t_us keeps an older mark."""
        if category not in CATEGORIES:
            raise ValueError(f"no such category: {category!r}")
        begin_us = max(t_us, self._settled_us)
        while len(self._segments) > 1 and self._segments[-1].begin_us >= begin_us:
            self._segments.pop()
        self._segments.append(_Segment(begin_us, category, lease))

    def void(self, lease: int) -> None:
        """What was, and what will still be, computed under this lease is wasted."""
        self._void.add(lease)
        tally = self._leases.pop(lease, None)
        if tally is not None:
            self._settled["wasted"].absorb(tally)

    def ask(self, t_us: int, key: object) -> None:
        """Let `settle` return (key, split as of t_us) once that is final. Questions come in order of time."""
        self._asked.append((max(t_us, self._settled_us), key))

    def computed(self, lease: int) -> Tally | None:
        """Return the compute energy of a lease once all of it is final, None before; unknown if it never computed."""
        if any(segment.lease == lease and segment.category == "compute" for segment in self._segments):
            return None
        return self._leases.get(lease) or Tally(None, flags=FLAGS["unknown"])

    def settle(self, final_us: int, window: Window | None, edge_uj: int = 0) -> list[tuple[object, Split]]:
        """Attribute what can be up to final_us; return what was asked for. `window` None: there is no meter.

        That is all up to the last mark and up to what was asked for, and of the present what lies LATE_US back.
        Each edge of a stretch may be off by edge_uj, which adds to the bounds on either side of it (DECISIONS 31).
        """
        answers: list[tuple[object, Split]] = []
        while True:
            segment = self._segments[0]
            end_us = self._segments[1].begin_us if len(self._segments) > 1 else None
            asked_us = self._asked[0][0] if self._asked else None
            stop_us = final_us - LATE_US if end_us is None and asked_us is None else final_us
            if end_us is not None and end_us < stop_us:
                stop_us = end_us
            if asked_us is not None and asked_us < stop_us:
                stop_us = asked_us
            if stop_us > self._settled_us:
                energy = window(self._settled_us, stop_us) if window is not None else None
                if window is not None and energy is None:
                    return answers
                tally = self._tally(segment)
                tally.add(energy, stop_us - self._settled_us)
                tally.bound_uj += 2 * edge_uj if self._settled_us == segment.begin_us else 0
                self._settled_us = stop_us
            if self._asked and self._asked[0][0] <= self._settled_us:
                answers.append((self._asked.popleft()[1], self.split()))
            elif end_us is not None and end_us <= self._settled_us:
                self._segments.popleft()
            else:
                return answers

    def split(self) -> Split:
        """Return the split of what is settled. A category on which no time was spent took 0 joules, meter or not."""
        parts, compute = self._settled.copy(), Tally()
        for tally in (parts["compute"], *self._leases.values()):
            compute.absorb(tally)
        parts["compute"] = compute
        total = Tally()
        for tally in parts.values():
            total.absorb(tally)
        return Split({category: tally.energy_uj for category, tally in parts.items()}, total)

    def _tally(self, segment: _Segment) -> Tally:
        if segment.category != "compute":
            return self._settled[segment.category]
        if segment.lease in self._void:
            return self._settled["wasted"]
        if len(self._leases) > VERDICTS:  # nobody judges the oldest any more: its compute stays compute
            self._settled["compute"].absorb(self._leases.pop(next(iter(self._leases))))
        return self._leases.setdefault(segment.lease, Tally())
