# SPDX-License-Identifier: Apache-2.0
"""Vectors of the frontier and of the fit, from a replica in plain doubles in the same order of operations. It tries
all whole plans that can be best: each end of a sample, and until then each group's best split.

That such plans are the right ones is shown elsewhere, against HiGHS and against all splits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.vectors.rows import write

U32_MAX = 0xFFFFFFFF
TIME, ENERGY, EDP, DEADLINE, FACTOR, BUDGET = range(6)
OK, REACH = 0, -20
MOST = 11

Corner = tuple[float, float]


@dataclass
class Board:
    """As pl_pace."""

    a: float
    tau: float
    f: float
    eps: float
    p: float
    spared: float
    least: int
    most: int
    group: int


@dataclass
class Lane:
    """As pl_lane."""

    m: float
    a: float
    tau: float
    least: int
    room: int
    index: int

    def end(self, x: int) -> float:
        return self.a + self.tau * (float(self.least) + x)

    def whole(self, t: float) -> int:
        most = (t - self.a) / self.tau - self.least
        v = self.room if most >= self.room else int(most) if most > 0.0 else 0
        if v > 0 and self.end(v) > t:
            return v - 1
        return v + 1 if v < self.room and self.end(v + 1) <= t else v


@dataclass
class Lot:
    """As pl_lot."""

    rest: int = 0
    low: float = 0.0
    rate: float = 0.0
    slack: float = 0.0
    inside: float = 0.0
    t_min: float = 0.0
    t_alone: float = 0.0
    t_whole: float = 0.0
    lanes: list[Lane] = field(default_factory=list)

    def walk(self) -> list[Corner]:
        if not self.lanes:
            return []
        lanes, n, j, k = self.lanes, len(self.lanes), 0, 0
        order = sorted(range(n), key=lambda i: -lanes[i].end(lanes[i].room))
        x, t_now = float(self.rest), lanes[order[0]].end(lanes[order[0]].room)
        s = d = 0.0
        found: list[Corner] = []
        while x > lanes[j].room:
            x -= lanes[j].room
            j += 1
        alone, self.t_alone = True, t_now
        while True:
            b = lanes[j]
            full = b.end(b.room)
            i = order[k] if k < n else 0
            after = lanes[i].end(lanes[i].room) if k < n else -1.0
            bound = k == n or full > after or (full == after and j < i)
            room = (t_now - b.a) / b.tau - b.least if bound else float(b.room)
            gap = room - x if room > x else 0.0
            rate = s + (1.0 / b.tau if bound else 0.0)
            t1, t2 = min(after, t_now), t_now - gap / rate if rate > 0.0 else -1.0
            t = max(t1, t2, self.low)
            x += s * (t_now - t)
            t_now, step = t, 0.0
            if k < n and t == t1:
                k += 1
                if i < j:
                    s += 1.0 / lanes[i].tau
                    step = (b.m - lanes[i].m) / lanes[i].tau
            elif t == t2 and j + 1 < n:
                s += 1.0 / b.tau if bound else 0.0
                step = s * (lanes[j + 1].m - b.m)
                j, x = j + 1, 0.0
            else:
                self.t_min = t_now
                self.t_alone = t_now if alone else self.t_alone
                return found
            d += step
            if alone and d > self.inside:
                alone, self.t_alone, over = False, t_now, d - self.inside
            else:
                over = 0.0 if alone else step
            if over > 0.0:
                found.append((t_now, over))

    def least_whole(self) -> float:
        """Return the least end at which whole samples fit: the latest of the ends of the first `rest` samples."""
        if self.fits(self.low):
            return self.low
        ends = sorted({lane.end(x) for lane in self.lanes for x in range(1, lane.room + 1)})
        return next(t for t in ends if self.fits(t) and t >= self.low)

    def fits(self, t: float) -> bool:
        return sum(lane.whole(t) for lane in self.lanes) >= self.rest

    def end(self, t: float) -> float:
        end = self.t_alone if self.inside > 0.0 and self.t_alone < t else t
        return max(self.t_min, end)

    def fill(self, t: float) -> float:
        rest, joules = float(self.rest), 0.0
        for lane in self.lanes:
            if not rest > 0.0:
                break
            room = (t - lane.a) / lane.tau - lane.least
            room = (max(0.0, room)) if room < lane.room else float(lane.room)
            room = min(rest, room)
            joules += lane.m * room
            rest -= room
        return joules

    def fill_whole(self, t: float) -> tuple[int, float, float, dict[int, int]]:
        rest, joules, end, shares = self.rest, 0.0, self.low, {}
        for lane in self.lanes:
            x = min(lane.whole(t), rest)
            rest -= x
            if x > 0:
                joules += lane.m * x
                end = max(end, lane.end(x))
            shares[lane.index] = lane.least + x
        return rest, joules, end, shares


class Fleet:
    """All boards and groups, and what pl_frontier_plan does with them."""

    def __init__(self, boards: list[Board], budgets: list[int]) -> None:
        self.n, self.base, self.outside = len(boards), 0.0, 0.0
        self.lots = [Lot(budget) for budget in budgets]
        for b in boards:
            self.lots[b.group].rest -= b.least
            m = b.eps - b.p * b.tau
            self.base += b.f - b.p * b.a + m * b.least
            self.outside += b.p - b.spared
        for i in sorted(range(self.n), key=lambda i: boards[i].eps - boards[i].p * boards[i].tau):
            b, lot = boards[i], self.lots[boards[i].group]
            lane = Lane(b.eps - b.p * b.tau, b.a, b.tau, b.least, min(b.most - b.least, lot.rest), i)
            lot.lanes.append(lane)
            lot.low = max(lot.low, lane.end(0))
            lot.inside += b.spared
            if lane.room > 0:
                lot.rate += 1.0 / b.tau
                lot.slack = max(lot.slack, b.tau)
        self.found: list[Corner] = []
        self.slack_j = 0.0
        for lot in self.lots:
            self.found += lot.walk()
            lot.t_whole = lot.least_whole() if lot.lanes else 0.0
            self.slack_j += lot.inside * lot.slack
        self.slack = max(lot.slack for lot in self.lots)
        self.slack_j += self.outside * self.slack
        self.t_min = max(lot.t_min for lot in self.lots)
        self.t_whole = max(lot.t_whole for lot in self.lots)
        self.curve = self.draw()

    def energy(self, t: float) -> float:
        joules = self.base + self.outside * t
        for lot in self.lots:
            joules += lot.inside * lot.end(t) + lot.fill(lot.end(t))
        return joules

    def draw(self) -> list[Corner]:
        corners = sorted(self.found, key=lambda corner: -corner[0]) if len(self.lots) > 1 else self.found
        d, k = 0.0, 0
        while k < len(corners) and d <= self.outside and corners[k][0] > self.t_min:
            d += corners[k][1]
            k += 1
        t = corners[k - 1][0] if k > 0 and d > self.outside else self.t_min
        joules, curve = self.energy(t), []
        while t > self.t_min:
            while k < len(corners) and corners[k][0] == t:
                d += corners[k][1]
                k += 1
            after = corners[k][0] if k < len(corners) and corners[k][0] > self.t_min else self.t_min
            curve.append((t, joules))
            joules += (d - self.outside) * (t - after)
            t = after
        return [*curve, (t, joules)]

    def optimum(self, goal: int, limit: float) -> Corner:
        best = self.curve[0]
        for a, b in zip(self.curve, self.curve[1:], strict=False):
            if goal == EDP:
                best = b if b[1] * b[0] <= best[1] * best[0] else best
            elif goal == TIME or (b[0] >= limit if goal == DEADLINE else b[1] <= limit):
                best = best if goal == ENERGY else b
            elif goal in (DEADLINE, BUDGET):
                part = (a[0] - limit) / (a[0] - b[0]) if goal == DEADLINE else (limit - a[1]) / (b[1] - a[1])
                if part > 0.0 and goal == DEADLINE:
                    best = (limit, a[1] + part * (b[1] - a[1]))
                elif part > 0.0:
                    best = (a[0] - part * (a[0] - b[0]), limit)
                break
        return best

    def best(self, goal: int, limit: float) -> tuple[float, float, list[float]] | None:
        """Return seconds, joules and each group's end of the best of all whole plans; None: the limit lets none."""
        ends = sorted({lane.end(x) for lot in self.lots for lane in lot.lanes for x in range(lane.room + 1)})
        own: list[tuple[float, float] | None] = [None] * len(self.lots)  # each group's best until then: joules, end
        best = None
        for t in (end for end in ends if not (goal == DEADLINE and end > limit)):
            for g, lot in enumerate(self.lots):
                rest, more, end, _ = lot.fill_whole(t)
                if not rest and t >= lot.low:
                    fresh = more + lot.inside * end, end
                    own[g] = min(own[g] or fresh, fresh)
            seconds, joules = 0.0, self.base
            for one in own:
                joules += one[0] if one else 0.0
                seconds = max(seconds, one[1] if one else 0.0)
            joules += self.outside * seconds
            if None not in own and not (goal == BUDGET and joules > limit):
                found = seconds, joules, [one[1] for one in own if one]
                best = found if best is None or _rank(goal, found) < _rank(goal, best) else best
        return best

    def plan(self, kind: int, limit: float) -> tuple[int, list[int], list[float]]:
        goal = kind
        if kind == FACTOR:
            goal, limit = DEADLINE, limit * self.t_whole
        if goal == DEADLINE and limit < self.t_whole:
            return REACH, [0] * self.n, [1.0 if kind == FACTOR else self.t_whole]
        real, found = self.optimum(goal, limit), self.best(goal, limit)
        if found is None:
            least = self.best(ENERGY, 0.0)
            assert least is not None
            return REACH, [0] * self.n, [least[1]]
        seconds, joules, ends = found
        shares: dict[int, int] = {}
        for lot, end in zip(self.lots, ends, strict=True):
            shares |= lot.fill_whole(end)[3]
        return OK, [shares[i] for i in range(self.n)], [seconds, joules, *real, self.t_whole, self.curve[0][1]]


def _rank(goal: int, plan: tuple[float, float, list[float]]) -> tuple[float, float]:
    seconds, joules, _ = plan
    if goal in (TIME, BUDGET):
        return seconds, joules
    return (joules * seconds if goal == EDP else joules), seconds


# Vectors --------------------------------------------------------------------------------------------------------------


def _fleet(rng: random.Random, odd: int) -> tuple[list[Board], list[int]]:
    n, n_groups = rng.randint(1, MOST), rng.randint(2, 3) if odd % 3 == 2 else 1
    boards = []
    for i in range(n):
        tau, watts = 10 ** rng.uniform(-3, 0), rng.uniform(1, 30)
        wait, a = watts * rng.choice([0.0, 0.1, 0.5, 1.0, 1.1]), rng.choice([0.0, rng.random()])
        least = rng.choice([0, 1, 3])
        most = rng.choice([U32_MAX, U32_MAX, least + rng.randint(0, 50)])
        spared = wait * rng.choice([0.0, 0.5, 1.0]) if n_groups > 1 else 0.0
        boards.append(Board(a, tau, watts * a, watts * tau, wait, spared, least, most, i % n_groups))
    budgets = []
    for g in range(n_groups):
        least = sum(b.least for b in boards if b.group == g)
        most = sum(min(b.most, 400) for b in boards if b.group == g)
        budgets.append(rng.randint(least, max(least, most)))
    return boards, budgets


def _rows(rng: random.Random) -> list[list[object]]:
    rows: list[list[object]] = []
    for number in range(54):
        boards, budgets = _fleet(rng, number)
        fleet, kind = Fleet(boards, budgets), number // 3 % 6
        limit = 0.0
        if kind == DEADLINE:
            limit = fleet.t_whole * (0.9 if number % 5 == 0 else 1.2)
        elif kind == FACTOR:
            limit = rng.choice([1.0, 1.25, 2.0])
        elif kind == BUDGET:
            limit = fleet.curve[0][1] * (0.8 if number % 5 == 0 else 1.05) + fleet.slack_j
        times = [fleet.t_whole * 1.1]
        status, shares, figures = fleet.plan(kind, limit)
        n = len(boards)
        reals = [x for b in boards for x in (b.a, b.tau, b.f, b.eps, b.p, b.spared)] + [0.0] * 6 * (MOST - n)
        words = [x for b in boards for x in (b.least, b.most, b.group)] + [0] * 3 * (MOST - n)
        rows.append([
            n, len(budgets), kind, budgets + [0] * (3 - len(budgets)), limit, times[0], reals,
            words, status, shares + [0] * (MOST - n), figures + [0.0] * (6 - len(figures)),
        ])  # fmt: skip
    return rows


def _fits(rng: random.Random) -> list[list[object]]:
    """Return rows (seconds, samples, all fields after it), of one board after the other; samples 0 begins a new one."""
    rows: list[list[object]] = []
    for _ in range(3):
        f = [0.0] * 9
        a, tau, n = rng.choice([0.0, 2.0]), rng.uniform(0.001, 0.01), 400
        rows.append([0.0, 0, [*f], 0])
        for k in range(1, 16):
            n = max(2, int(n * rng.choice([1.0, 0.5, 1.6])))
            pace = tau * (2.0 if k > 9 else 1.0)
            t = (a + pace * n) * rng.uniform(0.97, 1.03)
            f = _fitted(f, k, t, n)
            rows.append([t, n, [*f], k])
    return rows


def _fitted(f: list[float], k: int, t: float, samples: int) -> list[float]:
    n = float(samples)
    ratio = t / n
    if k == 1:
        va = 0.01 * t * t
        return [0.0, ratio, ratio, 0.0, 0.0, va, -va / n, va / (n * n) + 0.03 * 0.03 * ratio * ratio, n]
    a, tau, plain, wrong_affine, wrong_plain, va, c, vt, typical = f
    weight = n / typical if n < typical else 1.0
    noise = 0.03 * 0.03 * t * t / weight
    off, off_plain = a + tau * n - t, plain * n - t
    wrong_affine += 0.2 * weight * (off * off / (t * t) - wrong_affine)
    wrong_plain += 0.2 * weight * (off_plain * off_plain / (t * t) - wrong_plain)
    plain += 0.5 * weight * (ratio - plain)
    typical += 0.2 * (n - typical)
    vt += 0.02 * 0.02 * tau * tau
    va += 0.002 * 0.002 * t * t
    e, v = -off, va + 2.0 * n * c + n * n * vt + noise
    if e * e > 12.0 * v:
        vt += e * e / (n * n)
        v = va + 2.0 * n * c + n * n * vt + noise
    ga, gt = va + n * c, c + n * vt
    fixed, pace = a + ga / v * e, tau + gt / v * e
    a, tau = max(0.0, fixed), pace if pace >= 1e-100 else ratio
    return [a, tau, plain, wrong_affine, wrong_plain, va - ga / v * ga, c - gt / v * ga, vt - gt / v * gt, typical]


def main() -> None:
    rng = random.Random(20260)
    write(
        "frontier",
        "n, n_groups, kind, budget[3], limit, time, boards[11] x (a, tau, f, eps, p, spared), x (minimum, capacity, "
        "group), status, shares[11], figures[6] (T, E, real T, real E, least T, least E; out of reach: nearest)",
        _rows(rng),
    )
    write("fit", "seconds, samples (0: begin anew), fields[9], reports", _fits(rng))


if __name__ == "__main__":
    main()
