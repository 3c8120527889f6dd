# SPDX-License-Identifier: Apache-2.0
"""What a board's joules were spent on: one contiguous window, cut into five categories that add up to it (DECISIONS
29).

Pure: no clock, no thread, no sensor. Marks say from when on time is spent on what; `settle` attributes the energy as it
becomes final, so a window may be longer than what the integrator remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from paceline.energy import Energy
from paceline.quick import quicken
from paceline.wire import ENERGY_FLAGS
from paceline_agent.gaps import is_seen
from paceline_agent.measuring import Scatter

CATEGORIES = ("compute", "wait", "transfer", "wasted", "other")
FLAGS = ENERGY_FLAGS
ESTIMATED = 0.1  # of the compute joules: when edges may have moved more, the split is an estimate (DECISIONS 31)

LATE_US = 1_000_000  # the present is settled this far behind, so that an edge heard late still finds its own time
VERDICTS = 4  # leases whose verdict may still come; a board holds one at a time

Window = Callable[[int, int], Energy | None]  # of an integrator


@dataclass(frozen=True)
class Edge:
    """What one edge of a stretch may put on its wrong side."""

    bound_uj: int = 0  # of that, what belongs to the instrument's bound
    split_uj: int = 0  # all of it; between readings of an instant the rest belongs to sampling


@dataclass
class Tally:
    """Energy of some stretches of time; `energy_uj` None once any of it is unknown."""

    energy_uj: int | None = 0
    inner_uj: int = 0  # the instrument's bound, edges apart
    edges_uj: int = 0  # what the edges add to it
    split_uj: int = 0  # how much may belong to the neighbours
    span_us: int = 0
    covered_us: int = 0
    flags: int = 0
    scatter: Scatter = field(default_factory=Scatter)

    @property
    def bound_uj(self) -> int:
        """Return the worst case of the instrument, edges included."""
        return self.inner_uj + self.edges_uj

    @property
    def is_estimated(self) -> bool:
        """Return whether edges may have moved more than a tenth of it."""
        return self.energy_uj is not None and self.split_uj > ESTIMATED * abs(self.energy_uj)

    def add(self, energy: Energy | None, span_us: int) -> None:
        """Count one more stretch; None: nothing is known of it."""
        self.span_us += span_us
        for flag in energy.flags if energy is not None else ():
            self.flags |= FLAGS.get(flag, 0)
        if energy is None or energy.energy_uj is None:
            self.energy_uj = None
            self.flags |= FLAGS["unknown"]
            return
        if self.energy_uj is not None:
            self.energy_uj += energy.energy_uj
        self.inner_uj += energy.bound_uj
        self.covered_us += energy.covered_us

    @property
    def is_guess(self) -> bool:
        """Return whether it has joules, and next to nothing of its time was seen."""
        return self.energy_uj is not None and not is_seen(self.covered_us, self.span_us)

    def cut(self, edge: Edge) -> None:
        """Count one edge."""
        self.edges_uj += edge.bound_uj
        self.split_uj += edge.split_uj

    def absorb(self, other: Tally) -> None:
        """Count what another tally has counted."""
        known = self.energy_uj is not None and other.energy_uj is not None
        self.energy_uj = (self.energy_uj or 0) + (other.energy_uj or 0) if known else None
        self.inner_uj += other.inner_uj
        self.edges_uj += other.edges_uj
        self.split_uj += other.split_uj
        self.span_us += other.span_us
        self.covered_us += other.covered_us
        self.flags |= other.flags
        self.scatter.add(other.scatter)


@dataclass(frozen=True)
class Split:
    """The five categories since the window was opened, each None when unknown; they sum to `total` exactly.

    What edges inside the window move is in no total: of the edges, its bound holds the first and the last one only.
    """

    parts_uj: dict[str, int | None]
    total: Tally
    compute_split_uj: int = 0  # how much of compute may belong to its neighbours
    wait_us: int = 0


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
        self._first, self._is_first = Edge(), True  # of the window

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
        tally = self._leases.get(lease) or Tally(None, flags=FLAGS["unknown"])
        return replace(tally, energy_uj=None, flags=tally.flags | FLAGS["unknown"]) if tally.is_guess else tally

    def settle(
        self, final_us: int, window: Window | None, edge: Callable[[int], Edge] | None = None,
        scatter: Callable[[int, int], Scatter] | None = None,
    ) -> list[tuple[object, Split]]:  # fmt: skip
        """Attribute what can be up to final_us; return what was asked for. `window` None: there is no meter.

        That is all up to the last mark and up to what was asked for, and of the present what lies LATE_US back.
        `edge` tells what the edge at an instant may put on the wrong side: it adds to the bounds on either side of it
        (DECISIONS 31). `scatter`: what readings from one instant up to another say of sampling.
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
                if scatter is not None:
                    tally.scatter.add(scatter(self._settled_us, stop_us))
                if edge is not None and self._settled_us == segment.begin_us:
                    tally.cut(begin := edge(segment.begin_us))
                    self._first = begin if self._is_first else self._first
                    self._is_first = False
                self._settled_us = stop_us
            if end_us is not None and end_us <= self._settled_us:
                if edge is not None and segment.begin_us < end_us:
                    self._tally(segment).cut(edge(end_us))
                self._segments.popleft()
            elif self._asked and self._asked[0][0] <= self._settled_us:
                last = edge(self._settled_us) if edge is not None else None
                answers.append((self._asked.popleft()[1], self.split(last)))
            else:
                return answers

    def split(self, last: Edge | None = None) -> Split:
        """Return the split of what is settled, with the present as its `last` edge.

        A category on which no time was spent took 0 joules, meter or not.
        """
        parts, compute = self._settled.copy(), Tally()
        for tally in (parts["compute"], *self._leases.values()):
            compute.absorb(tally)
        parts["compute"] = compute
        total = Tally()
        for tally in parts.values():
            total.absorb(tally)
        total.edges_uj = self._first.bound_uj + (last.bound_uj if last is not None else 0)
        compute = parts["compute"]
        if compute.is_estimated:
            total.flags |= FLAGS["estimated"]
        known = {category: tally.energy_uj for category, tally in parts.items()}
        if total.is_guess:
            total.energy_uj, total.flags = None, total.flags | FLAGS["unknown"]
            known = {category: None if parts[category].span_us else joules for category, joules in known.items()}
        return Split(known, total, compute.split_uj, parts["wait"].span_us)

    def _tally(self, segment: _Segment) -> Tally:
        if segment.category != "compute":
            return self._settled[segment.category]
        if segment.lease in self._void:
            return self._settled["wasted"]
        if len(self._leases) > VERDICTS:  # nobody judges the oldest any more: its compute stays compute
            self._settled["compute"].absorb(self._leases.pop(next(iter(self._leases))))
        return self._leases.setdefault(segment.lease, Tally())
