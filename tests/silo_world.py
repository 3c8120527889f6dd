# SPDX-License-Identifier: Apache-2.0
"""The world of ranks with a SiloMachine: silos whose states are hashes of the places that their steps took.

What the host averages is, here, the hash of what the silos gave and of their weights. So a round's base proves who was
in it, and with how many samples.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.fakes import FakeBoard, sha
from tests.rank_world import FakeRank, RankStore, RankWorld, check_shown, next_state

from paceline.uneven import Deal
from paceline.wire import Assign, Load
from paceline_host import steps as s
from paceline_host.ddp import steps as ds
from paceline_host.hfl import steps as hs
from paceline_host.hfl.machine import SiloMachine
from paceline_host.hfl.silos import Silo, SiloSlice
from paceline_host.peers import Peers, Terms
from paceline_host.regimes import Slice


class SiloPlanner:
    """Equal shares in each silo, the first boards take the rest."""

    heeds_waits = False
    notes: tuple[str, ...] = ()

    def __init__(self, silos: Sequence[Silo], every: int = 0) -> None:
        self._silos, self.every = silos, every
        self._pace: dict[int, float] = {}

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the shares."""
        shares: dict[int, int] = {}
        for silo in self._silos:
            here = [board for board in present if board in silo.boards]
            for i, board in enumerate(here):
                shares[board] = silo.budget // len(here) + (i < silo.budget % len(here))
        return [shares[board] for board in present]

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Remember a pace."""
        self._pace[board] = seconds / samples

    def observe_wait(self, board: int, seconds: float, energy_j: float) -> None:
        """Forget it."""

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        """Remember a pace."""
        self._pace[board] = seconds / samples

    def observe_idle(self, board: int, watts: float) -> None:
        """Nothing is learned."""

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the last pace."""
        return self._pace.get(board)


def mean_of(states: Sequence[tuple[int, int, bytes]], size: int) -> bytes:
    """Return what (silo, samples, state) average to."""
    return next_state(b"".join(state for _, _, state in states)[:size], [x for n, k, _ in states for x in (n, k)])


class SiloStore(RankStore):
    """Takes the actions of a SiloMachine."""

    def __init__(self, world: SiloWorld) -> None:
        super().__init__(world)
        self.silo_world = world
        self.states: dict[int, bytes] = {}

    def _carry_out(self, job: object, upload: bytes) -> list[object]:
        world = self.silo_world
        if isinstance(job, ds.KeepState):
            events = super()._carry_out(job, upload)
            if isinstance(events[0], ds.StateKept):
                self.states[world.of[job.board]] = upload
            return events
        if isinstance(job, hs.CloseSilos):
            given = [
                (one.silo, sum(part.slice.samples for part in one.steps.parts), self.states[one.silo])
                for one in job.closed
            ]
            self.states = {}
            base = mean_of(given, world.facts.model_bytes)
            world.rounds.append(job)
            world.journal.states[job.round] = base
            world.bases[sha(base)] = base
            return [s.RoundDone(job.round, sha(base))]
        return super()._carry_out(job, upload)


class SiloWorld(RankWorld):
    """`silos`: (boards, budget, samples) of each."""

    def __init__(
        self, silos: Sequence[tuple[Sequence[int], int, int]] = (((0, 1), 16, 20), ((2, 3), 12, 30)), steps: int = 4,
        own: bool = False, **changes: object,
    ) -> None:  # fmt: skip
        """`own`: each silo's boards have data of their own, which the host does not know."""
        self.own = own
        count = sum(len(boards) for boards, _, _ in silos)
        budget = sum(own for _, own, _ in silos)
        self.silos = [
            Silo(n, f"silo-{n}", tuple(boards), own, samples) for n, (boards, own, samples) in enumerate(silos)
        ]
        self.of = {board: silo.number for silo in self.silos for board in silo.boards}
        self.rounds: list[hs.CloseSilos] = []
        self.assigned: list[tuple[int, Assign]] = []
        self.scheduled: list[tuple[int, dict[str, Any]]] = []
        self.loaded: dict[int, dict[str, Any]] = {}
        super().__init__(count, steps, **{"regime": "hfl", "budget": budget, **changes})
        self.planner = SiloPlanner(self.silos, self.planner.every)
        self._new_host(sha(self.first_state), None)

    def new_board(self, index: int, pace_s: float) -> FakeBoard:
        return SiloRank(self, index, pace_s)

    def _new_host(self, base: str, reopened: s.Reopened | None) -> None:
        self.store = SiloStore(self)  # type: ignore[assignment]
        kind = {"kind": "own"} if self.own else {}
        rules: list[dict[str, object]] = [{"silo": silo.number, **kind} for silo in self.silos]
        self.machine = SiloMachine(  # type: ignore[assignment]
            self.facts, self.ranks, self.silos, rules, self.planner, list(self._index), base, self.now_s, reopened
        )

    def restart_host(self) -> None:
        self.host_life += 1
        f, journal = self.facts, self.journal
        self.peers = Peers(Terms(self.host_life, f.chunk_bytes, f.credit_bytes, 2.0, f.patience_s))
        self._adopted.clear()
        self._uploads.clear()
        self.finish = None
        number = max((r for r, _ in journal.slices), default=0)
        mine = [item for (r, _), item in sorted(journal.slices.items()) if r == number]
        is_closed = number in journal.states or not number
        plain = tuple(Slice(x.round, x.index, x.board, x.ranges) for x in mine if x.redealt_from is None)
        reopened = s.Reopened(
            round=number, closed=is_closed, open_slices=() if is_closed else plain, lost=frozenset(),
            next_index=len(mine), done=(), counted=frozenset(), lives=self.host_life - 1, elapsed_s=0.0,
            round_seconds=tuple(1.0 for _ in journal.states),
        )  # fmt: skip
        self.planner = SiloPlanner(self.silos, self.planner.every)
        self._new_host(sha(journal.states[max(journal.states)] if journal.states else self.first_state), reopened)

    def _host_send(self, action: s.Send) -> None:
        if isinstance(action.message, Assign):
            self.assigned.append((action.board, action.message))
        if isinstance(action.message, Load):
            self.loaded[action.board] = json.loads(action.message.options)["split"]
        super()._host_send(action)


class SiloRank(FakeRank):
    """A rank that reports its silo's samples, and notes what it is told to take."""

    @property
    def held(self) -> int:
        world = self.world
        assert isinstance(world, SiloWorld)
        return world.silos[world.of[self.index]].samples

    def _given(self, given: Any, data: bytes) -> None:
        if given.what == "schedule":
            self.world.scheduled.append((self.index, json.loads(data)))  # type: ignore[attr-defined]
        super()._given(given, data)


def check_silos(world: SiloWorld) -> None:
    """Assert the laws: each place of a silo's round once and in its own step, or its budget lapsed whole."""
    base = world.first_state
    for closed in world.rounds:
        given = []
        by_silo = {one.silo: one for one in closed.closed}
        assert by_silo.keys() | closed.lapsed.keys() == {silo.number for silo in world.silos}
        assert not by_silo.keys() & closed.lapsed.keys()
        for silo in world.silos:
            planned = [
                item for (r, _), item in world.journal.slices.items()
                if r == closed.round and item.redealt_from is None and item.board in silo.boards
            ]  # fmt: skip
            if silo.number in closed.lapsed:
                assert sum(item.samples for item in planned) in (0, silo.budget)
                continue
            state, start = base, (closed.round - 1) * silo.budget
            deal = Deal([silo.budget], world.ranks.steps, 1)
            for step in range(world.ranks.steps):
                state = next_state(state, [start + place for place in deal.places(step, 0)])
            parts = by_silo[silo.number].steps.parts
            counted = Counter(
                epoch * silo.samples + position for part in parts for epoch, begin, end in part.slice.ranges
                for position in range(begin, end)
            )  # fmt: skip
            assert counted == Counter(range(start, start + silo.budget))
            assert all(isinstance(part.slice, SiloSlice) and part.board in silo.boards for part in parts)
            assert sum(item.samples for item in planned) == silo.budget
            given.append((silo.number, silo.budget, state))
        left = sum(
            item.samples for (r, _), item in world.journal.slices.items()
            if r == closed.round and item.redealt_from is None and world.of[item.board] in closed.lapsed
        )  # fmt: skip
        assert closed.left == left
        base = mean_of(given, world.facts.model_bytes)
        assert world.journal.states[closed.round] == base, f"round {closed.round} is not the mean of its silos"
    if world.machine.boards[0].counted is not None:
        check_shown(world, [part for one in world.rounds[-1].closed for part in one.steps.parts])
    for board, told in world.scheduled:
        silo = world.silos[world.of[board]]
        assert {world._index[name] for name in told["names"]} <= set(silo.boards), "a group crosses a silo's border"
        first = silo.budget * (told["place"] // silo.budget)
        assert first <= told["place"]
        assert told["place"] + sum(told["shares"]) <= first + silo.budget
    for board, message in world.assigned:
        silo = world.silos[world.of[board]]
        assert all(0 <= begin < end <= silo.samples for _, begin, end in message.ranges)
    for board, options in world.loaded.items():
        assert options["silo"]["silo"] == world.of[board]
