# SPDX-License-Identifier: Apache-2.0
"""Regime ddp under faults: its production machine and store, and what ought to come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random

from paceline import wire
from paceline.uneven import Deal
from paceline_host import checkpoint, records
from paceline_host import steps as s
from paceline_host.ddp.machine import RankMachine
from paceline_host.ddp.steps import KeepState, RankFacts
from paceline_host.ddp.store import RankStore
from paceline_host.hfl.silos import SLICES, Silo
from paceline_host.ledger import Ledger
from paceline_host.muster import Muster
from paceline_host.planner import Planner
from paceline_host.psl.store import read_state
from paceline_host.recovery import Recovered
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.disk import Disk, Doom
from paceline_host.simulation.chaos.group import Net
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import Plan
from paceline_host.simulation.chaos.rank import ChaosRank
from paceline_host.simulation.chaos.setting import Setting
from paceline_host.simulation.chaos.truth import ChaosTask
from paceline_host.simulation.chaos.witness import Grant, Witness
from paceline_host.simulation.clock import Clock


class ChaosRankStore(ChaosStore, RankStore):
    """The production store of ranks; their first state needs no torch."""

    _task: ChaosTask

    def _first_state(self) -> bytes:
        return truth.first_state(self._task)


class Ranks(Setting):
    """See Setting."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        self.model_bytes = len(truth.first_state(self.task))
        self.net = Net(clock, plan.patience_s, Random(f"net {plan.seed}"))

    @property
    def facts(self) -> RankFacts:
        """What a round is made of."""
        return RankFacts(self.plan.steps, 1, {"plain": True})

    def board(self, number: int, name: str) -> ChaosBoard:
        return self.made(ChaosRank, number, name, self.net)

    def store(
        self, disk: Disk, doom: Doom, run: records.Run, boards: Sequence[records.Board], clock: Callable[[], float],
        recovered: Recovered | None,
    ) -> ChaosStore:  # fmt: skip
        return ChaosRankStore(disk, doom, run, boards, self.task, clock, recovered)

    def machine(
        self, facts: s.RunFacts, made: Planner | None, names: Sequence[str], store: ChaosStore,
        reopened: s.Reopened | None,
    ) -> Muster:  # fmt: skip
        assert made is not None
        return RankMachine(facts, self.facts, made, names, store.model_sha256, self.clock.now_s, reopened)

    def witness(self, boards: Sequence[ChaosBoard]) -> Witness:
        everybody = Silo(0, "", tuple(range(self.plan.boards)), self.plan.budget, self.plan.samples)
        return RankWitness(self.plan, self.task, boards, self.net, [everybody])


class RankWitness(Witness):
    """Knows the state that each round leaves, whoever has stepped: each step takes the next places of the stream.

    `silos`: who steps together, and has a stream and a budget.
    """

    def __init__(
        self, plan: Plan, task: ChaosTask, boards: Sequence[ChaosBoard], net: Net, silos: Sequence[Silo]
    ) -> None:
        super().__init__(plan, boards)
        self._task, self._net, self._silos = task, net, silos
        self._of = {board: silo for silo in silos for board in silo.boards}
        self._states = {0: truth.first_state(task)}
        self._lapses: dict[int, Collection[str]] = {}  # by round, the silos that have left it out
        self._told: set[int] = set()  # rounds of which a board was told that its part counts

    # What boards are told -------------------------------------------------------------------------------------------

    def _still_holds(self) -> None:
        closed = {number for (number,) in self._ask("SELECT round FROM round WHERE closed_s IS NOT NULL")}
        self.check(self._told <= closed, f"P1 kept: of rounds {self._told} that were called counted, {closed} are")

    def _is_given(self, board: int, message: wire.Assign, owner: int) -> None:
        before = truth.sha(self._states[message.round - 1]) if message.round - 1 in self._states else None
        self.check(
            message.base_sha256 in ("", before),
            f"P3 base: round {message.round} is to begin with another state than that of the round before",
        )

    def _is_on_disk(self, grant: Grant) -> None:
        self._is_closed(grant.round, f"the lease of board {grant.board} was answered")

    def _is_counted(self, board: int) -> None:
        self._is_closed(self._kept[board][0], "its board was told at its return that it counts")

    def _is_closed(self, number: int, why: str) -> None:
        rows = self._ask("SELECT 1 FROM round WHERE round = ? AND closed_s IS NOT NULL", number)
        self.check(len(rows) == 1, f"P1 acknowledged: round {number} is not on disk, and {why}")
        self._told.add(number)

    # What the host decides ------------------------------------------------------------------------------------------

    def saw(self, action: s.Action | KeepState, machine: Muster) -> None:
        if isinstance(action, KeepState):
            grant = self._grants.get(action.lease)
            self.check(
                grant is not None and grant.board == action.board and not grant.is_over
                and self._is_newest(action.board, grant.session) and action.result.session == grant.session,
                f"L fencing: a state of board {action.board} under lease {action.lease}, which is over or another's",
            )  # fmt: skip
            return
        if isinstance(action, s.StoreSlices) and not action.first:
            self._is_dealt_anew(action)
        super().saw(action, machine)

    def _is_planned(self, action: s.StoreSlices, machine: Muster) -> None:
        for silo in self._silos:
            shares = {item.board: item.samples for item in action.slices if item.index // SLICES == silo.number}
            boards = machine.boards  # one that has gone since, as words of this turn did not reach it, was there
            if present := [i for i in silo.boards if boards[i].usable or (i in shares and boards[i].session is None)]:
                self.are_dealt(shares, present, silo.budget, self._plan.minimum)

    def _is_dealt_anew(self, action: s.StoreSlices) -> None:
        """What is dealt while a round is open are places of it, each once, and no silo's go to a board of another."""
        seen: set[int] = set()
        for item in action.slices:
            silo = self._of[item.board]
            self.check(item.index // SLICES == silo.number, f"P2 silo: slice {item.index} is given to silo {silo.name}")
            for epoch, begin, end in item.ranges:
                places = set(range(epoch * silo.samples + begin, epoch * silo.samples + end))
                self.check(not seen & places, f"P2 dealt: a place of round {item.round} goes to two boards")
                seen |= places
            stretch = _stretch(silo, item.round)
            self.check(seen <= set(stretch), f"P2 dealt: places outside of round {item.round}, which has {stretch}")

    # What is committed ----------------------------------------------------------------------------------------------

    def _holds(self, number: int, base: str, model: str, closed: bool) -> None:
        self.check(number - 1 in self._states, f"P3 rounds: round {number} begins, and the one before it is open")
        state = self._states[number - 1]
        self.check(base == truth.sha(truth.weights(state)), f"P3 base: round {number} is planned from another model")
        if not closed:
            return
        ends, done = dict[int, bytes](), []
        lapsed = self._lapses[number] = self._lapsed(number)
        for silo in self._silos:
            if silo.name not in lapsed:
                ends[silo.number], ways = self._after(state, silo, number)
                done.append((silo, ways))
        state = self._states[number] = self._met(state, ends)
        ((left,),) = self._ask("SELECT state_sha256 FROM epoch WHERE round = ?", number)
        self.check(left == truth.sha(state), f"P3 state: round {number} has left another state than its steps make")
        self.closes(number, model, truth.sha(truth.weights(state)))
        for silo, ways in done:
            self._is_credited(number, silo, ways)

    def _after(self, state: bytes, silo: Silo, number: int) -> tuple[bytes, list[Sequence[Counter[int]]]]:
        """Return the state after a silo's steps of a round, and who did each of them, each time that it was done."""
        ways: list[Sequence[Counter[int]]] = []
        stretch, deal = _stretch(silo, number), Deal([silo.budget], self._plan.steps, 1)
        for step in range(self._plan.steps):
            state = truth.stepped(state, [stretch[place] for place in deal.places(step, 0)])
            ways.append(self._net.done.get(truth.sha(state), ()))
        return state, ways

    def _lapsed(self, number: int) -> Collection[str]:
        """Return the silos that have left a round out."""
        return ()

    def _met(self, base: bytes, ends: Mapping[int, bytes]) -> bytes:
        """Return the state with which the next round begins, from those that silos have ended with."""
        return ends[0]

    def _is_credited(self, number: int, silo: Silo, ways: Sequence[Sequence[Counter[int]]]) -> None:
        """Boards are credited with what they did in the steps: one of the times that each step was done is counted."""
        credit: Counter[int] = Counter()
        for lease, board, samples, sha, uj in self._ask(
            "SELECT lease, board, samples, update_sha256, compute_uj FROM contribution "
            "WHERE round = ? AND verdict = 'accepted'", number,
        ):  # fmt: skip
            if board not in silo.boards:
                continue
            credit[board] += samples
            grant = self._grants.get(lease)
            self.check(
                not lease or (grant is not None and (grant.board, grant.round) == (board, number)),
                f"L fencing: round {number} is counted under lease {lease} of board {board}, which was not given so",
            )
            if sha and board != self._plan.hostile:
                said = self._boards[board].measured.get(sha, [])
                self.check(uj in said, f"P6 joules: {uj} uJ of board {board} are counted, it has measured {said}")
        sums = {frozenset[tuple[int, int]]()}
        for options in ways:
            sums = {frozenset((Counter(dict(one)) + more).items()) for one in sums for more in options}
        self.check(
            frozenset(credit.items()) in sums, f"P2 counted: round {number} credits {dict(credit)}, done was {ways}"
        )

    # The end --------------------------------------------------------------------------------------------------------

    def finished(self, folder: Path) -> None:
        super().finished(folder)
        last, state = self._plan.rounds, self._states[self._plan.rounds]
        model, sha = checkpoint.load(checkpoint.path(folder, last), self._task.manifest)
        self.check(sha == self._closed[last] == truth.sha(model), "P3 model: the last one is another")
        self.check(read_state(folder, last, truth.sha(state)) == state, "P3 state: the last one is another")

    def _proves(self, ledger: Ledger, row: records.Round) -> None:
        for silo in self._silos:
            if silo.name not in self._lapses[row.round]:
                self.each_once(ledger, row.round, silo.samples, silo.budget, silo.boards)


def _stretch(silo: Silo, number: int) -> range:
    return range((number - 1) * silo.budget, number * silo.budget)
