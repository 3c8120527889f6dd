# SPDX-License-Identifier: Apache-2.0
"""What a board draws before its first round: a prior for its waiting watts, until it has waited (DECISIONS 34).

The board says READY only when that is known, so no round waits for it. It is measured once in an agent's life. Where
nothing is to be measured nothing is held back, not for a millisecond.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.machine import TrainerReady
from paceline.talk import Talk
from paceline_agent.joules import Joules
from paceline_agent.meters import MeterSettings

REAL_S = 30.0
GIVE_UP_S = 10.0  # after its end, for a meter that says nothing
SAY_S = 5.0  # between two words of how it goes
UNREAL = ("none", "modelled", "replay")


def seconds_of(settings: MeterSettings) -> float:
    """Return for how long to measure: what agent.toml says, else nothing where no sensor is."""
    if settings.idle_s is not None:
        return settings.idle_s
    return 0.0 if settings.source in UNREAL else REAL_S


class Idle:
    """Holds back a board's readiness while it is measured."""

    def __init__(self, joules: Joules, seconds: float, talk: Talk) -> None:
        self._joules, self._talk = joules, talk
        self._length_us = round(seconds * 1e6)
        self._held: TrainerReady | None = None
        self._end_us: int | None = None  # None: not begun
        self._said_us = 0
        self._known_uw: int | None = None
        self._is_over = not joules.known

    def ready(self, event: TrainerReady, is_wanted: bool, now_us: int) -> TrainerReady | None:
        """Return the event with what is known, None while that is still being measured. `is_wanted`: by the run."""
        if not self._is_over and self._length_us > 0 and not is_wanted:
            self._talk.info("idle watts are not measured: the run does without, or has begun already", event="idle")
        if self._is_over or self._length_us == 0 or not is_wanted:
            return replace(event, idle_uw=self._known_uw)
        self._held = event
        if self._end_us is None:
            self._end_us = now_us + self._length_us
            self._joules.measure_idle(now_us, self._end_us)
        return self.turn(now_us)

    def drop(self) -> None:
        """Forget whose readiness is held back: its trainer is gone."""
        self._held = None

    def turn(self, now_us: int) -> TrainerReady | None:
        """Return the event once all is measured; say meanwhile how it goes."""
        if self._held is None or self._end_us is None:
            return None
        found = self._joules.idle
        left_us = self._end_us - now_us
        if found is None and left_us >= -GIVE_UP_S * 1e6:
            if left_us > 0 and now_us - self._said_us >= SAY_S * 1e6:
                self._said_us = now_us
                self._talk.info(f"measuring idle watts, {left_us / 1e6:.0f} s left", event="idle")
            return None
        self._is_over = True
        if found is None or found.energy_uj is None or found.span_us == 0:
            self._talk.warning("idle watts are unknown: the meter gave no readings for them", event="idle")
        else:
            self._known_uw = max(0, found.energy_uj * 1_000_000 // found.span_us)
            self._talk.info(f"idle: {self._known_uw / 1e6:.3f} W", event="idle")
        event, self._held = self._held, None
        return replace(event, idle_uw=self._known_uw)
