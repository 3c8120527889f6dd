# SPDX-License-Identifier: Apache-2.0
"""Which chips for `ina219` and `ina3221` answer on a bus. Reads only, and only at their addresses.

An INA219 has no register that names it. One that has just got its power shows 399F, one that was read from here 3xFF;
whatever else answers is told as unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from paceline_agent.meters import MeterError
from paceline_agent.meters.bus import Bus, I2cBus
from paceline_agent.meters.findings import Finding, Where, refused

ADDRESSES = range(0x40, 0x50)  # INA219; an INA3221 has the first four of them
TI, DIES = 0x5449, {0x3220: "ina3221", 0x2260: "INA226, which has no source here yet"}
CONFIG, MAKER, DIE = 0x00, 0xFE, 0xFF
POWER_ON, OURS = 0x399F, {0x21FF, 0x29FF, 0x31FF, 0x39FF}


@dataclass(frozen=True)
class Chip:
    """What answers at an address. `source`: the [meter] source that reads it, empty when there is none."""

    address: int
    source: str
    about: str


def probe(bus: Bus) -> list[Chip]:
    """Return who answers, by address. A chip that a kernel driver owns is not touched."""
    found = []
    for address in ADDRESSES:
        try:
            bus.claim(address)
        except MeterError as error:
            found.append(Chip(address, "", str(error)))
            continue
        try:
            found.append(_identified(bus, address))
        except MeterError:
            continue  # nobody there
    return found


def _identified(bus: Bus, address: int) -> Chip:
    config = bus.read(address, CONFIG).value
    try:
        maker, die = bus.read(address, MAKER).value, bus.read(address, DIE).value
    except MeterError:
        maker = die = 0  # no such registers
    if maker == TI:
        name = DIES.get(die, f"a chip of TI, die 0x{die:04x}, that has no source here")
        return Chip(address, name if name == "ina3221" else "", "INA3221" if name == "ina3221" else name)
    if config == POWER_ON or config in OURS:
        return Chip(address, "ina219", "INA219 by its configuration")
    return Chip(address, "", f"answers, register 00 is 0x{config:04x}: an INA219 that others have set, or another chip")


def find(where: Where) -> Iterator[Finding]:
    """Tell of the chips on the buses that may be opened. What a shunt is, and what it feeds, only a user knows."""
    wanted = where.i2c_bus.rpartition("-")[2]
    for path in sorted(where.dev_root.glob("i2c-*")):
        if wanted not in ("", path.name.rpartition("-")[2]) or not os.access(path, os.R_OK | os.W_OK):
            continue
        try:
            bus = I2cBus(str(path))
            chips = probe(bus)
            bus.close()
        except MeterError as error:
            yield refused("i2c", str(path), error)
            continue
        for chip in chips:
            name = f"{path.name}/0x{chip.address:02x}"
            if chip.source:
                keys = {"bus": str(path), "address": chip.address}
                todo = "set shunt_ohm to the ohms of its resistor (R100 is 0.1)"
                yield Finding("rail", chip.source, name, True, chip.about, todo, keys)
            else:
                yield Finding("rail", "i2c", name, False, chip.about)
