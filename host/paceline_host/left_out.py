# SPDX-License-Identifier: Apache-2.0
"""Who was present at a plan and got nothing: a slice is never empty, so the journal's events have to say it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from paceline_host.records import Event
from paceline_host.steps import Note

KIND = "left-out"


def note(round_: int, present: Sequence[int], shares: Sequence[int]) -> list[Note]:
    """Return what is to be journaled of a plan, if anything is."""
    boards = [board for board, share in zip(present, shares, strict=True) if not share]
    return [Note(KIND, json.dumps(boards), loud=False, round=round_)] if boards else []


def read(events: Iterable[Event]) -> dict[int, list[int]]:
    """Return the boards that a plan left out, by round; of a round that was planned twice the last ones."""
    return {event.round: json.loads(event.detail) for event in events if event.kind == KIND and event.round}
