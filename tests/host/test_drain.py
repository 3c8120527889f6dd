# SPDX-License-Identifier: Apache-2.0
"""A run that is to end after its round: whenever that is said, no work is cut off and no round is left open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes import World
from tests.rank_world import RankWorld
from tests.silo_world import SiloWorld
from tests.split_world import SplitWorld

from paceline_host import steps as s
from paceline_host.ledger import Ledger
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.world import opened

DRAINED = s.Stop("drained", after_round=True)
WORLDS = {"pma": World, "psl": SplitWorld, "ddp": RankWorld, "hfl": SiloWorld}


@pytest.mark.parametrize("make", WORLDS.values(), ids=WORLDS)
def test_it_ends_after_the_round_in_which_it_is_said(make: Callable[[], World]) -> None:
    ends = set()
    for tenths in range(0, 60, 3):
        world = make()
        for board in world.boards:
            board.start()
        at: list[tuple[str, int]] = []

        def drain(world: World = world, at: list[tuple[str, int]] = at) -> None:
            at.append((world.machine.phase, world.machine.round))
            world.host_step(DRAINED)

        world.at(tenths / 10, drain)
        finish, machine = world.run(), world.machine
        if not at or at[0][0] in ("ending", "finished"):
            assert finish == s.Finish(True, "finished")
            continue
        assert machine.round == at[0][1], "no round is begun any more"
        assert len(machine.round_seconds) == machine.round, "none is left open"
        last = machine.round == machine.facts.rounds
        assert finish == (s.Finish(True, "finished") if last else s.Finish(False, "drained"))
        ends.add((machine.round, finish.ok))
    assert (1, False) in ends


def test_where_nothing_is_under_way_it_ends_at_once() -> None:
    world = World()
    world.at(1.0, lambda: world.host_step(DRAINED))  # no board has come yet
    assert world.run() == s.Finish(False, "drained")
    assert world.now_s == 1001.0


def test_where_rounds_overlap_all_that_were_begun_are_finished(tmp_path: Path) -> None:
    fleet = Fleet(Scenario(rounds=6, budget=1200, minimum=10), None)
    folder = tmp_path / "c" / "run"
    begun: list[int] = []
    with opened(fleet.scenario, fleet.names, fleet.models(), "fedasync", folder, {}, {}) as world:

        def drain(round_: int) -> None:
            if round_ == 3:
                world.host._step(DRAINED)
                begun.append(world.machine.round)

        world.on_round = drain
        assert world.run() == s.Finish(False, "drained")
    with Ledger(folder) as ledger:
        rounds = ledger.rounds()
        assert [row.round for row in rounds if row.closed_s is not None] == list(range(1, begun[0] + 1))
        assert {c.verdict for c in ledger.contributions()} == {"accepted"}
        assert len(ledger.slices()) == len(ledger.contributions())
        assert ledger.verify().faults == ()


def test_a_stop_that_comes_meanwhile_ends_it_at_once() -> None:
    world = World()
    for board in world.boards:
        board.start()
    world.at(1.0, lambda: world.host_step(DRAINED))
    world.at(1.1, lambda: world.host_step(s.Stop("enough")))
    assert world.run() == s.Finish(False, "enough")
    assert len(world.machine.round_seconds) < world.machine.round
