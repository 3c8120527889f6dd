# SPDX-License-Identifier: Apache-2.0
"""Trees of files as the kernel shows them below /sys, made in a folder; tests read them with real reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Value = int | str


def put(path: Path, value: Value) -> None:
    """Write beside and rename: a reader sees the old value or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(value if isinstance(value, str) else f"{value}\n", encoding="ascii")
    beside.rename(path)


def hwmon(root: Path, number: int, chip: str, place: str, files: Mapping[str, Value]) -> Path:
    """Lay out class/hwmon/hwmonN with the device behind it; return its folder."""
    device = root / "devices" / place
    device.mkdir(parents=True, exist_ok=True)
    folder = root / "class" / "hwmon" / f"hwmon{number}"
    for name, value in {"name": f"{chip}\n", **files}.items():
        put(folder / name, value)
    (folder / "device").symlink_to(device)
    return folder


def ina3221(root: Path, labels: tuple[str, str, str], number: int = 3, place: str = "1-0040") -> Path:
    """Lay out an ina3221 as the kernel's driver does: pairs 1 to 3, shunts in MICROVOLT as in4 to in6, sums."""
    files: dict[str, Value] = {"in7_input": 999_999, "in7_label": "sum of shunt voltages", "curr4_input": 999_999}
    for channel, label in enumerate(labels, 1):
        files |= {
            f"in{channel}_input": 5000, f"curr{channel}_input": 100 * channel, f"in{channel}_label": label,
            f"in{channel}_enable": 1, f"shunt{channel}_resistor": 5000, f"in{channel + 3}_input": 500 * channel,
        }  # fmt: skip
    return hwmon(root, number, "ina3221", place, files)


def ina2xx(root: Path, chip: str = "ina219", number: int = 0, place: str = "1-0040", shunt_uohm: int = 100_000) -> Path:
    """Lay out an ina219 or ina226: 5.000 V, 1.200 A, and a power file from another conversion."""
    files = {"in0_input": 120, "in1_input": 5000, "curr1_input": 1200, "power1_input": 5_900_000}
    return hwmon(root, number, chip, place, files | {"shunt_resistor": shunt_uohm})


def jetson_nano(root: Path) -> Path:
    """Lay out the older driver of Jetson boards: millivolt, milliampere and MILLIwatt below an iio device."""
    folder = root / "bus" / "i2c" / "drivers" / "ina3221x" / "6-0040" / "iio:device0"
    for place, (label, milliwatts) in enumerate([("POM_5V_IN", 2504), ("POM_5V_GPU", 40), ("POM_5V_CPU", 700)]):
        put(folder / f"rail_name_{place}", f"{label}\n")
        put(folder / f"in_voltage{place}_input", 5008)
        put(folder / f"in_current{place}_input", milliwatts // 5)
        put(folder / f"in_power{place}_input", milliwatts)
        put(folder / f"crit_current_limit_{place}", "3672 ma\n")
    return folder


def battery(root: Path, number: int = 0, /, **files: Value) -> Path:
    """Lay out a battery; keyword arguments are its files."""
    folder = root / "class" / "power_supply" / f"BAT{number}"
    for file, value in {"type": "Battery\n", "status": "Discharging\n", **files}.items():
        put(folder / file, value)
    return folder


def outside_supply(root: Path, online: int, kind: str = "Mains", name: str = "AC") -> Path:
    """Lay out what feeds a board from outside."""
    folder = root / "class" / "power_supply" / name
    put(folder / "type", f"{kind}\n")
    put(folder / "online", online)
    return folder


def processor(root: Path, count_uj: int = 0) -> Path:
    """Lay out one package of a processor; return the file of its counter."""
    zone = root / "class" / "powercap" / "intel-rapl:0"
    put(zone / "name", "package-0\n")
    put(zone / "max_energy_range_uj", 262_143_328_850)
    put(zone / "energy_uj", count_uj)
    return zone / "energy_uj"


@contextmanager
def moving(tree: Path) -> Iterator[None]:
    """Let a processor's counter and a chip's current move."""
    ending = threading.Event()

    def run() -> None:
        number = 0
        while not ending.wait(0.004):
            number += 1
            put(tree / "powercap" / "intel-rapl:0" / "energy_uj", number * 20_000)
            if (tree / "hwmon" / "hwmon0" / "curr1_input").exists():
                put(tree / "hwmon" / "hwmon0" / "curr1_input", 1200 + number % 3)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
