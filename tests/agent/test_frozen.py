# SPDX-License-Identifier: Apache-2.0
"""A value that never moves under a load that does is frozen; a steady load or a rail without current is not."""

from __future__ import annotations

import pytest

from paceline_agent.frozen import READINGS, STEPS, STILL_US, TURNS, Frozen, watcher
from paceline_agent.meters import Count, Reading

PERIOD_US = 68_632
PER_TURN = 10


def told(
    values: list[int], steps: int = STEPS, turns: int = 2 * TURNS + 2, per_turn: int = PER_TURN, is_point: bool = False
) -> Frozen:
    """Return what comes of these values, the last one for ever, while the board computes and rests by turns."""
    frozen, number = Frozen(), 0
    for turn in range(turns):
        frozen.edge(number * PERIOD_US, turn % 2 == 0)
        for _ in range(per_turn):
            power_uw = values[min(number, len(values) - 1)]
            end_us = (number + 1) * PERIOD_US
            frozen.seen(Reading(end_us if is_point else number * PERIOD_US, end_us, power_uw), steps)
            number += 1
    frozen.edge(number * PERIOD_US, turns % 2 == 0)
    return frozen


@pytest.mark.parametrize("is_point", [False, True])
def test_a_value_that_outlives_computing_and_resting_is_frozen(is_point: bool) -> None:
    frozen = told([5_000_000], is_point=is_point)
    assert frozen.is_frozen
    assert "has not moved by a bit for" in str(frozen)
    assert f"computed and rested {2 * TURNS + 1} times" in str(frozen)
    assert frozen.seen(Reading(10**9, 10**9 + 1, 5_000_000), STEPS), "each further reading bears it"
    assert not frozen.seen(Reading(10**9 + 1, 10**9 + 2, 5_000_001), STEPS), "until one moves"


@pytest.mark.parametrize(
    ("values", "steps", "turns", "per_turn"),
    [
        ([5_000_000 + number % 2 for number in range(1000)], STEPS, 30, PER_TURN),
        ([5_000_000], STEPS, 1, 10_000),
        ([5_000_000], STEPS - 1, 30, PER_TURN),
        ([0], 0, 30, PER_TURN),
        ([5_000_000], STEPS, 100, 2),
        ([5_000_000] * (READINGS + 9) + [4_000_000], STEPS, 2 * TURNS, PER_TURN),
    ],
    ids=[
        "the last bit moves", "the load was never seen to change", "too coarse to show a change", "no current",
        "turns too short to see", "it moved before enough had passed",
    ],
)  # fmt: skip
def test_what_may_be_steady_is_not_called_frozen(values: list[int], steps: int, turns: int, per_turn: int) -> None:
    assert not told(values, steps, turns, per_turn).is_frozen


def test_a_processors_counter_must_move_whatever_is_done() -> None:
    frozen = Frozen()
    assert not any(frozen.seen(Count(t_us, 7), 0) for t_us in range(0, STILL_US, 100_000))
    assert frozen.seen(Count(STILL_US, 7), 0)
    assert not frozen.seen(Count(STILL_US + 1, 8), 0)


@pytest.mark.parametrize(
    ("kind", "label", "still_us"),
    [
        ("rapl", "rapl/package-0", 200_000),
        ("replay", "replay/rapl/package-0", 200_000),
        ("hwmon", "hwmon/amd_energy/socket", 2_000_000),
        ("replay", "replay/power_supply/BAT0", None),
        ("power_supply", "power_supply/BAT0", None),
        ("modelled", "modelled", None),
    ],
)
def test_how_long_a_counter_may_stand_still_depends_on_who_moves_it(
    kind: str, label: str, still_us: int | None
) -> None:
    frozen = watcher(kind, label)
    if still_us is None:
        assert frozen is None
        return
    assert frozen is not None
    assert frozen.flagged(Count(0, 7), 0).flags == ()
    assert frozen.flagged(Count(still_us - 1, 7), 0).flags == ()
    assert frozen.flagged(Count(still_us, 7), 0).flags == ("frozen",)
    assert watcher("hwmon", "hwmon/ina228/x", 4_000_000) is not None


def test_a_chip_that_moves_its_counter_slowly_is_given_its_time() -> None:
    frozen = watcher("hwmon", "hwmon/ina228/x", 4_000_000)
    assert frozen is not None
    assert not any(frozen.seen(Count(t_us, 7), 0) for t_us in range(0, 40_000_000, 1_000_000))
    assert frozen.seen(Count(40_000_000, 7), 0)


@pytest.mark.parametrize(
    ("apart", "still", "is_frozen"),
    [(1, 19, False), (1, 20 + READINGS, True), (36, READINGS * 36 - 1, False), (36, READINGS * 36 + 36, True)],
    ids=["fine, 1.9 s", "fine, 7 s", "a step each 3.6 s, 180 s", "a step each 3.6 s, more"],
)
def test_a_devices_count_that_stops_is_frozen_once_it_stands_still_for_much_longer_than_ever(
    apart: int, still: int, is_frozen: bool
) -> None:
    frozen, t_us = Frozen(), 0

    def take(power_uw: int) -> bool:
        nonlocal t_us
        t_us += 100_000
        return frozen.seen(Reading(t_us - 100_000, t_us, power_uw), 0, counts=True)

    for number in range(apart * 10):
        assert not take(36_000_000 if number % apart == apart - 1 else 0)
    stopped_us = t_us
    taken = [take(0) for _ in range(still)]
    assert taken[-1] is is_frozen
    if is_frozen:
        assert frozen.since_us == stopped_us, "all of it is unknown"
    assert not take(1), "until it moves"


def test_a_device_that_never_counted_anything_may_have_no_load() -> None:
    frozen = Frozen()
    assert not any(frozen.seen(Reading(t, t + 1, 0), 0, counts=True) for t in range(0, 100_000_000, 100_000))
