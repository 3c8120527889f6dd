# SPDX-License-Identifier: Apache-2.0
"""The declared power of an emulated board: active_w while its trainer computes, idle_w otherwise. Measures nothing.

It goes the way of any meter: readings, integrator, windows. Readings end at the edges of activity, so that integrating
them is exact; an edge that is learned of late is made good in the next reading, so that no joule is lost or invented.
"""

from __future__ import annotations

import threading
from collections import deque

from paceline_agent.meters import POWER_MAX_UW, MeterSettings, Reading


class Modelled:
    """Readings from `now_us` on."""

    source = "modelled"

    def __init__(self, settings: MeterSettings, now_us: int) -> None:
        assert settings.idle_w is not None
        assert settings.active_w is not None
        self._power_uw = {False: round(settings.idle_w * 1e6), True: round(settings.active_w * 1e6)}
        self._edges: deque[tuple[int, bool]] = deque()
        self._lock = threading.Lock()
        self._edge_us = now_us  # the latest edge
        self._active = False
        self._read_us = now_us
        self._owed_uw_us = 0  # energy of late edges, still to be put into a reading

    def activity(self, t_us: int, active: bool) -> None:
        """Learn of an edge; one that is older than the last counts from there."""
        with self._lock:
            self._edge_us = max(self._edge_us, t_us)
            self._edges.append((self._edge_us, active))

    def read(self, now_us: int) -> list[Reading]:
        """Return what the board is declared to have drawn since the last call."""
        with self._lock:
            edges = [self._edges.popleft() for _ in range(sum(1 for t_us, _ in self._edges if t_us <= now_us))]
        readings: list[Reading] = []
        for t_us, active in edges:
            if t_us <= self._read_us:
                self._owed_uw_us += (self._read_us - t_us) * (self._power_uw[active] - self._power_uw[self._active])
            else:
                self._close(t_us, readings)
            self._active = active
        if now_us > self._read_us:
            self._close(now_us, readings)
        return readings

    def close(self) -> None:
        """Nothing was opened."""

    def _close(self, t_us: int, readings: list[Reading]) -> None:
        length_us = t_us - self._read_us
        power_uw = self._power_uw[self._active]
        owed_uw = min(max(-power_uw, self._owed_uw_us // length_us), POWER_MAX_UW - power_uw)  # the rest is owed on
        self._owed_uw_us -= owed_uw * length_us
        readings.append(Reading(self._read_us, t_us, power_uw + owed_uw))
        self._read_us = t_us
