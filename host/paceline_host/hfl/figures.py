# SPDX-License-Identifier: Apache-2.0
"""How long silos took and waited for one another, from a run's journal: what the report says of each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_host.ddp.figures import RankFigures, rank_figures
from paceline_host.ledger import Ledger


@dataclass(frozen=True)
class SiloFigures:
    """One silo; medians over rounds >= 2 in which it took part."""

    name: str
    boards: tuple[str, ...]
    budget: int  # samples a round
    makespan_s: float | None  # plan committed to its last account
    waited_s: float | None  # from then on, for the last of the other silos
    lapsed: tuple[int, ...]  # rounds that it took no part in
    ranks: RankFigures | None  # of its boards alone


def silo_figures(ledger: Ledger) -> tuple[SiloFigures, ...]:
    """Return the figures of a run's silos; none of another regime."""
    if not ledger.run.silos:
        return ()
    names = {board.board: board.name for board in ledger.boards()}
    rounds = [row for row in ledger.rounds() if row.closed_s is not None]
    parts = ledger.contributions(verdict="accepted")
    lapsed = ledger.lapsed()
    out = []
    for silo in ledger.silos():
        ends = {part.round: part.at_s for part in parts if part.board in silo.boards}
        later = [row for row in rounds[1:] if row.round in ends]
        waits = [(row.closed_s or 0.0) - ends[row.round] for row in later]
        out.append(
            SiloFigures(
                silo.name, tuple(names[board] for board in silo.boards), silo.budget,
                _median([ends[row.round] - row.planned_s for row in later]), _median(waits),
                tuple(row.round for row in rounds if silo.name in lapsed.get(row.round, {})),
                rank_figures(ledger, silo.boards),
            )
        )  # fmt: skip
    return tuple(out)


def mean_of_silos(silos: Sequence[SiloFigures], voided: int) -> RankFigures | None:
    """Return what silos' ranks come to on average; None: no silo has closed a round. Drift is not compared."""
    known = [silo.ranks for silo in silos if silo.ranks is not None]
    if not known:
        return None
    return RankFigures(
        known[0].steps, _mean([one.forward_step_cv for one in known]), _mean([one.forward_round_cv for one in known]),
        _mean([one.slowest for one in known]), _mean([one.exposed_s for one in known]), None, voided,
        known[0].waited,
    )  # fmt: skip


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
