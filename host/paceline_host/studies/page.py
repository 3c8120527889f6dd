# SPDX-License-Identifier: Apache-2.0
"""Figures of a study as Markdown, CSV and JSON. Draws nothing and computes nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.errors import StorageError
from paceline_host.studies.figures import NOT_SEEN, OPEN, SEEN, Figures, Row, Spread
from paceline_host.studies.variations import VARIATIONS

COLUMNS = (
    "model", "partition", "clients", "batch", "method", "seed", "accuracy", "accuracy_before_depletion",
    "accuracy_recalibrated", "deviation", "deviation_before_depletion", "steps", "tail_begins", "effective_batch",
    "epochs", "smallest_client", "largest_client", "cpu_s", "wall_s", "failed",
)  # fmt: skip


def write(page: str, table: str, name: str, folder: Path, draw: Callable[[Path], object]) -> None:
    """Write NAME.md, NAME.csv and NAME.png. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
        (folder / f"{name}.csv").write_text(table, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None
    draw(folder / f"{name}.png")


def markdown(made: Figures, name: str, *, picture: bool = True) -> str:
    """Return the page."""
    study = made.study
    seeds = ", ".join(map(str, study.seeds))
    lines = [
        f"# {study.title}", "",
        f"`{name}.toml`: {made.trained} of {made.planned} trainings are finished. Seeds {seeds}; +- is the half width"
        f" of the {100 * study.confidence:g} % t-interval of the mean, (s) the standard deviation over seeds.", "",
    ]  # fmt: skip
    if labels := _labels(made):
        lines += [f"Data: {'; '.join(labels)}.", ""]
    if picture:
        lines += [f"![Accuracy by epoch and label deviation by step]({name}.png)", ""]
    lines += [*_expectations(made), *_accuracies(made), *_deviations(made)]
    used = [text for method, text in VARIATIONS.items() if any(row.setting.method == method for row in made.rows)]
    if used:
        named = [f"- `{m}`: {text}." for m, text in VARIATIONS.items() if text in used]
        lines += ["## Variations", "", *named, ""]
    return "\n".join(lines)


def _labels(made: Figures) -> list[str]:
    every = [record["data_label"] for found in made.records.values() for record in found.values()]
    return sorted(set(every))


def _expectations(made: Figures) -> list[str]:
    if not made.expectations:
        return []
    lines = [
        "## What was expected beforehand, and what came", "",
        "Seen: the whole interval lies within the limits; not seen: all of it outside; open: across one of them.", "",
        "| | expected | seen | not seen | open |", "|---|---|---|---|---|",
    ]  # fmt: skip
    rows = ["| | setting | value | |", "|---|---|---|---|"]
    for number, each in enumerate(made.expectations, 1):
        verdicts = [str(each.count(verdict)) for verdict in (SEEN, NOT_SEEN, OPEN)]
        lines.append(_line([str(number), each.expectation.what, *verdicts]))
        for one in each.findings:
            value = _spread(one.value, signed=bool(each.expectation.against))
            rows.append(_line([str(number), _short(one.setting.where()), value, one.verdict]))
    return [*lines, "", "Each of them, by its number:", "", *rows, ""]


def _short(where: tuple[str, str, int, int]) -> str:
    model, partition, clients, batch = where
    return f"{model}, {partition} K {clients} B {batch}" if partition else f"{model}, B {batch}"


def _accuracies(made: Figures) -> list[str]:
    recalibrated = any(row.recalibrated for row in made.rows)
    heads = ["model", "partition", "K", "B", "method", "accuracy %", "(s)", "before the first client runs out %"]
    heads += ["statistics anew %"] * recalibrated + ["steps an epoch", "effective batch", "training, processor s"]
    lines = ["## Accuracy", "", _line(heads), _line(["---"] * len(heads))]
    for row in made.rows:
        cells = [*_where(row), _spread(row.accuracy), f"({row.accuracy.deviation:.2f})" if row.accuracy else "-"]
        cells.append(_spread(row.before_depletion) if row.setting.method != "central" else "-")
        cells += [_spread(row.recalibrated)] * recalibrated
        cells += [f"{row.steps.mean:.1f}", f"{row.effective_batch.mean:.1f}"]
        lines.append(_line([*cells, f"{row.cpu_s.mean:.1f}" if row.cpu_s else "-"]))
    note = (
        "Before the first client runs out: the model of the last epoch at that step. "
        + "Statistics anew: the same weights at the end, BatchNorm's statistics from an exact pass over the data. "
        * recalibrated
        + "Training is one thread's time, with the evaluation of each epoch."
    )
    return [*lines, "", note, ""]


def _deviations(made: Figures) -> list[str]:
    heads = ["model", "partition", "K", "B", "method", "L1, last epoch", "exact for its first batch"]
    heads += ["over exact, all steps", "over exact, before the first client runs out"]
    lines = [
        "## Label deviation", "",
        "L1: the mean over the steps of the last epoch, each alike. Over exact: the mean of all steps' L1 over that of "
        "exact sampling of the same batch sizes; 1 is exact, less is as little exact as more.", "",
        _line(heads), _line(["---"] * len(heads)),
    ]  # fmt: skip
    for row in made.rows:
        exact = "-" if row.l1_exact is None else f"{row.l1_exact:.3f}"
        cells = [*_where(row), _spread(row.l1, 3), exact, _spread(row.deviation, 3)]
        lines.append(_line([*cells, _spread(row.deviation_before_depletion, 3)]))
    return [*lines, ""]


def _where(row: Row) -> list[str]:
    one = row.setting
    lost = f" ({row.failed} of {row.seeds} diverged)" if row.failed else ""
    return [one.model, one.partition or "-", str(one.clients or "-"), str(one.batch), one.method + lost]


def _spread(value: Spread | None, digits: int = 2, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    half = "" if value.half_width is None else f" +- {value.half_width:.{digits}f}"
    return f"{value.mean:{'+' if signed else ''}.{digits}f}{half}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_csv(made: Figures) -> str:
    """Return a line a finished cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for setting, found in made.records.items():
        for seed, record in sorted(found.items()):
            values = [
                record.get("accuracy"), record.get("before_depletion"), record.get("recalibrated"),
                record.get("deviation"), record.get("deviation_before_depletion"), record["steps"],
                record["tail_begins"], record["effective_batch"], record["epochs"], *record["clients_hold"],
                record.get("cpu_s"), record["wall_s"], record.get("failed", ""),
            ]  # fmt: skip
            shown = [f"{value:.5g}" if isinstance(value, float) else value for value in values]
            where = [setting.model, setting.partition, setting.clients or "", setting.batch, setting.method, seed]
            writer.writerow([*where, *shown])
    return out.getvalue()


def as_json(made: Figures, name: str) -> dict[str, Any]:
    """Return the figures for a program."""
    return {
        "schema": "paceline-study-1", "study": name, "title": made.study.title, "finished": made.trained,
        "planned": made.planned, "confidence": made.study.confidence, "rows": [asdict(row) for row in made.rows],
        "expectations": [
            {"what": each.expectation.what, "findings": [asdict(one) for one in each.findings]}
            for each in made.expectations
        ],
    }  # fmt: skip
