# SPDX-License-Identifier: Apache-2.0
"""The host's loop: carries out what the RoundMachine says. Effects only; decisions are the machine's, disk is the
store's.

One thread runs the loop and owns the link. Sessions outlive runs, so that a comparison starts its fleet once, and a
daemon serves boards whether there is work for them or not.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from paceline.errors import LocalProtocolError, RemoteProtocolError, RunError
from paceline.session import State
from paceline.talk import Talk
from paceline.wire import Bye, Message, Ping, Pong, Reject
from paceline_host import machine as m
from paceline_host.clocks import clock_fault
from paceline_host.ddp.steps import KeepState, Tell, Told
from paceline_host.fleet import LocalFleet
from paceline_host.link import Arrival, HostLink
from paceline_host.muster import Muster
from paceline_host.peers import Peers
from paceline_host.planner import Planner
from paceline_host.psl.steps import CommitStep, ComputeStep, SplitSide, TensorOut, WriteTensor
from paceline_host.rationed import Rationed
from paceline_host.recent import Recent
from paceline_host.store import Job, Store, StoreFailed
from paceline_host.uploads import Uploads

T = TypeVar("T")

READY_FOR_A_RUN = (State.IDLE, State.LOADING, State.READY)
PART_S = 1.0  # in which boards hang up after a goodbye
CLOCK_HINT = "one of the two dates its log wrong, nothing else; set it: timedatectl set-ntp true"
VIEW_S = 0.25  # how often the progress view is renewed, and the fleet's processes are looked at


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Presence:
    """Whether a board has a session, since when (monotonic), and why not."""

    here: bool
    since_s: float
    why: str = ""
    version: str = ""  # of its agent
    clock_off_s: float | None = None  # its wall clock against this machine's when it came; None: it has not told


_ROWS = (m.StoreSlices, m.StoreResult, m.StoreEnergy, m.FinishRound)  # most of what is for the store


class TimedPlanner:
    """A planner that remembers how long its last plan took; the machine itself reads no clock."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.last_s = 0.0
        self.observe = planner.observe
        self.observe_wait, self.heeds_waits = planner.observe_wait, planner.heeds_waits
        self.observe_steps, self.every = planner.observe_steps, planner.every
        self.observe_idle = planner.observe_idle
        self.seconds_per_sample = planner.seconds_per_sample

    @property
    def notes(self) -> tuple[str, ...]:
        """The planner's."""
        return self._planner.notes

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the planner's shares."""
        began_s = time.perf_counter()
        shares = self._planner.plan(present)
        self.last_s = time.perf_counter() - began_s
        return shares


@dataclass
class _Run:
    """The run that is being served."""

    machine: Muster
    planner: TimedPlanner | None
    store: Store
    zero_s: float  # monotonic instant of second 0 of its journal
    uploads: Uploads
    ended: queue.SimpleQueue[Outcome | BaseException] = field(default_factory=queue.SimpleQueue)
    jobs: list[Job] = field(default_factory=list)
    tensors: dict[int, bytearray] = field(default_factory=dict)  # what comes in of a step, by board
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.names = [board.name for board in self.machine.boards]
        self.index = {name: i for i, name in enumerate(self.names)}

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.zero_s

    def take_in(self, action: WriteTensor, payload: memoryview) -> None:
        """Put a piece of a board's tensor where it belongs; the machine has checked its place and size."""
        if action.offset == 0:
            self.tensors[action.board] = bytearray(action.size)
        self.tensors[action.board][action.offset : action.offset + len(payload)] = payload

    def tensors_of(self, action: ComputeStep | CommitStep) -> dict[int, bytearray]:
        """Return what has come in for a step; it is the store's from here on."""
        tensors, self.tensors = self.tensors, {}
        return {board: data for board, data in tensors.items() if board in action.who}


class Server:
    """Serves boards for as long as it lives, and one run after the other while there is one.

    `start` it, let `serve` work through runs from any one thread, `close` it.
    """

    def __init__(self, link: HostLink, peers: Peers, fleet: LocalFleet | None, talk: Talk) -> None:
        self._link, self._peers, self._fleet, self._talk = link, peers, fleet, talk
        self.terms = peers.terms
        self._run: _Run | None = None
        self._next: queue.SimpleQueue[_Run] = queue.SimpleQueue()
        self._stop: m.Stop | None = None  # that the present run is to be told
        self._closing = False
        self._broken: BaseException | None = None
        self._rationed = Rationed()
        self.recent = Recent()
        self._told_dropped: Counter[str] = Counter()  # messages that were dropped, as of the last run
        self._departed: dict[str, str] = {}  # boards whose process has ended, and how
        self._looked_s = 0.0
        self._thread = threading.Thread(target=self._work, name="host", daemon=True)
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.idle_s = 0.0  # when the last run ended
        self.presence: dict[str, Presence] = {}  # of the boards that were ever here; the loop's own, as `peers` is
        self.on_view: Callable[[Muster, float], None] = lambda machine, now_s: None
        self.on_operator: Callable[[Arrival], None] = lambda arrival: None

    def start(self) -> None:
        """Begin to listen to boards."""
        self._thread.start()

    def serve(
        self, machine: Muster, planner: TimedPlanner | None, store: Store, uploads: Uploads, zero_s: float
    ) -> Outcome:
        """Serve a run to its end. `zero_s`: monotonic instant of its second 0. Raises what made the store fail."""
        run = _Run(machine, planner, store, zero_s, uploads)
        self._next.put(run)
        self._link.wake()
        while True:  # in short waits, so that signals are handled meanwhile
            try:
                outcome = run.ended.get(timeout=0.2)
            except queue.Empty:
                if self._thread.is_alive():
                    continue
                raise self._broken or RunError("the host's loop has ended") from None
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    def stop(self, reason: str, *, after_round: bool = False) -> None:
        """End the present run in order, now or when its round is over; any thread or signal handler may call."""
        self._stop = m.Stop(reason, after_round) if reason else None
        self._link.wake()

    def wake(self) -> None:
        """End the loop's present wait; any thread may call."""
        self._link.wake()

    def check(self) -> None:
        """Raise RunError when the loop has ended by a fault."""
        if self._broken is not None:
            raise RunError(f"the host's loop has ended: {self._broken!r}") from self._broken

    @property
    def machine(self) -> Muster | None:
        """The machine of the present run; for `ask`."""
        return self._run.machine if self._run is not None else None

    def call(self, errand: Callable[[], None]) -> None:
        """Let the loop do something at its next turn; any thread may call. An errand does not raise."""
        self._errands.put(errand)
        self._link.wake()

    def ask(self, question: Callable[[], T], wait_s: float = 5.0) -> T:
        """Return what the loop answers; any other thread may call. Raises RunError when it does not answer."""
        answers: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.call(lambda: answers.put(question()))
        try:
            return answers.get(timeout=wait_s)
        except queue.Empty:
            raise RunError(f"the host's loop has not answered for {wait_s:g} s") from self._broken

    def expel(self, name: str, code: str, text: str) -> None:
        """End a board's session with a refusal, and its work with it; the loop's own, for `call`."""
        session = self._peers.session(name)
        if session is not None:
            self._send_to(name, Reject(session.nonce, code, text))
            self._peers.forget(name)
            self._gone(name, text, for_good=True)

    def close(self) -> None:
        """End the loop; all boards are told, so that they need not find out by the host's silence."""
        self._closing = True
        if self._thread.is_alive():
            self._link.wake()
            self._thread.join()

    # The loop -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._closing:
                self._turn()
            told = 0
            for name in self._peers.connected():
                header = self._peers.encode(name, Bye(self._peers.nonce(name), "the host has ended"), time.monotonic())
                told += self._link.send(name, header)
            self._link.part(told, PART_S)
        except BaseException as error:
            self._broken = error
            if self._run is not None:
                self._run.ended.put(error)

    def _turn(self) -> None:
        tick_s = self._run.machine.wake_s() if self._run is not None else float("inf")
        due_s = min(tick_s, self._looked_s + VIEW_S)
        self._link.poll(max(0.0, due_s - time.monotonic()))
        try:
            for arrival in self._link.receive():
                if arrival.operator:
                    self.on_operator(arrival)
                else:
                    self._hear(arrival)
            with suppress(queue.Empty):
                while True:
                    self._errands.get_nowait()()
            while self._link.told:
                self._warn("", self._link.told.popleft(), loud=False)  # the link has said it
            if self._run is None:
                self._begin_next()
            self._mind_the_run(tick_s)
            if time.monotonic() >= self._looked_s + VIEW_S:
                self._look(time.monotonic())
        except BaseException as error:  # of this run: its store, its machine; boards are served on
            if self._run is None:
                raise
            self._abandon(self._run, str(error))
            self._run.ended.put(error)
            self._run = None

    def _abandon(self, run: _Run, why: str) -> None:
        """Let the boards of a run that cannot go on stop their work; nothing of it is written any more."""
        with suppress(Exception):  # the run has failed for a reason of its own
            for action in run.machine.step(m.Stop(why), time.monotonic()):
                if isinstance(action, m.Send):
                    self._send_to(run.names[action.board], action.message)

    def _begin_next(self) -> None:
        with suppress(queue.Empty):
            self._run = self._next.get_nowait()
            for name in self._peers.connected():
                session = self._peers.session(name)
                if session is not None and session.state not in READY_FOR_A_RUN:  # of a run that ended badly
                    self.expel(name, "session", "the host begins another run; greet it anew")
                else:
                    self._connected(name)
            run = self._run
            for name in run.index.keys() & self.presence.keys():
                if text := clock_fault(self.presence[name].clock_off_s):
                    run.jobs.append(Job(m.Note("warning", f"{name}: {text}", run.index[name]), run.now_s))
            for name, how in self._departed.items():
                self._gone(name, how, for_good=True)

    def _mind_the_run(self, tick_s: float) -> None:
        """Hand on what the store has done. `tick_s`: when this turn's Tick is due; one due since is the next turn's."""
        run = self._run
        if run is None:
            return
        for event in run.store.events():
            if isinstance(event, StoreFailed):
                raise event.error
            self._step(event)
        if self._stop is not None:
            stop, self._stop = self._stop, None
            self._step(stop)
        if time.monotonic() >= tick_s:
            self._step(m.Tick())
        if run.jobs:
            run.store.post(run.jobs)
            run.jobs = []
        if run.outcome is not None:
            self.on_view(run.machine, time.monotonic())  # the last rounds may have gone by since the last look
            self._run, self.idle_s = None, time.monotonic()
            run.ended.put(run.outcome)

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        for board in self._peers.silent(now_s):
            self._gone(board, "no sign of life")
        for ended in self._fleet.ended() if self._fleet is not None else ():
            self._peers.forget(ended.board)
            self._departed[ended.board] = ended.text
            self._gone(ended.board, ended.text, for_good=True)
        if self._run is not None:
            self.on_view(self._run.machine, now_s)

    # What boards say ------------------------------------------------------------------------------------------------

    def _hear(self, arrival: Arrival) -> None:
        board = arrival.board
        heard = self._peers.hear(board, arrival.header, time.monotonic(), arrival.route)
        run = self._run
        if heard.warning:
            self._warn(board, heard.warning)
        if heard.closed and not heard.opened:  # else the machine itself sees the new session replace the old one
            self._gone(board, heard.closed)
        if heard.current:
            self._link.adopt(board, arrival.route)
        if heard.answer is not None:
            self._link.send_to(arrival.route, heard.answer)
        if heard.opened:
            hello = self._peers.hello(board)
            off_s = hello.clock_s - time.time() if hello.clock_s else None
            self.presence[board] = Presence(True, time.monotonic(), "", hello.agent_version, off_s)
            if text := clock_fault(off_s):
                self._warn(board, f"{board}: {text}; {CLOCK_HINT}")
            self._connected(board)
        if heard.message is not None and run is not None and board in run.index:
            self._step(m.Said(run.index[board], heard.message, len(arrival.payload)), arrival)
        elif isinstance(heard.message, Ping):
            self._send_to(board, Pong(heard.message.session, heard.message.lease, 0.0))

    def _warn(self, board: str, text: str, *, loud: bool = True) -> None:
        """Say and journal why something was refused; `board` "": a stranger. So often a minute, then it is counted."""
        now_s = time.monotonic()
        if not (text := self._rationed.about(board, text, now_s)):
            return
        if loud:
            self._talk.warning(text, board=board, event="protocol")
        self.recent.add("warning", text, now_s, board)
        if self._run is not None:
            number = self._run.index.get(board)
            self._run.jobs.append(Job(m.Note("warning", text, number, loud=False), self._run.now_s))

    def _connected(self, name: str) -> None:
        session, run = self._peers.session(name), self._run
        if session is not None and run is not None and name in run.index:
            hello = self._peers.hello(name)
            kept = hello.kept_run, hello.kept_round, hello.kept_slice
            self._step(m.Connected(run.index[name], session, hello.pid, hello.agent_version, hello.chunk_max, kept))

    def _gone(self, name: str, reason: str, *, for_good: bool = False) -> None:
        self.presence[name] = Presence(False, time.monotonic(), reason)
        if self._run is None:  # else its machine says so
            self.recent.add("lost", f"{name}: {reason}", time.monotonic(), name)
        if self._run is not None and name in self._run.index:
            self._step(m.Gone(self._run.index[name], reason, for_good=for_good))

    # What the machine says ------------------------------------------------------------------------------------------

    def _step(self, event: m.Event | Told, arrival: Arrival | None = None) -> None:
        run = self._run
        if run is None:
            return
        try:
            actions = run.machine.step(event, time.monotonic())
        except RemoteProtocolError as error:
            self._peers.dropped["against-the-run"] += 1
            board = arrival.board if arrival else ""
            self._warn(board, f"{board or 'a board'} broke the protocol, message dropped: {error}")
            return
        for action in actions:
            self._do(run, action, arrival)

    def _do(self, run: _Run, action: m.Action, arrival: Arrival | None) -> None:
        if isinstance(action, m.Send):
            self._send(run, action)
        elif type(action) in _ROWS:
            self._record(run, action)
        elif isinstance(action, TensorOut):
            self._send_tensor(run, action)
        elif isinstance(action, WriteTensor):
            assert arrival is not None
            run.take_in(action, arrival.payload)
        elif isinstance(action, Tell):
            assert arrival is not None
            self._step(Told(action.board, action.message, bytes(arrival.payload)))
        elif isinstance(action, m.WriteUpload):
            assert arrival is not None
            run.uploads.write(action.board, action.part, action.offset, arrival.payload)
        else:
            self._record(run, action)

    def _record(self, run: _Run, action: m.Action) -> None:
        upload, allocate_s = None, 0.0
        if isinstance(action, m.StoreResult | KeepState):
            upload = run.uploads.take(action.board)
        elif isinstance(action, m.StoreSlices) and action.first:
            allocate_s = run.planner.last_s if run.planner is not None else 0.0
        elif isinstance(action, m.Note) and action.loud:
            level = "info" if action.kind == "back" else "warning"
            name = "" if action.board is None else run.names[action.board]
            self._talk(action.detail, level=level, board=name, event=action.kind)
            self.recent.add(action.kind, action.detail, time.monotonic(), name)
        elif isinstance(action, m.Finish):
            self._record_dropped(run)
        tensors = run.tensors_of(action) if isinstance(action, ComputeStep | CommitStep) else {}
        run.jobs.append(Job(action, run.now_s, upload, tensors, allocate_s))
        if isinstance(action, m.Finish):
            run.outcome = Outcome(action.ok, action.reason)

    def _record_dropped(self, run: _Run) -> None:
        """Say and journal how many messages were refused, and for what; what came before a run counts with it."""
        dropped = self._count_dropped()
        fresh, self._told_dropped = dropped - self._told_dropped, dropped
        if fresh:
            counts = ", ".join(f"{number} {reason}" for reason, number in sorted(fresh.items()))
            self._record(run, m.Note("dropped", f"messages dropped since the run before: {counts}"))

    def _count_dropped(self) -> Counter[str]:
        return self._peers.dropped + Counter({"wrong-frames": self._link.dropped_frames})

    def _send(self, run: _Run, action: m.Send) -> None:
        payload: memoryview | bytes = b""
        if action.piece is not None:
            payload = memoryview(action.model or run.store.model)[action.piece[0] : action.piece[1]]
        name = run.names[action.board]
        if not self._send_to(name, action.message, payload) and self._peers.forget(name):
            self._gone(name, "its connection is lost")

    def _send_tensor(self, run: _Run, action: TensorOut) -> None:
        whole, store = action.data, run.store
        if whole is None:
            assert isinstance(store, SplitSide)
            whole = store.outgoing(action.board, action.message.what)
        name = run.names[action.board]
        payload = memoryview(whole)[action.piece[0] : action.piece[1]]
        if not self._send_to(name, action.message, payload) and self._peers.forget(name):
            self._gone(name, "its connection is lost")

    def _send_to(self, name: str, message: Message, payload: memoryview | bytes = b"") -> bool:
        """Send; False: there is no connection. What the session does not allow is said, and not sent."""
        try:
            header = self._peers.encode(name, message, time.monotonic())
        except (KeyError, LocalProtocolError) as error:
            self._talk.warning(f"{name}: {message.kind} not sent: {error}", board=name, event="protocol")
            return True
        return self._link.send(name, header, payload)
