# SPDX-License-Identifier: Apache-2.0
"""INA3221 (TI SBOS576B) on an I2C bus: power of up to three rails, each at the middle of its shunt's conversion.

Only the channels that are named convert (8.6.2.1). AVG stays 1: what the datasheet calls averaging is a filter with a
memory of that many conversions, which would move joules from one round into the next; long conversions average as well.
CVRF, bit 0 of register 0F, tells of a new conversion, and reading it clears it, with the chip's latched alerts. Bounds
are the maxima of 7.5, and 50 ppm for each of 60 degrees.
"""

from __future__ import annotations

import random

from paceline import core
from paceline_agent.cadence import Rhythm
from paceline_agent.meters import CHIPS, MeterError, MeterSettings, RailSettings, Reading
from paceline_agent.meters.bus import Bus, I2cBus
from paceline_agent.meters.conversions import Conversions
from paceline_agent.meters.ina import Configured, Rail, RailReading, Spec, shown, union

MASK, MAKER, DIE = 0x0F, 0xFE, 0xFF
IDENTITY = {MAKER: 0x5449, DIE: 0x3220}  # "TI"
ENABLE = {1: 1 << 14, 2: 1 << 13, 3: 1 << 12}
BUS_CODE, BUS_US = 2, 332  # conversion times: a supply is steady, ...
SHUNT_CODE, SHUNT_US = 7, 8_244  # ... a current is not
BOTH_CONTINUOUS = 7
SPEC = Spec(80 + 30 + 20, 5_500, 16_000 + 4_000, 5_500)  # offset, its drift and half a step of 40 uV; bus, 8 mV
STEP_UV = 40
EVERY_US = 26_000  # between readings: one cycle of three channels, or three of one; more often costs processor time
SMEAR = 200  # a filter's memory must be this many times shorter than a round, then it moves 1 % at most


class Ina3221:
    """One INA3221. `duty`: share of the time that a shunt is watched."""

    def __init__(
        self, settings: MeterSettings, now_us: int, bus: Bus | None = None, dice: random.Random | None = None
    ) -> None:
        del now_us  # bus transfers bring their own times
        self._rails = [_rail(rail, settings) for rail in settings.rails or (RailSettings(),)]
        counted = [rail for rail in self._rails if rail.counted]
        self.source = "ina3221/" + "+".join(rail.name for rail in counted)
        self._average = settings.average or 1
        self._cycle_us = len(self._rails) * (SHUNT_US + BUS_US)
        _refuse_smear(self._average, self._cycle_us, settings.shortest_round_s)
        self.rhythm = Rhythm(self._cycle_us, max(EVERY_US, self._cycle_us), why="usual for this chip")
        self.follow(EVERY_US if settings.period_ms is None else settings.period_ms * 1000)
        self._tolerance_ppm = round(settings.shunt_tolerance_percent * 10_000)
        self._dice = dice or random.Random()
        self._seen: tuple[RailReading, ...] = ()
        self._flags: tuple[str, ...] = ()
        self._address = settings.address
        self._bus = bus or I2cBus(settings.bus)
        code = CHIPS["ina3221"].index(self._average)
        value = sum(ENABLE[rail.place] for rail in self._rails) | code << 9 | BUS_CODE << 6 | SHUNT_CODE << 3
        self._config = Configured(self._bus, self._address, value | BOTH_CONTINUOUS, "INA3221")
        try:
            self._bus.claim(self._address)
            self._begin()
        except Exception:
            self._bus.close()
            raise

    def follow(self, period_us: int) -> None:
        """Read about once in such a period."""
        self._mean_skip = max(1, period_us // self._cycle_us)
        self.duty = SHUNT_US / (self._mean_skip * self._cycle_us)

    @property
    def steps(self) -> int:
        """Return how many steps of its converter a counted shunt shows, of that which shows most."""
        return max((abs(rail.shunt_uv) for rail in self._seen if rail.counted), default=0) // STEP_UV

    @property
    def resets(self) -> int:
        """Return how often the chip was found to have lost its configuration."""
        return self._config.resets

    def read(self, now_us: int) -> list[Reading]:
        """Return the power of the last conversion, unless it was told before. Raises MeterError."""
        del now_us
        if not self._ready:
            self._begin()
            return []
        mask = self._bus.read(self._address, MASK)
        early = self._conversions.is_early(mask.after_us)
        if early or not mask.value & 1:
            if mask.value & 1:
                self._conversions.heard(mask.after_us)
            self._conversions.clear(mask.before_us)
            self.due_us = self._conversions.due_us(mask.after_us)
            if self._conversions.stopped(mask.after_us):
                self._stopped()
            return []
        channels = [(rail, self._pair(rail)) for rail in self._rails]
        if not self._config.holds():
            self._lost()
            return []
        end_us = self._conversions.ended(mask.before_us, mask.after_us)
        self._conversions.clear(mask.before_us)
        self._conversions.skip(self._dice.randint(max(1, self._mean_skip - 1), self._mean_skip + self._mean_skip // 2))
        self.due_us = self._conversions.due_us(mask.after_us)
        self._seen = tuple(
            shown(rail, core.ina3221(*pair, rail.shunt_uohm), SPEC, self._tolerance_ppm) for rail, pair in channels
        )
        counted = [rail for rail in self._seen if rail.counted]
        flags = union([*(rail.flags for rail in counted), self._flags])
        self._flags = ()
        power_uw, error_uw = sum(rail.power_uw for rail in counted), sum(rail.error_uw for rail in counted)
        t_us = end_us - self._age_us()
        return [Reading(t_us, t_us, power_uw, error_uw, flags)]

    def seen_rails(self) -> tuple[RailReading, ...]:
        """Return what each rail showed last; nothing before the first conversion."""
        return self._seen

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Leave the chip converting, close the bus."""
        self._bus.close()

    def _begin(self) -> None:
        self._ready = False  # until this succeeds
        for register, expected in IDENTITY.items():
            found = self._bus.read(self._address, register).value
            if found != expected:
                raise MeterError(
                    f"{self._bus.name}: the chip at 0x{self._address:02x} is no INA3221: register 0x{register:02X} is "
                    f"0x{found:04x}, expected 0x{expected:04x}; set the fitting meter.source, or meter.address"
                )
        self._config.write()
        mask = self._bus.read(self._address, MASK)  # a flag from before says nothing
        self._conversions = Conversions(self._cycle_us, mask.before_us)
        self.due_us = self._conversions.due_us(mask.after_us)
        self._ready = True

    def _pair(self, rail: Rail) -> tuple[bytes, bytes]:
        register = 2 * rail.place - 1
        shunt = self._bus.read(self._address, register)
        return shunt.wire, self._bus.read(self._address, register + 1).wire

    def _age_us(self) -> int:
        """Return how long before a cycle's end the middle of its counted shunts' conversions lies.

        Channels convert in turn, each its shunt first. A filter answers for the cycles before as well.
        """
        cycle_us = self._conversions.cycle_us
        order = sorted(self._rails, key=lambda rail: rail.place)
        middles = [k * (SHUNT_US + BUS_US) + SHUNT_US // 2 for k, rail in enumerate(order) if rail.counted]
        middle_us = sum(middles) * cycle_us // (len(middles) * self._cycle_us)
        return cycle_us - middle_us + (self._average - 1) * cycle_us

    def _stopped(self) -> None:
        if not self._config.holds():
            self._lost()
            return
        self._ready = False  # written again: a chip that only hangs may wake up
        raise MeterError(
            f"{self._bus.name}: the chip at 0x{self._address:02x} has ended no conversion for "
            f"{self._conversions.patience_us / 1000:.0f} ms (CVRF stays 0); its last value is not counted again"
        )

    def _lost(self) -> None:
        """The chip was reset, by a brown-out most likely: what it shows is not what was asked for."""
        self._ready = False
        self._flags = ("reset",)
        self._begin()


def _rail(rail: RailSettings, settings: MeterSettings) -> Rail:
    channel = rail.channel or 1
    ohm = settings.shunt_ohm if rail.shunt_ohm is None else rail.shunt_ohm
    assert ohm is not None
    return Rail(rail.name or f"ch{channel}", channel, round(ohm * 1e6), rail.counted)


def _refuse_smear(average: int, cycle_us: int, shortest_round_s: float | None) -> None:
    if average == 1:
        return
    memory_s = average * cycle_us / 1e6
    least_s = memory_s * SMEAR
    if shortest_round_s is None or shortest_round_s < least_s:
        given = "is not set" if shortest_round_s is None else f"is {shortest_round_s:g}"
        raise MeterError(
            f"meter.average = {average} is a filter with a memory of {memory_s:.2g} s, which moves joules between "
            f"rounds shorter than {least_s:.3g} s, and meter.shortest_round_s {given}; set average = 1, which is better"
        )
