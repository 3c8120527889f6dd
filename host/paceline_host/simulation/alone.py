# SPDX-License-Identifier: Apache-2.0
"""The controller alone, up to a million boards: a round is a plan, and what each board would have reported of it.

No message, no lease and no journal: what remains is the policy in production's planner, and the model's arithmetic. So
makespans are those of the slowest board's computing, and joules those of computing and of waiting for it; the board
that leaves in a round takes its share with it only from the next round on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from paceline.policies import policy
from paceline_host import planner
from paceline_host.machine import Finish
from paceline_host.simulation.faults import Fault
from paceline_host.simulation.models import BoardModel
from paceline_host.simulation.results import Outcome, RoundOutcome, of_rounds
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.world import apply


def simulate_alone(
    scenario: Scenario, models: Sequence[BoardModel], name: str, due: Mapping[int, Sequence[Fault]],
    stopping: Callable[[], bool], on_round: Callable[[int, float], None],
) -> Outcome:  # fmt: skip
    """Return one policy's figures. `on_round` is told each round and how long, really, its plan and reports took."""
    budget = scenario.budget_of(len(models))
    made = planner.make(policy(name), len(models), budget, scenario.minimum)
    away: set[int] = set()
    unknown: set[int] = set()
    round_s: list[float] = []
    rounds: dict[int, RoundOutcome] = {}
    compute_j = wait_j = 0.0
    for number in range(1, scenario.rounds + 1):
        if stopping():
            break
        began_s = time.perf_counter()
        present = [i for i in range(len(models)) if i not in away] if away else list(range(len(models)))
        shares = made.plan(present)
        _befall(due.get(number, ()), models, away)
        row = rounds[number] = RoundOutcome(number, dict(zip(present, shares, strict=True)))
        for i, n in zip(present, shares, strict=True):
            if n:
                row.delivered(i, n, max(1, int(models[i].seconds(number, n) * 1e6)))
        slowest_s = max(row.compute_us.values()) * 1e-6
        round_s.append(slowest_s)
        for i, n in zip(present, shares, strict=True):
            seconds = row.compute_us.get(i, 0) * 1e-6
            idle_w, active_w = models[i].watts(number)
            waits_s = slowest_s - seconds
            known = models[i].metered
            if known:
                compute_j += active_w * seconds
                wait_j += idle_w * waits_s
            else:
                unknown.add(i)
            if n:
                made.observe(i, seconds, active_w * seconds if known else None, n)
            if made.heeds_waits and known and waits_s > 0.0 and idle_w > 0.0:
                made.observe_wait(i, waits_s, idle_w * waits_s)
        if len(models) > KEEP:
            row.forget()
        on_round(number, time.perf_counter() - began_s)
    finish = Finish(True, "finished") if len(round_s) == scenario.rounds else Finish(False, "interrupted")
    parts = {"compute": compute_j, "wait": wait_j, "transfer": 0.0, "wasted": 0.0, "other": 0.0}
    return of_rounds(name, finish, round_s, rounds, parts, len(unknown), 0)


KEEP = 20_000  # boards; of more, no round's shares are kept


def _befall(faults: Sequence[Fault], models: Sequence[BoardModel], away: set[int]) -> None:
    for fault in faults:
        if fault.what == "leave":
            away.add(fault.board)
        elif fault.what == "return":
            away.discard(fault.board)
        else:
            apply(fault, models[fault.board])
