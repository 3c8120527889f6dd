# SPDX-License-Identifier: Apache-2.0
"""Split learning's machine with real agent machines, under a virtual clock: what holds with boards lost anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes import FakeBoard, Killer, Restarter, World
from tests.split_world import SplitWorld, check_epochs

from paceline.wire import Tensor
from paceline_host import steps as s
from paceline_host.psl import steps as ps
from paceline_host.psl.machine import SplitMachine


def started(world: SplitWorld) -> SplitWorld:
    for board in world.boards:
        board.start()
    return world


@pytest.mark.parametrize("method", ["gpsl", "fls", "fpls"])
def test_an_epoch_uses_each_sample_once_and_every_board_ends_with_the_same_weights(method: str) -> None:
    world = started(SplitWorld(method=method))
    finish = world.run()
    assert finish.ok, finish.reason
    check_epochs(world)
    assert [closed.left for closed in world.journal.closed] == [0, 0]
    assert [part.result is not None for part in world.journal.parts] == [True] * 4
    if method == "gpsl":
        assert world.journal.batches == {1: [8] * 10 + [5], 2: [8] * 10 + [5]}
    assert not world.peers.dropped
    assert len(world.journal.energies) >= 4


def test_one_board_of_one_client_is_central_training() -> None:
    world = started(SplitWorld(sizes=(21,), boards=1, method="central"))
    assert world.run().ok
    check_epochs(world)
    assert world.journal.batches[1] == [8, 8, 5]


def messages() -> int:
    """Return how many messages an undisturbed run takes."""
    world = started(SplitWorld(rounds=1))
    killer = Killer(-1, 0, 0.0)
    world.hook = killer
    assert world.run().ok
    return killer.seen


COUNT = messages()


@pytest.mark.parametrize("notices", [True, False], ids=["seen-to-end", "silent"])
@pytest.mark.parametrize("back_s", [0.0, 0.5, 40.0], ids=["for-good", "back-soon", "back-late"])
def test_a_board_lost_at_any_message_makes_no_wrong_batch_and_no_hang(notices: bool, back_s: float) -> None:
    voided = left = 0
    for at in range(1, COUNT + 1):
        world = started(SplitWorld(rounds=1, notices=notices))
        world.hook = killer = Killer(at, 1, back_s)
        finish = world.run()
        assert finish.ok, f"{killer.where}: {finish.reason}"
        check_epochs(world)
        voided += any(note.kind == "left" for note in world.journal.notes)
        left += world.journal.closed[0].left > 0
    assert voided > COUNT // 3  # else the kills hit nothing
    if not back_s:
        assert left > COUNT // 3


def test_all_boards_lost_and_one_back_goes_on_with_what_it_has() -> None:
    world = started(SplitWorld(rounds=1))

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind == "tensor/gradient" and world.boards[0].life == 1 and world.boards[0].alive:
            world.lose(world.boards[0])
            world.lose(world.boards[1])
            world.at(5.0, world.boards[1].start)
            return False
        return True

    world.hook = hook
    assert world.run().ok
    check_epochs(world)
    assert world.journal.closed[0].left == 50
    assert world.journal.said("alone")


def test_no_board_back_ends_the_run_with_the_reason() -> None:
    world = started(SplitWorld(rounds=1))

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind == "tensor/gradient":
            for one in world.boards:
                if one.alive:
                    world.lose(one)
            return False
        return True

    world.hook = hook
    finish = world.run()
    assert not finish.ok
    assert "no board came back within 30 s" in finish.reason


def test_the_last_board_barred_while_it_loads_ends_the_run_at_once_with_the_reason() -> None:
    world = started(SplitWorld(rounds=1))

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        if when == "before" and kind == "tensor/gradient":
            world.machine.boards[0].failures, world.machine.boards[1].failures = 1, 2
            world.boards[0].kill_trainer("killed")
            world.boards[1].kill_trainer("killed, and its board barred")
            world.at(0.1, lambda: world.boards[0].kill_trainer("killed while it loads"))
            world.hook = lambda *_: True
            return False
        return True

    world.hook = hook
    finish = world.run(15.0)
    assert not finish.ok
    assert finish.reason == "no board may go on, the last was board-0: trainer-gone: killed while it loads"


def test_what_is_not_finite_voids_the_step_and_its_board_may_try_again() -> None:
    world = started(SplitWorld(rounds=1))
    world.store.refuse.add((3, 1))  # type: ignore[attr-defined]
    assert world.run().ok
    check_epochs(world)
    assert any("not finite" in text for text in world.journal.said("rejected"))
    assert world.journal.closed[0].left == 0


def lost_while_the_host_sums(world: SplitWorld, index: int, back_s: float) -> SplitWorld:
    """Let a board be lost once, right when its update of a step is in the store's hands; it is back some time later."""
    done = False

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal done
        machine: Any = world.machine
        if not done and machine._stage == "sum" and machine._count(index):
            done = True
            world.at(0.001, lambda: world.lose(world.boards[index]))
            world.at(0.001 + back_s, world.boards[index].start)
        return True

    world.hook = hook
    return started(world)


@pytest.mark.parametrize("lost", [False, True], ids=["there", "lost-meanwhile"])
@pytest.mark.parametrize("boards", [1, 2])
def test_a_gradient_that_is_refused_voids_the_step_though_its_board_was_lost_meanwhile(boards: int, lost: bool) -> None:
    last = boards - 1
    world = SplitWorld((40, 60, 20, 50), boards, rounds=1, batch=32)  # so many that each board gives some
    world.commit_s = 0.05
    world.store.refuse_updates.add((0, last))  # type: ignore[attr-defined]
    (lost_while_the_host_sums(world, last, 0.05) if lost else started(world))
    finish = world.run()
    assert finish.ok, finish.reason
    check_epochs(world)
    assert any("gradient is not finite" in text for text in world.journal.said("rejected"))
    assert any("step 0" in text for text in world.journal.said("left"))
    assert world.machine.boards[last].failures == 0  # it has given whole steps since
    assert world.journal.closed[0].left == 0


@pytest.mark.parametrize("boards", [1, 2])
def test_a_board_that_is_back_while_the_host_still_sums_waits_for_the_end_of_that_step(boards: int) -> None:
    """Both optimisers step once with what came in; a step that is drawn anew meanwhile would use it twice."""
    world = SplitWorld(boards=boards, rounds=1)
    world.commit_s = 1.0  # longer than a board takes to load
    lost_while_the_host_sums(world, 0, 0.05)
    finish = world.run()
    assert finish.ok, finish.reason
    check_epochs(world)
    assert world.journal.said("lost")
    assert world.journal.said("back")
    assert sum(world.journal.batches[1]) == sum(world.sizes)


@pytest.mark.parametrize("back_s", [0.05, 2.0])
@pytest.mark.parametrize("method", ["gpsl", "fls"])
def test_a_board_lost_at_any_message_of_a_host_that_sums_slowly_makes_no_wrong_batch(
    method: str, back_s: float
) -> None:
    hit = 0
    for at in range(1, COUNT, 2):
        world = SplitWorld(sizes=(9, 13), boards=1 + at % 4 // 2, rounds=1, method=method)
        world.commit_s = 1.0
        world.hook = killer = Killer(at, 0, back_s)
        finish = started(world).run()
        assert finish.ok, f"{killer.where}: {finish.reason}"
        check_epochs(world)
        assert world.journal.closed[0].left == 0 or len(world.boards) == 2, killer.where
        hit += any(note.kind == "left" for note in world.journal.notes)
    assert hit > 10


def test_a_board_that_never_gives_anything_finite_is_barred_and_the_others_finish() -> None:
    world = started(SplitWorld(rounds=1))
    for step in range(3):
        world.store.refuse.add((step, 1))  # type: ignore[attr-defined]
    world.machine.boards[1].failures = 2
    assert world.run().ok
    check_epochs(world)
    assert world.journal.said("barred")
    assert world.journal.closed[0].left > 0


def test_a_lone_board_that_never_gives_anything_finite_ends_the_run_with_what_may_be_wrong() -> None:
    world = started(SplitWorld(boards=1, rounds=1))
    world.store.refuse |= {(0, 0)}  # type: ignore[attr-defined]
    world.machine.boards[0].failures = 2
    finish = world.run()
    assert not finish.ok
    assert finish.reason == (
        "no board may go on, the last was board-0: its smashed tensor is not finite; has training diverged? "
        "a smaller learning_rate may help"
    )


def test_a_board_that_says_nothing_loses_its_lease_after_its_deadline() -> None:
    world = started(SplitWorld(rounds=1))

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        return not (when == "before" and kind == "tensor/gradient" and board is world.boards[1])

    world.hook = hook  # its gradients are lost on the way, its pings are not
    assert world.run().ok
    check_epochs(world)
    assert any("no update data of step" in text for text in world.journal.said("rejected"))


@pytest.mark.parametrize("boards", [1, 3])
def test_a_host_started_again_begins_the_open_epoch_anew_with_the_same_bits(boards: int) -> None:
    plain = started(SplitWorld(boards=boards))
    assert plain.run().ok
    for at in range(3, 44, 5):
        world = started(SplitWorld(boards=boards))
        world.hook = Restarter(at, lambda kind: kind == "tensor")
        finish = world.run()
        assert finish.ok, finish.reason
        check_epochs(world)
        assert world.host_life == 2
        assert world.journal.end_part == plain.journal.end_part


def at_first_smashed(world: SplitWorld, then: Callable[[Tensor, bytes], list[tuple[Tensor, bytes]]]) -> None:
    """Let board 0's first smashed data be replaced by what `then` makes of them."""
    plain, done = world.host_step, False

    def host_step(event: object, payload: bytes | memoryview = b"") -> None:
        nonlocal done
        is_first = isinstance(event, s.Said) and event.board == 0 and isinstance(event.message, Tensor)
        if done or not is_first:
            plain(event, payload)
            return
        done = True
        assert isinstance(event, s.Said)
        assert isinstance(event.message, Tensor)
        for message, data in then(event.message, bytes(payload)):
            plain(s.Said(0, message, len(data)), data)

    world.host_step = host_step  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("changes", "data", "said"),
    [
        ({"size": 8}, b"8 bytes!", "its smashed of step 0 has 8 bytes"),
        ({"offset": 8}, b"8 bytes!", "(8 at 8)"),
        ({}, b"x" * 1000, "(1000 at 0)"),
    ],
    ids=["another-size", "a-gap", "too-much"],
)
def test_tensors_of_another_size_cost_the_board_its_lease_and_say_why(
    changes: dict[str, Any], data: bytes, said: str
) -> None:
    world = started(SplitWorld(rounds=1))
    at_first_smashed(world, lambda message, _: [(replace(message, **changes), data)])
    assert world.run().ok
    check_epochs(world)
    assert any(said in text for text in world.journal.said("rejected")), world.journal.notes
    assert world.journal.closed[0].left == 0  # it came back


@pytest.mark.parametrize(
    "changes", [{"what": "update"}, {"step": 7}, {"redraw": 1}], ids=["another-kind", "another-step", "another-redraw"]
)
def test_tensors_of_another_place_are_passed_over(changes: dict[str, object]) -> None:
    world = started(SplitWorld(rounds=1))
    at_first_smashed(world, lambda m, data: [(replace(m, **changes), data), (m, data)])  # type: ignore[arg-type]
    assert world.run().ok
    check_epochs(world)
    assert not world.journal.said("rejected")


@pytest.mark.parametrize(
    "changes", [{"what": "model"}, {"lease": 99}, {"what": "joke"}], ids=["the-hosts-own", "no-lease", "unknown"]
)
def test_tensors_that_are_no_boards_are_refused_and_change_nothing(changes: dict[str, object]) -> None:
    world = started(SplitWorld(rounds=1))
    at_first_smashed(world, lambda m, data: [(replace(m, **changes), data), (m, data)])  # type: ignore[arg-type]
    assert world.run().ok
    check_epochs(world)
    assert sum(count for what, count in world.peers.dropped.items() if "tensor" in what) == 1


def test_what_was_not_asked_for_is_refused() -> None:
    world = started(SplitWorld(rounds=1, batch=32))  # so many that both boards give some
    at_first_smashed(world, lambda m, data: [(m, data), (m, data)])
    assert world.run().ok
    check_epochs(world)
    assert sum(world.peers.dropped.values()) == 1


def test_the_host_says_of_each_epoch_how_many_bytes_went_each_way() -> None:
    world = started(SplitWorld(rounds=1, sizes=(8,), boards=1))
    assert world.run().ok
    closed = world.journal.closed[0]
    assert isinstance(closed, ps.CloseEpoch)
    # one step of 8 samples: schedule with a row, part, gradient; at the end the empty schedule and the part again
    assert closed.sent_bytes == (16 + 4 + 4) + 64 + 64 + (16 + 4) + 64
    assert closed.received_bytes == 64 + 64


def test_a_board_with_as_many_but_other_data_is_refused_by_name_and_the_others_go_on() -> None:
    world = SplitWorld(rounds=1)
    world.data[1] = "the data in another order"
    finish = started(world).run()
    assert finish.ok, finish.reason
    check_epochs(world)
    (refused,) = world.journal.said("refused")
    assert refused.startswith("board-1 is refused: its data are as many as the host's, but other ones (the data in")
    assert "give both the same data (paceline data fetch" in refused
    assert "board-1: its data are as many" in world.boards[1].exits[0].text
    assert world.journal.closed[0].left == 35


def test_of_central_training_the_boards_that_look_on_may_have_any_data() -> None:
    world = SplitWorld(sizes=(21,), boards=1, method="central", rounds=1)
    world.split = replace(world.split, holds=(range(0),))
    machine = SplitMachine(world.facts, world.split, ["board-0"], 0.0)
    assert machine._content_fault(0, "other data") == ""


OWN = {"sizes": (20, 30), "boards": 2, "own": True}


def restarted_in_the_first_epoch(world: SplitWorld, then: Callable[[], None]) -> SplitWorld:
    """Let the host be killed in the middle of the first epoch and started again, and `then` something with boards."""
    seen = 0

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal seen
        seen += when == "before" and kind == "tensor/gradient"
        if seen == 3:
            seen += 1
            world.restart_host()
            then()
            return False
        return True

    world.hook = hook
    return started(world)


def test_boards_with_data_of_their_own_go_on_with_them_after_a_kill_of_the_host() -> None:
    world = restarted_in_the_first_epoch(SplitWorld(**OWN), lambda: None)  # type: ignore[arg-type]
    finish = world.run()
    assert finish.ok, finish.reason
    check_epochs(world)
    assert world.host_life == 2
    assert [closed.left for closed in world.journal.closed] == [0, 0]


@pytest.mark.parametrize("in_one_life", [True, False], ids=["same-host", "host-started-again"])
@pytest.mark.parametrize(
    ("samples", "data", "said"),
    [
        (29, "29 others", "it holds 29 samples, and held 30 when the run began; restore its data"),
        (30, "30 others", "its data are as many as when the run began, but other ones (30 others, then data of boar)"),
    ],
    ids=["fewer", "others"],
)
def test_own_data_that_changed_since_the_run_began_are_refused(
    samples: int, data: str, said: str, *, in_one_life: bool
) -> None:
    world = SplitWorld(**OWN, rounds=8)  # type: ignore[arg-type]

    def change() -> None:
        world.lose(world.boards[1])
        world.sizes[1], world.data[1] = samples, data
        world.at(0.05, world.boards[1].start)

    if in_one_life:
        world.restart_host = lambda: None  # type: ignore[method-assign]
    finish = restarted_in_the_first_epoch(world, change).run()
    assert finish.ok, finish.reason
    assert any(said in text for text in world.journal.said("refused")), world.journal.notes
    assert [closed.left for closed in world.journal.closed][-1] == 30
    assert {item.board: item.samples for item in world.journal.slices[1]} == {0: 20, 1: 30}


def test_a_board_that_comes_first_after_a_kill_of_the_host_takes_part_from_the_next_epoch_on() -> None:
    """What was planned of the epoch that is begun anew stands in the journal, and the newcomer is not in it."""
    world = SplitWorld(sizes=(20, 30, 15), boards=3, own=True, start_s=5.0)
    newcomer = world.boards[2]
    restarted_in_the_first_epoch(world, newcomer.start)
    newcomer.kill()
    finish = world.run()
    assert finish.ok, finish.reason
    assert {item.board: item.samples for item in world.journal.slices[1]} == {0: 20, 1: 30}
    assert {item.board: item.samples for item in world.journal.slices[2]} == {0: 20, 1: 30, 2: 15}
    check_epochs(world)
    assert [closed.left for closed in world.journal.closed] == [0, 0]
