# SPDX-License-Identifier: Apache-2.0
"""When a chip that converts on and on has ended a conversion, told from polls of its ready flag. Pure: time is given.

A flag seen clear and then set encloses an end, and ends that are so many cycles apart enclose the cycle, of which the
datasheets say +-10 %. Both are kept as intervals and cut by what is seen, so `doubt_us` is a bound and no guess.
"""

from __future__ import annotations

from math import ceil, floor

TOLERANCE = 0.10  # of the chip's clock: 586 us at most for 532 us typical (SBOS448G, 7.5)
DRIFT = 1e-4  # by which a cycle may have changed since the last end: it follows the temperature
STEP_US = 1_000  # between polls around an end: finer costs processor time, and edges come no more exact
BASE = 64  # conversions over which the cycle is measured: longer would hide the drift
PATIENCE = 3  # so many cycles without an end, and the chip has stopped

Interval = tuple[float, float]


class Conversions:
    """The ends of conversions that take about `cycle_us` each; the flag was seen clear at `now_us`."""

    def __init__(self, cycle_us: int, now_us: int) -> None:
        self._known: Interval = (cycle_us * (1 - TOLERANCE), cycle_us * (1 + TOLERANCE))  # to the datasheet
        self._cycle = self._known
        self._end: Interval | None = None
        self._base: tuple[Interval, int] | None = None  # an end, and how many conversions ago
        self._clear_us = now_us
        self._heard_us = now_us  # a conversion was known to run
        self._skip = 1
        self.patience_us = PATIENCE * cycle_us + 2 * STEP_US  # for which there may be no end

    @property
    def cycle_us(self) -> int:
        """Return how long a conversion takes, as far as that is known."""
        return round(sum(self._cycle) / 2)

    @property
    def end_us(self) -> int | None:
        """Return when the last conversion that was told of ended."""
        return None if self._end is None else round(sum(self._end) / 2)

    @property
    def doubt_us(self) -> int:
        """Return how far end_us may be from the truth at most."""
        return 0 if self._end is None else ceil((self._end[1] - self._end[0]) / 2)

    def clear(self, at_us: int) -> None:
        """Learn that the flag was clear then, whether seen or made so."""
        self._clear_us = max(self._clear_us, at_us)

    def heard(self, at_us: int) -> None:
        """Learn that the flag was set then, whenever the conversion ended."""
        self._heard_us = at_us

    def stopped(self, now_us: int) -> bool:
        """Return whether an end is overdue."""
        return now_us - self._heard_us > self.patience_us

    def ended(self, before_us: int, after_us: int) -> int:
        """Learn that the flag was set at some instant between; return when the last conversion before that ended."""
        seen = end = (max(float(self._clear_us), before_us - self._known[1]), float(after_us))
        counted = 0
        if self._end is not None:
            (early, late), (short, long) = self._end, self._cycle
            least = max(1, floor((before_us - late) / long), ceil((seen[0] - late) / long))
            most = floor((after_us - early) / short)
            end = (max(seen[0], early + least * short), min(seen[1], late + most * long))
            if least > most or end[0] > end[1]:  # the clock has changed, or time stood still
                end, self._cycle = seen, self._known
            elif least == most:
                counted = least
        self._learn(end, counted)
        self._end, self._heard_us = end, after_us
        return round(sum(end) / 2)

    def _learn(self, end: Interval, counted: int) -> None:
        """Measure the cycle from an end a while ago on; `counted` conversions since the last one, 0: not known."""
        since, cycles = self._base if counted and self._base is not None else (end, -counted)
        cycles += counted
        self._base = (since, cycles) if cycles < BASE else (end, 0)
        if cycles:
            short = max((end[0] - since[1]) / cycles, self._cycle[0] * (1 - DRIFT))
            long = min((end[1] - since[0]) / cycles, self._cycle[1] * (1 + DRIFT))
            known = (max(short, self._known[0]), min(long, self._known[1]))
            self._cycle = known if known[0] < known[1] else self._known

    def skip(self, cycles: int) -> None:
        """Let the next end of interest be so many conversions after the last one."""
        self._skip = cycles

    def is_early(self, now_us: int) -> bool:
        """Return whether a set flag may be that of an end before the one of interest, which is just ahead."""
        if self._end is None:
            return False
        soonest_us = self._end[0] + self._skip * self._cycle[0]
        before_us = self._end[0] + (self._skip - 1) * self._cycle[0]
        return self._clear_us < before_us and soonest_us - 2 * STEP_US < now_us <= soonest_us

    def due_us(self, now_us: int) -> int:
        """Return when to poll next: around the expected end, again and again until it is seen."""
        if self._end is None:
            soonest_us, latest_us, stale = self._clear_us + self._cycle[0], self._clear_us + self._cycle[1], False
        else:
            soonest_us = self._end[0] + self._skip * self._cycle[0]
            latest_us = self._end[1] + self._skip * self._cycle[1]
            stale = self._clear_us < self._end[0] + (self._skip - 1) * self._cycle[0]
        if stale and now_us < soonest_us - STEP_US:
            return round(soonest_us) - STEP_US  # to clear the flag of the ends that are skipped
        if now_us < soonest_us:
            return round(soonest_us + min(STEP_US, (latest_us - soonest_us) / 2))
        return now_us + STEP_US // 2
