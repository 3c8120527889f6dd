# SPDX-License-Identifier: Apache-2.0
"""What boards draw while they do not compute, from the joules that they report at each round's end. Pure.

A split says how many joules went into waiting, not how many seconds; but what of its span was not spent on computing is
known. So these are the watts of waiting, transfers and the time between rounds together, all of them spent not working.
"""

from __future__ import annotations

from collections import defaultdict

from paceline.wire import Energy

KIND = "waits"  # of the journal's events that say what a plan was told: {board: [seconds, joules]}
IDLE = "idle"  # likewise of what boards drew before the first round: {board: watts}
LEAST_S = 0.01  # shorter stretches are all edges


class Waits:
    """Stretches without work since the last plan, by board."""

    def __init__(self) -> None:
        self._worked_us: dict[int, dict[int, int]] = defaultdict(dict)  # board, round
        self._last: dict[int, Energy] = {}
        self._found: dict[int, tuple[float, float]] = {}

    def worked(self, board: int, round_: int, compute_us: int) -> None:
        """A contribution of a round was accepted."""
        rounds = self._worked_us[board]
        rounds[round_] = rounds.get(round_, 0) + compute_us

    def told(self, board: int, energy: Energy) -> None:
        """A board has reported its cumulative split as of a round's end."""
        before, self._last[board] = self._last.get(board), energy
        rounds = self._worked_us[board]
        worked_us = sum(rounds.pop(number) for number in [number for number in rounds if number <= energy.round])
        if before is None or before.window != energy.window or before.wasted_uj != energy.wasted_uj:
            return
        now, then = _outside_uj(energy), _outside_uj(before)
        seconds = (energy.span_us - before.span_us - worked_us) * 1e-6
        if now is None or then is None or now <= then or seconds < LEAST_S:
            return
        waited = self._found.get(board, (0.0, 0.0))
        self._found[board] = waited[0] + seconds, waited[1] + (now - then) * 1e-6

    def take(self) -> dict[int, tuple[float, float]]:
        """Return (seconds, joules) by board, and forget them."""
        found, self._found = self._found, {}
        return found


def _outside_uj(energy: Energy) -> int | None:
    parts = energy.wait_uj, energy.transfer_uj, energy.other_uj
    return None if None in parts else sum(part for part in parts if part is not None)
