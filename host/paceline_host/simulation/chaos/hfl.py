# SPDX-License-Identifier: Apache-2.0
"""Regime hfl under faults: its production machine and store, and what ought to come of them beside what ranks leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from paceline import wire
from paceline.policies import policy
from paceline_host import records
from paceline_host import steps as s
from paceline_host.ddp.steps import KeepState
from paceline_host.hfl.machine import SiloMachine
from paceline_host.hfl.silos import SLICES, Silo, as_rows
from paceline_host.hfl.store import SiloStore
from paceline_host.ledger import LAPSED
from paceline_host.muster import Muster
from paceline_host.planner import Planner, make
from paceline_host.recovery import Recovered
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.ddp import ChaosRankStore, Ranks, RankWitness
from paceline_host.simulation.chaos.disk import Disk, Doom
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import Plan
from paceline_host.simulation.chaos.rank import ChaosRank
from paceline_host.simulation.chaos.witness import Witness
from paceline_host.simulation.clock import Clock


class ChaosSiloStore(ChaosRankStore, SiloStore):
    """The production store of silos."""


class Silos(Ranks):
    """Two silos. See Setting."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        half, budget, samples = plan.boards // 2, plan.budget // 2, plan.samples // 2
        self.silos = [
            Silo(0, "north", tuple(range(half)), budget, samples),
            Silo(1, "south", tuple(range(half, plan.boards)), plan.budget - budget, plan.samples - samples),
        ]
        self._rules = [{"kind": "range"}] * 2

    def _of(self, board: int) -> Silo:
        return next(silo for silo in self.silos if board in silo.boards)

    def board(self, number: int, name: str) -> ChaosBoard:
        board = self.made(ChaosRank, number, name, self.net)
        board._samples = self._of(number).samples
        return board

    def planner(self) -> Planner:
        plan, silos = self.plan, [(silo.boards, silo.budget) for silo in self.silos]
        return make(policy(plan.policy), plan.boards, plan.budget, plan.minimum, silos, seed=plan.seed)

    def journaled(self) -> Mapping[str, Any]:
        return {"silos": as_rows(self.silos, self._rules)}

    def store(
        self, disk: Disk, doom: Doom, run: records.Run, boards: Sequence[records.Board], clock: Callable[[], float],
        recovered: Recovered | None,
    ) -> ChaosStore:  # fmt: skip
        return ChaosSiloStore(disk, doom, run, boards, self.task, clock, recovered)

    def machine(
        self, facts: s.RunFacts, made: Planner | None, names: Sequence[str], store: ChaosStore,
        reopened: s.Reopened | None,
    ) -> Muster:  # fmt: skip
        assert made is not None
        return SiloMachine(
            facts, self.facts, self.silos, self._rules, made, names, store.model_sha256, self.clock.now_s, reopened
        )

    def witness(self, boards: Sequence[ChaosBoard]) -> Witness:
        return SiloWitness(self.plan, self.task, boards, self.net, self.silos)


class SiloWitness(RankWitness):
    """Knows the mean of what silos leave, and whose samples are whose."""

    def _is_given(self, board: int, message: wire.Assign, owner: int) -> None:
        super()._is_given(board, message, owner)
        silo = self._of[board]
        is_own = message.slice // SLICES == silo.number and owner in silo.boards
        self.check(is_own, f"P2 silo: board {board} of silo {silo.name} is given slice {message.slice} of another")

    def saw(self, action: s.Action | KeepState, machine: Muster) -> None:
        super().saw(action, machine)
        if isinstance(action, s.Note) and action.kind == "lapse" and self.healed:
            may_not = {i for i, board in enumerate(machine.boards) if board.barred}
            may_not |= {board.number for board in self._boards if board.machine._trainer_lives <= 0}
            self.check(
                any(set(silo.boards) <= may_not for silo in self._silos),
                f"P4 lapse: long after all faults {action.detail}",
            )

    def _lapsed(self, number: int) -> Collection[str]:
        texts = self._ask("SELECT detail FROM event WHERE kind = ? AND round = ?", LAPSED, number)
        return {json.loads(text)["silo"] for (text,) in texts}

    def _met(self, base: bytes, ends: Mapping[int, bytes]) -> bytes:
        parts = [(self._silos[number].budget, truth.weights(state)) for number, state in sorted(ends.items())]
        return truth.begun(truth.mean(truth.weights(base), parts))
