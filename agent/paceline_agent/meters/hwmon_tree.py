# SPDX-License-Identifier: Apache-2.0
"""The rails that kernel drivers show below /sys: which files belong together, in which unit, under which name.

Found by name and label, never by number: hwmonN changes between boots. Two layouts: hwmon (millivolt, milliampere,
microwatt, microjoule) and the older ina3221x of Jetson boards (iio: millivolt, milliampere, MILLIwatt).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_agent.meters import SYSFS, MeterError, sysfs

# Which voltage goes with which current (from the kernel's documents of each driver). Further in* are shunts or pins.
IN1 = (("in1", "curr1"),)
PAIRS = {
    **dict.fromkeys(("ina219", "ina220", "ina226", "ina230", "ina231", "ina260", "sy24655"), IN1),
    **dict.fromkeys(("ina228", "ina237", "ina238", "ina233"), IN1),
    "ina3221": (("in1", "curr1"), ("in2", "curr2"), ("in3", "curr3")),
    "ltc2947": (("in0", "curr1"),),
    "ltc2992": (("in0", "curr1"), ("in2", "curr2")),
    "max20730": (("in2", "curr1"),),
    "max20751": (("in2", "curr1"),),
    "powerz": (("in0", "curr1"),),
}
NOT_CONNECTED = "NC"  # as a whole label
BOARD_INPUTS = ("VDD_IN", "POM_5V_IN", "VIN")  # rails that all others of a Jetson hang on
# Boards without an input rail: what adds up to the best total there is, flagged `derived_total`.
DERIVED = (
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin; VDDQ_VDD2_1V8AO may hang on VIN_SYS_5V0: left out
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier
)


@dataclass(frozen=True)
class RailFiles:
    """One rail and its files. Of these there is voltage with current, or power, or energy; None: no such file."""

    chip: str
    place: str  # "1-0040": the device behind it, the same after each boot
    label: str
    folder: Path
    voltage: Path | None = None  # mV
    current: Path | None = None  # mA, signed
    power: Path | None = None
    power_unit_uw: int = 1  # hwmon counts microwatts, the old Jetson driver milliwatts
    energy: Path | None = None  # uJ
    shunt: Path | None = None  # uohm
    enable: Path | None = None  # says 0 when the channel is off

    @property
    def name(self) -> str:
        """Return the name that no other rail has."""
        return f"{self.chip}@{self.place}/{self.label}" if self.place else f"{self.chip}/{self.label}"

    @property
    def is_on(self) -> bool:
        """Return whether the channel is switched on and connected."""
        return self.label != NOT_CONNECTED and (self.enable is None or sysfs.label(self.enable) != "0")

    @property
    def is_a_meter(self) -> bool:
        """Return whether this is a chip that is there to measure power, and not a part that tells its own."""
        return self.chip in PAIRS or self.chip == "ina3221x"

    def is_itself(self) -> bool:
        """Return whether the folder still is this chip's, and not another one's under its number."""
        return self.chip == "ina3221x" or (
            sysfs.read_text(self.folder / "name") == self.chip and _place(self.folder) == self.place
        )

    def answers_to(self, name: str) -> bool:
        """Return whether a user means this one."""
        return name in (self.label, f"{self.chip}/{self.label}", self.name)


def find_rails(sysfs_root: Path) -> list[RailFiles]:
    """Return all rails, in the order of their names. Raises MeterError."""
    found: list[RailFiles] = []
    for folder in sysfs.children(sysfs_root / "class" / "hwmon"):
        if chip := sysfs.label(folder / "name"):
            found += _hwmon(folder, chip, _place(folder))
    for device in sysfs.children(sysfs_root / "bus" / "i2c" / "drivers" / "ina3221x"):
        for folder in sysfs.children(device):
            if folder.name.startswith("iio:device") and folder.is_dir():
                found += _iio(folder, device.name)
    return sorted(found, key=lambda rail: rail.name)


def choose(
    rails: Sequence[RailFiles], wanted: Sequence[str], root: Path = Path(SYSFS)
) -> tuple[list[RailFiles], tuple[str, ...]]:
    """Return the rails to add up, and flags of the sum. Raises MeterError when that is for the user to say."""
    if wanted:
        named = [_only(rails, name) for name in wanted]
        if twice := next((rail.name for rail in named if named.count(rail) > 1), ""):
            raise MeterError(f"meter.labels names the rail {twice} twice, and its joules would count twice", "keep one")
        _check_apart(named)
        return named, ()
    usable = [rail for rail in rails if rail.is_on]
    inputs = [rail for label in BOARD_INPUTS for rail in usable if rail.label == label and rail.is_a_meter]
    if len(inputs) == 1:
        return inputs, ()
    for labels in DERIVED:
        parts = [rail for label in labels for rail in usable if rail.label == label and rail.is_a_meter]
        if [rail.label for rail in parts] == list(labels):
            return parts, ("derived_total",)
    meters = [rail for rail in usable if rail.is_a_meter]
    if len(meters) == 1:
        return meters, ()
    if not usable:
        raise MeterError(f"no driver below {root / 'class' / 'hwmon'} shows power", "choose another [meter] source")
    names = ", ".join(rail.name for rail in meters or usable)
    raise MeterError(f"which of these rails feed the board is not known: {names}", "name them in meter.labels")


def _check_apart(named: Sequence[RailFiles]) -> None:
    """Raise MeterError when one of these rails contains another: the others of a Jetson hang on its input."""
    for whole in named:
        parts = [rail.name for rail in named if rail is not whole and rail.chip == whole.chip]
        if whole.label in BOARD_INPUTS and whole.is_a_meter and parts:
            raise MeterError(
                f"meter.labels names {whole.name} and {', '.join(parts)}, which it contains already, and their joules"
                " would count twice",
                "keep the one, or the others",
            )


def _only(rails: Sequence[RailFiles], name: str) -> RailFiles:
    found = [rail for rail in rails if rail.answers_to(name)]
    if len(found) == 1 and found[0].is_on:
        return found[0]
    if len(found) == 1:
        raise MeterError(
            f"rail {name} is switched off or not connected", f"choose another one, or write 1 to {found[0].enable}"
        )
    if found:
        names = ", ".join(rail.name for rail in found)
        raise MeterError(f"meter.labels: {name} may be {names}", "write one of these")
    known = ", ".join(rail.name for rail in rails if rail.is_on) or "none"
    raise sysfs.GoneError(f"no rail {name or repr(name)} is here; found: {known}")


def _place(folder: Path) -> str:
    """Return the name of the device that a hwmon folder belongs to."""
    device = folder / "device"
    return os.path.basename(os.path.realpath(device)) if device.exists() else ""


def _hwmon(folder: Path, chip: str, place: str) -> Iterator[RailFiles]:
    names = {path.name for path in sysfs.children(folder)}

    def file(name: str) -> Path | None:
        return folder / name if name in names else None

    pairs = [pair for pair in PAIRS.get(chip, ()) if {f"{each}_input" for each in pair} <= names]
    for voltage, current in pairs:
        number = current.removeprefix("curr")
        shunt = file("shunt_resistor") or file(f"shunt{number}_resistor")
        yield RailFiles(
            chip, place, _label(folder, names, voltage, current, f"power{number}", fallback=f"ch{number}"), folder,
            file(f"{voltage}_input"), file(f"{current}_input"), _power(folder, names, number), 1,
            file(f"energy{number}_input"), shunt, file(f"{voltage}_enable"),
        )  # fmt: skip
    if pairs:
        return  # a power file beside them is the same rail
    numbers = Counter(
        match[2] for name in names if (match := re.fullmatch(r"(power|energy)(\d+)_(input|average)", name))
    )
    for number in sorted(numbers, key=int):
        label = _label(folder, names, f"power{number}", f"energy{number}", fallback=f"ch{number}")
        yield RailFiles(
            chip, place, label, folder, None, None, _power(folder, names, number), 1, file(f"energy{number}_input"),
            None, file(f"power{number}_enable"),
        )  # fmt: skip


def _power(folder: Path, names: set[str], number: str) -> Path | None:
    """Return the file of a power: the mean that the driver keeps where there is one, else the instant."""
    for kind in ("average", "input"):
        if f"power{number}_{kind}" in names:
            return folder / f"power{number}_{kind}"
    return None


def _label(folder: Path, names: set[str], *of: str, fallback: str) -> str:
    """Return a channel's label, else that of a chip with one channel (from the device tree), else its number."""
    files = [f"{each}_label" for each in of] + (["label"] if fallback == "ch1" else [])
    return next((text for name in files if name in names and (text := sysfs.label(folder / name))), fallback)


def _iio(folder: Path, place: str) -> Iterator[RailFiles]:
    names = {path.name for path in sysfs.children(folder)}
    for number in range(3):

        def file(name: str) -> Path | None:
            return folder / name if name in names else None

        voltage, current = file(f"in_voltage{number}_input"), file(f"in_current{number}_input")
        power = file(f"in_power{number}_input")
        if power is not None or (voltage is not None and current is not None):
            label = sysfs.label(folder / f"rail_name_{number}") or f"ch{number}"
            yield RailFiles("ina3221x", place, label, folder, voltage, current, power, 1000)
