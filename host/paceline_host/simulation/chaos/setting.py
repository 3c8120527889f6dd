# SPDX-License-Identifier: Apache-2.0
"""What differs between regimes under faults: the boards' work, the host's machine and store, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from paceline.policies import policy
from paceline_host import planner, records
from paceline_host.muster import Muster
from paceline_host.profile import BoardProfile
from paceline_host.recovery import Recovered
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.disk import Disk, Doom
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import Plan
from paceline_host.simulation.chaos.truth import ChaosTask
from paceline_host.simulation.chaos.witness import Witness
from paceline_host.simulation.clock import Clock
from paceline_host.simulation.models import BoardModel
from paceline_host.steps import Reopened, RunFacts

B = TypeVar("B", bound=ChaosBoard)


class Setting:
    """One run of a regime. A subclass says what its parts are."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan, self.clock = plan, clock
        self.task = ChaosTask(plan.samples, plan.model_bytes, plan.seconds_per_sample)
        self.model_bytes = self.task.manifest.nbytes  # that travel

    # The subclass's parts -------------------------------------------------------------------------------------------

    def store(
        self, disk: Disk, doom: Doom, run: records.Run, boards: Sequence[records.Board], clock: Callable[[], float],
        recovered: Recovered | None,
    ) -> ChaosStore:  # fmt: skip
        """Return the store of one life of the host."""
        raise NotImplementedError

    def machine(
        self, facts: RunFacts, made: planner.Planner | None, names: Sequence[str], store: ChaosStore,
        reopened: Reopened | None,
    ) -> Muster:  # fmt: skip
        """Return the machine of one life of the host."""
        raise NotImplementedError

    def witness(self, boards: Sequence[ChaosBoard]) -> Witness:
        """Return who watches the run through all lives of its host."""
        raise NotImplementedError

    # What most have in common ---------------------------------------------------------------------------------------

    def board(self, number: int, name: str) -> ChaosBoard:
        """Return a board."""
        return self.made(ChaosBoard, number, name)

    def made(self, kind: Callable[..., B], number: int, name: str, *more: object) -> B:
        """Return a board of a kind; `more`: what that kind is given besides."""
        plan = self.plan
        profile = BoardProfile(name, plan.speeds[number], 2.0, 6.0)
        model = BoardModel(profile, number, plan.seed, plan.batch, plan.seconds_per_sample, noise=0.1)
        chance = Random(f"board {plan.seed} {number}")
        return kind(self.clock, number, name, model, self.task, plan.batch, chance, *more)

    def planner(self) -> planner.Planner | None:
        """Return what plans its rounds; None: nothing does."""
        plan = self.plan
        return planner.make(policy(plan.policy), plan.boards, plan.budget, plan.minimum, seed=plan.seed)

    def journaled(self) -> Mapping[str, Any]:
        """Return what the journal says of the run besides."""
        return {}
