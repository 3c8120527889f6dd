# SPDX-License-Identifier: Apache-2.0
"""How a study goes on: cells over, time to go. Knows time and text; no process and no file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline_host.studies.design import Cell

EVERY_S = 15.0  # between two lines


class Progress:
    """`over` hears each finished cell, `tick` passes the time."""

    def __init__(
        self, cells: Sequence[Cell], found: Mapping[str, Mapping[str, Any]], jobs: int, say: Callable[[str], object]
    ) -> None:
        self._say, self._jobs, self._all = say, jobs, len(cells)
        self.finished = len(found)
        self._walls: dict[str, list[float]] = {}  # by model
        self._left: dict[str, int] = {}
        for cell in cells:
            if cell.key() not in found:
                self._left[cell.setting.model] = self._left.get(cell.setting.model, 0) + 1
        self._told_s = time.monotonic()
        if found:
            say(f"{len(found)} of {len(cells)} cells are finished already")

    def over(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Take note of a finished cell."""
        self.finished += 1
        model = cell.setting.model
        self._left[model] -= 1
        self._walls.setdefault(model, []).append(record["wall_s"])
        accuracy = record.get("accuracy")
        self._last = (
            f"{cell.setting.text()}, seed {cell.seed}: {'diverged' if accuracy is None else f'{100 * accuracy:.1f} %'}"
        )
        if self.finished == self._all:
            self._say(f"{self.finished}/{self._all} cells; {self._last}")

    def tick(self, running: Sequence[tuple[Cell, float]]) -> None:
        """Say how it goes, if it is time to."""
        if time.monotonic() < self._told_s + EVERY_S or not self._walls:
            return
        self._told_s = time.monotonic()
        self._say(f"{self.finished}/{self._all} cells; {self._last}; about {clock(self.to_go_s(running))} to go")

    def to_go_s(self, running: Sequence[tuple[Cell, float]]) -> float:
        """Return the seconds that are left, by the mean of each model's cells so far."""
        known = [wall for walls in self._walls.values() for wall in walls]
        mean = {model: sum(walls) / len(walls) for model, walls in self._walls.items()}
        work = sum(count * mean.get(model, sum(known) / len(known)) for model, count in self._left.items())
        return max(0.0, work - sum(seconds for _, seconds in running)) / self._jobs


def clock(seconds: float) -> str:
    """Return a duration for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
