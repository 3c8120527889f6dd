# SPDX-License-Identifier: Apache-2.0
"""Regime pma under faults: its production machine and store, and what ought to come of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline import wire
from paceline_host import checkpoint, records, regimes
from paceline_host import machine as m
from paceline_host.ledger import Ledger
from paceline_host.muster import Muster
from paceline_host.planner import Planner
from paceline_host.records import Round
from paceline_host.recovery import Recovered
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.disk import Disk, Doom
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import Plan
from paceline_host.simulation.chaos.setting import Setting
from paceline_host.simulation.chaos.truth import ChaosTask
from paceline_host.simulation.chaos.witness import Grant, Witness


class Averaging(Setting):
    """See Setting."""

    def store(
        self, disk: Disk, doom: Doom, run: records.Run, boards: Sequence[records.Board], clock: Callable[[], float],
        recovered: Recovered | None,
    ) -> ChaosStore:  # fmt: skip
        return ChaosStore(disk, doom, run, boards, self.task, clock, recovered)

    def machine(
        self, facts: m.RunFacts, made: Planner | None, names: Sequence[str], store: ChaosStore,
        reopened: m.Reopened | None,
    ) -> Muster:  # fmt: skip
        assert made is not None
        regime = regimes.make("pma", facts.samples, facts.budget)
        return m.RoundMachine(facts, regime, made, names, store.model_sha256, self.clock.now_s, reopened)

    def witness(self, boards: Sequence[ChaosBoard]) -> Witness:
        return AveragingWitness(self.plan, self.task, boards)


class AveragingWitness(Witness):
    """Knows each update and each mean."""

    def __init__(self, plan: Plan, task: ChaosTask, boards: Sequence[ChaosBoard]) -> None:
        super().__init__(plan, boards)
        self._task = task
        self._told: dict[tuple[int, int], str] = {}  # (round, slice) that was called accepted -> its update
        self._models = {0: task.initial()}

    def _model(self, number: int) -> bytes:
        self.check(number in self._models, f"P3 rounds: the model of round {number} is used, and the round is open")
        return self._models[number]

    # What boards are told -------------------------------------------------------------------------------------------

    def _still_holds(self) -> None:
        rows = {(r, s): sha for r, s, sha in self._ask("SELECT round, slice, update_sha256 FROM contribution "
                                                       "WHERE verdict = 'accepted'")}  # fmt: skip
        for key, sha in self._told.items():
            self.check(rows.get(key) == sha, f"P1 kept: slice {key[1]} of round {key[0]} was accepted and is lost")

    def _is_given(self, board: int, message: wire.Assign, owner: int) -> None:
        key = message.round, message.slice
        self.check(owner == board, f"L lease: slice {key} of board {owner} is given to board {board}")
        for other in self._grants.values():
            if (other.round, other.slice) == key:
                other.is_over = True
        self.check(
            message.base_sha256 == truth.sha(self._model(message.round - 1)),
            f"P3 base: slice {key} is to be trained from another model than that of round {message.round - 1}",
        )

    def _is_on_disk(self, grant: Grant) -> None:
        self._is_accepted(grant.round, grant.slice, f"the lease of board {grant.board} was answered")

    def _is_counted(self, board: int) -> None:
        self._is_accepted(*self._kept[board], "its board was told at its return that it counts")

    def _is_accepted(self, round_: int, index: int, why: str) -> None:
        rows = self._ask(
            "SELECT update_sha256 FROM contribution WHERE round = ? AND slice = ? AND verdict = 'accepted'",
            round_, index,
        )  # fmt: skip
        self.check(len(rows) == 1, f"P1 acknowledged: slice {index} of round {round_} is not on disk, and {why}")
        self._told[round_, index] = rows[0][0]

    def _is_complete(self, number: int) -> None:
        (counted,) = self._ask(
            "SELECT sum(samples) FROM contribution WHERE round = ? AND verdict = 'accepted'", number
        )[0]  # fmt: skip
        self.check(counted == self._plan.budget, f"P4 closed: round {number} is called closed with {counted} samples")

    # What the host decides ------------------------------------------------------------------------------------------

    def saw(self, action: m.Action, machine: Muster) -> None:
        if isinstance(action, m.StoreResult):
            self._is_fenced(action)
        else:
            super().saw(action, machine)

    def _is_planned(self, action: m.StoreSlices, machine: Muster) -> None:
        shares = {item.board: item.samples for item in action.slices}
        present = [i for i, board in enumerate(machine.boards) if board.usable]
        self.are_dealt(shares, present, self._plan.budget, self._plan.minimum)

    def _is_fenced(self, action: m.StoreResult) -> None:
        lease, board = action.result.lease, action.board
        grant = self._grants.get(lease)
        self.check(grant is not None, f"L fencing: a result under lease {lease}, which was never given")
        assert grant is not None
        self.check(
            (grant.board, grant.round, grant.slice) == (board, action.slice.round, action.slice.index)
            and not grant.is_over,
            f"L fencing: a result of board {board} under lease {lease}, which is over or another's",
        )
        self.check(
            action.result.session == grant.session and self._is_newest(board, grant.session),
            f"L fencing: a result of board {board} in a session that another one has replaced",
        )

    def stepped(self, machine: m.RoundMachine, idle: bool) -> None:
        super().stepped(machine, idle)
        if machine.phase not in ("working", "planning"):
            return
        held = [item.index for board in machine.boards for item in board.queue]
        leases = [board.lease for board in machine.boards if board.lease is not None]
        judged = [lease for _, lease in machine._judging.values()]
        held += [lease.slice.index for lease in leases if lease not in judged]
        held += [lease.slice.index for lease in judged] + [item.index for item in machine._orphans]
        self.check(len(held) == len(set(held)), f"P2 slices: one is in two places: {sorted(held)}")
        if idle and machine.phase == "working":
            missing = set(machine._open) - set(held)
            self.check(not missing, f"P7 slices: nobody has slices {sorted(missing)} of round {machine.round}")

    # What is committed ----------------------------------------------------------------------------------------------

    def _holds(self, number: int, base: str, model: str, closed: bool) -> None:
        before = self._model(number - 1)
        self.check(base == truth.sha(before), f"P3 base: round {number} is planned from another model")
        accepted = self._accepted(number, before)
        if closed:
            counted = sum(samples for _, samples, _ in accepted)
            self.check(counted == self._plan.budget, f"P4 budget: {counted} samples in round {number}")
            self._models[number] = truth.mean(before, [(samples, update) for _, samples, update in accepted])
            self.closes(number, model, truth.sha(self._models[number]))

    def _accepted(self, number: int, base: bytes) -> list[tuple[int, int, bytes]]:
        """Return what is accepted of a round, each as it ought to be: (slice, samples, update)."""
        slices = {
            index: (board, _ranges(text), redealt)
            for index, board, text, redealt in self._ask(
                "SELECT slice, board, ranges, redealt_from FROM slice WHERE round = ?", number
            )
        }
        redealt = {from_ for _, _, from_ in slices.values() if from_ is not None}
        out = []
        for index, lease, board, samples, sha, uj in self._ask(
            "SELECT slice, lease, board, samples, update_sha256, compute_uj FROM contribution "
            "WHERE round = ? AND verdict = 'accepted' ORDER BY slice", number,
        ):  # fmt: skip
            where = f"slice {index} of round {number}"
            self.check(index not in redealt, f"P2 counted: {where} is counted, and was dealt again")
            ranges = slices[index][1]
            update = truth.update(base, ranges, self._plan.batch)
            self.check(sha == truth.sha(update), f"P3 update: {where} is counted with an update that is not its own")
            self.check(samples == truth.samples_of(ranges), f"P4 samples: {where} is counted with {samples} samples")
            grant = self._grants.get(lease)
            self.check(
                grant is not None and (grant.board, grant.round, grant.slice) == (board, number, index),
                f"L fencing: {where} is counted under lease {lease} of board {board}, which was not given so",
            )
            if board != self._plan.hostile:
                said = self._boards[board].measured.get(sha, [])
                self.check(uj in said, f"P6 joules: {where} is counted with {uj} uJ, its board has measured {said}")
            out.append((index, samples, update))
        return out

    # The end --------------------------------------------------------------------------------------------------------

    def finished(self, folder: Path) -> None:
        super().finished(folder)
        model, sha = checkpoint.load(checkpoint.path(folder, self._plan.rounds), self._task.manifest)
        self.check(sha == self._closed[self._plan.rounds] == truth.sha(model), "P3 model: the last one is another")

    def _proves(self, ledger: Ledger, row: Round) -> None:
        self.each_once(ledger, row.round, self._plan.samples, self._plan.budget, range(self._plan.boards))


def _ranges(text: str) -> tuple[wire.Range, ...]:
    return tuple((epoch, begin, end) for epoch, begin, end in json.loads(text))
