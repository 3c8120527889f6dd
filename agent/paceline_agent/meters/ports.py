# SPDX-License-Identifier: Apache-2.0
"""Buses and ports on which a meter may be: what the kernel shows of them, and who may open them. Opens none of them."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from paceline_agent.meters import sysfs
from paceline_agent.meters.findings import Finding, Where


def find(where: Where) -> Iterator[Finding]:
    """Tell of I2C buses and serial ports."""
    yield from _buses(where)
    yield from _ports(where)


def _buses(where: Where) -> Iterator[Finding]:
    shown = {path.name: path for path in sysfs.children(where.sysfs_root / "class" / "i2c-dev")}
    wanted = where.i2c_bus.rpartition("-")[2]
    for name in sorted(shown, key=_number):
        if wanted in ("", name.rpartition("-")[2]):
            yield _access("bus", "i2c", where.dev_root / name, _about_bus(where, shown[name], name))
    if wanted and not any(wanted == name.rpartition("-")[2] for name in shown):
        here = ", ".join(sorted(shown, key=_number))
        todo = f"here are {here}" if here else ""
        yield Finding("bus", "i2c", where.i2c_bus, False, "this is no I2C bus of this machine", todo)
    if shown or wanted:
        return
    adapters = [
        path.name for path in sysfs.children(where.sysfs_root / "bus" / "i2c" / "devices") if path.name[:4] == "i2c-"
    ]
    if adapters:
        todo = "`sudo modprobe i2c-dev`, and for good `echo i2c-dev | sudo tee /etc/modules-load.d/i2c-dev.conf`"
        yield Finding("bus", "i2c", ", ".join(adapters), False, "there are buses, but no /dev/i2c-*", todo)
    else:
        todo = (
            "on a Raspberry Pi: the line dtparam=i2c_arm=on in /boot/firmware/config.txt, then restart; on other boards"
            ' set status = "okay" at the bus in the device tree'
        )
        yield Finding("bus", "i2c", str(where.dev_root / "i2c-*"), False, "this kernel shows no I2C bus", todo)


def _about_bus(where: Where, folder: Path, name: str) -> str:
    """Return the bus's name, and which chips on it a kernel driver owns: these are read through hwmon."""
    about = sysfs.label(folder / "name") or "an I2C bus"
    for device in sysfs.children(where.sysfs_root / "bus" / "i2c" / "devices"):
        bus, _, address = device.name.partition("-")
        if bus == name.rpartition("-")[2] and (device / "driver").exists():
            driver = os.path.basename(os.path.realpath(device / "driver"))
            about += f"; 0x{address[-2:]} is {sysfs.label(device / 'name')}, owned by the driver {driver}: use hwmon"
    return about


def serial_ports(where: Where) -> list[Path]:
    """Return the serial ports, by lasting names where they have some."""
    by_id = sysfs.children(where.dev_root / "serial" / "by-id")
    named = {os.path.realpath(path) for path in by_id}
    plain = [path for path in sysfs.children(where.dev_root) if path.name.startswith(("ttyACM", "ttyUSB"))]
    return [*by_id, *(path for path in plain if os.path.realpath(path) not in named)]


def _ports(where: Where) -> Iterator[Finding]:
    for path in serial_ports(where):
        yield _access("port", "serial", path, "a serial port")


def _access(kind: Literal["bus", "port"], source: str, path: Path, about: str) -> Finding:
    """Return whether this user may open a device, and else the group to join."""
    if os.access(path, os.R_OK | os.W_OK):
        return Finding(kind, source, str(path), True, about)
    try:
        group = grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        group = "root"
    if group == "root":
        wanted, subsystem = ("i2c", "i2c-dev") if kind == "bus" else ("dialout", "tty")
        todo = f'in /etc/udev/rules.d/60-paceline.rules: SUBSYSTEM=="{subsystem}", GROUP="{wanted}", MODE="0660"'
    else:
        todo = f"`sudo usermod -aG {group} $USER`, then log in again"
    return Finding(kind, source, str(path), False, f"{about}; this user may not open it", todo)


def _number(name: str) -> tuple[int, str]:
    number = name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 1 << 30), name
