# SPDX-License-Identifier: Apache-2.0
"""Figures of a table as Markdown, CSV and JSON. Draws nothing and computes nothing."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from paceline_host.studies.figures import NOT_SEEN, OPEN, SEEN
from paceline_host.tables.design import METRICS, Expectation
from paceline_host.tables.figures import POINTS, Figures, Finding, Line, RowFigures, Spread

HEADS = {  # metric: head of its column, digits
    "makespan": ("makespan s", 2),
    "predicted": ("closed form s", 2),
    "later": ("a later round s", 3),
    "joules": ("joules", 1),
    "waiting": ("of them waiting", 1),
    "compute_cv": ("CV compute %", 1),
    "forward_cv": ("CV forward %", 1),
    "slowest": ("slowest rank, ideal 1", 3),
    "target_s": ("s to equal's loss", 2),
    "target_j": ("joules to it", 1),
    "accuracy": ("accuracy %", 2),
    "loss": ("loss", 4),
    "controller": ("controller %", 4),
}
CHANGES = ("makespan", "predicted", "joules")  # beside these stands the change against equal
_UNITS = {
    "makespan": "s", "predicted": "s", "later": "s", "joules": "J", "waiting": "J", "target_s": "s", "target_j": "J"
}  # fmt: skip
FACTS = ("samples", "late", "complete", "joules_are", "loss_is", "data")


def markdown(made: Figures, name: str, *, picture: bool = True) -> str:
    """Return the page."""
    table = made.table
    lines = [
        f"# {table.title}", "",
        f"`{name}.toml`: {made.finished} of {made.planned} comparisons are finished, seeds "
        f"{', '.join(map(str, table.seeds))}. A figure is the median over seeds, in brackets its range. A change is "
        "against `equal`, of seeds in which both runs held their declared pace; accuracy, loss and closed form need "
        "none. Where there are fewer than all, their number stands beside it. The closed form is the makespan that the "
        "declared paces alone predict for the shares that were dealt. Seconds and joules to equal's loss are those of "
        "all rounds up to the first that ends with the loss that `equal` has in the end, within a thousandth, or less.",
        "",
    ]  # fmt: skip
    if picture:
        lines += [f"![Joules against makespan of each policy]({name}.png)", ""]
    lines += _expectations(made)
    for row in made.rows:
        lines += _table(row)
    return "\n".join(lines)


def _expectations(made: Figures) -> list[str]:
    if not made.expectations:
        return []
    lines = [
        "## What was expected beforehand, and what came", "",
        "Seen: every seed lies within the limits; not seen: every seed outside; open: some, or the pace was not held.",
        "", "| expected | limits | row | found | |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for one, findings in made.expectations:
        lines += [
            _cells([one.what, _limits(one), finding.row, _found(one, finding), finding.verdict]) for finding in findings
        ]
        if not findings:
            lines.append(_cells([one.what, _limits(one), "none is finished", "not stated", OPEN]))
    counts = {v: sum(f.verdict == v for _, found in made.expectations for f in found) for v in (SEEN, NOT_SEEN, OPEN)}
    counts[OPEN] += sum(not found for _, found in made.expectations)
    return [*lines, "", ", ".join(f"{count} {name}" for name, count in counts.items()) + ".", ""]


def _limits(one: Expectation) -> str:
    sign = "+" if one.against else ""
    low, high = (None if limit is None else f"{limit:{sign}g}" for limit in (one.low, one.high))
    limits = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"
    return f"{limits} {_unit(one)}".rstrip()


def _unit(one: Expectation) -> str:
    if one.metric in POINTS:
        return "points" if one.against else "%"
    return "%" if one.against else _UNITS.get(one.metric, "")


def _found(one: Expectation, finding: Finding) -> str:
    if finding.value is None:
        return "not stated"
    return f"{_text(finding.value, 1 if one.against else HEADS[one.metric][1], signed=bool(one.against))} {_unit(one)}"


def _table(row: RowFigures) -> list[str]:
    used = [metric for metric in METRICS if any(line.figures[metric] is not None for line in row.lines)]
    heads = ["policy"]
    for metric in used:
        heads += [HEADS[metric][0], *(["against equal"] if metric in CHANGES else [])]
    data = f"Data: {'; '.join(row.data)}." + (f" Loss: {row.loss_is}." if row.loss_is else "")
    lines = [f"## {row.name}", "", data, "", _cells(heads), _cells(["---"] * len(heads))]
    lines += [_cells(_line(line, used, row.seeds)) for line in row.lines]
    late = [f"{line.policy} in {line.late} of {row.seeds}" for line in row.lines if line.late]
    return [*lines, "", *([f"Pace not held: {', '.join(late)} seeds.", ""] if late else [])]


def _line(line: Line, used: list[str], seeds: int) -> list[str]:
    cells = [f"`{line.policy}`"]
    for metric in used:
        own = line.figures[metric]
        cells.append(_text(own, HEADS[metric][1]) + _fewer(own, seeds))
        if metric in CHANGES:
            found = line.changes[metric]
            stated = "" if line.policy == "equal" else "not stated"
            cells.append(stated if found is None else f"{_text(found, 1, signed=True)} %{_fewer(found, seeds)}")
    return cells


def _fewer(value: Spread | None, seeds: int) -> str:
    return f" ({value.count} of {seeds} seeds)" if value is not None and value.count < seeds else ""


def _text(value: Spread | None, digits: int, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed else ""
    shown = [f"{number:{sign},.{digits}f}" for number in (value.median, value.low, value.high)]
    return shown[0] if value.count == 1 or shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _cells(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_csv(made: Figures) -> str:
    """Return a line for each run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "policy", "seed", *METRICS, *FACTS, "load"])
    for cell, record in made.cells:
        for policy, run in record["policies"].items():
            values = [run[key] for key in (*METRICS, *FACTS)]
            shown = [f"{value:.6g}" if isinstance(value, float) else value for value in values]
            writer.writerow([cell.row, policy, cell.seed, *shown, f"{max(record['load']):.1f}"])
    return out.getvalue()


def as_json(made: Figures, name: str) -> dict[str, Any]:
    """Return the figures for a program."""
    return {
        "schema": "paceline-table-1", "table": name, "title": made.table.title, "finished": made.finished,
        "planned": made.planned, "rows": [asdict(row) for row in made.rows],
        "expectations": [
            {"what": one.what, "findings": [asdict(finding) for finding in found]} for one, found in made.expectations
        ],
    }  # fmt: skip
