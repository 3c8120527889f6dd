# SPDX-License-Identifier: Apache-2.0
"""What a board costs: seconds of a slice, and watts. Declared in a profile, or as a recorded run measured it.

A slice takes what the closed form says of the profile (fixed seconds a step, seconds a sample, throttling within the
slice), times noise, times what has become of the board: drift, a throttled clock, another load. Assumed of watts: a
clock that is F times slower draws 1/F of the watts above idle; another load that makes work F times slower keeps the
board as busy as the work that it displaces, so idle watts rise by (1 - 1/F) of the watts above idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline_host.closed_form import slice_seconds
from paceline_host.profile import BoardProfile
from paceline_host.simulation.draws import around_one, normal
from paceline_host.simulation.traces import Trace

if TYPE_CHECKING:
    from paceline_host.whatif import Recording

_STEP_NOISE, _SLICE_NOISE, _DRIFT, _SPREAD = 1, 2, 3, 4  # what a draw is for


class BoardModel:
    """A board of a profile. Faults change its public fields."""

    __slots__ = ("_drift", "_drifted", "_profile", "at_rest", "at_work", "batch", "drift_sd", "load", "metered",
                 "noise", "number", "reference_s", "round_fixed_s", "seed", "slow")  # fmt: skip

    def __init__(
        self, profile: BoardProfile, number: int, seed: int, batch: int, reference_s: float, *,
        round_fixed_s: float = 0.0, noise: float = 0.0, drift_sd: float = 0.0,
    ) -> None:  # fmt: skip
        self._profile, self.number, self.seed = profile, number, seed
        self.batch, self.reference_s, self.round_fixed_s = batch, reference_s, round_fixed_s
        self.noise = noise  # of a slice as a whole, relative; that of each step is in the profile
        self.drift_sd = drift_sd  # of log seconds per sample, a round
        self.slow = 1.0  # how many times slower its clock runs
        self.load = 1.0  # how many times slower another load makes it
        self.metered = True
        self.at_rest: Trace | None = None  # recorded watts in place of the profile's
        self.at_work: Trace | None = None
        self._drift, self._drifted = 0.0, 0  # as of which round

    def seconds(self, round_: int, samples: int) -> float:
        """Return the compute seconds of a slice."""
        profile, who = self._profile, (self.seed, self.number, round_, samples)
        plain = slice_seconds(profile, samples, self.batch, self.reference_s)
        steps = -(-samples // self.batch)
        noise = around_one(profile.noise / math.sqrt(steps), *who, _STEP_NOISE) if profile.noise else 1.0
        if self.noise:
            noise *= around_one(self.noise, *who, _SLICE_NOISE)
        if self.drift_sd:
            noise *= math.exp(self._drift_at(round_))
        return self.round_fixed_s + plain * noise * self.slow * self.load

    def watts(self, round_: int, at_us: int = 0, span_us: int = 0) -> tuple[float, float]:
        """Return what it draws while it does not compute, and while it does; recorded watts: the mean of that span."""
        at_rest, at_work = self._profile.idle_w, self._profile.active_w
        if self.at_rest is not None:
            at_rest = self.at_rest.mean_w(at_us, span_us)
        if self.at_work is not None:
            at_work = self.at_work.mean_w(at_us, span_us)
        above = at_work - at_rest
        idle = at_rest + above / self.slow * (1.0 - 1.0 / self.load)
        return idle, max(idle, at_rest + above / self.slow)

    def ideal_pace(self) -> float:
        """Return the seconds of a sample as the board is now, without noise and fixed seconds."""
        return self.reference_s / self._profile.speed * self.slow * self.load

    def _drift_at(self, round_: int) -> float:
        while self._drifted < round_:
            self._drifted += 1
            self._drift += self.drift_sd * normal(self.seed, self.number, self._drifted, _DRIFT)
        return self._drift


class RecordedModel(BoardModel):
    """A board as a run's journal tells of it: that round's costs, carried to another share as `whatif` does."""

    __slots__ = ("_recording",)

    def __init__(self, recording: Recording, number: int, seed: int, noise: float = 0.0) -> None:
        profile = BoardProfile(recording.names[number], 1.0, 0.0, 0.0)
        super().__init__(profile, number, seed, recording.run.batch, 1.0, noise=noise)
        self._recording = recording
        self.metered = recording.told(number, 1, 1)[1] is not None

    def seconds(self, round_: int, samples: int) -> float:
        plain, _ = self._recording.told(self.number, round_, samples)
        return plain * around_one(self.noise, self.seed, self.number, round_, _SLICE_NOISE) * self.slow * self.load

    def watts(self, round_: int, at_us: int = 0, span_us: int = 0) -> tuple[float, float]:
        _, active = self._recording.told(self.number, round_, 1)
        idle = self._recording.wait_w.get(self.number, 0.0)
        above = max(0.0, (active or idle) - idle)
        risen = idle + above / self.slow * (1.0 - 1.0 / self.load)
        return risen, max(risen, idle + above / self.slow)

    def ideal_pace(self) -> float:
        return self._recording.told(self.number, 1, self.batch)[0] / self.batch * self.slow * self.load


def profiles(shipped: Sequence[BoardProfile], count: int, seed: int) -> list[BoardProfile]:
    """Return `count` boards: those of a profile, and beyond them boards like them whose speeds spread by a tenth."""
    if count <= len(shipped):
        return list(shipped[:count])
    made = list(shipped)
    for number in range(len(shipped), count):
        like = shipped[number % len(shipped)]
        speed = like.speed * around_one(0.1, seed, number, _SPREAD)
        made.append(replace(like, name=f"{like.name}-{number}", speed=speed))
    return made
