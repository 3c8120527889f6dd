# SPDX-License-Identifier: Apache-2.0
"""The page's pictures: which of a report's figures go into which chart, with its legend and its words."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_host import charts
from paceline_host.figures import RunFigures
from paceline_host.markup import Markup, join, tag
from paceline_host.records import PARTS
from paceline_host.report import UNKNOWN, Report, policies


def section(report: Report) -> Markup:
    """Return all charts of a report."""
    names = policies(report.runs)
    top = max((n for run in report.runs for row in run.rounds for n in row.samples.values()), default=1)
    shares = [_shares(run, name, top, len(names) > 1) for run, name in zip(report.runs, names, strict=True)]
    return join(
        tag("section", tag("h2", "Seconds, joules, accuracy"),
            tag("div", _makespans(report, names), _joules(report, names), _accuracy(report, names, of_joules=False),
                _accuracy(report, names, of_joules=True), class_="charts two")),
        tag("section", tag("h2", "Shares"),
            tag("p", f"Samples of each round by board: a row is a board, a bar is a round. All on one scale: a full "
                f"bar is {top:,} samples.", class_="soft"),
            tag("div", shares, class_="charts")),
    )  # fmt: skip


def _shares(run: RunFigures, name: str, top: int, several: bool) -> Markup:
    rows = [(board, [row.samples.get(board, 0) for row in run.rounds]) for board in run.boards]
    about = "; ".join(f"{board} from {v[0]:,} to {v[-1]:,}" for board, v in rows if v)
    title = f"shares of each board over the rounds, {name}"
    chart = charts.bars_by_row(title, about, rows, top_of_scale=top)
    return tag("figure", tag("h3", name) if several else None, chart)


def _makespans(report: Report, names: Sequence[str]) -> Markup:
    series = [
        charts.Line(
            name,
            [(row.round, row.makespan_s) for row in run.rounds],
            i,
            [(row.round, row.predicted_s) for row in run.rounds] if _predicted(run) else (),
        )
        for i, (run, name) in enumerate(zip(report.runs, names, strict=True))
    ]
    about = "; ".join(
        f"{line.name}: first {line.points[0][1]:.2f} s, last {line.points[-1][1]:.2f} s"
        for line in series
        if line.points
    )
    predicted = any(line.predicted for line in series)
    said = "Rings: the closed form, from the declared pace and the executed shares." if predicted else ""
    title = "Makespan of each round"
    chart = charts.lines(title, about, series, x_label="round", y_label="seconds (evaluation left out)", whole_x=True)
    return _figure(title, chart, _legend(names), said)


def _predicted(run: RunFigures) -> bool:
    return any(row.predicted_s is not None for row in run.rounds)


def _joules(report: Report, names: Sequence[str]) -> Markup:
    bars = []
    for run, name in zip(report.runs, names, strict=True):
        joules = run.joules
        parts = None if joules.parts_j is None else [(part, joules.parts_j[part]) for part in PARTS]
        total = UNKNOWN
        if joules.total_j is not None:
            total = f"{'' if joules.complete else '≥ '}{joules.total_j:,.1f} J, {joules.label}"
        bars.append(charts.Stack(name, parts, total))
    title = "Joules of all boards, whole run"
    keys = [tag("li", tag("span", class_=f"key p-{part}"), part) for part in PARTS]
    chart = charts.stacks(title, "; ".join(f"{bar.name}: {bar.text}" for bar in bars), bars)
    missing = [
        f"{n}: {', '.join(r.joules.unknown)}" for r, n in zip(report.runs, names, strict=True) if r.joules.unknown
    ]
    said = f"Unknown, wholly or for a time, on {'; '.join(missing)}." if missing else ""
    return _figure(title, chart, tag("ul", keys, class_="legend"), said)


def _accuracy(report: Report, names: Sequence[str], *, of_joules: bool) -> Markup:
    """Accuracy where the task has one, else loss; a run whose joules are unknown is left out, and that is said."""
    has_accuracy = any(row.accuracy is not None for run in report.runs for row in run.rounds)
    what = "Accuracy" if has_accuracy else "Loss"
    series, left_out = [], []
    for i, (run, name) in enumerate(zip(report.runs, names, strict=True)):
        if of_joules and not run.joules.complete:
            left_out.append(name)
            continue
        points = [
            (row.joules if of_joules else row.end_s, 100 * row.accuracy if row.accuracy is not None else None)
            if has_accuracy
            else (row.joules if of_joules else row.end_s, row.loss)
            for row in run.rounds
        ]
        series.append(charts.Line(name, [(x, y) for x, y in points if x is not None], i))
    labels = ", ".join(sorted({run.joules.label for run in report.runs}))
    title = f"{what} against {f'joules ({labels})' if of_joules else 'time'}"
    ends = [(line.name, [y for _, y in line.points if y is not None]) for line in series]
    about = "; ".join(f"{name}: {ys[-1]:.4g} at the end" for name, ys in ends if ys)
    chart = charts.lines(
        title, about, series,
        x_label="J so far, all boards" if of_joules else "s of rounds so far (evaluation left out)",
        y_label="accuracy, %" if has_accuracy else f"loss ({report.runs[0].metric})", y_from_zero=False,
    )  # fmt: skip
    said = f"Left out, because their joules are unknown: {', '.join(left_out)}." if left_out else ""
    return _figure(title, chart, _legend(names), said)


def _figure(title: str, chart: Markup, legend: Markup | None, said: str) -> Markup:
    return tag("figure", tag("h3", title), chart, legend, tag("figcaption", said) if said else None)


def _legend(names: Sequence[str]) -> Markup | None:
    if len(names) == 1:
        return None
    return tag("ul", [tag("li", charts.swatch(i), name) for i, name in enumerate(names)], class_="legend")
