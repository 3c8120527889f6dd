# SPDX-License-Identifier: Apache-2.0
"""Shares over steps: exact sums both ways, equal step counts on all ranks, and no padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import batch_schedule
from paceline.errors import CoreError


@given(
    steps=st.integers(1, 40), extra=st.lists(st.integers(0, 500), min_size=1, max_size=12), minimum=st.integers(0, 5)
)
def test_ranks_and_steps_get_the_floor_or_the_ceiling_of_their_mean(steps: int, extra: list[int], minimum: int) -> None:
    shares = [steps * minimum + more for more in extra]
    table = batch_schedule(shares, steps, minimum)
    total = sum(shares)
    assert len(table) == steps
    for rank, share in enumerate(shares):
        column = [row[rank] for row in table]
        assert sum(column) == share
        assert set(column) <= {share // steps, -(-share // steps)}
        assert min(column) >= minimum
    for row in table:
        assert sum(row) in {total // steps, -(-total // steps)}


@given(steps=st.integers(1, 20), shares=st.lists(st.integers(20, 90), min_size=1, max_size=6))
def test_a_steps_size_depends_on_the_budget_and_the_steps_only(steps: int, shares: list[int]) -> None:
    total = sum(shares)
    assert [sum(row) for row in batch_schedule(shares, steps)] == [row[0] for row in batch_schedule([total], steps)]


@pytest.mark.parametrize(
    ("shares", "steps", "minimum", "sentence"),
    [
        (
            [90, 7, 90],
            8,
            1,
            "the smallest share, 7, does not give 1 a step over 8 steps; these shares allow 7 steps at most",
        ),
        ([90, 7, 90], 4, 2, "these shares allow 3 steps at most"),
        ([], 4, 1, "expected at least one share and one step, got 0 and 4"),
        ([5], 0, 1, "expected at least one share and one step, got 1 and 0"),
        ([5], -1, 1, "steps is -1; expected a whole number"),
        ([-5], 1, 1, "shares: expected a flat sequence of whole numbers"),
    ],
)
def test_what_cannot_be_scheduled_is_said(shares: list[int], steps: int, minimum: int, sentence: str) -> None:
    with pytest.raises(CoreError, match=sentence):
        batch_schedule(shares, steps, minimum)


def test_without_a_minimum_a_rank_may_pause() -> None:
    assert batch_schedule([1, 5], 3, minimum=0) == [[1, 1], [0, 2], [0, 2]]
