# SPDX-License-Identifier: Apache-2.0
"""Silos as the host knows them: who is in one, how many samples it holds, how many of them a round takes. Pure.

The host never names a sample to a board: it names places of a silo's own stream (paceline.silos). A silo's plan is made
of SiloSlices, and one of them cannot be made for a board, or for places, that are not the silo's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import CoreError
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import Pma

SLICES = 1 << 20  # numbers of slices of a round that are a silo's: (round, slice) names one slice of the run


@dataclass(frozen=True)
class Silo:
    """One silo of a run."""

    number: int
    name: str
    boards: tuple[int, ...]
    budget: int  # samples a round
    samples: int  # that it holds: places of one of its epochs

    def slices(self, round_: int, shares: Sequence[tuple[int, int]]) -> list[SiloSlice]:
        """Return a round's slices of (board, share) pairs. Raises CoreError for a board of another silo."""
        return [self.own(item) for item in Pma(self.samples, self.budget).plan(round_, shares)]

    def own(self, item: Slice) -> SiloSlice:
        """Return a slice as one of this silo. Raises CoreError where it is not."""
        index = self.number * SLICES + item.index % SLICES
        return SiloSlice(item.round, index, item.board, item.ranges, item.redealt_from, self)

    def place(self, round_: int) -> int:
        """Return the place of its stream at which a round begins; a round that lapsed leaves its places out."""
        return (round_ - 1) * self.budget


@dataclass(frozen=True)
class SiloSlice(Slice):
    """A slice of one silo, which every slice that is dealt of it is, too."""

    silo: Silo | None = None

    def __post_init__(self) -> None:
        silo = self.silo
        if silo is None or self.board not in silo.boards:
            raise CoreError(f"board {self.board} is not in silo {silo.name if silo else 'none'}: it gets no samples")
        if any(not 0 <= begin < end <= silo.samples for _, begin, end in self.ranges):
            raise CoreError(f"silo {silo.name} holds {silo.samples} samples; {self.ranges} are not all of it")


def as_rows(silos: Sequence[Silo], rules: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Return silos as the journal keeps them, with the rules of their samples."""
    return [
        {"name": s.name, "boards": list(s.boards), "budget": s.budget, "samples": s.samples, "rule": dict(rule)}
        for s, rule in zip(silos, rules, strict=True)
    ]


def of_rows(rows: Sequence[Mapping[str, Any]]) -> list[Silo]:
    """Return the silos that a journal names."""
    return [
        Silo(number, str(row["name"]), tuple(row["boards"]), int(row["budget"]), int(row["samples"]))
        for number, row in enumerate(rows)
    ]
