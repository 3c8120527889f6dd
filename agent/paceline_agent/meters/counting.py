# SPDX-License-Identifier: Apache-2.0
"""Counts of several joule counters -> one count that never wraps. Pure but for the clock that tells of suspend.

A step that cannot be told from a reset, may hide two wraps, or spans a suspend is dropped: the count begins anew one
below where it was, which the integrator sees as a reset. The first good reading is a base, never energy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from paceline_agent.frozen import RAPL_STILL_US
from paceline_agent.meters import Count

POWER_MAX_W = 2_000  # of one counter, with room to spare; one that ran faster was reset or misread
LATE_US = 10_000  # what a late update may put into one step
ASLEEP_US = 100_000  # the two clocks never part by so much but in a suspend
_BASE_UJ = 1 << 40  # each reset takes one away


@dataclass(frozen=True)
class Counter:
    """How one counter counts."""

    name: str
    range_uj: int | None  # highest count; None: unknown, so a step back is a reset and never a wrap
    unit_uj: int = 0  # resolution, rounded down; the count after range_uj + unit_uj - 1 is 0
    must_move: bool = False  # whoever reads it draws power that it counts

    def step_uj(self, before_uj: int, after_uj: int, span_us: int) -> int | None:
        """Return the energy between two counts, None when it may have been reset or have wrapped twice."""
        most_uj = POWER_MAX_W * (span_us + LATE_US)
        step_uj = after_uj - before_uj
        if self.range_uj is not None:
            modulus_uj = self.range_uj + self.unit_uj
            step_uj += modulus_uj if step_uj < 0 else 0
            if most_uj >= modulus_uj:
                return None
        return step_uj if 0 <= step_uj <= most_uj else None


def asleep_us() -> int:
    """Return for how long this machine has been suspended since it was started, but for a constant."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) // 1000


@dataclass(frozen=True)
class _Sample:
    t_us: int
    counts_uj: tuple[int, ...]
    asleep_us: int


class CounterSum:
    """The sum of `counters` from an arbitrary base on. update_us: how often the hardware moves them."""

    def __init__(self, counters: Sequence[Counter], update_us: int, asleep: Callable[[], int] = asleep_us) -> None:
        self._counters = tuple(counters)
        self._update_us = update_us
        self._asleep = asleep
        self._last: _Sample | None = None
        self._begun = False
        self._count_uj = _BASE_UJ
        self._peak_uw = 0
        self._moved: list[_Sample] = []  # of each counter the sample with which it moved last

    def is_due(self, now_us: int) -> bool:
        """Return whether the counters can have moved since the last sample."""
        return self._last is None or now_us >= self._last.t_us + self._update_us

    def forget(self) -> None:
        """Let the next sample be a base: the counters were out of sight."""
        self._last = None

    def add(
        self, t_us: int, counts_uj: Sequence[int], without: Collection[int] = (), flags: tuple[str, ...] = (),
        off_us: int = 0,
    ) -> list[Count]:  # fmt: skip
        """Take one count of each, but for the places in `without`. Return one count, two with the first step.

        off_us: how far t_us may be from the instant at which a count was taken.
        """
        fresh = _Sample(t_us, tuple(counts_uj), self._asleep())
        last, self._last = self._last, fresh
        if self._is_still(fresh, without):
            flags = (*flags, "frozen")
        step_uj = self._step(last, fresh, without) if last is not None else None
        if step_uj is None:
            if not self._begun:
                return []  # a base: what was before is unknown
            self._count_uj -= 1
            return [Count(t_us, self._count_uj, self._error_uj(off_us), flags)]
        assert last is not None
        base = [] if self._begun else [Count(last.t_us, self._count_uj, flags=flags)]
        self._begun = True
        self._count_uj += step_uj
        self._peak_uw = max(self._peak_uw, step_uj * 1_000_000 // (t_us - last.t_us + self._update_us))
        return [*base, Count(t_us, self._count_uj, self._error_uj(off_us), flags)]

    def _is_still(self, fresh: _Sample, without: Collection[int]) -> bool:
        """Return whether a counter stands still that cannot: what the others count is not all that was drawn."""
        self._moved = self._moved or [fresh] * len(self._counters)
        for place, count_uj in enumerate(fresh.counts_uj):
            if count_uj != self._moved[place].counts_uj[place]:
                self._moved[place] = fresh
        return any(
            counter.must_move and place not in without and fresh.t_us - moved.t_us >= RAPL_STILL_US
            for place, (counter, moved) in enumerate(zip(self._counters, self._moved, strict=True))
        )

    def _step(self, last: _Sample, fresh: _Sample, without: Collection[int]) -> int | None:
        if abs(fresh.asleep_us - last.asleep_us) > ASLEEP_US:
            return None
        total_uj = 0
        for place, counter in enumerate(self._counters):
            if place in without:
                continue
            step_uj = counter.step_uj(last.counts_uj[place], fresh.counts_uj[place], fresh.t_us - last.t_us)
            if step_uj is None:
                return None
            total_uj += step_uj
        return total_uj

    def _error_uj(self, off_us: int) -> int:
        """How far a count may be from the moment's truth: its resolution, and the highest power seen for one update
        and for off_us.

        How well the counter itself is calibrated is told by no maker, and so is not in it.
        """
        resolution_uj = sum(counter.unit_uj + 1 for counter in self._counters)
        return resolution_uj + self._peak_uw * (self._update_us + off_us) // 1_000_000
