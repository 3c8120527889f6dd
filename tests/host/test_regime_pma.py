# SPDX-License-Identifier: Apache-2.0
"""Laws of the stream's ranges: a round's slices are its places, each once, over epoch borders and after losses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import places

from paceline.errors import RunError
from paceline.wire import Range
from paceline_host.regimes import Slice, make
from paceline_host.regimes.pma import Pma, ranges_of

SAMPLES = st.integers(1, 50)
SHARES = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0)


def stream(ranges: Sequence[Range]) -> list[tuple[int, int]]:
    """Return the (epoch, position) of ranges in their order."""
    return [(epoch, position) for epoch, begin, end in ranges for position in range(begin, end)]


@given(st.integers(0, 300), st.integers(0, 300), SAMPLES)
def test_places_are_the_streams_in_order(begin: int, length: int, samples: int) -> None:
    ranges = ranges_of(begin, begin + length, samples)
    assert stream(ranges) == [divmod(place, samples) for place in range(begin, begin + length)]
    assert all(first < last <= samples for _, first, last in ranges)
    epochs = [epoch for epoch, _, _ in ranges]
    assert epochs == sorted(set(epochs)), "one range an epoch"


@given(SAMPLES, SHARES, st.integers(1, 20))
def test_a_plan_is_the_rounds_places_each_once_cut_by_share(samples: int, shares: list[int], round_: int) -> None:
    budget = sum(shares)
    slices = Pma(samples, budget).plan(round_, list(enumerate(shares)))
    joined = [place for s in slices for place in stream(s.ranges)]
    assert joined == [divmod(p, samples) for p in range((round_ - 1) * budget, round_ * budget)]
    assert [s.index for s in slices] == list(range(len(slices)))
    assert {s.board: s.samples for s in slices} == {board: n for board, n in enumerate(shares) if n}
    assert all((s.round, s.redealt_from) == (round_, None) for s in slices)


@given(SAMPLES, SHARES, st.data())
def test_what_a_lost_slice_held_is_dealt_out_exactly(samples: int, shares: list[int], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(Pma(samples, sum(shares)).plan(3, list(enumerate(shares)))))
    cuts = sorted(data.draw(st.lists(st.integers(0, lost.samples), max_size=4)))
    parts = [b - a for a, b in zip([0, *cuts], [*cuts, lost.samples], strict=True)]
    fresh = Pma(samples, sum(shares)).on_lost(lost, list(enumerate(parts)), 17)
    assert [place for s in fresh for place in stream(s.ranges)] == stream(lost.ranges)
    assert [s.index for s in fresh] == list(range(17, 17 + len(fresh)))
    assert all((s.round, s.redealt_from) == (3, lost.index) for s in fresh)
    assert all(s.samples == parts[s.board] > 0 for s in fresh)


def test_successive_rounds_go_on_where_the_last_one_stopped() -> None:
    regime = Pma(10, 7)
    slices = [s for round_ in range(1, 21) for s in regime.plan(round_, [(0, 3), (1, 4)])]
    assert set(places(r for s in slices for r in s.ranges).values()) == {1}
    assert stream([r for s in slices for r in s.ranges]) == [divmod(p, 10) for p in range(140)]


def test_a_round_over_the_epochs_border_has_a_range_on_either_side() -> None:
    assert Pma(10, 8).plan(2, [(0, 4), (1, 4)]) == [
        Slice(2, 0, 0, ((0, 8, 10), (1, 0, 2))),
        Slice(2, 1, 1, ((1, 2, 6),)),
    ]


def test_regimes_are_looked_up_by_name_and_unknown_ones_are_named() -> None:
    assert isinstance(make("pma", 10, 5), Pma)
    with pytest.raises(RunError, match=r"\[run\] regime = 'pmma' is not known; known: pma"):
        make("pmma", 10, 5)
