# SPDX-License-Identifier: Apache-2.0
"""How far integration is off, and whether it says so: simulated sensors over loads whose joules are known exactly.

Simulated is only the sensor: when it looks, over how long, its error and its steps. Bounds, counters, integration and
both uncertainties are what a board uses. `paceline bench energy` runs this as a process and draws it.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from paceline_agent.known_loads import LOADS, Load, Make, bursts, bursty
from paceline_agent.measuring import Measurement, Measuring
from paceline_agent.meters import Count, Reading
from paceline_agent.meters.counting import Counter, CounterSum
from paceline_agent.meters.ina import Spec, bound_uw
from paceline_agent.meters.ina219 import ADC, AVERAGE, SPECS
from paceline_agent.meters.ina3221 import BUS_US, EVERY_US, SHUNT_US, SPEC

WINDOW_S = (2.0, 20.0)  # a round's computing or waiting
MARGIN_S = 1.5  # of readings before and after a window
BUS_MV, SHUNT_UOHM, SHUNT_PPM = 5_000, 100_000, 10_000
CLOCK = 0.1  # of a chip, either way (7.5 of both datasheets)
COVERED, WIDEST = 0.95, 3.0  # DECISIONS 32
IN_STEP = "in step"  # a sensor of which nothing is claimed: it shows why the agent reads at random instants
RAPL_SCALE = 10.0  # a processor draws ten times what a board does
RAPL_UPDATE_US, RAPL_UNIT_UJ, RAPL_RANGE_UJ = 1_000, 61, 262_143_328_850


@dataclass(frozen=True)
class Condition:
    """What a sensor's readings go through."""

    slower: float = 1.0  # times the usual period
    late: float = 0.0  # each reading is late by up to so many periods
    missed: float = 0.0  # share of readings that fail, each by itself
    bursts_missed: float = 0.0  # share of readings at which 2 to 8 in a row begin to fail


CONDITIONS = {
    "as it is": Condition(),
    "five times slower": Condition(slower=5.0),
    "late by up to half a period": Condition(late=0.5),
    "10 % missed": Condition(missed=0.1),
    "missed 2 to 8 in a row": Condition(bursts_missed=0.03),
}


@dataclass(frozen=True)
class Look:
    """One look at a load: over which time it is taken as the mean, and over which it was really watched."""

    t0_us: int
    t1_us: int
    seen_us: tuple[int, int]


@dataclass(frozen=True)
class Sensor:
    """A simulated sensor."""

    kind: Literal["interval", "point", "counter"]
    period_us: int
    looks: Callable[[random.Random, float, Condition], Iterator[Look]]
    spec: Spec = SPECS[320]
    step_uv: int = 10  # of the shunt's voltage


def _ina219(dice: random.Random, seconds: float, condition: Condition) -> Iterator[Look]:
    """Conversions follow each other at once, the shunt is watched but for the bus voltage's 0.8 %."""
    clock = dice.uniform(1 - CLOCK, 1 + CLOCK)
    shunt_us, cycle_us = ADC[AVERAGE][1] * clock, (ADC[AVERAGE][1] + ADC[1][1]) * clock * condition.slower
    t_us = dice.uniform(0, cycle_us)
    while t_us < seconds * 1e6:
        begin_us = round(t_us)
        t_us += cycle_us
        yield Look(begin_us, round(t_us), (begin_us, round(begin_us + shunt_us * condition.slower)))


def _ina3221(dice: random.Random, seconds: float, condition: Condition) -> Iterator[Look]:
    """One conversion now and then, a random number of cycles apart, as the agent's source asks for them."""
    clock = dice.uniform(1 - CLOCK, 1 + CLOCK)
    shunt_us, cycle_us = SHUNT_US * clock, (SHUNT_US + BUS_US) * clock
    mean_skip = max(1, round(EVERY_US * condition.slower / (SHUNT_US + BUS_US)))
    t_us = dice.uniform(0, cycle_us)
    while t_us < seconds * 1e6:
        middle_us = round(t_us + shunt_us / 2)
        yield Look(middle_us, middle_us, (round(t_us), round(t_us + shunt_us)))
        late = dice.uniform(0, condition.late * mean_skip)
        t_us += cycle_us * round(dice.randint(max(1, mean_skip - 1), mean_skip + mean_skip // 2) + late)


def _hwmon(dice: random.Random, seconds: float, condition: Condition) -> Iterator[Look]:
    """An instant in each period, at random (SCATTERED)."""
    period_us = 100_000 * condition.slower
    last_us = 0
    for slot in range(int(seconds * 1e6 / period_us)):
        t_us = round((slot + dice.random() + dice.uniform(0, condition.late)) * period_us)
        if t_us - last_us > 1000:
            yield Look(t_us, t_us, (t_us - 500, t_us + 500))
            last_us = t_us


def _in_step(dice: random.Random, seconds: float, condition: Condition) -> Iterator[Look]:
    """An instant in each period, always the same but for lateness: what the agent does not do."""
    period_us = 100_000 * condition.slower
    begin_us = dice.uniform(0, period_us)
    for slot in range(int(seconds * 1e6 / period_us)):
        t_us = round(begin_us + (slot + dice.uniform(0, condition.late)) * period_us)
        yield Look(t_us, t_us, (t_us - 500, t_us + 500))


def _rapl(dice: random.Random, seconds: float, condition: Condition) -> Iterator[Look]:
    """A count each period, as of the counter's last update."""
    t_us, update_us = dice.uniform(0, 100_000), dice.uniform(0, RAPL_UPDATE_US)
    while t_us < seconds * 1e6:
        updated_us = round(t_us - (t_us - update_us) % RAPL_UPDATE_US)
        yield Look(round(t_us), round(t_us), (0, max(0, updated_us)))
        t_us += 100_000 * (condition.slower + dice.uniform(0, condition.late))


SENSORS = {
    "ina219": Sensor("interval", 100_000, _ina219),
    "ina3221": Sensor("point", 100_000, _ina3221, SPEC, 40),
    "hwmon": Sensor("point", 100_000, _hwmon),
    "rapl": Sensor("counter", 100_000, _rapl),
    IN_STEP: Sensor("point", 100_000, _in_step),
}


def _left(looks: Iterator[Look], dice: random.Random, condition: Condition) -> list[Look]:
    """Return the looks that do not fail. First and last do not, so that every window is known."""
    every = list(looks)
    left, failing = every[:1], 0
    for look in every[1:-1]:
        if failing == 0 and condition.bursts_missed and dice.random() < condition.bursts_missed:
            failing = dice.randint(2, 8)
        if failing > 0:
            failing -= 1
        elif dice.random() >= condition.missed:
            left.append(look)
    return left + every[-1:]


@dataclass(frozen=True)
class Trial:
    """One window. Joules."""

    true_j: float
    error_j: float  # of the integration alone: readings without instrument errors
    sampling_j: float | None  # stated
    bound_j: float  # stated
    instrument_j: float  # what the instrument's errors made of it
    off_j: float  # both together, edges between readings included
    grain_j: float  # readings are whole microwatts, energies whole microjoules


def trial(sensor: Sensor, make: Make, condition: Condition, dice: random.Random) -> Trial:
    """Measure one window of one load: by a perfect instrument, and by one with errors within its datasheet's."""
    window_s = math.exp(dice.uniform(*map(math.log, WINDOW_S)))
    margin_s = MARGIN_S * condition.slower
    seconds = window_s + 2 * margin_s
    load = make(dice, seconds=seconds + 1)
    looks = _left(sensor.looks(dice, seconds, condition), dice, condition)
    scale = RAPL_SCALE if sensor.kind == "counter" else 1.0
    edges_us = (round(margin_s * 1e6), round((margin_s + window_s) * 1e6))
    on_us = edges_us
    if sensor.kind != "point":  # where an edge falls between readings, the bound answers for it and not sampling
        ends_us = [look.t1_us for look in looks]
        on_us = (_nearest(ends_us, edges_us[0]), _nearest(ends_us, edges_us[1]))
    period_us = round(sensor.period_us * condition.slower)
    perfect = _perfect(sensor, load, looks)
    exact = measure(perfect, on_us, period_us)
    between = exact if on_us == edges_us else measure(perfect, edges_us, period_us)
    real = measure(_real(sensor, load, looks, dice), edges_us, period_us)
    true_j, true_between_j = (scale * _drawn_j(load, *edges) for edges in (on_us, edges_us))
    assert exact.energy_j is not None
    assert between.energy_j is not None
    assert real.energy_j is not None
    assert real.bound_j is not None
    return Trial(
        true_j, exact.energy_j - true_j, exact.sampling_j, real.bound_j, real.energy_j - between.energy_j,
        real.energy_j - true_between_j, (2 + window_s) * 1e-6,
    )  # fmt: skip


def measure(readings: Sequence[Reading | Count], edges_us: tuple[int, int], period_us: int) -> Measurement:
    """Return what a window over readings says, opened and closed as they come."""
    measuring = Measuring("simulated", period_us)
    before = [each for each in readings if _end_us(each) <= edges_us[0]]
    for reading in before:
        measuring.add(reading)
    window = measuring.open(edges_us[0])
    measuring.end(window, edges_us[1])
    for reading in readings[len(before) :]:
        if window.is_final:
            break
        measuring.add(reading)
    return measuring.result(window)


def _nearest(times_us: Sequence[int], t_us: int) -> int:
    return min(times_us, key=lambda each: abs(each - t_us))


def _end_us(reading: Reading | Count) -> int:
    return reading.t_us if isinstance(reading, Count) else reading.t1_us


def _drawn_j(load: Load, t0_us: int, t1_us: int) -> float:
    return load.energy_j(t1_us / 1e6) - load.energy_j(t0_us / 1e6)


def _perfect(sensor: Sensor, load: Load, looks: Sequence[Look]) -> list[Reading | Count]:
    if sensor.kind == "counter":
        return [Count(look.t1_us, round(RAPL_SCALE * load.energy_j(look.t1_us / 1e6) * 1e6)) for look in looks]
    taken = [(look.t0_us, look.t1_us) if sensor.kind == "interval" else look.seen_us for look in looks]
    return [
        Reading(look.t0_us, look.t1_us, round(_drawn_j(load, *over) / (over[1] - over[0]) * 1e12))
        for look, over in zip(looks, taken, strict=True)
    ]


def _real(sensor: Sensor, load: Load, looks: Sequence[Look], dice: random.Random) -> list[Reading | Count]:
    """Put errors within the datasheet's upon what was seen: gain and offset of one draw, steps, a doubt in time."""
    if sensor.kind == "counter":
        counters = CounterSum([Counter("package-0", RAPL_RANGE_UJ, RAPL_UNIT_UJ)], RAPL_UPDATE_US, asleep=lambda: 0)
        begun_uj = dice.randrange(RAPL_RANGE_UJ)  # so that some wrap
        counts: list[Reading | Count] = []
        for look in looks:
            total_uj = begun_uj + round(RAPL_SCALE * load.energy_j(look.seen_us[1] / 1e6) * 1e6)
            shown_uj = total_uj % (RAPL_RANGE_UJ + RAPL_UNIT_UJ) // RAPL_UNIT_UJ * RAPL_UNIT_UJ
            counts += counters.add(look.t1_us, [shown_uj])
        return counts
    spec = sensor.spec
    gain = 1 + dice.uniform(-1, 1) * spec.shunt_ppm / 1e6
    bus_gain = 1 + dice.uniform(-1, 1) * spec.bus_ppm / 1e6
    ohm = SHUNT_UOHM * (1 + dice.uniform(-1, 1) * SHUNT_PPM / 1e6) / 1e6
    offset_uv = dice.uniform(-1, 1) * (spec.shunt_uv - sensor.step_uv / 2)
    readings: list[Reading | Count] = []
    for look in looks:
        seen_w = _drawn_j(load, *look.seen_us) / (look.seen_us[1] - look.seen_us[0]) * 1e6
        shunt_uv = seen_w / (BUS_MV / 1000) * ohm * 1e6 * gain + offset_uv
        shunt_uv = round(shunt_uv / sensor.step_uv) * sensor.step_uv
        bus_mv = int(BUS_MV * bus_gain) // 4 * 4
        power_uw = shunt_uv * bus_mv * 1000 // SHUNT_UOHM
        error_uw = bound_uw(shunt_uv, bus_mv, SHUNT_UOHM, spec, SHUNT_PPM)
        readings.append(Reading(look.t0_us, look.t1_us, power_uw, error_uw))
    return readings


# What a set of trials says ------------------------------------------------------------------------------------------


def summary(trials: Sequence[Trial]) -> dict[str, float]:
    """Return errors and statements in percent of the joules, and in how many of 100 trials the statements hold."""
    told = [each for each in trials if each.sampling_j is not None]
    errors = sorted(abs(each.error_j) / each.true_j for each in told)
    p95 = errors[math.ceil(0.95 * len(errors)) - 1]
    half = statistics.median((each.sampling_j or 0.0) / each.true_j for each in told)
    grain = statistics.median(each.grain_j / each.true_j for each in told)
    return {
        "trials": len(trials),
        "told": len(told),
        "error_median_percent": 100 * statistics.median(errors),
        "error_95_percent": 100 * p95,
        "sampling_percent": 100 * half,
        "covered_percent": _percent([abs(each.error_j) <= (each.sampling_j or 0.0) + each.grain_j for each in told]),
        "width": _width(told),
        "median_width_over_95": half / max(p95, grain),
        "bound_percent": 100 * statistics.median(each.bound_j / each.true_j for each in trials),
        "bound_held_percent": _percent([abs(each.instrument_j) <= each.bound_j for each in trials]),
        "both_held_percent": _percent([abs(e.off_j) <= e.bound_j + (e.sampling_j or 0.0) for e in trials]),
    }


def broken(row: Mapping[str, Any]) -> list[str]:
    """Return the claims of DECISIONS 32 that a summary contradicts. Chance alone breaks the first in 1 of 100 rows."""
    chance = 100 * 2.33 * math.sqrt(COVERED * (1 - COVERED) / row["told"])
    claims = {
        "covers": row["covered_percent"] >= 100 * COVERED - chance,
        "not wide": row["width"] <= WIDEST,
        "bound holds": row["bound_held_percent"] == 100.0,
    }
    return [claim for claim, holds in claims.items() if not holds]


def _width(trials: Sequence[Trial]) -> float:
    """Return by which factor all statements could shrink and still hold the truth in 95 of 100 trials.

    For windows of one kind that is half-width / 95th percentile of the error; here short and long ones are mixed.
    """
    stated = [(abs(each.error_j), each.sampling_j, each.grain_j) for each in trials if each.sampling_j]
    shares = sorted(
        max(error_j, grain_j) / sampling_j for error_j, sampling_j, grain_j in stated if sampling_j > grain_j
    )
    return 1 / shares[math.ceil(0.95 * len(shares)) - 1] if shares else 1.0


def _percent(held: Sequence[bool]) -> float:
    return 100 * sum(held) / len(held)


def _row(name: str, how: Condition, make: Make, dice: random.Random, trials: int) -> dict[str, Any]:
    row = summary([trial(SENSORS[name], make, how, dice) for _ in range(trials)])
    return {"sensor": name, **row, "broken": broken(row)}


def table(trials: int, seed: int) -> list[dict[str, Any]]:
    """Return one row for each sensor the agent has, condition and load."""
    return [
        {"condition": how, "load": kind}
        | _row(name, CONDITIONS[how], LOADS[kind], _dice(seed, name, how, kind), trials)
        for name in SENSORS
        if name != IN_STEP
        for how in CONDITIONS
        for kind in LOADS
    ]


def sweeps(trials: int, seed: int) -> list[dict[str, Any]]:
    """Return what the plot shows: how errors and statements go with rate, misses, bursts, and lateness."""
    runs: list[tuple[str, float, str, Condition, Make]] = []
    for name in ("ina219", "ina3221", "hwmon", "rapl"):
        runs += [("rate", x, name, Condition(slower=x), bursty) for x in (0.5, 1.0, 2.0, 5.0, 10.0)]
        runs += [("missed", x, name, Condition(missed=x), bursty) for x in (0.0, 0.05, 0.1, 0.2, 0.4)]
    for name in ("ina219", "ina3221", "hwmon", IN_STEP):
        for x in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
            runs.append(("bursts", x, name, Condition(), partial(bursts, period_s=x)))
    for name in ("hwmon", IN_STEP):
        for x in (0.0, 0.05, 0.1, 0.25, 0.5):
            runs.append(("late", x, name, Condition(late=x), partial(bursts, period_s=0.1)))
    return [
        {"sweep": what, "x": x} | _row(name, how, make, _dice(seed, what, x, name), trials)
        for what, x, name, how, make in runs
    ]


def _dice(*what: object) -> random.Random:
    return random.Random(" ".join(map(str, what)))


def main() -> int:
    """Read {"trials", "seed"} from stdin, write the rows to stdout as JSON."""
    order = json.loads(sys.stdin.readline())
    trials, seed = order["trials"], order["seed"]
    print(json.dumps({"rows": table(trials, seed), "sweeps": sweeps(max(20, trials // 3), seed)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
