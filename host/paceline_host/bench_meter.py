# SPDX-License-Identifier: Apache-2.0
"""`paceline bench meter`: what the agent's metering costs here, beside CodeCarbon and pyJoules where a Python has them.

The measuring runs in processes of the agent's, because the host never imports it; here it becomes tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import RunError, StorageError

LIMIT_S = 900.0
OWN = (
    "source",
    "readings/s",
    "CPU, %",
    "us CPU a reading",
    "us a read alone",
    "bytes on the bus",
    "RSS, KiB",
    "start, ms",
)
BESIDE = ("tool", "us a measurement", "measures", "RSS, KiB", "start, ms")
ABOUT = """\
Each source and each tool has a process of its own. Trees are files in a folder and chips are registers in memory that
convert at their datasheet's pace, so the time of a bus, and the kernel's for reading a real sensor, are not in it.

- **CPU**: of one processor, not of all the machine has: the thread that reads, integration and an open window included,
  at the default rate. **us CPU a reading** is the same by reading; most of it is waking up, so it grows where others
  compute meanwhile. **us a read alone**: median of 2000 reads in a row.
- **bytes on the bus**: of a reading and of what is polled for it, addresses included. A byte takes 90 us at 100 kbit/s.
- **RSS**: what importing and opening it has added to the peak. **start**: from its import to a window on a reading.

CodeCarbon (offline tracker) and pyJoules (one package) read the same counter as `rapl`: the constant that names its
folder is replaced, all else is as installed. CodeCarbon's figure includes its model of memory, and it was made for a
measurement every 15 s. A measurement of pyJoules and a read of `rapl` alone are the like of each other.
"""


def run_costs(seconds: float, beside: str) -> dict[str, Any]:
    """Return what each source and tool costs. Raises RunError."""
    order = json.dumps({"seconds": seconds, "beside": beside}) + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "paceline_agent.meter_cost"],
        input=order, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"measuring what a meter costs ended with status {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def own_lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of each source."""
    return [
        [row["source"], row["why_not"], *[""] * (len(OWN) - 2)]
        if "why_not" in row
        else [
            row["source"], f"{row['readings_a_second']:.1f}", f"{row['cpu_percent']:.2f}", f"{row['us_a_reading']:.0f}",
            _or_dash(row.get("us_a_measurement")), _or_dash(row["bytes_a_reading"]), f"{row['rss_kib']}",
            f"{row['start_ms']:.0f}",
        ]
        for row in rows
    ]  # fmt: skip


def beside_lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of each tool."""
    return [
        [row["tool"], row["why_not"], "", "", ""]
        if "why_not" in row
        else [
            f"{row['tool']} {row['version']}", f"{row['us_a_measurement']:.1f}",
            f"every {row['every_s']:.0f} s" if row["every_s"] else "when it is told to", f"{row['rss_kib']}",
            f"{row['start_ms']:.0f}",
        ]
        for row in rows
    ]  # fmt: skip


def text_tables(found: Mapping[str, Any]) -> str:
    """Return both tables for a terminal."""
    return f"{_text(OWN, own_lines(found['own']))}\n\n{_text(BESIDE, beside_lines(found['beside']))}"


def write_page(folder: Path, found: Mapping[str, Any], machine: Mapping[str, object], seconds: float) -> Path:
    """Write meter_cost.md. Raises StorageError."""
    page = folder / "meter_cost.md"
    text = "\n".join(
        [
            "# What a meter costs\n",
            f"Made by `paceline bench meter --seconds {seconds:g} --beside PYTHON --out docs/results`; PYTHON is one "
            "that has codecarbon and pyJoules.\n",
            f"Machine: {', '.join(f'{key} {value}' for key, value in machine.items())}.\n",
            f"{_markdown(OWN, own_lines(found['own']))}\n",
            f"{_markdown(BESIDE, beside_lines(found['beside']))}\n",
            ABOUT,
        ]
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{page}: the page cannot be written: {error.strerror}") from None
    return page


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _text(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [heads, *lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
