# SPDX-License-Identifier: Apache-2.0
"""A partition as one picture: clients by classes, and how much each client holds. Draws counts; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError, StorageError

FORMATS = (".svg", ".png")
STYLE: dict[Any, Any] = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.spines.top": False, "axes.spines.right": False,
    "svg.hashsalt": "paceline", "figure.dpi": 100.0,
}  # fmt: skip
MANY = 24  # clients or classes, from which on not every one has its number written


def draw_partition(table: Sequence[Sequence[int]], title: str, path: Path) -> Path:
    """Write clients x classes counts as SVG or PNG, as the name ends, and return the path. Raises PacelineError."""
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path}: a picture ends in {' or '.join(FORMATS)}")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = np.asarray(table)  # (clients, classes)
    clients, classes = counts.shape
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, min(16.0, 1.9 + 0.22 * clients)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        squares, bars = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
        image = squares.imshow(counts, aspect="auto", cmap="cividis", vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=squares, label="samples", pad=0.02)
        squares.set_xlabel("class")
        squares.set_ylabel("client")
        bars.barh(range(clients), counts.sum(1), color="#0072B2", height=0.8)
        bars.set_xlabel("samples of a client")
        bars.set_ylim(clients - 0.5, -0.5)
        if clients <= MANY:
            squares.set_yticks(range(clients))
        if classes <= MANY:
            squares.set_xticks(range(classes))
        try:
            kind = path.suffix[1:].lower()
            metadata = {"Date": None} if kind == "svg" else {"Software": "paceline"}
            figure.savefig(path, format=kind, metadata=metadata)
        except OSError as error:
            raise StorageError(f"{path}: the picture cannot be written: {error.strerror}") from None
    return path
