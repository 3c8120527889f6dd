# SPDX-License-Identifier: Apache-2.0
"""The rounds of one run. Pure: events in, actions out, time is an argument; knows no socket, file, clock or tensor.

Life of a slice: planned -> leased to a board -> taken -> result uploaded -> verified and journaled -> accepted.
Whatever ends a lease early (loss, failure, refusal, expiry) turns the slice's ranges into new slices for the boards
still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paceline import allocate
from paceline.errors import RemoteProtocolError
from paceline.session import Session, State
from paceline.transfer import Rate, Receiver, Sender
from paceline.wire import (
    CHUNK_CEILING,
    INLINE_BYTES,
    Answer,
    Assign,
    Begin,
    Cancel,
    Chunk,
    Commit,
    Credit,
    End,
    Energy,
    Failed,
    Load,
    Message,
    Ping,
    Pong,
    Ready,
    Reject,
    Result,
    RoundClosed,
    clip,
)  # fmt: skip
from paceline_host.planner import Planner
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

REFUSALS = 3  # so many failures or refused updates in a row, and a board gets no more work in this run
FIRST_LEASE = 4.0  # patiences, while nothing is known of a board's speed; progress renews the lease


@dataclass
class Lease:
    """One board's hold on one slice, first for `seconds`; progress moves `end_s`."""

    number: int
    slice: Slice
    base: str
    granted_s: float
    seconds: float
    end_s: float
    sender: Sender | None = None
    receiver: Receiver | None = None
    result: Result | None = None
    commit: Commit | None = None
    samples: int = 0
    stalls_s: float = float("inf")  # when the transfer in hand counts as stalled

    @property
    def due_s(self) -> float:
        """When the lease ends unless something moves."""
        return min(self.end_s, self.stalls_s)

    def fault(self, patience_s: float) -> str:
        """Say what did not happen before `due_s`."""
        if self.end_s <= self.stalls_s:
            return f"no progress before its lease of slice {self.slice.index} ended"
        what, part = ("update", self.receiver) if self.receiver is not None else ("model", self.sender)
        assert part is not None
        return f"no progress of the {what} for {patience_s:g} s: {part.have} of {part.size} bytes moved"


@dataclass
class Board:
    """What the machine knows of a board."""

    name: str
    session: Session | None = None
    agent_pid: int = 0
    agent_version: str = ""
    chunk_bytes: int = CHUNK_CEILING  # of this session: neither side's limit is passed
    rate_in: Rate = field(default_factory=Rate)  # of this session, as is the next
    rate_out: Rate = field(default_factory=Rate)
    ready: Ready | None = None
    lease: Lease | None = None
    queue: deque[Slice] = field(default_factory=deque)
    hold_end_s: float = float("inf")  # until then the queue waits for a board that is coming back
    part: Part | None = None  # what is here of an update that did not come in whole
    base: str = ""  # the model it is known to hold
    share: int = 0  # samples of this round that were leased to it
    done: int = 0  # of them, those accepted
    failures: int = 0
    barred: bool = False
    departed: bool = False  # its process is known to be no more
    begun: bool = False
    energies_owed: int = 0  # ROUND_CLOSED and END that were not answered with ENERGY yet
    energy_per_sample_j: float | None = None
    since_s: float = 0.0

    @property
    def usable(self) -> bool:
        """May be given work."""
        return self.session is not None and self.ready is not None and not self.barred

    @property
    def hopeless(self) -> bool:
        """Will not be given work again, as far as is known."""
        return self.barred or self.departed


def part_of(result: Result) -> Part:
    """Return which update a result announces."""
    return Part(result.round, result.slice, result.update_sha256, result.update_bytes)


class RoundMachine:
    """Runs `facts.rounds` rounds over boards named `names`, starting from the model whose hash is `base_sha256`."""

    def __init__(
        self, facts: RunFacts, regime: Regime, planner: Planner, names: Sequence[str], base_sha256: str, now_s: float,
        reopened: Reopened | None = None,
    ) -> None:  # fmt: skip
        self.facts = facts
        self.boards = [Board(name, since_s=now_s) for name in names]
        self.round = 0
        self.phase = "starting"  # starting, planning, working, closing, ending, finished
        self.round_seconds: list[float] = []
        self._regime, self._planner = regime, planner
        self._base = base_sha256
        self._start_end_s = now_s + facts.start_s
        self._lease_number = 0
        self._open: dict[int, Slice] = {}  # slices of this round that are not accepted yet
        self._next_index = 0
        self._judging: dict[int, tuple[int, Lease]] = {}  # results in the store's hands; nothing may end these leases
        self._orphans: list[Slice] = []
        self._last_refusal = ""
        self._refusing = False  # the last failure was an update that was refused
        self._planned_s = 0.0
        self._alone_s: float | None = None
        self._end_by_s = 0.0
        self._end_reason, self._ok = "", False
        self._out: list[Action] = []
        self._counted: set[tuple[int, int]] = set()  # (round, slice) of this round and the one before
        self._reopened = reopened  # until the first work is given out
        self._started = False
        self._due = ""  # what a run that is taken up has left to do before it needs boards: "close" or "end"
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

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Return what to do about an event.

        Raises RemoteProtocolError when a board broke the rules of the run; nothing but its message is lost.
        """
        self._out = []
        if self.phase != "finished":
            self._HANDLERS[type(event)](self, event, now_s)
        return self._out

    def wake_s(self) -> float:
        """Return when the next Tick is due."""
        leases = [board.lease for board in self.boards if board.lease is not None]
        times = [lease.due_s for lease in leases if lease.number not in self._judging]
        times += [board.hold_end_s for board in self.boards]
        if self._due:
            return 0.0
        if self.phase == "starting":
            times.append(self._start_end_s)
        if self._alone_s is not None:
            times.append(self._alone_s)
        if self.phase == "ending":
            times.append(self._end_by_s)
        return min(times, default=float("inf"))

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the policy's present estimate of a board."""
        return self._planner.seconds_per_sample(board)

    # Boards come and go ---------------------------------------------------------------------------------------------

    def _connected(self, event: Connected, now_s: float) -> None:
        board, facts = self.boards[event.board], self.facts
        kept = event.kept[1:] if event.kept[0] == facts.run else (0, 0)
        if board.session is not None:
            self._replaced(event.board, kept, now_s)
        board.session, board.ready, board.base, board.begun, board.energies_owed = event.session, None, "", False, 0
        board.agent_pid, board.agent_version = event.agent_pid, event.agent_version
        board.chunk_bytes = min(self.facts.chunk_bytes, event.chunk_max)
        board.rate_in, board.rate_out = Rate(), Rate()
        board.since_s, board.departed = now_s, False
        judged = {(lease.slice.round, lease.slice.index) for _, lease in self._judging.values()}
        counted = kept in self._counted or kept in judged
        nonce = event.session.nonce
        idle = facts.idle_baseline and self.round == 0
        load = Load(nonce, facts.run, facts.regime, facts.task, facts.options, facts.seed, counted, idle)
        self._send(event.board, load)

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

    def _ready(self, index: int, message: Ready, now_s: float) -> None:
        board, facts = self.boards[index], self.facts
        assert board.session is not None
        if message.run != facts.run:
            return
        if (message.manifest_sha256, message.model_bytes) != (facts.manifest_sha256, facts.model_bytes):
            self._refuse(
                index, "manifest", "its model differs from the host's; install the same version of paceline", now_s
            )
        elif message.samples != facts.samples:
            text = (
                f"its data hold {message.samples} samples, the host's {facts.samples}; give both the same data "
                f"(paceline data fetch {facts.task})"
            )
            self._refuse(index, "data", text, now_s)
        else:
            board.ready, board.since_s = message, now_s
            board.base = ""  # a trainer that has just loaded holds no round's model
            self._out.append(StoreReady(index, message, board.agent_pid, board.agent_version))
            if self.phase not in ("starting", "ending"):
                self._begin(index)
                if board.usable:
                    self._hand_out_orphans(now_s)
                    self._assign(index, now_s)
            self._start_if_complete(now_s)

    def _refuse(self, index: int, code: str, text: str, now_s: float) -> None:
        board = self.boards[index]
        assert board.session is not None
        self._out.append(Note("refused", f"{board.name} is refused: {text}", index))
        self._send(index, Reject(board.session.nonce, code, clip(f"{board.name}: {text}")))
        self._gone(Gone(index, f"refused: {text}"), now_s)

    def _gone(self, event: Gone, now_s: float) -> None:
        board = self.boards[event.board]
        if board.session is None and (board.departed or not event.for_good):
            return
        board.departed = event.for_good
        self._last_refusal = f"{board.name}: {event.reason}"
        self._out.append(Note("lost", self._last_refusal, event.board))
        board.session, board.ready, board.begun = None, None, False
        self._unload(event.board, "lost", event.reason, now_s)
        self._start_if_complete(now_s)
        if self.phase == "ending":
            self._finish_if_quiet(now_s, False)
        elif event.for_good and self._alone_s is not None:
            self._alone(now_s)  # perhaps nobody is left who could come back

    def _start_if_complete(self, now_s: float) -> None:
        if self.phase != "starting":
            return
        usable = [b for b in self.boards if b.usable]
        if any(not b.usable and not b.hopeless for b in self.boards) and now_s < self._start_end_s:
            return
        missing = [b.name for b in self.boards if not b.usable]
        if missing:
            self._out.append(Note("missing", f"starting without {', '.join(missing)}: not ready"))
        if not usable:
            self._finish(
                False, f"no board became ready (waited up to {self.facts.start_s:g} s); see the agents' logs", now_s
            )
        elif self.facts.energy_needed and not any(b.ready.energy_known for b in usable if b.ready):
            self._finish(
                False,
                "the policy weighs energy and [energy] required = true, but no board has a meter; configure [meter] in "
                "agent.toml, or set required = false to run by time alone",
                now_s,
            )
        else:
            self._started = True
            if self._reopened is not None and self._reopened.open_slices:
                self._reopen(self._reopened, now_s)
            else:
                self._plan(now_s)

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
        shares = self._planner.plan(present)
        slices = self._regime.plan(self.round, list(zip(present, shares, strict=True)))
        self._open = {s.index: s for s in slices}
        for board in self.boards:
            board.share = board.done = 0
        self._next_index = len(slices)
        self._out.append(StoreSlices(tuple(slices), first=True))

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

    def _begin(self, index: int) -> None:
        board = self.boards[index]
        assert board.session is not None
        if not board.begun:
            board.begun = True
            self._send(index, Begin(board.session.nonce, self.facts.run))

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
        lease = Lease(self._lease_number, item, self._base, now_s, lease_s, now_s + lease_s)
        board.lease, board.since_s = lease, now_s
        board.share += item.samples
        nbytes = 0 if board.base == self._base else facts.model_bytes
        inline = 0 < nbytes <= INLINE_BYTES
        self._send(
            index,
            Assign(
                board.session.nonce, facts.run, item.round, item.index, 0, lease.number, lease_s, facts.batch,
                item.ranges, self._base, nbytes,
            ),
            (0, nbytes) if inline else None,
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
            self._send(index, Chunk(board.session.nonce, board.lease.number, piece[0]), piece)
        if board.lease.sender.done:  # the last pieces are not acknowledged: from here on the lease is the deadline
            board.lease.stalls_s = float("inf")

    def _close_if_complete(self, now_s: float) -> None:
        if self.phase != "working" or self._open:
            return
        self.phase = "closing"
        self.round_seconds.append(now_s - self._planned_s)
        for index, board in enumerate(self.boards):
            if board.session is not None and board.begun:
                board.energies_owed += 1
                self._send(index, RoundClosed(board.session.nonce, self.facts.run, self.round))
        self._out.append(FinishRound(self.round))

    def _round_done(self, event: RoundDone, now_s: float) -> None:
        if self.phase != "closing":  # stopped in the meantime
            return
        self._base = event.model_sha256
        if event.round >= self.facts.rounds:
            self._end("finished", now_s)
        elif self._started:
            self._plan(now_s)
        else:  # taken up with a round that only had to be closed
            self.phase, self._start_end_s, self._reopened = "starting", now_s + self.facts.start_s, None
            self._start_if_complete(now_s)

    def _end(self, reason: str, now_s: float, *, ok: bool = True) -> None:
        """Close all energy windows; the run is finished when they have come in, or cannot any more."""
        self.phase, self._end_reason, self._ok = "ending", reason, ok
        self._end_by_s = now_s + self.facts.patience_s / 6
        for index, board in enumerate(self.boards):
            if board.session is not None and board.begun:
                board.energies_owed += 1
                self._send(index, End(board.session.nonce, self.facts.run, self.round, clip(reason)))
        self._finish_if_quiet(now_s, False)

    def _finish_if_quiet(self, now_s: float, late: bool) -> None:
        owing = [b.name for b in self.boards if b.session is not None and b.begun and b.energies_owed]
        if owing and not late:
            return
        if owing:
            self._out.append(Note("energy-missing", f"no final joules from {', '.join(owing)}"))
        self._finish(self._ok, self._end_reason, now_s)

    def _finish(self, ok: bool, reason: str, now_s: float) -> None:
        self.phase = "finished"
        self._out.append(Finish(ok, reason))

    def _stop(self, event: Stop, now_s: float) -> None:
        if self.phase == "ending":
            return
        self._open.clear()
        for index, board in enumerate(self.boards):
            if board.lease is not None and board.session is not None:
                self._send(index, Cancel(board.session.nonce, board.lease.number, clip(event.reason)))
            board.lease = None
            board.queue.clear()
        self._end(event.reason, now_s, ok=False)

    # What boards say ------------------------------------------------------------------------------------------------

    def _said(self, event: Said, now_s: float) -> None:
        message = event.message
        if isinstance(message, Chunk):
            self._chunk(event.board, message, event.payload_bytes, now_s)
            return
        whole = self.facts.model_bytes if isinstance(message, Result) and self.facts.model_bytes <= INLINE_BYTES else 0
        if event.payload_bytes not in (0, whole):
            raise RemoteProtocolError(f"{message.kind} with a payload of {event.payload_bytes} bytes")
        self._MESSAGES.get(type(message), RoundMachine._nothing)(self, event.board, message, now_s)
        lease = self.boards[event.board].lease
        if event.payload_bytes and lease is not None and lease.receiver is not None:  # else the result was refused
            self._chunk(event.board, Chunk(message.session, lease.number, 0), event.payload_bytes, now_s)

    def _nothing(self, index: int, message: Message, now_s: float) -> None:
        """The session has seen it, and that is all."""

    def _ping(self, index: int, message: Ping, now_s: float) -> None:
        board = self.boards[index]
        lease, left_s = board.lease, 0.0
        if lease is not None and message.lease == lease.number:
            samples = min(message.samples, lease.slice.samples)  # beyond that nothing renews a lease
            if samples > lease.samples:
                lease.samples = samples
                remaining_s = (lease.slice.samples - lease.samples) * (now_s - lease.granted_s) / lease.samples
                lease.end_s = max(lease.end_s, now_s + 2 * remaining_s + self.facts.patience_s)
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
        self._out.append(StoreResult(index, lease.slice, lease.result, message))

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

    def _energy(self, index: int, message: Energy, now_s: float) -> None:
        if message.run != self.facts.run:
            return
        if message.round > self.round:
            raise RemoteProtocolError(f"joules of round {message.round}, the present one is {self.round}")
        self.boards[index].energies_owed = max(0, self.boards[index].energies_owed - 1)
        self._out.append(StoreEnergy(index, message))
        if self.phase == "ending":
            self._finish_if_quiet(now_s, False)

    def _accepted(self, event: ResultStored, now_s: float) -> None:
        board = self.boards[event.board]
        _, lease = self._judging.pop(event.lease)
        result, commit = lease.result, lease.commit
        self._counted.add((lease.slice.round, lease.slice.index))
        if result is None or commit is None or self.phase == "ending":
            return
        energy_j = None if commit.compute_uj is None else commit.compute_uj * 1e-6
        self._planner.observe(event.board, result.compute_us * 1e-6, energy_j, result.samples)
        board.energy_per_sample_j = None if energy_j is None else energy_j / result.samples
        board.failures, self._refusing = 0, False
        board.done += result.samples
        self._open.pop(lease.slice.index, None)
        if board.lease is lease and board.session is not None:
            board.lease, board.since_s = None, now_s
            self._send(event.board, Answer(board.session.nonce, event.lease, "accepted", ""))
            self._assign(event.board, now_s)
        self._close_if_complete(now_s)

    def _refused(self, event: ResultRefused, now_s: float) -> None:
        _, lease = self._judging.pop(event.lease)
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
            self._send(index, Answer(board.session.nonce, board.lease.number, "rejected", clip(reason)))
        else:
            self._send(index, Cancel(board.session.nonce, board.lease.number, clip(reason)))
        board.failures += 1
        self._refusing = True
        self._bar_if_hopeless(index, reason)
        self._unload(index, "rejected", reason, now_s)

    def _bar_if_hopeless(self, index: int, reason: str) -> None:
        board = self.boards[index]
        self._last_refusal = f"{board.name}: {reason}"
        if board.failures >= REFUSALS and not board.barred:
            board.barred = True
            self._out.append(
                Note("barred", f"{board.name}: {REFUSALS} failures in a row, no more work in this run", index)
            )

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

    def _alone(self, now_s: float) -> None:
        if all(board.hopeless for board in self.boards):
            hint = "; has training diverged? a smaller learning_rate may help" if self._refusing else ""
            self._stop(Stop(f"no board may go on, the last was {self._last_refusal}{hint}"), now_s)
        elif self._alone_s is None:
            self._alone_s = now_s + self.facts.patience_s
            self._out.append(
                Note("alone", f"no board is left; waiting {self.facts.patience_s:g} s for one to come back")
            )

    def _tick(self, event: Tick, now_s: float) -> None:
        if self._due:
            self._finish_what_is_due(now_s)
            return
        self._start_if_complete(now_s)
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
        if self._alone_s is not None and now_s >= self._alone_s:
            self._alone_s = None
            self._stop(Stop(f"no board came back within {self.facts.patience_s:g} s"), now_s)
        if self.phase == "ending" and now_s >= self._end_by_s:
            self._finish_if_quiet(now_s, True)

    def _finish_what_is_due(self, now_s: float) -> None:
        due, self._due = self._due, ""
        if due == "end":
            self._end("finished", now_s)
        elif self._reopened is not None:
            self.round_seconds.append(self._reopened.elapsed_s)
            self._out.append(FinishRound(self.round))

    def _send(self, index: int, message: Message, piece: tuple[int, int] | None = None) -> None:
        self._out.append(Send(index, message, piece))

    _MESSAGES: dict[type[Message], Callable[..., None]] = {
        Ready: _ready, Ping: _ping, Credit: _credit, Result: _result, Commit: _commit, Failed: _work_failed,
        Energy: _energy,
    }  # fmt: skip
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        Connected: _connected, Said: _said, Gone: _gone, SlicesStored: _stored, ResultStored: _accepted,
        ResultRefused: _refused, RoundDone: _round_done, Stop: _stop, Tick: _tick,
    }  # fmt: skip
