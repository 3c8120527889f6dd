# SPDX-License-Identifier: Apache-2.0
"""Joules of a time in which nobody looked: unknown where it is next to all, and else bounded by what was seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import Energy
from paceline_agent.gaps import COVERED_LEAST, Peak, is_seen
from paceline_agent.ledger import FLAGS, Ledger
from paceline_agent.measuring import Measurement, Measuring
from paceline_agent.meters import Count, Reading

PERIOD_US = 100_000
S = 1_000_000


def measured(readings: Sequence[Reading | Count], begin_us: int, end_us: int, source: str = "hwmon/x") -> Measurement:
    measuring = Measuring(source, PERIOD_US)
    window = measuring.open(begin_us)
    measuring.end(window, end_us)
    for reading in readings:
        measuring.add(reading)
    measuring.give_up(window)
    return measuring.result(window)


def counts(*steps_uj: int, period_us: int = PERIOD_US) -> list[Count]:
    """Return counts that go on by these steps; a step below 0 stands for one that was refused."""
    out, now_uj = [Count(0, 10**9)], 10**9
    for number, step_uj in enumerate(steps_uj, 1):
        now_uj += step_uj
        out.append(Count(number * period_us, now_uj))
    return out


@pytest.mark.parametrize(
    "readings",
    [
        counts(*[-1] * 30),
        counts(*[10**10 + 1] * 30),
        counts(*[2_000_000] * 10, *[-1] * 390),
        [*(Reading(t, t, 5_000_000) for t in range(0, S, PERIOD_US)), Reading(3600 * S, 3600 * S, 5_000_000)],
        [*(Reading(t, t + 1, 5_000_000) for t in range(0, S, PERIOD_US)), Reading(3600 * S, 3600 * S + 1, 5_000_000)],
    ],
    ids=["a counter that falls", "faster than 100 kW", "1 s, then 39 s of resets", "an hour", "an hour of intervals"],
)
def test_a_window_that_next_to_nobody_saw_is_unknown(readings: list[Reading | Count]) -> None:
    last = readings[-1]
    result = measured(readings, 0, last.t_us if isinstance(last, Count) else last.t1_us)
    assert (result.energy_uj, result.bound_uj, result.power_w) == (None, None, None)
    assert "unknown" in result.flags
    assert result.coverage < COVERED_LEAST


def test_the_bound_holds_whatever_power_up_to_the_highest_seen_ran_in_a_gap() -> None:
    readings = [Reading(t, t, 5_000_000) for t in (*range(0, S, PERIOD_US), *range(9 * S, 10 * S + 1, PERIOD_US))]
    result = measured(readings, 0, 10 * S)
    gap_s = 8.1  # from 0.9 s on
    assert result.energy_uj is not None
    assert result.bound_uj is not None
    for power_w in (0.0, 2.5, 5.0):
        true_uj = (5.0 * (10 - gap_s) + power_w * gap_s) * 1e6
        assert abs(result.energy_uj - true_uj) <= result.bound_uj


@given(
    watts=st.lists(st.integers(1, 100), min_size=12, max_size=30),
    lost=st.sets(st.integers(1, 28), max_size=14),
    is_counter=st.booleans(),
)
def test_the_bound_holds_over_lost_readings_and_lost_steps(watts: list[int], lost: set[int], is_counter: bool) -> None:
    """Each second has a power of its own; where a second is lost, its power is at most the highest one seen before."""
    seen, truth_uj = 0, 0
    readings: list[Reading | Count] = [Count(0, 10**9)]
    count_uj = 10**9
    for number, power_w in enumerate(watts):
        is_lost = number in lost
        power_w = min(power_w, seen) if is_lost else power_w
        seen = max(seen, power_w)
        truth_uj += power_w * S
        end_us = (number + 1) * S
        if is_counter:
            count_uj += -1 if is_lost else power_w * S
            readings.append(Count(end_us, count_uj))
        elif not is_lost:
            readings.append(Reading(number * S, end_us, power_w * S))
    if not is_counter:
        readings = [reading for reading in readings if isinstance(reading, Reading)]
        readings.append(Reading(len(watts) * S, (len(watts) + 1) * S, S))
    result = measured(readings, 0, len(watts) * S, "rapl/package-0" if is_counter else "hwmon/x")
    if result.energy_uj is not None and result.bound_uj is not None:
        assert abs(result.energy_uj - truth_uj) <= result.bound_uj + 1


def test_before_any_power_was_seen_a_gap_is_unknown_however_much_follows() -> None:
    result = measured(counts(-1, *[2_000_000] * 99), 0, 10 * S)
    assert (result.energy_uj, result.coverage) == (None, 0.99)
    later = measured(counts(-1, *[2_000_000] * 99), PERIOD_US, 10 * S)
    assert (later.energy_uj, later.coverage) == (99 * 2_000_000, 1.0)


def test_a_window_that_goes_on_in_a_gap_is_unknown_and_less_and_less_of_it_is_covered() -> None:
    measuring = Measuring("hwmon/x", PERIOD_US)
    window = measuring.open(0)
    for t_us in range(0, S + 1, PERIOD_US):
        measuring.add(Reading(t_us, t_us, 5_000_000))
    assert measuring.result(window, S + 3 * PERIOD_US).energy_uj == 5_000_000
    shown = [measuring.result(window, t_us) for t_us in (2 * S, 4 * S, 10 * S)]
    assert [result.energy_uj for result in shown] == [None] * 3
    assert [result.coverage for result in shown] == [0.5, 0.25, 0.1]
    assert [result.longest_gap_us for result in shown] == [S, 3 * S, 9 * S]
    measuring.add(Reading(2 * S, 2 * S, 5_000_000))
    assert measuring.result(window, 2 * S).energy_uj == 10_000_000, "a reading ends the gap, and it is bridged"


def test_a_counter_that_stands_still_is_unknown_in_the_window_and_the_one_it_ends_in() -> None:
    measuring = Measuring("rapl/package-0", PERIOD_US)
    one, other = measuring.open(0), measuring.open(0)
    measuring.add(Count(0, 7))
    measuring.end(one, 150_000)
    for number in (1, 2):
        measuring.add(Count(number * PERIOD_US, 7, flags=("frozen",)))
    measuring.end(other, 2 * PERIOD_US)
    for window in (one, other):
        result = measuring.result(window)
        assert (result.energy_uj, result.flags) == (None, ("frozen", "unknown"))


# In the board's ledger -----------------------------------------------------------------------------------------------


def settled(covered_us: int, flags: tuple[str, ...] = (), energy_uj: int | None = 7) -> Ledger:
    ledger = Ledger(0)
    ledger.mark(0, "compute", 1)
    ledger.mark(100, "wait")
    ledger.ask(200, "key")
    ledger.settle(200, lambda t0, t1: Energy(energy_uj, t0, t1, covered_us, 0, 0, flags))
    return ledger


def test_a_slice_and_a_split_that_next_to_nobody_saw_are_unknown_and_all_parts_agree() -> None:
    ledger = settled(4)
    assert ledger.computed(1) is not None
    tally, split = ledger.computed(1), ledger.split()
    assert tally is not None
    assert (tally.energy_uj, tally.flags & FLAGS["unknown"]) == (None, FLAGS["unknown"])
    assert (split.total.energy_uj, split.total.flags & FLAGS["unknown"]) == (None, FLAGS["unknown"])
    assert split.parts_uj == {"compute": None, "wait": None, "transfer": 0, "wasted": 0, "other": 0}
    known = settled(5)
    tally = known.computed(1)
    assert tally is not None
    assert (tally.energy_uj, known.split().total.energy_uj) == (7, 14)


def test_what_is_said_of_unknown_joules_is_kept() -> None:
    tally = settled(100, ("frozen",), None).computed(1)
    assert tally is not None
    assert (tally.energy_uj, tally.flags) == (None, FLAGS["frozen"] | FLAGS["unknown"])


def test_enough_is_a_share_and_nothing_needs_nothing() -> None:
    assert is_seen(0, 0)
    assert is_seen(5, 100)
    assert not is_seen(4, 100)
    assert Peak().bound_uj(0) == 0
    assert Peak().bound_uj(1) is None
