# SPDX-License-Identifier: Apache-2.0
"""What ranks hold in the open round: leases, the base that travels with one of them, what is sent. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import RemoteProtocolError
from paceline.transfer import Sender
from paceline.wire import (
    INLINE_BYTES,
    Assign,
    Cancel,
    Chunk,
    Commit,
    Credit,
    Ping,
    Pong,
    Tensor,
    clip,
)  # fmt: skip
from paceline_host import steps as s
from paceline_host.boards import Lease
from paceline_host.ddp.plan import RoundPlan
from paceline_host.ddp.steps import (
    Here,
    RankFacts,
)
from paceline_host.muster import FIRST_LEASE, Muster
from paceline_host.planner import Planner
from paceline_host.psl.steps import TensorOut
from paceline_host.regimes import Slice

# What the round waits for: a plan on disk, ranks to say where they are, a new deal on disk, the first rank's store, all
# to have stepped, the state, its verification, everybody's account.
PLAN, HERE, DEAL, STORE, STEPS, STATE, KEEPING, ACCOUNTS = (
    "plan", "here", "deal", "store", "steps", "state", "keeping", "accounts"
)  # fmt: skip


@dataclass
class Member:
    """A board's part in the open round."""

    hold: Lease
    is_called: bool = True  # False: it is called once it has the base
    loads: bool = False  # the base travels with this lease
    trusted: bool = False  # its memory was the base when it got this lease
    near: bool = False  # or was what the last round left there, perhaps with buffers of its own: its drift can be told
    here: Here | None = None
    done: bytes | None = None
    commit: Commit | None = None
    due_s: float = float("inf")


class RankLeases(Muster):
    """Runs `facts.rounds` rounds of `ranks.steps` steps; `base_sha256` names the state they begin with."""

    def __init__(
        self, facts: s.RunFacts, ranks: RankFacts, planner: Planner, names: Sequence[str], base_sha256: str,
        now_s: float, reopened: s.Reopened | None = None,
    ) -> None:  # fmt: skip
        super().__init__(facts, names, now_s)
        self.ranks = ranks
        self._planner = planner
        self._base = base_sha256
        self._plan_: RoundPlan | None = None
        self._work: dict[int, Member] = {}
        self._order: list[int] = []  # boards of the present group by rank
        self.stage = ""
        self.generation = 0
        self._called_s = 0.0  # when it was called
        self._warned = False
        self._broke_s: float | None = None  # when the last group ended before its round
        self._late = False  # the last group waited in vain for somebody
        self._slow = ""  # who that was, the last time it was found out
        self._idle = 0  # generations in a row that have counted nothing
        self._voids = self._refusals = 0
        self._group_due_s = float("inf")
        self._stays = False  # the deal that is on its way to the disk is for the group that is there
        self._planned_s: float | None = None  # of this round, once its plan is on disk
        self._states: dict[int, str] = {}  # by board: what is in its memory since the last round's end
        self._giver: int | None = None
        self._lease_number = 0
        self._attempt = 0
        self._again: tuple[Slice, ...] = ()  # slices of a round that an earlier life has planned
        self._next_index = 0
        self._fresh = False  # the round is to begin with other slices than those that are planned
        if reopened is not None:
            self.round, self.round_seconds = reopened.round, list(reopened.round_seconds)
            self._lease_number, self._attempt = reopened.lives << 32, reopened.lives << 16
            self._counted |= reopened.counted
            if reopened.closed and reopened.round >= facts.rounds:
                self._due = "end"
            elif not reopened.closed:
                self._again, self._next_index = reopened.open_slices, reopened.next_index

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the policy's present estimate of a board."""
        return self._planner.seconds_per_sample(board)

    @property
    def first_step(self) -> int:
        """Steps of the round that are counted."""
        return self._plan_.first if self._plan_ is not None else 0

    # For the subclass -----------------------------------------------------------------------------------------------

    def _call_one(self, index: int, now_s: float) -> None:
        """Ask a rank where it is."""
        raise NotImplementedError

    # What it does ---------------------------------------------------------------------------------------------------

    def _load_options(self, index: int) -> str:
        return json.dumps({**json.loads(self.facts.options), "split": self.ranks.options})

    def _plan_of(self) -> RoundPlan:
        assert self._plan_ is not None
        return self._plan_

    def _has_base(self, index: int) -> bool:
        return self._states.get(index) == self._base

    def _lease(self, index: int, item: Slice, now_s: float) -> None:
        board, facts = self.boards[index], self.facts
        assert board.session is not None
        self._lease_number += 1
        lease_s = FIRST_LEASE * facts.patience_s
        gives = index == self._giver and not self._has_base(index)
        base = self._base if gives else ""
        hold = Lease(self._lease_number, item, base, now_s, lease_s, float("inf"))
        member = self._work[index] = Member(
            hold, loads=gives, trusted=self._has_base(index), near=index in self._states
        )
        board.lease, board.since_s, board.share = hold, now_s, self._plan_of().shares.get(index, 0)
        nbytes = facts.model_bytes if gives else 0
        inline = 0 < nbytes <= INLINE_BYTES
        self._send(
            index,
            Assign(
                board.session.nonce, facts.run, item.round, item.index, self._attempt, hold.number, lease_s,
                facts.batch, item.ranges, base, nbytes,
            ),
            (0, nbytes) if inline else None,
        )  # fmt: skip
        if nbytes and not inline:
            hold.sender = Sender(nbytes, board.chunk_bytes, facts.credit_bytes, board.rate_out)
            hold.stalls_s = now_s + facts.patience_s
            member.is_called = False
            self._push(index, now_s)

    def _push(self, index: int, now_s: float) -> None:
        board, member = self.boards[index], self._work[index]
        sender = member.hold.sender
        assert board.session is not None
        assert sender is not None
        for piece in sender.pieces():
            self._send(index, Chunk(board.session.nonce, member.hold.number, piece[0]), piece)
        if sender.done:  # the last pieces are not acknowledged
            member.hold.stalls_s = float("inf")
            if not member.is_called:  # what follows arrives behind them
                member.is_called = True
                self._call_one(index, now_s)

    def _tell(self, index: int, what: str, data: bytes) -> None:
        board, member = self.boards[index], self._work[index]
        assert board.session is not None
        message = Tensor(board.session.nonce, member.hold.number, 0, self.generation, what, len(data), 0)
        self._out.append(TensorOut(index, message, (0, len(data)), data))

    def _cancel(self, index: int, reason: str) -> None:
        board, member = self.boards[index], self._work[index]
        if board.session is not None:
            self._send(index, Cancel(board.session.nonce, member.hold.number, clip(reason)))
        board.lease = None

    def _stop_work(self, reason: str) -> None:
        for index in list(self._work):
            self._cancel(index, reason)
        self._work.clear()

    def _ping(self, index: int, message: Ping, now_s: float) -> None:
        board, member = self.boards[index], self._work.get(index)
        left_s = 0.0
        if member is not None and message.lease == member.hold.number:
            left_s = FIRST_LEASE * self.facts.patience_s
            if message.samples > member.hold.samples:
                member.hold.samples = message.samples
                self._group_due_s = now_s + 3 * self.facts.patience_s
        if board.session is not None:
            self._send(index, Pong(board.session.nonce, message.lease, left_s))

    def _credit(self, index: int, message: Credit, now_s: float) -> None:
        member = self._work.get(index)
        if member is None or member.hold.sender is None:
            raise RemoteProtocolError("credit without a transfer")
        sender = member.hold.sender
        sender.granted(message.have, message.upto, now_s)
        if sender.moved():
            member.hold.stalls_s = now_s + self.facts.patience_s
        self._push(index, now_s)
