# SPDX-License-Identifier: Apache-2.0
"""Samples with a device's times and sequence numbers -> readings on our clock. Pure: arrivals are arguments.

A device's own clock decides nothing: the power of an interval is its energy by its length, both by the device's clock,
and how long it lasted is told by ours (device_clock). What is lost, or lies before a reset, is no reading.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from paceline_agent.meters import POWER_MAX_UW, Reading
from paceline_agent.meters.device_clock import DeviceClock

WRAP = 1 << 32  # a sequence number's, and a device time's in its own unit
JUMP_US = 10_000_000  # the device's clock and ours go apart by more, between two readings: it is another clock now
WAITING = 4096  # readings held until the device's clock is known; at a kilohertz that is twice the time it takes
SLEW = 0.01  # a better knowledge of the clock is worked in by so much of each interval
STEPS = 9  # last times between samples; a lost or late one changes not the middle one

Kind = Literal["energy", "mean", "point"]


@dataclass(frozen=True)
class Sample:
    """One reading of the device, all its channels as one. Of power and energy there is one, as the kind says."""

    arrival_us: int
    power_uw: int | None = None
    energy_nj: int | None = None
    gain_ppm: int = 0  # worst case of the instrument: of the value ...
    offset_uw: int = 0  # ... and besides
    step_nj: int = 0  # resolution of the energy
    t_us: int | None = None  # device time, wrapping; None: it tells none
    sequence: int | None = None
    is_saturated: bool = False  # a converter was at the end of its scale


@dataclass
class Health:
    """What went wrong so far, as counts."""

    lost: int = 0  # by sequence number
    doubled: int = 0  # came again: no weight, no energy
    resets: int = 0  # of the device, or of its clock
    stale: int = 0  # said to be no fresh value, or absurd
    saturated: int = 0  # said to be at the end of the scale: too low


@dataclass(frozen=True)
class _Timed:
    """A sample that awaits its instant on our clock."""

    device_us: int
    power_uw: int | None  # None: no reading ends here, but the next one may begin
    error_uw: int = 0
    step_uj: int = 0
    flags: tuple[str, ...] = ()


class Stream:
    """Readings of one kind. `energy`: counters; `mean`: power since the sample before; `point`: power at an instant.

    delay_us: the least time from a reading to its arrival is at most so much. A counter that goes back was reset.
    """

    def __init__(self, kind: Kind, delay_us: int, time_wrap_us: int = WRAP) -> None:
        self.kind, self._delay_us, self._time_wrap_us = kind, delay_us, time_wrap_us
        self.health = Health()
        self.clock: DeviceClock | None = None
        self._last: Sample | None = None
        self._device_us = 0  # of the last sample, unwrapped
        self._sequence: int | None = None
        self._waiting: list[_Timed] = []
        self._known: tuple[int, int] | None = None  # the last instant on both clocks: the device's, ours
        self._emitted_us = 0
        self._is_hole = False  # before the next reading lies time of which nothing is known
        self._needs_base = True  # a mean since an unknown instant is no reading
        self._span_uw: tuple[int, int] | None = None  # least and greatest power seen
        self._ready: list[Reading] = []
        self._steps: deque[int] = deque(maxlen=STEPS)
        self._flags: dict[str, None] = {}  # what the next reading must be told of, an ordered set

    @property
    def period_us(self) -> int:
        """The middle one of the last times between two samples; 0 before there are enough."""
        return sorted(self._steps)[len(self._steps) // 2] if len(self._steps) == STEPS else 0

    def take(self) -> list[Reading]:
        """Return the readings that have become known, oldest first."""
        ready, self._ready = self._ready, []
        return ready

    def reset(self) -> None:
        """The device began anew: what comes next has nothing to do with what came before."""
        if self._last is not None:
            self.health.resets += 1
            self.note("reset")
        self._map()
        self._last, self._sequence, self._known, self.clock = None, None, None, None
        self._hole()

    def note(self, flag: str) -> None:
        """Let the next reading bear a flag, and with it the windows around it."""
        self._flags[flag] = None

    def skip(self, sequence: int | None) -> None:
        """A sample came that has no fresh value; the next one does not follow at once."""
        if self._follows(sequence):
            self.health.stale += 1
            self.note("stale")
            self._hole()

    def add(self, sample: Sample) -> None:
        """Take one sample."""
        if not self._follows(sample.sequence):
            return
        device_us = self._unwrapped(sample)
        if device_us is None:
            self.reset()
            self._sequence = sample.sequence
            device_us = sample.arrival_us
        if sample.t_us is not None:
            if self.clock is None:
                self.clock = DeviceClock(device_us, sample.arrival_us)
            else:
                self.clock.add(device_us, sample.arrival_us)
        if self._last is not None:
            self._steps.append(device_us - self._device_us)
        if sample.is_saturated:
            self.health.saturated += 1
            self.note("saturated")
        self._waiting.append(self._timed(sample, device_us))
        self._last, self._device_us = sample, device_us
        if self.clock is None or self.clock.settled or len(self._waiting) > WAITING:
            self._map()

    def _follows(self, sequence: int | None) -> bool:
        """Count what is missing before this sample; return whether it is another one than the last."""
        last, self._sequence = self._sequence, sequence
        if last is None or sequence is None:
            return True
        ahead = (sequence - last) % WRAP
        if ahead == 0:
            self.health.doubled += 1
            return False
        if ahead >= WRAP // 2:
            self.reset()
            self._sequence = sequence
        elif ahead > 1:
            self.health.lost += ahead - 1
            self.note("lost")
            self._hole()
        return True

    def _unwrapped(self, sample: Sample) -> int | None:
        """Return the device time without wraps; None when it cannot come from the same clock as the last."""
        last = self._last
        if last is None:
            return sample.arrival_us  # any origin will do
        passed_us = sample.arrival_us - last.arrival_us
        if sample.t_us is None or last.t_us is None:
            return self._device_us + max(1, passed_us)
        step_us = (sample.t_us - last.t_us) % self._time_wrap_us
        step_us += round((passed_us - step_us) / self._time_wrap_us) * self._time_wrap_us
        return self._device_us + step_us if step_us > 0 and abs(step_us - passed_us) <= JUMP_US else None

    def _timed(self, sample: Sample, device_us: int) -> _Timed:
        """Return the reading that ends with this sample, or the base of the next one."""
        base = _Timed(device_us, None)
        last, power_uw = self._last, sample.power_uw
        if self.kind == "energy":
            if last is None or last.energy_nj is None or sample.energy_nj is None:
                return base
            step_nj = sample.energy_nj - last.energy_nj
            if step_nj < 0:
                self.health.resets += 1
                self.note("reset")
                self._hole()
                return base
            power_uw = _rounded(step_nj * 1_000, device_us - self._device_us)
        if power_uw is None or abs(power_uw) > POWER_MAX_UW:
            self.health.stale += 1
            self.note("stale")
            self._hole()
            return base
        needs_base, self._needs_base = self._needs_base, False
        if self.kind == "mean" and needs_base:
            return base
        was_hole, self._is_hole = self._is_hole, False
        low, high = self._span_uw or (power_uw, power_uw)
        self._span_uw = min(low, power_uw), max(high, power_uw)
        error_uw = abs(power_uw) * sample.gain_ppm // 1_000_000 + sample.offset_uw + 1
        if was_hole:
            error_uw += self._swing_uw()  # in the hole, whatever was seen may have been
        flags, self._flags = tuple(self._flags), {}
        return _Timed(device_us, power_uw, error_uw, -(-sample.step_nj // 1_000), flags)

    def _hole(self) -> None:
        self._needs_base = True
        self._is_hole = self._span_uw is not None

    def _swing_uw(self) -> int:
        low, high = self._span_uw or (0, 0)
        return high - low

    def _map(self) -> None:
        """Give what waits its instants on our clock."""
        waiting, self._waiting = self._waiting, []
        for timed in waiting:
            before = self._known
            t_us, skew, late_us = self._instant(timed.device_us)
            self._known = timed.device_us, t_us
            if timed.power_uw is None or t_us <= self._emitted_us or (before is None and self.kind != "point"):
                for flag in timed.flags:
                    self.note(flag)
                continue
            begin_us = t_us if before is None or self.kind == "point" else max(before[1], self._emitted_us)
            error_uw = min(timed.error_uw + math.ceil(abs(timed.power_uw) * skew), POWER_MAX_UW)
            spread_us = self.clock.spread_us if self.clock is not None else 0
            edge_uj = self._swing_uw() * (self._delay_us + spread_us + late_us) // 1_000_000 + timed.step_uj
            self._ready.append(Reading(begin_us, t_us, timed.power_uw, error_uw, timed.flags, edge_uj))
            self._emitted_us = t_us

    def _instant(self, device_us: int) -> tuple[int, float, int]:
        """Return the instant on our clock, how far its distance from the last one may be off, and what is owed to it.

        Instants that were given away stay; what is learnt of the clock is worked in bit by bit, so no interval jumps.
        """
        if self.clock is None:
            return device_us, 0.0, 0
        target_us = self.clock.host_us(device_us)
        if self._known is None:
            return round(target_us), self.clock.skew_error, 0
        length_us = (device_us - self._known[0]) * (1 + self.clock.skew)
        most_us = SLEW * length_us
        shift_us = min(max(target_us - self._known[1] - length_us, -most_us), most_us)
        t_us = max(round(self._known[1] + length_us + shift_us), self._known[1] + 1)
        return t_us, self.clock.skew_error + abs(shift_us) / length_us, round(abs(target_us - t_us))


def _rounded(dividend: int, divisor: int) -> int:
    """Return the nearest whole quotient."""
    return (2 * dividend + divisor) // (2 * divisor)
