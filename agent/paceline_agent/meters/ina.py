# SPDX-License-Identifier: Apache-2.0
"""What INA219 and INA3221 have in common: rails, their error bounds, a configuration that is read back, and sums.

Current and power come from shunt and bus voltage alone. Registers that depend on a calibration read 0 without any error
once the chip has lost it, so they are not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_agent.meters import MeterError, Reading
from paceline_agent.meters.bus import Bus

CONFIG = 0x00
RESET_BIT = 0x8000
QUEUE = 4096  # readings of a chip that wait for those of another one


@dataclass(frozen=True)
class Spec:
    """How far a chip may be off: the maxima of its datasheet, over temperature."""

    shunt_uv: int  # offset and half a step
    shunt_ppm: int
    bus_uv: int
    bus_ppm: int


@dataclass(frozen=True)
class Rail:
    """A shunt and where it is."""

    name: str
    place: int  # address or channel
    shunt_uohm: int
    counted: bool


@dataclass(frozen=True, slots=True)
class RailReading:
    """What one rail showed at its last conversion."""

    name: str
    counted: bool
    shunt_uv: int
    bus_mv: int
    current_ua: int
    power_uw: int
    error_uw: int
    flags: tuple[str, ...]
    energy_uj: None = None  # these chips count no joules

    @property
    def voltage_uv(self) -> int:
        """Return the bus voltage, at the load's side of the shunt."""
        return self.bus_mv * 1000


def bound_uw(shunt_uv: int, bus_mv: int, shunt_uohm: int, spec: Spec, tolerance_ppm: int) -> int:
    """Return how far shunt_uv * bus_mv / shunt_uohm may be from the true power, in the worst case.

    That is all errors at their maxima and in the same direction, up, where they weigh most.
    """
    shunt, bus = abs(shunt_uv), abs(bus_mv) * 1000  # microvolts; their product over microohms is microwatts
    least = (1_000_000 - spec.shunt_ppm) * (1_000_000 - spec.bus_ppm) * (1_000_000 - tolerance_ppm)  # of 10^18
    most = (shunt + spec.shunt_uv) * (bus + spec.bus_uv) * 10**18 // (shunt_uohm * least)
    return most - shunt * bus // shunt_uohm + 2


def shown(
    rail: Rail, decoded: tuple[int, int, int, int, tuple[str, ...]], spec: Spec, tolerance_ppm: int
) -> RailReading:
    """Return what a rail's decoded registers say, with its bound; "negative": backwards beyond what an offset does."""
    shunt_uv, bus_mv, current_ua, power_uw, flags = decoded
    error_uw = bound_uw(shunt_uv, bus_mv, rail.shunt_uohm, spec, tolerance_ppm)
    kept = tuple(flag for flag in flags if flag != "ready") + (("negative",) if power_uw < -error_uw else ())
    return RailReading(rail.name, rail.counted, shunt_uv, bus_mv, current_ua, power_uw, error_uw, kept)


def union(flags: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return each flag once."""
    return tuple(dict.fromkeys(flag for some in flags for flag in some))


class Configured:
    """A chip's configuration register: what is written must be read back, and stay so."""

    def __init__(self, bus: Bus, address: int, value: int, chip: str) -> None:
        self.value = value
        self.resets = 0  # times that the chip was found reset
        self._bus = bus
        self._address = address
        self._chip = chip

    def write(self) -> None:
        """Write it and read it back. Raises MeterError."""
        self._bus.write(self._address, CONFIG, self.value)
        found = self._bus.read(self._address, CONFIG).value
        if found != self.value:
            raise MeterError(
                f"{self._bus.name}: the chip at 0x{self._address:02x} shows 0x{found:04x} where 0x{self.value:04x} was "
                f"written; expected an {self._chip}: check which chip it is, its power, and who else uses it"
            )

    def holds(self) -> bool:
        """Return whether the chip still has it; a chip that lost power or was reset has not. Raises MeterError."""
        if self._bus.read(self._address, CONFIG).value == self.value:
            return True
        self.resets += 1
        return False


class Sum:
    """Readings of several chips, each converting in its own time -> readings of their sum, where all have one."""

    def __init__(self, chips: int) -> None:
        self._queues: list[deque[Reading]] = [deque(maxlen=QUEUE) for _ in range(chips)]
        self._done_us = 0

    def add(self, chip: int, reading: Reading) -> None:
        """Take a reading; those of one chip come in order."""
        self._queues[chip].append(reading)

    def take(self) -> list[Reading]:
        """Return what is known of the sum since the last call."""
        out = []
        while all(self._queues):
            heads = [queue[0] for queue in self._queues]
            t0_us = max(self._done_us, *(head.t0_us for head in heads))
            t1_us = min(head.t1_us for head in heads)
            if t0_us < t1_us:
                power_uw, error_uw = sum(head.power_uw for head in heads), sum(head.error_uw for head in heads)
                out.append(Reading(t0_us, t1_us, power_uw, error_uw, union([head.flags for head in heads])))
                self._done_us = t1_us
            for queue in self._queues:
                if queue[0].t1_us == t1_us:
                    queue.popleft()
        return out
