# SPDX-License-Identifier: Apache-2.0
"""How often a board is complained of: so many sentences a minute, the rest is counted. Pure: time is an argument.

What a board sends costs it nothing, and each sentence about it stands in a log and a journal for good.
"""

from __future__ import annotations

SENTENCES = 20
SPAN_S = 60.0


class Rationed:
    """Ask `about` before each sentence on a board."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}  # since when, how many

    def about(self, board: str, text: str, now_s: float) -> str:
        """Return what is to be said of a board; "": nothing more in this span."""
        since_s, count = self._said.get(board, (now_s, 0))
        if now_s - since_s >= SPAN_S:
            since_s, count = now_s, 0
        self._said[board] = since_s, count + 1
        if count < SENTENCES:
            return text
        return f"{board} goes on like that; what comes within a minute is only counted" if count == SENTENCES else ""
