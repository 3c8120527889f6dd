# SPDX-License-Identifier: Apache-2.0
"""Edges between counts: held to what power was ever seen, never wider than what was counted between the readings."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from paceline_agent.counter_edges import CounterEdges
from paceline_agent.meters import Count

PIECE_US = 1_000


@given(
    watts=st.lists(st.integers(0, 200), min_size=2, max_size=60), data=st.data(), seed=st.integers(0, 59),
)  # fmt: skip
def test_the_truth_lies_within_what_is_stated_where_the_peak_was_seen(
    watts: list[int], data: st.DataObject, seed: int
) -> None:
    """Power is constant in pieces; some pieces are read at both ends, the strongest among them."""
    ends = [0]
    for power in watts:
        ends.append(ends[-1] + power * PIECE_US)  # microjoules
    top = watts.index(max(watts))
    chosen = data.draw(st.sets(st.integers(0, len(watts)))) | {0, top, top + 1, len(watts)}
    edges = CounterEdges(100)
    for place in sorted(chosen):
        edges.add(Count(place * PIECE_US, ends[place]))
    t_us = data.draw(st.integers(0, len(watts) * PIECE_US))
    piece = min(t_us // PIECE_US, len(watts) - 1)
    truth = Fraction(ends[piece]) + watts[piece] * (t_us - piece * PIECE_US)
    before = max(place for place in chosen if place * PIECE_US <= t_us)
    after = min((place for place in chosen if place * PIECE_US > t_us), default=before)
    whole = ends[after] - ends[before]
    guess = Fraction(ends[before]) + (
        Fraction(whole * (t_us - before * PIECE_US), (after - before) * PIECE_US) if after > before else 0
    )
    stated = edges.between_uj(t_us, whole)
    assert stated <= whole
    assert abs(truth - guess) <= stated + 1


def test_a_reading_just_after_an_edge_makes_it_sharp() -> None:
    edges = CounterEdges(10)
    for t_us, count_uj in ((0, 0), (1_000_000, 20_000_000), (2_000_000, 40_000_000), (2_001_000, 40_020_000)):
        edges.add(Count(t_us, count_uj))
    assert edges.between_uj(1_999_000, 20_000_000) <= 20_001, "20 W for a millisecond, not for a second"
    assert edges.between_uj(1_500_000, 7) == 1, "at one power alone the middle is known as well"


def test_a_counter_that_began_anew_says_nothing_better() -> None:
    edges = CounterEdges(10)
    edges.add(Count(0, 100))
    edges.add(Count(1_000_000, 99))
    assert edges.between_uj(500_000, 5_000_000) == 5_000_000
