# SPDX-License-Identifier: Apache-2.0
"""Whose joules end before their time: a board that took part in a round without a split of it. Pure: rows in, boards
out.

A board says its joules at each round's end; what was drawn since its last word is unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline_host.records import Contribution, Energy, Event, Round

GONE = "lost"  # kind of the event that ends a board's part in a run


def owing(
    energy: Sequence[Energy], contributions: Sequence[Contribution], rounds: Sequence[Round], events: Sequence[Event]
) -> set[int]:
    """Return the boards whose last split is older than the last round that they belonged to.

    They belong to each round that they had work in, counted or not, and to each that was closed while they were there.
    """
    said: dict[int, int] = {}
    for row in energy:
        said[row.board] = max(said.get(row.board, 0), row.round)
    worked, accepted_s, gone_s = dict.fromkeys(said, 0), dict.fromkeys(said, 0.0), dict.fromkeys(said, float("inf"))
    for part in contributions:
        if part.board in said:
            worked[part.board] = max(worked[part.board], part.round)
            if part.verdict == "accepted":
                accepted_s[part.board] = max(accepted_s[part.board], part.at_s)
    for event in events:
        if event.kind == GONE and event.board in said:
            gone_s[event.board] = event.at_s
    found = set()
    for board, last in said.items():
        until_s = float("inf") if accepted_s[board] > gone_s[board] else gone_s[board]  # it came back
        there = [row.round for row in rounds if row.closed_s is not None and row.closed_s <= until_s]
        if max([worked[board], *there]) > last:
            found.add(board)
    return found
