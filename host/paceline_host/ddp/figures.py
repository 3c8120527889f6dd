# SPDX-License-Identifier: Apache-2.0
"""How evenly ranks were busy, from a run's journal: what the report says of synchronised steps."""

from __future__ import annotations

import statistics
import struct
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.errors import DamagedError
from paceline.uneven import Imbalance, imbalance
from paceline_host.ddp.steps import WAITED
from paceline_host.ledger import Ledger

HEAD = struct.Struct("<dI")  # drift, steps; then forward, compute and exposed of each step, microseconds
FORWARD, COMPUTE, EXPOSED = range(3)


@dataclass(frozen=True)
class RankFigures:
    """Of each figure the median over rounds >= 2, as adaptive policies have learned by then."""

    steps: int  # of a round
    forward_step_cv: float | None  # mean over a round's steps of the CV over the ranks
    forward_round_cv: float | None  # CV of the ranks' sums over a round
    slowest: float | None  # sum over steps of the slowest rank's compute, against all ending at once: 1 is ideal
    exposed_s: float | None  # mean over the ranks of what they waited in a round's collectives
    drift: float | None  # the largest that was found when rank 0's state was broadcast; None: not compared
    voided: int  # groups that ended before their round did
    waited: Mapping[str, int] = field(default_factory=dict)  # by board: how often the others waited for it in vain


@dataclass(frozen=True)
class RoundOfRanks:
    """One round."""

    round: int
    forward: Imbalance
    compute: Imbalance
    exposed_s: Mapping[int, float]  # by board
    drift: float


def rounds_of(ledger: Ledger, boards: Sequence[int] | None = None) -> list[RoundOfRanks]:
    """Return the closed rounds of a run of synchronised ranks, or of those of a silo. Raises DamagedError."""
    samples: dict[tuple[int, int], int] = defaultdict(int)
    for part in ledger.contributions(verdict="accepted"):
        samples[part.round, part.board] += part.samples
    tables: dict[int, dict[int, list[tuple[float, ...]]]] = defaultdict(dict)
    drifts: dict[int, float] = defaultdict(float)
    for number, board, data in ledger.rank_steps():
        if boards is not None and board not in boards:
            continue
        drift, tables[number][board] = read(data)
        drifts[number] = max(drifts[number], drift)
    out = []
    for number, found in sorted(tables.items()):
        shares = [samples[number, board] for board in found]
        out.append(
            RoundOfRanks(
                number, imbalance(_column(list(found.values()), FORWARD), shares),
                imbalance(_column(list(found.values()), COMPUTE), shares),
                {board: sum(row[EXPOSED] for row in rows) for board, rows in found.items()}, drifts[number],
            )
        )  # fmt: skip
    return out


def read(data: bytes) -> tuple[float, list[tuple[float, ...]]]:
    """Return drift and seconds of each step, as a rank packed them. Raises DamagedError."""
    try:
        drift, steps = HEAD.unpack_from(data)
        numbers = struct.unpack_from(f"<{3 * steps}I", data, HEAD.size)
        if len(data) != HEAD.size + 12 * steps:
            raise struct.error(f"{len(data)} bytes")
    except struct.error as error:
        raise DamagedError(f"what a rank measured of its steps is no table: {error}") from None
    return drift, [tuple(n * 1e-6 for n in numbers[i : i + 3]) for i in range(0, len(numbers), 3)]


def _column(tables: Sequence[Sequence[tuple[float, ...]]], which: int) -> list[list[float]]:
    """Return steps x ranks of one of the measured times."""
    return [[row[which] for row in step] for step in zip(*tables, strict=True)]


def rank_figures(ledger: Ledger, boards: Sequence[int] | None = None) -> RankFigures | None:
    """Return the figures of a run, or of some of its boards; None: of another regime, or no round is closed."""
    rounds = rounds_of(ledger, boards)
    if not rounds:
        return None
    later = rounds[1:]
    return RankFigures(
        steps=ledger.epochs()[-1].steps,
        forward_step_cv=_median([r.forward.step_cv for r in later]),
        forward_round_cv=_median([r.forward.round_cv for r in later]),
        slowest=_median([r.compute.ratio for r in later]),
        exposed_s=_median([statistics.fmean(r.exposed_s.values()) for r in later]),
        drift=max(r.drift for r in rounds), voided=sum(epoch.voided for epoch in ledger.epochs()),
        waited=waited(ledger),
    )  # fmt: skip


def waited(ledger: Ledger) -> dict[str, int]:
    """Return by name how often the others of a group waited in vain for a board's part of a step."""
    names = {board.board: board.name for board in ledger.boards()}
    return dict(Counter(names[event.board] for event in ledger.events(WAITED) if event.board is not None))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
