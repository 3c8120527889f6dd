# SPDX-License-Identifier: Apache-2.0
"""Offsets, credit and pace of one bulk transfer. Pure: holds no bytes, knows no link, time is an argument.

The receiver grants bytes, the sender never exceeds them; offsets make a chunk repeatable, whatever its size. `Sender`
says which piece may go next, `Receiver` whether a piece may enter and when to grant more. Both measure the link by what
arrived: pieces are as long as goes over in CHUNK_S, and about WINDOW_S of the link is under way.
"""

from __future__ import annotations

from collections import deque

from paceline.errors import RemoteProtocolError
from paceline.wire import CHUNK_CEILING, CHUNK_FLOOR, CHUNK_START

CHUNK_S = 0.25  # a control message waits no longer behind a piece
WINDOW_S = 1.0  # of the link is granted ahead; shorter than a round trip, and the window would starve the link
LEAST_CHUNKS, MOST_CHUNKS = 4, 16  # in a window: of the floor on the slowest link, of the ceiling on the fastest
MARKS = 9  # the last eight intervals at least,
SPAN_S = 1.0  # and a second at least: an end that was busy finds all that came meanwhile in one moment


class Rate:
    """Bytes per second that one direction of a session's link carries; the next transfer begins with the last known."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self) -> None:
        """Another transfer begins: the time between two is nobody's pace."""
        self._marks.clear()

    def mark(self, have: int, now_s: float) -> None:
        """So many bytes of the present transfer have arrived by now."""
        marks = self._marks
        marks.append((now_s, have))
        while len(marks) > MARKS and marks[1][0] <= now_s - SPAN_S:
            marks.popleft()
        nbytes, took_s = have - marks[0][1], now_s - marks[0][0]
        if nbytes >= LEAST_CHUNKS * CHUNK_FLOOR:  # fewer tell of latency only
            self.bytes_per_s = nbytes / took_s if took_s > 0 else float("inf")

    def chunk(self, most: int) -> int:
        """Return the largest power of two that goes over in CHUNK_S, from CHUNK_FLOOR to `most`."""
        if self.bytes_per_s is None:
            return max(CHUNK_FLOOR, min(CHUNK_START, most))
        size = CHUNK_FLOOR
        while size < most and 2 * size <= self.bytes_per_s * CHUNK_S:
            size *= 2
        return max(CHUNK_FLOOR, min(size, most))

    def window(self, most: int, otherwise: int) -> int:
        """Return the bytes to have under way, where a piece has at most `most`; `otherwise` while nothing is known."""
        if self.bytes_per_s is None:
            return otherwise
        return int(max(LEAST_CHUNKS * CHUNK_FLOOR, min(self.bytes_per_s * WINDOW_S, MOST_CHUNKS * most)))


class Sender:
    """Pieces of `size` bytes, at most `chunk_max` each, never past what was granted."""

    def __init__(self, size: int, chunk_max: int, credit: int, rate: Rate | None = None, start: int = 0) -> None:
        """`start`: the receiver holds so many bytes already, and has granted up to `credit`."""
        self.size = size
        self.have = start  # those that the receiver is known to hold
        self._chunk_max = max(CHUNK_FLOOR, min(chunk_max, CHUNK_CEILING))
        self._rate = rate or Rate()
        self._rate.begin()
        self._sent = start
        self._upto = min(size, credit)
        self._counted = start

    def pieces(self) -> list[tuple[int, int]]:
        """Return (begin, end) of all pieces that may go now; they count as sent."""
        out = []
        chunk = self._rate.chunk(self._chunk_max)
        while self._sent < self._upto:
            end = min(self._sent + chunk, self._upto)
            out.append((self._sent, end))
            self._sent = end
        return out

    def granted(self, have: int, upto: int, now_s: float) -> None:
        """Take a CREDIT. Raises RemoteProtocolError when it names bytes that were never sent or lie outside."""
        if have > self._sent or upto > self.size or upto < have:
            raise RemoteProtocolError(f"credit {have}..{upto} of {self.size} bytes, {self._sent} were sent")
        if have > self.have:
            self.have = have
            self._rate.mark(have, now_s)
        self._upto = max(self._upto, upto)

    def moved(self) -> bool:
        """Tell whether CHUNK_FLOOR bytes more have arrived than at the last yes: fewer are no progress."""
        if self.have - self._counted < CHUNK_FLOOR:
            return False
        self._counted = self.have
        return True

    @property
    def done(self) -> bool:
        """All bytes were sent (not: have arrived)."""
        return self._sent >= self.size


class Receiver:
    """In-order pieces into a buffer of `size` bytes, which the caller knows by itself, never from a message."""

    def __init__(
        self, size: int, credit: int, chunk_max: int = CHUNK_CEILING, rate: Rate | None = None, have: int = 0
    ) -> None:
        """`have`: so many bytes are held from an earlier attempt."""
        self.size = size
        self.have = have
        self._window, self._chunk_max = credit, chunk_max
        self._rate = rate or Rate()
        self._rate.begin()
        self.granted = min(size, have + credit)
        self._told = have  # what the last CREDIT said that we have
        self._counted = have

    def take(self, offset: int, nbytes: int, now_s: float) -> None:
        """Let a piece enter. Raises RemoteProtocolError when it is out of order, empty, or beyond size or credit."""
        if nbytes == 0 or offset != self.have or offset + nbytes > self.granted:
            raise RemoteProtocolError(
                f"chunk {offset}+{nbytes}: expected offset {self.have}, at most up to {self.granted} of {self.size}"
            )
        self.have += nbytes
        self._rate.mark(self.have, now_s)

    def grant(self) -> int | None:
        """Return the limit to announce once half of the window is used up, or has come since the last time; else None.

        The second where the link has shown itself slower than the credit that was granted: the sender must learn of it.
        """
        window = min(
            self._rate.window(self._chunk_max, self._window), max(2 * self._window, LEAST_CHUNKS * CHUNK_FLOOR)
        )
        is_used_up = self.granted < self.size and self.granted - self.have <= window // 2
        if self.done or not (is_used_up or self.have - self._told >= window // 2):
            return None
        self._told, self._window = self.have, window  # it doubles at most, so that a fast sender hears early and often
        self.granted = max(self.granted, min(self.size, self.have + window))
        return self.granted

    def moved(self) -> bool:
        """Tell whether CHUNK_FLOOR bytes more are here than at the last yes, or all: fewer are no progress."""
        if self.have - self._counted < CHUNK_FLOOR and not self.done:
            return False
        self._counted = self.have
        return True

    @property
    def done(self) -> bool:
        """All bytes are here."""
        return self.have >= self.size
