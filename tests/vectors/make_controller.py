# SPDX-License-Identifier: Apache-2.0
"""Vectors of allocation and controller, from a replica in plain doubles in the same order of operations.

Division with limits is replicated operation by operation; that its result is the right one is shown elsewhere, against
exact fractions. The scripts hold values on which a fused a*b+c would differ; `main` makes sure of it.
"""

from __future__ import annotations

import math
import random
import struct
import zlib
from dataclasses import dataclass, field
from fractions import Fraction

from tests.vectors.rows import write

U32_MAX = 0xFFFFFFFF
PRESENT, REPORTED, ENERGY_HELD, ENERGY_UNKNOWN, REPORT_HELD, NEW_REPORT, NEW_ENERGY, LAGS = (
    1,
    2,
    4,
    8,
    16,
    256,
    512,
    1024,
)
OK, ARGUMENT, REPORT, LIMITS, MINIMA, CAPACITY = 0, -1, -2, -3, -4, -5
MOST = 11  # participants of a vector


def split(costs: list[float], budget: int, minimum: list[int], capacity: list[int]) -> list[int]:
    """Return shares by clamp(lambda / cost), largest remainder; feasible by precondition."""
    n = len(costs)
    order = sorted(range(n), key=lambda i: (1.0 / costs[i], i))
    share, open_, rest = [0] * n, [True] * n, budget
    while True:
        total = 0.0
        for i in order:
            if open_[i]:
                total += 1.0 / costs[i]
        lam = rest / total if total > 0.0 else 0.0
        under = over = 0.0
        for i in order:
            x = lam / costs[i]
            if open_[i] and x < minimum[i]:
                under += minimum[i] - x
            elif open_[i] and x > capacity[i]:
                over += x - capacity[i]
        changed = False
        for i in order:
            x = lam / costs[i]
            if open_[i] and x < minimum[i] and under >= over:
                share[i] = minimum[i]
            elif open_[i] and x > capacity[i] and over >= under:
                share[i] = capacity[i]
            else:
                continue
            open_[i], changed = False, True
            rest -= share[i]
        if not changed:
            break
    places = [i for i in range(n) if open_[i]]
    remainder = {}
    for i in places:
        x = lam / costs[i]
        share[i] = int(x)
        remainder[i] = x - share[i]
        rest -= share[i]
    assert 0 <= rest <= len(places), "a case for the corners of rounding: keep it out of the vectors"
    for i in sorted((i for i in places if share[i] < capacity[i]), key=lambda i: (-remainder[i], i))[:rest]:
        share[i] += 1
    assert sum(share) == budget
    return share


def median(values: list[float]) -> float:
    """Return the median; 0 of nothing."""
    if not values:
        return 0.0
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else values[half - 1] * 0.5 + values[half] * 0.5


@dataclass
class Participant:
    """As pl_participant."""

    group: int
    minimum: int
    capacity: int
    tau: float = 0.0
    eps: float = 0.0
    far_tau: float = 0.0
    far_eps: float = 0.0
    fixed: float = 0.0
    wait_s: float = 0.0
    wait_j: float = 0.0
    cost: float = 1.0
    share: int = 0
    missed: int = 0
    flags: int = PRESENT

    def rounds_missed(self) -> int:
        return 0 if self.flags & NEW_ENERGY else self.missed + bool(self.flags & NEW_REPORT)

    def knows_energy(self) -> bool:
        return self.eps > 0.0 and self.rounds_missed() <= 5

    def outside_flags(self) -> int:
        flags = self.flags & (PRESENT | REPORTED | REPORT_HELD)
        flags |= ENERGY_HELD if self.knows_energy() and self.rounds_missed() else 0
        return flags | (ENERGY_UNKNOWN if flags & REPORTED and not self.knows_energy() else 0)


@dataclass
class Replica:
    """As pl_controller, with the config's defaults given in full."""

    w_energy: float
    w_time: float
    ema: float
    deadband: float
    people: list[Participant]
    budget: list[int]
    lapsed: list[int] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.lapsed, self.settled = [0] * len(self.budget), [0] * len(self.budget)

    def smooth(self, old: float, new: float) -> float:
        return self.ema * new + (1.0 - self.ema) * old if old > 0.0 else new

    def follow(self, old: float, far: float, new: float) -> tuple[float, float]:
        """Return the estimate after a new value, and that value where it was far off."""
        off = apart(new, old, 1.15)
        step = off and far > 0.0 and not apart(new, far, 1.15)
        self.steps += step
        return (new * 0.5 + far * 0.5 if step else self.smooth(old, new)), (new if off else 0.0)

    def believe(self, p: Participant, tau: float, eps: float) -> None:
        lag = 1.0 + 3 * self.deadband
        late_tau = self.w_time > 0.0 and apart(tau, p.tau, lag)
        p.flags |= LAGS if late_tau or (self.w_energy > 0.0 and apart(eps, p.eps, lag)) else 0
        p.tau, p.far_tau = self.follow(p.tau, p.far_tau, tau)
        p.flags |= REPORTED | NEW_REPORT
        if eps > 0.0:
            p.eps, p.far_eps = self.follow(p.eps, p.far_eps, eps)
            p.flags |= NEW_ENERGY

    def observe(self, i: int, samples: int, numbers: tuple[float, float, float, float, float]) -> int:
        seconds, energy, fixed, wait_s, wait_j = numbers
        p = self.people[i]
        if samples == 0:
            return OK
        if not (math.isfinite(seconds) and seconds > 0.0 and min(fixed, wait_s, wait_j) >= 0.0):
            return REPORT
        tau, eps = seconds / samples, energy / samples
        eps = eps if math.isfinite(eps) and eps > 0.0 else 0.0
        held_tau = held_eps = 0.0
        if p.flags & REPORT_HELD:
            held_tau, held_eps, p.far_tau, p.far_eps = p.far_tau, p.far_eps, 0.0, 0.0
            p.flags &= ~REPORT_HELD
        if held_tau > 0.0 and agree(tau, held_tau) and agree(eps, held_eps):
            self.believe(p, held_tau, held_eps if eps > 0.0 else 0.0)
            self.believe(p, tau, eps)
        elif wild(tau, p.tau) or wild(eps, p.eps):
            p.far_tau, p.far_eps = tau, eps
            p.flags |= REPORT_HELD
        else:
            self.believe(p, tau, eps)
        if fixed > 0.0:
            p.fixed = self.smooth(p.fixed, fixed)
        if wait_j > 0.0:
            p.wait_s, p.wait_j = p.wait_s + wait_s, p.wait_j + wait_j
        return OK

    def blend(self, p: Participant, tau_median: float, eps_median: float) -> tuple[float, float]:
        """Return the cost as it is and as a fused multiply and add would make it."""
        time = p.tau / tau_median
        energy = p.eps / eps_median if p.knows_energy() and eps_median > 0.0 else time
        product = self.w_energy * energy
        fused = float(Fraction(self.w_time) * Fraction(time) + Fraction(product))
        return self.w_time * time + product, fused

    def price(self, group: int) -> bool:
        """Set the costs of a group; return whether fused arithmetic would have given others."""
        mine = [p for p in self.people if p.group == group]
        here = [p for p in mine if p.flags & PRESENT]
        tau_median = median([p.tau for p in here if p.tau > 0.0])
        eps_median = median([p.eps for p in here if p.knows_energy()])
        differs = False
        for p in mine:
            p.cost, fused = self.blend(p, tau_median, eps_median) if p.tau > 0.0 and tau_median > 0.0 else (1.0, 1.0)
            differs |= p.cost != fused
        typical = median([p.cost for p in here if p.tau > 0.0])
        for p in mine:
            if p.tau == 0.0 and typical > 0.0:
                p.cost = typical
        return differs

    def allocate(self) -> tuple[int, bool]:
        """End the round; return the status and whether fused arithmetic would have differed."""
        members = [[p for p in self.people if p.group == g and p.flags & PRESENT] for g in range(len(self.budget))]
        for g, here in enumerate(members):
            if here and sum(p.minimum for p in here) > self.budget[g]:
                return MINIMA, False
            if here and sum(p.capacity for p in here) < self.budget[g]:
                return CAPACITY, False
        differs = False
        for g, here in enumerate(members):
            differs |= self.price(g)
            self.lapsed[g] = 0 if here else self.budget[g]
            if here:
                least, most = [p.minimum for p in here], [p.capacity for p in here]
                plan = split([p.cost for p in here], self.budget[g], least, most)
                now = max(p.cost * p.share for p in here)
                then = max(p.cost * share for p, share in zip(here, plan, strict=True))
                late = any(p.flags & LAGS for p in here)
                if late or not (self.settled[g] and self.deadband > 0.0 and now <= then * (1.0 + self.deadband)):
                    for p, share in zip(here, plan, strict=True):
                        p.share = share
            self.settled[g] = 1
        for p in self.people:
            p.missed = p.rounds_missed()
            p.flags &= ~(NEW_REPORT | NEW_ENERGY | LAGS)
            p.share = p.share if p.flags & PRESENT else 0
        return OK, differs

    def presence(self, i: int, present: bool) -> None:
        p = self.people[i]
        if bool(p.flags & PRESENT) != present:
            p.flags ^= PRESENT
            self.settled[p.group] = 0

    def state_crc(self, minimum: int, capacity: int) -> int:
        """Return the CRC-32 that stands at the end of the saved state."""
        data = struct.pack("<4I", 0x314C5043, 0, len(self.people), len(self.budget))
        data += struct.pack("<4d2I", self.w_energy, self.w_time, self.ema, self.deadband, minimum, capacity)
        for g in range(len(self.budget)):
            data += struct.pack("<3I", self.budget[g], self.lapsed[g], self.settled[g])
        for p in self.people:
            data += struct.pack("<7d", p.tau, p.eps, p.far_tau, p.far_eps, p.fixed, p.wait_s, p.wait_j)
            data += struct.pack("<6I", p.group, p.minimum, p.capacity, p.share, p.missed, p.flags)
        return zlib.crc32(data)


def apart(a: float, b: float, within: float) -> bool:
    """Return whether both are known and differ by a factor or more."""
    return a > 0.0 and b > 0.0 and (a >= within * b or b >= within * a)


def agree(a: float, b: float) -> bool:
    """Return whether one confirms the other."""
    return a == 0.0 or b == 0.0 or (a < 2 * b and b < 2 * a)


def wild(new: float, old: float) -> bool:
    """Return whether a value is 100 times off or more."""
    return old > 0.0 and new > 0.0 and (new >= 100 * old or old >= 100 * new)


def allocation_rows(rng: random.Random) -> list[list[object]]:
    """Return rows of one split each, from all equal to every limit in force."""
    rows: list[list[object]] = []

    def add(costs: list[float], budget: int, minimum: list[int], capacity: list[int]) -> None:
        shares = split(costs, budget, minimum, capacity)
        pad = MOST - len(costs)
        rows.append([len(costs), budget, costs + [1.0] * pad, *(x + [0] * pad for x in (minimum, capacity, shares))])

    papers = [1, 1.6, 2.5, 2.5, 5, 5.2, 7, 12, 14, 22, 25]  # reference figures: see the frontier's table, w_e = 0
    add([float(c) for c in papers], 6000, [1] * 11, [U32_MAX] * 11)
    add([1.0] * 11, 6000, [1] * 11, [U32_MAX] * 11)
    add([1.0], U32_MAX, [0], [U32_MAX])
    add([3.0, 1.0, 2.0], 6, [2] * 3, [2] * 3)
    for _ in range(60):
        n = rng.randint(1, MOST)
        costs = [rng.uniform(1, 2) * 2.0 ** rng.randint(-7, 7) for _ in range(n)]
        budget = rng.choice([n, 100, 6000, 10**6, 4 * 10**9])
        minimum = [rng.randint(0, budget // (2 * n)) if rng.random() < 0.5 else 0 for _ in range(n)]
        capacity = [rng.randint(max(m, budget // n), budget) if rng.random() < 0.7 else U32_MAX for m in minimum]
        if sum(capacity) >= budget:
            add(costs, budget, minimum, capacity)
    return rows


INIT, OBSERVE, REMOVE, RESTORE, LIMIT, BUDGET, ALLOCATE = range(7)


class Script:
    """Drives a replica and writes down each step and what came out."""

    def __init__(self) -> None:
        self.steps: list[list[object]] = []
        self.rounds: list[list[object]] = []
        self.groups: list[list[int]] = []
        self.differs = 0

    def begin(self, w_energy: float, w_time: float, deadband: float, groups: list[int], budget: list[int]) -> None:
        time = 1.0 - w_energy if w_time == 0.0 else w_time
        people = [Participant(g, 1, U32_MAX) for g in groups]
        self.replica = Replica(w_energy, time, 0.5, deadband, people, list(budget))
        self.groups.append(groups + [0] * (MOST - len(groups)))
        self.step(INIT, len(groups), len(budget), 0, (w_energy, w_time, 0.5, deadband, 0.0), OK)
        for g, count in enumerate(budget):
            self.step(BUDGET, g, count, 0)

    def step(self, op: int, i: int, a: int, b: int, numbers: tuple[float, ...] = (0.0,) * 5, status: int = OK) -> None:
        self.steps.append([op, i, a, b, numbers, status])

    def observe(self, i: int, samples: int, *numbers: float) -> None:
        five = (*numbers, 0.0, 0.0, 0.0)[:5]
        status = self.replica.observe(i, samples, five)  # type: ignore[arg-type]  # five by the slice
        self.step(OBSERVE, i, samples, 0, five, status)

    def presence(self, i: int, present: bool) -> None:
        self.replica.presence(i, present)
        self.step(RESTORE if present else REMOVE, i, 0, 0)

    def limit(self, i: int, minimum: int, capacity: int) -> None:
        p = self.replica.people[i]
        if (p.minimum, p.capacity) != (minimum, capacity):
            p.minimum, p.capacity = minimum, capacity
            self.replica.settled[p.group] = 0
        self.step(LIMIT, i, minimum, capacity)

    def allocate(self) -> None:
        status, differs = self.replica.allocate()
        self.differs += differs
        self.step(ALLOCATE, 0, 0, 0, status=status)
        people = self.replica.people
        pad = MOST - len(people)
        shares, costs = [p.share for p in people] + [0] * pad, [p.cost for p in people] + [0.0] * pad
        flags = [p.outside_flags() for p in people] + [0] * pad
        self.rounds.append([shares, costs, flags, self.replica.state_crc(1, U32_MAX)])


def fleet(script: Script, rng: random.Random, rounds: int) -> None:
    """Run rounds of noisy reports, some of them odd."""
    n = len(script.replica.people)
    tau = [rng.uniform(1, 2) * 2.0 ** rng.randint(-10, -6) for _ in range(n)]  # no libm: its bits vary
    watts = [rng.uniform(2, 30) for _ in range(n)]
    for number in range(rounds):
        for i, p in enumerate(script.replica.people):
            if p.flags & PRESENT and rng.random() < 0.95:
                seconds = p.share * tau[i] * rng.uniform(0.95, 1.05)
                odd = rng.random()
                seconds = seconds * 200 if odd < 0.04 else math.nan if odd < 0.06 else seconds
                energy = math.nan if rng.random() < 0.15 or (i == 1 and number > 3) else seconds * watts[i]
                script.observe(i, p.share, seconds, energy, seconds / 64, 0.1 * i, 0.5 * i)
        if rng.random() < 0.2:
            tau[rng.randrange(n)] *= 2
        if rng.random() < 0.25:
            script.presence(rng.randrange(n), rng.random() < 0.6)
        if rng.random() < 0.1:
            script.limit(rng.randrange(n), rng.randint(0, 50), rng.choice([U32_MAX, 900]))
        script.allocate()


def main() -> None:
    """Write allocate, controller and controller_rounds."""
    rng = random.Random(20240607)
    columns = "n, budget, costs[11] (bits), minimum[11], capacity[11], shares[11]"
    write("allocate", columns, allocation_rows(rng))
    script, steps = Script(), 0
    for w_energy, w_time, deadband, groups, budget in (
        (0.0, 0.0, 0.05, [0] * 11, [6000]),
        (0.25, 0.0, 0.05, [0] * 11, [6000]),
        (0.3, 0.7, 0.01, [0, 0, 0, 1, 1, 1, 1, 2], [3000, 2000, 500]),
        (1.0, 0.0, 0.05, [0] * 5, [777]),
    ):
        script.begin(w_energy, w_time, deadband, groups, budget)
        fleet(script, rng, 14)
        steps += script.replica.steps
    assert steps > 10, "the scripts must hold steps that are believed at once"
    assert script.differs > 20, "the scripts must hold values on which fused arithmetic differs"
    columns = "op, i, a, b, numbers[5] (bits), status; op: 0 init (i: n, a: groups), 1 observe, 2 remove, 3 restore"
    write("controller", columns + ", 4 limit, 5 budget, 6 allocate", script.steps)
    write("controller_groups", "group of each participant[11], one row a script", script.groups)
    write(
        "controller_rounds",
        "after each allocate: shares[11], costs[11] (bits), flags[11], CRC of the state",
        script.rounds,
    )


if __name__ == "__main__":
    main()
