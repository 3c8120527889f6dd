# SPDX-License-Identifier: Apache-2.0
"""What an agent does and when. Pure: events in, actions out, time is an argument; a driver or a simulator executes
them.

The machine knows no socket, process, file or meter. It obeys one host, holds at most one lease, and says of every
second what it was spent on (`Mark`), so that the ledger's five categories add up to one contiguous window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.errors import RemoteProtocolError
from paceline.session import Session, State
from paceline.steps import (
    Action,
    BaseReady,
    Event,
    Exit,
    Keep,
    Kept,
    KillTrainer,
    Mark,
    Measure,
    Measured,
    MeasureSplit,
    OpenWindow,
    Received,
    Reconnect,
    Send,
    SplitMeasured,
    StartTrainer,
    StartWork,
    StopWork,
    StoreBase,
    StoreTensor,
    Tick,
    TrainerGone,
    TrainerReady,
    Void,
    WorkDone,
    WorkEdge,
    WorkFailed,
    WorkProgress,
    WorkTensor,
)
from paceline.transfer import Rate, Receiver, Sender
from paceline.wire import (
    FROM_HOST,
    INLINE_BYTES,
    PROTOCOL,
    TENSORS_FROM_HOST,
    Answer,
    Assign,
    Begin,
    Bye,
    Cancel,
    Chunk,
    Commit,
    Credit,
    Delivery,
    End,
    Energy,
    Failed,
    Hello,
    Load,
    Message,
    Ping,
    Pong,
    Ready,
    Reject,
    Result,
    RoundClosed,
    Taken,
    Tensor,
    Welcome,
    clip,
    decode,
    split_of,
)  # fmt: skip

__all__ = [
    "Action",
    "AgentMachine",
    "BaseReady",
    "Event",
    "Exit",
    "Identity",
    "Keep",
    "Kept",
    "KillTrainer",
    "Mark",
    "Measure",
    "MeasureSplit",
    "Measured",
    "OpenWindow",
    "Received",
    "Reconnect",
    "Send",
    "SplitMeasured",
    "StartTrainer",
    "StartWork",
    "StopWork",
    "StoreBase",
    "StoreTensor",
    "Tick",
    "TrainerGone",
    "TrainerReady",
    "Void",
    "WorkDone",
    "WorkEdge",
    "WorkFailed",
    "WorkProgress",
    "WorkTensor",
]

GREETING_S = 10.0  # patience before the host has told its own
TAKEN_S = 0.1  # work that is over by then needs no TAKEN: its RESULT says as much
JOULES_S = 0.02  # a small update waits so long for its joules, so that both go as one DELIVERY
WORKED = ("update", "done")  # tensors by which a trainer gives what it has computed of samples
TRAINER_LIVES = 3  # a trainer that dies so many times in a row, no work done in between, is not started again


@dataclass(frozen=True)
class Identity:
    """What HELLO and READY say of this board."""

    version: str
    machine: str
    pid: int
    chunk_max: int
    energy_source: str
    energy_known: bool


class AgentMachine:
    """One board's protocol. Call `restart` for the opening actions of each connection, then `step` for every event."""

    def __init__(
        self, identity: Identity, new_nonce: Callable[[], int], kept: Kept | None = None,
        clock_s: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """`clock_s`: the wall clock, for HELLO alone."""
        self._identity = identity
        self._new_nonce, self._clock_s = new_nonce, clock_s
        self._host_epoch = 0
        self._load: Load | None = None
        self._ready: TrainerReady | None = None
        self._trainer_lives = 0
        self._heartbeat_s = 2.0
        self._chunk_bytes = self._credit_bytes = 0
        self._base = ""  # hash of the model that is in place, whole
        self._window, self._window_run = 0, ""  # the open energy window and its run
        self._kept = kept
        self._out: list[Action] = []
        self._assign: Assign | None = None  # with the next five: the work in hand, dropped as one
        self._offering = False  # the work is done, it is the result that is kept
        self._lease_end_s = 0.0
        self._samples = 0
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None
        self._stalls_s = float("inf")  # when the transfer in hand counts as stalled
        self._tensor_in: tuple[Tensor, int] | None = None  # first piece of the tensor that is coming in, bytes here
        self._taken_s = float("inf")  # when TAKEN is due
        self._offer_s = float("inf")  # when a small result is offered without its joules
        self._energy: Energy | None = None  # goes along with that offer
        self._stopping = 0  # the last lease that the trainer was told to forget; 0: it has answered
        self._hangs_s = float("inf")  # when a trainer that is to answer counts as hung

    def restart(self, now_s: float) -> list[Action]:
        """Begin a session: what ran under the old one is void, what was finished is kept."""
        self._out = []
        if self._assign is not None:
            self._forget_work(now_s, stop=True)
        me, kept = self._identity, self._kept
        self._session = Session(self._new_nonce(), is_host=False, patience_s=GREETING_S, now_s=now_s)
        self._ready, self._base, self._energy = None, "", None
        self._rate_in, self._rate_out = Rate(), Rate()
        holds = (kept.run, kept.round, kept.slice) if kept is not None else ("", 0, 0)
        nonce, clock_s = self._session.nonce, max(0, self._clock_s())
        self._say(
            Hello(nonce, PROTOCOL, PROTOCOL, me.version, me.machine, me.chunk_max, me.pid, *holds, clock_s), now_s
        )
        return self._out

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Return what to do about an event.

        Raises RemoteProtocolError when the host broke the rules: the event changed nothing.
        """
        self._out = []
        self._HANDLERS[type(event)](self, event, now_s)
        if self._energy is not None and self._offer_s == float("inf"):  # nothing has taken it along
            self._say_energy(now_s)
        return self._out

    @property
    def state(self) -> State:
        """Where the session stands."""
        return self._session.state

    @property
    def if_trainer_ends(self) -> str:
        """What is to be added to why, should the trainer end now; "": it would be started again."""
        if not self._is_trainer_wanted or self._trainer_lives > 1:
            return ""
        return f"; {TRAINER_LIVES} times in a row, so not started again in this run"

    @property
    def _is_trainer_wanted(self) -> bool:
        return self._load is not None and self._session.state not in (State.GREETING, State.IDLE, State.CLOSED)

    def bye(self, reason: str, now_s: float) -> bytes | None:
        """Return a goodbye, or None where no session would hear it."""
        if not self._is_greeted():
            return None
        return self._session.send(Bye(self._session.nonce, clip(reason)), now_s)

    def wake_s(self) -> float:
        """Return when the next Tick is due."""
        due = [self._session.silent_at_s]
        if self._is_greeted():
            due.append(self._session.said_s + self._heartbeat_s)
        if self._assign is not None:
            due += [self._lease_end_s, self._stalls_s, self._taken_s, self._offer_s]
        if self._stopping:
            due.append(self._hangs_s)
        return min(due)

    # Messages -------------------------------------------------------------------------------------------------------

    def _received(self, event: Received, now_s: float) -> None:
        message = decode(event.header, FROM_HOST)
        whole = message.base_bytes if isinstance(message, Assign) and message.base_bytes <= INLINE_BYTES else 0
        if event.payload_bytes not in (0, whole) and not isinstance(message, Chunk | Tensor):
            raise RemoteProtocolError(f"{message.kind} with a payload of {event.payload_bytes} bytes")
        self._session.accept(message, now_s)
        if isinstance(message, Chunk):
            self._chunk(message, event.payload_bytes)
        elif isinstance(message, Tensor):
            self._tensor(message, event.payload_bytes)
        else:
            self._MESSAGES.get(type(message), AgentMachine._nothing)(self, message, now_s)
            if event.payload_bytes and self._receiver is not None:  # else the work was declined
                self._chunk(Chunk(message.session, self._session.lease, 0), event.payload_bytes)

    def _nothing(self, message: Message, now_s: float) -> None:
        """The session has seen it, and that is all."""

    def _welcome(self, message: Welcome, now_s: float) -> None:
        if message.host_epoch < self._host_epoch:
            self._out.append(Reconnect(f"an older life of the host answered (epoch {message.host_epoch})"))
            return
        self._host_epoch = message.host_epoch
        self._session.patience_s = message.patience_s
        self._heartbeat_s = message.heartbeat_s
        self._chunk_bytes, self._credit_bytes = message.chunk_bytes, message.credit_bytes

    def _reject(self, message: Reject, now_s: float) -> None:
        if message.code == "session":  # the host has forgotten this session, or started anew: greet it again
            self._out.append(Reconnect(f"the host does not know this session: {message.text}"))
        else:
            self._out.append(Exit(message.code, message.text))

    def _loading(self, message: Load, now_s: float) -> None:
        self._load, self._ready, self._base, self._trainer_lives = message, None, "", TRAINER_LIVES
        if self._kept is not None and (message.counted or self._kept.run != message.run):
            self._let_go(counted=message.counted)
        self._out.append(StartTrainer(message))

    def _begin(self, message: Begin, now_s: float) -> None:
        if self._window_run != message.run:  # else the host was started anew, and the window is one
            self._window, self._window_run = self._new_nonce(), message.run
            self._out.append(OpenWindow(message.run))

    def _assigned(self, message: Assign, now_s: float) -> None:
        if message.answered and self._assign is not None and message.answered == self._assign.lease:
            self._judged(True, message.answered_us, now_s)
        if message.closed:
            self._closed(message.run, message.closed, message.closed_us, now_s)
        if self._assign is not None:
            self._forget_work(now_s, stop=True)
        if self._kept is not None and not self._kept.answers(message):
            self._let_go()
        if self._ready is None or message.base_bytes not in (0, self._ready.model_bytes):
            detail = f"assign names a model of {message.base_bytes} bytes"
            self._say(Failed(self._session.nonce, message.lease, "model-bytes", detail), now_s)
            return
        is_base_needed = bool(message.base_sha256)
        if is_base_needed and not message.base_bytes and message.base_sha256 != self._base and self._kept is None:
            self._say(Failed(self._session.nonce, message.lease, "no-base", "the model was lost; send it again"), now_s)
            return
        self._assign, self._lease_end_s, self._samples = message, now_s + message.lease_s, 0
        self._out.append(Mark("transfer"))
        self._taken_s = now_s + TAKEN_S
        if message.base_bytes > INLINE_BYTES:
            self._say_taken(now_s)
        if message.base_bytes:
            self._receiver = Receiver(message.base_bytes, self._credit_bytes, self._chunk_bytes, self._rate_in)
            self._stalls_s = now_s + self._session.patience_s
        if self._kept is not None:
            self._offer(self._kept, now_s, again=True)
        elif not message.base_bytes:
            self._start_work()

    def _chunk(self, message: Chunk, nbytes: int) -> None:
        if self._receiver is None or self._assign is None:
            raise RemoteProtocolError("chunk without a transfer")
        now_s = self._session.heard_s
        self._receiver.take(message.offset, nbytes, now_s)
        self._base = ""
        if self._receiver.moved():
            self._renew(now_s + self._assign.lease_s)
            self._stalls_s = now_s + self._session.patience_s
        final = self._assign.base_sha256 if self._receiver.done else None
        self._out.append(StoreBase(message.lease, message.offset, final))
        upto = self._receiver.grant()
        if upto is not None:
            self._say(Credit(self._session.nonce, message.lease, self._receiver.have, upto), now_s)

    def _tensor(self, message: Tensor, nbytes: int) -> None:
        if self._assign is None or self._offering or self._ready is None:
            raise RemoteProtocolError("tensor without work")
        first, have = self._tensor_in if self._tensor_in is not None and message.offset else (message, 0)
        if message.what not in TENSORS_FROM_HOST or message.size > self._ready.inbox_bytes:
            raise RemoteProtocolError(f"tensor {message.what!r:.20} of {message.size} bytes: no room for such a thing")
        place = (message.step, message.redraw, message.what, message.size, message.offset)
        if place != (first.step, first.redraw, first.what, first.size, have) or not 0 < nbytes <= message.size - have:
            raise RemoteProtocolError(f"tensor {message.what}: {nbytes} bytes at {message.offset}, {have} are here")
        whole = have + nbytes == message.size
        self._tensor_in = None if whole else (first, have + nbytes)
        self._renew(self._session.heard_s + self._assign.lease_s)
        if not whole and not have:
            self._out.append(Mark("transfer"))
        self._out.append(
            StoreTensor(message.lease, message.step, message.redraw, message.what, message.size, message.offset, whole)
        )

    def _credit(self, message: Credit, now_s: float) -> None:
        if self._sender is None and self._offering and self._kept is not None:  # offered again: from where on?
            size, have = self._kept.update_bytes, message.have
            self._sender = Sender(size, self._chunk_bytes, message.upto, self._rate_out, start=have)
        if self._sender is None:
            raise RemoteProtocolError("credit without a transfer")
        self._sender.granted(message.have, message.upto, now_s)
        if self._sender.moved():
            self._renew(now_s + self._session.patience_s)
            self._stalls_s = now_s + self._session.patience_s
        self._push(now_s)

    def _pong(self, message: Pong, now_s: float) -> None:
        if self._assign is not None and message.lease == self._assign.lease:
            self._lease_end_s = now_s + message.lease_s

    def _cancel(self, message: Cancel, now_s: float) -> None:
        self._forget_work(now_s, stop=True)

    def _answer(self, message: Answer, now_s: float) -> None:
        self._judged(message.verdict in ("accepted", "duplicate"), message.ago_us, now_s)

    def _judged(self, counted: bool, ago_us: int, now_s: float) -> None:
        self._let_go(counted=counted)
        self._drop_work()
        self._out.append(Mark("wait", _instant_us(now_s, ago_us)))

    def _round_closed(self, message: RoundClosed, now_s: float) -> None:
        self._closed(message.run, message.round, message.ago_us, now_s)

    def _closed(self, run: str, number: int, ago_us: int, now_s: float) -> None:
        if self._window_run:
            t_us = _instant_us(now_s, ago_us)
            self._out += [Mark("other", t_us), MeasureSplit(run, number, t_us)]

    def _ended(self, message: End, now_s: float) -> None:
        if self._assign is not None:
            self._say(Failed(self._session.nonce, self._assign.lease, "ended", "the run ended before the work"), now_s)
            self._forget_work(now_s, stop=True)
        if self._kept is not None:  # if the run is taken up it may count yet; in this window it has not
            self._out.append(Void(self._kept.lease))
        if self._window_run:
            self._out += [Mark("other"), MeasureSplit(message.run, message.round)]
            self._window_run = ""

    def _bye(self, message: Bye, now_s: float) -> None:
        if self._assign is not None:
            self._forget_work(now_s, stop=True)
        self._out.append(Reconnect(f"the host said goodbye: {message.reason}"))

    # Trainer and meter ----------------------------------------------------------------------------------------------

    def _trainer_ready(self, event: TrainerReady, now_s: float) -> None:
        if self._load is None or self._session.state is not State.LOADING:
            return
        self._ready = event
        if self._kept is not None and self._kept.update_bytes != event.model_bytes:
            self._let_go()
        me = self._identity
        self._say(
            Ready(
                self._session.nonce, self._load.run, event.manifest_sha256, event.model_bytes, event.samples,
                event.data_label, event.pid, me.energy_source, me.energy_known,
                event.idle_uw, event.data_sha256, event.library,
            ),
            now_s,
        )  # fmt: skip

    def _trainer_gone(self, event: TrainerGone, now_s: float) -> None:
        self._stopping = 0
        if not self._is_trainer_wanted:
            return
        last, self._trainer_lives = self.if_trainer_ends, self._trainer_lives - 1
        self._say(Failed(self._session.nonce, 0, "trainer-gone", clip(event.detail + last)), now_s)
        if self._assign is not None:
            self._forget_work(now_s, stop=False)
        self._ready, self._base = None, ""
        if self._trainer_lives > 0 and self._load is not None:
            self._out.append(StartTrainer(self._load))

    def _base_ready(self, event: BaseReady, now_s: float) -> None:
        if self._assign is None or event.lease != self._assign.lease:
            return
        if event.matches:
            self._base = self._assign.base_sha256
            if not self._offering:
                self._start_work()
        elif not self._offering:
            self._say(Failed(self._session.nonce, event.lease, "base-hash", "the model arrived damaged"), now_s)
            self._forget_work(now_s, stop=False)

    def _edge(self, event: WorkEdge, now_s: float) -> None:
        self._heard_trainer(now_s)
        if self._assign is not None and event.lease == self._assign.lease:
            then = "wait" if event.waits else "transfer"
            self._out.append(Mark("compute" if event.begin else then, event.t_us, event.lease))

    def _progress(self, event: WorkProgress, now_s: float) -> None:
        self._heard_trainer(now_s)
        if self._assign is not None and event.lease == self._assign.lease:
            self._samples = event.samples

    def _put_out(self, event: WorkTensor, now_s: float) -> None:
        """Send a tensor in pieces. It needs no credit: a step has few, and the host knows how large each is."""
        if self._assign is None or event.lease != self._assign.lease:
            return
        for begin in range(0, event.size, self._chunk_bytes):
            end = min(begin + self._chunk_bytes, event.size)
            self._say(
                Tensor(self._session.nonce, event.lease, event.step, event.redraw, event.what, event.size, begin),
                now_s,
                (begin, end),
            )
        if event.what in WORKED:
            self._trainer_lives = TRAINER_LIVES
        self._renew(now_s + self._assign.lease_s)
        self._out.append(Mark("wait"))

    def _done(self, event: WorkDone, now_s: float) -> None:
        self._heard_trainer(now_s, over=event.lease)
        assign = self._assign
        if assign is None or event.lease != assign.lease or self._ready is None:
            return
        self._trainer_lives = TRAINER_LIVES
        self._kept = Kept(
            assign.run, assign.round, assign.slice, assign.attempt, assign.lease, assign.ranges, assign.base_sha256,
            event.samples, event.steps, event.compute_us, event.overruns, event.late_us, event.update_bytes,
            event.update_sha256,
        )  # fmt: skip
        self._out.append(Measure(assign.lease))
        if self._kept.update_bytes <= INLINE_BYTES:
            self._offering, self._samples = True, event.samples
            self._offer_s = now_s + JOULES_S
        else:
            self._offer(self._kept, now_s, again=False)

    def _failed(self, event: WorkFailed, now_s: float) -> None:
        if event.lease == 0:
            self._trainer_gone(TrainerGone(f"{event.reason}: {event.detail}"), now_s)
            return
        self._heard_trainer(now_s, over=event.lease)
        if self._assign is not None and event.lease == self._assign.lease:
            self._say(Failed(self._session.nonce, event.lease, clip(event.reason), clip(event.detail)), now_s)
            self._forget_work(now_s, stop=False)

    def _measured(self, event: Measured, now_s: float) -> None:
        if self._kept is not None and event.lease == self._kept.lease:
            self._kept = Kept(**{**vars(self._kept), "energy": event})  # `replace` looks at each field, at a price
            if self._offer_s < float("inf"):
                self._offer(self._kept, now_s, again=False)
            else:
                self._push(now_s)
            self._out.append(Keep(self._kept))

    def _split(self, event: SplitMeasured, now_s: float) -> None:
        if self._is_greeted():
            if self._energy is not None:
                self._say_energy(now_s)
            values = {**event.energy.__dict__, "session": self._session.nonce, "window": self._window}
            self._energy = Energy(**values)

    def _say_energy(self, now_s: float) -> None:
        energy, self._energy = self._energy, None
        if energy is not None and self._is_greeted():
            self._say(energy, now_s)

    def _tick(self, event: Tick, now_s: float) -> None:
        session = self._session
        if self._stopping and now_s >= self._hangs_s:
            self._hangs_s = float("inf")
            reason = f"the trainer did not let go of cancelled work for {session.patience_s:g} s"
            self._out.append(KillTrainer(reason))
        if session.silent(now_s):
            self._out.append(Reconnect(f"no sign of life from the host for {session.patience_s:g} s"))
            return
        if self._assign is not None and now_s >= self._taken_s:
            self._say_taken(now_s)
        if self._kept is not None and now_s >= self._offer_s:
            self._offer(self._kept, now_s, again=False)
        if self._assign is not None and now_s >= self._stalls_s:
            self._say(Failed(session.nonce, self._assign.lease, "stalled", self._stalled()), now_s)
            self._forget_work(now_s, stop=True)
        if self._assign is not None and now_s >= self._lease_end_s:
            self._say(Failed(session.nonce, self._assign.lease, "lease-expired", "the host did not renew it"), now_s)
            self._forget_work(now_s, stop=True)
        if self._is_greeted() and now_s >= session.said_s + self._heartbeat_s:
            lease = self._assign.lease if self._assign is not None else 0
            self._say(Ping(session.nonce, lease, self._samples if lease else 0), now_s)

    # Parts ----------------------------------------------------------------------------------------------------------

    def _is_greeted(self) -> bool:
        return self._session.state not in (State.GREETING, State.CLOSED)

    def _say(self, message: Message, now_s: float, piece: tuple[int, int] | None = None) -> None:
        self._out.append(Send(self._session.send(message, now_s), piece))

    def _renew(self, end_s: float) -> None:
        """Move the lease's end: bytes that move are progress (the host reckons likewise)."""
        self._lease_end_s = max(self._lease_end_s, end_s)

    def _say_taken(self, now_s: float) -> None:
        assert self._assign is not None
        self._taken_s = float("inf")
        self._say(Taken(self._session.nonce, self._assign.lease), now_s)

    def _stalled(self) -> str:
        what, part = ("update", self._sender) if self._offering else ("model", self._receiver)
        if part is None:
            return f"the host did not say for {self._session.patience_s:g} s from where on it wants the update"
        return f"no progress of the {what} for {self._session.patience_s:g} s: {part.have} of {part.size} bytes moved"

    def _start_work(self) -> None:
        assert self._assign is not None
        self._receiver, self._stalls_s = None, float("inf")
        self._out.append(StartWork(self._assign.lease, self._assign.round, self._assign.ranges, self._assign.batch))

    def _offer(self, kept: Kept, now_s: float, *, again: bool) -> None:
        """Announce the finished result: a small update goes along, a large one in chunks, from where the host says."""
        assert self._assign is not None
        size = kept.update_bytes
        inline, credit = size <= INLINE_BYTES, self._credit_bytes
        again = again and not inline
        self._offering, self._samples, self._taken_s, self._offer_s = True, kept.samples, float("inf"), float("inf")
        self._renew(now_s + self._session.patience_s)
        self._stalls_s = now_s + self._session.patience_s
        if not again:
            self._sender = Sender(size, self._chunk_bytes, size if inline else credit, self._rate_out)
        result = Result(
            self._session.nonce, kept.run, kept.round, kept.slice, kept.attempt, self._assign.lease, kept.samples,
            kept.steps, kept.compute_us, kept.overruns, kept.late_us, kept.base_sha256, size, kept.update_sha256, again,
        )  # fmt: skip
        joules = kept.energy
        if inline and joules is not None:
            split, energy = None, self._energy
            if energy is not None and (energy.run, energy.source) == (kept.run, joules.source):
                split, self._energy = split_of(energy), None
            result = Delivery(
                **vars(result), compute_uj=joules.energy_uj, bound_uj=joules.bound_uj, energy_source=joules.source,
                energy_flags=joules.flags, sampling_uj=joules.sampling_uj, split=split,
            )  # fmt: skip
        self._say(result, now_s, self._sender.pieces()[0] if self._sender is not None and inline and size else None)
        self._push(now_s)

    def _push(self, now_s: float) -> None:
        """Send what credit allows of the update, and COMMIT once all of it went and the joules are known."""
        if self._sender is None or self._assign is None or self._kept is None:
            return
        nonce, lease = self._session.nonce, self._assign.lease
        for piece in self._sender.pieces():
            self._out.append(Send(self._session.send(Chunk(nonce, lease, piece[0]), now_s), piece))
        if self._sender.done:  # the last pieces are not acknowledged: from here on the lease alone is the deadline
            self._stalls_s = float("inf")
        joules = self._kept.energy
        if self._sender.done and joules is not None and self._session.state is State.UPLOADING:
            self._say(
                Commit(
                    nonce, lease, joules.energy_uj, joules.bound_uj, joules.source, joules.flags, joules.sampling_uj
                ),
                now_s,
            )  # fmt: skip

    def _forget_work(self, now_s: float, *, stop: bool) -> None:
        assert self._assign is not None
        if not self._offering:
            if stop:
                self._out.append(StopWork(self._assign.lease))
                if self._receiver is None:  # else it was not begun, and the trainer has nothing to answer
                    if not self._stopping:
                        self._hangs_s = now_s + self._session.patience_s
                    self._stopping = self._assign.lease
            self._out.append(Void(self._assign.lease))
        self._out.append(Mark("wait"))
        self._drop_work()

    def _heard_trainer(self, now_s: float, *, over: int = 0) -> None:
        """It lives; `over`: lease that it no longer works on."""
        self._hangs_s = now_s + self._session.patience_s
        if over == self._stopping:
            self._stopping = 0

    def _let_go(self, *, counted: bool = False) -> None:
        """Keep the finished result no longer; unless it was counted, its joules are wasted."""
        if self._kept is not None and not counted:
            self._out.append(Void(self._kept.lease))
        self._kept = None

    def _drop_work(self) -> None:
        self._assign = None
        self._offering = False
        self._lease_end_s = 0.0
        self._samples = 0
        self._receiver = None
        self._sender = None
        self._tensor_in = None
        self._stalls_s = self._taken_s = self._offer_s = float("inf")

    _MESSAGES: dict[type[Message], Callable[..., None]] = {
        Welcome: _welcome, Reject: _reject, Load: _loading, Begin: _begin, Assign: _assigned, Credit: _credit,
        Pong: _pong, Cancel: _cancel, Answer: _answer, RoundClosed: _round_closed, End: _ended, Bye: _bye,
    }  # fmt: skip
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        Received: _received, TrainerReady: _trainer_ready, TrainerGone: _trainer_gone, BaseReady: _base_ready,
        WorkEdge: _edge, WorkProgress: _progress, WorkTensor: _put_out, WorkDone: _done, WorkFailed: _failed,
        Measured: _measured, SplitMeasured: _split, Tick: _tick,
    }  # fmt: skip


def _instant_us(now_s: float, ago_us: int) -> int | None:
    """Return the instant of what the host held back for `ago_us`, by this board's monotonic clock; None: now."""
    return int(now_s * 1e6) - ago_us if ago_us else None
