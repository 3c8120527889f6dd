# SPDX-License-Identifier: Apache-2.0
"""Vectors of the energy integrator, from a replica in exact fractions that is rounded down once, at the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from tests.vectors.rows import write

INIT, INTERVAL, POINT, COUNTER, WINDOW = range(5)
OK, ARGUMENT, ORDER, KIND, NOT_FINAL, FORGOTTEN = 0, -1, -8, -9, -10, -11
UNKNOWN, GAP, RESET = 1, 2, 4
POWER_MAX_UW = 100_000_000_000
SPAN_MAX_US = 1 << 42


def scaled(whole: int, dt: int, length: int) -> int:
    """Return whole * dt / length rounded down; above 2^32 us in steps of a power of two, as in C."""
    shift = max(0, length.bit_length() - 32) if dt < length else 0
    rest = whole % length
    return whole // length * dt + (((rest >> shift) * (dt >> shift) // (length >> shift)) << shift)


@dataclass
class Segment:
    """From the knot before to t_us: energy as a function of time, and what went with it."""

    t_us: int
    energy_uj: Fraction  # cumulative, at t_us
    bound_uj: Fraction
    uncovered_us: int
    begin_uw: int = 0
    end_uw: int = 0
    linear: bool = False
    resets: int = 0


@dataclass
class Replica:
    """As pl_integrator, with all knots kept (the ring's length only decides what is forgotten)."""

    period_us: int
    modulus_uj: int
    max_power_uw: int
    n_knots: int
    kind: int = 0
    knots: list[Segment] = field(default_factory=list)
    last_uw: int = 0
    last_error_uw: int = 0
    low_uw: int = 0
    high_uw: int = 0
    count_uj: int = 0

    def refused(self, kind: int, t_us: int, power_uw: int = 0, error_uw: int = 0) -> int:
        if self.kind not in (0, kind):
            return KIND
        if abs(power_uw) > POWER_MAX_UW or error_uw > POWER_MAX_UW:
            return ARGUMENT
        if self.knots and not 0 < t_us - self.knots[-1].t_us <= SPAN_MAX_US:
            return ORDER
        self.kind = kind
        return OK

    def notice(self, power_uw: int, error_uw: int) -> None:
        self.low_uw = min(self.low_uw, power_uw) if self.knots else power_uw
        self.high_uw = max(self.high_uw, power_uw) if self.knots else power_uw
        self.last_uw, self.last_error_uw = power_uw, error_uw

    def extend(self, t_us: int, begin_uw: int, end_uw: int, error_uw: int, gap: bool, resets: int = 0) -> None:
        a = self.knots[-1]
        length = t_us - a.t_us
        mean = Fraction(begin_uw + end_uw, 2)
        hidden = max(self.high_uw - mean, mean - self.low_uw) if gap else Fraction(0)
        energy = a.energy_uj + mean * length / 10**6
        bound = a.bound_uj + (error_uw + hidden) * length / 10**6
        uncovered = a.uncovered_us + (length if gap else 0)
        self.knots.append(Segment(t_us, energy, bound, uncovered, begin_uw, end_uw, resets=a.resets + resets))

    def gap(self, t_us: int) -> bool:
        return t_us - self.knots[-1].t_us > 3 * self.period_us

    def interval(self, t0_us: int, t1_us: int, power_uw: int, error_uw: int) -> int:
        status = self.refused(INTERVAL, t1_us, power_uw, error_uw) if t0_us < t1_us else ORDER
        if status != OK:
            return status
        last_uw, worst_uw = self.last_uw, max(error_uw, self.last_error_uw)
        self.notice(power_uw, error_uw)
        if not self.knots:
            self.knots.append(Segment(t0_us, Fraction(0), Fraction(0), 0))
        elif t0_us > self.knots[-1].t_us:
            self.extend(t0_us, last_uw, power_uw, worst_uw, self.gap(t0_us))
        self.extend(t1_us, power_uw, power_uw, error_uw, False)
        return OK

    def point(self, t_us: int, power_uw: int, error_uw: int) -> int:
        status = self.refused(POINT, t_us, power_uw, error_uw)
        if status != OK:
            return status
        last_uw, worst_uw = self.last_uw, max(error_uw, self.last_error_uw)
        self.notice(power_uw, error_uw)
        if not self.knots:
            self.knots.append(Segment(t_us, Fraction(0), Fraction(0), 0))
        else:
            self.extend(t_us, last_uw, power_uw, worst_uw, self.gap(t_us))
        return OK

    def counter(self, t_us: int, count_uj: int) -> int:
        if self.kind in (0, COUNTER) and self.modulus_uj and count_uj >= self.modulus_uj:
            return ARGUMENT
        status = self.refused(COUNTER, t_us)
        if status != OK:
            return status
        if not self.knots:
            self.knots.append(Segment(t_us, Fraction(0), Fraction(0), 0))
        else:
            a = self.knots[-1]
            length = t_us - a.t_us
            step = count_uj - self.count_uj
            if step < 0 and self.modulus_uj:
                step += self.modulus_uj
            most = floor(Fraction(self.max_power_uw * length, 10**6))
            if 0 <= step <= most:
                uncovered = a.uncovered_us + (length if self.gap(t_us) else 0)
                self.last_uw = step * 10**6 // length
                self.low_uw = min(self.low_uw, self.last_uw) if len(self.knots) > 1 else self.last_uw
                self.high_uw = max(self.high_uw, self.last_uw)
                energy = a.energy_uj + step
                self.knots.append(Segment(t_us, energy, a.bound_uj, uncovered, linear=True, resets=a.resets))
            else:
                self.extend(t_us, self.last_uw, self.last_uw, 0, True, resets=1)
        self.count_uj = count_uj
        return OK

    def at(self, t_us: int) -> tuple[int, int, int, Segment, Segment]:
        """Return whole microjoules, bound and uncovered time at t_us, and the knots around it."""
        k = next(k for k, knot in enumerate(self.knots) if knot.t_us >= t_us)
        b = self.knots[k]
        if b.t_us == t_us:
            return floor(b.energy_uj), floor(b.bound_uj), b.uncovered_us, b, b
        a = self.knots[k - 1]
        dt, length = t_us - a.t_us, b.t_us - a.t_us
        if b.linear:
            energy = a.energy_uj + floor((b.energy_uj - a.energy_uj) * dt / length)
        else:
            # Time squared over length is rounded down to whole microseconds: the one rounding on the way.
            bend = dt * dt // length if length < 1 << 32 else dt
            energy = a.energy_uj + Fraction(2 * b.begin_uw * dt + (b.end_uw - b.begin_uw) * bend, 2 * 10**6)
        bound = floor(a.bound_uj) + scaled(floor(b.bound_uj) - floor(a.bound_uj), dt, length)
        uncovered = a.uncovered_us + (dt if b.uncovered_us > a.uncovered_us else 0)
        return floor(energy), bound, uncovered, a, b

    def window(self, t0_us: int, t1_us: int) -> tuple[int, list[int]]:
        none = [0] * 5
        if t1_us < t0_us:
            return ARGUMENT, none
        if not self.knots or t1_us > self.knots[-1].t_us:
            return NOT_FINAL, none
        oldest = self.knots[max(0, len(self.knots) - self.n_knots)].t_us
        flags = 0
        if t0_us < oldest:
            if len(self.knots) > self.n_knots:
                return FORGOTTEN, none
            flags = UNKNOWN
            if t1_us < oldest:
                return OK, [0, 0, 0, 0, flags]
            t0_us = oldest
        e0, b0, u0, a0, z0 = self.at(t0_us)
        e1, b1, u1, a1, z1 = self.at(t1_us)
        flags |= GAP if u1 > u0 else 0
        flags |= RESET if t1_us > t0_us and z1.resets != a0.resets else 0
        if a0 is a1 and z0 is z1:
            whole = floor(z0.energy_uj) - floor(a0.energy_uj)
            inside = abs(e1 - e0)
            edge = max(inside, max(0, abs(whole) - inside))
        else:
            edge = sum(
                max(abs(e - floor(a.energy_uj)), abs(floor(z.energy_uj) - e))
                for e, a, z in ((e0, a0, z0), (e1, a1, z1))
            )
        known = not flags & UNKNOWN
        return OK, [e1 - e0 if known else 0, t1_us - t0_us - (u1 - u0), b1 - b0, edge if known else 0, flags]


class Script:
    """Drives a replica and writes down each step and what came out."""

    def __init__(self) -> None:
        self.rows: list[list[object]] = []

    def begin(self, period_us: int, modulus_uj: int = 0, max_power_uw: int = 0, n_knots: int = 64) -> None:
        self.replica = Replica(period_us, modulus_uj, max_power_uw or POWER_MAX_UW, n_knots)
        self.rows.append([INIT, [period_us, modulus_uj, max_power_uw, n_knots], OK, [0] * 5])

    def feed(self, op: int, *numbers: int) -> None:
        feed: dict[int, Callable[..., int]] = {
            INTERVAL: self.replica.interval,
            POINT: self.replica.point,
            COUNTER: self.replica.counter,
        }
        status = feed[op](*numbers)
        self.rows.append([op, [*numbers, 0, 0, 0][:4], status, [0] * 5])

    def ask(self, t0_us: int, t1_us: int) -> None:
        self.rows.append([WINDOW, [t0_us, t1_us, 0, 0], *self.replica.window(t0_us, t1_us)])

    def ask_around(self, rng: random.Random, n: int) -> None:
        """Ask for windows that meet, on readings and between them."""
        knots = self.replica.knots[-min(len(self.replica.knots), self.replica.n_knots) :]
        first, last = knots[0].t_us, knots[-1].t_us
        for _ in range(n):
            a, b, c = sorted(rng.choice([rng.randint(first, last), rng.choice(knots).t_us]) for _ in range(3))
            for edges in ((a, b), (b, c), (a, c)):
                self.ask(*edges)


def main() -> None:
    """Write energy."""
    rng, script = random.Random(20240608), Script()
    script.begin(100_000)
    script.ask(0, 10)
    t = 5_000_000
    for k in range(40):
        t += rng.randint(1, 150_000) if k % 9 else rng.randint(400_000, 2_000_000)
        script.feed(POINT, t, rng.randint(-50_000, 12_000_000), rng.randint(0, 90_000))
    script.feed(POINT, t, 1, 0)
    script.feed(INTERVAL, t, t + 5, 1, 0)
    script.feed(POINT, t + 5, POWER_MAX_UW + 1, 0)
    script.feed(POINT, t + SPAN_MAX_US + 1, 1, 0)
    script.ask(0, t)
    script.ask(0, 4)
    script.ask(t, t - 1)
    script.ask(t, t + 1)
    script.ask_around(rng, 20)

    script.begin(68_000, n_knots=32)
    t = 0
    for _ in range(60):
        begin = max(0, t + rng.choice([0, 0, rng.randint(1, 300), rng.randint(-20_000, 0), rng.randint(0, 400_000)]))
        t = begin + rng.randint(60_000, 70_000)
        script.feed(INTERVAL, begin, t, rng.randint(900_000, 9_000_000), 40_000)
    script.ask(0, t)
    script.ask_around(rng, 20)

    script.begin(10_000, modulus_uj=262_143_328_850, max_power_uw=400_000_000)
    t, count = 17, 262_143_000_000
    for k in range(40):
        step = rng.randint(1, 30_000) if k % 11 else 150_000
        t, count = t + step, (count + step * 65) % 262_143_328_850
        script.feed(COUNTER, t, 5 if k == 30 else count)
    script.feed(COUNTER, t + 1, 262_143_328_850)
    script.ask_around(rng, 20)

    script.begin(10_000)  # no modulus: going back is a reset
    for k, count in enumerate([100, 5_000, 9_000, 300, 800, 700, 90_000]):
        script.feed(COUNTER, 1000 + 10_000 * k, count)
    script.ask_around(rng, 8)

    script.begin(1_000_000)  # an hour and more between two readings, a hundred kilowatts
    for k in range(6):
        script.feed(POINT, (k * k + 1) * 1_500_000_000, POWER_MAX_UW * (k % 2), 1_000_000)
    script.ask_around(rng, 8)
    write(
        "energy",
        "op, numbers[4], status, {energy_uj, covered_us, bound_uj, edge_uj, flags}; op as in the maker",
        script.rows,
    )


if __name__ == "__main__":
    main()
