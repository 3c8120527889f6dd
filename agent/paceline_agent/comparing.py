# SPDX-License-Identifier: Apache-2.0
"""Two measurements of one window, or one and a known load: their ratio, and whether uncertainties explain it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_agent.measuring import Measurement
from paceline_agent.meters import MeterError


@dataclass(frozen=True)
class Verdict:
    """How two meters of one window compare. `low` to `high`: where the ratio lies if both saw the same load."""

    ratio: float
    low: float
    high: float
    is_ok: bool  # within what the user allows

    @property
    def is_same(self) -> bool:
        """Return whether the uncertainties explain the difference."""
        return self.low <= self.ratio <= self.high

    def plain(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "ratio": self.ratio,
            "same_low": self.low,
            "same_high": self.high,
            "same": self.is_same,
            "ok": self.is_ok,
        }

    def __str__(self) -> str:
        said = "the same load" if self.is_same else "not the same load, or one of them is wrong"
        return f"ratio {self.ratio:.4f}; {self.low:.4f} to {self.high:.4f} if both saw the same load: {said}" + (
            "" if self.is_ok else "; further from 1 than --within allows"
        )


def compare(one: Measurement, other: Measurement | float, within_percent: float | None = None) -> Verdict:
    """Compare mean powers; `other` may be known watts. Raises MeterError when there is nothing to compare."""
    (a_w, a_off_w), (b_w, b_off_w) = _power(one), _power(other)
    if b_w <= 0:
        raise MeterError("the meter to compare with shows no power", "put a load on it")
    ratio = a_w / b_w
    off = (a_off_w + b_off_w) / b_w
    return Verdict(ratio, 1 - off, 1 + off, within_percent is None or abs(ratio - 1) * 100 <= within_percent)


def _power(of: Measurement | float) -> tuple[float, float]:
    """Return mean watts, and how far they may be off."""
    if isinstance(of, float):
        return of, 0.0
    if of.power_w is None or of.bound_j is None:
        raise MeterError(f"{of.source} measured nothing in this window ({', '.join(of.flags)})", "see meter watch")
    return of.power_w, (of.bound_j + (of.sampling_j or 0.0)) / of.seconds
