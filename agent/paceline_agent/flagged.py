# SPDX-License-Identifier: Apache-2.0
"""Which stretches of time bear which flags of readings, so that windows over them do. Pure."""

from __future__ import annotations

from collections import deque

REMEMBERED = 256  # stretches
Stretch = tuple[int, int, tuple[str, ...]]  # from, to, what


class Flagged:
    """Stretches in the order in which they were noted; what goes on is kept as one."""

    def __init__(self) -> None:
        self._stretches: deque[Stretch] = deque(maxlen=REMEMBERED)

    def add(self, begin_us: int, end_us: int, flags: tuple[str, ...], apart_us: int = 0) -> None:
        """Note a stretch. `apart_us`: it goes on with the last one of these flags where no more lies between."""
        first_us, last_us, before = self._stretches[-1] if self._stretches else (0, 0, ())
        if before == flags and begin_us - last_us <= apart_us:
            self._stretches[-1] = (min(first_us, begin_us), end_us, flags)
        else:
            self._stretches.append((begin_us, end_us, flags))

    def over(self, t0_us: int, t1_us: int) -> tuple[str, ...]:
        """Return the flags that touch a window; "frozen" does only where some of its time lies in the window."""
        found: dict[str, None] = {}
        for begin_us, end_us, flags in self._stretches:
            if begin_us <= t1_us and end_us >= t0_us:
                is_inside = begin_us < t1_us and end_us > t0_us
                found |= dict.fromkeys(flag for flag in flags if is_inside or flag != "frozen")
        return tuple(found)
