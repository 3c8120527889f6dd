# SPDX-License-Identifier: Apache-2.0
"""The last things that happened on a host, each with its reason, for who looks on. Pure: time is an argument.

A run's journal holds what concerns the run, for good; this also what happens between runs, for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Any

KEPT = 50


class Recent:
    """`add` from any thread, `rows` for a status document."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, str, str]] = deque(maxlen=KEPT)

    def add(self, kind: str, text: str, now_s: float, board: str = "") -> None:
        """Something happened. `kind`: as in a journal's events; `text`: the sentence, with its reason."""
        self._events.append((now_s, kind, text, board))

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """Return what is kept, the latest last; `ago_s`: no instant travels."""
        return [
            {"ago_s": round(max(0.0, now_s - at_s), 3), "kind": kind, "text": text, "board": board}
            for at_s, kind, text, board in self._events.copy()
        ]
