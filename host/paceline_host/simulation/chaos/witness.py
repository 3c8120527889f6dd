# SPDX-License-Identifier: Apache-2.0
"""Checks the promises of paceline after every event of a run under faults, from what it sees itself.

It reads what goes over the links and, through a connection of its own, what is committed; what ought to stand there it
computes from `truth`. Each complaint begins with the promise that is broken: P1-P10 of the design's fault model, or
L (leases, fencing, handover).
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import wire
from paceline.core import permutation
from paceline.errors import RemoteProtocolError
from paceline.session import is_older
from paceline_host import checkpoint
from paceline_host import machine as m
from paceline_host.journal import JOURNAL, connect
from paceline_host.ledger import Ledger
from paceline_host.records import Contribution, Round, Slice
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.plan import Plan
from paceline_host.simulation.chaos.truth import ChaosTask

SLACK_S = 0.5  # between the end of a lease and the agent's next look at it


@dataclass
class Grant:
    """A lease as it was told to a board."""

    board: int
    session: int
    round: int
    slice: int
    ranges: tuple[wire.Range, ...]
    is_over: bool = False


class Broken(Exception):
    """A promise is broken."""


class Witness:
    """Watches one run through all lives of its host."""

    def __init__(self, plan: Plan, task: ChaosTask, boards: Sequence[ChaosBoard]) -> None:
        self._plan, self._task, self._boards = plan, task, boards
        self.healed = False  # long enough ago: nothing may be lost any more
        self.checks = 0
        self._db: sqlite3.Connection | None = None
        self._grants: dict[int, Grant] = {}
        self._nonces: dict[int, int] = {}  # by board, of its newest session that this life of the host has heard of
        self._holds: dict[int, tuple[int, int]] = {}  # by board, the result that its last HELLO named
        self._told: dict[tuple[int, int], str] = {}  # (round, slice) that was called accepted -> its update
        self._models = {0: task.initial()}
        self._closed: dict[int, str] = {}  # round -> hash of its model
        self._epoch = 0
        self._blurred = plan.hostile if "corrupt" in plan.kinds else None  # the nonces that it says may not be its own
        self._greets = False
        self._speaks: wire.Message | None = None
        self._until_s: dict[int, float] = {}  # by board, when the lease ends that it was told of, at the latest
        self._ends: Counter[tuple[int, int]] = Counter()  # by board and life of its agent: how often it heard END

    def check(self, holds: bool, text: str) -> None:
        """Complain unless it holds."""
        self.checks += 1
        if not holds:
            raise Broken(text)

    # Lives of the host ----------------------------------------------------------------------------------------------

    def begins(self, folder: Path, epoch: int, said: Sequence[str], machine: m.RoundMachine) -> None:
        """A life of the host has opened the journal. What was promised before must be there."""
        self.check(epoch > self._epoch, f"L epoch: a life of the host has the number {epoch}, after {self._epoch}")
        self._epoch = epoch
        self.check(not said, f"P1 checkpoint: {'; '.join(said)}")
        self._nonces.clear()
        self._holds.clear()
        self._db = connect(folder / JOURNAL, "ro")
        rows = {(r, s): sha for r, s, sha in self._ask("SELECT round, slice, update_sha256 FROM contribution "
                                                       "WHERE verdict = 'accepted'")}  # fmt: skip
        for key, sha in self._told.items():
            self.check(rows.get(key) == sha, f"P1 kept: slice {key[1]} of round {key[0]} was accepted and is lost")
        closed = dict(self._ask("SELECT round, model_sha256 FROM round WHERE closed_s IS NOT NULL"))
        for number, sha in self._closed.items():
            self.check(closed.get(number) == sha, f"P3 rounds: round {number} was closed with another model")
        self.committed(machine)

    def ends(self) -> None:
        """That life is over."""
        if self._db is not None:
            self._db.close()
            self._db = None

    # What goes over the links ---------------------------------------------------------------------------------------

    def hears(self, board: int, header: bytes) -> None:
        """The host is taking a message."""
        self._greets, self._speaks = False, None
        try:
            message = self._speaks = wire.decode(header, wire.FROM_AGENT)
        except RemoteProtocolError:
            return
        if not isinstance(message, wire.Hello) or not message.proto_min <= wire.PROTOCOL <= message.proto_max:
            return
        if not is_older(message.session, self._nonces.get(board, 0)):
            self._greets = True
            self._nonces[board] = message.session
            self._holds[board] = message.kept_round, message.kept_slice

    def said(self, board: int) -> None:
        """It gives that message to the machine: is it of the present session and lease?"""
        message = self._speaks
        self.check(
            message is not None and self._is_newest(board, message.session),
            f"L fencing: board {board} is heard in a session that another one has replaced",
        )
        lease = 0 if isinstance(message, wire.Ping | wire.Delivery) else getattr(message, "lease", 0)
        grant = self._grants.get(lease)
        self.check(
            not lease or (grant is not None and grant.board == board and not grant.is_over),
            f"L fencing: board {board} is heard under lease {lease}, which is over or another's",
        )

    def _is_newest(self, board: int, session: int) -> bool:
        return board == self._blurred or session == self._nonces.get(board)

    def heard(self, board: int, present: int | None, *, holds: bool) -> None:
        """It has. `present`: nonce of the board's session; `holds`: its answers go where that message came from."""
        if self._greets:
            nonce = self._nonces[board]
            self.check(present == nonce and holds, f"L handover: board {board} greets as {nonce:x}, and is not heard")

    def told(self, board: int, header: bytes) -> None:
        """The host tells a board something: is it so?"""
        message = wire.decode(header, wire.FROM_HOST)
        if isinstance(message, wire.Assign):
            if message.answered:
                self._is_on_disk(message.answered)
            if message.closed:
                self._is_complete(message.closed)
            self._granted(board, message)
        elif isinstance(message, wire.Answer):
            if message.verdict in ("accepted", "duplicate"):
                self._is_on_disk(message.lease)
            elif message.lease in self._grants:
                self._grants[message.lease].is_over = True
        elif isinstance(message, wire.Cancel) and message.lease in self._grants:
            self._grants[message.lease].is_over = True
        elif isinstance(message, wire.Reject) and message.code == "fenced":
            known = board != self._blurred and message.session == self._nonces.get(board)
            self.check(not known, f"L handover: board {board} is fenced in its newest session")
        elif isinstance(message, wire.RoundClosed):
            self._is_complete(message.round)
        elif isinstance(message, wire.Load) and message.counted:
            self._is_accepted(*self._holds[board], "its board was told at its return that it counts")
        elif isinstance(message, wire.End):
            self._ends[board, self._boards[board].life] += 1
            if message.reason != "finished":
                return
            (left,) = self._ask("SELECT count(*) FROM round WHERE closed_s IS NULL")[0]
            self.check(not left, "P3 rounds: the run is called finished, and a round is open")

    def _granted(self, board: int, message: wire.Assign) -> None:
        number, key = message.lease, (message.round, message.slice)
        rows = self._ask("SELECT board, ranges FROM slice WHERE round = ? AND slice = ?", *key)
        self.check(len(rows) == 1, f"P3 plan: slice {key[1]} of round {key[0]} is given out, and not on disk")
        self.check(rows[0][0] == board, f"L lease: slice {key} of board {rows[0][0]} is given to board {board}")
        self.check(number not in self._grants, f"L lease: number {number} is given twice")
        self.check(
            message.base_sha256 == truth.sha(self._model(message.round - 1)),
            f"P3 base: slice {key} is to be trained from another model than that of round {message.round - 1}",
        )
        for other in self._grants.values():
            if other.board == board or (other.round, other.slice) == key:
                other.is_over = True
        self._grants[number] = Grant(board, message.session, *key, message.ranges)

    def _is_on_disk(self, lease: int) -> None:
        grant = self._grants[lease]
        self._is_accepted(grant.round, grant.slice, f"lease {lease} was answered")

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

    def saw(self, action: m.Action, machine: m.RoundMachine) -> None:
        """The machine has decided something."""
        if isinstance(action, m.StoreResult):
            self._is_fenced(action)
        elif isinstance(action, m.StoreSlices) and action.first:
            given = {item.board: item.samples for item in action.slices}
            usable = {i for i, board in enumerate(machine.boards) if board.usable}
            least = self._plan.minimum
            self.check(given.keys() == usable, f"P4 plan: boards {usable} are there, {set(given)} are given work")
            if self.healed:
                honest = [board for i, board in enumerate(machine.boards) if i != self._plan.hostile]
                away = [board.name for board in honest if not (board.usable or board.barred)]
                away = [each.name for each in self._boards if each.name in away and each.machine._trainer_lives > 0]
                self.check(not away, f"P4 plan: long after all faults {away} get no work")
            self.check(
                sum(given.values()) == self._plan.budget and min(given.values()) >= least,
                f"P4 plan: shares {given}, the budget is {self._plan.budget}, each has at least {least}",
            )
        elif isinstance(action, m.StoreLoss | m.Note) and self.healed and action.board != self._plan.hostile:
            lost = isinstance(action, m.StoreLoss) or action.kind in ("lost", "expired", "barred", "rejected")
            self.check(not lost, f"L lost: long after all faults board {action.board}: {_why(action)}")

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
        """The machine has taken an event: every open slice is in just one place, and there is something to wait for."""
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
            self.check(machine.wake_s() < float("inf"), "P7 waits: the host waits for something without a deadline")

    # What is committed ----------------------------------------------------------------------------------------------

    def committed(self, machine: m.RoundMachine) -> None:
        """Something may have been committed: does the open round hold, and each round that is closed since?"""
        rounds = self._ask("SELECT round, base_sha256, model_sha256, closed_s FROM round ORDER BY round")
        self.check([r[0] for r in rounds] == list(range(1, len(rounds) + 1)), "P3 rounds: one is missing")
        for number, base, model, closed_s in rounds:
            if number in self._closed:
                self.check(model == self._closed[number], f"P3 rounds: round {number} was closed with another model")
                continue
            self.check(
                base == truth.sha(self._model(number - 1)), f"P3 base: round {number} is planned from another model"
            )
            accepted = self._accepted(number)
            if closed_s is not None:
                self._closed_rightly(number, model, accepted)

    def _accepted(self, number: int) -> list[tuple[int, int, bytes]]:
        """Return what is accepted of a round, each as it ought to be: (slice, samples, update)."""
        slices = {
            index: (board, _ranges(text), redealt)
            for index, board, text, redealt in self._ask(
                "SELECT slice, board, ranges, redealt_from FROM slice WHERE round = ?", number
            )
        }
        redealt = {from_ for _, _, from_ in slices.values() if from_ is not None}
        base, out = self._model(number - 1), []
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

    def _closed_rightly(self, number: int, sha: str, accepted: Sequence[tuple[int, int, bytes]]) -> None:
        counted = sum(samples for _, samples, _ in accepted)
        self.check(counted == self._plan.budget, f"P4 budget: {counted} samples in round {number}")
        model = truth.mean(self._model(number - 1), [(samples, update) for _, samples, update in accepted])
        self.check(sha == truth.sha(model), f"P3 model: round {number} has left another model than its updates make")
        self._models[number], self._closed[number] = model, sha

    def _model(self, number: int) -> bytes:
        self.check(number in self._models, f"P3 rounds: the model of round {number} is used, and the round is open")
        return self._models[number]

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        assert self._db is not None
        return self._db.execute(query, values).fetchall()

    # Boards ---------------------------------------------------------------------------------------------------------

    def board_hears(self, board: ChaosBoard, header: bytes) -> None:
        """A board takes a message: for how long does it hold its lease now, at most?"""
        message, now_s, old_s = wire.decode(header, wire.FROM_HOST), board.clock.now_s, self._until_s.get(board.number)
        assign = board.machine._assign
        present = assign.lease if assign is not None else 0
        if isinstance(message, wire.Assign) or (isinstance(message, wire.Pong) and message.lease == present):
            self._until_s[board.number] = now_s + message.lease_s
        elif isinstance(message, wire.Chunk | wire.Credit) and assign is not None and old_s is not None:
            self._until_s[board.number] = max(old_s, now_s + max(assign.lease_s, self._plan.patience_s))

    def board_stepped(self, board: ChaosBoard) -> None:
        """A board's machine has taken an event."""
        assign, now_s = board.machine._assign, board.clock.now_s
        who = f"board {board.number}"
        if assign is not None:
            end_s = self._until_s[board.number] + self._plan.patience_s * board.machine._offering
            self.check(
                now_s <= end_s + SLACK_S or board.was_frozen,
                f"L lease: {who} goes on after the end of lease {assign.lease}",
            )
        if board.is_working and not board.hangs:
            self.check(
                assign is not None and assign.lease == board.is_working,
                f"L lease: the trainer of {who} works on lease {board.is_working}, which its agent has not",
            )
        windows, ends = len(board.windows), self._ends[board.number, board.life]
        self.check(windows <= 1 + ends, f"P6 window: one life of {who} has opened {windows} windows of {1 + ends} runs")

    # The end --------------------------------------------------------------------------------------------------------

    def finished(self, folder: Path) -> None:
        """The run is over: does its ledger prove it?"""
        with Ledger(folder) as ledger:
            proof = ledger.verify()
            faults = [text for text in proof.faults if self._plan.hostile is None or "energy" not in text]
            self.check(not faults, f"P3 ledger: {'; '.join(faults)}")
            self.check(proof.rounds == self._plan.rounds, f"P3 ledger: {proof.rounds} rounds")
            for row in ledger.rounds():
                self._each_once(ledger.slices(row.round), ledger.contributions(row.round, "accepted"), row)
            for joules in ledger.energy():
                unknown = bool(joules.flags & wire.ENERGY_FLAGS["unknown"])
                self.check(
                    (joules.total_uj is None) == unknown or joules.board == self._plan.hostile,
                    f"P6 joules: {joules.total_uj} uJ of board {joules.board}, with flags {joules.flags}",
                )
            model, sha = checkpoint.load(checkpoint.path(folder, self._plan.rounds), self._task.manifest)
            self.check(sha == self._closed[self._plan.rounds] == truth.sha(model), "P3 model: the last one is another")

    def _each_once(self, slices: Sequence[Slice], accepted: Sequence[Contribution], row: Round) -> None:
        """Count samples one by one, as nothing in the product does."""
        ranges = {item.index: item.ranges for item in slices}
        seen: set[tuple[int, int]] = set()
        for c in accepted:
            for epoch, begin, end in ranges[c.slice]:
                order = permutation(self._plan.seed, epoch, self._plan.samples)
                for position in range(begin, end):
                    key = epoch, int(order[position])
                    self.check(key not in seen, f"P2 counted: sample {key} twice in round {row.round}")
                    seen.add(key)
        self.check(len(seen) == self._plan.budget, f"P4 budget: {len(seen)} samples in round {row.round}")


def _ranges(text: str) -> tuple[wire.Range, ...]:
    return tuple((epoch, begin, end) for epoch, begin, end in json.loads(text))


def _why(action: m.StoreLoss | m.Note) -> str:
    return action.reason if isinstance(action, m.StoreLoss) else f"{action.kind}: {action.detail}"
