# SPDX-License-Identifier: Apache-2.0
"""The samples of one round of ranks: whose they are, which steps are counted, what is dealt anew. Pure.

Slices keep account: they cut the round's places rank by rank (DECISIONS 15), so that their sizes are the shares; which
places a rank takes in a step follows from the shares (paceline.uneven). When a group forms anew, each slice is split
into what its steps have counted, and what is dealt again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.uneven import Deal
from paceline.wire import Range
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import cut


class RoundPlan:
    """`slices`: those of the present group, one a board. `counted`: of groups before it, with the steps of each."""

    def __init__(self, slices: Sequence[Slice], place: int, steps: int, minimum: int, next_index: int) -> None:
        self.slices = list(slices)
        self.counted: list[tuple[Slice, int]] = []
        self.place = place  # of the stream, where the open steps begin
        self.first = 0  # the first open step
        self.next_index = next_index
        self._all, self._minimum = steps, minimum
        self._start, self._origin = place, slices[0]
        self._stretch = [piece for item in slices for piece in item.ranges]

    @property
    def steps(self) -> int:
        """Open steps."""
        return self._all - self.first

    @property
    def least(self) -> int:
        """Samples that a board needs at least for the open steps."""
        return self.steps * self._minimum

    @property
    def left(self) -> int:
        """Samples of the open steps."""
        return sum(item.samples for item in self.slices)

    @property
    def shares(self) -> dict[int, int]:
        """Samples of each board in the open steps."""
        return {item.board: item.samples for item in self.slices}

    def deal_anew(
        self, steps: int, ranks: Sequence[int], divide: Callable[[int, int], Sequence[tuple[int, int]]]
    ) -> list[Slice]:
        """Count the steps before `steps`, by boards in the order of their ranks, and deal the rest anew.

        `divide(samples, least)` returns (board, share) pairs. Returns all slices that take the place of the old ones.
        """
        new, old = steps - self.first, self.slices
        deal = Deal([self.shares.get(board, 0) for board in ranks], self.steps, self._minimum) if new else None
        left: list[Range] = []
        kept: list[Slice] = []
        for item in old:
            given = 0
            if deal is not None:
                rank = list(ranks).index(item.board)
                given = sum(deal.counts(step, rank)[0] for step in range(new))
            mine, rest = cut(item.ranges, [given, item.samples - given])
            left += rest
            if given:
                kept.append(item.dealt(self.next_index + len(kept), item.board, mine))
        self.next_index += len(kept)
        self.counted += [(item, new) for item in kept]
        self.place += deal.done(new) if deal is not None else 0
        self.first = steps
        total = sum(end - begin for _, begin, end in left)
        self._give(left, divide(total, self.least) if total else [])
        return [*kept, *self.slices]

    def begin_anew(self, divide: Callable[[int, int], Sequence[tuple[int, int]]]) -> list[Slice]:
        """Nothing of the round counts: deal all of it."""
        self.first, self.place = 0, self._start
        self.counted.clear()
        total = sum(end - begin for _, begin, end in self._stretch)
        self._give(self._stretch, divide(total, self.least))
        return list(self.slices)

    def _give(self, ranges: Sequence[Range], shares: Sequence[tuple[int, int]]) -> None:
        old = self.slices[0] if self.slices else self._origin  # none are left where all steps are counted
        shares = [pair for pair in shares if pair[1]]
        parts = cut(ranges, [count for _, count in shares])
        self.slices = [
            old.dealt(self.next_index + i, board, part)
            for i, ((board, _), part) in enumerate(zip(shares, parts, strict=True))
        ]
        self.next_index += len(self.slices)
