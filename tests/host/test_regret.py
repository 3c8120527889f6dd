# SPDX-License-Identifier: Apache-2.0
"""Plans of the closed loop against the least joules on truths that it does not know (DECISIONS 36).

The truth is a simulated board's own cost without noise: fixed seconds a step and a slice, throttling within a slice,
another clock, other work. Its least joules are found apart: for each makespan of a grid, boards are filled step by step
in order of what the next step costs. `pytest tests/host/test_regret.py -s` prints the table of docs/results/claims.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

import pytest
from tests.simulated import Boards, alone

from paceline_host.profile import load_profile
from paceline_host.simulation.faults import Fault, apply
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.models import BoardModel
from paceline_host.simulation.scenario import Scenario

POLICIES = ["time", "low-energy", "balanced", "energy", "frontier:time", "frontier:energy", "frontier:edp",
            "frontier:deadline=1x", "frontier:deadline=1.2x"]  # fmt: skip
PLAIN = Scenario(rounds=20)
TRUTHS = {
    "as declared": PLAIN,
    "a slice costs 0.2 s": replace(PLAIN, round_fixed_s=0.2),
    "the fastest at half its clock": replace(PLAIN, fault=(Fault(0, 9, "throttle", 2.0),)),
    "the most frugal at half its clock": replace(PLAIN, fault=(Fault(1, 9, "throttle", 2.0),)),
    "three boards with other work": replace(PLAIN, fault=tuple(Fault(b, 9, "load", 1.5) for b in (0, 3, 4))),
    "noise of 10 % a slice": replace(PLAIN, noise=0.1),
}
SETTLED = 13  # rounds from here on count


def truth(scenario: Scenario) -> list[BoardModel]:
    """Return the boards without noise, as they are in the end."""
    calm = [replace(board, noise=0.0) for board in load_profile(scenario.profile).boards]
    models = Boards(replace(scenario, noise=0.0), calm).models()
    for fault in scenario.fault:
        apply(fault, models[fault.board])
    return models


def cost(models: list[BoardModel], shares: Mapping[int, int]) -> tuple[float, float]:
    """Return seconds and joules of a round."""
    works = {i: models[i].seconds(1, n) if n else 0.0 for i, n in shares.items()}
    round_s = max(works.values())
    joules = 0.0
    for i, seconds in works.items():
        idle_w, active_w = models[i].watts(1)
        joules += active_w * seconds + idle_w * (round_s - seconds)
    return round_s, joules


def filled(models: list[BoardModel], budget: int, deadline_s: float) -> dict[int, int] | None:
    """Return the shares of least joules within a deadline; steps get dearer on a board, never cheaper."""
    shares = dict.fromkeys(range(len(models)), 1)

    def step(i: int) -> tuple[float, int, int]:
        model, n = models[i], shares[i]
        more = -n % model.batch or model.batch
        idle_w, active_w = model.watts(1)
        return (active_w - idle_w) * (model.seconds(1, n + more) - model.seconds(1, n)) / more, i, more

    heap = [step(i) for i in shares]
    heapify(heap)
    left = budget - len(models)
    while left > 0 and heap:
        _, i, more = heappop(heap)
        more = min(more, left)
        if models[i].seconds(1, shares[i] + more) <= deadline_s:
            shares[i] += more
            left -= more
            heappush(heap, step(i))
    return None if left else shares


def optimum(models: list[BoardModel], budget: int, shortest_s: float) -> tuple[float, float]:
    """Return seconds and joules of the plan of least joules, over makespans in steps of half a per cent."""
    plans = (filled(models, budget, shortest_s * (1 + 0.005 * k)) for k in range(120))
    return min((cost(models, plan) for plan in plans if plan is not None), key=lambda found: found[1])


@pytest.mark.parametrize("name", TRUTHS)
def test_least_joules_are_near_whatever_the_controller_does_not_know(name: str) -> None:
    scenario = TRUTHS[name]
    models, fleet = truth(scenario), Fleet(scenario, None)
    budget = scenario.budget_of(len(fleet.names))
    found = {}
    for policy in POLICIES:
        rows = [cost(models, shares) for shares in alone(fleet, policy).shares[SETTLED - 1 :]]
        found[policy] = statistics.fmean(s for s, _ in rows), statistics.fmean(j for _, j in rows)
    shortest_s = min(seconds for seconds, _ in found.values())
    best_s, best_j = optimum(models, budget, shortest_s * 0.98)
    print(f"\n{name}: least {best_j:.1f} J in {best_s:.3f} s; shortest seen {shortest_s:.3f} s")
    for policy, (seconds, joules) in found.items():
        more_j, more_s = 100 * (joules / best_j - 1), 100 * (seconds / shortest_s - 1)
        print(f"  {policy:24} {more_j:+6.1f} % joules {more_s:+6.1f} % s")
    assert all(joules > 0.999 * best_j for _, joules in found.values()), "nothing is below the optimum"
    assert found["frontier:energy"][1] < 1.05 * best_j
    weights = [found[policy][1] for policy in ("time", "low-energy", "balanced", "energy")]
    assert found["frontier:energy"][1] < min(weights)
