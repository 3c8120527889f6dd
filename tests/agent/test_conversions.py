# SPDX-License-Identifier: Apache-2.0
"""When conversions have ended, told from polls: the truth lies within the doubt, whatever the chip's clock."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from paceline_agent.meters.conversions import STEP_US, Conversions


def polled(c: Conversions, cycle_us: float, lags: list[int], transfer_us: int) -> list[tuple[int, float, int]]:
    """Poll as it asks to be polled, each time so much later; return (told end, true end, doubt) of each conversion."""
    told, now_us, seen = [], 0, 0
    for lag_us in lags:
        now_us = max(now_us, c.due_us(now_us)) + lag_us
        latched_us = now_us + transfer_us // 2
        done = int(latched_us / cycle_us)
        if done > seen:
            told.append((c.ended(now_us, now_us + transfer_us), done * cycle_us, c.doubt_us))
            seen = done
        c.clear(now_us)
        now_us += transfer_us
    return told


@given(
    cycle_us=st.sampled_from([8_576, 25_728, 68_632]),
    clock=st.floats(0.92, 1.08),
    seed=st.integers(0, 2**32),
    transfer_us=st.integers(50, 500),
)
def test_an_end_is_known_to_about_a_step_once_a_few_were_seen(
    cycle_us: int, clock: float, seed: int, transfer_us: int
) -> None:
    c = Conversions(cycle_us, 0)
    dice = random.Random(seed)
    told = polled(c, cycle_us * clock, [dice.randint(0, 300) for _ in range(400)], transfer_us)
    assert len(told) > 30
    for end_us, true_us, doubt_us in told[12:]:
        assert abs(end_us - true_us) <= doubt_us + 1
        assert abs(end_us - true_us) <= 2 * STEP_US + 1_000
    assert abs(c.cycle_us - cycle_us * clock) <= cycle_us * 0.01


@given(
    cycle_us=st.sampled_from([8_576, 68_632]),
    clock=st.floats(0.92, 1.08),
    seed=st.integers(0, 2**32),
)
def test_a_reader_that_is_late_again_and_again_knows_it_to_a_cycle(cycle_us: int, clock: float, seed: int) -> None:
    c, dice = Conversions(cycle_us, 0), random.Random(seed)
    for end_us, true_us, doubt_us in polled(c, cycle_us * clock, [dice.randint(0, 400_000) for _ in range(60)], 470):
        assert abs(end_us - true_us) <= doubt_us + 1
        assert doubt_us <= cycle_us * 1.1 + 470


def test_a_chip_that_ends_nothing_has_stopped() -> None:
    c = Conversions(10_000, 0)
    c.ended(8_900, 9_000)
    assert not c.stopped(41_000)
    assert c.stopped(41_001)
    c.heard(41_001)
    assert not c.stopped(50_000)
