# SPDX-License-Identifier: Apache-2.0
"""A board with faults: it dies, stands still, its trainer dies or hangs, its meter and its disk fail, or it lies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from paceline import machine as m
from paceline import wire
from paceline.wire import Range
from paceline_host.simulation.account import SOURCE
from paceline_host.simulation.board import SimulatedBoard
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.truth import ChaosTask
from paceline_host.simulation.chaos.wire import Bytes, Wire
from paceline_host.simulation.clock import Clock
from paceline_host.simulation.line import Line, LinkModel
from paceline_host.simulation.models import BoardModel

ABSURD = 1000
SERVICE_S = 5.0  # after which an agent that has ended by itself is started again
METER_S = (0.0, 0.005, 0.1, 0.5)  # after the end of work


class ChaosBoard(SimulatedBoard):
    """`wire` is its link, to be set before it is started."""

    wire: Wire

    def __init__(
        self, clock: Clock, number: int, name: str, model: BoardModel, task: ChaosTask, batch: int, chance: Random
    ) -> None:
        nothing = Line(clock, LinkModel(0.0, 1.0))
        super().__init__(clock, number, name, model, task, (nothing, nothing), lambda *_: None)
        self._chance, self._batch = chance, batch
        self._awake_s = 0.0
        self._held: list[Callable[[], None]] = []
        self._ranges: tuple[Range, ...] = ()
        self._from = b""  # the model that the work in hand began from
        self.is_working = 0  # the lease that the trainer works on
        self._done = ""  # hash of the last result
        self._has_trainer = False
        self.apart_s = 0.0  # until then it reaches no other board
        self.gave_s = 0.0  # when its trainer has last given a tensor of a step
        self._depth = 0  # of events that follow from events
        self.hangs = self.absurd = self.disk_full = self.lies = self.flips = False
        self.windows: list[int] = []  # energy windows that this life of its agent has opened
        self.measured: dict[str, list[int | None]] = {}  # by the hash of a result: what its meter said
        self.on_hear: Callable[[ChaosBoard, bytes], None] = lambda board, header: None
        self.on_step: Callable[[ChaosBoard], None] = lambda board: None
        self.say: Callable[[bytes, Bytes], None] = lambda header, payload: self.wire.say(header, payload)

    # Its life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the agent, with what it finds on its disk."""
        kept = self._kept
        if kept is not None and truth.sha(self._update) != kept.update_sha256:
            self._kept = None
        self.hangs, self.is_working, self._held = False, 0, []
        self._awake_s, self.windows = 0.0, []
        super().start()

    def end(self) -> None:
        """End the agent and its trainer at once."""
        super().end()
        self._end_work()

    def lose_power(self) -> None:
        """End, and lose what was not synced: by chance all of it, or the end of the update."""
        self.end()
        if self._chance.random() < 0.7:
            self._kept = None

    def freeze(self, seconds: float) -> None:
        """Stand still."""
        self._awake_s = self.clock.now_s + seconds
        self.clock.at(self._awake_s, self._thaw)

    @property
    def was_frozen(self) -> bool:
        """It stands still, or has just stood still."""
        return self.clock.now_s < self._awake_s + 1.0

    def thaw(self) -> None:
        """Go on now."""
        self._awake_s = min(self._awake_s, self.clock.now_s)
        self._thaw()

    def _gives_up(self, action: m.Exit) -> None:
        """End as the host has told it to; its service starts it again."""
        super()._exit(action)
        self.clock.later(SERVICE_S, lambda: None if self.alive else self.start())

    def lose_trainer(self) -> None:
        """Let the trainer die."""
        if self.alive and self._load is not None:
            self._end_work()
            self.hangs, self._has_trainer = False, False
            self._awake(lambda: self.step(m.TrainerGone("killed")))

    def hang_trainer(self) -> None:
        """Let the trainer hang in the work it has."""
        if self.is_working:
            self._work += 1
            self.hangs = True

    def lose_peers(self) -> bool:
        """Let its connections to other boards end; False: it has none."""
        return False

    def _thaw(self) -> None:
        while self._held and self.alive and self.clock.now_s >= self._awake_s:
            self._held.pop(0)()

    def _awake(self, call: Callable[[], None]) -> None:
        if self.clock.now_s < self._awake_s or self._held:
            self._held.append(call)
        else:
            call()

    def _nonce(self) -> int:
        self._nonces += 1
        return (self.number + 1) << 48 | self.life << 32 | self._nonces

    def _connect(self) -> None:
        self.wire.connect()
        self._do(self.machine.restart(self.clock.now_s))

    # Events ---------------------------------------------------------------------------------------------------------

    def hear(self, header: bytes, payload: Bytes) -> None:
        """Take a message of the host."""
        if not self.alive:
            return
        if self.flips and len(payload) and self._is_model(header):
            self.flips = False
            flipped = bytearray(payload)
            flipped[self._chance.randrange(len(flipped))] ^= 1 << self._chance.randrange(8)
            payload = bytes(flipped)
        self._awake(lambda: self._take(header, payload))

    def _is_model(self, header: bytes) -> bool:
        """Tell whether what comes with a message is compared with a hash."""
        return not isinstance(wire.decode(header, wire.FROM_HOST), wire.Tensor)

    def _take(self, header: bytes, payload: Bytes) -> None:
        self.on_hear(self, header)
        super().hear(header, payload)

    def step(self, event: m.Event) -> None:
        """Let the machine take an event, and whoever watches look."""
        self._depth += 1
        super().step(event)
        self._depth -= 1
        if self.alive and not self._depth:
            self.on_step(self)

    def _tick(self) -> None:
        if self.alive:
            self._awake(super()._tick)

    def _later(self, delay_s: float, event: m.Event, work: int) -> None:
        def happen() -> None:
            if self.alive and work == self._work:
                self._awake(lambda: self.step(event) if work == self._work else None)

        self.clock.later(delay_s, happen)

    # Actions --------------------------------------------------------------------------------------------------------

    def _out(self, action: m.Send) -> None:
        payload: Bytes = b""
        if action.piece is not None:
            payload = self._update[action.piece[0] : action.piece[1]]
        self.say(action.header, payload)

    def _load_trainer(self, action: m.StartTrainer) -> None:
        if self.hangs:  # it is there, and hears nothing of this either, until it is killed
            self._load = action.load
            return
        self._end_work()
        self._has_trainer = True
        super()._start_trainer(action)

    def _begin_work(self, action: m.StartWork) -> None:
        if not self._has_trainer:  # its agent is about to hear of that
            return
        self._ranges, self._from, self.is_working = action.ranges, bytes(self._base), action.lease
        super()._start_work(action)

    def _finish(self, lease: int, begin_us: int, samples: int, batch: int) -> None:
        work = self._work
        self._awake(lambda: self._is_done(lease, begin_us, samples) if work == self._work else None)

    def _is_done(self, lease: int, begin_us: int, samples: int) -> None:
        now_us = self._now_us()
        self.is_working = 0
        self._update = truth.update(self._from, self._ranges, self._batch)
        self.step(m.WorkEdge(lease, False, now_us))
        self._says_done(lease, samples, -(-samples // self._batch), max(1, now_us - begin_us), self._update)

    def _says_done(self, lease: int, samples: int, steps: int, compute_us: int, result: bytes) -> None:
        """The trainer is done; `result` need not be what it gives."""
        if self.lies:
            compute_us = self._chance.choice((0, 1, max(1, compute_us // ABSURD), compute_us * ABSURD))
        self._done = truth.sha(result)
        self.step(m.WorkDone(lease, samples, steps, compute_us, 0, 0, len(self._update), self._done))

    def _end_work(self) -> None:
        self._work += 1
        self.is_working = 0

    def _cancel(self, action: m.StopWork) -> None:
        if not self.hangs:  # else it says nothing, until it is killed
            self._end_work()
            super()._stop_work(action)

    def _kill(self, action: m.KillTrainer) -> None:
        self.hangs = False
        self._end_work()
        super()._kill_trainer(action)

    def _put_by(self, action: m.Keep) -> None:
        if not self.disk_full:
            super()._keep(action)

    def _open(self, action: m.OpenWindow) -> None:
        self.windows.append(self.machine._window)
        super()._open_window(action)

    def _meter(self, action: m.Measure) -> None:
        joules = self.account.computed_uj(action.lease)
        if joules is not None and self.absurd:
            joules *= ABSURD
        self.measured.setdefault(self._done, []).append(joules)
        nothing = None if joules is None else 0
        said = m.Measured(action.lease, joules, nothing, SOURCE, 0 if joules is not None else 1, nothing)
        life = self.life

        def tell() -> None:
            if self.alive and life == self.life:
                self._awake(lambda: self.step(said))

        self.clock.later(self._chance.choice(METER_S), tell)  # joules are final once a later reading is there

    _ACTIONS: dict[type[object], Callable[..., None]] = {
        **SimulatedBoard._ACTIONS, m.Send: _out, m.StartTrainer: _load_trainer, m.StartWork: _begin_work,
        m.StopWork: _cancel, m.KillTrainer: _kill, m.Keep: _put_by, m.OpenWindow: _open, m.Measure: _meter,
        m.Exit: _gives_up,
    }  # fmt: skip
