# SPDX-License-Identifier: Apache-2.0
"""The rounds of one run. Pure: events in, actions out, time is an argument; knows no socket, file, clock or tensor.

Life of a slice: planned -> leased to a board -> taken -> result uploaded -> verified and journaled -> accepted.
Whatever ends a lease early (loss, failure, refusal, expiry) turns the slice's ranges into new slices for the boards
still there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline import allocate
from paceline.errors import RemoteProtocolError
from paceline.session import Session, State
from paceline.transfer import Receiver, Sender
from paceline.wire import (
    INLINE_BYTES,
    Answer,
    Assign,
    Cancel,
    Chunk,
    Commit,
    Credit,
    Delivery,
    Energy,
    Failed,
    Message,
    Ping,
    Pong,
    Result,
    clip,
    energy_of,
)  # fmt: skip
from paceline_host import left_out
from paceline_host.boards import Board, Lease, part_of
from paceline_host.muster import FIRST_LEASE, Muster
from paceline_host.planner import Planner
from paceline_host.policy_notes import POLICY, kind_of
from paceline_host.regimes import Regime, Slice
from paceline_host.steps import (
    Action,
    Connected,
    Event,
    Finish,
    FinishRound,
    Gone,
    Loss,
    Note,
    Part,
    Reopened,
    ResultRefused,
    ResultStored,
    RoundDone,
    RunFacts,
    Said,
    Send,
    SlicesStored,
    Stop,
    StoreEnergy,
    StoreLoss,
    StoreReady,
    StoreResult,
    StoreSlices,
    Tick,
    WriteUpload,
)
from paceline_host.waits import IDLE, Waits
from paceline_host.waits import KIND as WAITS

UNSAID = 2.0  # patiences in which a board that has done its work must announce the result; a large one is written first

__all__ = [
    "Action",
    "Board",
    "Connected",
    "Event",
    "Finish",
    "FinishRound",
    "Gone",
    "Lease",
    "Loss",
    "Note",
    "Part",
    "Reopened",
    "ResultRefused",
    "ResultStored",
    "RoundDone",
    "RoundMachine",
    "RunFacts",
    "Said",
    "Send",
    "SlicesStored",
    "Stop",
    "StoreEnergy",
    "StoreLoss",
    "StoreReady",
    "StoreResult",
    "StoreSlices",
    "Tick",
    "WriteUpload",
]


class RoundMachine(Muster):
    """Runs `facts.rounds` rounds over boards named `names`, starting from the model whose hash is `base_sha256`."""

    def __init__(
        self, facts: RunFacts, regime: Regime, planner: Planner, names: Sequence[str], base_sha256: str, now_s: float,
        reopened: Reopened | None = None,
    ) -> None:  # fmt: skip
        super().__init__(facts, names, now_s)
        self._regime, self._planner = regime, planner
        self._base = base_sha256
        self._model: bytes | None = None  # with the next: what a lease remembers of its base besides
        self._version = 0
        self._lease_number = 0
        self._open: dict[int, Slice] = {}  # slices of this round that are not accepted yet
        self._next_index = 0
        self._judging: dict[int, tuple[int, Lease]] = {}  # results in the store's hands; nothing may end these leases
        self._unsure: list[tuple[int, Session, tuple[int, int]]] = []  # boards that came back with a judged result
        self._orphans: list[Slice] = []
        self._refusing = False  # the last failure was an update that was refused
        self._planned_s = 0.0
        self._waits = Waits()
        self._idle_w: dict[int, float] = {}  # that the policy was told
        self._told: tuple[str, ...] = ()  # notes of the policy that were said last
        self._reopened = reopened  # until the first work is given out
        self._started = False
        if reopened is not None:
            self._take_up(reopened)

    def _take_up(self, reopened: Reopened) -> None:
        self.round, self.round_seconds = reopened.round, list(reopened.round_seconds)
        self._counted |= reopened.counted
        for index, part in reopened.parts.items():
            self.boards[index].part = part
        self._lease_number = reopened.lives << 32  # above all that an earlier life can have granted
        if reopened.closed and reopened.round >= self.facts.rounds:
            self._due = "end"
        elif reopened.round and not reopened.closed and not reopened.open_slices:
            self.phase, self._due = "closing", "close"

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the policy's present estimate of a board."""
        return self._planner.seconds_per_sample(board)

    # What the muster asks -------------------------------------------------------------------------------------------

    def _wakes(self) -> list[float]:
        times = [board.hold_end_s for board in self.boards]
        for board in self.boards:
            if board.lease is not None and board.lease.number not in self._judging:
                times.append(board.lease.due_s)
        return times

    def _begin_run(self, now_s: float) -> None:
        self._started = True
        if self._reopened is not None and self._reopened.open_slices:
            self._reopen(self._reopened, now_s)
        else:
            self._plan(now_s)

    def _is_ready(self, index: int, now_s: float) -> None:
        self._hand_out_orphans(now_s)
        self._assign(index, now_s)

    def _is_gone(self, index: int, reason: str, now_s: float) -> None:
        self._unload(index, "lost", reason, now_s)

    def _load(self, index: int, session: Session, kept: tuple[int, int]) -> None:
        judged = {(lease.slice.round, lease.slice.index) for _, lease in self._judging.values()}
        if kept in judged:  # whether it is on disk, the store is about to say
            self._unsure.append((index, session, kept))
        else:
            super()._load(index, session, kept)

    def _load_unsure(self) -> None:
        unsure, self._unsure = self._unsure, []
        for index, session, kept in unsure:
            if self.boards[index].session is session:
                self._load(index, session, kept)

    def _hint(self) -> str:
        return "; has training diverged? a smaller learning_rate may help" if self._refusing else ""

    def _stop_work(self, reason: str) -> None:
        self._open.clear()
        for index, board in enumerate(self.boards):
            if board.lease is not None and board.session is not None:
                self._send(index, Cancel(board.session.nonce, board.lease.number, clip(reason)))
            board.lease = None
            board.queue.clear()

    def _time_passed(self, now_s: float) -> None:
        for index, board in enumerate(self.boards):
            if now_s >= board.hold_end_s:
                self._unload(index, "lost", "it did not come back in time", now_s)
        for index, board in enumerate(self.boards):
            lease = board.lease
            if lease is None or board.session is None or lease.number in self._judging:
                continue
            if now_s >= lease.due_s:
                reason = lease.fault(self.facts.patience_s)
                self._out.append(Note("expired", f"{board.name}: {reason}", index))
                self._send(index, Cancel(board.session.nonce, lease.number, reason))
                board.failures += 1
                self._bar_if_hopeless(index, reason)
                self._unload(index, "lost", reason, now_s)

    def _replaced(self, index: int, kept: tuple[int, int], now_s: float) -> None:
        """A board connects anew: what it has finished it may offer again, anything else is dealt to others."""
        board = self.boards[index]
        lease = board.lease
        if lease is None or lease.number in self._judging or kept != (lease.slice.round, lease.slice.index):
            self._gone(Gone(index, "a new session replaced it"), now_s)
            return
        self._out.append(Note("back", f"{board.name} connected anew and offers its result again", index))
        if lease.result is not None and lease.receiver is not None:
            board.part = replace(part_of(lease.result), have=lease.receiver.have)
        board.queue.appendleft(lease.slice)
        board.share -= lease.slice.samples
        board.lease, board.hold_end_s = None, now_s + self.facts.patience_s

    # Rounds ---------------------------------------------------------------------------------------------------------

    def _plan(self, now_s: float) -> None:
        present = [i for i, board in enumerate(self.boards) if board.usable]
        if not present:
            self.phase = "planning"
            self._alone(now_s)
            return
        self._alone_s = None
        self.round += 1
        self._counted = {key for key in self._counted if key[0] >= self.round - 1}
        self.phase = "planning"
        self._tell_waits()
        shares = self._planner.plan(present)
        self._note_policy()
        self._out += left_out.note(self.round, present, shares)
        slices = self._regime.plan(self.round, list(zip(present, shares, strict=True)))
        self._open = {s.index: s for s in slices}
        for board in self.boards:
            board.share = board.done = 0
        self._next_index = len(slices)
        self._out.append(StoreSlices(tuple(slices), first=True))

    def _tell_waits(self) -> None:
        """Let the policy know what boards drew while they waited, and the journal, since a resume tells it again.

        Until a board has waited, what it drew before the first round stands for that.
        """
        waits = self._waits.take()
        if not self._planner.heeds_waits:
            return
        idle = {
            index: board.ready.idle_uw * 1e-6
            for index, board in enumerate(self.boards)
            if index not in self._idle_w and board.ready is not None and board.ready.idle_uw
        }
        self._idle_w |= idle
        for index, watts in idle.items():
            self._planner.observe_idle(index, watts)
        for index, (seconds, joules) in sorted(waits.items()):
            self._planner.observe_wait(index, seconds, joules)
        for kind, told in ((IDLE, idle), (WAITS, waits)):
            if told:
                self._out.append(Note(kind, json.dumps(told, sort_keys=True), loud=False, round=self.round))

    def _note_policy(self) -> None:
        notes = self._planner.notes
        for text in notes:
            if kind_of(text) not in self._told:
                self._out.append(Note(POLICY, text, round=self.round))
        self._told = tuple(map(kind_of, notes))

    def _joules(self, index: int, message: Energy, now_s: float) -> None:
        self._energy(index, message, now_s)
        if message.run == self.facts.run:
            self._waits.told(index, message)

    def _reopen(self, reopened: Reopened, now_s: float) -> None:
        """Go on with a round that was open when the host ended: its slices go to their own boards, if these are here.

        A board that has finished its slice in the meantime answers at once; a lease that had ended is dealt anew.
        """
        self.phase, self._planned_s = "working", now_s - reopened.elapsed_s
        self._open = {item.index: item for item in reopened.open_slices}
        self._next_index = reopened.next_index
        for index, samples in reopened.done:
            self.boards[index].share += samples
            self.boards[index].done += samples
        for index, board in enumerate(self.boards):
            if board.usable:
                self._begin(index)
        for item in reopened.open_slices:
            if item.index in reopened.lost or not self.boards[item.board].usable:
                self._redeal(item, now_s)
            else:
                self.boards[item.board].queue.append(item)
        for index in range(len(self.boards)):
            self._assign(index, now_s)

    def _stored(self, event: SlicesStored, now_s: float) -> None:
        if self.phase == "planning":
            self.phase, self._planned_s = "working", now_s
            for index, board in enumerate(self.boards):
                if board.usable:
                    self._begin(index)
        touched = []
        for item in event.slices:
            if item.index not in self._open:
                continue
            if self.boards[item.board].usable:
                self.boards[item.board].queue.append(item)
                touched.append(item.board)
            else:
                self._redeal(item, now_s)
        for index in touched:
            self._assign(index, now_s)

    def _assign(self, index: int, now_s: float) -> None:
        board, facts = self.boards[index], self.facts
        if board.lease is not None or not board.queue or not board.usable or board.session is None:
            return
        item = board.queue.popleft()
        board.hold_end_s = float("inf")
        self._lease_number += 1
        per_sample = self._planner.seconds_per_sample(index)
        lease_s = (
            facts.patience_s * FIRST_LEASE if per_sample is None else 2 * per_sample * item.samples + facts.patience_s
        )
        lease = Lease(
            self._lease_number, item, self._base, now_s, lease_s, now_s + lease_s, model=self._model,
            version=self._version,
        )  # fmt: skip
        board.lease, board.since_s = lease, now_s
        board.share += item.samples
        nbytes = 0 if board.base == self._base else facts.model_bytes
        inline = 0 < nbytes <= INLINE_BYTES
        self._send(
            index,
            Assign(
                board.session.nonce, facts.run, item.round, item.index, 0, lease.number, lease_s, facts.batch,
                item.ranges, self._base, nbytes, *self._take_held(index),
            ),
            (0, nbytes) if inline else None, lease.model,
        )  # fmt: skip
        if nbytes and not inline:
            lease.sender = Sender(nbytes, board.chunk_bytes, facts.credit_bytes, board.rate_out)
            lease.stalls_s = now_s + facts.patience_s
            self._push(index)

    def _push(self, index: int) -> None:
        board = self.boards[index]
        if board.lease is None or board.lease.sender is None or board.session is None:
            return
        for piece in board.lease.sender.pieces():
            self._send(index, Chunk(board.session.nonce, board.lease.number, piece[0]), piece, board.lease.model)
        if board.lease.sender.done:  # the last pieces are not acknowledged: from here on the lease is the deadline
            board.lease.stalls_s = float("inf")

    def _close_if_complete(self, now_s: float) -> None:
        if self.phase != "working" or self._open:
            return
        self.phase = "closing"
        self.round_seconds.append(now_s - self._planned_s)
        self._tell_round_closed()
        self._out.append(FinishRound(self.round))

    def _round_done(self, event: RoundDone, now_s: float) -> None:
        if self.phase != "closing":  # stopped in the meantime
            return
        self._base = event.model_sha256
        if not self._goes_on(event.round, now_s):
            return
        if self._started:
            self._plan(now_s)
        else:  # taken up with a round that only had to be closed
            self.phase, self._start_end_s, self._reopened = "starting", now_s + self.facts.start_s, None
            self._start_if_complete(now_s)

    def _said(self, event: Said, now_s: float) -> None:
        message = event.message
        if isinstance(message, Chunk):
            self._chunk(event.board, message, event.payload_bytes, now_s)
            return
        whole = self.facts.model_bytes if isinstance(message, Result) and self.facts.model_bytes <= INLINE_BYTES else 0
        if event.payload_bytes not in (0, whole):
            raise RemoteProtocolError(f"{message.kind} with a payload of {event.payload_bytes} bytes")
        if isinstance(message, Delivery) and (energy := energy_of(message)) is not None:
            self._joules(event.board, energy, now_s)
            if self.phase in ("ending", "finished"):
                return  # its work was cancelled
        self._MESSAGES.get(type(message), Muster._nothing)(self, event.board, message, now_s)
        lease = self.boards[event.board].lease
        if event.payload_bytes and lease is not None and lease.receiver is not None:  # else the result was refused
            self._chunk(event.board, Chunk(message.session, lease.number, 0), event.payload_bytes, now_s)
        if isinstance(message, Delivery) and lease is not None and lease.result is message:
            m = message
            commit = Commit(
                m.session, m.lease, m.compute_uj, m.bound_uj, m.energy_source, m.energy_flags, m.sampling_uj
            )
            self._commit(event.board, commit, now_s)

    def _ping(self, index: int, message: Ping, now_s: float) -> None:
        board = self.boards[index]
        lease, left_s = board.lease, 0.0
        if lease is not None and message.lease == lease.number:
            samples = min(message.samples, lease.slice.samples)  # beyond that nothing renews a lease
            if samples > lease.samples:
                lease.samples = samples
                remaining_s = (lease.slice.samples - lease.samples) * (now_s - lease.granted_s) / lease.samples
                lease.end_s = max(lease.end_s, now_s + 2 * remaining_s + self.facts.patience_s)
            if samples == lease.slice.samples and lease.result is None:  # it is on the way, or went with a connection
                lease.stalls_s = min(lease.stalls_s, now_s + UNSAID * self.facts.patience_s)
            left_s = max(0.0, lease.end_s - now_s)
        if board.session is not None:
            self._send(index, Pong(board.session.nonce, message.lease, left_s))

    def _credit(self, index: int, message: Credit, now_s: float) -> None:
        lease = self.boards[index].lease
        if lease is not None and lease.sender is None and lease.result is not None:
            return  # for a model that the board turned out not to need
        if lease is None or lease.sender is None:
            raise RemoteProtocolError("credit without a transfer")
        lease.sender.granted(message.have, message.upto, now_s)
        if lease.sender.moved():
            lease.end_s = max(lease.end_s, now_s + lease.seconds)
            lease.stalls_s = now_s + self.facts.patience_s
        self._push(index)

    def _result(self, index: int, message: Result, now_s: float) -> None:
        board = self.boards[index]
        lease, facts = board.lease, self.facts
        if lease is None:
            raise RemoteProtocolError("result without a lease")
        item = lease.slice
        expected = (facts.run, item.round, item.index, 0, item.samples, lease.base, facts.model_bytes)
        stated = (
            message.run, message.round, message.slice, message.attempt, message.samples, message.base_sha256,
            message.update_bytes,
        )  # fmt: skip
        wrong = [
            f"{name} {got!r} instead of {want!r}"
            for name, got, want in zip(
                ("run", "round", "slice", "attempt", "samples", "base", "bytes"), stated, expected, strict=True
            )
            if got != want
        ]
        if message.compute_us <= 0:
            wrong.append("no compute time")
        if wrong:
            self._reject_work(index, "its result does not match the assignment: " + ", ".join(wrong), now_s)
            return
        lease.result, lease.samples = message, message.samples
        lease.end_s = max(lease.end_s, now_s + facts.patience_s)
        board.since_s = now_s
        if not message.again or (lease.sender is not None and lease.sender.done):
            board.base = lease.base
        elif lease.sender is not None:  # it needs no model for this slice: the rest is not sent
            board.base, lease.sender = "", None
        part, board.part = board.part, None
        is_known = message.again and part is not None and replace(part, have=0) == part_of(message)
        have = part.have if part is not None and is_known else 0
        lease.receiver = Receiver(facts.model_bytes, facts.credit_bytes, board.chunk_bytes, board.rate_in, have)
        lease.stalls_s = now_s + facts.patience_s
        if message.again:
            self._send(index, Credit(message.session, lease.number, lease.receiver.have, lease.receiver.granted))

    def _chunk(self, index: int, message: Chunk, nbytes: int, now_s: float) -> None:
        lease = self.boards[index].lease
        if lease is None or lease.receiver is None or lease.result is None:
            raise RemoteProtocolError("chunk without an announced result")
        lease.receiver.take(message.offset, nbytes, now_s)
        if lease.receiver.moved():
            lease.end_s = max(lease.end_s, now_s + self.facts.patience_s)
            lease.stalls_s = float("inf") if lease.receiver.done else now_s + self.facts.patience_s
        self._out.append(WriteUpload(index, part_of(lease.result), message.offset))
        upto = lease.receiver.grant()
        if upto is not None:
            self._send(index, Credit(message.session, lease.number, lease.receiver.have, upto))

    def _commit(self, index: int, message: Commit, now_s: float) -> None:
        lease = self.boards[index].lease
        if lease is None or lease.result is None or lease.receiver is None or not lease.receiver.done:
            self._reject_work(index, "commit before the whole update was here", now_s)
            return
        lease.end_s = max(lease.end_s, now_s + self.facts.patience_s)
        lease.commit = message
        self._judging[lease.number] = index, lease
        last = len(self._judging) >= len(self._open)
        self._out.append(StoreResult(index, lease.slice, lease.result, message, last, lease.model, lease.version))

    def _work_failed(self, index: int, message: Failed, now_s: float) -> None:
        board = self.boards[index]
        if self.phase == "ending":  # work that the end of the run has overtaken
            return
        text = f"{board.name}: {message.reason}: {message.detail}"
        self._out.append(Note("failed", text, index))
        if message.lease == 0:
            board.ready = None
        board.base = ""  # whatever went wrong, the model it held may be gone with it
        board.failures += 1
        self._bar_if_hopeless(index, f"{message.reason}: {message.detail}")
        self._unload(index, "failed", f"{message.reason}: {message.detail}", now_s)
        if self.phase == "starting":
            self._start_if_complete(now_s)

    def _accepted(self, event: ResultStored, now_s: float) -> None:
        board = self.boards[event.board]
        _, lease = self._judging.pop(event.lease)
        result, commit = lease.result, lease.commit
        self._counted.add((lease.slice.round, lease.slice.index))
        self._load_unsure()
        if result is None or commit is None or self.phase == "ending":
            return
        energy_j = None if commit.compute_uj is None else commit.compute_uj * 1e-6
        self._planner.observe(event.board, result.compute_us * 1e-6, energy_j, result.samples)
        self._waits.worked(event.board, lease.slice.round, result.compute_us)
        board.energy_per_sample_j = None if energy_j is None else energy_j / result.samples
        board.failures, self._refusing = 0, False
        board.done += result.samples
        self._open.pop(lease.slice.index, None)
        if board.lease is lease and board.session is not None:
            board.lease, board.since_s = None, now_s
            self._hold(event.board, Answer(board.session.nonce, event.lease, "accepted", "", 0))
            self._assign(event.board, now_s)
        self._close_if_complete(now_s)

    def _refused(self, event: ResultRefused, now_s: float) -> None:
        _, lease = self._judging.pop(event.lease)
        self._load_unsure()
        if self.phase == "ending":
            return
        if self.boards[event.board].lease is lease:
            self._reject_work(event.board, event.reason, now_s)
        else:
            self._lose(event.board, lease, "rejected", event.reason, now_s)

    def _reject_work(self, index: int, reason: str, now_s: float) -> None:
        board = self.boards[index]
        assert board.session is not None
        assert board.lease is not None
        self._out.append(Note("rejected", f"{board.name}: update refused: {reason}", index))
        if board.session.state is State.JUDGING:
            self._send(index, Answer(board.session.nonce, board.lease.number, "rejected", clip(reason), 0))
        else:
            self._send(index, Cancel(board.session.nonce, board.lease.number, clip(reason)))
        board.failures += 1
        self._refusing = True
        self._bar_if_hopeless(index, reason)
        self._unload(index, "rejected", reason, now_s)

    # Lost work ------------------------------------------------------------------------------------------------------

    def _unload(self, index: int, verdict: Loss, reason: str, now_s: float) -> None:
        """Take lease and queue from a board, journal the loss, deal the ranges out again."""
        board = self.boards[index]
        queued, lease = list(board.queue), board.lease
        board.queue.clear()
        board.hold_end_s = float("inf")
        board.lease = None
        if lease is not None and lease.number not in self._judging:
            self._lose(index, lease, verdict, reason, now_s)
        for item in queued:
            self._redeal(item, now_s, without=index)

    def _lose(self, index: int, lease: Lease, verdict: Loss, reason: str, now_s: float) -> None:
        self._out.append(StoreLoss(index, lease.slice, lease.number, verdict, reason))
        if lease.slice.index in self._open:
            self._redeal(lease.slice, now_s, without=index)

    def _redeal(self, item: Slice, now_s: float, without: int | None = None) -> None:
        present = [i for i, b in enumerate(self.boards) if b.usable]
        others = [i for i in present if i != without] or present
        if not others:
            self._orphans.append(item)
            self._alone(now_s)
            return
        costs = [self._planner.seconds_per_sample(i) for i in others]
        known = sorted(c for c in costs if c is not None)
        typical = known[len(known) // 2] if known else 1.0
        shares = allocate([c if c is not None else typical for c in costs], item.samples, minimum=0)
        fresh = self._regime.on_lost(item, list(zip(others, shares, strict=True)), self._next_index)
        self._next_index += len(fresh)
        del self._open[item.index]
        self._open.update({s.index: s for s in fresh})
        self._out.append(StoreSlices(tuple(fresh), first=False))

    def _hand_out_orphans(self, now_s: float) -> None:
        self._alone_s = None
        orphans, self._orphans = self._orphans, []
        for item in orphans:
            self._redeal(item, now_s)
        if self.phase == "planning" and not self._open:
            self._plan(now_s)

    def _finish_what_is_due(self, now_s: float) -> None:
        due, self._due = self._due, ""
        if due == "end":
            self._end("finished", now_s)
        elif self._reopened is not None:
            self.round_seconds.append(self._reopened.elapsed_s)
            done = self._reopened.done
            self._keep_counted([sum(n for board, n in done if board == i) for i in range(len(self.boards))])
            self._out.append(FinishRound(self.round))

    _MESSAGES: dict[type[Message], Callable[..., None]] = {
        **Muster._MESSAGES, Ping: _ping, Credit: _credit, Result: _result, Delivery: _result, Commit: _commit,
        Failed: _work_failed, Energy: _joules,
    }  # fmt: skip
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        **Muster._HANDLERS, Said: _said, SlicesStored: _stored, ResultStored: _accepted, ResultRefused: _refused,
        RoundDone: _round_done,
    }  # fmt: skip
