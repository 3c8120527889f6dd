# SPDX-License-Identifier: Apache-2.0
"""`paceline bench energy`: has the agent's integration tried over known loads, and shows what came out.

The trials run in a process of the agent's, because the host never imports it; here they become a table and a page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import RunError, StorageError

Row = Mapping[str, Any]
LIMIT_S = 3600.0  # two minutes with the default of trials on a slow core
HEADS = ("sensor", "readings", "load", "error", "95 of 100", "sampling", "holds", "width", "bound", "holds", "both")
ABOUT = """\
Simulated is the sensor alone: when it looks, over how long, its gain, offset, steps and clock, each drawn within its
datasheet's limits. Integration, bounds and both uncertainties are the agent's own code. The loads' joules are known in
closed form. All figures are percent, of the window's joules or of the trials:

- **error**: of the integration alone, readings without instrument errors; median, and the 95th percentile.
- **sampling**: the sampling uncertainty stated, median; **holds**: in how many trials the truth lies within it. It must
  be 95; with {trials} trials chance alone puts one row in a hundred below {least:.1f}. **width**: by which factor
  the statements could shrink and still hold the truth in 95, at most 3 (DECISIONS 32: half-width / 95th percentile of
  the error, trial by trial, as short and long windows are mixed).
- **bound**: the instrument's worst case stated, median, edges between readings included; **holds**: must be 100.
- **both**: trials in which truth and figure, with all errors at once, are no further apart than both together.

Windows are 2 to 20 s long. Those of points begin and end anywhere; those of intervals and counters on readings for the
error of the integration and anywhere for the rest, because what falls between two of their readings is in the bound.
A counter, and conversions that follow each other, leave nothing to sampling, so they state 0 and the error is rounding.
"""
ENDS = """\
The plot has a fifth sensor, *in step*, read at the same instant of each period as a plain loop does: bursts in step
with it put it off by more than half of the joules, and its own readings cannot tell. The agent reads points at random
instants, so its statement holds there too. Its loads are bursts of 2 and 7.5 W.

Not in it: noise, drift while a window is open, a bus's timing, what a chip's filter does to power between its samples,
and how well a processor's counter is calibrated.
"""


def run_trials(trials: int, seed: int) -> dict[str, Any]:
    """Return the table's rows and the plot's. Raises RunError."""
    command = [sys.executable, "-m", "paceline_agent.trials"]
    order = json.dumps({"trials": trials, "seed": seed}) + "\n"
    done = subprocess.run(command, input=order, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"the trials ended with status {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of each row, without the head."""
    return [
        [
            row["sensor"],
            row["condition"],
            row["load"],
            _figure(row["error_median_percent"]),
            _figure(row["error_95_percent"]),
            _figure(row["sampling_percent"]),
            f"{row['covered_percent']:.1f}",
            f"{row['width']:.2f}",
            _figure(row["bound_percent"]),
            f"{row['bound_held_percent']:.0f}",
            f"{row['both_held_percent']:.1f}" + "".join(f", {claim}: NO" for claim in row["broken"]),
        ]
        for row in rows
    ]


def text_table(rows: Sequence[Row]) -> str:
    """Return the table for a terminal."""
    cells = [list(HEADS), *lines(rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADS))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 3 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def write_page(folder: Path, found: Mapping[str, Any], trials: int, seed: int) -> Path:
    """Write energy_error.md and energy_error.png. Raises StorageError."""
    from paceline_host.plot_energy import draw

    page = folder / "energy_error.md"
    heads = "| " + " | ".join(HEADS) + " |\n|" + "---|" * 3 + "---:|" * (len(HEADS) - 3)
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines(found["rows"]))
    least = 100 * (0.95 - 2.33 * (0.95 * 0.05 / trials) ** 0.5)
    text = "\n".join(
        [
            "# How far joules are off that a meter integrates, and whether it says so\n",
            f"Made by `paceline bench energy --trials {trials} --seed {seed} --out docs/results`, picture and all.\n",
            ABOUT.format(trials=trials, least=least),
            f"{verdict(found['rows'])}\n",
            "![Errors and statements against rate, misses, bursts and lateness](energy_error.png)\n",
            ENDS,
            f"{heads}\n{table}\n",
        ]
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{page}: the page cannot be written: {error.strerror}") from None
    draw(found["sweeps"], folder / "energy_error.png")
    return page


def verdict(rows: Sequence[Row]) -> str:
    """Return in one sentence whether the claims hold."""
    broken = [f"{row['sensor']}, {row['condition']}, {row['load']}: {claim}" for row in rows for claim in row["broken"]]
    whole = sum(not row["broken"] for row in rows)
    least, widest = min(row["covered_percent"] for row in rows), max(row["width"] for row in rows)
    held = sum(row["covered_percent"] * row["told"] for row in rows) / sum(row["told"] for row in rows)
    said = (
        f"{whole} of {len(rows)} rows keep all claims. The sampling uncertainty holds the truth in {held:.1f} of "
        f"100 trials, in the worst row in {least:.1f}; the widest could be {widest:.2f} times narrower."
    )
    return f"{said} Broken: {'; '.join(broken)}." if broken else said


def _figure(percent: float) -> str:
    return "0" if percent < 5e-5 else f"{percent:.2g}" if percent < 1 else f"{percent:.1f}"
