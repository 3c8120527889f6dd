# SPDX-License-Identifier: Apache-2.0
"""The simulator's parts one by one: clock, lines, chance, joules, models, faults."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RunError, SettingsError
from paceline.wire import ENERGY_FLAGS
from paceline_host.profile import BoardProfile
from paceline_host.simulation.account import CATEGORIES, Account
from paceline_host.simulation.clock import Clock, Timer
from paceline_host.simulation.draws import around_one, mix, normal, uniform
from paceline_host.simulation.faults import KINDS, Fault, apply, by_round, drawn, parse
from paceline_host.simulation.line import Line, LinkModel
from paceline_host.simulation.models import BoardModel, profiles

# Clock --------------------------------------------------------------------------------------------------------------


def test_things_happen_in_order_of_time_and_then_of_asking() -> None:
    clock, seen = Clock(), []
    for when_s, name in ((2.0, "late"), (1.0, "first"), (1.0, "second"), (-5.0, "past")):
        clock.at(when_s, lambda name=name: seen.append((clock.now_s, name)))  # type: ignore[misc]
    clock.run(lambda: len(seen) == 4)
    assert seen == [(0.0, "past"), (1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_another_clock_may_drive_it() -> None:
    clock, seen = Clock(10.0), []

    def happen() -> None:
        seen.append("due")
        clock.later(0.0, lambda: seen.append("led to"))

    clock.at(11.0, happen)
    clock.at(13.0, lambda: seen.append("later"))
    assert clock.advance(10.5) == 11.0
    assert not seen
    assert clock.advance(12.0) == 13.0
    assert seen == ["due", "led to"]
    assert clock.advance(9.0) == 13.0  # time does not go back
    assert clock.now_s == 12.0
    assert clock.advance(13.0) == float("inf")


def test_a_clock_with_nothing_to_do_says_so() -> None:
    with pytest.raises(RunError, match=r"stands at 0\.000 s: nothing is due"):
        Clock().run(lambda: False)


def test_a_spin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline_host.simulation.clock.SPIN", 100)
    clock = Clock()

    def again() -> None:
        clock.later(0.0, again)

    again()
    with pytest.raises(RunError, match="spins"):
        clock.run(lambda: False)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=30))
def test_a_timer_fires_once_at_the_deadline_that_was_set_last(moves: list[tuple[int, int]]) -> None:
    """Compared with the law: a deadline that no later move has replaced fires, at its own time."""
    clock, fired = Clock(), []
    timer = Timer(clock, lambda: fired.append(clock.now_s))
    at_s, expected, due_s = 0, [], None
    for wait_s, delay_s in moves:
        then_s = at_s + wait_s
        if due_s is not None and due_s < then_s:  # at one instant the move comes first, as it was asked for first
            expected.append(float(due_s))
        at_s, due_s = then_s, then_s + delay_s
        clock.at(at_s, lambda due_s=due_s: timer.set(float(due_s)))  # type: ignore[misc]
    if due_s is not None:
        expected.append(float(due_s))
    over = []
    clock.at(10_000.0, lambda: over.append(1))
    clock.run(lambda: bool(over))
    assert fired == expected


# Lines and chance ---------------------------------------------------------------------------------------------------


def test_a_line_carries_one_message_after_the_other() -> None:
    clock, seen = Clock(), []
    line = Line(clock, LinkModel(latency_s=0.5, bytes_per_s=100.0, weight=10.0))
    for header, payload in ((100, 0), (50, 5)):
        line.send(header, payload, lambda: seen.append(clock.now_s))
    clock.run(lambda: len(seen) == 2)
    assert seen == [1.5, 2.5]  # 1 s and 0.5 s latency; then 50 + 5 x 10 bytes behind it


def test_chance_has_the_law_that_it_is_named_after() -> None:
    numbers = [normal(7, i) for i in range(20_000)]
    assert abs(statistics.fmean(numbers)) < 5 / 20_000**0.5
    assert abs(statistics.pstdev(numbers) - 1.0) < 5 / (2 * 20_000) ** 0.5
    factors = [around_one(0.3, 7, i) for i in range(20_000)]
    assert abs(statistics.fmean(factors) - 1.0) < 5 * 0.3 / 20_000**0.5
    assert abs(statistics.pstdev(factors) - 0.3) < 0.02
    assert min(factors) > 0.0
    assert all(0.0 < uniform(i) <= 1.0 for i in range(1000))


def test_chance_depends_on_each_name_alone() -> None:
    found = {mix(a, b) for a in range(100) for b in range(100)}
    assert len(found) == 10_000
    assert mix(1, 2) == mix(1, 2) != mix(2, 1)
    assert around_one(0.0, 1) == 1.0


# Joules -------------------------------------------------------------------------------------------------------------

MARKS = st.lists(
    st.tuples(st.integers(0, 10**7), st.sampled_from(["compute", "wait", "transfer", "other"]), st.integers(1, 3),
              st.booleans()), max_size=20,
)  # fmt: skip


@given(MARKS)
def test_the_five_parts_are_the_total_and_cover_the_time(marks: list[tuple[int, str, int, bool]]) -> None:
    account = Account(lambda at_us, span_us: (2.0, 7.0))
    account.open(100)
    at_us, worked_us = 100, 0
    category = "other"
    for span_us, then, lease, void in marks:
        at_us += span_us
        worked_us += span_us if category == "compute" else 0
        account.mark(at_us, then, lease)
        category = then
        if void:
            account.void(lease)
    energy = account.split("run", 3, at_us)
    parts = [getattr(energy, f"{name}_uj") for name in CATEGORIES]
    assert sum(parts) == energy.total_uj == 2 * (at_us - 100 - worked_us) + 7 * worked_us
    assert (energy.span_us, energy.covered_us) == (at_us - 100, at_us - 100)


def test_a_meter_that_dies_makes_unknown_what_it_did_not_see() -> None:
    account = Account(lambda at_us, span_us: (1.0, 2.0))
    account.open(0)
    account.mark(10, "compute", 1)
    account.mark(20, "wait", 0)
    assert account.computed_uj(1) == 20
    account.settle(25)
    account.metered = False
    account.mark(30, "transfer", 0)
    energy = account.split("run", 1, 40)
    assert (energy.compute_uj, energy.wait_uj, energy.transfer_uj, energy.total_uj) == (20, None, None, None)
    assert (energy.covered_us, energy.span_us, energy.wait_us) == (25, 40, 10)
    assert energy.flags == ENERGY_FLAGS["unknown"]
    account.mark(40, "compute", 2)
    account.mark(50, "wait", 0)
    assert account.computed_uj(2) is None


# Boards -------------------------------------------------------------------------------------------------------------

PI = BoardProfile("pi", 0.5, 2.0, 6.0, step_fixed_s=0.001, throttle_after_s=0.0)


def test_a_slice_takes_what_the_profile_declares() -> None:
    model = BoardModel(PI, 0, 1, 16, 0.0025, round_fixed_s=0.25)
    assert model.seconds(1, 1000) == pytest.approx(0.25 + 63 * 0.001 + 1000 * 0.005)
    assert model.watts(1) == (2.0, 6.0)


def test_a_throttled_board_takes_longer_and_draws_less() -> None:
    model = BoardModel(PI, 0, 1, 1000, 0.0025)
    before_s = model.seconds(1, 1000)
    apply(Fault(0, 1, "throttle", 2.0), model)
    assert model.seconds(1, 1000) == pytest.approx(2 * before_s)
    assert model.watts(1) == (2.0, 4.0)
    apply(Fault(0, 2, "throttle", 1.0), model)
    assert model.seconds(1, 1000) == before_s


def test_a_loaded_board_takes_longer_and_never_idles() -> None:
    model = BoardModel(PI, 0, 1, 1000, 0.0025)
    before_s = model.seconds(1, 1000)
    apply(Fault(0, 1, "load", 4.0), model)
    assert model.seconds(1, 1000) == pytest.approx(4 * before_s)
    assert model.watts(1) == (5.0, 6.0)


def test_noise_and_drift_are_those_of_the_seed_and_the_round() -> None:
    def seconds(seed: int, drift_sd: float) -> list[float]:
        model = BoardModel(PI, 3, seed, 16, 0.0025, noise=0.2, drift_sd=drift_sd)
        return [model.seconds(round_, 500) for round_ in range(1, 50)]

    assert seconds(1, 0.0) == seconds(1, 0.0) != seconds(2, 0.0)
    ratios = [b / a for a, b in zip(seconds(1, 0.0), seconds(1, 0.05), strict=True)]
    assert ratios[0] != 1.0
    assert max(ratios) / min(ratios) > 1.1, "drift adds up"


def test_more_boards_than_a_profile_has_are_like_those() -> None:
    made = profiles([PI, BoardProfile("nuc", 4.0, 9.0, 30.0)], 2000, 5)
    assert made[:2] == [PI, BoardProfile("nuc", 4.0, 9.0, 30.0)]
    assert len({board.name for board in made}) == 2000
    speeds = [board.speed for board in made[2:] if board.name.startswith("nuc")]
    assert statistics.fmean(speeds) == pytest.approx(4.0, rel=0.02)
    assert profiles([PI], 1, 5) == [PI]


# Faults -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("board=3 round=5 throttle x2", Fault(3, 5, "throttle", 2.0)),
        ("round=5 board=3 leave", Fault(3, 5, "leave")),
        ("board=0 round=1 noise 0.25", Fault(0, 1, "noise", 0.25)),
        ("board=0 round=1 load", Fault(0, 1, "load")),
        ("board=0 round=1 meter", Fault(0, 1, "meter")),
        ("board=0 round=1 return", Fault(0, 1, "return")),
    ],
)
def test_a_fault_can_be_written_down(text: str, fault: Fault) -> None:
    assert parse(text) == fault
    assert fault.size == (KINDS[fault.what][0] if fault.factor is None else fault.factor)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("board=3 leave", "does not say round"),
        ("board=3 round=5", "does not say what happens"),
        ("board=3 round=5 throtle x2", "there is no fault 'throtle'; did you mean throttle?"),
        ("board=3 round=5 leave x2", "leave has no factor"),
        ("board=3 round=5 throttle x0.5", "would be faster"),
        ("board=3 round=5 leave now", "'now' is not understood"),
        ("board=x round=5 leave", "'board=x' is not understood"),
    ],
)
def test_a_fault_that_is_wrong_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parse(text)


def test_faults_at_random_are_those_of_the_seed_and_let_boards_return() -> None:
    found = drawn(0.1, 11, 50, 3)
    assert found == drawn(0.1, 11, 50, 3) != drawn(0.1, 11, 50, 4)
    assert {fault.what for fault in found} == set(KINDS)
    leaves = [fault for fault in found if fault.what == "leave"]
    returns = [fault for fault in found if fault.what == "return"]
    assert [(f.board, f.round + 3) for f in leaves] == [(f.board, f.round) for f in returns]
    assert 0 not in {fault.board for fault in leaves}
    assert 0.05 < len([f for f in found if f.factor != 1.0 and f.what != "return"]) / (11 * 49) < 0.15
    assert drawn(0.0, 11, 50, 3) == []


def test_a_fault_of_a_board_that_there_is_not_is_refused() -> None:
    with pytest.raises(SettingsError, match="fault of board 11: there are 11 boards, numbered from 0 to 10"):
        by_round([Fault(11, 1, "leave")], 11, 3)
    with pytest.raises(SettingsError, match="fault of round 4: there are 3 rounds"):
        by_round([Fault(1, 4, "leave")], 11, 3)


@pytest.mark.parametrize(
    "text",
    [
        "board=0 round=1 throttle x0", "board=0 round=1 load x0.5", "board=0 round=1 leave x0",
        "board=0 board=1 round=1 leave", "board=0 round=1 round=2 leave", "board=0 round=1 load x2 x3",
        "board=0 round=1 noise x5", f"board={'9' * 5000} round=1 leave", f"board=0 round=1 load x{'9' * 5000}",
    ],
)  # fmt: skip
def test_a_fault_that_could_not_mean_what_it_says_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--fault"):
        parse(text)
