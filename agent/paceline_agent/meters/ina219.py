# SPDX-License-Identifier: Apache-2.0
"""INA219 (TI SBOS448G) on an I2C bus: mean power over each of its conversions, one after the other, none left out.

The shunt is averaged over 128 samples and the bus voltage over one (tables 3 to 6), so the shunt is watched for 99 % of
the time and short bursts count as what they are. CNVR, bit 1 of register 02, tells of a new conversion; reading
register 03 clears it. Bounds are those of a grade A chip over temperature (7.5).
"""

from __future__ import annotations

from paceline import core
from paceline_agent.cadence import Rhythm
from paceline_agent.meters import MeterError, MeterSettings, RailSettings, Reading
from paceline_agent.meters.bus import Bus, I2cBus
from paceline_agent.meters.conversions import Conversions
from paceline_agent.meters.ina import Configured, Rail, RailReading, Spec, Sum, shown

SHUNT, BUS, POWER = 0x01, 0x02, 0x03
BUS_32_V = 1 << 13
GAIN = {40: 0, 80: 1, 160: 2, 320: 3}  # PG by full scale in millivolts (table 4)
# SADC and BADC by samples: code and typical microseconds (table 5)
ADC = {
    1: (0x3, 532), 2: (0x9, 1_060), 4: (0xA, 2_130), 8: (0xB, 4_260), 16: (0xC, 8_510), 32: (0xD, 17_020),
    64: (0xE, 34_050), 128: (0xF, 68_100),
}  # fmt: skip
BOTH_CONTINUOUS = 7  # MODE (table 6)
# Offset at each gain and 0.1 uV/degree over 60 degrees; half a step, which is 10 uV times the gain (12 bits); half a
# step of the bus's 4 mV and as much again for its 32 V; 1 % each over temperature.
SPECS = {
    40: Spec(100 + 6 + 5, 10_000, 4_000, 10_000),
    80: Spec(125 + 6 + 10, 10_000, 4_000, 10_000),
    160: Spec(150 + 6 + 20, 10_000, 4_000, 10_000),
    320: Spec(200 + 6 + 40, 10_000, 4_000, 10_000),
}
TI, TI_AT = 0x5449, 0xFE  # where other chips of this maker name themselves; an INA219 has no such register
AVERAGE = 128
STEP_UV = 10


class Ina219:
    """One INA219, or several whose powers are summed. `duty`: share of the time that a shunt is watched."""

    def __init__(self, settings: MeterSettings, now_us: int, bus: Bus | None = None) -> None:
        del now_us  # bus transfers bring their own times
        self._bus = bus or I2cBus(settings.bus)
        try:
            rails = settings.rails or (RailSettings(),)
            self._chips = [_Chip(self._bus, settings, _rail(rail, settings)) for rail in rails]
        except Exception:
            self._bus.close()
            raise
        counted = [chip for chip in self._chips if chip.rail.counted]
        self.source = "ina219/" + "+".join(chip.rail.name for chip in counted)
        self.duty = counted[0].duty
        longest_us = max(chip.cycle_us for chip in counted)
        self.rhythm = Rhythm(longest_us, longest_us, is_fixed=True, why="each conversion, as it ends")
        self._sum = Sum(len(counted))
        self._counted = {id(chip): place for place, chip in enumerate(counted)}

    def seen_rails(self) -> tuple[RailReading, ...]:
        """Return what each rail showed last; rails that have shown nothing yet are missing."""
        return tuple(chip.last for chip in self._chips if chip.last is not None)

    @property
    def steps(self) -> int:
        """Return how many steps of its converter a counted shunt shows, of that which shows most."""
        shown = [abs(chip.last.shunt_uv) for chip in self._chips if chip.last is not None and chip.rail.counted]
        return max(shown, default=0) // STEP_UV

    @property
    def resets(self) -> int:
        """Return how often a chip was found to have lost its configuration."""
        return sum(chip.config.resets for chip in self._chips)

    @property
    def due_us(self) -> int:
        """Return when the next conversion is about to end."""
        return min(chip.due_us for chip in self._chips)

    def read(self, now_us: int) -> list[Reading]:
        """Return mean power over the conversions that have ended. Raises MeterError when a counted chip cannot tell."""
        trouble = None
        for chip in self._chips:
            if now_us < chip.due_us and len(self._chips) > 1:
                continue
            try:
                reading = chip.read()
            except MeterError as error:
                trouble = trouble or (error if chip.rail.counted else None)
                continue
            if reading is not None and chip.rail.counted:
                self._sum.add(self._counted[id(chip)], reading)
        if trouble is not None:
            raise trouble
        return self._sum.take()

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Leave the chips converting, close the bus."""
        self._bus.close()


class _Chip:
    """One INA219, its configuration and the time of its conversions."""

    def __init__(self, bus: Bus, settings: MeterSettings, rail: Rail) -> None:
        self.rail = rail
        self.last: RailReading | None = None
        self._bus = bus
        self._spec = SPECS[settings.range_mv]
        self._tolerance_ppm = round(settings.shunt_tolerance_percent * 10_000)
        sadc, shunt_us = ADC[settings.average or AVERAGE]
        badc, bus_us = ADC[1]
        self.duty = shunt_us / (shunt_us + bus_us)
        value = BUS_32_V | GAIN[settings.range_mv] << 11 | badc << 7 | sadc << 3 | BOTH_CONTINUOUS
        self.config = Configured(bus, rail.place, value, "INA219")
        self.cycle_us = shunt_us + bus_us
        bus.claim(rail.place)
        _refuse_others(bus, rail.place)
        self._flags: tuple[str, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._ready = False  # until this succeeds
        self.config.write()
        self._rearm_us = self._bus.read(self.rail.place, POWER).before_us  # a flag from before says nothing
        self._conversions = Conversions(self.cycle_us, self._rearm_us)
        self.due_us = self._conversions.due_us(self._rearm_us)
        self._ready = True

    def read(self) -> Reading | None:
        """Return the conversion that has ended since the last call, None when there is none."""
        if not self._ready:
            self._begin()
            return None
        address = self.rail.place
        bus = self._bus.read(address, BUS)
        if not bus.value & 2:
            self._conversions.clear(bus.before_us)
            self.due_us = self._conversions.due_us(bus.after_us)
            if self._conversions.stopped(bus.after_us):
                self._stopped(bus.after_us)
            return None
        shunt = self._bus.read(address, SHUNT)
        before_us = self._conversions.end_us
        power = self._bus.read(address, POWER)
        if not self.config.holds():
            self._lost()
            return None
        end_us = self._conversions.ended(bus.before_us, shunt.after_us)  # the next one may have ended in between
        self._conversions.clear(power.before_us)
        self.due_us = self._conversions.due_us(power.after_us)
        decoded = core.ina219(self.config.value, shunt.wire, bus.wire, self.rail.shunt_uohm)
        self.last = last = shown(self.rail, decoded, self._spec, self._tolerance_ppm)
        flags, self._flags = last.flags + self._flags, ()
        begin_us = end_us - self._conversions.cycle_us
        if before_us is not None and abs(begin_us - before_us) < self.cycle_us // 4:
            begin_us = before_us  # conversions follow each other at once
        return Reading(begin_us, end_us, last.power_uw, last.error_uw, flags)

    def _stopped(self, now_us: int) -> None:
        if not self.config.holds():
            self._lost()
            return
        self._ready = False  # written again: a chip that only hangs may wake up
        raise MeterError(
            f"{self._bus.name}: the chip at 0x{self.rail.place:02x} has ended no conversion for "
            f"{self._conversions.patience_us / 1000:.0f} ms (CNVR stays 0); its last value is not counted again"
        )

    def _lost(self) -> None:
        """The chip was reset, by a brown-out most likely: what it shows is not what was asked for."""
        self._ready = False
        self._flags = ("reset",)
        self._begin()


def _rail(rail: RailSettings, settings: MeterSettings) -> Rail:
    address = settings.address if rail.address is None else rail.address
    ohm = settings.shunt_ohm if rail.shunt_ohm is None else rail.shunt_ohm
    assert ohm is not None
    return Rail(rail.name or f"0x{address:02x}", address, round(ohm * 1e6), rail.counted)


def _refuse_others(bus: Bus, address: int) -> None:
    """An INA3221 or INA226 answers at the same addresses, and would take the configuration."""
    try:
        maker, die = bus.read(address, TI_AT).value, bus.read(address, TI_AT + 1).value
    except MeterError:
        return  # no such register
    if maker == TI:
        raise MeterError(
            f"{bus.name}: the chip at 0x{address:02x} names itself 0x{die:04x} (INA3221: 0x3220, INA226: 0x2260); "
            "an INA219 has no such register: set the fitting meter.source, or meter.address"
        )
