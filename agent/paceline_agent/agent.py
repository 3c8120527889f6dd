# SPDX-License-Identifier: Apache-2.0
"""The life of an agent: one thread that carries out what the AgentMachine says. Effects only; decisions are the
machine's.

Memory stays small and start-up short: neither torch nor numpy is ever imported here, they live in the trainer child.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import secrets
import sys
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from paceline import machine as m
from paceline import wire
from paceline.errors import KeyFileError, PacelineError, RemoteProtocolError, StorageError
from paceline.notify import Watchdog, notify
from paceline.session import LIFE_BITS, StaleLease
from paceline.talk import Talk
from paceline.version import VERSION
from paceline_agent import channel
from paceline_agent.child import TrainerChild
from paceline_agent.complaints import Complaints
from paceline_agent.config import AgentConfig
from paceline_agent.idle import Idle, seconds_of
from paceline_agent.joules import Joules
from paceline_agent.kept import Shelf
from paceline_agent.link import AgentLink, Arrival
from paceline_agent.quota import Quota

OUTBOX_S = 0.05  # between two attempts to send what the link would not take; a new connection ends the wait at once
GOODBYE_S = 1.0
HOLD_S = 5.0  # an agent that follows another at once may have to wait for that one's end
_EXIT_CODES = {"version": 6, "fenced": 5, "key": 5, "manifest": 6, "data": 3, "energy": 3}


class Agent:
    """One board's agent. `run` returns the exit status; `stop` may be called from a signal handler."""

    def __init__(self, config: AgentConfig, base: Path, talk: Talk) -> None:
        self._config = config
        self._base = base
        self._talk = talk
        self._outbox: deque[tuple[bytes, memoryview | bytes]] = deque()
        self._payload: memoryview | bytes = b""
        self._base_hash = hashlib.sha256()
        self._tensor_crc = 0  # of the tensor that is coming in, as far as it is here
        self._stopping = ""
        self._status: int | None = None
        self._load: wire.Load | None = None
        self._watched: int | None = None
        self._complaints, self._doubted = Complaints(), False

    def stop(self, reason: str) -> None:
        """End in order: goodbye, trainer, meter."""
        self._stopping = reason

    def run(self) -> int:
        """Serve the host until stopped. Raises PacelineError when the agent cannot start."""
        keys, host_key = self._config.keys(self._base)
        state_dir = self._base / self._config.state_dir
        with ExitStack() as life:
            life.callback(os.close, hold(state_dir))
            self._quota = life.enter_context(Quota(self._config.quota)) if self._config.quota is not None else None
            self._trainer = TrainerChild(state_dir, self._config.trainer.server)
            life.callback(self._trainer.close)
            self._joules = life.enter_context(Joules(self._config.meter))
            self._idle = Idle(self._joules, seconds_of(self._config.meter), self._talk)
            self._link = AgentLink(self._config.host.endpoint, keys, host_key)
            life.callback(lambda: self._link.close(GOODBYE_S if self._said_bye else 0.0))
            self._said_bye = False
            self._link.watch(self._joules.fileno())
            if self._config.end_with_stdin:
                self._link.watch(sys.stdin.fileno())
            identity = m.Identity(
                VERSION, machine_id(state_dir), os.getpid(), self._config.chunk_max_bytes, self._joules.source,
                self._joules.known,
            )  # fmt: skip
            self._shelf = Shelf(state_dir, self._talk.warning)
            life.callback(self._shelf.close)
            left = self._shelf.load(self._trainer.update_path)
            sessions = itertools.count((1 + secrets.randbelow((1 << LIFE_BITS) - 1)) << LIFE_BITS)
            self._machine = m.AgentMachine(identity, lambda: next(sessions), left, lambda: int(time.time()))
            rhythm = f", {self._joules.rhythm}" if self._joules.rhythm else ""
            self._talk(f"connecting to {self._config.host.endpoint}; meter: {self._joules.source}{rhythm}")
            self._do(self._machine.restart(_now_s()))
            notify("READY=1")  # it serves; whether its host is there is not its service manager's concern
            life.callback(notify, "STOPPING=1")
            watchdog = Watchdog()
            while self._status is None and not self._stopping:
                watchdog.turn(_now_s())
                self._turn()
            self._goodbye()
        return self._status if self._status is not None else 0

    # One turn of the loop -------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        due_s = self._machine.wake_s()
        ready = self._link.poll(OUTBOX_S if self._outbox else max(0.0, min(1.0, due_s - _now_s(), self._joules.look_s)))
        if self._link.refused:
            raise KeyFileError(f"cannot work with {self._config.host.endpoint}: {self._link.trouble}")
        for arrival in self._link.receive():
            self._hear(arrival)
        if self._trainer.fileno() in ready:
            self._hear_trainer()
        if self._joules.fileno() in ready:
            self._joules.drain()
        self._mind_the_meter()  # one that hangs says nothing
        self._settle_joules()
        if self._config.end_with_stdin and sys.stdin.fileno() in ready:
            self._stopping = "its parent is gone"
        if _now_s() >= due_s:  # what has become due since then is for the next turn
            self._step(m.Tick())
        if self._outbox:
            self._flush()

    def _hear(self, arrival: Arrival) -> None:
        self._payload = arrival.payload
        try:
            self._step(m.Received(arrival.header, len(arrival.payload)))
        except StaleLease as error:  # it and the end of the lease have crossed, which is nobody's fault
            self._talk.debug(f"dropped: {error}")
        except RemoteProtocolError as error:
            self._talk.warning(f"the host broke the protocol, message dropped: {error}")
        finally:
            self._payload = b""

    def _hear_trainer(self) -> None:
        for message in self._trainer.receive():
            if message is None:
                self._lose_trainer("")
            elif isinstance(message, channel.Loaded):
                self._loaded(message)
            elif isinstance(message, channel.Hello):
                self._trainer.pid = message.pid
            elif isinstance(message, channel.Edge):
                self._edge(message.lease, message.edge == "begin", message.t_us, message.edge == "wait")
            elif isinstance(message, channel.Progress):
                self._step(m.WorkProgress(message.lease, message.samples))
            elif isinstance(message, channel.Output):
                self._step(m.WorkTensor(message.lease, message.step, message.redraw, message.what, message.size))
            elif isinstance(message, channel.Done):
                if message.begin_us:
                    self._edge(message.lease, True, message.begin_us)
                if message.end_us:
                    self._edge(message.lease, False, message.end_us)
                self._step(
                    m.WorkDone(
                        message.lease, message.samples, message.steps, message.compute_us, message.overruns,
                        message.late_us, message.update_bytes, message.update_sha256,
                    )
                )  # fmt: skip
            elif isinstance(message, channel.Failed) and message.reason == channel.BROKEN:
                self._lose_trainer(f"{message.reason}: {message.detail}")  # buried, it does not die a second time
            elif isinstance(message, channel.Failed):
                self._talk.warning(f"trainer: {message.reason}: {message.detail}")
                self._joules.activity(_now_us(), False)
                self._step(m.WorkFailed(message.lease or 0, message.reason, message.detail))

    def _edge(self, lease: int, begin: bool, t_us: int, waits: bool = False) -> None:
        self._joules.activity(t_us, begin)
        self._step(m.WorkEdge(lease, begin, t_us, waits))

    def _loaded(self, message: channel.Loaded) -> None:
        try:
            self._trainer.map(message.inbox_bytes, message.outbox_bytes)
            if self._quota is not None:
                self._quota.admit(self._trainer.pid)
        except (PacelineError, OSError) as error:
            self._lose_trainer(str(error))
            return
        ready = m.TrainerReady(
            message.manifest_digest,
            message.model_bytes,
            message.samples,
            message.data_label,
            self._trainer.pid,
            inbox_bytes=message.inbox_bytes,
            data_sha256=message.data_sha256,
            library=message.library,
        )
        self._step_if(self._idle.ready(ready, self._load is None or self._load.idle_baseline, _now_us()))

    def _lose_trainer(self, why: str) -> None:
        if self._watched is not None:
            self._link.unwatch(self._watched)
            self._watched = None
        self._idle.drop()
        how = why or self._trainer.bury()
        if why:
            self._trainer.close()
        self._joules.activity(_now_us(), False)
        self._talk.warning(f"{how}{self._machine.if_trainer_ends}", event="trainer")
        self._step(m.TrainerGone(how))

    def _mind_the_meter(self) -> None:
        for text in self._joules.said():
            self._talk(f"the meter says: {text}", event="meter")
        if bool(self._joules.doubt) != self._doubted:
            self._doubted = not self._doubted
            if self._doubted:
                self._talk.warning(f"meter {self._joules.source}: {self._joules.doubt}", event="meter")
            else:
                self._talk("meter: its value moves again", event="meter")
        trouble = self._complaints.news(self._joules.trouble, _now_s())
        if trouble:
            self._talk.warning(f"meter: {trouble}; its joules are unknown", event="meter")
        elif trouble is not None:
            self._talk("meter: readings again", event="meter")

    def _settle_joules(self) -> None:
        for event in self._joules.settled():
            self._step(event)
        self._step_if(self._idle.turn(_now_us()))

    def _step(self, event: m.Event) -> None:
        self._do(self._machine.step(event, _now_s()))

    def _step_if(self, event: m.Event | None) -> None:
        if event is not None:
            self._step(event)

    # Actions --------------------------------------------------------------------------------------------------------

    def _do(self, actions: list[m.Action]) -> None:
        for action in actions:
            self._ACTIONS[type(action)](self, action)

    def _send(self, action: m.Send) -> None:
        payload: memoryview | bytes = b""
        if action.piece is not None:
            if self._trainer.update is None:
                return  # its trainer is gone, as the machine is about to hear
            payload = memoryview(self._trainer.update)[action.piece[0] : action.piece[1]]
        self._outbox.append((action.header, payload))
        self._flush()

    def _flush(self) -> None:
        while self._outbox and self._link.send(*self._outbox[0]):
            self._outbox.popleft()

    def _start_trainer(self, action: m.StartTrainer) -> None:
        load = self._load = action.load
        self._idle.drop()
        try:
            self._trainer.start()
        except OSError as error:
            self._lose_trainer(f"cannot start a trainer: {error}")
            return
        descriptor = self._trainer.fileno()
        if descriptor is not None and descriptor != self._watched:
            self._link.watch(descriptor)
            self._watched = descriptor
        self._trainer.unmap()
        data_dir = str(self._base / self._config.data_dir) if self._config.data_dir else ""
        self._trainer.send(
            channel.Load(
                run=load.run, task=load.task, options=load.options, seed=load.seed, data_dir=data_dir,
                model_path=str(self._trainer.model_path), update_path=str(self._trainer.update_path),
                pace=self._config.emulation, regime=load.regime, host=self._config.host.endpoint,
            )
        )  # fmt: skip

    def _store_base(self, action: m.StoreBase) -> None:
        if self._trainer.model is None:
            return
        if action.offset == 0:
            self._base_hash = hashlib.sha256()
        self._trainer.model[action.offset : action.offset + len(self._payload)] = self._payload
        self._base_hash.update(self._payload)
        if action.sha256 is not None:
            self._step(m.BaseReady(action.lease, self._base_hash.hexdigest() == action.sha256))

    def _store_tensor(self, action: m.StoreTensor) -> None:
        """A schedule lies at the inbox's beginning, any other tensor at its end: there is room for both at once.

        It may lie over one that the trainer has not read yet and need not read any more, as the checksum tells it.
        """
        if self._trainer.model is None:
            return
        begin = 0 if action.what == "schedule" else len(self._trainer.model) - action.size
        self._trainer.model[begin + action.offset : begin + action.offset + len(self._payload)] = self._payload
        self._tensor_crc = zlib.crc32(self._payload, self._tensor_crc if action.offset else 0)
        if action.whole:
            self._trainer.send(
                channel.Input(
                    action.lease, action.step, action.redraw, action.what, begin, action.size, self._tensor_crc
                )
            )  # fmt: skip

    def _start_work(self, action: m.StartWork) -> None:
        seed = self._load.seed if self._load else 0
        self._trainer.send(channel.Work(action.lease, action.ranges, action.batch, seed))

    def _stop_work(self, action: m.StopWork) -> None:
        self._trainer.send(channel.Cancel(action.lease))

    def _kill_trainer(self, action: m.KillTrainer) -> None:
        self._talk.warning(f"{action.reason}; it is killed", event="trainer")
        self._trainer.kill()

    def _keep(self, action: m.Keep) -> None:
        self._shelf.save(action.kept)

    def _open_window(self, action: m.OpenWindow) -> None:
        self._joules.open(_now_us())

    def _mark(self, action: m.Mark) -> None:
        self._joules.mark(_now_us() if action.t_us is None else action.t_us, action.category, action.lease)

    def _void(self, action: m.Void) -> None:
        self._joules.void(action.lease)

    def _measure(self, action: m.Measure) -> None:
        self._joules.measure(action.lease)

    def _measure_split(self, action: m.MeasureSplit) -> None:
        self._joules.measure_split(action.run, action.round, _now_us() if action.t_us is None else action.t_us)

    def _reconnect(self, action: m.Reconnect) -> None:
        trouble = self._link.trouble
        self._outbox.clear()
        if self._link.refused or self._link.wrong_key:
            raise KeyFileError(f"cannot work with {self._config.host.endpoint}: {trouble}")
        self._talk.warning(f"{action.reason}{': ' + trouble if trouble else ''}; connecting again", event="reconnect")
        self._link.reconnect()
        self._do(self._machine.restart(_now_s()))

    def _exit(self, action: m.Exit) -> None:
        self._talk.error(action.text, event=action.code)
        self._status = _EXIT_CODES.get(action.code, 9)

    def _goodbye(self) -> None:
        header = self._machine.bye(self._stopping or "ended", _now_s()) if self._status is None else None
        if header is not None:
            self._said_bye = self._link.send(header)

    _ACTIONS: dict[type[object], Callable[..., None]] = {
        m.Send: _send, m.StartTrainer: _start_trainer, m.StoreBase: _store_base, m.StoreTensor: _store_tensor,
        m.StartWork: _start_work,
        m.StopWork: _stop_work, m.KillTrainer: _kill_trainer, m.Keep: _keep, m.OpenWindow: _open_window,
        m.Mark: _mark, m.Void: _void,
        m.Measure: _measure, m.MeasureSplit: _measure_split, m.Reconnect: _reconnect, m.Exit: _exit,
    }  # fmt: skip


def hold(state_dir: Path) -> int:
    """Return a descriptor that keeps other agents out of this state folder until it is closed. Raises StorageError."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"state_dir {state_dir} cannot be used: {error.strerror}") from None
    deadline_s = _now_s() + HOLD_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if _now_s() > deadline_s:
            os.close(descriptor)
            raise StorageError(f"state_dir {state_dir} is in use by another agent; give each agent a folder of its own")
        time.sleep(0.05)


def machine_id(state_dir: Path) -> str:
    """Return a name for this installation that two boards with one cloned key file would not share."""
    for path in (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")):
        with suppress(OSError):
            seed = path.read_text(encoding="ascii").strip() + str(state_dir.resolve())
            return hashlib.sha256(seed.encode()).hexdigest()[:32]
    return uuid.uuid4().hex


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _now_s() -> float:
    return time.monotonic()
