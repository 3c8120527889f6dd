# SPDX-License-Identifier: Apache-2.0
"""Agent machines, peers and the round machine joined by a fake wire: whole runs, with losses at every point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import fakes
from tests.fakes import MODEL_BYTES, FakeBoard, World, check_exactly_once, check_shown, model_of, sha

from paceline_host import machine as rm

Harm = Callable[[World, FakeBoard], None]
AWAY_S = 2.0


def started(world: World) -> World:
    """Start all boards of a world."""
    for board in world.boards:
        board.start()
    return world


def lose_all(world: World) -> None:
    """Kill every board."""
    for board in world.boards:
        world.lose(board)


def check_run(world: World, finish: rm.Finish) -> None:
    """Assert the laws of a run that was not stopped."""
    assert finish == rm.Finish(True, "finished")
    check_exactly_once(world.ledger, world.facts, world.facts.rounds)
    if world.machine.boards[0].counted is not None:  # else this life of the host had no round to close
        check_shown(world)
    assert world.ledger.rounds == list(range(1, world.facts.rounds + 1))
    for board, work, model in world.started:
        assert model == sha(model_of(work.round - 1)), f"board {board} works from another model than its round's"


def test_a_run_without_faults_is_the_shortest_one() -> None:
    world = started(World(rounds=4))
    check_run(world, world.run())
    assert not world.peers.dropped
    assert not world.dropped_by_boards
    assert [s.redealt_from for s in world.ledger.slices.values()] == [None] * 12
    assert not world.ledger.losses
    assert not world.ledger.refused
    assert len(world.ledger.accepted) == len(world.started) == 12
    assert [work.lease for _, work, _ in world.started] == list(range(1, 13)), "leases are numbered upwards"


def test_joules_come_in_after_every_round_and_at_the_end() -> None:
    world = started(World(rounds=2))
    world.run()
    got = [(e.board, e.energy.round) for e in world.ledger.energies]
    assert sorted(got) == [(b, r) for b in range(3) for r in (1, 2, 2)]
    for board in world.boards:
        assert [m.category for m in board.marks].count("compute") == 2
        assert board.marks[-1].category == "other", "after the end nothing is waited for"


def test_unknown_joules_travel_as_unknown() -> None:
    world = World(rounds=2)
    world.boards[1].energy_known = False
    check_run(started(world), world.run())
    told = [joules for board, _, joules, _ in world.planner.observed if board == 1]  # type: ignore[attr-defined]
    assert told == [None, None]
    assert {d.commit.compute_uj for d in world.ledger.accepted if d.board == 1} == {None}
    assert {e.energy.total_uj for e in world.ledger.energies if e.board == 1} == {None}
    assert {d.commit.compute_uj for d in world.ledger.accepted if d.board != 1} == {1000}


def test_a_late_joiner_takes_part_from_the_next_round() -> None:
    world = World(rounds=3, start_s=3.0)
    for board in world.boards[:2]:
        board.start()
    world.at(4.0, world.boards[2].start)
    check_run(world, world.run())
    assert world.ledger.said("missing") == ["starting without board-2: not ready"]
    by_round = {r: {d.board for d in world.ledger.accepted if d.slice.round == r} for r in (1, 2, 3)}
    assert by_round == {1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 2}}


def test_a_run_where_all_boards_go_ends_with_the_reason() -> None:
    world = started(World())
    world.at(3.0, lambda: lose_all(world))
    assert world.run() == rm.Finish(False, "no board came back within 30 s")
    assert world.ledger.said("alone") == ["no board is left; waiting 30 s for one to come back"]
    check_exactly_once(world.ledger, world.facts)


@pytest.mark.parametrize(("load_s", "ok"), [(45.0, True), (75.0, False)])
def test_who_is_here_and_loads_when_nobody_is_left_may_take_as_long_as_at_the_start(load_s: float, ok: bool) -> None:
    world = started(World())

    def lose_trainers() -> None:
        for board in world.boards:
            board.load_s = load_s  # longer than patience
            board.kill_trainer()

    world.at(3.0, lose_trainers)
    assert world.run().ok is ok
    assert world.ledger.said("alone")
    check_exactly_once(world.ledger, world.facts)


def test_a_run_where_all_boards_go_and_one_comes_back_is_completed_by_it() -> None:
    world = started(World())
    world.at(3.0, lambda: lose_all(world))
    world.at(20.0, world.boards[1].start)
    check_run(world, world.run())
    assert {d.board for d in world.ledger.accepted if d.slice.round == 3} == {1}


def test_a_stop_ends_the_run_and_every_boards_work() -> None:
    world = started(World())
    world.at(2.0, lambda: world.host_step(rm.Stop("interrupted")))
    assert world.run() == rm.Finish(False, "interrupted")
    assert {board.machine.state.value for board in world.boards} == {"ready"}
    assert {e.board for e in world.ledger.energies if e.energy.round == world.machine.round} == {0, 1, 2}


def test_a_board_that_hangs_loses_its_lease_and_its_ranges_are_dealt_to_others() -> None:
    world = started(World(paces_s=[0.1, 0.1, 1e6]))
    check_run(world, world.run(7200.0))
    assert len(world.ledger.said("expired")) == 3
    assert world.ledger.said("barred") == ["board-2: 3 failures in a row, no more work in this run"]
    assert {d.board for d in world.ledger.accepted} == {0, 1}


def test_a_slow_board_that_makes_progress_keeps_its_lease() -> None:
    """Half of the work takes 100 s, the first lease 120 s: progress renews it."""
    world = started(World(paces_s=[0.1, 0.1, 25.0], rounds=1))
    check_run(world, world.run())
    assert not world.ledger.losses
    assert world.now_s > 1000 + 8 * 25.0


# Every point of a run ------------------------------------------------------------------------------------------------


def die(world: World, board: FakeBoard) -> None:
    """The agent's process dies and stays away."""
    world.lose(board)


def die_and_come_back(world: World, board: FakeBoard) -> None:
    """The agent's process dies and is started again."""
    world.lose(board)
    world.at(AWAY_S, lambda: None if board.alive else board.start())


def cut(world: World, board: FakeBoard) -> None:
    """The link breaks; the agent goes on over a new connection."""
    board.connect()


def kill_trainer(world: World, board: FakeBoard) -> None:
    """The trainer dies, the agent lives."""
    board.kill_trainer()


def restart_host(world: World, board: FakeBoard) -> None:
    """The host is killed and started again; boards live on."""
    world.restart_host()


def restart_both(world: World, board: FakeBoard) -> None:
    """The host is killed, and with it a board, which comes back."""
    world.restart_host()
    die_and_come_back(world, board)


HARMS = [die, die_and_come_back, cut, kill_trainer, restart_host, restart_both]


def points(world: World) -> list[tuple[str, str, str]]:
    """Return (when, who hears, kind) of all points of a faultless run of a world."""
    seen: list[tuple[str, str, str]] = []

    def note(_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        seen.append((when, who, kind))
        return True

    world.hook = note
    started(world).run()
    return seen


def harmed_at(world: World, point: int, harm: Harm) -> World:
    """Let one harm happen at a point: the message is lost if it is a `before`."""
    count = 0

    def hook(world: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal count
        count += 1
        if count - 1 != point:
            return True
        harm(world, board)
        return when == "after" or who == "store"

    world.hook = hook
    return world


def test_the_points_are_before_and_after_each_kind_of_message_of_a_run() -> None:
    seen = set(points(World(rounds=2)))
    kinds = {kind for _, _, kind in seen}
    assert kinds == {
        "hello", "welcome", "load", "ready", "begin", "assign", "chunk", "taken", "credit", "ping", "pong", "result",
        "commit", "answer", "round_closed", "energy", "end",
    } | {"result"}  # fmt: skip
    assert all(("after", who, kind) in seen for when, who, kind in seen if when == "before" and who != "store")


def test_a_small_model_travels_without_chunks_and_survives_every_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "MODEL_BYTES", 1000)
    seen = points(World(rounds=2))
    assert {kind for _, _, kind in seen}.isdisjoint({"chunk", "credit"})
    for point in range(len(seen)):
        for harm in (die_and_come_back, cut, kill_trainer):
            world = started(harmed_at(World(rounds=2, notices=False), point, harm))
            check_run(world, world.run())


@pytest.mark.parametrize("notices", [True, False], ids=["noticed at once", "noticed by silence"])
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: str(harm.__name__))
def test_whatever_board_is_lost_at_whatever_step_each_sample_counts_once(harm: Harm, notices: bool) -> None:
    for point, where in enumerate(points(World(rounds=2))):
        world = started(harmed_at(World(rounds=2, notices=notices), point, harm))
        try:
            check_run(world, world.run())
        except Exception as error:
            error.add_note(f"point {point}: {harm.__name__} {where}")
            raise


def test_a_lost_board_that_comes_back_works_again_from_its_next_round_on() -> None:
    world = started(World(rounds=3))
    world.at(2.0, lambda: die_and_come_back(world, world.boards[0]))
    check_run(world, world.run())
    by_round = {r: {d.board for d in world.ledger.accepted if d.slice.round == r} for r in (1, 2, 3)}
    assert 0 in by_round[3]


@pytest.mark.parametrize(
    "point",
    [("after", "board", "credit"), ("before", "store", "result"), ("before", "board", "answer")],
    ids=["as it is announced", "before it is stored", "stored, and the board does not know"],
)
def test_what_a_board_had_finished_when_the_host_died_is_offered_again_and_not_computed_again(
    point: tuple[str, str, str],
) -> None:
    world = started(World(rounds=2))
    died = False

    def hook(world: World, *here: object) -> bool:
        nonlocal died
        if died or here[:3] != point or not world.started:
            return True
        died = True
        world.restart_host()
        return False

    world.hook = hook
    check_run(world, world.run())
    assert died
    assert world.dropped_by_boards == []
    assert [work.round for board, work, _ in world.started if board == 0] == [1, 2], "board 0 worked twice"
    assert not world.boards[0].voids, "its joules are wasted though they count"


def test_an_upload_that_was_cut_goes_on_where_it_was() -> None:
    world = started(World(rounds=1))
    pieces: list[int] = []
    cut_at = 0

    def hook(world: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal cut_at
        if (when, who, kind) == ("after", "host", "chunk") and board.index == 0:
            pieces.append(world.machine.boards[0].lease.receiver.have)  # type: ignore[union-attr]
            if len(pieces) == 2:
                cut_at = pieces[-1]
                board.connect()
        return True

    world.hook = hook
    check_run(world, world.run())
    assert 0 < cut_at < MODEL_BYTES
    assert pieces == sorted(set(pieces)), "some of the update came twice"
    assert pieces[-1] == MODEL_BYTES
    assert len([board for board, _, _ in world.started if board == 0]) == 1
    assert world.ledger.said("back") == ["board-0 connected anew and offers its result again"]
    assert not world.ledger.losses


FAULTS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 2),
        st.sampled_from([die, die_and_come_back, die_and_come_back, cut, cut, kill_trainer, restart_host]),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(FAULTS, st.booleans(), st.sampled_from([0.001, 0.3]), st.sampled_from([0.0, 0.002, 2.0]))
def test_many_faults_at_once_leave_a_ledger_that_a_faultless_run_could_have_made(
    faults: list[tuple[int, int, Harm]], notices: bool, latency_s: float, store_s: float
) -> None:
    world = World(rounds=3, notices=notices, latency_s=latency_s, store_s=store_s)
    count = 0

    def hook(world: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal count
        count += 1
        passes = True
        for point, index, harm in faults:
            victim = world.boards[index]
            if point == count and victim.alive:
                harm(world, victim)
                passes = victim is not board or when == "after"
        return passes

    world.hook = hook
    finish = started(world).run()
    check_exactly_once(world.ledger, world.facts)
    if finish.ok:
        check_run(world, finish)
    else:
        assert finish.reason.startswith(("no board came back", "no board became ready"))


def test_uploads_arrive_whole_whatever_the_credit() -> None:
    """The fake host checks each upload's hash; here the window is smaller than a chunk, equal to it, and huge."""
    for credit in (1000, 1 << 15, 10 * MODEL_BYTES):
        world = started(World(credit_bytes=credit))
        check_run(world, world.run())


def test_refused_updates_are_dealt_to_others_and_the_board_is_barred_after_three() -> None:
    world = started(World(rounds=4))
    world.store.verdict = lambda action: "an element is not a number" if action.board == 1 else ""
    check_run(world, world.run())
    assert [(d.board, d.slice.round) for d in world.ledger.refused] == [(1, 1), (1, 2), (1, 3)]
    assert len(world.ledger.said("rejected")) == 3
    assert world.ledger.said("barred") == ["board-1: 3 failures in a row, no more work in this run"]
    assert Counter(loss.verdict for loss in world.ledger.losses) == {"rejected": 3}
    again = [s for s in world.ledger.slices.values() if s.redealt_from is not None]
    assert {s.board for s in again} == {0, 2}
    assert not [s for s in world.ledger.slices.values() if s.round == 4 and s.board == 1]


def test_a_slow_link_is_no_reason_to_end_a_lease_while_bytes_move() -> None:
    """A message takes 4 s each way, so model and update need 28 s each, where the second round's leases are of 31 s."""
    world = started(World(rounds=2, latency_s=4.0, credit_bytes=1 << 15, notices=False))
    check_run(world, world.run())
    assert not world.ledger.losses
    assert not world.dropped_by_boards
