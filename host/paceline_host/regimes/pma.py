# SPDX-License-Identifier: Apache-2.0
"""Periodic model averaging: a round takes the next N places of the stream, cut into one slice a board (DECISIONS 3, 4,
48).

The stream is permutation(epoch 0), permutation(epoch 1), ... of the shared data set; place p is position p mod samples
of epoch p div samples. A slice is trained from the round's base weights, so a re-dealt one is a contribution of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.wire import Range
from paceline_host.regimes import Slice


def ranges_of(begin: int, end: int, samples: int) -> tuple[Range, ...]:
    """Return the places begin..end-1 of the stream as (epoch, begin, end) of each epoch they touch."""
    out = []
    while begin < end:
        epoch, position = divmod(begin, samples)
        length = min(end - begin, samples - position)
        out.append((epoch, position, position + length))
        begin += length
    return tuple(out)


def cut(ranges: Sequence[Range], lengths: Sequence[int]) -> list[tuple[Range, ...]]:
    """Cut ranges into consecutive parts of the given lengths, which sum to theirs."""
    queue = list(ranges)
    parts = []
    for length in lengths:
        part: list[Range] = []
        while length:
            epoch, begin, end = queue.pop(0)
            taken = min(length, end - begin)
            part.append((epoch, begin, begin + taken))
            if begin + taken < end:
                queue.insert(0, (epoch, begin + taken, end))
            length -= taken
        parts.append(tuple(part))
    return parts


class Pma:
    """`samples` in the shared data set, `budget` places of the stream a round."""

    def __init__(self, samples: int, budget: int) -> None:
        self._samples = samples
        self._budget = budget

    def plan(self, round_: int, shares: Sequence[tuple[int, int]]) -> list[Slice]:
        """Return one slice for each board with a share, in board order; together they are the round's places."""
        start = (round_ - 1) * self._budget
        places = ranges_of(start, start + self._budget, self._samples)
        parts = cut(places, [count for _, count in shares])
        return [
            Slice(round_, index, board, part)
            for index, ((board, _), part) in enumerate((s, p) for s, p in zip(shares, parts, strict=True) if p)
        ]

    def on_lost(self, lost: Slice, shares: Sequence[tuple[int, int]], next_index: int) -> list[Slice]:
        """Return the lost slice's places as new slices, one for each board with a share."""
        parts = cut(lost.ranges, [count for _, count in shares])
        kept = [(board, part) for (board, _), part in zip(shares, parts, strict=True) if part]
        return [Slice(lost.round, next_index + i, board, part, lost.index) for i, (board, part) in enumerate(kept)]
