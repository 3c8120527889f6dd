# SPDX-License-Identifier: Apache-2.0
"""The processor's own joule counters (Intel and AMD RAPL) through Linux powercap, all packages as one count.

Counted is what flows into the packages (sockets): cores and graphics are inside them and never added again; memory
(`dram`) and the rest of the board are not in it. `psys`, the whole platform, stands in where there is no package.
A step that cannot be told from a reset is dropped, and the integrator flags it; a failed reading is no reading.
"""

from __future__ import annotations

import errno
import grp
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline_agent.meters import Count, MeterError, MeterSettings

POWER_MAX_W = 2_000  # of one package, with room to spare; a counter that ran faster was reset or misread
UPDATE_US = 1_000  # the processor moves its counters about once a millisecond
LATE_US = 10_000  # what a late update may put into one step
_STEPS = 0xFFFFFFFF  # highest raw count: 32 bits, whose unit is what the range divided by it gives
_BASE_UJ = 1 << 40  # each reset takes one away, which tells the integrator that the count began anew


@dataclass(frozen=True)
class Domain:
    """One counter that is in no other one."""

    name: str
    counter: Path
    range_uj: int  # highest count

    @property
    def unit_uj(self) -> int:
        """Return the resolution, rounded down; the count after range_uj + unit_uj - 1 is 0."""
        return self.range_uj // _STEPS

    def read(self) -> int:
        """Return the count. Raises OSError, or ValueError when it is none."""
        count_uj = int(self.counter.read_text(encoding="ascii"))
        if not 0 <= count_uj <= self.range_uj:
            raise ValueError(f"{count_uj} is not within 0..{self.range_uj}")
        return count_uj


@dataclass(frozen=True)
class _Sample:
    t_us: int
    counts_uj: list[int]


class Rapl:
    """Readings are counts: the sum over all packages, unwrapped, from an arbitrary base on."""

    def __init__(self, settings: MeterSettings, now_us: int) -> None:
        del now_us  # a counter has no use for the time before its first reading
        self._root = Path(settings.rapl_root)
        self._domains = find_domains(self._root)
        for domain in self._domains:
            _check_period(domain, settings.period_ms)
        self.source = "rapl/" + "+".join(domain.name for domain in self._domains)
        self._last: _Sample | None = None
        self._lost = False
        self._begun = False
        self._count_uj = _BASE_UJ
        self._peak_uw = 0
        self._counts()  # what cannot be read is told at the start

    def read(self, now_us: int) -> list[Count]:
        """Return one count, two with the first one. Raises MeterError."""
        if self._last is not None and now_us < self._last.t_us + UPDATE_US:
            return []  # the counter has not moved yet
        fresh = _Sample(now_us, self._counts())
        last, self._last = self._last, fresh
        step_uj = self._step(last, fresh) if last is not None else None
        if step_uj is None:
            if not self._begun:
                return []  # a base: what was before is unknown
            self._count_uj -= 1
            return [Count(now_us, self._count_uj, self._error_uj())]
        assert last is not None
        base = [] if self._begun else [Count(last.t_us, self._count_uj)]
        self._begun = True
        self._count_uj += step_uj
        self._peak_uw = max(self._peak_uw, step_uj * 1_000_000 // (now_us - last.t_us + UPDATE_US))
        return [*base, Count(now_us, self._count_uj, self._error_uj())]

    def activity(self, t_us: int, active: bool) -> None:
        """A counter has no use for it."""

    def close(self) -> None:
        """Nothing is held open."""

    def _counts(self) -> list[int]:
        """Read all domains or none. A base outlives a failed read, but not a counter that was gone."""
        if self._lost:
            self._find_again()
        counts = []
        for domain in self._domains:
            try:
                counts.append(domain.read())
            except PermissionError:
                self._last = None
                raise _denied(domain.counter) from None
            except ValueError as error:
                raise MeterError(f"{domain.counter}: expected a count of microjoules: {error}") from None
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                    self._last, self._lost = None, True
                raise MeterError(f"{domain.counter} cannot be read: {error.strerror}; it is tried again") from None
        return counts

    def _find_again(self) -> None:
        """A counter that was gone may come back under another number, but not as another set."""
        found = find_domains(self._root)
        was, now = ([domain.name for domain in domains] for domains in (self._domains, found))
        if now != was:
            raise MeterError(f"{self._root} has {', '.join(now)} now, where it had {', '.join(was)}; start again")
        self._domains, self._lost = found, False

    def _step(self, last: _Sample, fresh: _Sample) -> int | None:
        """Return the energy between two samples, None when a counter may have been reset or have wrapped twice."""
        span_us = fresh.t_us - last.t_us
        most_uj = POWER_MAX_W * (span_us + LATE_US)
        total_uj = 0
        for domain, before_uj, after_uj in zip(self._domains, last.counts_uj, fresh.counts_uj, strict=True):
            modulus_uj = domain.range_uj + domain.unit_uj
            step_uj = after_uj - before_uj + (modulus_uj if after_uj < before_uj else 0)
            if step_uj > most_uj or most_uj >= modulus_uj:
                return None
            total_uj += step_uj
        return total_uj

    def _error_uj(self) -> int:
        """How far a count may be from the moment's truth: its resolution, and one update at the highest power seen.

        How well the counter itself is calibrated is told by no maker, and so is not in it.
        """
        return sum(domain.unit_uj + 1 for domain in self._domains) + self._peak_uw * UPDATE_US // 1_000_000


def find_domains(root: Path) -> list[Domain]:
    """Return one cover of the zones below `root` in which nothing is counted twice. Raises MeterError."""
    zones = _zones(root)
    packages = sorted((int(name[8:]), name) for name in zones if re.fullmatch(r"package-\d+", name))
    dies = sorted(name for name in zones if re.fullmatch(r"package-\d+-die-\d+", name))
    if dies:
        raise MeterError(
            f"{root} has a counter per die ({', '.join(dies)}), which cannot be told from mirrored ones yet"
        )
    names = [name for _, name in packages] or [name for name in ("psys",) if name in zones]
    if not names:
        there = f"found {', '.join(sorted(zones))}" if zones else "there are none"
        raise MeterError(f"{root}: expected zones named package-0 or psys, {there}; choose another [meter] source")
    return [Domain(name, zones[name] / "energy_uj", _range_uj(zones[name])) for name in names]


def _zones(root: Path) -> dict[str, Path]:
    """Return the top zones by name, the number of a zone says nothing. MMIO repeats what MSR has: first come wins."""
    try:
        entries = sorted(root.iterdir(), key=lambda entry: ("mmio" in entry.name, entry.name))
    except FileNotFoundError:
        raise MeterError(
            f"{root} is not there: this kernel has no RAPL (containers hide it, Arm and RISC-V have none); "
            "choose another [meter] source, or set meter.rapl_root"
        ) from None
    except OSError as error:
        raise MeterError(f"{root} cannot be listed: {error.strerror}") from None
    zones: dict[str, Path] = {}
    for entry in entries:
        if entry.name.count(":") == 1:  # control types have none, children have two
            with suppress(OSError):
                zones.setdefault((entry / "name").read_text(encoding="ascii").strip(), entry)
    return zones


def _range_uj(zone: Path) -> int:
    path = zone / "max_energy_range_uj"
    try:
        range_uj = int(path.read_text(encoding="ascii"))
    except OSError as error:
        raise MeterError(f"{path} cannot be read: {error.strerror}; without it a wrap looks like a reset") from None
    except ValueError:
        range_uj = 0
    if range_uj <= 0:
        raise MeterError(f"{path}: expected a count of microjoules above 0")
    return range_uj


def _check_period(domain: Domain, period_ms: int) -> None:
    """Refuse a period in which a counter could wrap twice, even when one reading in between is missed."""
    longest_ms = domain.range_uj // (2 * POWER_MAX_W * 1_000)
    if period_ms > longest_ms:
        raise MeterError(
            f"meter.period_ms = {period_ms} is too long for {domain.name}, which begins anew after "
            f"{domain.range_uj // 1_000_000} J: use at most {longest_ms}"
        )


def _denied(counter: Path) -> MeterError:
    try:
        group = grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        group = str(os.getegid())
    return MeterError(
        f"{counter} may not be read by user {os.geteuid()}: since Linux 5.10 it is root's alone. For now: "
        f"`sudo chgrp {group} {counter} && sudo chmod 0440 {counter}`; for good, one line in "
        '/etc/udev/rules.d/60-paceline.rules: ACTION=="add", SUBSYSTEM=="powercap", KERNEL=="intel-rapl:*", '
        f'RUN+="/bin/chgrp {group} /sys%p/energy_uj", RUN+="/bin/chmod 0440 /sys%p/energy_uj"'
    )
