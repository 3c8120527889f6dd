# SPDX-License-Identifier: Apache-2.0
"""The machine of silos with real agent machines, under a virtual clock: what holds with boards and silos lost
anywhere.
"""

from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeBoard, Killer, Restarter, World
from tests.silo_world import SiloRank, SiloWorld, check_silos

from paceline.errors import CoreError
from paceline_host.hfl.machine import SiloMachine
from paceline_host.hfl.silos import SLICES, Silo, SiloSlice
from paceline_host.regimes import Slice
from paceline_host.server import Presence
from paceline_host.status import board_rows, run_waits

WITH_ONE = (((0, 1), 16, 20), ((2,), 7, 30))  # two boards, and a silo of one


def started(world: SiloWorld) -> SiloWorld:
    for board in world.boards:
        board.start()
    return world


def rank(world: SiloWorld, index: int) -> SiloRank:
    board = world.boards[index]
    assert isinstance(board, SiloRank)
    return board


@pytest.mark.parametrize("model_bytes", [64, 100_000], ids=["inline", "in-chunks"])
def test_each_silo_uses_its_own_places_once_and_the_mean_is_the_next_base(model_bytes: int) -> None:
    world = started(SiloWorld(model_bytes=model_bytes, rounds=3))
    finish = world.run()
    assert finish.ok, finish.reason
    check_silos(world)
    assert [len(closed.closed) for closed in world.rounds] == [2, 2, 2]
    assert not world.peers.dropped
    assert not world.journal.losses
    assert not world.journal.said("drift")
    assert all(part.result for closed in world.rounds for one in closed.closed for part in one.steps.parts)


def test_a_silo_of_one_trains_beside_others() -> None:
    world = started(SiloWorld(WITH_ONE))
    assert world.run().ok
    check_silos(world)
    assert [part.board for part in world.rounds[0].closed[1].steps.parts] == [2]


def test_the_faster_silo_waits_for_the_other_and_says_for_how_long() -> None:
    world = started(SiloWorld(paces_s=(0.1, 0.1, 1.0, 1.0)))
    assert world.run().ok
    check_silos(world)
    for closed in world.rounds:
        fast, slow = closed.closed
        assert slow.waited_s == 0.0
        assert 0.7 < fast.waited_s < 0.74  # in each of 4 steps some rank has 2 samples: 8 x 0.1 s against 8 x 0.01 s


def test_the_status_names_the_silo_that_another_one_waits_for() -> None:
    world = started(SiloWorld(paces_s=(0.1, 0.1, 1.0, 1.0)))
    machine = world.machine
    assert isinstance(machine, SiloMachine)
    seen: list[tuple[str, dict[str, str]]] = []

    def look() -> None:
        if machine.waiting_groups():
            rows = board_rows(names, machine, here, 0.0, world.now_s)
            seen.append((json.dumps(run_waits(machine, 0.0, world.now_s)), {row["name"]: row["doing"] for row in rows}))

    names = [board.name for board in machine.boards]
    here = {name: Presence(True, 0.0) for name in names}
    for tick in range(400):
        world.at(0.01 * tick, look)
    assert world.run().ok
    text, doing = seen[0]
    first, *others = json.loads(text)
    assert (first["who"], first["for"], first["limit"]) == ("silo silo-0", "silo silo-1", "patience")
    assert 0.0 <= first["since_s"] < 0.05
    assert 0.0 < first["until_s"] <= 3 * world.facts.patience_s
    assert [wait["for"].partition(":")[0] for wait in others] == names[2:]
    assert [doing[name] for name in names[:2]] == ["waits for silo silo-1"] * 2
    assert doing[names[2]].startswith("trains, ")


def test_a_board_hears_of_its_own_silo_alone() -> None:
    world = started(SiloWorld(WITH_ONE))
    assert world.run().ok
    assert {board: told["silo"] for board, told in world.loaded.items()} == {
        0: {"silo": 0}, 1: {"silo": 0}, 2: {"silo": 1}
    }  # fmt: skip
    assert {board for board, _ in world.scheduled} == {0, 1, 2}


@pytest.mark.parametrize("at", [0, *range(40, 130, 6)])
def test_what_is_left_of_a_round_is_dealt_anew_within_each_silo_whoever_is_lost(at: int) -> None:
    world = started(SiloWorld(WITH_ONE, every=2))
    world.hook = Killer(at, 0, 0.5)
    assert world.run().ok
    check_silos(world)
    stretches = {(board, told["first"]) for board, told in world.scheduled if told["stays"]}
    assert stretches >= {(1, 2), (2, 2)}
    assert all(len(json.loads(text)) <= 2 for text in world.journal.said("paces"))


def messages() -> int:
    """Return how many messages an undisturbed run takes."""
    world = started(SiloWorld(WITH_ONE))
    world.hook = killer = Killer(-1, 0, 0.0)
    assert world.run().ok
    return killer.seen


COUNT = messages()  # of the chunky model; a fifth of the points below, each with one model or the other


@pytest.mark.parametrize("board", [0, 2], ids=["leader", "whole-silo"])
@pytest.mark.parametrize("notices", [True, False], ids=["seen-to-end", "silent"])
@pytest.mark.parametrize("back_s", [0.0, 0.5, 40.0], ids=["for-good", "back-soon", "back-late"])
def test_a_board_lost_at_any_message_makes_no_wrong_step_and_no_hang(notices: bool, back_s: float, board: int) -> None:
    lost = lapsed = 0
    for at in range(1 + notices + board, COUNT + 1, 5):
        world = started(SiloWorld(WITH_ONE, notices=notices, model_bytes=64 if at % 2 else 100_000))
        world.hook = killer = Killer(at, board, back_s)
        finish = world.run()
        assert finish.ok, f"{killer.where} ({at}): {finish.reason}"
        check_silos(world)
        assert len(world.rounds) == 2
        lost += bool(world.journal.losses)
        lapsed += sum(len(closed.lapsed) for closed in world.rounds)
    assert lost > COUNT // 20  # else the kills hit nothing
    if back_s == 0.0 or (notices and back_s == 40.0):  # else it is back while the silo waits, and begins anew
        assert (lapsed > 0) == (board == 2), "a silo lapses where its only board was lost, and nowhere else"


def test_a_silo_that_loses_all_boards_lets_its_budget_lapse_and_comes_back_in_the_next_round() -> None:
    world = started(SiloWorld(WITH_ONE, rounds=3, paces_s=(45.0, 45.0, 0.1)))  # 36 s a round, without silo 1
    alone = world.boards[2]

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind == "tensor/schedule" and board is alone and len(world.rounds) == 1:
            world.lose(alone)
            world.at(33.0, alone.start)
            return False
        return True

    world.hook = hook
    assert world.run().ok
    check_silos(world)
    assert [sorted(closed.lapsed) for closed in world.rounds] == [[], [1], []]
    assert world.rounds[1].left == 7
    (text,) = world.journal.said("lapse")
    assert text.startswith("silo silo-1: its 7 samples lapse in round 2: no board is left, the last was board-2: ")


def test_a_silo_whose_boards_are_not_there_at_the_start_lapses_without_a_wait() -> None:
    world = SiloWorld(WITH_ONE, start_s=5.0)
    for board in world.boards[:2]:
        board.start()
    assert world.run().ok
    check_silos(world)
    assert all(list(closed.lapsed) == [1] and closed.left == 0 for closed in world.rounds)
    assert world.machine.round_seconds[0] < 5.0


def test_all_silos_lost_and_nobody_back_ends_the_run_with_the_reason() -> None:
    world = started(SiloWorld(WITH_ONE))
    for one in world.boards:
        world.at(0.4, partial(world.lose, one))
    finish = world.run()
    assert not finish.ok
    assert finish.reason.startswith("no silo has a board left (silo-0: no board is left, the last was board-")


def test_a_silo_that_cannot_form_a_group_ends_the_run_and_is_named() -> None:
    world = SiloWorld(WITH_ONE)
    rank(world, 2).fault = "no interface has the address 10.0.0.0"
    finish = started(world).run()
    assert not finish.ok
    assert finish.reason.startswith("silo silo-1: 5 groups in a row did no step")
    assert all(board.lease is None for board in world.machine.boards)


def test_a_state_that_is_not_finite_voids_its_silos_round_alone() -> None:
    world = started(SiloWorld())
    world.store.refuse = 1  # type: ignore[attr-defined]
    assert world.run().ok
    check_silos(world)
    (text,) = world.journal.said("void")
    assert text.startswith("silo silo-")
    world = started(SiloWorld())
    world.store.refuse = 6  # type: ignore[attr-defined]
    finish = world.run()
    assert not finish.ok
    assert "has training diverged" in finish.reason


def test_a_board_with_other_data_than_its_silos_is_refused() -> None:
    class Other(SiloRank):
        held = 31

    world = SiloWorld(WITH_ONE, start_s=5.0)
    world.boards[2] = Other(world, 2, 0.1)
    assert started(world).run().ok
    check_silos(world)
    assert "it finds 31 samples of silo silo-1, the experiment says 30" in world.journal.said("refused")[0]


@pytest.mark.parametrize("silos", [WITH_ONE, (((0, 2), 16, 20), ((1, 3), 12, 30))], ids=["silo-of-one", "interleaved"])
def test_a_host_started_again_begins_the_open_round_anew(silos: tuple[tuple[tuple[int, ...], int, int], ...]) -> None:
    for at in range(3, 90, 4):
        world = started(SiloWorld(silos))
        world.hook = Restarter(at, lambda kind: kind not in ("ping", "pong", "chunk", "credit"))
        finish = world.run()
        assert finish.ok, finish.reason
        check_silos(world)
        assert len(world.journal.states) == 2


# Borders ------------------------------------------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 40), st.integers(-5, 40)), min_size=1, max_size=3)


@given(st.integers(0, 5), RANGES, st.integers(0, 1))
def test_no_slice_of_a_silo_goes_to_another_ones_board_or_names_a_place_that_it_has_not(
    board: int, ranges: list[tuple[int, int, int]], number: int
) -> None:
    silo = (Silo(0, "a", (0, 3), 16, 20), Silo(1, "b", (1, 2, 4), 7, 30))[number]
    item = Slice(1, 0, board, tuple(ranges))
    try:
        own = silo.own(item)
    except CoreError:
        assert board not in silo.boards or any(not 0 <= a < b <= silo.samples for _, a, b in ranges)
    else:
        assert board in silo.boards
        assert all(0 <= a < b <= silo.samples for _, a, b in own.ranges)
        assert own.index // SLICES == number
        for other in range(6):  # what is dealt of it is held to the same
            if other in silo.boards:
                assert isinstance(own.dealt(own.index + 1, other, own.ranges), SiloSlice)
            else:
                with pytest.raises(CoreError, match="it gets no samples"):
                    own.dealt(own.index + 1, other, own.ranges)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_whatever_is_lost_no_board_is_told_anything_of_another_silo(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    of = [data.draw(st.integers(0, 2)) for _ in range(count)]
    silos = [
        (tuple(b for b in range(count) if of[b] == n), data.draw(st.integers(20, 40)), data.draw(st.integers(5, 50)))
        for n in sorted(set(of))
    ]
    world = started(SiloWorld(silos, model_bytes=64))
    for _ in range(data.draw(st.integers(0, 3))):
        board = world.boards[data.draw(st.integers(0, count - 1))]
        at_s = data.draw(st.floats(0.1, 6.0))
        world.at(at_s, partial(world.lose, board))
        world.at(at_s + data.draw(st.sampled_from([0.5, 40.0])), partial(revive, board))
    world.run()
    check_silos(world)
    assert world.assigned


def revive(board: FakeBoard) -> None:
    if not board.alive:
        board.start()


def test_boards_of_a_silo_with_other_data_of_the_same_number_are_refused() -> None:
    world = SiloWorld(own=True)
    for index, content in enumerate(("south", "other", "north", "north")):
        rank(world, index).content = content
    assert started(world).run().ok
    check_silos(world)
    assert {part.board for closed in world.rounds for one in closed.closed for part in one.steps.parts} == {0, 2, 3}
    assert any("as many as silo silo-0 has, but other ones" in text for text in world.journal.said("lost"))


def test_dealt_silos_are_held_to_the_hosts_own_data() -> None:
    world = SiloWorld(data_sha256="the data")
    for index in range(4):
        rank(world, index).content = "other" if index == 3 else "the data"
    assert started(world).run().ok
    assert {part.board for closed in world.rounds for one in closed.closed for part in one.steps.parts} == {0, 1, 2}
