# SPDX-License-Identifier: Apache-2.0
"""A board in virtual time: the production AgentMachine, with a trainer, a meter and a link that are models.

It does what the agent's loop does, hardware apart: it carries out the machine's actions and says what came of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from paceline import machine as m
from paceline.errors import RemoteProtocolError
from paceline.tasks import Buffer
from paceline.tensors import Manifest
from paceline.version import VERSION
from paceline.wire import CHUNK_CEILING, Load
from paceline_host.simulation.account import SOURCE, Account
from paceline_host.simulation.clock import Clock, Timer
from paceline_host.simulation.line import Line
from paceline_host.simulation.models import BoardModel

LOAD_S = 0.2  # a trainer that is forked from one that holds model and data (DECISIONS 50)
PROGRESS_S = 2.0  # a trainer tells at least so often how far it is

ToHost = Callable[[str, int, bytes, "memoryview | bytes"], None]  # board, connection, header, payload


class Work(Protocol):
    """What a board knows of its task."""

    manifest: Manifest
    digest: str
    samples: int
    data_label: str

    def trained(self, model: Buffer, steps: int) -> bytes:
        """Return what so many steps make of a model."""


class SimulatedBoard:
    """One board. `to_host` is called when a message of it arrives there."""

    def __init__(
        self, clock: Clock, number: int, name: str, model: BoardModel, task: Work, lines: tuple[Line, Line],
        to_host: ToHost,
    ) -> None:  # fmt: skip
        self.clock, self.number, self.name, self.model = clock, number, name, model
        self.alive = False
        self.life = 0  # of the agent's process; what an older one had planned does not happen
        self.route = 0  # of its connection; what is under way on an older one is lost
        self.dropped: list[str] = []  # what it refused of the host's
        self.trouble = ""  # why it has ended by itself
        self._task, self._to_host = task, to_host
        self.down, self.up = lines
        self._load: Load | None = None
        self._work = 0  # number of the slice in hand: what belongs to an older one does not happen
        self._nonces = 0
        self._base, self._update = bytearray(task.manifest.nbytes), b""
        self._samples = task.samples  # that it holds
        self._inbox_bytes = 0  # room for tensors, where its regime has steps
        self._payload: bytes | memoryview = b""
        self._kept: m.Kept | None = None  # on its disk, with the update
        self._timer = Timer(clock, self._tick)

    # Its life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the agent."""
        self.life += 1
        self.alive = True
        known = self.model.metered
        me = m.Identity(VERSION, f"simulated-{self.number}", self.number + 1, CHUNK_CEILING, SOURCE, known)
        self.account = Account(lambda at_us, span_us: self.model.watts(self._round, at_us, span_us))
        self.account.metered = known
        self._round = 1
        self.machine = m.AgentMachine(me, self._nonce, self._kept)
        self._connect()

    def leave(self, reason: str) -> None:
        """End the agent in order: the host is told."""
        if self.alive:
            header = self.machine.bye(reason, self.clock.now_s)
            if header is not None:
                self._send(m.Send(header))
            self.end()

    def end(self) -> None:
        """End the agent and its trainer at once, without a word."""
        self.alive = False
        self._work += 1
        self._timer.set(float("inf"))

    def change(self, what: Callable[[BoardModel], None]) -> None:
        """Let something become of the board; joules up to now are of what it was."""
        if self.alive:
            self.account.settle(self._now_us())
        what(self.model)
        if self.alive:
            self.account.metered = self.model.metered

    def _nonce(self) -> int:
        self._nonces += 1
        return (self.number + 1) << 32 | self._nonces

    def _connect(self) -> None:
        self.route += 1
        self._do(self.machine.restart(self.clock.now_s))

    # Events ---------------------------------------------------------------------------------------------------------

    def hear(self, header: bytes, payload: bytes | memoryview) -> None:
        """Take a message of the host."""
        self._payload = payload
        try:
            self.step(m.Received(header, len(payload)))
        except RemoteProtocolError as error:
            self.dropped.append(str(error))

    def step(self, event: m.Event) -> None:
        """Let the machine take an event, and do what it says."""
        self._do(self.machine.step(event, self.clock.now_s))

    def _tick(self) -> None:
        if self.alive:
            self.step(m.Tick())

    def _do(self, actions: list[m.Action]) -> None:
        for action in actions:
            if not self.alive:
                return
            self._ACTIONS[type(action)](self, action)
        if self.alive:
            self._timer.set(self.machine.wake_s())

    def _later(self, delay_s: float, event: m.Event, work: int) -> None:
        def happen() -> None:
            if self.alive and work == self._work:
                self.step(event)

        self.clock.later(delay_s, happen)

    def _now_us(self) -> int:
        return int(self.clock.now_s * 1e6)

    # Actions --------------------------------------------------------------------------------------------------------

    def _send(self, action: m.Send) -> None:
        header, route = action.header, self.route
        payload: memoryview | bytes = b""
        if action.piece is not None:
            payload = memoryview(self._update)[action.piece[0] : action.piece[1]]
        life = self.life

        def arrive() -> None:
            if route == self.route and life == self.life:
                self._to_host(self.name, route, header, payload)

        self.up.send(len(header), len(payload), arrive)

    def _start_trainer(self, action: m.StartTrainer) -> None:
        self._load = action.load
        self._work += 1
        task = self._task
        idle_uw = round(self.model.watts(1)[0] * 1e6) if self.model.metered and action.load.idle_baseline else None
        ready = m.TrainerReady(
            task.digest, len(self._base), self._samples, task.data_label, self.number + 1, self._inbox_bytes, idle_uw
        )  # fmt: skip
        self._later(LOAD_S, ready, self._work)

    def _store_base(self, action: m.StoreBase) -> None:
        self._base[action.offset : action.offset + len(self._payload)] = self._payload
        if action.sha256 is not None:
            matches = hashlib.sha256(self._base).hexdigest() == action.sha256
            self.step(m.BaseReady(action.lease, matches))

    def _start_work(self, action: m.StartWork) -> None:
        samples = sum(end - begin for _, begin, end in action.ranges)
        self.account.settle(self._now_us())
        self._round = action.round
        seconds = self.model.seconds(action.round, samples)
        self._work += 1
        work, lease, begin_us = self._work, action.lease, self._now_us()
        self.step(m.WorkEdge(lease, True, begin_us))
        for part in range(1, int(seconds / PROGRESS_S) + 1):
            done = int(samples * part * PROGRESS_S / seconds)
            self._later(part * PROGRESS_S, m.WorkProgress(lease, done), work)

        def done_() -> None:
            if self.alive and work == self._work:
                self._finish(lease, begin_us, samples, action.batch)

        self.clock.later(seconds, done_)

    def _finish(self, lease: int, begin_us: int, samples: int, batch: int) -> None:
        now_us = self._now_us()
        steps = -(-samples // batch)
        self._update = self._task.trained(self._base, steps)
        self.step(m.WorkEdge(lease, False, now_us))
        compute_us = max(1, now_us - begin_us)
        digest = hashlib.sha256(self._update).hexdigest()
        self.step(m.WorkDone(lease, samples, steps, compute_us, 0, 0, len(self._update), digest))

    def _stop_work(self, action: m.StopWork) -> None:
        self._work += 1
        self.step(m.WorkFailed(action.lease, "cancelled", "the agent cancelled this lease"))

    def _kill_trainer(self, action: m.KillTrainer) -> None:
        self._work += 1
        self.step(m.TrainerGone(action.reason))

    def _keep(self, action: m.Keep) -> None:
        self._kept = action.kept

    def _open_window(self, action: m.OpenWindow) -> None:
        self.account.open(self._now_us())

    def _mark(self, action: m.Mark) -> None:
        self.account.mark(self._now_us() if action.t_us is None else action.t_us, action.category, action.lease)

    def _void(self, action: m.Void) -> None:
        self.account.settle(self._now_us())
        self.account.void(action.lease)

    def _measure(self, action: m.Measure) -> None:
        joules = self.account.computed_uj(action.lease)
        nothing = None if joules is None else 0
        self.step(m.Measured(action.lease, joules, nothing, SOURCE, 0 if joules is not None else 1, nothing))

    def _measure_split(self, action: m.MeasureSplit) -> None:
        t_us = self._now_us() if action.t_us is None else action.t_us
        self.step(m.SplitMeasured(self.account.split(action.run, action.round, t_us)))

    def _reconnect(self, action: m.Reconnect) -> None:
        self._connect()

    def _exit(self, action: m.Exit) -> None:
        self.trouble = action.text
        self.end()

    def _no_split(self, action: m.Action) -> None:
        raise NotImplementedError("the simulator has no split learning yet")

    _ACTIONS: dict[type[object], Callable[..., None]] = {
        m.Send: _send, m.StartTrainer: _start_trainer, m.StoreBase: _store_base, m.StoreTensor: _no_split,
        m.StartWork: _start_work, m.StopWork: _stop_work, m.KillTrainer: _kill_trainer, m.Keep: _keep,
        m.OpenWindow: _open_window, m.Mark: _mark, m.Void: _void, m.Measure: _measure,
        m.MeasureSplit: _measure_split, m.Reconnect: _reconnect, m.Exit: _exit,
    }  # fmt: skip
