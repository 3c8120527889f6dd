# SPDX-License-Identifier: Apache-2.0
"""Times in words for people, and what is wrong with a board's wall clock. Pure.

No wait, lease or figure of paceline depends on a wall clock; it dates logs, and a board without a battery for its own
believes in any year until somebody has told it.
"""

from __future__ import annotations

OFF_S = 60.0  # by which a board's clock may be off: a label that is wrong by less misleads nobody


def clock_fault(off_s: float | None) -> str:
    """Say what is wrong with a clock that is `off_s` ahead of this machine's; None: not known; "": nothing is."""
    if off_s is None or abs(off_s) <= OFF_S:
        return ""
    return f"its clock is {span(abs(off_s))} {'ahead of' if off_s > 0 else 'behind'} this host's"


def span(seconds: float) -> str:
    """Return a time for people: 4.2 s, 31 min, 5 h 10 min, 366 days."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} days"
