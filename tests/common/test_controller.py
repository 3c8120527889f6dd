# SPDX-License-Identifier: Apache-2.0
"""The controller's rules, one test each, and its laws."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Controller, Flags
from paceline.errors import CoreError

NAN = math.nan


def told(
    c: Controller, seconds: list[float], energy_j: list[float | None] | None = None, samples: int = 100
) -> Controller:
    """Give every participant a report of `samples` samples."""
    for i, s in enumerate(seconds):
        c.observe(i, seconds=s, energy_j=energy_j[i] if energy_j else None, samples=samples)
    return c


# Costs, medians, weights


def test_the_first_round_is_equal() -> None:
    c = Controller(4, 1000)
    assert c.costs == [1, 1, 1, 1]
    assert c.allocate() == [250] * 4


@given(
    seconds=st.lists(st.floats(0.1, 50), min_size=1, max_size=15),
    watts=st.lists(st.floats(0.1, 50), min_size=15, max_size=15),
    w_energy=st.floats(0, 1),
)
def test_costs_are_those_of_exact_arithmetic(seconds: list[float], watts: list[float], w_energy: float) -> None:
    joules: list[float | None] = [s * w for s, w in zip(seconds, watts, strict=False)]
    c = told(Controller(len(seconds), 10_000, w_energy=w_energy), seconds, joules)
    tau = [Fraction(s) for s in seconds]
    eps = [Fraction(e) for e in joules if e is not None]
    middle_tau, middle_eps = statistics.median(tau), statistics.median(eps)
    weight = Fraction(w_energy)
    for cost, t, e in zip(c.costs, tau, eps, strict=True):
        assert cost == pytest.approx(float((1 - weight) * t / middle_tau + weight * e / middle_eps), rel=1e-12)


def test_w_time_none_is_the_rest_and_zero_is_none() -> None:
    assert told(Controller(2, 300, w_energy=0.0), [1, 2]).allocate() == [200, 100]
    assert told(Controller(2, 300, w_energy=0.5, w_time=0.0), [1, 2], [2, 1]).allocate() == [100, 200]


@pytest.mark.parametrize(
    "settings",
    [{"w_energy": -0.1}, {"w_energy": 1.5}, {"w_energy": 0.0, "w_time": 0.0}, {"w_time": -1.0}, {"w_energy": NAN},
     {"ema": 0.0}, {"ema": 1.5}, {"ema": -1.0}, {"deadband": -0.1}, {"deadband": NAN}, {"policy": "no-such"}],
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(CoreError, match=r"^Controller: "):
        Controller(2, 100, **settings)  # type: ignore[arg-type]  # one of the rows is a string


# Smoothing, odd reports


def test_the_first_report_initialises_and_later_ones_are_smoothed() -> None:
    c = told(Controller(1, 100, ema=0.25), [2.0], [8.0])
    told(c, [4.0], [4.0])
    assert c.seconds_per_sample == [0.25 * 0.04 + 0.75 * 0.02]
    assert c.energy_per_sample_j == [0.25 * 0.04 + 0.75 * 0.08]


def test_no_samples_are_looked_at_first_and_change_nothing() -> None:
    c = Controller(2, 100)
    before = c.state()
    c.observe(0, seconds=NAN, energy_j=-1.0, samples=0, wait_seconds=-3.0)
    assert c.state() == before


@pytest.mark.parametrize("seconds", [0.0, -1.0, NAN, math.inf])
def test_a_time_that_is_none_is_refused_and_changes_nothing(seconds: float) -> None:
    c = told(Controller(2, 100), [1, 2])
    before = c.state()
    with pytest.raises(CoreError, match="report of participant 1: no measurement"):
        c.observe(1, seconds=seconds, energy_j=1.0, samples=5)
    assert c.state() == before


@pytest.mark.parametrize("factor", [100.0, 1e-2])
def test_a_wild_report_is_held_back_once(factor: float) -> None:
    c = told(Controller(2, 1000, w_energy=0.0), [1.0, 1.0])
    c.observe(0, seconds=factor, energy_j=None, samples=100)
    assert c.flags(0).report_held
    assert c.seconds_per_sample[0] == 0.01
    c.observe(0, seconds=1.1, energy_j=None, samples=100)  # it was a fluke
    assert not c.flags(0).report_held
    assert c.seconds_per_sample[0] == pytest.approx(0.0105)


def test_a_wild_report_is_believed_when_the_next_one_agrees() -> None:
    c = told(Controller(2, 1000, w_energy=0.0, ema=0.5), [1.0, 1.0])
    c.observe(0, seconds=200.0, energy_j=None, samples=100)
    c.observe(0, seconds=390.0, energy_j=None, samples=100)
    assert c.seconds_per_sample[0] == pytest.approx(0.5 * 3.9 + 0.5 * (0.5 * 2 + 0.5 * 0.01))
    assert not c.flags(0).report_held


def test_another_wild_report_is_held_anew() -> None:
    c = told(Controller(1, 1000), [1.0])
    for seconds in (200.0, 500.0, 0.001, 200.0):
        c.observe(0, seconds=seconds, energy_j=None, samples=100)
        assert c.flags(0).report_held
        assert c.seconds_per_sample == [0.01]


def test_wild_joules_hold_the_report_back_too() -> None:
    c = told(Controller(1, 1000), [1.0], [5.0])
    c.observe(0, seconds=1.5, energy_j=500.0, samples=100)
    assert c.flags(0).report_held
    assert (c.seconds_per_sample, c.energy_per_sample_j) == ([0.01], [0.05])


# Limits (the split itself is tested in test_core.py)


def test_limits_per_participant() -> None:
    c = Controller(3, 900, minimum=[1, 400, 0], capacity=[100, 500, 900])
    assert c.allocate() == [100, 400, 400]
    assert [c.limits(i) for i in range(3)] == [(1, 100), (400, 500), (0, 900)]


def test_minimum_zero_means_none() -> None:
    told(c := Controller(2, 10, w_energy=0.0, minimum=0), [1e-3, 1.0])
    assert c.allocate() == [10, 0]
    told(c := Controller(2, 10, w_energy=0.0), [1e-3, 1.0])
    assert c.allocate() == [9, 1]


def test_missing_samples_are_named_and_nothing_changes() -> None:
    c = Controller(3, 2)
    before = c.state()
    with pytest.raises(CoreError, match="1 short of the sum of the minima; raise it to 3"):
        c.allocate()
    assert c.state() == before
    with pytest.raises(CoreError, match="30 samples of a budget of 90 find no place"):
        Controller(3, 90, capacity=20).allocate()
    with pytest.raises(CoreError, match="participant 0: a minimum is above its capacity"):
        Controller(3, 90, minimum=5, capacity=4)
    with pytest.raises(CoreError, match="minimum holds 2 values for 3 participants"):
        Controller(3, 90, minimum=[1, 2])


# Dead-band


def paced(gain: float, deadband: float) -> tuple[list[int], list[int]]:
    """Return two plans between which one of ten participants became dearer, with the given predicted gain."""
    c = Controller(10, 100_000, w_energy=0.0, ema=1.0, deadband=deadband)
    told(c, [1.0] * 10)
    first = c.allocate()
    told(c, [1.0] * 9 + [1.0 + gain])  # makespan falls from 1 + gain to about 1 + gain / 10
    return first, c.allocate()


@pytest.mark.parametrize(("gain", "moves"), [(0.01, False), (0.05, False), (0.07, True), (0.5, True)])
def test_shares_stay_unless_the_predicted_gain_is_worth_it(gain: float, moves: bool) -> None:
    first, second = paced(gain, 0.05)
    assert (first != second) == moves


def test_without_a_dead_band_every_change_moves_shares() -> None:
    first, second = paced(0.01, 0.0)
    assert first != second


@pytest.mark.parametrize("change", ["budget", "limit", "remove", "restore", "add"])
def test_the_dead_band_holds_only_while_nothing_else_changed(change: str) -> None:
    c = told(Controller(5, 1000, w_energy=0.0, ema=1.0, deadband=0.5), [1, 1, 1, 1, 1])
    c.remove(4)
    first = c.allocate()
    told(c, [1.2, 1, 1, 1])
    assert c.allocate() == first
    do: dict[str, Callable[[], object]] = {
        "budget": lambda: c.set_budget(1001),
        "limit": lambda: c.set_limits(1, 2),
        "remove": lambda: c.remove(3),
        "restore": lambda: c.restore(4),
        "add": lambda: c.add(),
    }
    do[change]()
    second = c.allocate()
    assert second[0] < second[1]
    assert sum(second) == c.budgets[0]


# Unknown energy


def test_an_old_energy_is_held_for_five_rounds_and_then_gives_way_to_time() -> None:
    c = Controller(3, 300, w_energy=1.0, deadband=0.0)
    told(c, [1, 1, 1], [9.0, 1.0, 1.0])
    c.allocate()
    for _ in range(5):
        told(c, [1, 1, 1], [None, 1.0, 1.0])
        assert c.allocate()[0] < 20
        assert c.flags(0) == Flags(True, True, energy_held=True, energy_unknown=False, report_held=False)
    told(c, [1, 1, 1], [None, 1.0, 1.0])
    assert c.allocate() == [100] * 3
    assert c.flags(0) == Flags(True, True, energy_held=False, energy_unknown=True, report_held=False)
    told(c, [1, 1, 1], [9.0, 1.0, 1.0])
    assert c.allocate()[0] < 20
    assert not c.flags(0).energy_held


def test_a_round_without_a_report_is_no_missing_energy() -> None:
    c = told(Controller(2, 200, w_energy=1.0), [1, 1], [1, 3])
    for _ in range(20):
        c.allocate()
    assert not c.flags(0).energy_held
    assert c.allocate() == [150, 50]


def test_two_contributions_a_round_are_one_round() -> None:
    c = told(Controller(1, 200), [1], [1])
    c.allocate()
    for _ in range(8):
        told(c, [1], [None])
    assert c.flags(0).energy_held


@pytest.mark.parametrize("energy_j", [None, NAN, -5.0, 0.0, math.inf])
def test_an_invalid_energy_is_unknown_and_never_zero(energy_j: float | None) -> None:
    c = told(Controller(3, 300, w_energy=1.0), [1, 2, 2], [energy_j, 1.0, 1.0])
    assert c.energy_per_sample_j[0] is None
    assert c.flags(0).energy_unknown
    assert c.allocate() == [150, 75, 75]  # its energy term is its time term


def test_with_no_meter_anywhere_time_alone_counts() -> None:
    c = told(Controller(3, 300, w_energy=0.75), [1, 2, 2])
    assert c.allocate() == [150, 75, 75]
    assert all(c.flags(i).energy_unknown for i in range(3))


# Never reported, back, gone


def test_who_never_reported_has_the_median_cost() -> None:
    c = told(Controller(4, 1000, w_energy=0.0), [1, 2, 6])
    assert c.costs == [0.5, 1.0, 3.0, 1.0]


def test_who_comes_back_has_its_old_estimate() -> None:
    c = told(Controller(3, 600, w_energy=0.0), [1, 2, 2])
    c.allocate()
    c.remove(0)
    assert c.allocate() == [0, 300, 300]
    assert not c.flags(0).present
    c.restore(0)
    assert c.allocate() == [300, 150, 150]


def test_medians_are_over_the_present() -> None:
    c = told(Controller(3, 600, w_energy=0.0), [1, 2, 8])
    c.remove(2)
    assert c.costs[:2] == pytest.approx([1 / 1.5, 2 / 1.5])


def test_a_group_without_participants_lets_its_budget_lapse() -> None:
    c = Controller(4, budget=[100, 60], groups=[0, 0, 1, 1])
    c.remove(2)
    c.remove(3)
    assert c.allocate() == [50, 50, 0, 0]
    assert c.lapsed == [0, 60]
    c.restore(3)
    assert c.allocate() == [50, 50, 0, 60]
    assert c.lapsed == [0, 0]


def test_newcomers_join_with_the_median_cost() -> None:
    c = told(Controller(2, 600, w_energy=0.0), [1, 3])
    assert [c.add() for _ in range(5)] == [2, 3, 4, 5, 6]
    assert c.costs == [0.5, 1.5, 1, 1, 1, 1, 1]
    assert sum(c.allocate()) == 600
    assert len(c) == 7


# Groups


@given(
    seconds=st.lists(st.floats(0.1, 50), min_size=2, max_size=20),
    budgets=st.lists(st.integers(20, 9000), min_size=2, max_size=4),
    seed=st.integers(0, 99),
)
def test_nothing_crosses_between_groups(seconds: list[float], budgets: list[int], seed: int) -> None:
    rng = random.Random(seed)
    group_of = [rng.randrange(len(budgets)) for _ in seconds]
    c = told(Controller(len(seconds), budgets, w_energy=0.0, groups=group_of), seconds)
    shares = c.allocate()
    for g, budget in enumerate(budgets):
        mine = [i for i, group in enumerate(group_of) if group == g]
        alone = told(Controller(len(mine), budget, w_energy=0.0), [seconds[i] for i in mine])
        assert [shares[i] for i in mine] == alone.allocate()
        assert c.lapsed[g] == (0 if mine else budget)


def test_errors_name_the_group() -> None:
    with pytest.raises(CoreError, match="allocate, group 1: a budget of 1 samples is 1 short"):
        Controller(4, [100, 1], groups=[0, 0, 1, 1]).allocate()
    with pytest.raises(CoreError, match="group indices below their number"):
        Controller(2, [100], groups=[0, 1])
    with pytest.raises(CoreError, match="groups holds 1 values for 2"):
        Controller(2, [100], groups=[0])


# Settling


def simulate(tau: list[float], change: tuple[int, float], rounds: int) -> tuple[list[float], float]:
    """Run rounds with exact timing, one board changed after six of them; return makespans after that, and the ideal."""
    c = Controller(len(tau), 6000, w_energy=0.0)
    spans = []
    for number in range(6 + rounds):
        shares = c.allocate()
        if number == 6:
            tau[change[0]] *= change[1]
        seconds = [n * t for n, t in zip(shares, tau, strict=True)]
        spans.append(max(seconds))
        for i, (n, s) in enumerate(zip(shares, seconds, strict=True)):
            c.observe(i, seconds=s, energy_j=None, samples=n)
    return spans[6:], 6000 / sum(1 / t for t in tau)


@pytest.mark.parametrize("board", range(0, 11, 2))
@pytest.mark.parametrize("factor", [0.5, 0.8, 1.3, 2.0])
def test_settles_within_three_rounds_after_a_step_of_two(board: int, factor: float) -> None:
    tau = [1e-3 * x for x in (1, 1.6, 2.5, 2.5, 5, 5.2, 7, 12, 14, 22, 25)]
    spans, ideal = simulate(tau, (board, factor), 8)
    assert all(span <= 1.1 * ideal for span in spans[3:])


@pytest.mark.parametrize("deadband", [0.0, 0.05])
@pytest.mark.parametrize(
    ("first", "second", "estimate"),
    [
        (2.0, 1.9, 1.95),
        (0.5, 0.55, 0.525),
        (2.0, 2.4, 0.5 * 2.4 + 0.5 * 1.5),
        (1.3, 0.9, 0.5 * 0.9 + 0.5 * 1.15),
        (1.14, 1.14, 0.5 * 1.14 + 0.5 * 1.07),
        (1.29, 1.29, 0.5 * 1.29 + 0.5 * 1.145),
    ],
    ids=["slower", "faster", "too unlike", "to and fro", "near", "near at second sight"],
)
def test_two_reports_that_are_far_off_and_alike_are_believed_at_once(
    first: float, second: float, estimate: float, deadband: float
) -> None:
    c = told(Controller(1, 1000, w_energy=0.5, deadband=deadband), [1.0], [5.0])
    for factor in (first, second):
        c.observe(0, seconds=factor, energy_j=5 * factor, samples=100)
    assert c.seconds_per_sample == [pytest.approx(0.01 * estimate)]
    assert c.energy_per_sample_j == [pytest.approx(0.05 * estimate)]


def test_a_report_in_between_that_is_near_makes_two_far_ones_two_flukes() -> None:
    c = told(Controller(1, 1000), [1.0])
    for seconds, estimate in ((1.4, 1.2), (1.3, 1.25), (1.5, 1.375)):
        c.observe(0, seconds=seconds, energy_j=None, samples=100)
        assert c.seconds_per_sample == [pytest.approx(0.01 * estimate)]


@pytest.mark.parametrize("factor", [0.1, 5.0, 20.0])
def test_larger_steps_approach_without_oscillation(factor: float) -> None:
    spans, ideal = simulate([1e-3 * x for x in (1, 2, 3, 4, 5)], (1, factor), 12)
    assert all(later <= sooner * 1.001 for sooner, later in pairwise(spans))
    assert spans[-1] <= 1.1 * ideal


# Laws

PEOPLE = st.lists(st.tuples(st.floats(0.01, 100), st.none() | st.floats(0.01, 100)), min_size=1, max_size=20)


@given(people=PEOPLE, budget=st.integers(20, 10**6), w_energy=st.floats(0, 1))
def test_shares_sum_to_the_budget(people: list[tuple[float, float | None]], budget: int, w_energy: float) -> None:
    c = told(Controller(len(people), budget, w_energy=w_energy), [s for s, _ in people], [e for _, e in people])
    shares = c.allocate()
    assert sum(shares) == budget
    assert min(shares) >= 1
    assert c.shares == shares


@given(people=PEOPLE, scale=st.floats(0.01, 100))
def test_units_do_not_matter(people: list[tuple[float, float | None]], scale: float) -> None:
    seconds, joules = [s for s, _ in people], [e for _, e in people]
    c = told(Controller(len(people), 10_000), seconds, joules)
    d = told(Controller(len(people), 10_000), [s * scale for s in seconds], [e and e * scale for e in joules])
    assert c.costs == pytest.approx(d.costs, rel=1e-9)


@given(people=PEOPLE, shuffler=st.randoms(use_true_random=False))
def test_costs_follow_their_participants(people: list[tuple[float, float | None]], shuffler: random.Random) -> None:
    order = list(range(len(people)))
    shuffler.shuffle(order)
    c = told(Controller(len(people), 10_000), [s for s, _ in people], [e for _, e in people])
    d = told(Controller(len(people), 10_000), [people[i][0] for i in order], [people[i][1] for i in order])
    assert d.costs == [c.costs[i] for i in order]


@given(people=PEOPLE, rounds=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_restored_state_goes_on_bit_for_bit(people: list[tuple[float, float | None]], rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    c = Controller(len(people), 10_000)
    for _ in range(rounds):
        told(c, [s * rng.uniform(0.5, 2) for s, _ in people], [e for _, e in people])
        if rng.random() < 0.3:
            c.remove(rng.randrange(len(people)))
        c.allocate()
    d = Controller.from_state(c.state())
    assert d.state() == c.state()
    for one in (c, d):
        told(one, [s for s, _ in people])
    assert d.allocate() == c.allocate()
    assert d.state() == c.state()


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"", lambda b: b"x" + b[1:]])
def test_a_damaged_state_is_refused(damage: object) -> None:
    state = Controller(3, 100).state()
    with pytest.raises(CoreError, match="the saved state is damaged"):
        Controller.from_state(damage(state))  # type: ignore[operator]


def test_strangers_are_named() -> None:
    c = Controller(3, 100)
    for call in (c.remove, c.restore, c.flags, c.limits, c.set_limits):
        for i in (3, -1):
            with pytest.raises(CoreError, match=re.escape(f"there is no participant {i}; this controller has 0 to 2")):
                call(i)
    with pytest.raises(CoreError, match="there is no group 1"):
        c.set_budget(5, group=1)


def test_waiting_power_is_joules_over_seconds() -> None:
    c = Controller(2, 100)
    c.observe(0, 1.0, 5.0, 10, fixed_seconds=0.2, wait_seconds=2.0, wait_energy_j=3.0)
    c.observe(0, 1.0, 5.0, 10, wait_seconds=2.0, wait_energy_j=5.0)
    c.observe(0, 1.0, 5.0, 10, wait_seconds=9.0)  # joules unknown: these seconds do not count
    assert c.wait_power_w == [2.0, None]
