# SPDX-License-Identifier: Apache-2.0
"""How often a source is read: what it can do, what a reading costs, and what the windows need. Knows no thread.

A period that the user has set stands. Without one a window is to hold READINGS readings, so that what its two edges
hide is a hundredth of it; no shorter than the source has news, nor than its costs allow, which may make it COSTLY times
the usual one. Power between two readings is not known, so no source of power is read less often than usual for the
sake of a long window; a counter loses nothing meanwhile. When in a period it is read is drawn anew each time
(`meters.SCATTERED`).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

USUAL_US = 100_000  # ten readings a second see a round, not a step
LEAST_US = 20_000  # three shorter ones are soon over while others have the processor, and would look like a gap
COUNTER_MOST_US = 1_000_000  # a counter of a processor or a chip is read at least so often: resets are told early
MOST_US = 60_000_000
CPU_SHARE = 0.004  # of a processor for reading; who integrates takes about as much: below a hundredth in all
BUS_SHARE = 0.1  # of the time for waiting on the bus: others want it too
READINGS = 200
WINDOWS = 8  # so many last windows are looked at; the shortest of them counts
BLOCK = 20  # readings over which costs are measured
MANY = 10_000  # polls without them
COSTLY = 4  # times the usual period are the most that costs may make of it: slower would see no round any more
CHANGE = 1.25  # a period that is nearer to the present one changes nothing


@dataclass(frozen=True)
class Rhythm:
    """What a source can do."""

    update_us: int = 0  # no sooner has it something new; 0: not known
    usual_us: int = USUAL_US  # where nothing speaks for another period
    longest_us: int = MOST_US  # beyond it would lose something
    is_fixed: bool = False  # its own affair: it is read when it is due
    why: str = "usual"


class Cadence:
    """The period in force, and why it is that. Any thread."""

    def __init__(self, rhythm: Rhythm, set_us: int | None = None) -> None:
        self._set_us = set_us
        self._lock = threading.Lock()
        self._windows: deque[int] = deque(maxlen=WINDOWS)
        self._rhythm = rhythm
        self._is_counter = False
        self._cpu_us = self._bus_us = 0.0  # of one reading
        self._block: list[tuple[int, float, float]] = []  # readings, cpu, bus of each read since the last measurement
        self.period_us, self.why = self._best()

    def window(self, length_us: int) -> bool:
        """Learn how long a window was; return whether the period has changed."""
        with self._lock:
            if length_us > 0:
                self._windows.append(length_us)
            return self._choose()

    def read(self, rhythm: Rhythm, readings: int, cpu_us: float, bus_us: float, is_counter: bool = False) -> bool:
        """Learn what reading the source once has given and cost; return whether the period has changed."""
        with self._lock:
            news = rhythm != self._rhythm or (is_counter and not self._is_counter)
            self._rhythm, self._is_counter = rhythm, self._is_counter or is_counter
            self._block.append((readings, cpu_us, bus_us))
            count = sum(block[0] for block in self._block)
            if count >= BLOCK:
                self._cpu_us = sum(block[1] for block in self._block) / count
                # The quickest one: in the others, other programs may have had the processor.
                self._bus_us = min(block[2] / block[0] for block in self._block if block[0])
                self._block.clear()
                news = True
            elif len(self._block) > MANY:
                self._block.clear()
            return self._choose() if news else False

    def _choose(self) -> bool:
        best_us, why = self._best()
        if best_us == self.period_us or 1 / CHANGE < best_us / self.period_us < CHANGE:
            return False
        self.period_us, self.why = best_us, why
        return True

    def _best(self) -> tuple[int, str]:
        rhythm = self._rhythm
        if self._set_us is not None:
            return self._set_us, "set"
        if rhythm.is_fixed:
            return rhythm.usual_us, rhythm.why
        want_us, why = rhythm.usual_us, rhythm.why
        if self._windows:
            shortest_us = min(self._windows)
            most_us = max(rhythm.usual_us, COUNTER_MOST_US) if self._is_counter else rhythm.usual_us
            want_us = min(most_us, max(LEAST_US, shortest_us // READINGS))
            if want_us != rhythm.usual_us:
                why = f"{READINGS} readings in a window of {shortest_us / 1e6:.3g} s, {LEAST_US // 1000} ms at least"
        most_us = COSTLY * rhythm.usual_us
        floors = (
            (min(most_us, round(self._cpu_us / CPU_SHARE)), f"a reading takes {self._cpu_us:.0f} us of a processor"),
            (min(most_us, round(self._bus_us / BUS_SHARE)), f"a reading takes {self._bus_us:.0f} us"),
            (rhythm.update_us, "the source has nothing new sooner"),
        )
        for floor_us, reason in floors:
            if floor_us > want_us:
                want_us, why = floor_us, reason
        if want_us > rhythm.longest_us:
            want_us, why = rhythm.longest_us, "longer, and the source could lose something"
        return min(max(want_us, LEAST_US), rhythm.longest_us, MOST_US), why


def rhythm_of(meter: object) -> Rhythm:
    """Return what a source says of itself."""
    said = getattr(meter, "rhythm", None)
    return said if isinstance(said, Rhythm) else Rhythm()
