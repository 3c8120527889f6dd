# SPDX-License-Identifier: Apache-2.0
"""Meters that print: one JSON object or one line of comma-separated values for each reading. Pure.

What a value means is declared in agent.toml, never guessed: one unit a column, or KEY=UNIT for JSON. A line that lacks
a declared value, or has none that is a number, is damaged, never 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

LINE_BYTES = 1024  # longest line that is looked at
UNITS = {  # unit -> (quantity, what one is in that quantity's own unit)
    "w": ("power_uw", 1e6), "mw": ("power_uw", 1e3), "uw": ("power_uw", 1.0),
    "v": ("volts", 1.0), "mv": ("volts", 1e-3), "a": ("amps", 1.0), "ma": ("amps", 1e-3),
    "j": ("energy_nj", 1e9), "mj": ("energy_nj", 1e6), "wh": ("energy_nj", 3.6e12), "mwh": ("energy_nj", 3.6e9),
    "t_s": ("t_us", 1e6), "t_ms": ("t_us", 1e3), "t_us": ("t_us", 1.0), "seq": ("sequence", 1.0),
}  # fmt: skip
SKIP = "-"  # a column that is not used
COMPLETE = ({"power_uw"}, {"volts", "amps"}, {"energy_nj"})


@dataclass(frozen=True)
class Line:
    """One reading; None: not declared."""

    power_uw: int | None
    energy_nj: int | None
    t_us: int | None
    sequence: int | None


@dataclass(frozen=True)
class _Column:
    key: str
    quantity: str
    scale: float


def check_channels(style: str, channels: tuple[str, ...]) -> None:
    """Raise ValueError with a sentence when these columns make no reading."""
    columns = _columns(style, channels)
    named = sorted(column.quantity for column in columns if column is not None)
    values = set(named) - {"t_us", "sequence"}
    if values not in COMPLETE or len(set(named)) < len(named):
        raise ValueError(
            "meter.channels: expected each once: a power (w, mw, uw), or volts and amps (v, mv; a, ma), or an energy "
            f"(j, mj, wh, mwh), with t_s, t_ms or t_us and seq beside it where there are such; got {list(channels)}"
        )


class LineParser:
    """Bytes in any pieces -> readings. Raises nothing, and holds at most one line."""

    def __init__(self, style: str, channels: tuple[str, ...]) -> None:
        self._columns = _columns(style, channels)
        self._read: Callable[[str], dict[str, object]] = _json if style == "json" else _csv
        self._part = bytearray()
        self._skipping = True  # the first line may be the end of one
        self.damaged = 0
        self.unknown = 0  # header lines and comments of a csv meter

    def feed(self, data: bytes) -> list[Line]:
        """Return the readings that these bytes complete."""
        lines = []
        *ends, rest = data.split(b"\n")
        for piece in ends:
            self._hold(piece)
            text = bytes(self._part).strip()
            if text and not self._skipping:
                line = self._line(text)
                if line is not None:
                    lines.append(line)
            self._part.clear()
            self._skipping = False
        self._hold(rest)
        return lines

    def cut(self) -> None:
        """The line was broken: what comes next may begin inside a reading."""
        self._part.clear()
        self._skipping = True

    def _hold(self, piece: bytes) -> None:
        if self._skipping:
            return
        if len(self._part) + len(piece) > LINE_BYTES:
            self._skipping = True
            self._part.clear()
            self.damaged += 1
        else:
            self._part += piece

    def _line(self, text: bytes) -> Line | None:
        try:
            found = self._read(text.decode("ascii"))
            values = {c.quantity: _number(found[c.key]) * c.scale for c in self._columns if c is not None}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            self.damaged += 1
            return None
        if "volts" in values:
            values["power_uw"] = values["volts"] * values["amps"] * 1e6
        if any(abs(value) > 2**62 for value in values.values()):
            self.damaged += 1
            return None
        whole = {quantity: round(value) for quantity, value in values.items()}
        return Line(whole.get("power_uw"), whole.get("energy_nj"), whole.get("t_us"), whole.get("sequence"))


def _columns(style: str, channels: tuple[str, ...]) -> list[_Column | None]:
    columns: list[_Column | None] = []
    for place, text in enumerate(channels):
        key, _, unit = text.rpartition("=") if style == "json" else (str(place), "", text)
        if text == SKIP and style == "csv":
            columns.append(None)
            continue
        if unit not in UNITS or not key:
            form = "KEY=UNIT" if style == "json" else f"a unit, or {SKIP} for a column to pass over"
            raise ValueError(f"meter.channels: expected {form}, units {', '.join(UNITS)}; got {text!r}")
        columns.append(_Column(key, *UNITS[unit]))
    return columns


def _json(text: str) -> dict[str, object]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _csv(text: str) -> dict[str, object]:
    return {str(place): cell for place, cell in enumerate(text.split(","))}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no number")
    return number
