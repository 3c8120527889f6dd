# SPDX-License-Identifier: Apache-2.0
"""A board's part of a schedule of split learning <-> bytes: how many samples each of its clients gives in each step.

Rows say where each client stands when they begin, so that whoever holds the newest rows knows every position, whatever
steps were void before (DECISIONS 23). Pure: knows no link and no sample.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import RemoteProtocolError
from paceline.wire import SCHEDULE_BYTES

_HEAD = struct.Struct("<4I")  # first step, rows, clients, steps of the epoch


@dataclass(frozen=True)
class Rows:
    """`counts[i][c]` samples of client c in step first + i; before step `first` client c has given used[c]."""

    first: int
    epoch_steps: int
    used: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]

    def encode(self) -> bytes:
        """Return the rows as they travel."""
        words = array("I", self.used)
        for row in self.counts:
            words.extend(row)
        return _HEAD.pack(self.first, len(self.counts), len(self.used), self.epoch_steps) + _little(words)

    @classmethod
    def decode(cls, data: bytes, sizes: Sequence[int]) -> Rows:
        """Return the rows for clients that hold `sizes` samples. Raises RemoteProtocolError for anything else."""
        if len(data) < _HEAD.size:
            raise RemoteProtocolError(f"a schedule of {len(data)} bytes, expected {_HEAD.size} at least")
        first, rows, clients, epoch_steps = _HEAD.unpack_from(data)
        if clients != len(sizes) or len(data) != _HEAD.size + 4 * clients * (rows + 1) or first + rows > epoch_steps:
            raise RemoteProtocolError(
                f"a schedule of {rows} rows for {clients} clients in {len(data)} bytes; this board has {len(sizes)}"
            )
        words = array("I")
        words.frombytes(data[_HEAD.size :])
        if sys.byteorder == "big":
            words.byteswap()
        used, counts = (
            tuple(words[:clients]),
            tuple(tuple(words[begin : begin + clients]) for begin in range(clients, len(words), clients)),
        )
        for c, size in enumerate(sizes):
            if used[c] + sum(row[c] for row in counts) > size:
                raise RemoteProtocolError(f"a schedule asks client {c} of this board for more than its {size} samples")
        return cls(first, epoch_steps, used, counts)

    def positions(self, step: int) -> list[tuple[int, int]]:
        """Return (begin, end) of each client's local order for a step. Raises RemoteProtocolError for another step."""
        index = step - self.first
        if not 0 <= index < len(self.counts):
            raise RemoteProtocolError(
                f"step {step} is not in the schedule, {self.first}..{self.first + len(self.counts)}"
            )
        before = [used + sum(row[c] for row in self.counts[:index]) for c, used in enumerate(self.used)]
        return [(begin, begin + count) for begin, count in zip(before, self.counts[index], strict=True)]


def room(clients: int) -> int:
    """Return how many bytes a schedule for so many clients takes at most."""
    return max(SCHEDULE_BYTES, _HEAD.size + 8 * clients)


def most_rows(clients: int) -> int:
    """Return how many rows one schedule holds at most."""
    return max(1, (SCHEDULE_BYTES - _HEAD.size) // (4 * clients) - 1)


def _little(words: array[int]) -> bytes:
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words.tobytes()
