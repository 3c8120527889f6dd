# SPDX-License-Identifier: Apache-2.0
"""A time that is over only when it was seen to be over twice, a while apart. Pure: time is given.

A process that was stopped finds all its times over when it goes on, and has missed nothing: what it waited for may be
there already, and be taken in a moment.
"""

from __future__ import annotations

GRACE_S = 0.2


class Late:
    """Of one instant. Any thread."""

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self._seen_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        """Return whether it is over, and was so at least GRACE_S ago."""
        if now_s <= self.due_s:
            return False
        if self._seen_s is None:
            self._seen_s = now_s
        return now_s - self._seen_s >= GRACE_S
