# SPDX-License-Identifier: Apache-2.0
"""The controller alone, up to a million boards: a round is a plan, and what each board would have reported of it.

No message, no lease and no journal: what remains is the policy in production's planner, and the model's arithmetic. So
makespans are those of the slowest board's computing, and joules those of computing and of waiting for it; the board
that leaves in a round takes its share with it only from the next round on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from paceline.policies import policy
from paceline_host import planner
from paceline_host.simulation.faults import Fault, apply
from paceline_host.simulation.models import BoardModel
from paceline_host.simulation.results import Outcome, RoundOutcome, of_rounds
from paceline_host.simulation.scenario import Scenario
from paceline_host.steps import Finish

OnRound = Callable[[int, float, float], None]
KEEP = 20_000  # boards; of more, no round's shares are kept


def simulate_alone(
    scenario: Scenario, models: Sequence[BoardModel], name: str, due: Mapping[int, Sequence[Fault]],
    on_round: OnRound,
) -> Outcome:  # fmt: skip
    """Return one policy's figures, after KeyboardInterrupt those of the rounds until then.

    `on_round` is told each round, and the real seconds and those of a processor that its plan and reports took.
    """
    run = _Alone(scenario, models, name)
    round_s: list[float] = []
    with suppress(KeyboardInterrupt):  # a plan of a million boards takes long, and nobody's journal is open
        for number in range(1, scenario.rounds + 1):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            round_s.append(run.round(number, due.get(number, ())))
            on_round(number, time.perf_counter() - began_s, time.process_time() - began_cpu_s)
    finish = Finish(True, "finished") if len(round_s) == scenario.rounds else Finish(False, "interrupted")
    parts = {"compute": run.compute_j, "wait": run.wait_j, "transfer": 0.0, "wasted": 0.0, "other": 0.0}
    return of_rounds(name, finish, round_s, run.rounds, parts, len(run.unknown), 0, run.notes)


class _Alone:
    """What goes on from round to round."""

    def __init__(self, scenario: Scenario, models: Sequence[BoardModel], name: str) -> None:
        self._models = models
        budget = scenario.budget_of(len(models))
        self._planner = planner.make(policy(name), len(models), budget, scenario.minimum, seed=scenario.seed)
        self._away: set[int] = set()
        self.unknown: set[int] = set()
        self.rounds: dict[int, RoundOutcome] = {}
        self.notes: list[tuple[int, str]] = []
        self.compute_j = self.wait_j = 0.0

    def round(self, number: int, faults: Sequence[Fault]) -> float:
        """Plan a round, let it happen, report it; return its seconds."""
        models, away = self._models, self._away
        present = [i for i in range(len(models)) if i not in away]
        shares = self._planner.plan(present)
        self.notes += ((number, text) for text in self._planner.notes)
        _befall(faults, models, away)
        row = RoundOutcome(number, dict(zip(present, shares, strict=True)))
        for i, n in zip(present, shares, strict=True):
            if n:
                row.delivered(i, n, max(1, int(models[i].seconds(number, n) * 1e6)))
        slowest_s = max(row.compute_us.values()) * 1e-6
        compute_j, wait_j = self._report(number, row, slowest_s)
        if len(models) > KEEP:
            row.forget()
        self.rounds[number] = row
        self.compute_j += compute_j
        self.wait_j += wait_j
        return slowest_s

    def _report(self, number: int, row: RoundOutcome, slowest_s: float) -> tuple[float, float]:
        """Tell the policy what each has measured; return joules of computing and of waiting."""
        made, compute_j, wait_j = self._planner, 0.0, 0.0
        for i, n in row.shares.items():
            model = self._models[i]
            seconds = row.compute_us.get(i, 0) * 1e-6
            waits_s = slowest_s - seconds
            idle_w, active_w = model.watts(number)
            if model.metered:
                compute_j += active_w * seconds
                wait_j += idle_w * waits_s
            else:
                self.unknown.add(i)
            if n:
                made.observe(i, seconds, active_w * seconds if model.metered else None, n)
            if made.heeds_waits and model.metered and waits_s > 0.0 and idle_w > 0.0:
                made.observe_wait(i, waits_s, idle_w * waits_s)
        return compute_j, wait_j


def _befall(faults: Sequence[Fault], models: Sequence[BoardModel], away: set[int]) -> None:
    for fault in faults:
        if fault.what == "leave":
            away.add(fault.board)
        elif fault.what == "return":
            away.discard(fault.board)
        else:
            apply(fault, models[fault.board])
