# SPDX-License-Identifier: Apache-2.0
"""What an edge between two readings of a joule counter may put on the wrong side. Pure.

All that was counted between the two may lie on either side of it; but not faster than power was ever seen to flow,
which is what a gap is held to as well. So a reading that was taken just after an edge makes it sharp, however long ago
the one before it was.
"""

from __future__ import annotations

from collections import deque

from paceline_agent.meters import Count


class CounterEdges:
    """The last `readings` of a counter."""

    def __init__(self, readings: int) -> None:
        self._counts: deque[Count] = deque(maxlen=readings)
        self._peak_uw = 0.0

    def add(self, count: Count) -> None:
        """Take the next reading."""
        if self._counts and count.t_us > self._counts[-1].t_us:
            step_uj = count.count_uj - self._counts[-1].count_uj
            self._peak_uw = max(self._peak_uw, step_uj * 1e6 / (count.t_us - self._counts[-1].t_us))
        self._counts.append(count)

    def between_uj(self, t_us: int, most_uj: int) -> int:
        """Return how far the energy up to t_us may be off, at most most_uj, which is what lies between the readings."""
        after: Count | None = None
        for before in reversed(self._counts):
            if before.t_us <= t_us:
                if after is None or after.count_uj < before.count_uj:  # it began anew: the integrator knows more
                    return most_uj
                return min(most_uj, self._off_uj(before, after, t_us))
            after = before
        return most_uj

    def _off_uj(self, before: Count, after: Count, t_us: int) -> int:
        whole_uj = after.count_uj - before.count_uj
        left_us, right_us = t_us - before.t_us, after.t_us - t_us
        guess_uj = whole_uj * left_us / (left_us + right_us)
        least_uj = max(0.0, whole_uj - self._peak_uw * right_us / 1e6)
        most_uj = min(whole_uj, self._peak_uw * left_us / 1e6)
        return round(max(guess_uj - least_uj, most_uj - guess_uj, 0.0)) + 1
