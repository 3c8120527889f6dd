# SPDX-License-Identifier: Apache-2.0
"""Regime psl under faults: its production machine and store, and what ought to come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from paceline import wire
from paceline_host import checkpoint, records
from paceline_host import steps as s
from paceline_host.ledger import Ledger
from paceline_host.muster import Muster
from paceline_host.planner import Planner
from paceline_host.psl.machine import SplitMachine
from paceline_host.psl.steps import CloseEpoch, SplitFacts
from paceline_host.psl.store import SplitStore, read_state
from paceline_host.recovery import Recovered
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.client import DIGEST_BYTES, SAMPLE, Books, ChaosClient, ChaosSide
from paceline_host.simulation.chaos.disk import Disk, Doom
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import Plan
from paceline_host.simulation.chaos.setting import Setting
from paceline_host.simulation.chaos.witness import Grant, Witness
from paceline_host.simulation.clock import Clock
from paceline_host.store import Job, StoreEvent


class ChaosSplitStore(ChaosStore, SplitStore):
    """The production store of split learning, over a side that trains nothing. It shows its books as it closes them."""

    def __init__(self, *of_store: Any, side: Callable[[], ChaosSide], closes: Callable[[int, Books], None]) -> None:
        self._made, self._closes = side, closes
        super().__init__(*of_store)

    def _side(self, *_: object) -> Any:
        self.side = self._made()
        return self.side

    def _shows(self, job: Job) -> list[StoreEvent]:
        assert isinstance(job.action, CloseEpoch)
        done = self._close(job)
        books = self.side.books
        self._closes(job.action.round, books)
        self.side.books = Books(books.state)
        return done

    _JOBS: dict[type[object], Callable[[Any, Job], list[StoreEvent]]] = {**SplitStore._JOBS, CloseEpoch: _shows}


class Splitting(Setting):
    """See Setting."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        chance = Random(f"clients {plan.seed}")
        clients = chance.randint(plan.boards, 3 * plan.boards)
        edges = [0, *sorted(chance.sample(range(1, plan.samples), clients - 1)), plan.samples]
        sizes = tuple(b - a for a, b in pairwise(edges))
        holds = tuple(range(i * clients // plan.boards, (i + 1) * clients // plan.boards) for i in range(plan.boards))
        self.part_bytes = plan.model_bytes // 2
        self.facts = SplitFacts(
            plan.policy, sizes, holds, self.part_bytes, lambda count: 2 * DIGEST_BYTES + count * SAMPLE.size,
            lambda count: DIGEST_BYTES + 4 * count, {}, tuple(sum(sizes[c] for c in held) for held in holds),
        )  # fmt: skip
        self.complaints: list[str] = []
        self.books: dict[int, Books] = {}  # by epoch, as it was last closed

    def board(self, number: int, name: str) -> ChaosBoard:
        return self.made(ChaosClient, number, name, self.facts)

    def planner(self) -> None:
        return None

    def store(
        self, disk: Disk, doom: Doom, run: records.Run, boards: Sequence[records.Board], clock: Callable[[], float],
        recovered: Recovered | None,
    ) -> ChaosStore:  # fmt: skip
        def side() -> ChaosSide:
            return ChaosSide(self.task, self.part_bytes, self.complaints.append)

        return ChaosSplitStore(
            disk, doom, run, boards, self.task, clock, recovered, side=side, closes=self.books.__setitem__
        )

    def machine(
        self, facts: s.RunFacts, made: Planner | None, names: Sequence[str], store: ChaosStore,
        reopened: s.Reopened | None,
    ) -> Muster:  # fmt: skip
        return SplitMachine(facts, self.facts, names, self.clock.now_s, reopened)

    def witness(self, boards: Sequence[ChaosBoard]) -> Witness:
        return SplitWitness(self, boards)


class SplitWitness(Witness):
    """Knows from the host's side which samples the steps of an epoch have used, and of which client part."""

    def __init__(self, setting: Splitting, boards: Sequence[ChaosBoard]) -> None:
        super().__init__(setting.plan, boards)
        self._setting = setting
        self._states = {0: truth.first_state(setting.task)}

    # What boards are told -------------------------------------------------------------------------------------------

    def _is_given(self, board: int, message: wire.Assign, owner: int) -> None:
        self.check(owner == board, f"L lease: the clients of board {owner} are given to board {board}")
        self.check(not message.base_sha256, "P3 base: a client part comes with each step, not with the lease")

    def _is_on_disk(self, grant: Grant) -> None:
        rows = self._ask("SELECT 1 FROM round WHERE round = ? AND closed_s IS NOT NULL", grant.round)
        self.check(
            len(rows) == 1, f"P1 acknowledged: board {grant.board} was answered, and epoch {grant.round} is open"
        )

    # What the host decides ------------------------------------------------------------------------------------------

    def _is_planned(self, action: s.StoreSlices, machine: Muster) -> None:
        sizes, facts = self._setting.facts.sizes, self._setting.facts
        planned = {item.board: item.samples for item in action.slices}
        held = {board: sum(sizes[c] for c in facts.clients(board)) for board in range(self._plan.boards)}
        self.check(planned == held, f"P4 plan: {planned} of the samples {held}")

    def saw(self, action: Any, machine: Muster) -> None:
        if isinstance(action, CloseEpoch):
            without = [board.name for board in machine.boards if board.barred]
            without += [board.name for board in self._boards if board.machine._trainer_lives <= 0]
            left_out = bool(action.left and self.healed and not without)
            self.check(not left_out, f"P4 left: {action.left} samples of epoch {action.round}, long after all faults")
        else:
            super().saw(action, machine)

    def stepped(self, machine: Any, idle: bool) -> None:
        super().stepped(machine, idle)
        self.check(not self._setting.complaints, "; ".join(self._setting.complaints))

    # What is committed ----------------------------------------------------------------------------------------------

    def _holds(self, number: int, base: str, model: str, closed: bool) -> None:
        self.check(number - 1 in self._states, f"P3 rounds: epoch {number} begins, and the one before it is open")
        before = truth.weights(self._states[number - 1])
        self.check(base == truth.sha(before), f"P3 base: epoch {number} is planned from another model")
        if not closed:
            return
        books = self._setting.books[number]
        ((steps, left, state),) = self._ask("SELECT steps, left, state_sha256 FROM epoch WHERE round = ?", number)
        sizes = self._setting.facts.sizes
        self.check(len(set(books.used)) == len(books.used), f"P2 counted: a sample is used twice in epoch {number}")
        self.check(len(books.used) + left == sum(sizes), f"P4 budget: {len(books.used)} samples, {left} are left out")
        self.check(
            steps == books.steps, f"P3 steps: {steps} are in the journal of epoch {number}, done were {books.steps}"
        )
        self._is_credited(number, books)
        self._states[number] = books.state
        self.check(
            state == truth.sha(books.state), f"P3 state: epoch {number} has left another state than its steps make"
        )
        self.closes(number, model, truth.sha(truth.weights(books.state)))

    def _is_credited(self, number: int, books: Books) -> None:
        """Boards are credited with what they gave, and with joules that their meters have said."""
        credit: Counter[int] = Counter()
        for board, samples, sha, uj in self._ask(
            "SELECT board, samples, update_sha256, compute_uj FROM contribution "
            "WHERE round = ? AND verdict = 'accepted'", number,
        ):  # fmt: skip
            credit[board] += samples
            if sha and board != self._plan.hostile:
                said = self._boards[board].measured.get(sha, [])
                self.check(uj in said, f"P6 joules: {uj} uJ of board {board} are counted, it has measured {said}")
        self.check(credit == books.given, f"P2 counted: epoch {number} credits {dict(credit)}, given was {books.given}")

    # The end --------------------------------------------------------------------------------------------------------

    def finished(self, folder: Path) -> None:
        super().finished(folder)
        last, state = self._plan.rounds, self._states[self._plan.rounds]
        model, sha = checkpoint.load(checkpoint.path(folder, last), self._setting.task.manifest)
        self.check(sha == self._closed[last] == truth.sha(model), "P3 model: the last one is another")
        self.check(read_state(folder, last, truth.sha(state)) == state, "P3 state: the last one is another")

    def _proves(self, ledger: Ledger, row: records.Round) -> None:
        taken = sum(step.samples for step in ledger.steps(row.round))
        used = len(self._setting.books[row.round].used)
        self.check(taken == used, f"P4 budget: the steps of epoch {row.round} have {taken} samples, used were {used}")
