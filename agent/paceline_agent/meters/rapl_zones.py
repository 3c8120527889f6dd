# SPDX-License-Identifier: Apache-2.0
"""The zones that powercap shows -> one cover in which no joule is counted twice. Reads names and ranges, no counts.

What contains what: psys, the whole platform, has packages and memory in it; a package has core and uncore in it; dram
is shown below its package and is not in it. The number of a zone says nothing, its name and its parent's do. MMIO shows
the zones of MSR a second time. Several dies of a package may each have a counter, or all show the same one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline_agent.cadence import LEAST_US
from paceline_agent.meters import MeterError, sysfs
from paceline_agent.meters.counting import LATE_US, POWER_MAX_W, Counter

_STEPS = 0xFFFFFFFF  # highest raw count: 32 bits, whose unit is what the range divided by it gives
LEAST_UJ = POWER_MAX_W * (2 * LEAST_US + LATE_US)  # wraps at most once though one reading is missed
INSIDE = {"psys": {"package", "core", "uncore", "dram"}, "package": {"core", "uncore"}}


@dataclass(frozen=True)
class Zone:
    """One folder with a counter. `names`: files that say which one it is, and what they must say."""

    counter: Counter
    file: Path
    names: tuple[tuple[Path, str], ...]

    def is_itself(self) -> bool:
        """Return whether the folder still is this zone, and not another one under its number."""
        return all(sysfs.read_text(path) == name for path, name in self.names)


@dataclass(frozen=True)
class Domain:
    """One thing that draws power; several zones where each die of a package has one, mirrored or not."""

    name: str  # "package-0", "package-0/dram", "psys"
    zones: tuple[Zone, ...]


@dataclass
class _Package:
    top: list[Path] = field(default_factory=list)
    inside: dict[str, list[Path]] = field(default_factory=dict)  # "core", "uncore", "dram"


def find_domains(root: Path, kinds: Sequence[str] = ()) -> list[Domain]:
    """Return the domains of some kinds below `root`; none named: packages, or psys where there are none.

    Raises MeterError.
    """
    _check_kinds(kinds)
    packages, psys, others = _zones(root)
    if not kinds:
        kinds = ["package"] if packages else ["psys"]
    found: list[Domain] = []
    for number, package in sorted(packages.items()):
        for kind in ("package", "core", "uncore", "dram"):
            paths = package.top if kind == "package" else package.inside.get(kind, [])
            if kind in kinds and paths:
                name = f"package-{number}" + ("" if kind == "package" else f"/{kind}")
                found.append(Domain(name, tuple(_zone(path, name) for path in paths)))
    if "psys" in kinds and psys is not None:
        found.append(Domain("psys", (_zone(psys, "psys"),)))
    lacking = [kind for kind in kinds if not any(kind in re.split(r"[-/]", domain.name) for domain in found)]
    if kinds == ["psys"] and lacking:
        there = f"found {', '.join(sorted(others))}" if others else "there are none"
        raise MeterError(f"{root}: expected zones named package-0 or psys, {there}", "choose another [meter] source")
    if lacking:
        raise MeterError(f"{root}: this processor counts no {', no '.join(lacking)}", "change meter.domains")
    return found


def _check_kinds(kinds: Sequence[str]) -> None:
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), ""):
        raise MeterError(f"meter.domains names {twice} twice", "keep one of them")
    for outer, inner in INSIDE.items():
        doubled = sorted(inner & set(kinds))
        if outer in kinds and doubled:
            raise MeterError(
                f"meter.domains names {outer} and {', '.join(doubled)}, which {outer} contains already",
                "keep one of them",
            )


def _zones(root: Path) -> tuple[dict[int, _Package], Path | None, set[str]]:
    """Return the packages by number, psys, and the names of whatever else there is at the top."""
    if not root.is_dir():
        raise MeterError(
            f"{root} is not there: this kernel has no RAPL (containers hide it, Arm and RISC-V have none)",
            "choose another [meter] source, or set meter.rapl_root",
        )
    packages: dict[int, _Package] = {}
    psys: Path | None = None
    others: set[str] = set()
    seen: set[str] = set()
    entries = sysfs.children(root)
    tops: dict[str, tuple[int, str]] = {}  # zone's folder -> number and name of its package
    for entry in sorted(entries, key=lambda entry: (entry.name.count(":"), "mmio" in entry.name, entry.name)):
        depth, name = entry.name.count(":"), sysfs.label(entry / "name")
        if depth == 1:
            match = re.fullmatch(r"package-(\d+)(-die-\d+)?", name)
            if match is None:
                psys = entry if name == "psys" and psys is None else psys
                others |= {name} if name and name != "psys" else set()
                continue
            if name not in seen:  # MSR comes before its MMIO twin
                seen.add(name)
                number = int(match[1])
                packages.setdefault(number, _Package()).top.append(entry)
                tops[entry.name] = number, name
        elif depth == 2 and entry.name.rpartition(":")[0] in tops:
            number, above = tops[entry.name.rpartition(":")[0]]
            if name in ("core", "uncore", "dram") and f"{above}/{name}" not in seen:
                seen.add(f"{above}/{name}")
                packages[number].inside.setdefault(name, []).append(entry)
    for package in packages.values():  # a package as a whole, where it is shown, is not the sum of its dies
        package.top = [path for path in package.top if "-die-" not in tops[path.name][1]] or package.top
    return packages, psys, others


def _zone(path: Path, name: str) -> Zone:
    range_uj = _range_uj(path)
    above = path.with_name(path.name.rpartition(":")[0])
    named = [path] if path.name.count(":") == 1 else [path, above]
    names = tuple((folder / "name", sysfs.label(folder / "name")) for folder in named)
    must_move = not name.endswith("uncore")  # graphics may be off
    return Zone(Counter(name, range_uj, range_uj // _STEPS, must_move), path / "energy_uj", names)


def _range_uj(zone: Path) -> int:
    path = zone / "max_energy_range_uj"
    try:
        text = sysfs.read_text(path)
    except MeterError as error:
        raise MeterError(f"{error.why.split('; ')[0]}; without it a wrap looks like a reset") from None
    if not text.isdecimal() or int(text) == 0:
        raise MeterError(f"{path}: expected a count of microjoules above 0")
    if int(text) < LEAST_UJ:
        raise MeterError(
            f"{path}: a counter that begins anew after {int(text) / 1e6:g} J could do so twice between two readings",
            f"at least {LEAST_UJ / 1e6:g} J are needed",
        )
    return int(text)
