# SPDX-License-Identifier: Apache-2.0
"""A table of runs as one picture: joules against makespan in each row. Draws figures; computes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import StorageError
from paceline.policies import policy
from paceline_host.plot import COLOURS, MARKERS, STYLE
from paceline_host.tables.figures import Figures, Line, RowFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

A_ROW = 3
SWEEP = 5  # weights on joules in a row, from which on they are a line


def draw_table(made: Figures, path: Path) -> Path:
    """Write the picture as PNG and return its path. Raises StorageError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sweeps = [row for row in made.rows if len(_weighted(row)) >= SWEEP]
    panels = [(_trade, row) for row in made.rows] + [(_sweep, row) for row in sweeps]
    columns = min(A_ROW, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0 * columns, 4.0 * rows + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        text = f"{made.table.title}: medians and ranges over seeds"
        figure.suptitle(text, fontsize=11, x=0.01, ha="left")
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, (draw, row) in zip(axes.flat, panels, strict=False):
            draw(axis, row)
        try:
            figure.savefig(path, format="png", dpi=75.0, metadata={"Software": "paceline"})
        except OSError as error:
            raise StorageError(f"{path}: the picture cannot be written: {error.strerror}") from None
    return path


def _weighted(row: RowFigures) -> list[tuple[float, Line]]:
    """Return the policies that weigh joules, by their weight."""
    found = [(policy(line.policy), line) for line in row.lines]
    return sorted(
        ((one.w_energy or 0.0, line) for one, line in found if one.kind == "weighted"), key=lambda pair: pair[0]
    )


def _trade(axis: Axes, row: RowFigures) -> None:
    """Draw joules against makespan; a sweep of weights is one line."""
    weighted = _weighted(row) if len(_weighted(row)) >= SWEEP else []
    points = [(w, *_xy(line)) for w, line in weighted]
    if points:
        axis.plot([x for _, x, _ in points], [y for _, _, y in points], "o-", color="#555555", label="w_e from 0 to 1")
        for w, x, y in points:
            axis.annotate(f"{w:g}", (x, y), (3, 3), textcoords="offset points", fontsize=7)
    left_out = [line for _, line in weighted]
    others = [line for line in row.lines if line not in left_out]
    for number, line in enumerate(others):
        makespan, joules = line.figures["makespan"], line.figures["joules"]
        if makespan is None or joules is None:
            continue
        if points and line.policy == "equal":
            continue  # far off: it would press the sweep into a corner; the page has its figures
        errors: Any = {
            "xerr": [[makespan.median - makespan.low], [makespan.high - makespan.median]],
            "yerr": [[joules.median - joules.low], [joules.high - joules.median]],
        }
        axis.errorbar(
            makespan.median, joules.median, **errors, color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)], linestyle="none", markersize=7, label=line.policy,
        )  # fmt: skip
    axis.set_title(row.name, loc="left")
    axis.set_xlabel("makespan, whole run, s")
    axis.set_ylabel("joules of all boards, whole run")
    if not axis.get_legend_handles_labels()[0]:
        axis.annotate("joules unknown", (0.02, 0.96), xycoords="axes fraction", va="top", color="#555555")
        return
    axis.legend(fontsize=7)
    if not points:
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)


def _sweep(axis: Axes, row: RowFigures) -> None:
    """Draw joules by the weight on joules, with goals as level lines."""
    points = [(w, *_xy(line)) for w, line in _weighted(row)]
    axis.plot([w for w, _, _ in points], [y for _, _, y in points], "o-", color="#555555", label="w_e")
    goals = [line for line in row.lines if policy(line.policy).kind == "frontier"]
    for number, line in enumerate(goals, 1):
        level = _xy(line)[1]
        axis.axhline(level, color=COLOURS[number % len(COLOURS)], linestyle="--", linewidth=1.2, label=line.policy)
    axis.set_title(f"{row.name}: joules by weight", loc="left")
    axis.set_xlabel("w_e")
    axis.set_ylabel("joules of all boards, whole run")
    axis.legend(fontsize=7)


def _xy(line: Line) -> tuple[float, float]:
    makespan, joules = line.figures["makespan"], line.figures["joules"]
    return makespan.median if makespan else math.nan, joules.median if joules else math.nan
