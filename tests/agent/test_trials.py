# SPDX-License-Identifier: Apache-2.0
"""The claims of DECISIONS 32 on simulated sensors: a smaller set of what `paceline bench energy` prints."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from paceline_agent.known_loads import HIGH_W, LOADS, LOW_W, Pieces, Sine
from paceline_agent.trials import CONDITIONS, IN_STEP, SENSORS, Trial, broken, summary, trial

VARYING = [kind for kind in LOADS if kind != "steady"]
TRIALS = 15  # of each of four loads
POINTS = ["ina3221", "hwmon"]
MISSING = ["10 % missed", "missed 2 to 8 in a row"]


@cache
def trials(sensor: str, condition: str) -> list[Trial]:
    dice = random.Random(f"{sensor} {condition}")
    return [trial(SENSORS[sensor], LOADS[kind], CONDITIONS[condition], dice) for kind in VARYING for _ in range(TRIALS)]


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("sensor", [name for name in SENSORS if name != IN_STEP])
def test_what_is_stated_holds_the_truth_and_is_not_wide(sensor: str, condition: str) -> None:
    row = summary(trials(sensor, condition))
    assert broken(row) == [], row
    assert row["both_held_percent"] >= 95, row


PLANTED = [
    *((sensor, condition, 0.3, "covers") for sensor in POINTS for condition in CONDITIONS),
    *((sensor, condition, 8.0, "not wide") for sensor in POINTS for condition in CONDITIONS),
    *(("ina219", condition, 0.2, "covers") for condition in MISSING),
    *(("ina219", condition, 8.0, "not wide") for condition in MISSING),
]


@pytest.mark.parametrize(("sensor", "condition", "times", "claim"), PLANTED)
def test_a_wrong_sampling_uncertainty_is_found(sensor: str, condition: str, times: float, claim: str) -> None:
    planted = [replace(each, sampling_j=times * (each.sampling_j or 0.0)) for each in trials(sensor, condition)]
    assert broken(summary(planted)) == [claim]


@pytest.mark.parametrize("sensor", ["ina219", "ina3221", "hwmon", "rapl"])
def test_a_bound_below_what_the_instrument_does_is_found(sensor: str) -> None:
    planted = [replace(each, bound_j=0.5 * abs(each.instrument_j)) for each in trials(sensor, "as it is")]
    assert "bound holds" in broken(summary(planted))


def test_readings_in_step_with_bursts_cannot_tell_how_far_they_are_off() -> None:
    """So the trials can fail, and the agent does well to read at random instants."""
    dice = random.Random(7)
    in_step = [trial(SENSORS[IN_STEP], bursts_of_a_period, CONDITIONS["as it is"], dice) for _ in range(30)]
    assert broken(summary(in_step)) == ["covers"]


def bursts_of_a_period(dice: random.Random, seconds: float) -> Pieces:
    return Pieces([(0.05, HIGH_W, HIGH_W), (0.05, LOW_W, LOW_W)], dice.uniform(0, 0.1))


# The loads -----------------------------------------------------------------------------------------------------------


def test_pieces_draw_what_walking_through_them_adds_up_to() -> None:
    pieces = [(0.25, 1.0, 3.0), (0.5, 4.0, 4.0), (0.125, 0.0, 8.0)]
    load = Pieces(pieces, phase_s=0.5)
    step_s = 1 / 4096  # pieces and phase are whole multiples of it, so the midpoint rule is exact
    drawn_j, at_s = 0.0, 0.5
    for k in range(4096 * 3):
        assert load.energy_j(k * step_s) == pytest.approx(drawn_j, abs=1e-9)
        left_s = (at_s + step_s / 2) % 0.875
        for seconds, begin_w, end_w in pieces:
            if left_s < seconds:
                drawn_j += (begin_w + (end_w - begin_w) * left_s / seconds) * step_s
                break
            left_s -= seconds
        at_s += step_s


def test_a_sine_draws_its_mean_over_whole_periods_and_its_swing_within() -> None:
    load = Sine(5.0, 2.0, rate=3.141592653589793, phase=0.0)
    assert load.energy_j(2.0) == pytest.approx(10.0)
    assert load.energy_j(1.0) == pytest.approx(5.0 + 2.0 * 2 / 3.141592653589793)


@pytest.mark.parametrize("kind", LOADS)
def test_each_load_stays_within_what_the_chips_see(kind: str) -> None:
    dice = random.Random(7)
    for _ in range(20):
        load = LOADS[kind](dice, 10.0)
        for k in range(1000):
            watts = (load.energy_j((k + 1) * 0.01) - load.energy_j(k * 0.01)) / 0.01
            assert LOW_W - 1e-6 <= watts <= HIGH_W + 1e-6
