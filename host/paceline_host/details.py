# SPDX-License-Identifier: Apache-2.0
"""What one run's page says beyond its figures: each board, and what happened. From the journal; None is unknown."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core import Fit
from paceline_host.ddp.paces import KIND as PACES
from paceline_host.ledger import Ledger
from paceline_host.owed_joules import owing
from paceline_host.records import Board, Contribution, Energy, as_reported
from paceline_host.waits import IDLE
from paceline_host.waits import KIND as WAITS

FITTED = 4  # rounds from which on two models of a board's seconds can be told apart


@dataclass(frozen=True)
class BoardFigures:
    """One board over the whole run; seconds and joules per sample are those of its counted work."""

    name: str
    samples: int
    seconds_per_sample: float | None
    joules_per_sample: float | None  # of computing alone; None: not known for every slice
    total_j: float | None
    gaps: bool  # its joules are unknown for a time, so that `total_j` is a lower bound
    source: str | None  # of its joules; None: has no meter
    late: float | None  # share of its steps that ended later than the declared pace
    uncounted: int  # leases that ended without a counted result
    version: str
    # Two models of its seconds, and the relative error with which each foretold the next round; None: too few rounds.
    affine: tuple[float, float, float] | None = None  # fixed seconds, seconds a sample, error
    proportional: tuple[float, float] | None = None  # seconds a sample, error
    is_affine: bool = False  # the first foretells clearly better


@dataclass(frozen=True)
class Happening:
    """An event, or a lease that was not counted."""

    at_s: float
    kind: str
    text: str
    round: int | None = None
    board: str | None = None


@dataclass(frozen=True)
class Details:
    """One run."""

    boards: tuple[BoardFigures, ...]
    happenings: tuple[Happening, ...]  # in order of time


def details(folder: Path) -> Details:
    """Read a run's journal. Raises StorageError."""
    with Ledger(folder) as ledger:
        boards, contributions = ledger.boards(), ledger.contributions()
        energy, events = ledger.energy(), ledger.events()
        owed = owing(energy, contributions, ledger.rounds(), events)
        told = happenings(ledger)
    rows: dict[int, list[Contribution]] = defaultdict(list)
    for row in contributions:
        rows[row.board].append(row)
    splits: dict[int, dict[str, Energy]] = defaultdict(dict)
    for split in energy:  # they come in round order, and are cumulative
        splits[split.board][split.session] = split
    return Details(
        tuple(
            _board(board, rows[board.board], list(splits[board.board].values()), board.board in owed)
            for board in boards
        ),
        tuple(told),
    )


def happenings(ledger: Ledger) -> list[Happening]:
    """Return what happened in a run, with reasons, in order of time."""
    names = {board.board: board.name for board in ledger.boards()}
    found = [
        Happening(event.at_s, event.kind, _said(event.detail), event.round, _name(names, event.board))
        for event in ledger.events()
        if event.kind not in (WAITS, IDLE, PACES)
    ]
    found += [
        Happening(row.at_s, row.verdict, f"slice {row.slice} not counted: {row.reason or row.verdict}",
                  row.round, _name(names, row.board))
        for row in ledger.contributions()
        if row.verdict != "accepted"
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.at_s)


def _fit(rows: Sequence[Contribution]) -> Fit | None:
    fit = Fit()
    for row in rows:
        if row.compute_us > 0 and row.samples > 0:
            fit.observe(row.compute_us * 1e-6, row.samples)
    return fit if fit.reports >= FITTED else None


def _board(board: Board, rows: Sequence[Contribution], splits: Sequence[Energy], owes: bool) -> BoardFigures:
    accepted = [row for row in rows if row.verdict == "accepted"]
    samples = sum(row.samples for row in accepted)
    steps = sum(row.steps for row in accepted)
    reported = as_reported(accepted)
    joules = [row.compute_uj for row in reported if row.compute_uj is not None]
    totals = [split.total_uj for split in splits if split.total_uj is not None]
    sources = Counter(split.source for split in splits if split.total_uj is not None and split.source)
    fit = _fit(reported)
    return BoardFigures(
        name=board.name, samples=samples,
        seconds_per_sample=sum(row.compute_us for row in accepted) * 1e-6 / samples if samples else None,
        joules_per_sample=sum(joules) * 1e-6 / samples if samples and len(joules) == len(reported) else None,
        total_j=sum(totals) * 1e-6 if totals else None,
        gaps=len(totals) < len(splits) or len(splits) > 1 or owes,
        source=", ".join(sources) or board.energy_source,
        late=sum(row.overruns for row in accepted) / steps if steps else None,
        uncounted=len(rows) - len(accepted), version=board.agent_version,
        affine=None if fit is None else (fit.fixed_seconds, fit.seconds_per_sample, fit.error_affine**0.5),
        proportional=None if fit is None else (fit.proportional, fit.error_proportional**0.5),
        is_affine=fit is not None and fit.is_affine,
    )  # fmt: skip


def _name(names: dict[int, str], board: int | None) -> str | None:
    return None if board is None else names.get(board, f"board {board}")


def _said(detail: object) -> str:
    if detail is None:
        return ""
    return detail if isinstance(detail, str) else json.dumps(detail, ensure_ascii=False)
