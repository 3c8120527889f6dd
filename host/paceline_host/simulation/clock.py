# SPDX-License-Identifier: Apache-2.0
"""Virtual seconds and one heap of what is to happen. Knows nothing of boards or hosts.

What is due at one instant happens in the order in which it was asked for, so a run is a function of its seed. Whoever
wants another order (a test of crashes or of reordered messages) subclasses `Clock` and overrides `due`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from paceline.errors import RunError

SPIN = 1_000_000  # events at one instant: somebody waits for something that does not come

Call = Callable[[], None]


class Clock:
    """Begins at `now_s`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.events = 0  # that have happened
        self._heap: list[tuple[float, int, Call]] = []
        self._count = 0

    def at(self, when_s: float, call: Call) -> None:
        """Let something happen at an instant; one that is over is now."""
        self._count += 1
        heapq.heappush(self._heap, (self.due(when_s), self._count, call))

    def later(self, delay_s: float, call: Call) -> None:
        """Let something happen after a while."""
        self.at(self.now_s + delay_s, call)

    def due(self, when_s: float) -> float:
        """Return when something that was asked for at an instant happens."""
        return max(self.now_s, when_s)

    def run(self, over: Callable[[], bool], until_s: float = float("inf")) -> None:
        """Let things happen until `over`. Raises RunError when nothing is left, or when time stands still."""
        heap, still = self._heap, 0
        while not over():
            if not heap or heap[0][0] > until_s:
                raise RunError(f"the simulation stands at {self.now_s:.3f} s: nothing is due that could end the run")
            when_s, _, call = heapq.heappop(heap)
            still = still + 1 if when_s == self.now_s else 0
            if still > SPIN:
                raise RunError(f"the simulation spins at {self.now_s:.6f} s: {SPIN} events, and no time passes")
            self.now_s = when_s
            self.events += 1
            call()

    def advance(self, now_s: float) -> float:
        """Let time pass to `now_s`, as another clock has it, and happen what is due; return when the next thing is."""
        heap = self._heap
        self.now_s = max(self.now_s, now_s)
        while heap and heap[0][0] <= self.now_s:
            self.events += 1
            heapq.heappop(heap)[2]()
        return heap[0][0] if heap else float("inf")


class Timer:
    """One deadline that moves often and fires seldom: a move to later costs no entry in the heap."""

    def __init__(self, clock: Clock, call: Call) -> None:
        self._clock, self._call = clock, call
        self._due_s = float("inf")
        self._armed_s = float("inf")  # the earliest entry in the heap that is still to come

    def set(self, due_s: float) -> None:
        """Let the call happen at `due_s`, and at no other time."""
        self._due_s = due_s
        if due_s < self._armed_s:
            self._armed_s = due_s
            self._clock.at(due_s, self._fire)

    def sooner(self, due_s: float) -> None:
        """Let the call happen at `due_s` if it would be later."""
        if due_s < self._due_s:
            self.set(due_s)

    def _fire(self) -> None:
        now_s = self._clock.now_s
        if now_s < self._armed_s:
            return  # an entry that an earlier one has replaced
        self._armed_s = float("inf")
        if now_s >= self._due_s:
            self._due_s = float("inf")
            self._call()
        else:
            self.set(self._due_s)
