# SPDX-License-Identifier: Apache-2.0
"""What ranks took for some steps of a round: from their figures, into the journal and out of it. Pure.

A policy that divides the rest of an open round anew plans from these, so a resume has to tell it the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from paceline_host.ddp.figures import COMPUTE
from paceline_host.ddp.figures import read as read_figures
from paceline_host.records import Event

KIND = "paces"  # of the journal's events: {board: [seconds, samples]}
Pace = tuple[int, float, int]  # board, seconds of computing, samples


def of_last(data: bytes, steps: int) -> float:
    """Return a rank's seconds of computing in its last `steps` steps. Raises DamagedError."""
    rows = read_figures(data)[1]
    return sum(row[COMPUTE] for row in rows[-steps:])


def text(found: Mapping[int, tuple[float, int]]) -> str:
    """Return (seconds, samples) by board as the journal has it."""
    return json.dumps({str(board): pair for board, pair in sorted(found.items())})


def read(events: Iterable[Event]) -> dict[int, list[Pace]]:
    """Return what was told in each round, in order."""
    told: dict[int, list[Pace]] = defaultdict(list)
    for event in events:
        if event.round is not None:
            told[event.round] += [
                (int(board), seconds, samples) for board, (seconds, samples) in json.loads(event.detail).items()
            ]
    return told
