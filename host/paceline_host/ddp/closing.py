# SPDX-License-Identifier: Apache-2.0
"""The end of a round of ranks: one gives its state, the others close, all accounts are journaled. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import RemoteProtocolError
from paceline.transfer import Receiver
from paceline.wire import (
    Answer,
    Chunk,
    Commit,
    Credit,
    Result,
)  # fmt: skip
from paceline_host import steps as s
from paceline_host.boards import part_of
from paceline_host.ddp.groups import RankGroups
from paceline_host.ddp.leases import ACCOUNTS, KEEPING, STATE
from paceline_host.ddp.steps import (
    CloseSteps,
    KeepState,
    RankPart,
    StateKept,
    StateRefused,
)
from paceline_host.muster import REFUSALS


class RankClosing(RankGroups):
    """See RankMachine."""

    def _ask_state(self, now_s: float) -> None:
        """All steps are done on every rank that is left: one of them gives the state."""
        self.stage, self._idle = STATE, 0
        self._group_due_s = float("inf")
        leader = next(i for i in self._order if i in self._work)
        self._giver = leader
        self._tell(leader, "give", b"-")
        self._work[leader].due_s = now_s + 2 * self.facts.patience_s

    def _result(self, index: int, message: Result, now_s: float) -> None:
        member, facts = self._work.get(index), self.facts
        is_asked = member is not None and member.due_s < float("inf")
        is_turn = index == self._giver if self.stage == STATE else self.stage == ACCOUNTS
        if member is None or not is_asked or not is_turn:
            raise RemoteProtocolError("result that was not asked for")
        item = member.hold.slice
        size = facts.model_bytes if self.stage == STATE else 0
        expected = (facts.run, item.round, item.index, self._attempt, size)
        stated = (message.run, message.round, message.slice, message.attempt, message.update_bytes)
        if stated != expected:
            self._fail(index, f"its result {stated} does not match the assignment {expected}", now_s)
            return
        member.hold.result, member.due_s = message, now_s + facts.patience_s
        if size:
            board = self.boards[index]
            member.hold.receiver = Receiver(size, facts.credit_bytes, board.chunk_bytes, board.rate_in, 0)

    def _chunk(self, index: int, message: Chunk, nbytes: int, now_s: float) -> None:
        member = self._work.get(index)
        if member is None or member.hold.receiver is None or member.hold.result is None:
            raise RemoteProtocolError("chunk without an announced result")
        receiver = member.hold.receiver
        receiver.take(message.offset, nbytes, now_s)
        if receiver.moved():
            member.due_s = now_s + self.facts.patience_s
        self._out.append(s.WriteUpload(index, part_of(member.hold.result), message.offset))
        if (upto := receiver.grant()) is not None:
            self._send(index, Credit(message.session, member.hold.number, receiver.have, upto))

    def _commit(self, index: int, message: Commit, now_s: float) -> None:
        member = self._work.get(index)
        if member is None or member.hold.result is None:
            raise RemoteProtocolError("commit without a result")
        receiver = member.hold.receiver
        if receiver is not None and not receiver.done:
            self._fail(index, "commit before the whole state was here", now_s)
            return
        member.commit, member.due_s = message, float("inf")
        if receiver is not None and self.stage == STATE:
            self.stage = KEEPING
            self._out.append(KeepState(index, member.hold.number, self.ranks.steps, member.hold.result))
        elif self.stage == ACCOUNTS:
            self._close_if_complete(now_s)

    def _kept(self, event: StateKept, now_s: float) -> None:
        if self.phase != "working" or self.stage != KEEPING:
            return
        self.stage = ACCOUNTS
        if self.ranks.own_buffers:
            text = f"round {self.round}: BatchNorm's statistics are those of {self.boards[event.board].name}"
            self._out.append(s.Note("buffers", text, event.board, loud=False, round=self.round))
        for index, member in self._work.items():
            if member.commit is None:
                self._tell(index, "close", b"-")
                member.due_s = now_s + 2 * self.facts.patience_s
        self._close_if_complete(now_s)

    def _state_refused(self, event: StateRefused, now_s: float) -> None:
        if self.phase != "working" or self.stage != KEEPING:
            return
        self._refusals += 1
        self._last_refusal = f"{self.boards[event.board].name}: {event.reason}"
        self._out.append(s.Note("rejected", f"round {self.round} is void: {self._last_refusal}", event.board))
        if self._refusals >= REFUSALS:
            hint = "has training diverged? a smaller learning_rate may help"
            self._stop(s.Stop(f"round {self.round} was void {REFUSALS} times: {event.reason}; {hint}"), now_s)
            return
        self._begin_anew("its state was refused", now_s)

    def _close_if_complete(self, now_s: float) -> None:
        if self.stage != ACCOUNTS or any(member.commit is None for member in self._work.values()):
            return
        plan = self._plan_of()
        self.phase, self.stage = "closing", ""
        assert self._planned_s is not None
        self.round_seconds.append(now_s - self._planned_s)
        parts = [RankPart(item.board, item, 0, steps) for item, steps in plan.counted]
        for item in plan.slices:
            member = self._work.get(item.board)
            if member is None:  # it was lost after the last step
                parts.append(RankPart(item.board, item, 0, plan.steps))
            else:
                parts.append(
                    RankPart(item.board, item, member.hold.number, plan.steps, member.hold.result, member.commit)
                )
        if not plan.slices:  # all was counted before the last group
            parts = self._accounted(parts)
        figures = {i: member.done for i, member in self._work.items() if member.done is not None}
        self._observe(parts)
        self._tell_round_closed()
        self._out.append(CloseSteps(self.round, self._attempt, tuple(parts), figures, self.ranks.steps, self._voids))

    def _accounted(self, parts: list[RankPart]) -> list[RankPart]:
        """Give each board's account to its last part."""
        last = {part.board: i for i, part in enumerate(parts)}
        for index, member in self._work.items():
            if index in last:
                i = last[index]
                parts[i] = replace(parts[i], lease=member.hold.number, result=member.hold.result, commit=member.commit)
        return parts

    def _observe(self, parts: Sequence[RankPart]) -> None:
        for index, board in enumerate(self.boards):  # also of one that was lost: its steps stay counted
            board.share = board.done = sum(part.slice.samples for part in parts if part.board == index)
        for member in self._work.values():
            member.hold.samples = 0  # they are among those that are done
        for part in parts:
            if part.result is None or part.commit is None or not part.result.compute_us:
                continue
            board = self.boards[part.board]
            samples = board.done
            energy_j = None if part.commit.compute_uj is None else part.commit.compute_uj * 1e-6
            self._planner.observe(part.board, part.result.compute_us * 1e-6, energy_j, samples)
            board.energy_per_sample_j = None if energy_j is None else energy_j / samples
            board.failures = 0

    def _settle(self, left_sha256: str, base_sha256: str, now_s: float) -> None:
        """The round is on disk, and left this state with its ranks; the next one begins with the base."""
        self._base = base_sha256
        self._states = {}
        for index, member in self._work.items():
            board, result = self.boards[index], member.hold.result
            self._counted.add((member.hold.slice.round, member.hold.slice.index))
            if result is not None and board.usable and left_sha256 == base_sha256:
                self._states[index] = result.update_sha256
            if result is not None and result.update_sha256 != left_sha256 and not self.ranks.own_buffers:
                text = f"its state after round {self.round} is {result.update_sha256[:12]}, expected {left_sha256[:12]}"
                self._out.append(s.Note("drift", f"{board.name}: {text}", index))
            if board.session is not None and board.session.lease == member.hold.number:
                self._hold(index, Answer(board.session.nonce, member.hold.number, "accepted", "", 0))
            board.lease, board.since_s = None, now_s
        self._work, self._order = {}, []
