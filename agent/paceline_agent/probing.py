# SPDX-License-Identifier: Apache-2.0
"""Proves a meter frozen that has shown one value all the time: this board is made to work and to rest by turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from paceline_agent.frozen import IN_TURN, READINGS, STILL_US, TURNS, Frozen
from paceline_agent.meters import Count, Reading
from paceline_agent.sampled import SampledMeter

LEAST = 5  # equal readings below say nothing


class Watched:
    """A tap of a SampledMeter: sees whether its value moves."""

    def __init__(self) -> None:
        self.meter: SampledMeter | None = None  # set once it is there
        self._lock = threading.Lock()
        self._frozen = Frozen()
        self._first: int | None = None
        self._moved = False
        self._count = 0

    def took(self, readings: Sequence[Reading | Count]) -> None:
        """Look at readings."""
        with self._lock:
            for reading in readings:
                value = reading.count_uj if isinstance(reading, Count) else reading.power_uw
                self._first = value if self._first is None else self._first
                self._moved |= value != self._first
                self._count += 1
                self._frozen.seen(reading, self.meter.steps if self.meter is not None else 0)

    def missed(self, trouble: str) -> None:
        """A failed read has no value."""

    def paced(self, period_us: int) -> None:
        """The period is no value."""

    def edge(self, active: bool) -> None:
        """The board begins to work, or to rest."""
        with self._lock:
            self._frozen.edge(time.monotonic_ns() // 1000, active)

    @property
    def is_flat(self) -> bool:
        """Return whether one value is all that was seen."""
        with self._lock:
            return not self._moved and self._count >= LEAST

    @property
    def doubt(self) -> str:
        """Return why it is not to be trusted."""
        with self._lock:
            return str(self._frozen) if self._frozen.is_frozen else ""


def doubts(watched: Sequence[Watched]) -> dict[str, str]:
    """Return what is to be said against these meters, by source. Takes seconds where a value has not moved."""
    flat = [each for each in watched if each.is_flat and each.meter is not None and each.meter.is_watched]
    if not flat:
        return {}
    slowest_s = max(each.meter.period_us for each in flat if each.meter is not None) / 1e6
    turn_s = max((IN_TURN + 2) * slowest_s, READINGS * slowest_s / TURNS / 2, STILL_US / 1e6 / TURNS / 2) * 1.2
    for active in [*(True, False) * TURNS, True]:
        for each in flat:
            each.edge(active)
        end_s = time.monotonic() + turn_s
        while time.monotonic() < end_s:
            if not active:
                time.sleep(max(0.0, end_s - time.monotonic()))
        if not any(each.is_flat for each in flat):
            break
    return {each.meter.source: each.doubt for each in flat if each.meter is not None and each.doubt}
