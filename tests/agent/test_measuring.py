# SPDX-License-Identifier: Apache-2.0
"""Windows over readings: they telescope, say what is unknown; their uncertainties hold the truth and are not wide."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_agent.gaps import COVERED_LEAST
from paceline_agent.measuring import KNOTS, Measurement, Measuring
from paceline_agent.meters import Count, Reading

PERIOD_US = 100_000


def point(t_us: int, power_uw: int, error_uw: int = 0, *flags: str) -> Reading:
    return Reading(t_us, t_us, power_uw, error_uw, flags)


def measured(readings: list[Reading | Count], begin_us: int, end_us: int, source: str = "hwmon/x") -> Measurement:
    measuring = Measuring(source, PERIOD_US)
    window = measuring.open(begin_us)
    measuring.end(window, end_us)
    for reading in readings:
        measuring.add(reading)
    measuring.give_up(window)
    return measuring.result(window)


# What a window took --------------------------------------------------------------------------------------------------


@given(
    steps=st.lists(st.tuples(st.integers(1, 500_000), st.integers(-(10**7), 10**8)), min_size=3, max_size=40),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_windows_that_meet_add_up_exactly(steps: list[tuple[int, int]], cuts: tuple[float, float, float]) -> None:
    readings: list[Reading | Count] = []
    t_us = 0
    for step_us, power_uw in steps:
        t_us += step_us
        readings.append(point(t_us, power_uw))
    first_us = steps[0][0]
    a_us, b_us, c_us = sorted(first_us + round(cut * (t_us - first_us)) for cut in cuts)
    windows = [measured(readings, *edges) for edges in ((a_us, c_us), (a_us, b_us), (b_us, c_us))]
    for window in windows:
        assert (window.energy_uj is None) == (window.coverage < COVERED_LEAST), "next to all gap: a guess"
    whole, left, right = (window.energy_uj for window in windows)
    if whole is not None and left is not None and right is not None:
        assert whole == left + right


def test_what_has_not_begun_to_be_counted_is_unknown_and_not_0() -> None:
    measuring = Measuring("hwmon/x", PERIOD_US)
    for readings in ([], [point(0, 1_000_000)]):
        for reading in readings:
            measuring.add(reading)
        result = measuring.result(measuring.open(0))
        assert (result.energy_j, result.power_w, result.bound_j, result.sampling_j) == (None, None, None, None)
        assert (result.coverage, result.flags) == (0.0, ("unknown",))
    ended = measured([], 5, 5)
    assert (ended.energy_j, ended.coverage) == (None, 0.0)


def test_a_window_may_be_longer_than_what_the_integrator_remembers() -> None:
    readings: list[Reading | Count] = [point(step * PERIOD_US, 1_000_000) for step in range(10 * KNOTS)]
    result = measured(readings, 0, (10 * KNOTS - 1) * PERIOD_US)
    assert result.energy_uj == (10 * KNOTS - 1) * PERIOD_US
    assert (result.coverage, result.readings) == (1.0, 10 * KNOTS - 1)


def test_gaps_misses_and_flags_are_told() -> None:
    measuring = Measuring("hwmon/x", PERIOD_US)
    measuring.miss()  # before the window
    window = measuring.open(0)
    for reading in (
        point(0, 2_000_000), point(100_000, 2_000_000, 1000), point(900_000, 2_000_000, 1000, "negative"),
        point(1_000_000, 2_000_000),
    ):  # fmt: skip
        measuring.add(reading)
    measuring.miss()
    measuring.end(window, 1_000_000)
    result = measuring.result(window)
    assert result.energy_uj == 2_000_000
    assert (result.readings, result.missed, result.longest_gap_us) == (3, 1, 800_000)
    assert result.coverage == pytest.approx(0.2)
    assert set(result.flags) == {"gap", "negative"}


def test_what_lies_before_the_first_reading_is_unknown_and_not_0() -> None:
    result = measured([point(500_000, 1_000_000), point(600_000, 1_000_000)], 0, 600_000)
    assert (result.energy_uj, result.bound_uj, result.sampling_uj) == (None, None, None)
    assert "unknown" in result.flags


def test_what_lies_after_the_last_reading_is_unknown_and_not_0() -> None:
    result = measured([point(0, 1_000_000), point(100_000, 1_000_000)], 0, 200_000)
    assert (result.energy_j, result.power_w, result.seconds) == (None, None, 0.2)
    assert result.longest_gap_us == 100_000


def test_a_window_cannot_end_before_what_it_has_counted() -> None:
    measuring = Measuring("hwmon/x", PERIOD_US)
    window = measuring.open(0)
    measuring.add(point(0, 1))
    measuring.add(point(100_000, 1))
    with pytest.raises(ValueError, match="counted up to 100000 us already, it cannot end at 99999"):
        measuring.end(window, 99_999)


@pytest.mark.parametrize(
    ("source", "readings", "provenance"),
    [
        ("hwmon/x", [point(0, 1), point(100, 1)], "measured"),
        ("rapl/package-0", [Count(0, 0), Count(100, 1)], "counter"),
        ("modelled", [Reading(0, 100, 1)], "modelled"),
        ("replay/modelled", [Reading(0, 100, 1)], "modelled"),
    ],
    ids=str,
)
def test_joules_say_where_they_come_from(source: str, readings: list[Reading | Count], provenance: str) -> None:
    assert measured(readings, 0, 100, source).provenance == provenance


def test_a_counter_is_off_by_its_step_at_either_edge_and_by_no_sampling() -> None:
    result = measured([Count(0, 100, 61), Count(100_000, 900, 70), Count(200_000, 1100, 65)], 0, 200_000)
    assert (result.energy_uj, result.bound_uj, result.sampling_uj) == (1000, 2 * 70, 0)


def test_an_edge_between_two_counts_may_be_off_by_what_lies_between_them() -> None:
    result = measured([Count(0, 0), Count(100_000, 1_000_000), Count(200_000, 2_000_000)], 0, 150_000)
    assert result.energy_uj == 1_500_000
    assert result.bound_uj == 500_000


def test_intervals_that_follow_one_another_leave_no_sampling_uncertainty() -> None:
    powers = (3_000_000, 9_000_000, 1_000_000, 7_000_000)
    readings: list[Reading | Count] = [
        Reading(step * 68_600, (step + 1) * 68_600, power) for step, power in enumerate(powers)
    ]
    result = measured(readings, 0, 4 * 68_600)
    assert (result.energy_uj, result.sampling_uj) == (20 * 68_600, 0)


# The sampling uncertainty --------------------------------------------------------------------------------------------

Load = Callable[[float], float]  # watts at a second


def bursts(rng: random.Random) -> Load:
    """Return square bursts of minibatches, 4 to 8 W, with the period of the readings: the worst there is."""
    phase_s = rng.random()
    return lambda t_s: 8.0 if (t_s + phase_s) % 0.1 < 0.05 else 4.0


def ripple(rng: random.Random) -> Load:
    """Return a fast sine with harmonics."""
    phase = rng.random() * math.tau
    return lambda t_s: 6 + math.sin(math.tau * 21.3 * t_s + phase) + 0.5 * math.sin(math.tau * 63.9 * t_s)


def steps(rng: random.Random) -> Load:
    """Return four steps at random instants."""
    edges_s = sorted(rng.uniform(0, 20) for _ in range(4))
    return lambda t_s: 3.0 + 6.0 * (sum(t_s > edge_s for edge_s in edges_s) % 2)


def trial(load: Load, rng: random.Random) -> tuple[float, float]:
    """Read for 20 s at a random instant of each period; return error and stated half-width in joules."""
    times_us = [round((slot + rng.random()) * PERIOD_US) for slot in range(200)]
    readings: list[Reading | Count] = [point(t_us, round(load(t_us / 1e6) * 1e6)) for t_us in times_us]
    result = measured(readings, times_us[0], times_us[-1])
    fine_s = 0.001
    count = round((times_us[-1] - times_us[0]) / 1e6 / fine_s)
    truth_j = sum(load(times_us[0] / 1e6 + (place + 0.5) * fine_s) for place in range(count)) * fine_s
    assert result.energy_j is not None
    assert result.sampling_j is not None
    return result.energy_j - truth_j, result.sampling_j


@pytest.mark.parametrize("make", [bursts, ripple, steps])
def test_the_sampling_uncertainty_holds_the_truth_and_is_not_wide(make: Callable[[random.Random], Load]) -> None:
    rng = random.Random(7)
    trials = [trial(make(rng), rng) for _ in range(100)]
    held = sum(abs(error_j) <= stated_j for error_j, stated_j in trials)
    assert held >= 95 - 4, "95 of 100; below 91 chance alone goes in 3 of 100 cases"
    errors_j = sorted(abs(error_j) for error_j, _ in trials)
    widths_j = sorted(stated_j for _, stated_j in trials)
    assert widths_j[50] <= 3 * errors_j[94]


def test_a_smooth_load_has_next_to_no_sampling_uncertainty() -> None:
    rng = random.Random(7)
    error_j, stated_j = trial(lambda t_s: 6 + 2 * math.sin(t_s), rng)
    assert abs(error_j) <= stated_j <= 0.05


def test_few_readings_tell_nothing_of_their_spread() -> None:
    result = measured([point(0, 1_000_000), point(100_000, 1_000_000)], 0, 100_000)
    assert (result.energy_uj, result.sampling_uj) == (100_000, None)
