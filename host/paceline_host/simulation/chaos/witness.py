# SPDX-License-Identifier: Apache-2.0
"""Checks the promises of paceline after every event of a run under faults, from what it sees itself: what holds under
every regime.

It reads what goes over the links and, through a connection of its own, what is committed; what ought to stand there
the regime's own witness, a subclass, computes from `truth`. Each complaint begins with the promise that is broken:
P1-P10 of the design's fault model, or L (leases, fencing, handover).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import wire
from paceline.core import permutation
from paceline.errors import RemoteProtocolError
from paceline.session import is_older
from paceline_host import machine as m
from paceline_host.journal import JOURNAL, connect
from paceline_host.ledger import Ledger
from paceline_host.muster import Muster
from paceline_host.records import Round
from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.plan import Plan

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

    LOST = ("lost", "expired", "barred", "rejected", "failed", "broken", "void")  # kinds of notes, if nothing is wrong

    def __init__(self, plan: Plan, boards: Sequence[ChaosBoard]) -> None:
        self._plan, self._boards = plan, boards
        self.healed = False  # long enough ago: nothing may be lost any more
        self.checks = 0
        self._db: sqlite3.Connection | None = None
        self._grants: dict[int, Grant] = {}
        self._nonces: dict[int, int] = {}  # by board, of its newest session that this life of the host has heard of
        self._kept: dict[int, tuple[int, int]] = {}  # by board, the result that its last HELLO named
        self._closed: dict[int, str] = {}  # round -> hash of its model
        self._epoch = 0
        self._blurred = plan.hostile if "corrupt" in plan.kinds else None  # the nonces that it says may not be its own
        self._greets = False
        self._speaks: wire.Message | None = None
        self._until_s: dict[int, float] = {}  # by board, when the lease ends that it was told of, at the latest
        self._ends: Counter[tuple[int, int]] = Counter()  # by board and life of its agent: how often it heard END

    # For the regime's own witness -----------------------------------------------------------------------------------

    def _is_given(self, board: int, message: wire.Assign, owner: int) -> None:
        """A slice of `owner` is given out: to the right board, and to be trained from the right model?"""
        raise NotImplementedError

    def _is_on_disk(self, grant: Grant) -> None:
        """A board was told that what it did under a lease counts."""
        raise NotImplementedError

    def _is_counted(self, board: int) -> None:
        """A board was told at its return that what it kept counts."""

    def _is_complete(self, number: int) -> None:
        """Boards are told that a round is closed."""

    def _is_planned(self, action: m.StoreSlices, machine: Muster) -> None:
        """A round is planned: for those who are there, and as much as the budget?"""
        raise NotImplementedError

    def _still_holds(self) -> None:
        """A life of the host has opened the journal: is what boards were told before there?"""

    def _holds(self, number: int, base: str, model: str, closed: bool) -> None:
        """A round that was not closed before is in the journal: is what it says of it so?"""
        raise NotImplementedError

    def _proves(self, ledger: Ledger, row: Round) -> None:
        """The run is over: was each sample of a round counted once?"""
        raise NotImplementedError

    def stepped(self, machine: Any, idle: bool) -> None:
        """The machine has taken an event: is there something to wait for? `idle`: nothing is on its way to the disk."""
        if idle and machine.phase in ("working", "planning"):
            self.check(machine.wake_s() < float("inf"), "P7 waits: the host waits for something without a deadline")

    # What all use ---------------------------------------------------------------------------------------------------

    def closes(self, number: int, model: str, ought: str) -> None:
        """A round is closed: did it leave the model that it ought to leave?"""
        self.check(model == ought, f"P3 model: round {number} has left another model than its updates make")
        self._closed[number] = model

    def check(self, holds: bool, text: str) -> None:
        """Complain unless it holds."""
        self.checks += 1
        if not holds:
            raise Broken(text)

    # Lives of the host ----------------------------------------------------------------------------------------------

    def begins(self, folder: Path, epoch: int, said: Sequence[str], machine: Muster) -> None:
        """A life of the host has opened the journal. What was promised before must be there."""
        self.check(epoch > self._epoch, f"L epoch: a life of the host has the number {epoch}, after {self._epoch}")
        self._epoch = epoch
        self.check(not said, f"P1 checkpoint: {'; '.join(said)}")
        self._nonces.clear()
        self._kept.clear()
        self._db = connect(folder / JOURNAL, "ro")
        self._still_holds()
        closed = dict(self._ask("SELECT round, model_sha256 FROM round WHERE closed_s IS NOT NULL"))
        for number, sha in self._closed.items():
            self.check(closed.get(number) == sha, f"P3 rounds: round {number} was closed with another model")
        self.committed()

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
            self._kept[board] = message.kept_round, message.kept_slice

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
                self._is_on_disk(self._grants[message.answered])
            if message.closed:
                self._is_complete(message.closed)
            self._granted(board, message)
        elif isinstance(message, wire.Answer):
            if message.verdict in ("accepted", "duplicate"):
                self._is_on_disk(self._grants[message.lease])
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
            self._is_counted(board)
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
        self._is_given(board, message, rows[0][0])
        self.check(number not in self._grants, f"L lease: number {number} is given twice")
        for other in self._grants.values():
            if other.board == board:
                other.is_over = True
        self._grants[number] = Grant(board, message.session, *key, message.ranges)

    # What the host decides ------------------------------------------------------------------------------------------

    def saw(self, action: m.Action, machine: Muster) -> None:
        """The machine has decided something."""
        if isinstance(action, m.StoreSlices) and action.first:
            self._is_planned(action, machine)
            if self.healed:
                honest = [board for i, board in enumerate(machine.boards) if i != self._plan.hostile]
                away = [board.name for board in honest if not (board.usable or board.barred)]
                away = [each.name for each in self._boards if each.name in away and each.machine._trainer_lives > 0]
                self.check(not away, f"P4 plan: long after all faults {away} get no work")
        elif isinstance(action, m.StoreLoss | m.Note) and self.healed and self._is_honest(action.board):
            lost = isinstance(action, m.StoreLoss) or action.kind in self.LOST
            self.check(not lost, f"L lost: long after all faults board {action.board}: {_why(action)}")

    def _is_honest(self, board: int | None) -> bool:
        """Tell whether nobody hostile is behind what happened to a board, or, None, to all."""
        return self._plan.hostile is None or board not in (None, self._plan.hostile)

    def are_dealt(self, shares: Mapping[int, int], present: Collection[int], budget: int, least: int) -> None:
        """Shares by board: everybody who is there has one, and together they are the budget."""
        self.check(shares.keys() == set(present), f"P4 plan: boards {present} are there, {set(shares)} are given work")
        self.check(
            sum(shares.values()) == budget and min(shares.values()) >= least,
            f"P4 plan: shares {shares}, the budget is {budget}, each has at least {least}",
        )

    # What is committed ----------------------------------------------------------------------------------------------

    def committed(self) -> None:
        """Something may have been committed: does the open round hold, and each round that is closed since?"""
        rounds = self._ask("SELECT round, base_sha256, model_sha256, closed_s FROM round ORDER BY round")
        self.check([r[0] for r in rounds] == list(range(1, len(rounds) + 1)), "P3 rounds: one is missing")
        for number, base, model, closed_s in rounds:
            if number in self._closed:
                self.check(model == self._closed[number], f"P3 rounds: round {number} was closed with another model")
                continue
            self._holds(number, base, model, closed_s is not None)

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        assert self._db is not None
        return self._db.execute(query, values).fetchall()

    # Boards ---------------------------------------------------------------------------------------------------------

    def board_hears(self, board: ChaosBoard, header: bytes) -> None:
        """A board takes a message: for how long does it hold its lease now, at most?"""
        message = wire.decode(header, wire.FROM_HOST)
        assign = board.machine._assign
        present = assign.lease if assign is not None else 0
        if isinstance(message, wire.Assign) or (isinstance(message, wire.Pong) and message.lease == present):
            self._until_s[board.number] = board.clock.now_s + message.lease_s
        elif isinstance(message, wire.Chunk | wire.Credit | wire.Tensor) and assign is not None:
            self.renews(board, max(assign.lease_s, self._plan.patience_s))

    def renews(self, board: ChaosBoard, seconds: float) -> None:
        """A board's lease goes on for so long at least: bytes of it have moved."""
        end_s = board.clock.now_s + seconds
        self._until_s[board.number] = max(self._until_s.get(board.number, end_s), end_s)

    def board_stepped(self, board: ChaosBoard) -> None:
        """A board's machine has taken an event."""
        assign, now_s = board.machine._assign, board.clock.now_s
        who = f"board {board.number}"
        if assign is not None:
            end_s = self._until_s[board.number] + self._plan.patience_s * board.machine._offering
            end_s = max(end_s, board.gave_s + assign.lease_s if board.gave_s else 0.0)
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

    def each_once(self, ledger: Ledger, number: int, samples: int, budget: int, boards: Collection[int]) -> None:
        """Count samples that boards gave to a round one by one, as nothing in the product does."""
        ranges = {item.index: item.ranges for item in ledger.slices(number)}
        seen: set[tuple[int, int]] = set()
        for c in ledger.contributions(number, "accepted"):
            for epoch, begin, end in ranges[c.slice] if c.board in boards else ():
                order = permutation(self._plan.seed, epoch, samples)
                for position in range(begin, end):
                    key = epoch, int(order[position])
                    self.check(key not in seen, f"P2 counted: sample {key} twice in round {number}")
                    seen.add(key)
        self.check(len(seen) == budget, f"P4 budget: {len(seen)} samples in round {number}")

    def finished(self, folder: Path) -> None:
        """The run is over: does its ledger prove it?"""
        with Ledger(folder) as ledger:
            proof = ledger.verify()
            faults = [text for text in proof.faults if self._plan.hostile is None or "energy" not in text]
            self.check(not faults, f"P3 ledger: {'; '.join(faults)}")
            self.check(proof.rounds == self._plan.rounds, f"P3 ledger: {proof.rounds} rounds")
            for row in ledger.rounds():
                self._proves(ledger, row)
            for joules in ledger.energy():
                unknown = bool(joules.flags & wire.ENERGY_FLAGS["unknown"])
                self.check(
                    (joules.total_uj is None) == unknown or joules.board == self._plan.hostile,
                    f"P6 joules: {joules.total_uj} uJ of board {joules.board}, with flags {joules.flags}",
                )


def _why(action: m.StoreLoss | m.Note) -> str:
    return action.reason if isinstance(action, m.StoreLoss) else f"{action.kind}: {action.detail}"
