# SPDX-License-Identifier: Apache-2.0
"""What each rail has taken, for people to look at: the sum's readings give the times, each rail its own power or count.

The joules that count are the sum's, which has coverage, bounds and flags; these have none.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from paceline_agent.meters import Count, Reading
from paceline_agent.sampled import SampledMeter


class RailJoules:
    """A tap of a SampledMeter."""

    def __init__(self) -> None:
        self.meter: SampledMeter | None = None  # set once it is there
        self._lock = threading.Lock()
        self._joules: dict[str, float] = {}
        self._before: dict[str, tuple[int, int | None, int | None]] = {}  # when, uW, uJ

    def begin(self) -> None:
        """Count from here."""
        with self._lock:
            self._joules = {}

    def joules(self) -> dict[str, float]:
        """Return what each rail has taken; one that is missing has shown neither power nor a count."""
        with self._lock:
            return dict(self._joules)

    def took(self, readings: Sequence[Reading | Count]) -> None:
        """Integrate up to the last reading."""
        rails = self.meter.rails() if self.meter is not None and readings else ()
        with self._lock:
            for rail in rails:
                for reading in readings:
                    self._add(rail.name, reading, rail.power_uw, rail.energy_uj)

    def missed(self, trouble: str) -> None:
        """The next reading bridges it."""

    def paced(self, period_us: int) -> None:
        """Times come with the readings."""

    def _add(self, name: str, reading: Reading | Count, power_uw: int | None, energy_uj: int | None) -> None:
        t_us = reading.t_us if isinstance(reading, Count) else reading.t1_us
        before, self._before[name] = self._before.get(name), (t_us, power_uw, energy_uj)
        if before is None or t_us <= before[0]:
            return
        step_j = None
        if energy_uj is not None and before[2] is not None:
            step_j = max(0, energy_uj - before[2]) / 1e6  # a count that went back was reset
        elif power_uw is not None and before[1] is not None:
            is_point = isinstance(reading, Count) or reading.t0_us == reading.t1_us
            mean_uw = (power_uw + before[1]) / 2 if is_point else power_uw
            step_j = mean_uw * (t_us - before[0]) / 1e12
        if step_j is not None:
            self._joules[name] = self._joules.get(name, 0.0) + step_j
