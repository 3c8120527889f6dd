# SPDX-License-Identifier: Apache-2.0
"""Policies as planners: shares sum to the budget whoever is there, and whatever boards report makes nothing raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import SettingsError
from paceline.policies import POLICIES, Policy, policy
from paceline.wire import MAX_INT
from paceline_host.planner import Planner, make

FRONTIER = ["frontier:energy", "frontier:edp", "frontier:deadline=1.1x", "frontier:deadline=2s", "frontier:budget=5J"]
NAMES = [*(name for name in POLICIES if name != "oort"), "ema-batch:every=10", "w_energy:0.3", *FRONTIER]


def named(name: str, boards: int = 4, budget: int = 120, minimum: int = 2) -> Planner:
    """Return the planner of a policy's name."""
    return make(policy(name), boards, budget, minimum)


def run(
    planner: Planner, pace_s: Callable[[int], float], joules: Callable[[int], float | None], rounds: int
) -> list[list[int]]:
    """Return the shares of some rounds in which boards keep their pace and joules per sample."""
    plans = []
    for _ in range(rounds):
        shares = planner.plan(range(4))
        plans.append(shares)
        for board, n in enumerate(shares):
            energy_j = joules(board)
            planner.observe(board, n * pace_s(board), None if energy_j is None else n * energy_j, n)
    return plans


REPORTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(1, MAX_INT).map(lambda us: us * 1e-6),
        st.none() | st.integers(0, MAX_INT).map(lambda uj: uj * 1e-6),
        st.integers(1, 120),
    ),
    max_size=8,
)
PRESENT = st.sets(st.integers(0, 3), min_size=1).map(sorted)


@pytest.mark.parametrize("name", NAMES)
@given(rounds=st.lists(st.tuples(PRESENT, REPORTS), min_size=1, max_size=5))
def test_shares_sum_to_the_budget_and_keep_the_minimum_whatever_was_reported(
    name: str, rounds: list[tuple[list[int], list[tuple[int, float, float | None, int]]]]
) -> None:
    """Reports hold all that the wire lets through: a board's figures must not be able to end a run."""
    planner = named(name)
    for present, reports in rounds:
        shares = planner.plan(present)
        assert len(shares) == len(present)
        assert sum(shares) == 120
        assert min(shares) >= 2
        for board, seconds, energy_j, samples in reports:
            if board in present:
                planner.observe(board, seconds, energy_j, samples)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_round_is_equal(name: str) -> None:
    assert named(name).plan(range(4)) == [30, 30, 30, 30]
    assert named(name).plan([0, 2, 3]) == [40, 40, 40]


def test_equal_stays_equal_and_static_keeps_its_first_measurement() -> None:
    assert run(named("equal"), lambda b: b + 1.0, lambda b: 1.0, 3) == [[30] * 4] * 3
    planner = named("static")
    first, second = run(planner, lambda b: [1.0, 1.0, 2.0, 2.0][b], lambda b: 1.0, 2)
    assert (first, second) == ([30] * 4, [40, 40, 20, 20])
    for board in range(4):
        planner.observe(board, 1000.0, 1.0, 1)
    assert planner.plan(range(4)) == [40, 40, 20, 20]


def test_ema_batch_follows_the_throughput_of_the_last_steps_and_takes_a_rounds_account_only_for_lack_of_them() -> None:
    planner = named("ema-batch:every=10")
    assert planner.every == 10
    planner.plan(range(4))
    for board in range(4):
        planner.observe_steps(board, 10.0, 10)
    planner.observe_steps(0, 20.0, 60)  # 3 a second after 1: smoothed, 2
    for board in range(4):
        planner.observe(board, 1000.0, 1.0, 1)
    assert planner.seconds_per_sample(0) == 0.5
    assert planner.plan(range(4)) == [48, 24, 24, 24]
    planner.observe(1, 2.0, 1.0, 6)  # of its steps of this round nothing was told
    assert planner.plan(range(4)) == [40, 40, 20, 20]


def test_static_gives_a_board_it_never_measured_the_typical_pace() -> None:
    planner = named("static", budget=140)
    planner.plan([0, 1, 2])
    for board, seconds in enumerate((40.0, 40.0, 80.0)):
        planner.observe(board, seconds, None, 40)
    assert planner.plan(range(4)) == [40, 40, 20, 40]


def test_time_divides_by_pace_and_energy_by_joules() -> None:
    def pace(board: int) -> float:
        return [1.0, 1.0, 2.0, 2.0][board]

    def joules(board: int) -> float:
        return [2.0, 2.0, 1.0, 1.0][board]

    assert run(named("time"), pace, joules, 2)[1] == [40, 40, 20, 20]
    assert run(named("energy"), pace, joules, 2)[1] == [20, 20, 40, 40]
    assert run(named("balanced"), pace, joules, 2)[1] == [30, 30, 30, 30]


def test_without_joules_a_policy_that_weighs_them_goes_by_time() -> None:
    shares = run(named("energy"), lambda b: [1.0, 1.0, 2.0, 2.0][b], lambda b: None, 2)
    assert shares[1] == [40, 40, 20, 20]


@pytest.mark.parametrize("name", NAMES)
def test_the_pace_is_unknown_before_the_first_report(name: str) -> None:
    planner = named(name)
    assert planner.seconds_per_sample(1) is None
    planner.plan(range(4))
    planner.observe(1, 60.0, 1.0, 30)
    assert planner.seconds_per_sample(1) == 2.0
    assert planner.seconds_per_sample(0) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_board_that_comes_back_has_its_old_estimate(name: str) -> None:
    planner = named(name)
    run(planner, lambda b: [1.0, 1.0, 2.0, 2.0][b], lambda b: 1.0, 1)
    planner.plan([0, 1, 2])
    planner.plan(range(4))
    assert planner.seconds_per_sample(3) == 2.0


def test_a_budget_below_the_boards_minima_is_refused_with_the_missing_samples() -> None:
    with pytest.raises(SettingsError, match=r"\[run\] budget = 7 is below 4 boards x 2 samples; raise it to 8 or more"):
        named("equal", budget=7)
    assert sum(named("time", budget=8).plan(range(4))) == 8


def test_policies_of_all_kinds_have_a_planner() -> None:
    for entry in (*POLICIES.values(), Policy("w_energy:0.3", "weighted", 0.3)):
        shares = make(entry, 4, 120, 1).plan(range(4))
        assert sorted(shares) == ([0, 40, 40, 40] if entry.kind == "oort" else [30] * 4)


SILOS = [((0, 3), 90), ((1, 2), 40)]


@pytest.mark.parametrize("name", [*NAMES, "frontier:time"])
@given(
    paces=st.lists(st.floats(0.01, 10.0), min_size=4, max_size=4),
    gone=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=4, max_size=4),
)
def test_each_silos_budget_stays_in_it_whatever_was_reported_and_whoever_is_gone(
    name: str, paces: list[float], gone: list[set[int]]
) -> None:
    planner = make(policy(name), 4, 130, 2, SILOS)
    for away in gone:
        present = [board for members, _ in SILOS for board in members if board not in away]
        shares = dict(zip(present, planner.plan(present), strict=True))
        for members, budget in SILOS:
            here = [shares[board] for board in members if board in shares]
            assert sum(here) == (budget if here else 0), "a silo without boards lapses, and nothing is moved"
            assert all(share >= 2 for share in here)
        for board, share in shares.items():
            planner.observe(board, paces[board] * share, paces[board] * share, share)


def test_a_silos_budget_below_its_boards_minima_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"budget = 40 is below 2 boards x 21 samples"):
        make(policy("equal"), 4, 130, 21, SILOS)
