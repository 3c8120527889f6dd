# SPDX-License-Identifier: Apache-2.0
"""Regimes by name: what is synchronised and when. A regime is pure and knows no journal, lease, meter or controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Protocol, Self

from paceline.errors import RunError
from paceline.quick import quicken
from paceline.wire import Range

REGIMES = {"pma": "paceline_host.regimes.pma:Pma"}


@dataclass(frozen=True)
class Slice:
    """Ranges of the sample stream that one board is to process in one round. `index` orders the aggregation."""

    round: int
    index: int
    board: int
    ranges: tuple[Range, ...]
    redealt_from: int | None = None

    @property
    def samples(self) -> int:
        """How many samples the ranges hold."""
        return sum(end - begin for _, begin, end in self.ranges)

    def dealt(self, index: int, board: int, ranges: tuple[Range, ...]) -> Self:
        """Return some of its ranges as a slice that takes its place, of the same kind."""
        return replace(self, index=index, board=board, ranges=ranges, redealt_from=self.index)


quicken((Slice,))


class Regime(Protocol):
    """Plan of a round, and what becomes of a slice whose board was lost."""

    def plan(self, round_: int, shares: Sequence[tuple[int, int]]) -> list[Slice]:
        """Return the slices of a round from (board, samples) pairs."""
        ...

    def on_lost(self, lost: Slice, shares: Sequence[tuple[int, int]], next_index: int) -> list[Slice]:
        """Return new slices that cover exactly what the lost one held."""
        ...


def make(name: str, samples: int, budget: int) -> Regime:
    """Return the regime of a name for a data set of `samples` and a budget per round. Raises RunError."""
    if name not in REGIMES:
        raise RunError(f"[run] regime = {name!r} is not known; known: {', '.join(REGIMES)}")
    module, attribute = REGIMES[name].split(":")
    regime: Regime = getattr(import_module(module), attribute)(samples, budget)
    return regime
