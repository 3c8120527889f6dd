# SPDX-License-Identifier: Apache-2.0
"""Tells readings that can be taken from those that nothing real can have given, whatever a sensor's file or line says.

Pure. A reading that is refused is a missed sample; it never reaches an integrator, and no number of a sensor can end
who reads it. What is not after the last reading is no fault, and no news. Power that flows backwards bears a flag,
whatever gave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline_agent.meters import POWER_MAX_UW, Count, Reading

SPAN_MAX_US = 1 << 42  # fifty-one days from one reading to the next: more than the integrator takes
AHEAD_US = 10_000_000  # no clock of a device is followed further into the future
COUNT_MAX_UJ = (1 << 63) - 1
OFF_MAX_UJ = 10**15  # a gigajoule by which a count or an edge may be off; a run's sum of them still fits the link


class Sieve:
    """Of one source, whose readings are of one kind."""

    def __init__(self) -> None:
        self._kind = ""
        self.newest_us = -1  # end of the last reading that was taken

    def take(
        self, readings: Sequence[Reading | Count], now_us: int | None = None
    ) -> tuple[list[Reading | Count], list[str]]:
        """Return the readings that can be taken, and of each other one what is wrong with it.

        now_us: the instant at which they were read; None: nothing is known of it.
        """
        good: list[Reading | Count] = []
        faults: list[str] = []
        for reading in readings:
            fault = self._fault(reading, now_us)
            if fault:
                faults.append(fault)
                continue
            self._kind = _kind(reading)
            self.newest_us = max(self.newest_us, _end_us(reading))
            good.append(_signed(reading))
        return good, faults

    def _fault(self, reading: Reading | Count, now_us: int | None) -> str:
        begin_us = reading.t_us if isinstance(reading, Count) else reading.t0_us
        end_us = _end_us(reading)
        if not 0 <= begin_us <= end_us < 1 << 62 or end_us - begin_us > SPAN_MAX_US:
            return f"it gives a reading of the time from {begin_us} to {end_us} us, which cannot be"
        if now_us is not None and end_us > now_us + AHEAD_US:
            return f"it gives a reading that ends {(end_us - now_us) / 1e6:g} s in the future"
        if self.newest_us >= 0 and end_us - self.newest_us > SPAN_MAX_US:
            return f"it gives a reading {(end_us - self.newest_us) / 1e6:g} s after the one before, which cannot be"
        if self._kind not in ("", _kind(reading)):
            return f"it gives {_kind(reading)} where it gave {self._kind} before"
        return _count_fault(reading) if isinstance(reading, Count) else _power_fault(reading)


def power_fault(power_uw: int) -> str:
    """Return what is wrong with a power; "": nothing."""
    if abs(power_uw) <= POWER_MAX_UW:
        return ""
    return f"shows {power_uw / 1e6:.3g} W, which no board draws (the limit is {POWER_MAX_UW / 1e9:g} kW)"


def _signed(reading: Reading | Count) -> Reading | Count:
    """Return a reading that bears the flag where its power is below 0 by more than it may be off."""
    if isinstance(reading, Count) or reading.power_uw >= -reading.error_uw or "negative" in reading.flags:
        return reading
    return replace(reading, flags=(*reading.flags, "negative"))


def _power_fault(reading: Reading) -> str:
    if fault := power_fault(reading.power_uw):
        return f"it {fault}"
    if not 0 <= reading.error_uw <= POWER_MAX_UW or not 0 <= reading.edge_uj <= OFF_MAX_UJ:
        return f"it gives a power that may be off by {reading.error_uw / 1e6:.3g} W, which says nothing"
    return ""


def _count_fault(reading: Count) -> str:
    if not 0 <= reading.count_uj <= COUNT_MAX_UJ:
        return f"it counts {reading.count_uj / 1e6:.3g} J, which no counter holds"
    if not 0 <= reading.error_uj <= OFF_MAX_UJ:
        return f"it gives a count that may be off by {reading.error_uj / 1e6:.3g} J, which says nothing"
    return ""


def _end_us(reading: Reading | Count) -> int:
    return reading.t_us if isinstance(reading, Count) else reading.t1_us


def _kind(reading: Reading | Count) -> str:
    if isinstance(reading, Count):
        return "counts"
    return "means over an interval" if reading.t0_us < reading.t1_us else "power at an instant"
