# SPDX-License-Identifier: Apache-2.0
"""The real AgentMachines, Peers and SplitMachine joined by a wire that can lose boards at any message; virtual time.

Tensors are real bytes that say whose samples they stand for: a board's smashed data name each client and place, its
update depends on the client part that it was given. So what a step used, and with which weights, can be checked.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from tests.fakes import MANIFEST, MODEL_BYTES, EvenPlanner, FakeBoard, World, sha

from paceline import machine as am
from paceline.split.rows import Rows
from paceline.wire import SCHEDULE_BYTES, Range
from paceline_host import steps as s
from paceline_host.peers import Peers, Terms
from paceline_host.psl import steps as ps
from paceline_host.psl.machine import SplitMachine
from paceline_host.regimes import Slice

PART_BYTES = 64
SAMPLE = struct.Struct("<II")  # client, place in its local order
_STEP_S = 0.02  # what half a step takes on a board of pace 1


def next_part(part: bytes, updates: dict[int, bytes]) -> bytes:
    """Return the client part that a committed step leaves."""
    return (sha(part + b"".join(updates[board] for board in sorted(updates)))).encode()


@dataclass
class Journal:
    """What would be on disk of a run of split learning."""

    slices: dict[int, list[Slice]] = field(default_factory=dict)
    parts: list[ps.StorePart] = field(default_factory=list)
    closed: list[ps.CloseEpoch] = field(default_factory=list)
    committed: dict[int, Counter[tuple[int, int]]] = field(default_factory=dict)  # epoch -> (client, place) -> times
    batches: dict[int, list[int]] = field(default_factory=dict)
    end_part: dict[int, bytes] = field(default_factory=dict)
    energies: list[s.StoreEnergy] = field(default_factory=list)
    ready: list[s.StoreReady] = field(default_factory=list)
    notes: list[s.Note] = field(default_factory=list)

    def said(self, kind: str) -> list[str]:
        """Return the texts of all notes of a kind."""
        return [note.detail for note in self.notes if note.kind == kind]


class SplitStore:
    """Takes the actions of a SplitMachine; two phases, as the real one."""

    def __init__(self, journal: Journal) -> None:
        self.ledger = journal
        self.jobs: list[tuple[object, dict[int, bytes]]] = []
        self.tensors: dict[int, bytearray] = {}
        self.part = journal.end_part[max(journal.end_part)] if journal.end_part else b"0" * PART_BYTES
        self.gradients: dict[int, bytes] = {}
        self._open: dict[int, bytes] | None = None
        self._answers: list[object] = []  # to what boards gave, until the epoch is on disk
        self.refuse: set[tuple[int, int]] = set()  # (step, board) whose smashed data are not finite
        self.refuse_updates: set[tuple[int, int]] = set()  # and whose update is not

    def settle(self, limit: int = 1 << 30) -> list[object]:
        """Carry out jobs, in order, and return the events they lead to."""
        jobs, self.jobs = self.jobs[:limit], self.jobs[limit:]
        return [event for job, tensors in jobs for event in self._carry_out(job, tensors)]

    def _carry_out(self, job: object, tensors: dict[int, bytes]) -> list[object]:
        ledger = self.ledger
        match job:
            case s.StoreSlices(slices, first):
                number = slices[0].round
                assert first == (number not in ledger.slices), "a round is planned once"
                ledger.slices[number] = list(slices)
                ledger.committed[number], ledger.batches[number] = Counter(), []
                self._open = None
                return [s.SlicesStored(slices)]
            case ps.ComputeStep(_, step, redraw, boards):
                assert self._open is None, "the last step was neither committed nor void"
                for board, samples in boards:
                    assert len(tensors[board]) == SAMPLE.size * samples
                    if (step, board) in self.refuse:
                        self.refuse.discard((step, board))
                        return [ps.StepRefused(step, redraw, board, "its smashed tensor is not finite")]
                self._open = {board: bytes(tensors[board]) for board, _ in boards}
                self.gradients = dict(self._open)
                return [ps.StepComputed(step, redraw)]
            case ps.CommitStep(number, step, redraw, boards):
                assert self._open is not None
                assert set(boards) == set(self._open)
                for board in boards:
                    if (step, board) in self.refuse_updates:
                        self.refuse_updates.discard((step, board))
                        self._open = None
                        return [ps.StepRefused(step, redraw, board, "the client part's gradient is not finite")]
                    assert tensors[board] == update_of(self.part, self._open[board])
                used = [SAMPLE.unpack_from(data, at) for data in self._open.values() for at in range(0, len(data), 8)]
                ledger.committed[number].update(used)
                ledger.batches[number].append(len(used))
                self.part = next_part(self.part, {board: bytes(tensors[board]) for board in boards})
                self._open = None
                return [ps.StepCommitted(step, redraw)]
            case ps.VoidStep():
                self._open = None
            case ps.StorePart():
                if job.result is not None:
                    assert job.result.update_sha256 == sha(self.part), "a board holds another client part"
                ledger.parts.append(job)
                self._answers.append(s.ResultStored(job.board, job.lease))
            case ps.CloseEpoch(number, steps):
                assert steps == len(ledger.batches[number])
                ledger.closed.append(job)
                ledger.end_part[number] = self.part
                answers, self._answers = self._answers, []
                return [*answers, ps.EpochClosed(number)]
            case s.StoreEnergy():
                ledger.energies.append(job)
            case s.Note():
                ledger.notes.append(job)
            case s.StoreReady():
                ledger.ready.append(job)
            case _:
                raise TypeError(f"a store knows no {type(job).__name__}")
        return []


def update_of(part: bytes, smashed: bytes) -> bytes:
    """Return what a board's update is: it depends on the weights and on each sample."""
    return sha(part + smashed).encode()


class SplitBoard(FakeBoard):
    """A board whose trainer holds the clients of its range."""

    def _carry_out(self, action: am.Action) -> None:
        world = self.world
        assert isinstance(world, SplitWorld)
        match action:
            case am.StartTrainer(_):
                self.trainer_life += 1
                self.inbox = SCHEDULE_BYTES + 4096
                self.model = bytearray(self.inbox)
                self.busy_until_s = 0.0
                samples = sum(world.sizes[c] for c in world.split.clients(self.index))
                ready = am.TrainerReady(
                    MANIFEST, MODEL_BYTES, samples, "linear", 200 + self.index, self.inbox,
                    data_sha256=world.data[self.index],
                )  # fmt: skip
                self._later(0.2, ready)
            case am.StartWork(_, _, ranges):
                self.rows: Rows | None = None
                self.ranges: tuple[Range, ...] = ranges
                self.pending = (-1, -1)
                self.spent = self.steps = 0
            case am.StopWork():
                self.trainer_life += 1  # it forgets all that it had begun
            case am.StoreTensor(_, _, _, what, size, offset, whole):
                begin = 0 if what == "schedule" else self.inbox - size
                self.model[begin + offset : begin + offset + len(self._payload)] = self._payload
                if whole:
                    self._given(action, bytes(self.model[begin : begin + size]))
            case _:
                super()._carry_out(action)

    def _given(self, given: am.StoreTensor, data: bytes) -> None:
        world = self.world
        assert isinstance(world, SplitWorld)
        if given.what == "schedule":
            self.rows = Rows.decode(data, [world.sizes[c] for c in world.split.clients(self.index)])
        elif given.what == "model" and self.rows is not None and given.step >= self.rows.epoch_steps:
            done = am.WorkDone(given.lease, self.spent, self.steps, self.spent * 10 + 1, 0, 0, 0, sha(data))
            self._later(0.001, done)
        elif given.what == "model":
            assert self.rows is not None
            clients = world.split.clients(self.index)
            smashed = b"".join(
                SAMPLE.pack(client, place)
                for client, (begin, end) in zip(clients, self.rows.positions(given.step), strict=True)
                for place in range(begin, end)
            )
            self.part, self.pending, self.smashed = data, (given.step, given.redraw), smashed
            self._put(given, "smashed", smashed)
        elif (given.step, given.redraw) == self.pending:
            assert data == self.smashed, "the gradient of another step"
            self.spent += len(data) // SAMPLE.size
            self.steps += 1
            self._put(given, "update", update_of(self.part, data))

    def _put(self, given: am.StoreTensor, what: str, data: bytes) -> None:
        life, trainer_life = self.life, self.trainer_life

        def happen() -> None:
            if self.alive and (life, trainer_life) == (self.life, self.trainer_life):
                self.update = data
                self.step(am.WorkTensor(given.lease, given.step, given.redraw, what, len(data)))

        self.world.at(self.pace_s * _STEP_S, happen)


class SplitWorld(World):
    """`sizes` of the clients, dealt to `boards` in order. `own`: the host does not know them, each board has one."""

    _busy = False
    commit_s = 0.0  # what summing and stepping takes the store

    def __init__(
        self, sizes: tuple[int, ...] = (20, 30, 10, 25), boards: int = 2, method: str = "gpsl", *, own: bool = False,
        **changes: object,
    ) -> None:  # fmt: skip
        edges = [i * len(sizes) // boards for i in range(boards + 1)]
        holds = tuple(range(a, b) for a, b in pairwise(edges))
        self.split = ps.SplitFacts(
            method, (0,) * len(sizes) if own else sizes, holds, PART_BYTES, lambda n: SAMPLE.size * n,
            lambda n: SAMPLE.size * n, {}, tuple(sum(sizes) for _ in holds), own,
        )  # fmt: skip
        self.sizes = list(sizes)  # of the clients, as they are on the boards,
        self.data = [f"data of board {i}" if own else "the data" for i in range(boards)]  # and which those are
        plain: dict[str, object] = {
            "regime": "psl",
            "samples": sum(sizes),
            "budget": sum(sizes),
            "batch": 8,
            "rounds": 2,
            "data_sha256": "the data",
            **changes,
        }
        kept = {key: plain.pop(key) for key in ("notices", "latency_s", "store_s", "paces_s") if key in plain}
        super().__init__(boards, **kept, **plain)  # type: ignore[arg-type]
        self.journal = Journal()
        self.store = SplitStore(self.journal)  # type: ignore[assignment]
        self.machine = SplitMachine(self.facts, self.split, list(self._index), self.now_s)  # type: ignore[assignment]

    def _settle(self) -> None:
        """Let the store do its next job: it is one thread, and takes its time for a commit."""
        if self.finish is not None:
            super()._settle()
        elif self.store.jobs and not self._busy:
            self._busy, life = True, self.host_life
            action, _ = self.store.jobs[0]  # type: ignore[misc]  # of this regime's store
            self.at(self.commit_s if isinstance(action, ps.CommitStep) else 0.0, lambda: self._settle_one(life))

    def _settle_one(self, life: int) -> None:
        if life != self.host_life:
            return
        self._busy = False
        for event in self.store.settle(1):
            self.host_step(event)
            if life != self.host_life:
                return
        self._settle()

    def new_board(self, index: int, pace_s: float) -> FakeBoard:
        return SplitBoard(self, index, pace_s)

    def restart_host(self) -> None:
        """Kill the host and start it again at once: an epoch that was open is begun anew."""
        self.host_life += 1
        self._busy = False
        f, journal = self.facts, self.journal
        self.peers = Peers(Terms(self.host_life, f.chunk_bytes, f.credit_bytes, 2.0, f.patience_s))
        self._adopted.clear()
        self.finish = None
        self.planner = EvenPlanner(f.budget)
        self.store = SplitStore(journal)  # type: ignore[assignment]
        number = max(journal.slices, default=0)
        reopened = s.Reopened(
            round=number, closed=number in journal.end_part or not number,
            open_slices=() if number in journal.end_part else tuple(journal.slices.get(number, ())), lost=frozenset(),
            next_index=0, done=(), counted=frozenset(), lives=self.host_life - 1, elapsed_s=0.0,
            round_seconds=tuple(1.0 for _ in journal.end_part),
        )  # fmt: skip
        split = self.split
        if split.own and number:
            told = {done.board: done.ready for done in journal.ready}
            split = replace(
                split, sizes=tuple(told[i].samples if i in told else 0 for i in range(len(self.boards))),
                data_sha256=tuple(told[i].data_sha256 if i in told else "" for i in range(len(self.boards))),
            )  # fmt: skip
        self.machine = SplitMachine(  # type: ignore[assignment]
            f, split, list(self._index), self.now_s, reopened
        )

    def host_do(self, action: Any, payload: bytes | memoryview) -> None:
        store: SplitStore = self.store  # type: ignore[assignment]
        match action:
            case ps.TensorOut(board, message, piece, data):
                whole = data or (store.part if message.what == "model" else store.gradients[board])
                self.send_tensor(self.boards[board], message, whole[piece[0] : piece[1]])
            case ps.WriteTensor(board, offset, size):
                if offset == 0:
                    store.tensors[board] = bytearray(size)
                store.tensors[board][offset : offset + len(payload)] = payload
            case _:
                who = action.who if isinstance(action, ps.ComputeStep | ps.CommitStep) else ()
                store.jobs.append((action, {board: bytes(store.tensors.pop(board)) for board in who}))


def check_epochs(world: SplitWorld) -> None:
    """Assert the laws: each sample of each epoch at most once, and once where its board was there at the end."""
    journal, sizes = world.journal, world.sizes
    for closed in journal.closed:
        committed = journal.committed[closed.round]
        assert set(committed.values()) <= {1}, "a sample was used twice"
        places = Counter(client for client, _ in committed)
        for client, size in enumerate(sizes):
            assert sorted(place for c, place in committed if c == client) == list(range(places[client]))
            assert places[client] <= size
        planned = sum(item.samples for item in journal.slices[closed.round])
        assert planned - len(committed) == closed.left
        given = Counter[int]()
        for part in journal.parts:
            if part.slice.round == closed.round:
                given[part.board] = max(given[part.board], part.samples)
        for board, held in enumerate(world.split.holds):
            assert given[board] == sum(places[c] for c in held), "a board's account differs from what steps took"
