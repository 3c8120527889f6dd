# SPDX-License-Identifier: Apache-2.0
"""The agent's own measuring, in the guest: each source it has, over loads whose joules the test module knows.

All sources measure at the same time, each over the same loads, some of them with a fault. A source that this agent does
not have is told as absent.
"""

from __future__ import annotations

import importlib
import math
import os
import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

from paceline import machine as m
from paceline.settings import load
from paceline_agent import meters
from paceline_agent.joules import Joules
from paceline_agent.meters import Count, Meter, MeterError, MeterSettings, Reading

from .bench import Rail, bus_number, fault, transferred

WINDOW_S = 3.0
FAULT_WINDOW_S = 2.0
PATIENCE_S = 30.0
NOBODY = 65534
RARE = 1e-9  # how often chance alone may take a sampled load further off than allowed
CLOCK = 0.1  # by which a conversion may be longer or shorter than a source takes it to be

Load = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Metered:
    """A source, its settings, and the rails whose joules it is to tell."""

    source: str
    settings: str  # the lines below [meter]; {bus} is the number of the adapter
    rails: tuple[Rail, ...]
    amperes: float = 0.9373  # at 5 V, between two steps of each chip; the loads below are shares of it
    chip: int | None = None  # faults can be put upon it


VOLTS = 5.0
# Periods are set: on an emulated processor the costs of a reading say nothing of a board's.
METERED = {
    "rapl": Metered("rapl", "period_ms = 100", (Rail("package-0"),), amperes=40.0),  # 200 W: wraps every 2.5 s
    "ina219": Metered("ina219", "bus = {bus}\naddress = 0x40\nshunt_ohm = 0.1", (Rail("40"),), chip=0x40),
    "ina3221": Metered(
        "ina3221",
        "period_ms = 26\nbus = {bus}\naddress = 0x41\nshunt_ohm = 0.1\nrails = [{{channel = 1}}, {{channel = 3}}]",
        (Rail("41", "1"), Rail("41", "3")),
        chip=0x41,
    ),
    "hwmon, ina219": Metered(
        "hwmon", 'period_ms = 100\nlabels = ["ina219@{bus}-0044/ch1"]', (Rail("44"),), amperes=3.137
    ),
    "hwmon, ina3221": Metered(
        "hwmon",
        'period_ms = 100\nlabels = ["ina3221@{bus}-0042/ch1", "ina3221@{bus}-0042/ch2"]',
        (Rail("42", "1"), Rail("42", "2")),
        amperes=3.137,
    ),
}

# (ms, share of the amperes), again and again. Bursts are faster than any source reads, steps are slower.
LOADS: dict[str, Load] = {
    "steady": ((1000, 1.0),),
    "bursty": ((13, 1.25), (19, 0.25)),
    "stepped": ((900, 0.4), (700, 1.2), (1100, 0.8)),
}
FAULTS: dict[str, tuple[tuple[str, int], ...]] = {  # (file, value) put upon the chip one after the other
    "nack": (("nack", 0xFFFFFFFF), ("nack", 0)),
    "reset": (("reset", 1),),
    "stuck": (("stuck", 2), ("stuck", 0)),
    "slow": (("slow_us", 3000), ("slow_us", 0)),
    "clock": (("clock_permille", 1100), ("clock_permille", 900), ("clock_permille", 1000)),  # as far as it may be off
    "SDA high": (("forced", 0xFFFF), ("forced", 0x10000)),
    "SDA low": (("forced", 0x0000), ("forced", 0x10000)),
}


class Recorded:
    """A meter whose readings are kept as well."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.readings: list[Reading | Count] = []
        self.took_us: list[int] = []

    def read(self, now_us: int) -> Sequence[Reading | Count]:
        """Read, and keep what came and how long it took."""
        began_ns = time.monotonic_ns()
        readings = self._meter.read(now_us)
        self.took_us.append((time.monotonic_ns() - began_ns) // 1000)
        self.readings += readings
        return readings

    def __getattr__(self, name: str) -> object:
        return getattr(self._meter, name)


class Measuring:
    """One source at work. A context manager."""

    def __init__(self, what: Metered) -> None:
        self.what = what
        text = f'source = "{what.source}"\n{what.settings.format(bus=bus_number())}\n'
        self.joules = Joules(load(text, MeterSettings), self._open)

    def __enter__(self) -> Measuring:
        self.joules.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        self.joules.__exit__(None, None, None)

    def _open(self, settings: MeterSettings, now_us: int) -> Meter:
        module, attribute = meters.SOURCES[settings.source].split(":")
        meter: Meter = getattr(importlib.import_module(module), attribute)(settings, now_us)
        self.recorded = Recorded(meter)
        return self.recorded  # type: ignore[return-value]

    def set(self, pattern: Load) -> None:
        """Let all rails draw this from now on."""
        self.steps = [(ms * 1000, round(share * self.what.amperes * 1e6), round(VOLTS * 1000)) for ms, share in pattern]
        for rail in self.what.rails:
            rail.load(self.steps)

    def settled(self) -> dict[str, object] | None:
        """Return what has been measured, once it is final."""
        for event in self.joules.settled():
            if isinstance(event, m.SplitMeasured):
                e = event.energy
                return {
                    "energy_uj": e.total_uj, "bound_uj": e.bound_uj, "span_us": e.span_us, "covered_us": e.covered_us,
                    "flags": e.flags,
                }  # fmt: skip
        return None

    def truth(self, t0_us: int, t1_us: int) -> dict[str, object]:
        """Return the module's truth about a window, and what no reader of these readings could have known of it."""
        pairs = [(rail.truth(t0_us), rail.truth(t1_us)) for rail in self.what.rails]
        took_us = sorted(self.recorded.took_us)
        return self._transferred() | {
            "read_us": [took_us[len(took_us) // 2], took_us[-1]],  # median and longest
            "delivered_uj": sum(after.delivered_nj - before.delivered_nj for before, after in pairs) / 1000,
            "converted_uj": sum(after.converted_nj - before.converted_nj for before, after in pairs) / 1000,
            "unseen_uj": self._unseen_uj(t0_us, t1_us),
        }

    def _transferred(self) -> dict[str, object]:
        """Return what has gone over the bus since the module was loaded, of a chip that the agent reads itself."""
        if self.what.chip is None:
            return {}
        return {name: transferred(self.what.chip, name) for name in ("transfers", "bytes")}

    def _unseen_uj(self, t0_us: int, t1_us: int) -> float:
        """Return how far a right integration of these readings may be off because the load changed between them."""
        watts = [abs(ua * mv) * 1e-9 * len(self.what.rails) for _, ua, mv in self.steps]
        swing_w = max(watts) - min(watts)
        spans = [(r.t_us, r.t_us) if isinstance(r, Count) else (r.t0_us, r.t1_us) for r in self.recorded.readings]
        edges = sum(_edge_us(spans, t_us) for t_us in (t0_us, t1_us))
        if not spans or isinstance(self.recorded.readings[0], Count):
            return swing_w * edges
        gaps = [(a, b) for (_, a), (b, _) in pairwise(spans) if a < b and a < t1_us and b > t0_us]
        blind_us = sum(b - a for a, b in gaps if self._changes_within(a - 10_000, b + 10_000))
        n = sum(t0_us <= a <= t1_us for a, _ in spans)
        chance_us = (t1_us - t0_us) * math.sqrt(math.log(2 / RARE) / (2 * max(1, n)))  # Hoeffding's bound
        return swing_w * (edges + min(blind_us, chance_us))

    def _changes_within(self, from_us: int, to_us: int) -> bool:
        period_us = sum(us for us, _, _ in self.steps)
        at_us = self.what.rails[0].epoch_us()
        while at_us + period_us < from_us:
            at_us += period_us
        while at_us <= to_us:
            for us, _, _ in self.steps:
                if from_us <= at_us <= to_us:
                    return True
                at_us += us
        return False


def _edge_us(spans: Sequence[tuple[int, int]], t_us: int) -> float:
    """Return what a cut between readings can be off, in time at the whole swing of the load."""
    for a, b in spans:
        if a < t_us < b:
            return (t_us - a) * (b - t_us) / (b - a) + CLOCK * (b - a)
    knots = sorted({t for span in spans for t in span})
    a, b = max((t for t in knots if t <= t_us), default=t_us), min((t for t in knots if t >= t_us), default=t_us)
    return (t_us - a) * (b - t_us) / (b - a) if a < b else 0.0


def metered(names: Sequence[str] = tuple(METERED)) -> dict[str, object]:
    """Return source -> load or fault -> what the agent measured and what is true; or source -> why it is absent."""
    found: dict[str, dict[str, object]] = {}
    with ExitStack() as life:
        at_work: dict[str, Measuring] = {}
        for name in names:
            what = METERED[name]
            if what.source not in meters.SOURCES:
                found[name] = {"absent": f"paceline_agent.meters has no {what.source}"}
                continue
            at_work[name] = life.enter_context(Measuring(what))
            found[name] = {"source": at_work[name].joules.source}
        for label, pattern in LOADS.items():
            for name, measured in _window(at_work, pattern, (), WINDOW_S).items():
                found[name][label] = measured
        with_chip = {name: one for name, one in at_work.items() if one.what.chip is not None}
        for label, steps in FAULTS.items() if with_chip else ():
            for name, measured in _window(with_chip, LOADS["steady"], steps, FAULT_WINDOW_S).items():
                found[name][label] = measured
        for one in at_work.values():
            one.set(())
    return dict(found)


def refused(names: Sequence[str] = tuple(METERED)) -> dict[str, object]:
    """Return source -> what a user without rights is told when it is opened; None: it opens."""
    found: dict[str, object] = {}
    for name in names:
        what = METERED[name]
        if what.source not in meters.SOURCES:
            continue
        with Measuring(what):  # once with rights: all modules are loaded now, from folders that may be closed later
            pass
        os.seteuid(NOBODY)
        try:
            with Measuring(what):
                found[name] = None
        except MeterError as error:
            found[name] = str(error)
        finally:
            os.seteuid(0)
    return found


def _window(
    at_work: dict[str, Measuring], pattern: Load, faults: Sequence[tuple[str, int]], seconds: float
) -> dict[str, dict[str, object]]:
    """Measure for so long with all meters at once, beginning when each has read something under the present load."""
    for one in at_work.values():
        one.set(pattern)
        one.recorded.readings.clear()
        one.recorded.took_us.clear()
    _pump(at_work, 0.5)
    t0_us = _edge(at_work)
    for one in at_work.values():
        one.joules.open(t0_us)
    for name, value in faults:
        _pump(at_work, seconds / (len(faults) + 1))
        for one in at_work.values():
            if one.what.chip is not None:
                fault(one.what.chip, name, value)
    _pump(at_work, seconds / (len(faults) + 1))
    t1_us = _edge(at_work)
    for one in at_work.values():
        one.joules.measure_split("vm", 1, t1_us)
    answers: dict[str, dict[str, object]] = {}
    until = time.monotonic() + PATIENCE_S
    while len(answers) < len(at_work):
        if time.monotonic() > until:
            raise TimeoutError(str({name: one.joules.trouble for name, one in at_work.items() if name not in answers}))
        _pump(at_work, 0.05)
        for name, one in at_work.items():
            measured = one.settled()
            if measured is not None:
                measured |= one.truth(t0_us, t1_us)
                answers[name] = measured | {"readings": len(one.recorded.readings), "trouble": one.joules.trouble}
    return answers


def _edge(at_work: dict[str, Measuring]) -> int:
    """Return the present, an edge: the agent reads at once where work ends, and so do these."""
    t_us = time.monotonic_ns() // 1000
    for one in at_work.values():
        one.joules.activity(t_us, False)
    return t_us


def _pump(at_work: dict[str, Measuring], seconds: float) -> None:
    """Take readings as they come, as the agent's loop does."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        for one in select.select([one.joules for one in at_work.values()], [], [], left_s)[0]:
            one.drain()
