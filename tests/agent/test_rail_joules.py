# SPDX-License-Identifier: Apache-2.0
"""Joules of each rail: from its own power or count, at the times of the readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from paceline_agent.meters import Count, Reading
from paceline_agent.meters.rail import Rail
from paceline_agent.rail_joules import RailJoules


@dataclass
class Rails:
    """What a meter shows of its rails."""

    shown: list[Rail] = field(default_factory=list)

    def rails(self) -> Sequence[Rail]:
        return self.shown


def after(*steps: tuple[Reading | Count, list[Rail]], begin_at: int = 0) -> dict[str, float]:
    meter, tally = Rails(), RailJoules()
    tally.meter = meter  # type: ignore[assignment]  # all that is asked of it
    for number, (reading, shown) in enumerate(steps):
        if number == begin_at:
            tally.begin()
        meter.shown = shown
        tally.took([reading])
    return tally.joules()


def watts(a: int, b: int) -> list[Rail]:
    return [Rail("a", power_uw=a * 1_000_000), Rail("b", power_uw=b * 1_000_000), Rail("volts", voltage_uv=5)]


def test_points_are_joined_and_intervals_filled() -> None:
    points = [(Reading(t * 1_000_000, t * 1_000_000, 0), watts(t, 1)) for t in range(4)]
    assert after(*points) == pytest.approx({"a": 0.5 + 1.5 + 2.5, "b": 3.0})
    assert after(*points, begin_at=2) == pytest.approx({"a": 1.5 + 2.5, "b": 2.0})
    intervals = [(Reading(t * 1_000_000, (t + 1) * 1_000_000, 0), watts(t, -1)) for t in range(4)]
    assert after(*intervals) == pytest.approx({"a": 6.0, "b": -3.0})


def test_a_rail_with_a_count_is_told_by_it_and_a_reset_adds_nothing() -> None:
    counts = [(Count(t, 0), [Rail("a", power_uw=99, energy_uj=uj)]) for t, uj in enumerate((5, 2_000_005, 7, 9))]
    assert after(*counts) == pytest.approx({"a": 2.000002})
