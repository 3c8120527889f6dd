# SPDX-License-Identifier: Apache-2.0
"""Which of its own samples a client takes when the schedule asks for some: its own order, from a stream of its own.

The order is named by (seed, epoch, client) and does not depend on how many are drawn at a time. Knows no data.
"""

from __future__ import annotations

import struct
import zlib

from paceline import core
from paceline.errors import CoreError

_STATE = struct.Struct("<4sQIIII")  # magic, seed, epoch, client, samples, given
_MAGIC = b"GSL1"


class LocalDraw:
    """A random order of 0..samples-1 without replacement, made as far as it is drawn: 4 bytes a sample and no more."""

    def __init__(self, samples: int, seed: int = 0, epoch: int = 0, client: int = 0) -> None:
        self._core = core.LocalHandle(samples, seed, epoch, client)
        self._samples, self._seed, self._epoch, self._client = samples, seed, epoch, client

    def draw(self, count: int) -> list[int]:
        """Return the next `count` samples; CoreError when fewer are left, and then none are drawn."""
        return self._core.draw(count)

    def give_back(self, count: int) -> None:
        """Say that the last `count` were not used, since their step is void: they will be drawn again."""
        self._core.give_back(count)

    @property
    def remaining(self) -> int:
        """How many are left in this epoch."""
        return self._samples - self._core.given

    def state(self) -> bytes:
        """Return everything needed to go on; it takes a moment for each sample that has been drawn."""
        body = _STATE.pack(_MAGIC, self._seed, self._epoch, self._client, self._samples, self._core.given)
        return body + zlib.crc32(body).to_bytes(4, "little")

    @classmethod
    def from_state(cls, state: bytes) -> LocalDraw:
        """Return the draw that `state` describes; CoreError when the bytes are damaged."""
        body = state[:-4]
        if len(body) != _STATE.size or body[:4] != _MAGIC or zlib.crc32(body) != int.from_bytes(state[-4:], "little"):
            raise CoreError("LocalDraw state: the bytes are damaged, cut short or of another version")
        _, seed, epoch, client, samples, given = _STATE.unpack(body)
        self = cls(samples, seed, epoch, client)
        self._core.skip(given)
        return self
