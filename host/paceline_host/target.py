# SPDX-License-Identifier: Apache-2.0
"""A quality that training is to reach, and the round that reached it first (DECISIONS 42). Pure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_host.figures import RoundFigures


@dataclass(frozen=True)
class Target:
    """An accuracy of at least `value`, or a loss of at most that."""

    what: str  # "accuracy" or "loss"
    value: float

    @classmethod
    def read(cls, text: str) -> Target:
        """Return what "0.9", "accuracy=0.9" or "loss=0.1" asks for; raises argparse.ArgumentTypeError."""
        what, equals, number = text.rpartition("=")
        what = what if equals else "accuracy"
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if (what == "accuracy" and 0 < value <= 1) or (what == "loss" and 0 < value < math.inf):
            return cls(what, value)
        raise argparse.ArgumentTypeError(
            f"{text!r} is no target; expected an accuracy above 0, up to 1, such as 0.9, or loss=X with X above 0"
        )

    def is_known(self, rounds: Sequence[RoundFigures]) -> bool:
        """Tell whether the task has such a thing, as far as there are rounds that would say."""
        return not rounds or any(self._of(one) is not None for one in rounds)

    def first(self, rounds: Sequence[RoundFigures]) -> RoundFigures | None:
        """Return the round that reached it first; None: none did."""
        return next((one for one in rounds if self._is_reached(self._of(one))), None)

    def _of(self, one: RoundFigures) -> float | None:
        return one.accuracy if self.what == "accuracy" else one.loss

    def _is_reached(self, found: float | None) -> bool:
        if found is None:
            return False
        return found >= self.value if self.what == "accuracy" else found <= self.value
