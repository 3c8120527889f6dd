# SPDX-License-Identifier: Apache-2.0
"""Meters that a kernel driver reads (ina2xx, ina3221, ina238, powerz, Jetson boards), through the files below /sys.

Power is voltage times current of one rail, signed; where a driver shows only power, that; where all chosen rails have a
joule counter, that alone. These are readings of an instant: what the chip averages, and when, the kernel does not tell.
All chosen rails are read or none; a chip that was unplugged or has another number is looked for by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_agent.cadence import Rhythm
from paceline_agent.meters import Count, MeterError, MeterSettings, Reading, sysfs
from paceline_agent.meters.counting import Counter, CounterSum, asleep_us
from paceline_agent.meters.findings import Finding, Where, refused
from paceline_agent.meters.hwmon_tree import RailFiles, choose, find_rails
from paceline_agent.meters.rail import Rail
from paceline_agent.sieve import power_fault

UPDATE_US = 1_000  # no joule counter of a chip is known to move faster
UPDATE_MOST_US = 10_000_000  # whatever a driver claims
LOW_UV = 1_000_000  # the lowest rail that is worth measuring: an offset of the voltage weighs most there
DEFAULT_SHUNT_UOHM = 10_000  # what drivers assume when nobody has told them


@dataclass(frozen=True)
class Accuracy:
    """Maxima of a datasheet. lsb_uv: of the shunt register, from which the ina2xx driver derives its current."""

    offset_uv: int  # of the shunt voltage
    gain_ppm: int  # of the current
    bus_offset_uv: int
    bus_gain_ppm: int
    full_scale_uv: int  # of the shunt voltage; there the driver shows the limit, and the truth is above
    lsb_uv: float = 0.0


ACCURACY = {
    # SBOS448, electrical characteristics, grade A at gain /8, which the driver uses; gains over temperature
    **dict.fromkeys(("ina219", "ina220"), Accuracy(200, 10_000, 0, 10_000, 320_000, 10.0)),
    # SBOS547, electrical characteristics
    **dict.fromkeys(("ina226", "ina230", "ina231"), Accuracy(10, 1_000, 7_500, 1_000, 81_917, 2.5)),
    # SBOS576, electrical characteristics
    **dict.fromkeys(("ina3221", "ina3221x"), Accuracy(80, 2_500, 16_000, 2_500, 163_800)),
}


class Hwmon:
    """Readings are the sum of the chosen rails."""

    def __init__(
        self, settings: MeterSettings, now_us: int, timer_us: Callable[[], int] = sysfs.timer_us,
        asleep: Callable[[], int] = asleep_us,
    ) -> None:  # fmt: skip
        """`timer_us`: clock that times a read; the middle of it is the instant of the reading."""
        del now_us
        self._settings = settings
        self._timer_us = timer_us
        self._asleep = asleep
        self._seen: tuple[Rail, ...] = ()
        self._rails, self._flags = self._look()
        self.source = "hwmon/" + "+".join(f"{rail.chip}/{rail.label}" for rail in self._rails)
        self._wanted = [rail.name for rail in self._rails]
        self._lost = False
        self._sum: CounterSum | None = None
        if all(rail.energy is not None for rail in self._rails):
            self._sum = CounterSum([Counter(rail.name, None) for rail in self._rails], UPDATE_US, asleep)
        self._shunts = [_shunt_uohm(rail) for rail in self._rails]
        self.rhythm = Rhythm(max(map(_update_us, self._rails)))
        self._take()  # what cannot be read is told at the start

    def read(self, now_us: int) -> Sequence[Reading | Count]:
        """Return one reading; of a counter one count, two with the first one. Raises MeterError."""
        if self._sum is not None and not self._sum.is_due(now_us):
            return []
        called_us = self._timer_us()
        try:
            if self._lost or not all(rail.is_itself() for rail in self._rails):
                self._find_again()
            begin_us = self._timer_us()
            rails = self._take()
        except sysfs.GoneError:
            self._lost = True
            if self._sum is not None:
                self._sum.forget()  # who was unplugged may count anew
            raise
        half_us = (self._timer_us() - begin_us) // 2
        t_us = now_us + begin_us - called_us + half_us
        if self._sum is not None:
            return self._sum.add(t_us, [rail.energy_uj or 0 for rail in rails], (), self._flags, half_us)
        power_uw = sum(rail.power_uw or 0 for rail in rails)
        flags = self._flags
        if any((rail.power_uw or 0) < 0 for rail in rails):
            flags += ("negative",)
        if any(map(_is_saturated, self._rails, rails, self._shunts)):
            flags += ("saturated",)
        tolerance_ppm = round(self._settings.shunt_tolerance_percent * 10_000)
        error_uw = sum(_error_uw(*each, tolerance_ppm) for each in zip(self._rails, rails, self._shunts, strict=True))
        return [Reading(t_us, t_us, power_uw, error_uw, flags)]

    @property
    def steps(self) -> int:
        """Return how many milliamperes, the steps of the files, the rail shows that shows most."""
        return max((abs(rail.current_ua or 0) for rail in self._seen), default=0) // 1000

    def seen_rails(self) -> Sequence[Rail]:
        """Return what the last good read has seen."""
        return self._seen

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing is held open."""

    def _look(self) -> tuple[list[RailFiles], tuple[str, ...]]:
        root = Path(self._settings.sysfs_root)
        return choose(find_rails(root), self._settings.labels, root)

    def _find_again(self) -> None:
        """Look for the same rails, under whatever number."""
        rails, _ = choose(find_rails(Path(self._settings.sysfs_root)), self._wanted)
        for before, now in zip(self._rails, rails, strict=True):
            if _shown(now) != _shown(before):  # another quantity, with another bound, or a count that would read as 0
                lacking = ", ".join(sorted(_shown(before) ^ _shown(now)))
                why = f"rail {now.name} shows other files than at the start ({lacking})"
                raise sysfs.GoneError(why, "it is tried again")
        self._rails, self._lost = rails, False
        self._shunts = [_shunt_uohm(rail) for rail in rails]

    def _take(self) -> tuple[Rail, ...]:
        """Read all rails or none."""
        self._seen = tuple(_read(rail, energy=self._sum is not None) for rail in self._rails)
        return self._seen


def find(where: Where) -> list[Finding]:
    """Tell of the rails there are, and of the one to take."""
    rails = find_rails(where.sysfs_root)
    if not rails:
        folder = where.sysfs_root / "class" / "hwmon"
        return [Finding("meter", "hwmon", str(folder), False, "no driver shows power here")]
    found = []
    try:
        chosen, flags = choose(rails, ())
    except MeterError as error:
        found.append(refused("hwmon", "total", error))
        chosen, flags = [], ()
    for rail in rails:
        try:
            if not rail.is_on:
                raise MeterError("switched off or not connected")
            seen = _read(rail)
        except MeterError as error:
            found.append(refused("hwmon", rail.name, error))
            continue
        about, todo = _about(rail, seen, rail in chosen, flags)
        settings: dict[str, object] = {} if rail in chosen else {"labels": [rail.name]}
        # A rail that is not the board's input is for the user to choose: it may be a part of anything.
        found.append(Finding("meter" if rail in chosen else "rail", "hwmon", rail.name, True, about, todo, settings))
    return found


def _about(rail: RailFiles, seen: Rail, is_chosen: bool, flags: tuple[str, ...]) -> tuple[str, str]:
    power = "" if seen.power_uw is None else f"{seen.power_uw / 1e6:.3f} W now"
    role = ", a part of the board's total" if flags else ", the board's input as far as can be told"
    about = power + (role if is_chosen else "") + ("" if rail.energy is None else ", counts joules")
    shunt_uohm = _shunt_uohm(rail)
    todo = ""
    if shunt_uohm == DEFAULT_SHUNT_UOHM and rail.shunt is not None:
        todo = (
            f"its driver takes the shunt for 10 mohm, which is also what it takes when nobody has told it: with another"
            f" one (R100 is 100 mohm) write its microohms to {rail.shunt}"
        )
    elif rail.chip == "ina3221" and sysfs.label(rail.folder / "samples") not in ("", "1"):
        todo = (
            "its average is a filter that carries joules from one round into the next:"
            f" write 1 to {rail.folder / 'samples'}"
        )
    elif shunt_uohm and abs(_scale_ppm(rail, shunt_uohm)) > 1_000:
        percent = _scale_ppm(rail, shunt_uohm) / 10_000
        todo = f"newer drivers round at this shunt, by {percent:+.1f} %: read the chip over I2C instead"
    return about.strip(", "), todo


def _read(rail: RailFiles, energy: bool = False) -> Rail:
    """Read one rail. Power is a product where it can be: of a chip's power file neither sign nor time fit the rest."""
    voltage_mv = sysfs.read_int(rail.voltage, "millivolts") if rail.voltage is not None else None
    current_ma = sysfs.read_int(rail.current, "milliamperes") if rail.current is not None else None
    power_uw = None
    if voltage_mv is not None and current_ma is not None:
        power_uw = voltage_mv * current_ma
    elif rail.power is not None:
        power_uw = sysfs.read_int(rail.power, "a power") * rail.power_unit_uw
    if power_uw is not None and (fault := power_fault(power_uw)):
        raise MeterError(f"rail {rail.name} ({rail.current or rail.power}) {fault}")
    energy_uj = sysfs.read_int(rail.energy, "microjoules") if energy and rail.energy is not None else None
    return Rail(
        rail.label, None if voltage_mv is None else voltage_mv * 1000,
        None if current_ma is None else current_ma * 1000, power_uw, energy_uj,
    )  # fmt: skip


def _shown(rail: RailFiles) -> set[str]:
    """Return which quantities a rail has files for."""
    return {kind for kind in ("voltage", "current", "power", "energy") if getattr(rail, kind) is not None}


def _update_us(rail: RailFiles) -> int:
    """Return how often the driver has the chip convert, 0 when it does not tell."""
    try:
        return min(1000 * sysfs.read_int(rail.folder / "update_interval"), UPDATE_MOST_US)
    except MeterError:
        return 0


def _shunt_uohm(rail: RailFiles) -> int:
    """Return the shunt that the driver reckons with, 0 when it does not tell."""
    try:
        return sysfs.read_int(rail.shunt) if rail.shunt is not None else 0
    except MeterError:
        return 0


def _scale_ppm(rail: RailFiles, shunt_uohm: int) -> int:
    """Return by how much newer ina2xx drivers are off: they round the current's step to whole microamperes."""
    accuracy = ACCURACY.get(rail.chip)
    if accuracy is None or accuracy.lsb_uv == 0:
        return 0
    step_ua = accuracy.lsb_uv * 1e6 / shunt_uohm
    return round((max(1, int(step_ua + 0.5)) / step_ua - 1) * 1e6)


def _is_saturated(files: RailFiles, seen: Rail, shunt_uohm: int) -> bool:
    """Return whether the shunt voltage is at full scale, so that the current is a lower bound."""
    accuracy = ACCURACY.get(files.chip)
    if accuracy is None or seen.current_ua is None or not shunt_uohm:
        return False
    resolution_ua = 500  # the file shows whole milliamperes
    return (abs(seen.current_ua) + resolution_ua) * shunt_uohm >= accuracy.full_scale_uv * 1_000_000


def _error_uw(files: RailFiles, seen: Rail, shunt_uohm: int, tolerance_ppm: int) -> int:
    """Return the instrument's bound: resolution of the files, the chip's maxima, the shunt's tolerance.

    For a chip that is not in the table, or whose shunt is not told, it is the resolution alone. Where only a power is
    shown, and maybe one of its factors, the chip's maxima hold for what the power is made of.
    """
    accuracy = ACCURACY.get(files.chip)
    resolution_uw = 0.0
    if seen.voltage_uv is not None and seen.current_ua is not None:
        voltage_uv, current_ua = float(abs(seen.voltage_uv)), float(abs(seen.current_ua))
        current_error_ua, voltage_error_uv = 500.0, 500.0  # half a milliampere, half a millivolt
    elif accuracy is None:
        return files.power_unit_uw
    else:
        voltage_uv, current_ua = _factors(seen)
        current_error_ua = voltage_error_uv = 0.0
        resolution_uw = float(files.power_unit_uw)
    if accuracy is not None:
        voltage_error_uv += accuracy.bus_offset_uv + voltage_uv * accuracy.bus_gain_ppm / 1e6
        current_error_ua += current_ua * (accuracy.gain_ppm + tolerance_ppm) / 1e6
        if shunt_uohm:
            current_error_ua += accuracy.offset_uv * 1e6 / shunt_uohm
            current_error_ua += current_ua * abs(_scale_ppm(files, shunt_uohm)) / 1e6
    both = current_error_ua * voltage_error_uv
    return math.ceil(resolution_uw + (voltage_uv * current_error_ua + current_ua * voltage_error_uv + both) / 1e6)


def _factors(seen: Rail) -> tuple[float, float]:
    """Return the microvolts and microamperes that make a power; the volts of one that says neither are LOW_UV."""
    power_uw = float(abs(seen.power_uw or 0))
    if seen.current_ua:
        return power_uw * 1e6 / abs(seen.current_ua), float(abs(seen.current_ua))
    voltage_uv = float(abs(seen.voltage_uv or 0) or LOW_UV)
    return voltage_uv, power_uw * 1e6 / voltage_uv
