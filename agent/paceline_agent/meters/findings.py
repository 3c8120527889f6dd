# SPDX-License-Identifier: Apache-2.0
"""What `paceline-agent meter scan` asks the sources: each module that has a `find(where)` answers with findings.

A finding is a meter that can be used, or that cannot and why, or a bus or port on which one may be.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from paceline_agent.meters import SOURCES, MeterError, check_root

# Which source to take where several are there: what sees the whole board before what sees a part of it.
PREFERRED = ("hwmon", "ina3221", "ina219", "serial", "power_supply", "rapl")


PLACES = (
    "paceline_agent.meters.chips",
    "paceline_agent.meters.ports",
    "paceline_agent.meters.serial_scan",
)  # asked too, though they are no sources
Kind = Literal["meter", "rail", "bus", "port"]  # rail: usable, but only a user knows of what it is a part
KINDS = get_args(Kind)


@dataclass(frozen=True)
class Where:
    """Where to look. `i2c_bus`: "" all buses, else a number or the path of one. `listen`: open serial ports."""

    sysfs_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")
    i2c_bus: str = ""
    listen: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing that was found, or that was looked for in vain."""

    kind: Kind
    source: str  # as in [meter] of agent.toml
    name: str  # "ina3221@1-0040/VDD_IN", "package-0", "/dev/i2c-1"
    usable: bool
    about: str  # what it is, or why it cannot be used
    todo: str = ""  # what to do about it
    settings: Mapping[str, object] = field(default_factory=dict)  # further keys of [meter] that choose it


def refused(source: str, name: str, error: MeterError) -> Finding:
    """Return the finding that a source's own refusal makes."""
    return Finding("meter", source, name, False, error.why, error.todo)


def scan(where: Where) -> list[Finding]:
    """Return what all sources find, usable meters first. A source that fails in whatever way hides no other one.

    Raises MeterError when there is no such tree.
    """
    check_root(where.sysfs_root)
    found: list[Finding] = []
    modules = dict.fromkeys([*(target.split(":")[0] for target in SOURCES.values()), *PLACES])
    for module in modules:
        find = getattr(importlib.import_module(module), "find", None)
        if find is not None:
            found += _asked(module, find(where))
    return sorted(found, key=_rank)


def best(where: Where) -> Finding:
    """Return the usable meter that sees most. Raises MeterError."""
    found = scan(where)
    for finding in found:
        if finding.usable and finding.kind == "meter":
            return finding
    why = "; ".join(f"{finding.source}: {finding.about}" for finding in found if finding.kind == "meter")
    raise MeterError(f"no meter is usable here ({why or 'none was found'})", "`paceline-agent meter scan` tells more")


def _asked(module: str, answer: Iterable[Finding]) -> list[Finding]:
    try:
        return list(answer)
    except (MeterError, OSError) as error:
        return [Finding("meter", module.rpartition(".")[2], "", False, str(error))]


def _rank(finding: Finding) -> tuple[int, bool, int, str]:
    place = PREFERRED.index(finding.source) if finding.source in PREFERRED else len(PREFERRED)
    return KINDS.index(finding.kind), not finding.usable, place, finding.name
