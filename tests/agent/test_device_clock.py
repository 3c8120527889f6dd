# SPDX-License-Identifier: Apache-2.0
"""The fit of a device's clock against a truth: its errors hold, and late points move nothing."""

from __future__ import annotations

import random

import pytest

from paceline_agent.meters.device_clock import FLOOR_US, LIMIT, SETTLED_US, DeviceClock

START_US = 5_000_000_000
LEAST_US = 300  # least delay, which no end of the line can know


def run(clock_ppm: float, seed: int, seconds: float, late: float = 0.0) -> tuple[DeviceClock, list[tuple[int, int]]]:
    """Feed 50 readings a second, exponential delays of 2 ms above the least; return (device, true host) pairs too."""
    noise = random.Random(seed)
    clock, pairs = None, []
    for number in range(round(seconds * 50)):
        host_us = START_US + number * 20_000
        device_us = 77 + round(number * 20_000 * (1 + clock_ppm / 1e6))
        delay_us = LEAST_US + noise.expovariate(1 / 2_000) + (150_000 if noise.random() < late else 0)
        arrival_us = host_us + round(delay_us)
        if clock is None:
            clock = DeviceClock(device_us, arrival_us)
        else:
            clock.add(device_us, arrival_us)
        pairs.append((device_us, host_us))
    assert clock is not None
    return clock, pairs


@pytest.mark.parametrize("ppm", [-1000, -100, 0, 30, 100, 20_000])
@pytest.mark.parametrize("seed", range(8))
def test_ratio_and_offset_are_as_good_as_they_say(ppm: float, seed: int) -> None:
    for seconds in (4, 10, 40):
        clock, pairs = run(ppm, seed, seconds)
        assert clock.settled
        assert abs(clock.skew - (1 / (1 + ppm / 1e6) - 1)) <= clock.skew_error
        for device_us, host_us in pairs[-100:]:
            assert -clock.spread_us <= clock.host_us(device_us) - host_us <= LEAST_US + clock.spread_us
    assert clock.skew_error < 100e-6, "after forty seconds it says something"


@pytest.mark.parametrize("seed", range(5))
def test_late_points_move_nothing(seed: int) -> None:
    calm, _ = run(100, seed, 20)
    rough, _ = run(100, seed, 20, late=0.3)
    assert abs(rough.skew - calm.skew) < 60e-6
    assert rough.spread_us < 3_000, "150 ms late was every third"


def test_a_second_in_which_nobody_listened_moves_nothing() -> None:
    clock, pairs = run(100, 1, 20)
    before = clock.host_us(pairs[-1][0])
    for number in range(50):  # all of them come at once, at the end of that second
        clock.add(pairs[-1][0] + (number + 1) * 20_000, pairs[-1][1] + 1_100_000)
    assert abs(clock.host_us(pairs[-1][0]) - before) < clock.spread_us


def test_what_arrives_before_it_can_have_been_sent_moves_the_line_at_once() -> None:
    clock, pairs = run(0, 1, 10.1)  # in the middle of a slot, where nothing is fitted
    device_us = pairs[-1][0] + 20_000
    clock.add(device_us, pairs[-1][1] + 20_000 - 5_000)
    assert clock.host_us(device_us) <= pairs[-1][1] + 20_000 - 5_000


def test_it_settles_after_two_seconds_and_knows_little_before() -> None:
    clock = DeviceClock(0, START_US)
    for number in range(1, 200):
        clock.add(number * 20_000, START_US + number * 20_000)
        assert not (clock.settled and number * 20_000 < SETTLED_US)
        assert clock.settled or clock.skew_error >= 0.0005
    assert clock.settled
    assert clock.spread_us == FLOOR_US


def test_a_clock_of_another_unit_is_called_absurd() -> None:
    clock = DeviceClock(0, START_US)
    for number in range(1, 400):
        clock.add(number * 20_000, START_US + round(number * 20_000 * (1 + 2 * LIMIT)))
    assert clock.is_absurd
