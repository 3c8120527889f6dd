# SPDX-License-Identifier: Apache-2.0
"""The real AgentMachines, Peers and RankMachine joined by a wire that can lose boards at any message; virtual time.

A state is real bytes: each step hashes the places that its ranks took into it. So a round's state proves that each
place was used once, in the step that it belongs to, whoever was lost on the way.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import MANIFEST, EvenPlanner, FakeBoard, World, places, sha

from paceline import machine as am
from paceline.uneven import Deal
from paceline_host import steps as s
from paceline_host.ddp import steps as ds
from paceline_host.ddp.figures import HEAD
from paceline_host.ddp.machine import RankMachine
from paceline_host.peers import Peers, Terms
from paceline_host.psl.steps import TensorOut
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import ranges_of

TEXT = 1 << 16


def next_state(state: bytes, taken: list[int]) -> bytes:
    """Return the state that a step leaves."""
    digest = bytes.fromhex(sha(state + json.dumps(sorted(taken)).encode()))
    return (digest * (len(state) // len(digest) + 1))[: len(state)]


@dataclass
class Journal:
    """What would be on disk."""

    slices: dict[tuple[int, int], Slice] = field(default_factory=dict)
    closed: list[ds.CloseSteps] = field(default_factory=list)
    states: dict[int, bytes] = field(default_factory=dict)
    losses: list[s.StoreLoss] = field(default_factory=list)
    energies: list[s.StoreEnergy] = field(default_factory=list)
    notes: list[s.Note] = field(default_factory=list)

    def said(self, kind: str) -> list[str]:
        """Return the texts of all notes of a kind."""
        return [note.detail for note in self.notes if note.kind == kind]


class RankStore:
    """Takes the actions of a RankMachine."""

    def __init__(self, world: RankWorld) -> None:
        self.world = world
        self.ledger = world.journal
        self.jobs: list[tuple[object, bytes]] = []
        self.refuse = 0  # so many states to come are no good
        self.kept = b""

    def settle(self) -> list[object]:
        """Carry out all jobs and return the events they lead to."""
        jobs, self.jobs = self.jobs, []
        return [event for job, upload in jobs for event in self._carry_out(job, upload)]

    def _carry_out(self, job: object, upload: bytes) -> list[object]:
        ledger = self.ledger
        match job:
            case s.StoreSlices(slices, first):
                number = slices[0].round if slices else 0
                assert not slices or first == all(key[0] != number for key in ledger.slices)
                for item in slices:
                    assert (item.round, item.index) not in ledger.slices, "a slice's number is its own"
                    assert item.samples > 0
                    ledger.slices[item.round, item.index] = item
                return [s.SlicesStored(slices)]
            case ds.KeepState(board, lease, _, result):
                assert sha(upload) == result.update_sha256
                if self.refuse:
                    self.refuse -= 1
                    return [ds.StateRefused(board, lease, "tensor layer0 holds values that are not finite")]
                self.kept = upload
                return [ds.StateKept(board, lease, sha(upload))]
            case ds.CloseSteps(number):
                ledger.closed.append(job)
                ledger.states[number] = self.kept
                self.world.bases[sha(self.kept)] = self.kept
                return [s.RoundDone(number, sha(self.kept))]
            case s.StoreLoss():
                ledger.losses.append(job)
            case s.StoreEnergy():
                ledger.energies.append(job)
            case s.Note():
                ledger.notes.append(job)
            case s.StoreReady():
                pass
            case _:
                raise TypeError(f"a store knows no {type(job).__name__}")
        return []


class FakeGroup:
    """What gloo would be: all or none come through a step, unless it breaks while they do."""

    def __init__(self, world: RankWorld) -> None:
        self.world = world
        self.members: dict[int, FakeRank] = {}
        self.arrived: dict[int, list[int]] = {}
        self.broken = False
        self.kind = "collective"
        self.turn = 0

    def join(self, rank: int, member: FakeRank, count: int) -> None:
        """Come to the store; when all are there, the first rank's state is everybody's."""
        self.members[rank] = member
        self._give_up_in_time()
        if len(self.members) == count:
            self.turn += 1
            state = self.members[0].memory
            for one in self.members.values():
                one.adopt(state)

    def arrive(self, rank: int, taken: list[int]) -> None:
        """Have the gradient of these places ready."""
        self.arrived[rank] = taken
        self._give_up_in_time()
        if len(self.arrived) == len(self.members):
            union = [place for part in self.arrived.values() for place in part]
            self.arrived = {}
            self.turn += 1
            for rank_, member in self.members.items():
                self.world.at(0.0005 * rank_, self._completer(member, union))

    def _completer(self, member: FakeRank, union: list[int]) -> Callable[[], None]:
        return lambda: None if self.broken else member.complete(self, union)

    def _give_up_in_time(self) -> None:
        turn = self.turn

        def late() -> None:
            if turn == self.turn and not self.broken:
                self.kind = "late"
                self.shatter()

        self.world.at(self.world.facts.patience_s, late)

    def shatter(self) -> None:
        """Let everybody else find out that somebody is gone."""
        if not self.broken:
            self.broken = True
            for member in list(self.members.values()):
                self.world.at(0.01, member.broke_for(self))


class FakeRank(FakeBoard):
    """A board whose trainer is a rank."""

    group: FakeGroup | None = None
    memory = b""
    dtype = "float32"
    address = ""  # "": one of its own
    stuck = False  # its trainer is stopped: it does nothing more, and lives
    fault = ""  # what it says instead of joining
    content = ""  # digest of its data
    buffers = b""  # of its own, as BatchNorm has them
    since_s, apart_s = 0.0, None  # of the present exchange: see paceline_agent.workers.ddp
    checks: tuple[bool, ...] | list[bool] = ()  # whether its drift was to be found, by group
    lies = False  # what it says of its steps is no table

    @property
    def held(self) -> int:
        """Samples that it has."""
        return self.world.facts.samples

    def kill(self) -> None:
        super().kill()
        self.leave()

    def kill_trainer(self, why: str = "killed by signal 9") -> None:
        self.leave()
        super().kill_trainer(why)

    def leave(self) -> None:
        """Go out of the group."""
        group, self.group = self.group, None
        if group is not None:
            group.members = {rank: member for rank, member in group.members.items() if member is not self}
            group.shatter()

    def _carry_out(self, action: am.Action) -> None:
        size = self.world.facts.model_bytes
        match action:
            case am.StartTrainer(_):
                self.leave()
                self.trainer_life += 1
                self.inbox = size + TEXT
                self.model = bytearray(self.inbox)
                ready = am.TrainerReady(
                    MANIFEST, size, self.held, "linear", 200 + self.index, self.inbox, data_sha256=self.content
                )
                self._later(0.2, ready)
            case am.StoreBase(lease, offset, whole):
                self.model[offset : offset + len(self._payload)] = self._payload
                if whole is not None:
                    self.step(am.BaseReady(lease, sha(self.model[:size]) == whole))
            case am.StartWork(lease):
                self.lease, self.steps, self.holds, self.loaded, self.spent = lease, 0, False, False, 0
                self.took_us: list[int] = []
            case am.StopWork():
                self.trainer_life += 1  # it forgets all that it had begun
                self.leave()
            case am.StoreTensor(_, _, _, what, nbytes, offset, whole):
                begin = 0 if what == "schedule" else self.inbox - nbytes
                self.model[begin + offset : begin + offset + len(self._payload)] = self._payload
                if whole:
                    self._given(action, bytes(self.model[begin : begin + nbytes]))
            case _:
                super()._carry_out(action)

    def _given(self, given: am.StoreTensor, data: bytes) -> None:
        world = self.world
        assert isinstance(world, RankWorld)
        if self.stuck:
            return
        if given.what == "call":
            self.leave()
            if not self.loaded and data == b"L":
                self.memory, self.holds = bytes(self.model[: world.facts.model_bytes]), True
            self.loaded = True
            here = {"steps": self.steps, "state": self.holds, "torch": "2.4", "dtype": self.dtype,
                    "address": self.address or f"10.0.0.{self.index}", "apart_s": self.apart_s}  # fmt: skip
            self._put(given, "here", json.dumps(here).encode())
        elif given.what == "schedule":
            self.plan, self.given = json.loads(data), given
            self.checks = [*self.checks, self.plan["check"]]
            if self.fault:
                told = {"kind": "unreachable", "reason": self.fault, "blamed": [self.plan["rank"]], "steps": self.steps}
                self._put(given, "broken", json.dumps(told).encode())
                return
            if self.plan["stays"]:
                self._redeal()
                return
            if self.plan["rank"] == 0:
                self._put(given, "store", json.dumps({"address": "10.0.0.1", "port": 4711}).encode())
            self.group = world.groups.setdefault((given.redraw, self.plan["names"][0]), FakeGroup(world))
            self.group.join(self.plan["rank"], self, len(self.plan["names"]))
        elif given.what in ("give", "close"):
            self.update = self.memory if given.what == "give" else b""
            steps = max(1, self.steps)
            state = self.update or self.memory + self.buffers
            done = am.WorkDone(given.lease, self.spent, steps, self.spent * 10 + 1, 0, 0, len(self.update), sha(state))
            self._later(0.001, done)

    def adopt(self, state: bytes) -> None:
        """Take the first rank's state and begin to step."""
        self.memory, self.holds, self.steps = state, True, self.plan["first"]
        del self.took_us[self.steps :]
        self._redeal()

    def _redeal(self) -> None:
        assert self.steps == self.plan["first"]
        self.deal = Deal(self.plan["shares"], self.plan["steps"], 1)
        self._work_on()

    def _work_on(self) -> None:
        world, group, step = self.world, self.group, self.steps - self.plan["first"]
        mine = [self.plan["place"] + place for place in self.deal.places(step, self.plan["rank"])]
        life, trainer_life = self.life, self.trainer_life
        self.since_s, self.apart_s = world.now_s, None

        def arrive() -> None:
            is_same = (life, trainer_life) == (self.life, self.trainer_life) and self.group is group
            if self.alive and is_same and not self.stuck and group is not None:
                self.spent += len(mine)
                self.apart_s = world.now_s - self.since_s
                self.step(am.WorkProgress(self.given.lease, self.spent))
                group.arrive(self.plan["rank"], mine)

        world.at(self.pace_s * 0.1 * len(mine), arrive)

    def complete(self, group: FakeGroup, union: list[int]) -> None:
        """The step's sum is here."""
        if self.group is not group or not self.alive:
            return
        self.memory = next_state(self.memory, union)
        mine = self.deal.counts(self.steps - self.plan["first"], self.plan["rank"])[0]
        self.took_us.append(round(1e5 * self.pace_s * mine))
        self.steps += 1
        if self.steps == self.plan["first"] + self.plan["stretch"]:
            if self.plan["stretch"] == self.plan["steps"]:
                self.group = None  # it waits for the host now
                group.members = {rank: member for rank, member in group.members.items() if member is not self}
            rows = b"".join(struct.pack("<3I", 0, us, 0) for us in self.took_us)
            self._put(self.given, "done", HEAD.pack(0.0, self.steps) + (b"" if self.lies else rows))
        else:
            self._work_on()

    def broke_for(self, group: FakeGroup) -> Callable[[], None]:
        """Return what happens to this rank when a group breaks."""

        def happen() -> None:
            if self.group is group and self.alive:
                self.group = None
                told = {"kind": group.kind, "reason": "connection closed by peer", "blamed": [], "steps": self.steps}
                self._put(self.given, "broken", json.dumps(told).encode())

        return happen

    def _put(self, given: am.StoreTensor, what: str, data: bytes) -> None:
        life, trainer_life = self.life, self.trainer_life

        def happen() -> None:
            if self.alive and (life, trainer_life) == (self.life, self.trainer_life):
                self.update = data
                self.step(am.WorkTensor(given.lease, given.step, given.redraw, what, len(data)))

        self.world.at(0.001, happen)


class RankWorld(World):
    """`boards` ranks, `steps` a round."""

    def __init__(self, boards: int = 3, steps: int = 4, **changes: object) -> None:
        plain: dict[str, object] = {"regime": "ddp", "rounds": 2, "budget": 24, "samples": 20, **changes}
        kept = {key: plain.pop(key) for key in ("notices", "latency_s", "store_s", "paces_s") if key in plain}
        self.journal = Journal()
        self.groups: dict[tuple[int, str], FakeGroup] = {}  # by generation and first rank
        every = plain.pop("every", 0)
        super().__init__(boards, **kept, **plain)  # type: ignore[arg-type]
        self.planner.every = every  # type: ignore[misc, assignment]
        self.ranks = ds.RankFacts(steps, 1, {"plain": True})
        self.first_state = b"0" * self.facts.model_bytes
        self.bases = {sha(self.first_state): self.first_state}
        self.store = RankStore(self)  # type: ignore[assignment]
        self.machine = RankMachine(  # type: ignore[assignment]
            self.facts, self.ranks, self.planner, list(self._index), sha(self.first_state), self.now_s
        )

    def new_board(self, index: int, pace_s: float) -> FakeBoard:
        return FakeRank(self, index, pace_s)

    def restart_host(self) -> None:
        """Kill the host and start it again at once: an open round begins anew."""
        self.host_life += 1
        f, journal = self.facts, self.journal
        self.peers = Peers(Terms(self.host_life, f.chunk_bytes, f.credit_bytes, 2.0, f.patience_s))
        self._adopted.clear()
        self._uploads.clear()
        self.finish = None
        every, self.planner = self.planner.every, EvenPlanner(f.budget)
        self.planner.every = every
        self.store = RankStore(self)  # type: ignore[assignment]
        number = max((r for r, _ in journal.slices), default=0)
        mine = [item for (r, _), item in sorted(journal.slices.items()) if r == number]
        is_closed = number in journal.states or not number
        reopened = s.Reopened(
            round=number, closed=is_closed,
            open_slices=() if is_closed else tuple(item for item in mine if item.redealt_from is None),
            lost=frozenset(), next_index=len(mine), done=(), counted=frozenset(), lives=self.host_life - 1,
            elapsed_s=0.0, round_seconds=tuple(1.0 for _ in journal.states),
        )  # fmt: skip
        base = sha(journal.states[max(journal.states)] if journal.states else self.first_state)
        self.machine = RankMachine(  # type: ignore[assignment]
            f, self.ranks, self.planner, list(self._index), base, self.now_s, reopened
        )

    def host_do(self, action: Any, payload: bytes | memoryview) -> None:
        store: RankStore = self.store  # type: ignore[assignment]
        match action:
            case TensorOut(board, message, piece, data):
                assert data is not None
                self.send_tensor(self.boards[board], message, data[piece[0] : piece[1]])
            case ds.Tell(board, message):
                self.host_step(ds.Told(board, message, bytes(payload)))
            case _:
                upload = bytes(self._uploads.pop(action.board)) if isinstance(action, ds.KeepState) else b""
                store.jobs.append((action, upload))


def check_rounds(world: RankWorld) -> None:
    """Assert the laws: each place of each closed round once, in its own step, and in one slice that was counted."""
    state, budget = world.first_state, world.facts.budget
    for closed in world.journal.closed:
        deal = Deal([budget], world.ranks.steps, 1)
        start = (closed.round - 1) * budget
        for step in range(world.ranks.steps):
            state = next_state(state, [start + place for place in deal.places(step, 0)])
        assert world.journal.states[closed.round] == state, f"round {closed.round} used other samples"
        counted = places(piece for part in closed.parts for piece in part.slice.ranges)
        assert counted == places(ranges_of(start, start + budget, world.facts.samples))
        indices = Counter(part.slice.index for part in closed.parts)
        assert set(indices.values()) == {1}
        planned = [x for (r, _), x in world.journal.slices.items() if r == closed.round and x.redealt_from is None]
        assert sum(item.samples for item in planned) == budget
        for part in closed.parts:
            assert world.journal.slices[closed.round, part.slice.index] == part.slice
    if world.machine.boards[0].counted is not None:
        check_shown(world, world.journal.closed[-1].parts)


def check_shown(world: World, parts: Sequence[ds.RankPart]) -> None:
    """Assert that people are shown of the last round what the journal has of it."""
    for index, board in enumerate(world.machine.boards):
        assert board.counted == sum(part.slice.samples for part in parts if part.board == index), board.name
