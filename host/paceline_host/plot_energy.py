# SPDX-License-Identifier: Apache-2.0
"""Errors of integration and what was stated of them, as one picture. Draws rows of `paceline bench energy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import StorageError
from paceline_host.plot import COLOURS, MARKERS, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SENSORS = ("ina219", "ina3221", "hwmon", "rapl", "in step")  # a colour and a marker each
PANELS = (
    ("rate", "readings taken more rarely", "times the usual period"),
    ("missed", "readings missed", "share that failed"),
    ("bursts", "bursts of a load, at the usual rate", "seconds from burst to burst"),
    ("late", "readings late, bursts of 0.1 s in step with them", "late by up to so many periods"),
)
LOGARITHMIC = {"rate", "bursts"}
FLOOR = 1e-3  # percent; what is below is rounding


def draw(sweeps: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write the picture as PNG and return its path. Raises StorageError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 7.6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            "Integrated joules: the 95th percentile of the error (lines) and the sampling uncertainty stated (dashes)",
            fontsize=11, x=0.01, ha="left",
        )  # fmt: skip
        axes = figure.subplots(2, 2)
        for axis, (sweep, title, x_label) in zip(axes.flat, PANELS, strict=True):
            _panel(
                axis, [row for row in sweeps if row["sweep"] == sweep], title, x_label, logarithmic=sweep in LOGARITHMIC
            )
        handles = [axes[0][0].plot([], [], label=name, **_look(name))[0] for name in SENSORS]
        figure.legend(handles, SENSORS, loc="outside lower center", ncols=len(SENSORS))
        try:
            figure.savefig(path, format="png", metadata={"Software": "paceline"})
        except OSError as error:
            raise StorageError(f"{path}: the picture cannot be written: {error.strerror}") from None
    return path


def _panel(axis: Axes, rows: Sequence[Mapping[str, Any]], title: str, x_label: str, *, logarithmic: bool) -> None:
    for name in SENSORS:
        mine = [row for row in rows if row["sensor"] == name]
        if not mine:
            continue
        xs = [row["x"] for row in mine]
        look = _look(name)
        axis.plot(xs, [max(FLOOR, row["error_95_percent"]) for row in mine], **look)
        axis.plot(
            xs,
            [max(FLOOR, row["sampling_percent"]) for row in mine],
            linestyle="--",
            linewidth=1.2,
            color=look["color"],
        )
    axis.set_yscale("log")
    axis.set_ylim(FLOOR * 0.7, 300)
    if logarithmic:
        axis.set_xscale("log")
        axis.set_xticks(sorted({row["x"] for row in rows}), [f"{x:g}" for x in sorted({row["x"] for row in rows})])
        axis.minorticks_off()
    axis.set_title(title, loc="left")
    axis.set_xlabel(x_label)
    axis.set_ylabel("% of the window's joules")


def _look(name: str) -> dict[str, Any]:
    index = SENSORS.index(name)
    return {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 5, "linewidth": 1.6}
