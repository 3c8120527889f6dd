# SPDX-License-Identifier: Apache-2.0
"""Flags of readings reach the windows that they touch, and no others."""

from __future__ import annotations

from paceline_agent.flagged import REMEMBERED, Flagged


def test_flags_reach_the_windows_that_they_touch() -> None:
    flagged = Flagged()
    flagged.add(10, 10, ("negative",))
    flagged.add(20, 30, ("lost", "stale"))
    assert flagged.over(0, 9) == ()
    assert flagged.over(0, 10) == ("negative",)
    assert flagged.over(10, 20) == ("negative", "lost", "stale")
    assert flagged.over(31, 99) == ()


def test_a_window_beside_frozen_time_is_not_frozen() -> None:
    flagged = Flagged()
    flagged.add(10, 20, ("frozen", "mirrored"))
    assert flagged.over(0, 10) == ("mirrored",)
    assert flagged.over(20, 30) == ("mirrored",)
    assert flagged.over(19, 30) == flagged.over(0, 11) == flagged.over(12, 13) == ("frozen", "mirrored")


def test_what_goes_on_is_one_stretch_and_forgets_no_other() -> None:
    flagged = Flagged()
    flagged.add(0, 0, ("reset",))
    for t_us in range(10, 10 * 2 * REMEMBERED, 10):
        flagged.add(t_us, t_us, ("negative",), 10)
    assert flagged.over(0, 5) == ("reset",)
    assert flagged.over(15, 16) == ("negative",), "between two readings as well"
    flagged.add(5, 10 * 2 * REMEMBERED, ("negative",), 10)
    assert flagged.over(6, 7) == ("negative",), "it is known to have begun before"
