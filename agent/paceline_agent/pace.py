# SPDX-License-Identifier: Apache-2.0
"""The declared pace of an emulated board: when each step is due. Pure: reads no clock, sleeps nowhere.

A step of n samples is due step_fixed_s + n * seconds_per_sample * noise after the one before. A step that ends later
is an overrun, and the next one counts from its real end: catching up would make a stalled board faster than it
declares.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Annotated

from paceline.settings import Bounds


@dataclass(frozen=True)
class Pace:
    """Table [emulation] of agent.toml. A board of speed 1.0 needs the task's reference seconds per sample."""

    speed: Annotated[float, Bounds(gt=0, le=1e6)]
    step_fixed_s: Annotated[float, Bounds(ge=0, le=3600)] = 0.0  # of each optimiser step, whatever its batch
    noise: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # relative standard deviation of a step; its mean is 1
    throttle_after_s: Annotated[float, Bounds(ge=0)] = 0.0  # of work without a pause, that is in one slice; 0: never
    throttle_factor: Annotated[float, Bounds(ge=1, le=1e3)] = 1.0  # seconds per sample are multiplied by it then
    seed: Annotated[int, Bounds(ge=0, lt=1 << 63)] = 0  # of the noise; a board's own


class Pacer:
    """The steps of one slice. The noise is log-normal: positive, of mean 1, so the mean pace is the declared one."""

    def __init__(self, pace: Pace, reference_seconds_per_sample: float, lease: int) -> None:
        self._pace = pace
        self._seconds_per_sample = reference_seconds_per_sample / pace.speed
        self._sigma = math.sqrt(math.log(1.0 + pace.noise**2))
        self._random = random.Random(f"{pace.seed}/{lease}")
        self._work_s = 0.0  # declared seconds of this slice so far
        self._due_s = 0.0
        self._is_late = False
        self.overruns = 0
        self.late_s = 0.0

    def begin(self, now_s: float) -> None:
        """Start the slice."""
        self._due_s = now_s

    def step(self, samples: int, now_s: float, part: float = 1.0, *, ends: bool = True) -> float:
        """Account for a step that has just been computed, or for a `part` of one; return until when to wait.

        A step counts as an overrun once, whichever of its parts was late; `ends`: this was its last.
        """
        pace = self._pace
        throttled = pace.throttle_after_s > 0.0 and self._work_s >= pace.throttle_after_s
        per_sample = self._seconds_per_sample * (pace.throttle_factor if throttled else 1.0)
        noise = self._random.lognormvariate(-(self._sigma**2) / 2.0, self._sigma) if self._sigma else 1.0
        declared_s = part * (pace.step_fixed_s + samples * per_sample * noise)
        self._work_s += declared_s
        self._due_s += declared_s
        if now_s > self._due_s:
            self._is_late = True
            self.late_s += now_s - self._due_s
            self._due_s = now_s
        if ends:
            self.overruns += self._is_late
            self._is_late = False
        return self._due_s
