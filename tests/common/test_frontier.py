# SPDX-License-Identifier: Apache-2.0
"""Plans on the frontier: against HiGHS, against all whole splits, and against every weighted plan."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog  # type: ignore[import-untyped]

from paceline import CoreError, Goal, OutOfReachError, Pace, frontier
from paceline.goals import cost, weighted

FLEETS = 2000
TAU_MS = (1, 1.6, 2.5, 2.5, 5, 5.2, 7, 12, 14, 22, 25)
ACTIVE_W = (28, 14, 9, 9, 6.2, 6, 7.5, 4, 8.5, 5.2, 2.2)
WAIT_W = (7, 5, 3.2, 3.2, 2.7, 2.7, 2.6, 1.9, 4.5, 3.4, 0.7)
ELEVEN = [
    Pace(tau * 1e-3, watts * tau * 1e-3, wait)
    for tau, watts, wait in zip(TAU_MS, ACTIVE_W, WAIT_W, strict=True)
]  # fmt: skip


def fleet(seed: int) -> tuple[list[Pace], list[int]]:
    """Return a random fleet with all that makes one odd, and its budgets."""
    rng = random.Random(seed)
    n, n_groups = rng.randint(1, 12), 1 if seed % 4 else rng.randint(1, 3)
    long_s = rng.choice([0.0, 0.0, 0.3, 3.0])
    paces = []
    for i in range(n):
        tau, active = 10 ** rng.uniform(-3.5, 0.0), rng.uniform(1, 30)
        wait = active * rng.choice([0.0, 0.05, 0.3, 0.9, 1.0, 1.2, rng.random()])
        minimum = rng.choice([0, 0, 1, 5])
        capacity = rng.choice([None, None, minimum + rng.randint(0, 60)])
        fixed = long_s * rng.random()
        spared = wait * rng.choice([0.0, 0.5, 1.0]) if n_groups > 1 else 0.0
        paces.append(Pace(tau, active * tau, wait, fixed, active * fixed, minimum, capacity, i % n_groups, spared))
        if rng.random() < 0.2:
            paces.append(paces[-1])
    budgets = []
    for g in range(n_groups):
        own = [p for p in paces if p.group == g]
        least = sum(p.minimum for p in own)
        most = sum(least + 300 if p.capacity is None else p.capacity for p in own)
        budgets.append(rng.choice([least, most, rng.randint(least, most), rng.randint(least, most)]))
    return paces, budgets


def solved(paces: Sequence[Pace], budgets: Sequence[int], by: str, deadline: float = 0.0, joules: float = 0.0) -> float:
    """Return the least `by` (seconds or joules) in real samples, by HiGHS. Columns: n_i, then T_g, then T."""
    n, n_groups = len(paces), len(budgets)
    end = n + n_groups
    energy = [p.energy_per_sample_j - p.wait_w * p.seconds_per_sample for p in paces]
    energy += [sum(p.spared_w for p in paces if p.group == g) for g in range(n_groups)]
    energy += [sum(p.wait_w - p.spared_w for p in paces)]
    base = sum(p.fixed_j - p.wait_w * p.fixed_seconds for p in paces)
    above, most = [], []
    for i, p in enumerate(paces):
        row = [0.0] * (end + 1)
        row[i], row[n + p.group] = p.seconds_per_sample, -1.0
        above.append(row)
        most.append(-p.fixed_seconds)
    for g in range(n_groups):
        row = [0.0] * (end + 1)
        row[n + g], row[end] = 1.0, -1.0
        above.append(row)
        most.append(0.0)
    if joules:
        above.append(energy)
        most.append(joules - base)
    sums = [[float(p.group == g) for p in paces] + [0.0] * (n_groups + 1) for g in range(n_groups)]
    bounds = [(p.minimum, p.capacity) for p in paces] + [(0, None)] * n_groups + [(0, deadline or None)]
    goal = [0.0] * end + [1.0] if by == "seconds" else energy
    done = linprog(goal, above, most, sums, budgets, bounds, method="highs")
    assert done.status == 0, done.message
    return float(done.fun) + (0.0 if by == "seconds" else base)


def test_optima_are_those_of_highs() -> None:
    for seed in range(FLEETS):
        paces, budgets = fleet(seed)
        where = f"fleet {seed}"
        least = frontier("frontier:energy", paces, budgets)
        shortest_s, least_j = least.curve[-1][0], least.curve[0][1]
        if seed % 3 == 0:
            assert least_j == pytest.approx(solved(paces, budgets, "joules"), rel=1e-7, abs=1e-7), where
        elif seed % 3 == 1:
            assert shortest_s == pytest.approx(solved(paces, budgets, "seconds"), rel=1e-7, abs=1e-7), where
        part = random.Random(seed).random()
        deadline_s = least.least_seconds + part * (least.curve[0][0] - least.least_seconds)
        if deadline_s > least.least_seconds * 1.0001:
            found = frontier(Goal("deadline", deadline_s), paces, budgets)
            want_j = solved(paces, budgets, "joules", deadline=deadline_s)
            assert found.real_j == pytest.approx(want_j, rel=1e-6, abs=1e-6), where
            assert found.seconds <= deadline_s, where
            if want_j > least_j + least.slack_j + 1e-6:
                fast = frontier(Goal("budget", want_j), paces, budgets)
                want_s = solved(paces, budgets, "seconds", joules=want_j)
                assert fast.real_seconds == pytest.approx(want_s, rel=1e-5, abs=1e-7), where
                assert fast.energy_j <= want_j, where


def test_the_least_product_is_that_of_a_scan() -> None:
    for seed in range(0, FLEETS, 2):
        paces, budgets = fleet(seed)
        found = frontier("frontier:edp", paces, budgets)
        product = found.real_seconds * found.real_j
        for (t0, e0), (t1, e1) in itertools.pairwise(found.curve):
            for k in range(21):
                part = k / 20
                assert (t0 + part * (t1 - t0)) * (e0 + part * (e1 - e0)) >= product * (1 - 1e-12), f"fleet {seed}"
        slack = (found.real_j + found.slack_j) * (found.real_seconds + max(p.seconds_per_sample for p in paces))
        assert found.seconds * found.energy_j <= slack * (1 + 1e-5)


@pytest.mark.parametrize("goal", ["time", "energy", "edp", "deadline", "budget"])
def test_whole_samples_keep_what_is_promised(goal: str) -> None:
    for seed in range(0, FLEETS, 4):
        paces, budgets = fleet(seed + 1)
        least = frontier("frontier:energy", paces, budgets)
        limit = {"deadline": least.least_seconds * 1.2, "budget": least.energy_j * 1.05}.get(goal, 0.0)
        plan = frontier(Goal(goal, limit), paces, budgets)
        seconds, joules = cost(paces, plan.shares, len(budgets))
        assert (seconds, joules) == pytest.approx((plan.seconds, plan.energy_j), rel=1e-9, abs=1e-9)
        for g, budget in enumerate(budgets):
            assert sum(n for n, p in zip(plan.shares, paces, strict=True) if p.group == g) == budget
        for n, p in zip(plan.shares, paces, strict=True):
            assert p.minimum <= n <= (n if p.capacity is None else p.capacity)
        slowest = max((p.seconds_per_sample for p in paces), default=0.0)
        if goal == "time":
            assert plan.seconds <= plan.real_seconds + slowest * (1 + 1e-5)
        elif goal == "energy":
            assert plan.energy_j <= plan.real_j + plan.slack_j * (1 + 1e-5) + 1e-9
        elif goal == "deadline":
            assert plan.seconds <= limit
        elif goal == "budget":
            assert plan.energy_j <= limit


def test_small_fleets_get_the_best_whole_split() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        paces = [
            Pace(
                tau := rng.uniform(1, 9), rng.uniform(1, 9) * tau, rng.uniform(0, 3), rng.choice([0.0, 4.0]), 0.0, least
            )
            for least in (0, 1, 0)
        ]
        n = rng.randint(3, 14)
        splits = [(a, b, n - a - b) for a in range(n + 1) for b in range(1, n - a + 1)]
        costs = [cost(paces, split) for split in splits]
        limit = min(t for t, _ in costs) * 1.3
        for goal, best in (
            ("time", min(t for t, _ in costs)),
            ("energy", min(e for _, e in costs)),
            ("edp", min(t * e for t, e in costs)),
            ("deadline", min(e for t, e in costs if t <= limit)),
        ):
            plan = frontier(Goal(goal, limit if goal == "deadline" else 0.0), paces, n)
            got = {"time": plan.seconds, "edp": plan.seconds * plan.energy_j}.get(goal, plan.energy_j)
            assert got == pytest.approx(best, rel=1e-12), f"{goal}, fleet {seed}"


def splits_of(paces: Sequence[Pace], budgets: Sequence[int]) -> Iterator[list[int]]:
    """Yield all whole splits within the limits."""
    ways = []
    for g, budget in enumerate(budgets):
        own = [p for p in paces if p.group == g]
        ranges = [range(p.minimum, min(budget, budget if p.capacity is None else p.capacity) + 1) for p in own]
        ways.append([split for split in itertools.product(*ranges) if sum(split) == budget])
    yield from (list(itertools.chain(*parts)) for parts in itertools.product(*ways))


def test_small_fleets_of_groups_get_the_best_whole_split() -> None:
    """Groups end by themselves, and each must be given its own best end: one rule for all of them missed some."""
    for seed in range(3000):
        rng = random.Random(seed)
        paces = []
        for group in range(rng.choice([1, 2, 2, 2, 3])):
            for _ in range(rng.randint(1, 2)):
                wait_w, tau = rng.choice([0.0, 1.0, rng.uniform(0, 4)]), rng.choice([1.0, 0.5, rng.uniform(0.1, 2)])
                joules = rng.choice([0.0, wait_w * tau, rng.uniform(0, 6)])
                fixed_s, spared_w = rng.choice([0.0, rng.uniform(0, 3)]), wait_w * rng.choice([0.0, 0.0, 0.5, 1.0])
                least, most = rng.choice([0, 1]), rng.choice([None, 6])
                paces.append(Pace(tau, joules, wait_w, fixed_s, 0.0, least, most, group, spared_w))
        budgets = [rng.randint(2, 9 - paces[-1].group * 2) for _ in range(paces[-1].group + 1)]
        costs = [cost(paces, split, len(budgets)) for split in splits_of(paces, budgets)]
        if not costs:
            continue
        within_s = min(t for t, _ in costs) * rng.choice([1.0, 1.2, 2.0]) + 1e-9  # beyond the rounding of the limit
        within_j = min(e for _, e in costs) * rng.choice([1.0, 1.1, 1.5]) + 1e-9
        for goal, limit, best in (
            ("time", 0.0, min(t for t, _ in costs)),
            ("energy", 0.0, min(e for _, e in costs)),
            ("edp", 0.0, min(t * e for t, e in costs)),
            ("deadline", within_s, min(e for t, e in costs if t <= within_s)),
            ("budget", within_j, min(t for t, e in costs if e <= within_j)),
        ):
            plan = frontier(Goal(goal, limit), paces, budgets)
            seconds, joules = cost(paces, plan.shares, len(budgets))
            got = {"time": seconds, "budget": seconds, "edp": seconds * joules}.get(goal, joules)
            assert got == pytest.approx(best, rel=1e-9, abs=1e-9), f"{goal}, fleet {seed}"


def test_a_larger_fleet_of_groups_gets_the_best_whole_split() -> None:
    """All makespans are tried, and under each the best end of every group: no plan is left out."""
    for seed in range(40):
        rng = random.Random(seed)
        paces = [
            Pace(tau := rng.uniform(0.01, 0.3), tau * rng.uniform(1, 9), wait_w := rng.choice([0.0, rng.uniform(0, 5)]),
                 rng.choice([0.0, rng.uniform(0, 3)]), 0.0, 1, None, i % 3, wait_w * rng.choice([0.0, 0.5, 1.0]))
            for i in range(8)
        ]  # fmt: skip
        budgets = [rng.randint(20, 90) for _ in range(3)]
        tried = list(exhausted(paces, budgets))
        least_j, least_product = min(e for _, e in tried), min(t * e for t, e in tried)
        energy, edp = frontier("frontier:energy", paces, budgets), frontier("frontier:edp", paces, budgets)
        assert energy.energy_j == pytest.approx(least_j, rel=1e-9), f"fleet {seed}"
        assert edp.energy_j * edp.seconds == pytest.approx(least_product, rel=1e-9), f"fleet {seed}"
        limit_j = least_j * 1.03
        fastest = min(t for t, e in tried if e <= limit_j)
        assert frontier(Goal("budget", limit_j), paces, budgets).seconds == pytest.approx(fastest, rel=1e-9)


def exhausted(paces: Sequence[Pace], budgets: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield (seconds, joules) of the best plan for each end of a sample, from the shortest on."""
    ends = sorted({(p.seconds(x), p.group) for p in paces for x in range(p.minimum, budgets[p.group] + 1)})
    outside_w = sum(p.wait_w - p.spared_w for p in paces)
    base_j = sum(p.fixed_j - p.wait_w * p.fixed_seconds for p in paces)
    best: dict[int, float] = {}
    low = max(p.seconds(p.minimum) for p in paces)
    for t, group in ends:
        for g in [group] if len(best) == len(budgets) else range(len(budgets)):
            own = sorted(
                (p.energy_per_sample_j - p.wait_w * p.seconds_per_sample, i)
                for i, p in enumerate(paces)
                if p.group == g
            )
            rest = budgets[g] - sum(paces[i].minimum for _, i in own)
            joules = sum(m * paces[i].minimum for m, i in own)
            end = max(paces[i].seconds(paces[i].minimum) for _, i in own)
            for m, i in own:
                p = paces[i]
                x = max(0, min(rest, int((t - p.fixed_seconds) / p.seconds_per_sample + 1e-9) - p.minimum))
                joules, rest, end = joules + m * x, rest - x, max(end, p.seconds(p.minimum + x) if x else end)
            if rest == 0 and end <= t + 1e-9:
                joules += end * sum(paces[i].spared_w for _, i in own)
                best[g] = min(best.get(g, joules), joules)
        if len(best) == len(budgets) and t >= low:
            yield t, base_j + outside_w * t + sum(best.values())


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), current=st.booleans())
def test_no_plan_is_longer_and_dearer_than_a_weighted_one(seed: int, current: bool) -> None:
    paces, budgets = fleet(seed)
    rivals = list(weighted(paces, budgets))
    energy = frontier("frontier:energy", paces, budgets, current=rivals[0] if current and rivals else None)
    edp = frontier("frontier:edp", paces, budgets)
    for shares in rivals:
        seconds, joules = cost(paces, shares, len(budgets))
        if len(budgets) == 1:
            assert energy.energy_j <= joules * (1 + 1e-12) + 1e-12
            assert edp.energy_j * edp.seconds <= joules * seconds * (1 + 1e-12) + 1e-12
            within = frontier(Goal("deadline", seconds), paces, budgets)
            assert within.energy_j <= joules * (1 + 1e-12) + 1e-12
        assert energy.real_j <= joules * (1 + 1e-9) + 1e-9
        assert edp.real_j * edp.real_seconds <= joules * seconds * (1 + 1e-9) + 1e-9


def test_the_figures_of_the_eleven_boards() -> None:
    by_goal = {goal: frontier(f"frontier:{goal}", ELEVEN, 6000) for goal in ("time", "energy", "edp", "deadline=1.1x")}
    found = {goal: (round(plan.seconds, 3), round(plan.energy_j, 1)) for goal, plan in by_goal.items()}
    assert found["time"] == (1.876, 186.7)
    assert found["edp"] == (1.876, 186.7)
    assert found["energy"][1] == 180.9
    assert found["deadline=1.1x"][0] == pytest.approx(2.062, abs=0.002)


def test_equal_boards_share_alike() -> None:
    shares = frontier("frontier:energy", [Pace(0.01, 0.1, 1.0)] * 7, 1000).shares
    assert max(shares) - min(shares) <= 1


def test_where_waiting_is_as_dear_as_working_least_joules_is_least_time() -> None:
    paces = [Pace(t, 5 * t, 5.0) for t in (0.001, 0.004, 0.02)]
    assert frontier("frontier:energy", paces, 500).shares == frontier("frontier:time", paces, 500).shares


def test_waiting_dearer_than_working_is_taken_as_it_stands() -> None:
    paces = [Pace(0.01, 0.01, 5.0), Pace(0.01, 0.2, 1.0)]
    plan = frontier("frontier:energy", paces, 100)
    best = min((cost(paces, (n, 100 - n))[1], n) for n in range(1, 100))
    assert plan.energy_j == pytest.approx(best[0])


@pytest.mark.parametrize("goal", ["time", "energy", "edp", "deadline=1x", "budget=1kJ"])
def test_where_one_split_exists_every_goal_gives_it(goal: str) -> None:
    assert frontier(f"frontier:{goal}", [Pace(0.1, 1.0, 1.0, minimum=3), Pace(0.2, 1.0, 1.0, minimum=4)], 7).shares == [
        3,
        4,
    ]
    assert frontier(f"frontier:{goal}", [Pace(0.1, 1.0, 1.0)], 9).shares == [9]


def test_an_impossible_deadline_names_the_nearest() -> None:
    with pytest.raises(
        OutOfReachError, match=r"within 1 s; the shortest takes 1\.87601 s \(all boards are full"
    ) as caught:
        frontier("frontier:deadline=1s", ELEVEN, 6000)
    assert frontier(Goal("deadline", caught.value.nearest), ELEVEN, 6000).seconds == caught.value.nearest
    late = [*ELEVEN, Pace(0.1, 0.1, 0.1, fixed_seconds=9.0)]
    with pytest.raises(OutOfReachError, match="board 11 takes that long for its minimum alone"):
        frontier("frontier:deadline=1s", late, 6000)


def test_impossible_joules_name_the_nearest() -> None:
    with pytest.raises(OutOfReachError, match="least joules are 180") as caught:
        frontier("frontier:budget=100J", ELEVEN, 6000)
    assert frontier(Goal("budget", caught.value.nearest), ELEVEN, 6000).energy_j <= caught.value.nearest


@pytest.mark.parametrize(("bound", "unit"), [("deadline", "s"), ("budget", "J")])
def test_the_limit_that_is_shown_can_be_asked_for(bound: str, unit: str) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        paces = [Pace(rng.uniform(1e-4, 2), rng.uniform(1e-3, 20), rng.uniform(0, 5)) for _ in range(4)]
        with pytest.raises(OutOfReachError) as caught:
            frontier(f"frontier:{bound}=1e-9{unit}", paces, 50)
        shown = re.search(r"(?:takes|are) ([0-9.e+]+)", str(caught.value).split(";")[1])
        assert shown is not None
        frontier(f"frontier:{bound}={shown[1].rstrip('.')}{unit}", paces, 50)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", range(5))
def test_figures_that_are_none_are_refused(field: int, bad: float) -> None:
    figures = [0.1, 1.0, 1.0, 0.0, 0.0]
    figures[field] = bad
    with pytest.raises(CoreError, match="board 1 of 2"):
        frontier(
            "frontier:energy",
            [Pace(0.1, 1.0, 1.0), Pace(figures[0], figures[1], figures[2], figures[3], figures[4])],
            10,
        )


def test_budgets_outside_the_limits_name_the_samples() -> None:
    with pytest.raises(CoreError, match="is 1 short of the sum of the minima"):
        frontier("frontier:energy", [Pace(0.1, 1.0, 1.0, minimum=3)] * 2, 5)
    with pytest.raises(CoreError, match="group 1: 2 samples"):
        frontier("frontier:energy", [Pace(0.1, 1.0, 1.0, capacity=3, group=g) for g in (0, 1)], [3, 5])


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("frontier:deadline=30s", Goal("deadline", 30.0)),
        ("frontier:deadline=1.2x", Goal("factor", 1.2)),
        ("frontier:deadline=250ms", Goal("deadline", 0.25)),
        ("frontier:budget=0.5kJ", Goal("budget", 500.0)),
        ("frontier:energy", Goal("energy")),
    ],
)
def test_goals_by_name(name: str, goal: Goal) -> None:
    assert Goal.parse(name) == goal


@pytest.mark.parametrize(
    "name",
    ["frontier:", "frontier:fast", "frontier:deadline", "frontier:energy=3", "frontier:deadline=30",
     "frontier:budget=3s", "frontier:deadline=0.9x", "frontier:budget=-1J", "frontier:deadline=1.1.1s", "energy"],
)  # fmt: skip
def test_what_names_no_goal_says_what_would(name: str) -> None:
    with pytest.raises(ValueError, match=r"frontier:|1x or more"):
        Goal.parse(name)


def test_a_large_fleet_keeps_its_sum() -> None:
    rng = random.Random(3)
    paces = [Pace(t := 10 ** rng.uniform(-3, -1), t * rng.uniform(1, 30), rng.uniform(0, 3)) for _ in range(3000)]
    plan = frontier("frontier:energy", paces, 1_000_000)
    assert sum(plan.shares) == 1_000_000
    assert plan.energy_j <= plan.real_j + plan.slack_j * (1 + 1e-5)
    assert plan.real_j == pytest.approx(solved(paces, [1_000_000], "joules"), rel=1e-7)


@pytest.mark.parametrize("goal", ["frontier:time", "frontier:energy", "frontier:deadline=3e8s"])
def test_samples_shorter_than_a_double_can_tell_are_dealt_out_too(goal: str) -> None:
    """The search for the least end never ended, and a plan within a limit came out empty."""
    quick = Pace(4e-54, 288.0, 3.0, fixed_seconds=2.5e8, minimum=0)
    assert frontier(goal, [quick], 50_998).shares == [50_998]
    assert sum(frontier(goal, [quick, Pace(4e-54, 1.0, 3.0, fixed_seconds=88.0)], 50_998).shares) == 50_998
