# SPDX-License-Identifier: Apache-2.0
"""The machine of synchronised ranks with real agent machines, under a virtual clock: what holds with ranks lost
anywhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.fakes import FakeBoard, Killer, Restarter, World, places
from tests.rank_world import FakeRank, RankWorld, check_rounds

from paceline import machine as am
from paceline_host.ddp.plan import RoundPlan
from paceline_host.regimes import Slice
from paceline_host.steps import SlicesStored, StoreSlices


def started(world: RankWorld) -> RankWorld:
    for board in world.boards:
        board.start()
    return world


def rank(world: RankWorld, index: int) -> FakeRank:
    board = world.boards[index]
    assert isinstance(board, FakeRank)
    return board


@pytest.mark.parametrize("model_bytes", [64, 100_000], ids=["inline", "in-chunks"])
def test_rounds_use_each_place_once_in_its_own_step(model_bytes: int) -> None:
    world = started(RankWorld(model_bytes=model_bytes))
    finish = world.run()
    assert finish.ok, finish.reason
    check_rounds(world)
    assert len(world.journal.closed) == 2
    assert all(part.result is not None for closed in world.journal.closed for part in closed.parts)
    assert not world.peers.dropped
    assert not world.journal.losses
    assert not world.journal.said("drift")
    assert len(world.journal.energies) >= 6
    assert [row[3] for row in world.planner.observed] == [8] * 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("own_buffers", [False, True])
def test_a_state_of_its_own_is_drift_unless_the_model_has_buffers_of_its_own(own_buffers: bool) -> None:
    world = RankWorld()
    world.machine.ranks = replace(world.ranks, own_buffers=own_buffers)  # type: ignore[attr-defined]
    rank(world, 1).buffers = b"mean and variance"
    assert started(world).run().ok
    check_rounds(world)
    assert bool(world.journal.said("drift")) is not own_buffers
    assert [rank(world, i).checks for i in range(3)] == [[True, True], [False, True], [False, True]]
    kept = [f"round {n}: BatchNorm's statistics are those of board-0" for n in (1, 2)]
    assert world.journal.said("buffers") == (kept if own_buffers else [])


def test_the_base_travels_to_one_board_and_only_once() -> None:
    world = started(RankWorld())
    chunks = 0

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal chunks
        chunks += when == "before" and who == "board" and kind == "chunk"
        return True

    world.hook = hook
    assert world.run().ok
    assert chunks == 4  # of 100,000 bytes, in the first round


def test_one_rank_alone_trains() -> None:
    world = started(RankWorld(boards=1))
    assert world.run().ok
    check_rounds(world)


def test_every_k_steps_the_rest_of_a_round_is_dealt_anew_to_the_group_that_is_there() -> None:
    world = started(RankWorld(rounds=2, budget=60, steps=6, every=2, paces_s=(0.1, 0.2, 0.4)))
    assert world.run().ok
    check_rounds(world)
    assert len(world.groups) == 2, "one group a round, whatever was dealt in it"
    shares = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    for part in sorted(world.journal.closed[0].parts, key=lambda part: part.slice.index):
        stretch = next(i for i, row in enumerate(shares) if not row[part.board])
        shares[stretch][part.board] = part.slice.samples
        assert part.steps == 2
    assert shares == [[8, 6, 6], [12, 6, 2], [11, 6, 3]]
    told = [json.loads(text) for text in world.journal.said("paces")]
    assert len(told) == 2 * 3, "each stretch is told, and in the journal"
    assert [samples for _, samples in told[1].values()] == shares[1]
    assert [seconds / samples for seconds, samples in told[1].values()] == pytest.approx([0.01, 0.02, 0.04])
    assert [row[2] for row in world.planner.steps[:6]] == [*shares[0], *shares[1]]  # type: ignore[attr-defined]


def test_figures_that_are_none_cost_their_rank_the_round() -> None:
    world = started(RankWorld(every=2))
    liar = rank(world, 1)
    liar.lies = True
    assert world.run().ok
    check_rounds(world)
    assert any("board-1: what a rank measured of its steps is no table" in t for t in world.journal.said("rejected"))


def messages(every: int) -> int:
    """Return how many messages an undisturbed run takes."""
    world = started(RankWorld(every=every))
    world.hook = killer = Killer(-1, 0, 0.0)
    assert world.run().ok
    return killer.seen


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("board", [0, 1])
@pytest.mark.parametrize("notices", [True, False], ids=["seen-to-end", "silent"])
@pytest.mark.parametrize("back_s", [0.0, 0.5, 40.0], ids=["for-good", "back-soon", "back-late"])
def test_a_rank_lost_at_any_message_makes_no_wrong_step_and_no_hang(
    notices: bool, back_s: float, board: int, every: int
) -> None:
    lost, count = 0, messages(every)
    for at in range(1, count + 1, 5 if every else 1):
        world = started(RankWorld(notices=notices, every=every))
        world.hook = killer = Killer(at, board, back_s)
        finish = world.run()
        assert finish.ok, f"{killer.where} ({at}): {finish.reason}"
        check_rounds(world)
        assert len(world.journal.closed) == 2
        lost += bool(world.journal.losses)
    assert lost > count // (15 if every else 3)  # else the kills hit nothing


@pytest.mark.parametrize("at_s", [round(0.1 * n, 1) for n in range(1, 60, 2)])
def test_a_rank_lost_at_any_time_leaves_the_counted_steps_counted(at_s: float) -> None:
    world = started(RankWorld(paces_s=(1.0, 1.3, 0.7)))
    world.at(2.0 + at_s, lambda: world.lose(world.boards[2]))
    assert world.run().ok
    check_rounds(world)
    assert any(part.board == 2 for part in world.journal.closed[0].parts) or at_s < 2


def test_what_no_step_has_counted_goes_to_the_others_by_their_pace() -> None:
    world = started(RankWorld(rounds=2, budget=60, paces_s=(0.1, 0.4, 0.1)))

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind == "tensor/schedule" and len(world.journal.closed) == 1 and world.boards[2].alive:
            world.at(0.3, lambda: world.lose(world.boards[2]))
        return True

    world.hook = hook
    assert world.run().ok
    check_rounds(world)
    given = {0: 0, 1: 0}
    for part in world.journal.closed[1].parts:
        if part.board in given:
            given[part.board] += part.slice.samples
    assert given[0] > given[1]


def test_a_trainer_that_dies_costs_its_rank_the_round_only() -> None:
    world = started(RankWorld(paces_s=(0.5, 0.5, 0.5)))
    world.at(0.5, lambda: world.boards[1].kill_trainer())
    assert world.run().ok
    check_rounds(world)
    assert world.journal.said("failed")
    assert {part.board for part in world.journal.closed[1].parts} == {0, 1, 2}


def test_all_ranks_lost_and_one_back_begins_the_round_anew() -> None:
    world = started(RankWorld(rounds=1))
    seen = False

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal seen
        if when == "before" and kind == "tensor/schedule" and who == "board" and board.index == 2 and not seen:
            seen = True
            for one in world.boards:
                world.lose(one)
            world.at(5.0, world.boards[1].start)
            return False
        return True

    world.hook = hook
    assert world.run().ok
    check_rounds(world)
    assert world.journal.said("alone")
    assert {part.board for part in world.journal.closed[0].parts} == {1}


class OvertakenWorld(RankWorld):
    """The first deal is so long on its way to the disk that all ranks are lost, and the round begins anew with one."""

    late: SlicesStored | None = None

    def host_step(self, event: Any, payload: bytes | memoryview = b"") -> None:
        if self.late is None and isinstance(event, SlicesStored) and event.slices[0].redealt_from is not None:
            self.late = event
            for board in self.boards[:2]:
                self.lose(board)
            self.at(0.5, self.boards[1].start)
        else:
            super().host_step(event, payload)

    def host_do(self, action: Any, payload: bytes | memoryview) -> None:
        super().host_do(action, payload)
        if self.late is not None and isinstance(action, StoreSlices):
            self.at(0.0, partial(super().host_step, self.late))


def test_a_deal_that_is_on_disk_late_is_not_taken_for_the_plan_that_has_replaced_it() -> None:
    world = OvertakenWorld(rounds=1, paces_s=(1.0, 1.0, 1.0))
    unwritten: list[int] = []

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        lease = world.machine.boards[board.index].lease
        if (when, kind) == ("before", "assign") and lease is not None:
            is_written = (lease.slice.round, lease.slice.index) in world.journal.slices
            unwritten.extend([] if is_written else [lease.slice.index])
        return True

    world.hook = hook
    world.at(0.5, partial(world.lose, world.boards[2]))
    assert started(world).run().ok
    check_rounds(world)
    assert world.journal.said("void")
    assert not unwritten, "slices were given out before they were on disk"


def test_a_round_may_be_dealt_and_begun_anew_when_all_its_steps_are_counted() -> None:
    """The state may be lost after the last step, when no open slice is left."""

    def divide(samples: int, least: int) -> list[tuple[int, int]]:
        return [(1, samples)]

    plan = RoundPlan([Slice(1, 0, 0, ((0, 0, 6),)), Slice(1, 1, 1, ((0, 6, 12),))], 0, 2, 1, 2)
    assert [item.samples for item in plan.deal_anew(2, [0, 1], divide)] == [6, 6]
    assert plan.deal_anew(2, [1], divide) == []
    (fresh,) = plan.begin_anew(divide)
    assert (fresh.board, places(fresh.ranges), plan.counted, plan.first) == (1, places([(0, 0, 12)]), [], 0)


def test_no_rank_back_ends_the_run_with_the_reason() -> None:
    world = started(RankWorld(rounds=1))
    for one in world.boards:
        world.at(0.4, partial(world.lose, one))
    finish = world.run()
    assert not finish.ok
    assert "no board came back within 30 s" in finish.reason


def test_a_rank_of_another_torch_is_barred_by_name_and_the_others_train() -> None:
    world = RankWorld()
    rank(world, 1).dtype = "float64"
    assert started(world).run().ok
    check_rounds(world)
    assert any("has dtype float64, board-0 float32" in text for text in world.journal.said("rejected"))
    assert world.journal.said("barred")


def test_ranks_off_loopback_without_consent_end_the_run_before_any_group() -> None:
    world = RankWorld()
    world.machine.ranks = world.ranks = replace(world.ranks, options={"plain": False})  # type: ignore[attr-defined]
    finish = started(world).run()
    assert not finish.ok
    assert finish.reason.startswith("collectives would travel in plain text over 10.0.0.0, 10.0.0.1, 10.0.0.2; set")
    assert not world.groups


def test_an_address_that_several_ranks_have_is_told_once() -> None:
    world = RankWorld()
    world.machine.ranks = world.ranks = replace(world.ranks, options={"plain": False})  # type: ignore[attr-defined]
    for board in world.boards:
        board.address = "10.0.0.7"  # type: ignore[attr-defined]
    assert started(world).run().reason.startswith("collectives would travel in plain text over 10.0.0.7; set")


def test_a_rank_alone_needs_no_consent() -> None:
    world = RankWorld(boards=1)
    world.machine.ranks = world.ranks = replace(world.ranks, options={"plain": False})  # type: ignore[attr-defined]
    assert started(world).run().ok


def test_a_rank_that_cannot_reach_the_store_is_left_out_by_name() -> None:
    world = RankWorld()
    rank(world, 2).fault = "cannot reach the store of board-0 at 10.0.0.1:4711: No route to host"
    assert started(world).run().ok
    check_rounds(world)
    assert any("No route to host" in text for text in world.journal.said("rejected"))


def test_a_rank_that_is_stuck_loses_its_lease_and_comes_back_in_the_next_round() -> None:
    world = started(RankWorld())
    stuck = world.boards[1]

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        early = not world.journal.closed
        return not (early and when == "before" and board is stuck and kind.startswith("tensor") and who == "board")

    world.hook = hook  # nothing of the round reaches it, its pings go on
    assert world.run().ok
    check_rounds(world)
    assert any("no sign of where it is came in time" in text for text in world.journal.said("rejected"))
    assert {part.board for part in world.journal.closed[1].parts} == {0, 1, 2}


def test_a_rank_that_stops_inside_a_step_is_found_by_the_others_watchdog() -> None:
    world = started(RankWorld(rounds=1, paces_s=(1.0, 1.0, 1.0)))
    stuck = rank(world, 1)
    world.at(0.6, lambda: setattr(stuck, "stuck", True))
    waits: list[tuple[str, tuple[str, ...]]] = []
    world.at(
        1.7 * world.facts.patience_s,
        lambda: waits.extend((wait.who, wait.names) for wait in world.machine.waiting_groups()),
    )
    assert world.run().ok
    check_rounds(world)
    assert world.journal.said("broken")
    (waited,) = world.journal.said("waited")
    assert re.match(r"round 1: the others waited 30 s for board-1's part of step \d: it does not say where", waited)
    assert waits == [("the group", ("board-1",))], "which `paceline status` shows meanwhile"
    assert any("board-1: no sign of where it is" in text for text in world.journal.said("rejected"))


def test_groups_that_never_step_end_the_run_with_the_last_reason() -> None:
    world = RankWorld(boards=1)
    rank(world, 0).fault = "no interface has the address 10.0.0.0"
    finish = started(world).run()
    assert not finish.ok
    assert "groups in a row did no step" in finish.reason
    assert "no interface" in finish.reason


def test_a_rank_whose_step_takes_longer_than_the_patience_ends_the_run_with_what_to_change() -> None:
    world = RankWorld()
    world = RankWorld(paces_s=(0.001, 6 * world.facts.patience_s, 0.001))
    finish = started(world).run()
    assert not finish.ok
    assert finish.reason.startswith("5 groups in a row did no step, the last was board-")
    assert "the last time it was board-1; where" in finish.reason
    waited = world.journal.said("waited")
    assert len(waited) == 4  # nobody is called after the fifth
    assert all("board-1's part of step 0: it was not done with it" in text for text in waited)
    assert finish.reason.endswith("where a step takes so long, raise run.patience_s or run.steps")


def test_a_state_that_is_not_finite_voids_the_round_and_three_times_ends_the_run() -> None:
    world = started(RankWorld())
    world.store.refuse = 1  # type: ignore[attr-defined]
    assert world.run().ok
    check_rounds(world)
    assert any("is void" in text for text in world.journal.said("rejected"))
    world = started(RankWorld())
    world.store.refuse = 3  # type: ignore[attr-defined]
    finish = world.run()
    assert not finish.ok
    assert "has training diverged" in finish.reason


@pytest.mark.parametrize(("boards", "every"), [(1, 0), (3, 0), (3, 1)])
def test_a_host_started_again_begins_the_open_round_anew_with_the_same_state(boards: int, every: int) -> None:
    for at in range(3, 60 if not every else 120, 4):
        world = started(RankWorld(boards=boards, every=every))
        world.hook = Restarter(at, lambda kind: kind not in ("ping", "pong", "chunk", "credit"))
        finish = world.run()
        assert finish.ok, finish.reason
        check_rounds(world)
        assert len(world.journal.states) == 2


def test_ranks_that_fail_until_all_are_barred_end_the_run_with_the_last_reason() -> None:
    world = started(RankWorld(boards=1))

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind == "tensor/schedule" and who == "board":
            lease = world.machine.boards[board.index].lease
            assert lease is not None
            board.step(am.WorkFailed(lease.number, "error", "nan"))
            return False
        return True

    world.hook = hook
    finish = world.run()
    assert not finish.ok
    assert re.match(r"no board may go on, the last was board-\d: error: nan", finish.reason)
