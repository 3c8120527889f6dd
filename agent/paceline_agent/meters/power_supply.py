# SPDX-License-Identifier: Apache-2.0
"""A battery's own gauge (power_supply class): what a board draws while its battery alone feeds it.

On external power a gauge sees the charger, not the load: then there is no reading. The sign of a current differs
between drivers, so the amount is taken and the direction from `status`. Where there is neither power nor current,
`energy_now` (microwatt-hours left) counts backwards. How good a gauge is nobody tells: the bound is its resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_agent.cadence import Rhythm
from paceline_agent.meters import Count, MeterError, MeterSettings, Reading, sysfs
from paceline_agent.meters.counting import Counter, CounterSum, asleep_us
from paceline_agent.meters.findings import Finding, Where, refused
from paceline_agent.meters.rail import Rail
from paceline_agent.sieve import power_fault

UJ_PER_UWH = 3600
STEP_UJ = 10_000 * UJ_PER_UWH  # gauges of the ACPI kind count in 10 mWh
UPDATE_US = 1_000
GAUGE_US = 1_000_000  # few gauges move more often
OUTSIDE = ("Mains", "USB", "Wireless")  # types of supplies that feed a board from outside


@dataclass(frozen=True)
class Battery:
    """One battery of the board and the way to its power."""

    name: str
    folder: Path
    way: str  # "power", "current", "energy"


class PowerSupply:
    """Readings are the sum over all batteries that discharge."""

    def __init__(self, settings: MeterSettings, now_us: int, asleep: Callable[[], int] = asleep_us) -> None:
        del now_us
        self._root = Path(settings.sysfs_root) / "class" / "power_supply"
        self._batteries = find_batteries(self._root)
        self.source = "power_supply/" + "+".join(battery.name for battery in self._batteries)
        self.rhythm = Rhythm(usual_us=GAUGE_US, why="usual for a gauge")
        self._seen: tuple[Rail, ...] = ()
        ways = {battery.way for battery in self._batteries}
        if "energy" in ways and len(ways) > 1:
            raise MeterError(f"{self._root}: of several batteries, one shows its energy alone", "choose another source")
        self._sum: CounterSum | None = None
        if ways == {"energy"}:
            self._sum = CounterSum(
                [Counter(battery.name, None, STEP_UJ) for battery in self._batteries], UPDATE_US, asleep
            )

    def read(self, now_us: int) -> Sequence[Reading | Count]:
        """Return one reading; of energy one count, two with the first one. Raises MeterError."""
        if self._sum is not None and not self._sum.is_due(now_us):
            return []
        try:
            self._seen = _read_all(self._root, self._batteries)
        except MeterError:
            if self._sum is not None:
                self._sum.forget()  # it may be charged before the next reading
            raise
        if self._sum is not None:
            return self._sum.add(now_us, [-(rail.energy_uj or 0) for rail in self._seen])
        return [Reading(now_us, now_us, sum(rail.power_uw or 0 for rail in self._seen), len(self._seen))]

    def seen_rails(self) -> Sequence[Rail]:
        """Return what the last good read has seen."""
        return self._seen

    def activity(self, t_us: int, active: bool) -> None:
        """A gauge has no use for it."""

    def close(self) -> None:
        """Nothing is held open."""


def find_batteries(root: Path) -> list[Battery]:
    """Return the batteries that feed the board, not those of a mouse. Raises MeterError."""
    found, dumb = [], []
    for folder in sysfs.children(root):
        if sysfs.label(folder / "type") != "Battery" or sysfs.label(folder / "scope") == "Device":
            continue
        if sysfs.label(folder / "present") == "0":
            continue
        there = {path.name for path in sysfs.children(folder)}
        if "power_now" in there:
            found.append(Battery(folder.name, folder, "power"))
        elif {"current_now", "voltage_now"} <= there:
            found.append(Battery(folder.name, folder, "current"))
        elif "energy_now" in there:
            found.append(Battery(folder.name, folder, "energy"))
        else:
            dumb.append(folder.name)
    if dumb:
        raise MeterError(
            f"{root}: {', '.join(dumb)} shows no power, current or energy", "choose another [meter] source"
        )
    if not found:
        raise MeterError(f"{root} has no battery that feeds this board", "choose another [meter] source")
    return found


def check_alone(root: Path) -> None:
    """Raise MeterError when something else than the batteries feeds the board."""
    for folder in sysfs.children(root):
        if sysfs.label(folder / "type") in OUTSIDE and sysfs.label(folder / "online") not in ("", "0"):
            raise MeterError(
                f"{folder.name} feeds this board, so the battery's gauge does not see what it draws", "unplug it"
            )


def find(where: Where) -> list[Finding]:
    """Tell of the batteries there are."""
    root = where.sysfs_root / "class" / "power_supply"
    try:
        batteries = find_batteries(root)
    except MeterError as error:
        return [refused("power_supply", str(root), error)]
    name = "+".join(battery.name for battery in batteries)
    try:
        _read_all(root, batteries)
    except MeterError as error:
        return [refused("power_supply", name, error)]
    ways = {"power": "power_now", "current": "current_now x voltage_now", "energy": "energy_now, which is coarse"}
    about = f"the whole board while on battery, by {', '.join(sorted({ways[battery.way] for battery in batteries}))}"
    return [Finding("meter", "power_supply", name, True, about)]


def _read_all(root: Path, batteries: Sequence[Battery]) -> tuple[Rail, ...]:
    """Read all batteries or none."""
    check_alone(root)
    states = [sysfs.read_text(battery.folder / "status") for battery in batteries]
    if "Discharging" not in states:
        raise MeterError(
            f"no battery discharges ({', '.join(states)}), so no gauge sees what the board draws", "unplug it"
        )
    rails = tuple(map(_read, batteries, states))
    if all(rail.power_uw == 0 for rail in rails):
        names = ", ".join(rail.name for rail in rails)
        raise MeterError(f"{names} discharges and shows 0 W, which no running board draws: its gauge does not tell")
    return rails


def _read(battery: Battery, status: str) -> Rail:
    if status == "Charging":
        raise MeterError(f"{battery.folder.name} is being charged: its gauge does not see what the board draws")
    if status not in ("Discharging", "Not charging", "Full"):
        raise MeterError(f"{battery.folder}/status: expected Discharging, got {status!r}")
    share = 1 if status == "Discharging" else 0  # another battery feeds the board
    if battery.way == "energy":
        left_uwh = sysfs.read_int(battery.folder / "energy_now", "microwatt-hours")
        if left_uwh < 0:
            raise MeterError(f"{battery.folder}/energy_now shows {left_uwh}: no battery has less than nothing left")
        return Rail(battery.name, energy_uj=left_uwh * UJ_PER_UWH)
    if battery.way == "power":
        power_uw = abs(sysfs.read_int(battery.folder / "power_now", "microwatts")) * share
        return _believed(battery, Rail(battery.name, power_uw=power_uw))
    current_ua = abs(sysfs.read_int(battery.folder / "current_now", "microamperes")) * share
    voltage_uv = sysfs.read_int(battery.folder / "voltage_now", "microvolts")
    if voltage_uv <= 0:
        raise MeterError(f"{battery.folder}/voltage_now shows {voltage_uv / 1e6:g} V, which no battery that feeds has")
    return _believed(battery, Rail(battery.name, voltage_uv, current_ua, current_ua * voltage_uv // 1_000_000))


def _believed(battery: Battery, rail: Rail) -> Rail:
    if fault := power_fault(rail.power_uw or 0):
        raise MeterError(f"{battery.folder} {fault}")
    return rail
