# SPDX-License-Identifier: Apache-2.0
"""Offsets and credit of one bulk transfer. Pure: holds no bytes, knows no link.

The receiver grants bytes, the sender never exceeds them; offsets make a chunk repeatable. `Sender` says which piece
may go next, `Receiver` whether a piece may enter and when to grant more.
"""

from __future__ import annotations

from paceline.errors import RemoteProtocolError
from paceline.wire import CHUNK_CEILING, CHUNK_FLOOR


class Sender:
    """Pieces of `size` bytes, at most `chunk` each, never past what was granted."""

    def __init__(self, size: int, chunk: int, credit: int, start: int = 0) -> None:
        """`start`: the receiver holds so many bytes already, and has granted up to `credit`."""
        self.size = size
        self._chunk = max(CHUNK_FLOOR, min(chunk, CHUNK_CEILING))
        self._sent = start
        self._upto = min(size, credit)

    def pieces(self) -> list[tuple[int, int]]:
        """Return (begin, end) of all pieces that may go now; they count as sent."""
        out = []
        while self._sent < self._upto:
            end = min(self._sent + self._chunk, self._upto)
            out.append((self._sent, end))
            self._sent = end
        return out

    def granted(self, have: int, upto: int) -> None:
        """Take a CREDIT. Raises RemoteProtocolError when it names bytes that were never sent or lie outside."""
        if have > self._sent or upto > self.size or upto < have:
            raise RemoteProtocolError(f"credit {have}..{upto} of {self.size} bytes, {self._sent} were sent")
        self._upto = max(self._upto, upto)

    @property
    def done(self) -> bool:
        """All bytes were sent (not: have arrived)."""
        return self._sent >= self.size


class Receiver:
    """In-order pieces into a buffer of `size` bytes, which the caller knows by itself, never from a message."""

    def __init__(self, size: int, credit: int, have: int = 0) -> None:
        """`have`: so many bytes are held from an earlier attempt."""
        self.size = size
        self.have = have
        self._window = credit
        self.granted = min(size, have + credit)

    def take(self, offset: int, nbytes: int) -> None:
        """Let a piece enter. Raises RemoteProtocolError when it is out of order, empty, or beyond size or credit."""
        if nbytes == 0 or offset != self.have or offset + nbytes > self.granted:
            raise RemoteProtocolError(
                f"chunk {offset}+{nbytes}: expected offset {self.have}, at most up to {self.granted} of {self.size}"
            )
        self.have += nbytes

    def grant(self) -> int | None:
        """Return the new limit to announce once half of the window is used up, else None."""
        if self.granted < self.size and self.granted - self.have <= self._window // 2:
            self.granted = min(self.size, self.have + self._window)
            return self.granted
        return None

    @property
    def done(self) -> bool:
        """All bytes are here."""
        return self.have >= self.size
