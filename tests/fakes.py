# SPDX-License-Identifier: Apache-2.0
"""Drivers for the machines that need no socket, file, process or clock: one heap of events, virtual seconds.

`FakeStore` keeps in memory what a journal would hold. `World` joins the real AgentMachines, Peers and RoundMachine by
a wire that can lose boards at any message. Models and updates are real bytes, sent in pieces and hashed at both ends.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline import machine as am
from paceline import wire
from paceline.errors import RemoteProtocolError
from paceline.wire import Energy, Range
from paceline_host import machine as rm
from paceline_host.peers import Peers, Terms
from paceline_host.planner import Planner
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import Pma, ranges_of

MODEL_BYTES = 100_000  # four chunks at the floor, two windows of credit
SPIN = 50_000  # so many events, and a driver spins instead of sleeping
MANIFEST = "manifest"


def sha(data: bytes | bytearray | memoryview) -> str:
    """Return the hash that names a model or an update."""
    return hashlib.sha256(data).hexdigest()


def model_of(round_: int) -> bytes:
    """Return the model with which a round ends; 0: the initial one."""
    return bytes([round_ + 1]) * MODEL_BYTES


def facts(**changes: object) -> rm.RunFacts:
    """Return the facts of a small run."""
    plain = rm.RunFacts(
        run="run", regime="pma", task="linear", options="{}", seed=1, rounds=3, budget=24, samples=20, batch=4,
        manifest_sha256=MANIFEST, model_bytes=MODEL_BYTES, patience_s=30.0, start_s=60.0, chunk_bytes=wire.CHUNK_FLOOR,
        credit_bytes=2 * wire.CHUNK_FLOOR, energy_needed=False,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


class EvenPlanner:
    """Equal shares, the first boards take the rest; remembers what it was told."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.observed: list[tuple[int, float, float | None, int]] = []
        self._pace: dict[int, float] = {}
        self.waits: list[tuple[int, float, float]] = []
        self.idle: dict[int, float] = {}
        self.heeds_waits = True
        self.every = 0
        self.steps: list[tuple[int, float, int]] = []
        self.notes: tuple[str, ...] = ()

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return equal shares."""
        whole, rest = divmod(self._budget, len(present))
        return [whole + (i < rest) for i in range(len(present))]

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Remember a report."""
        self.observed.append((board, seconds, energy_j, samples))
        self._pace[board] = seconds / samples

    def observe_wait(self, board: int, seconds: float, energy_j: float) -> None:
        """Remember a wait."""
        self.waits.append((board, seconds, energy_j))

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        """Remember what some steps took; the pace is theirs."""
        self.steps.append((board, seconds, samples))
        self._pace[board] = seconds / samples

    def observe_idle(self, board: int, watts: float) -> None:
        """Remember what a board drew before the first round."""
        self.idle[board] = watts

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the last report's pace."""
        return self._pace.get(board)


@dataclass
class Ledger:
    """What would be on disk."""

    slices: dict[tuple[int, int], Slice] = field(default_factory=dict)
    accepted: list[rm.StoreResult] = field(default_factory=list)
    refused: list[rm.StoreResult] = field(default_factory=list)
    losses: list[rm.StoreLoss] = field(default_factory=list)
    energies: list[rm.StoreEnergy] = field(default_factory=list)
    ready: list[rm.StoreReady] = field(default_factory=list)
    notes: list[rm.Note] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def said(self, kind: str) -> list[str]:
        """Return the texts of all notes of a kind."""
        return [note.detail for note in self.notes if note.kind == kind]

    def reopened(self, lives: int) -> rm.Reopened:
        """Return where a run stands of which this is the ledger."""
        number = max((r for r, _ in self.slices), default=0)
        mine = [s for (r, _), s in self.slices.items() if r == number]
        counted = {(done.slice.round, done.slice.index) for done in self.accepted}
        gone = {s.redealt_from for s in mine}
        left = tuple(s for s in mine if (number, s.index) not in counted and s.index not in gone)
        lost = {loss.slice.index for loss in self.losses if loss.slice.round == number}
        return rm.Reopened(
            round=number, closed=number in self.rounds or not number, open_slices=() if number in self.rounds else left,
            lost=frozenset(lost), next_index=len(mine), counted=frozenset(counted), lives=lives, elapsed_s=1.0,
            done=tuple((d.board, d.slice.samples) for d in self.accepted if d.slice.round == number),
            round_seconds=tuple(1.0 for _ in self.rounds),
        )  # fmt: skip

    def counted(self, round_: int) -> Counter[tuple[int, int]]:
        """Return how often each (epoch, position) was counted in a round."""
        return places(r for done in self.accepted if done.slice.round == round_ for r in done.slice.ranges)


def places(ranges: object) -> Counter[tuple[int, int]]:
    """Return how often ranges hold each (epoch, position)."""
    found: Counter[tuple[int, int]] = Counter()
    for epoch, begin, end in ranges:  # type: ignore[attr-defined]
        found.update((epoch, position) for position in range(begin, end))
    return found


def check_exactly_once(ledger: Ledger, f: rm.RunFacts, rounds: int | None = None) -> None:
    """Assert the ledger's laws: every place of each finished round is counted once, every slice at most once."""
    for round_ in ledger.rounds if rounds is None else range(1, rounds + 1):
        due: Sequence[Range] = ranges_of((round_ - 1) * f.budget, round_ * f.budget, f.samples)
        assert ledger.counted(round_) == places(due), f"round {round_}"
        planned = [s for (r, _), s in ledger.slices.items() if r == round_ and s.redealt_from is None]
        assert sum(s.samples for s in planned) == f.budget
    for slice_, times in Counter((d.slice.round, d.slice.index) for d in ledger.accepted).items():
        assert times == 1, f"slice {slice_} counted {times} times"
    for (round_, _), s in ledger.slices.items():
        if s.redealt_from is not None:
            assert (round_, s.redealt_from) in ledger.slices
            assert all((done.slice.round, done.slice.index) != (round_, s.redealt_from) for done in ledger.accepted)


def check_shown(world: World) -> None:
    """Assert that people are shown of the last round what was counted of it."""
    last = max(world.ledger.rounds)
    for index, board in enumerate(world.machine.boards):
        counted = [done for done in world.ledger.accepted if done.slice.round == last and done.board == index]
        assert board.counted == sum(done.slice.samples for done in counted), board.name


class FakeStore:
    """Takes the host's store actions; `settle` carries out some of them and returns the events they lead to."""

    def __init__(self, verdict: Callable[[rm.StoreResult], str] = lambda action: "") -> None:
        self.ledger = Ledger()
        self.verdict = verdict
        self.jobs: deque[rm.Action] = deque()

    def settle(self, limit: int = 1 << 30) -> list[rm.Event]:
        """Carry out at most `limit` jobs, in order."""
        events: list[rm.Event] = []
        while self.jobs and limit > 0:
            events += self._carry_out(self.jobs.popleft())
            limit -= 1
        return events

    def _carry_out(self, job: rm.Action) -> list[rm.Event]:
        ledger = self.ledger
        if isinstance(job, rm.StoreSlices):
            for item in job.slices:
                assert (item.round, item.index) not in ledger.slices, "a slice's number is its own"
                ledger.slices[item.round, item.index] = item
            return [rm.SlicesStored(job.slices)]
        if isinstance(job, rm.StoreResult):
            reason = self.verdict(job)
            (ledger.refused if reason else ledger.accepted).append(job)
            lease = job.result.lease
            return [rm.ResultRefused(job.board, lease, reason) if reason else rm.ResultStored(job.board, lease)]
        if isinstance(job, rm.FinishRound):
            ledger.rounds.append(job.round)
            return [rm.RoundDone(job.round, sha(model_of(job.round)))]
        if isinstance(job, rm.StoreLoss):
            ledger.losses.append(job)
        elif isinstance(job, rm.StoreEnergy):
            ledger.energies.append(job)
        elif isinstance(job, rm.StoreReady):
            ledger.ready.append(job)
        elif isinstance(job, rm.Note):
            ledger.notes.append(job)
        else:
            raise TypeError(f"a store knows no {type(job).__name__}")
        return []


class FakeBoard:
    """One board: the real AgentMachine, and a trainer and a meter that take virtual time."""

    def __init__(self, world: World, index: int, pace_s: float) -> None:
        self.world, self.index, self.pace_s = world, index, pace_s
        self.alive = False
        self.life = 0  # of the agent's process; what an older one had planned does not happen
        self.trainer_life = 0
        self.route = 0
        self.exits: list[am.Exit] = []
        self.reconnects: list[str] = []
        self.trainer_starts = 0
        self.load_s = 0.2
        self.energy_known = True
        self.marks: list[am.Mark] = []
        self.voids: list[int] = []
        self.kept: am.Kept | None = None  # with the update: its disk, which outlives the agent
        self.update = b""

    @property
    def name(self) -> str:
        """Return what the host calls it."""
        return f"board-{self.index}"

    def start(self) -> None:
        """Start the agent's process."""
        self.life += 1
        self.trainer_life += 1
        self.alive = True
        nonces = (self.index * 1_000_000 + self.life * 1000 + i for i in itertools.count(1))
        source = "modelled" if self.energy_known else "none"
        me = am.Identity("0.1.0", f"machine-{self.index}", 100 + self.index, 1 << 20, source, self.energy_known)
        whole = self.kept is not None and sha(self.update) == self.kept.update_sha256
        self.machine = am.AgentMachine(me, lambda: next(nonces), self.kept if whole else None)
        self.model = bytearray()
        self._payload: bytes | memoryview = b""
        self.connect()

    def kill(self) -> None:
        """End the agent's process; its trainer dies with it."""
        self.alive = False

    def kill_trainer(self, why: str = "killed by signal 9") -> None:
        """End the trainer's process."""
        self.trainer_life += 1
        self.step(am.TrainerGone(why))

    def hear(self, header: bytes, payload: bytes | memoryview) -> None:
        """Take a message of the host."""
        self._payload = payload
        try:
            self.step(am.Received(header, len(payload)))
        except RemoteProtocolError as error:
            self.world.dropped_by_boards.append(str(error))

    def step(self, event: am.Event) -> None:
        """Let the machine take an event and do what it says."""
        self._do(self.machine.step(event, self.world.now_s))

    def connect(self) -> None:
        """Open a new connection; what is under way on the old one is lost."""
        self.world.routes += 1
        self.route = self.world.routes
        self._do(self.machine.restart(self.world.now_s))

    def _do(self, actions: list[am.Action]) -> None:
        for action in actions:
            if not self.alive:
                return
            self._carry_out(action)

    def _carry_out(self, action: am.Action) -> None:
        match action:
            case am.Send(header, piece):
                payload = memoryview(self.update)[piece[0] : piece[1]] if piece else b""
                self.world.to_host(self, header, payload)
            case am.StartTrainer(_):
                self.trainer_life += 1
                self.trainer_starts += 1
                self.model = bytearray(MODEL_BYTES)
                ready = am.TrainerReady(MANIFEST, MODEL_BYTES, self.world.facts.samples, "linear", 200 + self.index)
                self._later(self.load_s, ready)
            case am.StoreBase(lease, offset, whole):
                self.model[offset : offset + len(self._payload)] = self._payload
                if whole is not None:
                    self.step(am.BaseReady(lease, sha(self.model) == whole))
            case am.StartWork():
                self._work(action)
            case am.Measure(lease):
                joules = 1000 if self.energy_known else None
                self._later(0.05, am.Measured(lease, joules, joules, "modelled", 0), trainer=False)
            case am.MeasureSplit(run, round_):
                known = 7 if self.energy_known else None
                split = Energy(1, 1, run, round_, known, known, known, known, known, known, known, 9, 9, "modelled", 0)
                self._later(0.05, am.SplitMeasured(split), trainer=False)
            case am.Reconnect(reason):
                self.reconnects.append(reason)
                self.connect()
            case am.Exit():
                self.exits.append(action)
                self.alive = False
            case am.Mark():
                self.marks.append(action)
            case am.Keep(kept):
                self.kept = kept
            case am.Void(lease):
                self.voids.append(lease)

    def _work(self, action: am.StartWork) -> None:
        """Work in two steps; what was begun goes on after StopWork, as a trainer does that has not read it yet."""
        n = sum(end - begin for _, begin, end in action.ranges)
        work_s, now_us = n * self.pace_s, int(self.world.now_s * 1e6)
        self.world.started.append((self.index, action, sha(self.model)))
        self.update = bytes([self.index + 1, action.lease % 256]) * (MODEL_BYTES // 2)
        self._later(0.0, am.WorkEdge(action.lease, True, now_us))
        self._later(work_s / 2, am.WorkProgress(action.lease, n // 2))
        self._later(work_s, am.WorkEdge(action.lease, False, now_us + int(work_s * 1e6)))
        done = am.WorkDone(action.lease, n, 1, max(1, int(work_s * 1e6)), 0, 0, len(self.update), sha(self.update))
        self._later(work_s, done)

    def _later(self, delay_s: float, event: am.Event, trainer: bool = True) -> None:
        life, trainer_life = self.life, self.trainer_life

        def happen() -> None:
            if self.alive and life == self.life and (trainer_life == self.trainer_life or not trainer):
                self.step(event)

        self.world.at(delay_s, happen)


Hook = Callable[["World", str, str, str, FakeBoard], bool]  # (world, "before" or "after", who hears, kind, board)


class World:
    """A host and its boards under a virtual clock.

    `hook` is called before and after each message and each stored result, and returns whether it may pass.
    `notices`: the host learns at once that a board died (its process was seen to end), else only by its silence.
    """

    def __init__(
        self, boards: int = 3, *, paces_s: Sequence[float] = (), planner: Planner | None = None, notices: bool = True,
        latency_s: float = 0.001, store_s: float = 0.002, **changes: object,
    ) -> None:  # fmt: skip
        self.facts = facts(**changes)
        self.now_s = 1000.0
        self.notices, self._latency_s, self._store_s = notices, latency_s, store_s
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.routes = 0
        self.hook: Hook = lambda world, when, who, kind, board: True
        self.dropped_by_boards: list[str] = []
        self.started: list[tuple[int, am.StartWork, str]] = []
        self.boards = [self.new_board(i, paces_s[i] if paces_s else 0.1 * (i + 1)) for i in range(boards)]
        self._index = {board.name: board.index for board in self.boards}
        f = self.facts
        self.peers = Peers(Terms(1, f.chunk_bytes, f.credit_bytes, 2.0, f.patience_s))
        self._adopted: dict[str, int] = {}
        self.planner = planner or EvenPlanner(f.budget)
        self.store = FakeStore()
        self.bases = {sha(model_of(r)): model_of(r) for r in range(f.rounds + 1)}
        self._uploads: dict[int, bytearray] = {}
        self.finish: rm.Finish | None = None
        self.host_life = 1
        self.machine = rm.RoundMachine(
            f, Pma(f.samples, f.budget), self.planner, list(self._index), sha(model_of(0)), self.now_s
        )

    def new_board(self, index: int, pace_s: float) -> FakeBoard:
        """Return a board that is not started."""
        return FakeBoard(self, index, pace_s)

    def restart_host(self) -> None:
        """Kill the host and start it again at once: only what the store has carried out is left of it."""
        self.host_life += 1
        f = self.facts
        self.peers = Peers(Terms(self.host_life, f.chunk_bytes, f.credit_bytes, 2.0, f.patience_s))
        self._adopted.clear()
        self._uploads.clear()
        self.store.jobs.clear()
        self.finish = None
        self.planner = EvenPlanner(f.budget)
        self.machine = rm.RoundMachine(
            f, Pma(f.samples, f.budget), self.planner, list(self._index), sha(model_of(len(self.ledger.rounds))),
            self.now_s, self.ledger.reopened(self.host_life - 1),
        )  # fmt: skip

    @property
    def ledger(self) -> Ledger:
        """Return what the store holds."""
        return self.store.ledger

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        """Let something happen later; what is due at one instant happens in the order of the calls."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._count), what))

    def run(self, until_s: float = 3600.0) -> rm.Finish:
        """Run to the end of the run. Fails on a spin, and when the run takes longer than it may."""
        end_s = self.now_s + until_s
        for _ in range(SPIN):
            if self.finish is not None:
                self._settle()
                return self.finish
            self._next(end_s)
        raise AssertionError(f"{SPIN} events and no end; somebody spins at {self.now_s}")

    def _next(self, end_s: float) -> None:
        host_s = min(self.machine.wake_s(), self.peers.next_silence_s())
        wakes = [(host_s, self._tick), *((b.machine.wake_s(), self._ticker(b)) for b in self.boards if b.alive)]
        due_s, tick = min(wakes, key=lambda wake: wake[0])
        if self._heap and self._heap[0][0] <= due_s:
            due_s, _, tick = heapq.heappop(self._heap)
        assert due_s < end_s, f"nothing ends this run; phase {self.machine.phase}, round {self.machine.round}"
        self.now_s = max(self.now_s, due_s)
        tick()

    def _ticker(self, board: FakeBoard) -> Callable[[], None]:
        return lambda: board.step(am.Tick())

    def _tick(self) -> None:
        for name in self.peers.silent(self.now_s):
            self.host_step(rm.Gone(self._index[name], "no sign of life"))
        self.host_step(rm.Tick())

    # The host's driver ----------------------------------------------------------------------------------------------

    def lose(self, board: FakeBoard) -> None:
        """Kill a board; the host notices at once or not."""
        board.kill()
        if self.notices and self.peers.forget(board.name):
            self.host_step(rm.Gone(board.index, "its process ended"))

    def host_step(self, event: Any, payload: bytes | memoryview = b"") -> None:
        """Let the host's machine take an event and do what it says."""
        try:
            actions = self.machine.step(event, self.now_s)
        except RemoteProtocolError as error:
            self.peers.dropped[f"against-the-run: {error}"] += 1
            return
        life = self.host_life
        for action in actions:
            if life != self.host_life:
                return
            if isinstance(action, rm.Send):
                self._host_send(action)
            elif isinstance(action, rm.WriteUpload):
                if action.offset == 0:
                    self._uploads[action.board] = bytearray(action.part.size)
                self._uploads[action.board][action.offset : action.offset + len(payload)] = payload
            elif isinstance(action, rm.Finish):
                self.finish = action
            else:
                self.host_do(action, payload)
        if self.store.jobs:
            self.at(self._store_s, self._settle)

    def host_do(self, action: Any, payload: bytes | memoryview) -> None:
        """Carry out what belongs to the regime: here, all of it is the store's."""
        life = self.host_life
        if isinstance(action, rm.StoreResult):
            assert sha(self._uploads.pop(action.board)) == action.result.update_sha256
            self.hook(self, "before", "store", "result", self.boards[action.board])
            if life != self.host_life:
                return
        self.store.jobs.append(action)

    def send_tensor(self, board: FakeBoard, message: wire.Tensor, payload: bytes) -> None:
        """Send a piece of a tensor, if the board is there."""
        if self.peers.session(board.name) is not None and board.name in self._adopted:
            header = self.peers.encode(board.name, message, self.now_s)
            self._to_board(board, self._adopted[board.name], header, payload, f"tensor/{message.what}")

    def _settle(self) -> None:
        life = self.host_life
        for event in self.store.settle():
            if life != self.host_life:
                return
            self.host_step(event)
            if isinstance(event, rm.ResultStored):
                self.hook(self, "after", "store", "result", self.boards[event.board])

    def _host_send(self, action: rm.Send) -> None:
        board = self.boards[action.board]
        if self.peers.session(board.name) is None or board.name not in self._adopted:
            return
        header = self.peers.encode(board.name, action.message, self.now_s)
        base = self.machine.boards[action.board].lease
        payload = memoryview(self.bases[base.base])[action.piece[0] : action.piece[1]] if action.piece and base else b""
        self._to_board(board, self._adopted[board.name], header, payload, action.message.kind)

    def _to_board(self, board: FakeBoard, route: int, header: bytes, payload: bytes | memoryview, kind: str) -> None:
        def arrive() -> None:
            if not (board.alive and board.route == route and self.hook(self, "before", "board", kind, board)):
                return
            if board.alive:
                board.hear(header, payload)
                self.hook(self, "after", "board", kind, board)

        self.at(self._latency_s, arrive)

    def to_host(self, board: FakeBoard, header: bytes, payload: bytes | memoryview) -> None:
        """Send what a board says; it arrives only if the board still lives then."""
        kind, route, life = wire.decode(header, wire.FROM_AGENT).kind, board.route, board.life

        def arrive() -> None:
            if not (board.alive and board.life == life and self.hook(self, "before", "host", kind, board)):
                return
            if board.alive:
                self.host_hear(board, route, header, payload)
                self.hook(self, "after", "host", kind, board)

        self.at(self._latency_s, arrive)

    def host_hear(self, board: FakeBoard, route: int, header: bytes, payload: bytes | memoryview) -> None:
        """Take an arrival as the server does."""
        heard = self.peers.hear(board.name, header, self.now_s)
        if heard.closed and not heard.opened:
            self.host_step(rm.Gone(board.index, heard.closed))
        if heard.current:
            self._adopted[board.name] = route
        if heard.answer is not None:
            self._to_board(board, route, heard.answer, b"", wire.decode(heard.answer, wire.FROM_HOST).kind)
        session = self.peers.session(board.name)
        if heard.opened and session is not None:
            hello = self.peers.hello(board.name)
            kept = hello.kept_run, hello.kept_round, hello.kept_slice
            self.host_step(rm.Connected(board.index, session, kept=kept))
        if heard.message is not None:
            self.host_step(rm.Said(board.index, heard.message, len(payload)), payload)


class Killer:
    """A hook: loses a board at the n-th message, and lets it come back some time later (0: never)."""

    def __init__(self, at: int, board: int, back_s: float) -> None:
        self.at, self.board, self.back_s = at, board, back_s
        self.seen = 0
        self.where = ""

    def __call__(self, world: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind not in ("ping", "pong"):
            self.seen += 1
            victim = world.boards[self.board]
            if self.seen == self.at and victim.alive:
                self.where = f"{kind} to {who}"
                world.lose(victim)
                if self.back_s:
                    world.at(self.back_s, victim.start)
                return victim is not board
        return True


class Restarter:
    """A hook: starts the host anew at the n-th message of the kinds that count."""

    def __init__(self, at: int, counts: Callable[[str], bool]) -> None:
        self.at, self.counts = at, counts
        self.seen = 0

    def __call__(self, world: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when != "before" or not self.counts(kind):
            return True
        self.seen += 1
        if self.seen != self.at:
            return True
        world.restart_host()
        return False
