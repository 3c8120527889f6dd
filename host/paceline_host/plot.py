# SPDX-License-Identifier: Apache-2.0
"""The comparison as one picture: shares, makespans, joules, accuracy. Draws what `report` holds; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import StorageError
from paceline_host.figures import RunFigures
from paceline_host.records import PARTS
from paceline_host.report import Report, policies

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's eight colours, which the common kinds of colour blindness leave apart; markers say the same again.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")  # boards beyond the eighth repeat the colours, not the dashes
PART_COLOURS = {"compute": "#0072B2", "wait": "#E69F00", "transfer": "#009E73", "wasted": "#D55E00", "other": "#999999"}
STYLE: dict[Any, Any] = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3, "grid.linewidth": 0.6, "legend.frameon": False, "figure.dpi": 100.0,
}  # fmt: skip
SHARES_A_ROW = 4


def draw(report: Report, path: Path) -> Path:
    """Write the picture as PNG and return its path. Raises StorageError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        share_rows = math.ceil(len(report.runs) / SHARES_A_ROW)
        figure = Figure(figsize=(14.0, 4.2 + 3.6 * (share_rows + 1)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(_title(report), fontsize=11, x=0.01, ha="left")
        parts: Any = figure.subfigures(2, 1, height_ratios=[3.6 * share_rows + 0.9, 7.2])
        top, below = parts
        _shares(top, report)
        axes = below.subplots(2, 2)
        _makespans(axes[0][0], report)
        _joules(axes[0][1], report)
        _accuracy(axes[1][0], report, against_joules=False)
        _accuracy(axes[1][1], report, against_joules=True)
        lines, labels = axes[0][0].get_legend_handles_labels()  # one legend for all runs, in nobody's way
        below.legend(lines, labels, loc="outside lower center", ncols=len(labels))
        try:
            figure.savefig(path, format="png", metadata={"Software": "paceline"})
        except OSError as error:
            raise StorageError(f"{path}: the picture cannot be written: {error.strerror}") from None
    return path


def _title(report: Report) -> str:
    run = report.runs[0]
    facts = run.run
    return (
        f"{report.name}: {facts.task}, {facts.rounds} rounds x {facts.budget} samples, {len(run.boards)} boards, "
        f"data: {facts.data_label}"
    )


def _shares(figure: Any, report: Report) -> None:
    """One small picture a run, all on one scale, one legend for the boards."""
    runs, names = report.runs, policies(report.runs)
    columns = min(SHARES_A_ROW, len(runs))
    axes = figure.subplots(math.ceil(len(runs) / columns), columns, sharey=True, squeeze=False)
    boards = list(dict.fromkeys(board for run in runs for board in run.boards))
    for index, axis in enumerate(axes.flat):
        if index >= len(runs):
            axis.set_axis_off()
            continue
        run = runs[index]
        rounds = [row.round for row in run.rounds]
        for number, board in enumerate(boards):
            counts = [row.samples.get(board, 0) for row in run.rounds]
            axis.plot(rounds, counts, label=board, **_board_style(number))
        axis.set_title(f"shares: {names[index]}", loc="left")
        axis.set_xlabel("round")
        _whole_rounds(axis, rounds)
        if index % columns == 0:
            axis.set_ylabel("samples a round")
    axes.flat[0].set_ylim(bottom=0)  # last: it ends the scaling to the data, for all of them
    lines, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right center", title="boards", fontsize=8, handlelength=3.2)


def _makespans(axis: Axes, report: Report) -> None:
    for index, (run, name) in enumerate(zip(report.runs, policies(report.runs), strict=True)):
        rounds = [row.round for row in run.rounds]
        axis.plot(rounds, [row.makespan_s for row in run.rounds], label=name, **_run_style(index))
        predicted = [math.nan if row.predicted_s is None else row.predicted_s for row in run.rounds]
        axis.plot(rounds, predicted, linestyle=":", linewidth=1.6, color=_run_style(index)["color"], alpha=0.8)
    if any(row.predicted_s is not None for run in report.runs for row in run.rounds):
        axis.plot([], [], linestyle=":", linewidth=1.6, color="#555555", label="closed form")
    axis.set_title("makespan of each round (evaluation left out)", loc="left")
    axis.set_xlabel("round")
    axis.set_ylabel("seconds")
    axis.set_ylim(bottom=0)
    _whole_rounds(axis, [row.round for run in report.runs for row in run.rounds])


def _joules(axis: Axes, report: Report) -> None:
    names = policies(report.runs)
    known = [run.joules.parts_j for run in report.runs]
    bottoms = [0.0] * len(names)
    for part in PARTS:
        heights = [parts[part] if parts is not None else 0.0 for parts in known]
        axis.bar(names, heights, 0.6, bottom=bottoms, label=part, color=PART_COLOURS[part], edgecolor="white")
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for index, run in enumerate(report.runs):
        axis.annotate(_joules_text(run), (index, bottoms[index]), (0, 3), textcoords="offset points", ha="center")
    axis.set_ylim(0, max([*bottoms, 1e-9]) * 1.15)
    axis.set_title(f"joules of all boards, whole run ({_labels(report)})", loc="left")
    axis.set_ylabel("joules")
    axis.grid(axis="x", visible=False)
    axis.set_xlim(-0.6, len(names) - 0.4)
    if len(names) > 4:
        axis.tick_params(axis="x", rotation=20)
    lines, labels = axis.get_legend_handles_labels()
    axis.legend(lines[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def _accuracy(axis: Axes, report: Report, *, against_joules: bool) -> None:
    """Accuracy where the task has one, else loss; unknown joules leave their run out, and that is said."""
    has_accuracy = any(row.accuracy is not None for run in report.runs for row in run.rounds)
    left_out = []
    for index, (run, name) in enumerate(zip(report.runs, policies(report.runs), strict=True)):
        if against_joules and not run.joules.complete:
            left_out.append(name)
            continue
        xs = [row.joules if against_joules else row.end_s for row in run.rounds]
        values = [row.accuracy if has_accuracy else row.loss for row in run.rounds]
        points = [(x, y) for x, y in zip(xs, values, strict=True) if x is not None and y is not None]
        scale = 100.0 if has_accuracy else 1.0
        axis.plot([x for x, _ in points], [scale * y for _, y in points], label=name, **_run_style(index))
    what = "accuracy" if has_accuracy else "loss"
    axis.set_title(f"{what} against {f'joules ({_labels(report)})' if against_joules else 'time'}", loc="left")
    axis.set_xlabel(
        "joules of all boards so far" if against_joules else "seconds of rounds so far (evaluation left out)"
    )
    axis.set_ylabel("accuracy, %" if has_accuracy else f"loss ({report.runs[0].metric})")
    axis.set_xlim(left=0)
    if left_out:
        text = f"joules unknown: {', '.join(left_out)}"
        axis.annotate(text, (0.02, 0.96), xycoords="axes fraction", va="top", color="#555555")


def _joules_text(run: RunFigures) -> str:
    total = run.joules.total_j
    if total is None:
        return "unknown"
    return f"{'' if run.joules.complete else '>= '}{total:,.0f} J" if total >= 100 else f"{total:.3g} J"


def _labels(report: Report) -> str:
    return ", ".join(sorted({run.joules.label for run in report.runs}))


def _run_style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "markersize": 5,
        "linewidth": 1.6,
    }  # fmt: skip


def _board_style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)], "markersize": 4, "linewidth": 1.4,
    }  # fmt: skip


def _whole_rounds(axis: Axes, rounds: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if rounds:
        axis.set_xlim(min(rounds) - 0.4, max(rounds) + 0.4)
