# SPDX-License-Identifier: Apache-2.0
"""When a chip that converts on and on has ended a conversion, told from polls of its ready flag. Pure: time is given.

A poll that finds the flag set says no more than that a conversion ended since it was last seen clear. Polls just before
and just after the expected end say it to a millisecond; the chip's own clock, +-10 % by its datasheet, is learned.
"""

from __future__ import annotations

TOLERANCE = 0.10  # of the chip's clock: 586 us at most for 532 us typical (SBOS448G, 7.5)
STEP_US = 1_000  # between polls around an end: finer costs processor time, and edges come no more exact
NARROW = 16  # an end known to a cycle's 16th, twice, measures the cycle
PATIENCE = 3  # so many cycles without an end, and the chip has stopped


class Conversions:
    """The ends of conversions that take about `cycle_us` each and began when the flag was seen clear, at `now_us`."""

    def __init__(self, cycle_us: int, now_us: int) -> None:
        self._nominal_us = cycle_us
        self._cycle_us = float(cycle_us)
        self._clear_us = now_us  # the flag was clear here
        self._heard_us = now_us  # a conversion was known to run
        self.end_us: int | None = None  # the last end ...
        self.doubt_us = 0  # ... and how far it may be off, either way
        self._sharp = False
        self._skip = 1

    @property
    def cycle_us(self) -> int:
        """Return how long a conversion takes, as learned."""
        return round(self._cycle_us)

    @property
    def patience_us(self) -> int:
        """Return for how long there may be no end."""
        return PATIENCE * self._nominal_us + 2 * STEP_US

    def clear(self, at_us: int) -> None:
        """Learn that the flag was clear then."""
        self._clear_us = max(self._clear_us, at_us)

    def heard(self, at_us: int) -> None:
        """Learn that the flag was set then, whenever the conversion ended."""
        self._heard_us = at_us

    def stopped(self, now_us: int) -> bool:
        """Return whether an end is overdue."""
        return now_us - self._heard_us > self.patience_us

    def ended(self, at_us: int) -> int:
        """Learn that the flag was set at the latest then; return when the last conversion ended."""
        low_us = max(self._clear_us, at_us - round(self._nominal_us * (1 + TOLERANCE)))
        cycles = 0
        if self.end_us is None:
            end_us = (low_us + at_us) // 2
        else:
            cycles = max(1, int((at_us - self.end_us) / self._cycle_us + 1 / NARROW))
            end_us = min(max(self.end_us + round(cycles * self._cycle_us), low_us), at_us)
        sharp = at_us - low_us <= self._nominal_us / NARROW
        if sharp and self._sharp and self.end_us is not None:
            self._learn((end_us - self.end_us) / cycles)
        self._sharp, self.end_us, self.doubt_us, self._heard_us = sharp, end_us, at_us - low_us, at_us
        return end_us

    def _learn(self, cycle_us: float) -> None:
        fresh_us = self._cycle_us + (cycle_us - self._cycle_us) / 8
        slack_us = self._nominal_us * TOLERANCE
        self._cycle_us = min(max(fresh_us, self._nominal_us - slack_us), self._nominal_us + slack_us)

    def skip(self, cycles: int) -> None:
        """Expect the next end of interest so many conversions after the last one."""
        self._skip = cycles

    def expected_us(self, now_us: int) -> int:
        """Return when the next end of interest is expected; it may be over already."""
        if self.end_us is None:
            return max(now_us, self._clear_us + self.cycle_us)
        return self.end_us + round(self._skip * self._cycle_us)

    def is_early(self, now_us: int) -> bool:
        """Return whether this is the poll just before an expected end, which only makes the end exact."""
        return 0 < self.expected_us(now_us) - now_us <= 2 * STEP_US and self.end_us is not None

    def due_us(self, now_us: int) -> int:
        """Return when to poll next: just before the expected end, just after it, then every STEP_US."""
        expected_us = self.expected_us(now_us)
        if now_us < expected_us - 2 * STEP_US:
            return expected_us - STEP_US
        return max(now_us + STEP_US // 2, min(expected_us + STEP_US // 2, now_us + STEP_US))
