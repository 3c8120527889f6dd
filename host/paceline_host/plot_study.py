# SPDX-License-Identifier: Apache-2.0
"""A study as one picture: accuracy by epoch, and label deviation by step. Draws records; computes means alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import StorageError
from paceline_host.plot import COLOURS, DASHES, STYLE
from paceline_host.studies.design import Setting
from paceline_host.studies.figures import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

A_ROW = 3
Records = Mapping[int, Mapping[str, Any]]


def draw_study(made: Figures, path: Path) -> Path:
    """Write the picture as PNG and return its path. Raises StorageError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = list(dict.fromkeys(setting.where() for setting in made.records if setting.partition))
    methods = list(dict.fromkeys(setting.method for setting in made.records))
    rows = 2 * max(1, math.ceil(len(places) / A_ROW))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14.0, 2.7 * rows + 1.0), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{made.study.title}: means and ranges over seeds", fontsize=11, x=0.01, ha="left")
        axes = figure.subplots(rows, A_ROW, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for index, place in enumerate(places):
            row, column = 2 * (index // A_ROW), index % A_ROW
            _curves(axes[row][column], made, place, methods)
            _deviations(axes[row + 1][column], made, place, methods)
        handles: dict[str, Any] = {}
        for axis in axes.flat:
            handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=max(1, len(handles)))
        try:
            figure.savefig(path, format="png", dpi=75.0, metadata={"Software": "paceline"})
        except OSError as error:
            raise StorageError(f"{path}: the picture cannot be written: {error.strerror}") from None
    return path


def _found(made: Figures, place: tuple[str, str, int, int], method: str) -> Records:
    model, partition, clients, batch = place
    if method == "central":
        partition, clients = "", 0
    found = made.records.get(Setting(model, partition, clients, batch, method), {})
    return {seed: record for seed, record in found.items() if "failed" not in record}


def _curves(axis: Axes, made: Figures, place: tuple[str, str, int, int], methods: Sequence[str]) -> None:
    model, partition, clients, batch = place
    axis.set_axis_on()
    axis.set_title(f"{model}: {partition}, K {clients}, B {batch}", loc="left")
    for number, method in enumerate(methods):
        points: dict[int, list[float]] = {}  # epochs' worth of samples -> accuracies
        for record in _found(made, place, method).values():
            seen, reached = 0, {}
            for one in record["curve"]:
                seen += one["samples"]
                if one["accuracy"] is not None:
                    reached[math.ceil(seen / _samples(record) - 1e-9)] = 100 * one["accuracy"]
            for epochs, accuracy in reached.items():
                points.setdefault(epochs, []).append(accuracy)
        if not points:
            continue
        xs = sorted(points)
        axis.plot(xs, [statistics.fmean(points[x]) for x in xs], label=method, **_style(number))
        low, high = [min(points[x]) for x in xs], [max(points[x]) for x in xs]
        axis.fill_between(xs, low, high, color=_style(number)["color"], alpha=0.08, linewidth=0)
    axis.set_xlabel("epochs' worth of samples")
    axis.set_ylabel("test accuracy, %")
    axis.set_ylim(0, 100)


def _samples(record: Mapping[str, Any]) -> float:
    """Return the samples of a whole epoch, or a little more where epochs are cut."""
    total: float = sum(one["samples"] for one in record["curve"])
    return total / float(record["cell"]["epochs"])


def _deviations(axis: Axes, made: Figures, place: tuple[str, str, int, int], methods: Sequence[str]) -> None:
    axis.set_axis_on()
    for number, method in enumerate(methods):
        steps: list[list[float]] = []
        for record in _found(made, place, method).values():
            for step, l1 in enumerate(record["l1"]):
                if step == len(steps):
                    steps.append([])
                steps[step].append(l1)
        if steps:
            axis.plot(range(1, len(steps) + 1), [statistics.fmean(each) for each in steps], **_style(number))
    exact = next(iter(_found(made, place, "gpsl").values()), None)
    if exact is not None:
        axis.axhline(
            exact["l1_expected"][0], color="#555555", linestyle=":", linewidth=1.2, label="exact sampling of B"
        )
    axis.set_xlabel("step of the last epoch")
    axis.set_ylabel("L1 label deviation")
    axis.set_ylim(bottom=0)


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.6}
