# SPDX-License-Identifier: Apache-2.0
"""Records of cells -> medians and ranges over seeds, and what became of each expectation. Pure: knows no file.

A change is stated of a seed only where both runs did the same work to the end and, of what takes time, in their pace.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_host.studies.figures import NOT_SEEN, OPEN, SEEN
from paceline_host.tables.design import METRICS, Cell, Expectation, Table

REFERENCE = "equal"
POINTS = ("compute_cv", "forward_cv", "accuracy", "controller")  # percentages: their changes are differences
UNTIMED = ("accuracy", "loss", "predicted")  # they do not depend on how long anything took
Runs = Mapping[str, Mapping[str, Any]]  # of a cell, by policy


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Line:
    """A policy in a row."""

    policy: str
    figures: Mapping[str, Spread | None]  # by metric
    changes: Mapping[str, Spread | None]  # against REFERENCE
    late: int  # seeds in which its pace was not held


@dataclass(frozen=True)
class RowFigures:
    """A row of the table."""

    name: str
    seeds: int
    data: tuple[str, ...]
    loss_is: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Finding:
    """What became of an expectation in one row."""

    row: str
    value: Spread | None
    verdict: str


@dataclass(frozen=True)
class Figures:
    """All of a table."""

    table: Table
    finished: int
    planned: int
    rows: tuple[RowFigures, ...]
    expectations: tuple[tuple[Expectation, tuple[Finding, ...]], ...]
    cells: tuple[tuple[Cell, Mapping[str, Any]], ...]  # with their records


def figures(table: Table, cells: Sequence[Cell], records: Mapping[str, Mapping[str, Any]]) -> Figures:
    """Compute everything."""
    done = tuple((cell, records[cell.key()]) for cell in cells if cell.key() in records)
    by_row = {row.name: [record["policies"] for cell, record in done if cell.row == row.name] for row in table.rows}
    rows = [_row(name, runs) for name, runs in by_row.items() if runs]
    expectations = tuple((one, tuple(_findings(one, by_row))) for one in table.expect)
    return Figures(table, len(done), len(cells), tuple(rows), expectations, done)


def _row(name: str, seeds: Sequence[Runs]) -> RowFigures:
    every = [run for runs in seeds for run in runs.values()]
    lines = []
    for policy in dict.fromkeys(policy for runs in seeds for policy in runs):
        found = {metric: spread([runs[policy][metric] for runs in seeds if policy in runs]) for metric in METRICS}
        changes = {metric: spread([change(runs, policy, REFERENCE, metric) for runs in seeds]) for metric in METRICS}
        late = sum(runs[policy]["late"] > 0 for runs in seeds if policy in runs)
        lines.append(Line(policy, found, changes, late))
    data = tuple(dict.fromkeys(run["data"] for run in every))
    return RowFigures(name, len(seeds), data, str(every[0]["loss_is"]), tuple(lines))


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return median and range of the known values; None: there is none."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known), len(known)) if known else None


def change(runs: Runs, policy: str, against: str, metric: str) -> float | None:
    """Return a policy's change in a seed, percent or points; None: it is not to be stated."""
    if policy == against or policy not in runs or against not in runs:
        return None
    one, other = runs[policy], runs[against]
    paced = metric in UNTIMED or not (one["late"] or other["late"])
    fair = paced and one["complete"] and other["complete"] and one["samples"] == other["samples"]
    new, old = one[metric], other[metric]
    if not fair or new is None or old is None:
        return None
    return float(new - old) if metric in POINTS else 100.0 * (new / old - 1.0) if old else None


def _findings(one: Expectation, by_row: Mapping[str, Sequence[Runs]]) -> list[Finding]:
    found = []
    for name, seeds in by_row.items():
        if not one.concerns(name):
            continue
        if not any(one.policy in runs for runs in seeds):
            continue
        if one.against:
            value = spread([change(runs, one.policy, one.against, one.metric) for runs in seeds])
        else:
            value = spread([runs[one.policy][one.metric] for runs in seeds if one.policy in runs])
        found.append(Finding(name, value, verdict(value, one.low, one.high)))
    return found


def verdict(value: Spread | None, low: float | None, high: float | None) -> str:
    """Return SEEN where the values of all seeds lie within, NOT_SEEN where all lie outside on one side, else OPEN."""
    if value is None:
        return OPEN
    if (low is not None and value.high < low) or (high is not None and value.low > high):
        return NOT_SEEN
    inside = (low is None or value.low >= low) and (high is None or value.high <= high)
    return SEEN if inside else OPEN
