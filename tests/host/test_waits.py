# SPDX-License-Identifier: Apache-2.0
"""Joules of the time without work, from cumulative splits, against stretches worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.wire import Energy
from paceline_host.waits import Waits

FIRST = Energy(1, 7, "run", 1, 4_000_000, 1_000_000, 200_000, 0, 300_000, 5_500_000, 0, 3_000_000, 3_000_000, "m", 0)


def later(**changes: object) -> Energy:
    """Return the split a round later: 2 s more, 1 s of them computing, 3 J of waiting, transfer and other."""
    more = replace(FIRST, round=2, compute_uj=8_000_000, wait_uj=3_500_000, other_uj=800_000, span_us=5_000_000)
    return replace(more, **changes)  # type: ignore[arg-type]


def waits_after(second: Energy, worked_us: int = 1_000_000) -> dict[int, tuple[float, float]]:
    waits = Waits()
    waits.worked(3, 1, 900_000)
    waits.told(3, FIRST)
    waits.worked(3, 2, worked_us)
    waits.told(3, second)
    return waits.take()


def test_what_lies_between_two_splits_and_was_no_computing_was_waiting() -> None:
    assert waits_after(later())[3] == pytest.approx((1.0, 3.0))


@pytest.mark.parametrize(
    "second",
    [later(window=8), later(wasted_uj=5), later(wait_uj=None), later(wait_uj=0), later(span_us=4_001_000)],
    ids=["another window", "wasted work", "unknown joules", "fewer joules", "no time left"],
)
def test_a_stretch_that_cannot_be_told_is_left_out(second: Energy) -> None:
    assert waits_after(second) == {}


def test_what_was_taken_is_gone_and_work_of_the_next_round_is_not_counted_yet() -> None:
    waits = Waits()
    waits.told(0, FIRST)
    waits.worked(0, 2, 1_000_000)
    waits.worked(0, 3, 500_000)
    waits.told(0, later())
    assert waits.take()[0] == pytest.approx((1.0, 3.0))
    assert waits.take() == {}
