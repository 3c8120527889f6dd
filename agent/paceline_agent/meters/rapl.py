# SPDX-License-Identifier: Apache-2.0
"""The processor's own joule counters (Intel and AMD RAPL) through Linux powercap, all packages as one count.

Counted is what flows into the packages (sockets): cores and graphics are inside them and never added again; memory
(`dram`) and the rest of the board are not in it, unless [meter] domains asks for dram. `psys`, the whole platform,
stands in where there is no package. A failed reading is no reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paceline_agent.cadence import Rhythm
from paceline_agent.frozen import RAPL_STILL_US
from paceline_agent.meters import POWERCAP, Count, MeterError, MeterSettings, sysfs
from paceline_agent.meters.counting import POWER_MAX_W, CounterSum, asleep_us
from paceline_agent.meters.findings import Finding, Where, refused
from paceline_agent.meters.rapl_zones import Domain, Zone, find_domains

UPDATE_US = 1_000  # the processor moves its counters about once a millisecond
STILL_S = RAPL_STILL_US / 1e6
LOOK_S = 0.002
TWIN_UJ = 2 * POWER_MAX_W * UPDATE_US  # by so much may one counter seem to differ from itself, read a moment later


class Rapl:
    """Readings are counts: the sum over all domains, unwrapped, from an arbitrary base on."""

    def __init__(
        self, settings: MeterSettings, now_us: int, asleep: Callable[[], int] = asleep_us,
        timer_us: Callable[[], int] = sysfs.timer_us,
    ) -> None:  # fmt: skip
        del now_us  # a counter has no use for the time before its first reading
        self._root = root_of(settings)
        self._kinds: Sequence[str] = settings.domains
        self._asleep, self._timer_us = asleep, timer_us
        self._domains = find_domains(self._root, self._kinds)
        if settings.period_ms is not None:
            for zone in self._zones():
                _check_period(zone, settings.period_ms)
        self.rhythm = Rhythm(UPDATE_US, longest_us=1000 * min(map(_longest_ms, self._zones())))
        self.source = "rapl/" + "+".join(domain.name for domain in self._domains)
        self._apart: set[str] = set()  # domains whose dies were seen to count each its own
        self._lost = False
        self._begin()
        self._counts()  # what cannot be read is told at the start

    def read(self, now_us: int) -> list[Count]:
        """Return one count, two with the first one. Raises MeterError."""
        if not self._sum.is_due(now_us):
            return []  # the counter has not moved yet
        called_us = self._timer_us()
        counts_uj, begin_us, end_us = self._counts()
        mirrors = self._mirrors(counts_uj)
        half_us = (end_us - begin_us) // 2
        t_us = now_us + begin_us - called_us + half_us
        return self._sum.add(t_us, counts_uj, mirrors, ("mirrored",) if mirrors else (), half_us)

    def activity(self, t_us: int, active: bool) -> None:
        """A counter has no use for it."""

    def close(self) -> None:
        """Nothing is held open."""

    def _begin(self) -> None:
        self._sum = CounterSum([zone.counter for zone in self._zones()], UPDATE_US, self._asleep)

    def _zones(self) -> Iterator[Zone]:
        return (zone for domain in self._domains for zone in domain.zones)

    def _counts(self) -> tuple[list[int], int, int]:
        """Read all zones or none; return counts, and when that began and ended by the timer.

        A base outlives a failed read, but not a counter that was out of sight.
        """
        try:
            if self._lost or not all(zone.is_itself() for zone in self._zones()):
                self._find_again()
            begin_us = self._timer_us()
            return [_count_uj(zone) for zone in self._zones()], begin_us, self._timer_us()
        except sysfs.GoneError:
            self._sum.forget()
            self._lost = True
            raise
        except sysfs.DeniedError:
            self._sum.forget()
            raise

    def _find_again(self) -> None:
        """A counter that was gone may come back under another number, but not as another set."""
        found = find_domains(self._root, self._kinds)
        was, now = ([(domain.name, len(domain.zones)) for domain in each] for each in (self._domains, found))
        if now != was:
            names = [", ".join(name for name, _ in each) for each in (now, was)]
            raise MeterError(f"{self._root} has {names[0]} now, where it had {names[1]}", "start again")
        self._domains, self._lost = found, False

    def _mirrors(self, counts_uj: Sequence[int]) -> set[int]:
        """Return the places of counters that repeat another die's: equal at this instant and at each one before."""
        mirrors: set[int] = set()
        place = 0
        for domain in self._domains:
            places = range(place, place + len(domain.zones))
            place += len(domain.zones)
            values = [counts_uj[each] for each in places]
            if max(values) - min(values) > TWIN_UJ:
                self._apart.add(domain.name)
            if domain.name not in self._apart:
                mirrors |= set(places[1:])
        return mirrors


def root_of(settings: MeterSettings) -> Path:
    """Return the folder of the zones."""
    if settings.rapl_root != POWERCAP:
        return Path(settings.rapl_root)
    return Path(settings.sysfs_root) / "class" / "powercap"


def find(where: Where) -> list[Finding]:
    """Tell whether this processor counts its joules, and for whom."""
    root = where.sysfs_root / "class" / "powercap"
    try:
        domains = find_domains(root)
        for domain in domains:
            for zone in domain.zones:
                _count_uj(zone)
    except MeterError as error:
        return [refused("rapl", str(root), error)]
    name = "+".join(domain.name for domain in domains)
    about = "the processor's own counters: packages without memory and board"
    extra = [kind for kind in ("dram", "psys") if _has(root, kind)]
    todo = f"meter.domains can choose {' and '.join(extra)} too" if extra else ""
    if _stands_still(domains):
        return [Finding("meter", "rapl", name, False, f"{about}; it stands still, which it cannot: frozen")]
    return [Finding("meter", "rapl", name, True, about, todo)]


def _stands_still(domains: Sequence[Domain]) -> bool:
    """Return whether no counter moves, which moves once a millisecond even when nothing is done."""
    zones = [zone for domain in domains for zone in domain.zones]
    before = [_count_uj(zone) for zone in zones]
    end_s = time.monotonic() + STILL_S
    while time.monotonic() < end_s:
        if [_count_uj(zone) for zone in zones] != before:
            return False
        time.sleep(LOOK_S)
    return True


def _has(root: Path, kind: str) -> bool:
    try:
        return bool(find_domains(root, [kind]))
    except MeterError:
        return False


def _count_uj(zone: Zone) -> int:
    try:
        text = sysfs.read_text(zone.file)
    except sysfs.DeniedError:
        raise _denied(zone.file) from None
    range_uj = zone.counter.range_uj or 0
    if not text.isdecimal() or int(text) > range_uj:
        raise MeterError(f"{zone.file}: expected a count of microjoules within 0..{range_uj}, got {text!r}")
    return int(text)


def _check_period(zone: Zone, period_ms: int) -> None:
    """Refuse a period in which a counter could wrap twice, even when one reading in between is missed."""
    range_uj, longest_ms = zone.counter.range_uj or 0, _longest_ms(zone)
    if period_ms > longest_ms:
        raise MeterError(
            f"meter.period_ms = {period_ms} is too long for {zone.counter.name}, which begins anew after "
            f"{range_uj // 1_000_000} J: use at most {longest_ms}"
        )


def _longest_ms(zone: Zone) -> int:
    return (zone.counter.range_uj or 0) // (2 * POWER_MAX_W * 1_000)


def _denied(counter: Path) -> sysfs.DeniedError:
    group = sysfs.own_group()
    return sysfs.denied(
        counter,
        ": since Linux 5.10 it is root's alone",
        'ACTION=="add", SUBSYSTEM=="powercap", KERNEL=="intel-rapl:*", '
        f'RUN+="/bin/chgrp {group} /sys%p/energy_uj", RUN+="/bin/chmod 0440 /sys%p/energy_uj"',
    )
