# SPDX-License-Identifier: Apache-2.0
"""What is known of a time in which nobody looked. Pure: readings in, judgements out.

A gap is bridged by what was seen around it. The bound then holds for any power from none to the highest that was seen,
for so long; before any power was seen, and in a window that is next to all gap, joules are unknown.
"""

from __future__ import annotations

from paceline_agent.meters import POWER_MAX_UW, Count, Reading

COVERED_LEAST = 0.05  # of a window: with less of it seen, its joules are a guess


def is_seen(covered_us: int, length_us: int) -> bool:
    """Return whether enough of a window was seen; one without length needs nothing."""
    return covered_us >= COVERED_LEAST * length_us


class Peak:
    """The highest power of a source so far, by its amount."""

    def __init__(self) -> None:
        self.power_uw: int | None = None  # None: none was seen
        self._count: Count | None = None

    def add(self, reading: Reading | Count) -> None:
        """Take a reading; of a counter, the mean since the one before."""
        if isinstance(reading, Reading):
            self._raise(abs(reading.power_uw))
            return
        last, self._count = self._count, reading
        if last is not None and reading.t_us > last.t_us and reading.count_uj >= last.count_uj:
            mean_uw = (reading.count_uj - last.count_uj) * 1_000_000 // (reading.t_us - last.t_us)
            if mean_uw <= POWER_MAX_UW:  # else the integrator does not believe it either
                self._raise(mean_uw)

    def bound_uj(self, uncovered_us: int) -> int | None:
        """Return by how much joules of so long a gap may be off; None: by anything."""
        if uncovered_us <= 0:
            return 0
        return None if self.power_uw is None else -(-uncovered_us * self.power_uw // 1_000_000)

    def _raise(self, power_uw: int) -> None:
        self.power_uw = max(power_uw, self.power_uw or 0)
