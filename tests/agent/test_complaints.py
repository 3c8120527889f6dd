# SPDX-License-Identifier: Apache-2.0
"""A trouble is told when it comes and when it is over; one that flickers fills no log, and its last state is told."""

from __future__ import annotations

from paceline_agent.complaints import AGAIN_S, MOST, Complaints


def test_a_trouble_and_its_end_are_told_once() -> None:
    complaints = Complaints()
    assert complaints.news("", 0.0) is None
    assert complaints.news("EIO", 1.0) == "EIO"
    assert complaints.news("EIO", 100.0) is None
    assert complaints.news("", 101.0) == ""
    assert complaints.news("", 200.0) is None
    assert complaints.news("EIO", 201.0) == "EIO"


def test_two_faults_that_take_turns_are_told_twice_a_minute_and_the_last_state_in_the_end() -> None:
    complaints = Complaints()
    told = [complaints.news(("EIO", "ENODEV", "")[number % 3], number * 0.1) for number in range(590)]
    assert [text for text in told if text is not None] == ["EIO", "ENODEV", ""]
    later = [complaints.news("ENODEV", 59.0 + second) for second in range(round(AGAIN_S))]
    assert [text for text in later if text is not None] == ["ENODEV"]


def test_a_trouble_with_a_new_number_each_time_is_not_told_each_time() -> None:
    complaints = Complaints()
    told = [complaints.news(f"shows {number} W", number * 0.1) for number in range(590)]
    assert sum(text is not None for text in told) == MOST
    assert complaints.news("", 59.0 + AGAIN_S) == ""
