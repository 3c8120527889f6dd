# SPDX-License-Identifier: Apache-2.0
"""What a meter has written down (`paceline-agent meter record`), as the watts of a simulated board: over and over."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paceline import foreign
from paceline.energy import EnergyIntegrator
from paceline.errors import CoreError, SettingsError
from paceline.settings import Bounds

SCHEMA = "paceline-trace-1"


@dataclass(frozen=True)
class Traced:
    """A table [[trace]]: files of a board at work and of a board at rest; either may be left out."""

    board: Annotated[int, Bounds(ge=0)]
    active: str = ""
    idle: str = ""


class Trace:
    """One recording, repeated end to end."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises SettingsError with the line that is wrong."""
        try:
            lines = foreign.read_text(path, foreign.MOST_RECORD_BYTES).split("\n")[
                :-1
            ]  # what no newline ends was cut off
            period_us = _head(lines[0] if lines else "")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise SettingsError([f"[[trace]] {path}: {why}; name a file of `paceline-agent meter record`"]) from None
        self._integrator = EnergyIntegrator(period_us)
        self._instants_us: list[int] = []
        self._joules_uj: list[int] = []  # since the first instant
        for number, text in enumerate(lines[1:], 2):
            try:
                self._take(json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError, CoreError) as error:
                raise SettingsError([f"[[trace]] {path}, line {number}: no reading of a trace ({error})"]) from None
        self.length_us = self._instants_us[-1] - self._instants_us[0] if self._instants_us else 0
        if self.length_us <= 0:
            raise SettingsError([f"[[trace]] {path}: it holds no stretch of time, so there are no watts in it"])

    @property
    def knots(self) -> list[tuple[int, int]]:
        """Return all that watts follow from: instants in us, and the uJ from the first one to each."""
        return list(zip(self._instants_us, self._joules_uj, strict=True))

    def mean_w(self, at_us: int = 0, span_us: int = 0) -> float:
        """Return the mean watts from an instant of the recording on; of all of it, where the span is 0."""
        if span_us <= 0:
            return self._joules_uj[-1] / self.length_us
        return (self._upto_uj(at_us + span_us) - self._upto_uj(at_us)) / span_us

    def _take(self, line: dict[str, object]) -> None:
        if "missed" in line:
            return  # the gap is bridged
        if "period_us" in line:
            self._integrator.set_period(_integer(line, "period_us"))
        elif "uj" in line:
            t_us = _integer(line, "t")
            self._integrator.add_counter(t_us, _integer(line, "uj"))
            self._knot(t_us, t_us)
        else:
            begin_us, end_us, power_uw = (_integer(line, key) for key in ("t0", "t1", "uw"))
            if begin_us == end_us:
                self._integrator.add_point(end_us, power_uw)
            else:
                self._integrator.add_interval(begin_us, end_us, power_uw)
            self._knot(begin_us, end_us)

    def _knot(self, begin_us: int, end_us: int) -> None:
        if not self._instants_us:
            self._instants_us.append(begin_us)
            self._joules_uj.append(0)
        if end_us > self._instants_us[-1]:
            part = self._integrator.window(self._instants_us[-1], end_us)
            self._joules_uj.append(self._joules_uj[-1] + ((part.energy_uj or 0) if part is not None else 0))
            self._instants_us.append(end_us)

    def _upto_uj(self, at_us: int) -> float:
        rounds, rest_us = divmod(at_us, self.length_us)
        instant_us = self._instants_us[0] + rest_us
        k = bisect_right(self._instants_us, instant_us) - 1
        before_us, before_uj = self._instants_us[k], self._joules_uj[k]
        here = 0.0
        if instant_us > before_us:
            share = (instant_us - before_us) / (self._instants_us[k + 1] - before_us)
            here = share * (self._joules_uj[k + 1] - before_uj)
        return rounds * self._joules_uj[-1] + before_uj + here


def _head(text: str) -> int:
    line = json.loads(text or "null")
    if not isinstance(line, dict) or line.get("schema") != SCHEMA:
        raise ValueError(f"line 1 is not the head of a {SCHEMA} file")
    return _integer(line, "period_us")


def _integer(line: dict[str, object], key: str) -> int:
    value = line[key]
    if type(value) is not int:
        raise ValueError(f"{key} is {value!r}, expected a whole number")
    return value
