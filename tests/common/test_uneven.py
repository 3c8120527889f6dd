# SPDX-License-Identifier: Apache-2.0
"""Who takes which places of a round: a partition of each step, its union the same under any shares; imbalance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import CoreError
from paceline.uneven import Deal, equal_shares, imbalance, steps_of, variation


@given(steps=st.integers(1, 12), extra=st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_each_step_is_a_stretch_of_the_round_cut_in_rank_order(steps: int, extra: list[int]) -> None:
    deal = Deal([steps + more for more in extra], steps)
    flat = [p for s in range(steps) for rank in range(len(extra)) for p in deal.places(s, rank)]
    assert flat == list(range(sum(deal.shares)))
    assert [deal.done(s) for s in range(steps + 1)][-1] == sum(deal.shares)


@given(steps=st.integers(1, 12), budget=st.integers(60, 400), cut=st.integers(0, 11), ranks=st.integers(1, 5))
def test_what_is_left_of_a_round_has_the_same_steps_when_it_is_dealt_anew(
    steps: int, budget: int, cut: int, ranks: int
) -> None:
    """So a group that forms again without a rank goes on with the same union batches."""
    cut = min(cut, steps - 1)
    whole = Deal(equal_shares(budget, ranks, steps), steps)
    left = budget - whole.done(cut)
    again = Deal(equal_shares(left, max(1, ranks - 1), steps - cut), steps - cut)
    assert again.totals == whole.totals[cut:]


def test_steps_hold_no_more_than_the_batch() -> None:
    assert [steps_of(n, 10) for n in (1, 10, 11, 100)] == [1, 1, 2, 10]


def test_a_budget_that_is_too_small_names_the_most_steps() -> None:
    assert equal_shares(12, 3, 4) == [4, 4, 4]
    with pytest.raises(CoreError, match="expected at most 3 steps"):
        equal_shares(12, 4, 4)


def test_where_ranks_may_pause_each_step_has_a_sample_all_the_same() -> None:
    assert Deal([1, 3], 4, 0).totals == [1, 1, 1, 1]
    with pytest.raises(CoreError, match="4 samples do not give each of 5 steps one; expected at most 4 steps"):
        Deal([1, 3], 5, 0)


def test_equal_paces_have_no_variation_and_no_loss() -> None:
    found = imbalance([[1.0, 1.0], [1.0, 1.0]], [10, 10])
    assert (found.step_cv, found.round_cv, found.ratio) == (0.0, 0.0, 1.0)


def test_the_ideal_is_where_all_end_at_once() -> None:
    found = imbalance([[1.0, 3.0], [1.0, 3.0]], [10, 10])  # paces 0.2 and 0.6 s a sample
    assert found.slowest_s == 6.0
    assert found.ideal_s == pytest.approx(20 / (5 + 10 / 6))
    assert found.step_cv == pytest.approx(0.5)
    assert variation([]) is None
    assert imbalance([], []).ratio is None
