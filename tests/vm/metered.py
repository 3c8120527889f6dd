# SPDX-License-Identifier: Apache-2.0
"""The agent's own measuring, in the guest: each source it has, over loads whose joules the test module knows.

All sources measure at the same time, each over the same three loads. A source that this agent does not have is told as
absent.
"""

from __future__ import annotations

import select
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from paceline import machine as m
from paceline.settings import load
from paceline_agent import meters
from paceline_agent.joules import Joules
from paceline_agent.meters import MeterSettings
from tests.vm.bench import Rail, bus_number

WINDOW_S = 3.0
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Metered:
    """A source, its settings, and the rails whose joules it is to tell."""

    source: str
    settings: str  # the lines below [meter]; {bus} is the number of the adapter
    rails: tuple[Rail, ...]
    volts: float = 5.0
    amperes: float = 1.0  # the loads below are multiples of it
    keys: dict[str, object] = field(default_factory=dict)


METERED = {
    "rapl": Metered("rapl", "", (Rail("package-0"),), amperes=40.0),  # 200 W: wraps every 2.5 s
    "ina219": Metered("ina219", "i2c_bus = {bus}\naddress = 0x40\nshunt_ohm = 0.1", (Rail("40"),)),
}

# (ms, share of the amperes), again and again. Bursts are faster than any source reads, steps are slower.
LOADS = {
    "steady": ((1000, 1.0),),
    "bursty": ((13, 1.25), (19, 0.25)),
    "stepped": ((900, 0.4), (700, 1.2), (1100, 0.8)),
}


def metered() -> dict[str, object]:
    """Return source -> load -> what the agent measured and what is true, or source -> why it is absent."""
    found: dict[str, object] = {}
    with ExitStack() as life:
        joules: dict[str, Joules] = {}
        for name, what in METERED.items():
            if what.source not in meters.SOURCES:
                found[name] = {"absent": f"paceline_agent.meters has no {what.source}"}
                continue
            text = f'source = "{what.source}"\n{what.settings.format(bus=bus_number())}\n'
            joules[name] = life.enter_context(Joules(load(text, MeterSettings)))
            found[name] = {"source": joules[name].source}
        for pattern, shares in LOADS.items():
            for name in joules:
                _set(METERED[name], shares)
            for name, measured in _window(joules).items():
                measured |= _truth(METERED[name], int(measured["t0_us"]), int(measured["t1_us"]))
                found[name][pattern] = measured  # type: ignore[index]
        for name in joules:
            for rail in METERED[name].rails:
                rail.load([])
    return found


def _set(what: Metered, shares: tuple[tuple[int, float], ...]) -> None:
    steps = [(ms * 1000, round(share * what.amperes * 1e6), round(what.volts * 1000)) for ms, share in shares]
    for rail in what.rails:
        rail.load(steps)


def _window(joules: dict[str, Joules]) -> dict[str, dict[str, object]]:
    """Measure WINDOW_S with each meter. Windows begin once each has read something under the present load."""
    _pump(joules, time.monotonic() + 0.5)
    t0_us = _now_us()
    for one in joules.values():
        one.open(t0_us)
    _pump(joules, time.monotonic() + WINDOW_S)
    t1_us = _now_us()
    for one in joules.values():
        one.measure_split("vm", 1, t1_us)
    answers: dict[str, dict[str, object]] = {}
    until = time.monotonic() + PATIENCE_S
    while len(answers) < len(joules):
        if time.monotonic() > until:
            raise TimeoutError(f"no joules from {joules.keys() - answers.keys()}: {[j.trouble for j in joules.values()]}")
        _pump(joules, time.monotonic() + 0.05)
        for name, one in joules.items():
            for event in one.settled():
                if isinstance(event, m.SplitMeasured):
                    e = event.energy
                    answers[name] = {
                        "t0_us": t0_us, "t1_us": t1_us, "energy_uj": e.total_uj, "bound_uj": e.bound_uj,
                        "span_us": e.span_us, "covered_us": e.covered_us, "flags": e.flags, "trouble": one.trouble,
                    }  # fmt: skip
    return answers


def _pump(joules: dict[str, Joules], until_s: float) -> None:
    """Take readings as they come, as the agent's loop does."""
    while (left_s := until_s - time.monotonic()) > 0:
        for one in select.select(list(joules.values()), [], [], left_s)[0]:
            one.drain()


def _truth(what: Metered, t0_us: int, t1_us: int) -> dict[str, object]:
    pairs = [(rail.truth(t0_us), rail.truth(t1_us)) for rail in what.rails]
    return {
        "delivered_uj": sum(after.delivered_nj - before.delivered_nj for before, after in pairs) / 1000,
        "converted_uj": sum(after.converted_nj - before.converted_nj for before, after in pairs) / 1000,
    }


def _now_us() -> int:
    return time.monotonic_ns() // 1000
