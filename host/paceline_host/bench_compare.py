# SPDX-License-Identifier: Apache-2.0
"""Figures of a benchmark beside those that an earlier one had saved: ratios, and what has become slower. Pure.

A figure counts as changed only where the two ranges leave each other's median out and the medians differ by a tenth:
what lies nearer is what one machine shows from one minute to the next. Ratios among contenders are not judged: whether
more is better depends on who is above the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline import foreign
from paceline.errors import DataError

SCHEMA = "paceline-bench-1"
JUDGED = ("ns", "us", "ms", "s", "MiB")  # less is better
NOTEWORTHY = 1.1  # a ratio of medians, either way

Figure = Mapping[str, Any]


def read_saved(path: Path) -> dict[str, Any]:
    """Return what `paceline bench --json` had printed. Raises DataError."""
    try:
        saved = json.loads(foreign.read_text(path))
    except OSError as error:
        raise DataError(f"--compare {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        saved = None
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA or not _are_figures(saved.get("figures")):
        raise DataError(f"--compare {path}: is not what `paceline bench --json` prints; expected schema {SCHEMA}")
    return saved


def compared(figures: Sequence[Figure], saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures with `then` (the old median), `ratio` and `verdict` added; None of what was not there."""
    old = {(row["name"], row["unit"]): row for row in saved["figures"]}
    return [{**row, **_beside(row, old.get((row["name"], row["unit"])))} for row in figures]


def verdicts(rows: Sequence[Figure], saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return what is to be said of the comparison, a sentence each."""
    slower = [f"{row['name']} ({row['ratio']:.2f}x)" for row in rows if row["verdict"] == "slower"]
    faster = [f"{row['name']} ({row['ratio']:.2f}x)" for row in rows if row["verdict"] == "faster"]
    missing = [row["name"] for row in rows if row["ratio"] is None]
    lines = ["slower than before: " + "; ".join(slower) if slower else "nothing is slower than before"]
    if faster:
        lines.append("faster than before: " + "; ".join(faster))
    if missing:
        lines.append("without a figure of before: " + "; ".join(missing))
    then = saved.get("machine") or {}
    other = [f"{key} {then.get(key)} before, {value} now" for key, value in here.items() if then.get(key) != value]
    if other:
        lines.append("taken under other conditions, so the ratios tell of these too: " + "; ".join(other))
    return lines


def _beside(now: Figure, then: Figure | None) -> dict[str, Any]:
    if then is None or not then["median"]:
        return {"then": None, "ratio": None, "verdict": ""}
    ratio = now["median"] / then["median"]
    return {"then": then["median"], "ratio": ratio, "verdict": _verdict(now, then, ratio)}


def _verdict(now: Figure, then: Figure, ratio: float) -> str:
    if now["unit"] not in JUDGED:
        return ""
    if ratio >= NOTEWORTHY and now["least"] > then["median"] and now["median"] > then["most"]:
        return "slower" if now["unit"] != "MiB" else "larger"
    if ratio <= 1 / NOTEWORTHY and now["most"] < then["median"] and now["median"] < then["least"]:
        return "faster" if now["unit"] != "MiB" else "smaller"
    return "alike"


def _are_figures(rows: object) -> bool:
    keys: dict[str, type | tuple[type, ...]] = {"name": str, "unit": str}
    keys |= dict.fromkeys(("median", "least", "most"), (int, float))
    return isinstance(rows, list) and all(
        isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in keys.items()) for row in rows
    )
