# SPDX-License-Identifier: Apache-2.0
"""Steps of ranks with unequal shares: who takes which places of a round in which step, and how even it came out.

Pure. The counts are `batch_schedule`'s (DECISIONS 15); step s takes the next B_s places of the stream, ranks in their
order (DECISIONS 16), so that the union of a step's batches is the same under any shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core import allocate, batch_schedule
from paceline.errors import CoreError

FEW = 5.0  # samples a step of the slowest rank: below, whole samples cost 7 % and more (DECISIONS 18)


class Deal:
    """`shares` places of each rank, dealt over `steps`. The places are numbered from 0."""

    def __init__(self, shares: Sequence[int], steps: int, minimum: int = 1) -> None:
        """Raises CoreError when a share does not give `minimum` a step, or all together do not give each step a sample;
        it names the most steps that are possible.
        """
        self.shares = tuple(int(share) for share in shares)
        if sum(self.shares) < steps and not minimum:
            text = f"{sum(self.shares)} samples do not give each of {steps} steps one"
            raise CoreError(f"{text}; expected at most {sum(self.shares)} steps")
        self.steps = steps
        self.batches = batch_schedule(self.shares, steps, minimum)
        self.totals = [sum(row) for row in self.batches]
        self._begins = [0]
        for total in self.totals:
            self._begins.append(self._begins[-1] + total)

    def counts(self, step: int, rank: int) -> tuple[int, int]:
        """Return how many samples a rank takes in a step, and how many all take."""
        return self.batches[step][rank], self.totals[step]

    def places(self, step: int, rank: int) -> range:
        """Return the places that a rank takes in a step."""
        begin = self._begins[step] + sum(self.batches[step][:rank])
        return range(begin, begin + self.batches[step][rank])

    def done(self, steps: int) -> int:
        """Return how many places the first `steps` steps take."""
        return self._begins[steps]


def steps_of(budget: int, batch: int) -> int:
    """Return the fewest steps in which no more than `batch` samples are taken at once."""
    return max(1, -(-budget // batch))


def equal_shares(budget: int, ranks: int, steps: int, minimum: int = 1) -> list[int]:
    """Return equal shares. Raises CoreError with the most steps that the budget allows."""
    least = steps * minimum
    if least * ranks > budget:
        raise CoreError(
            f"{budget} samples do not give {ranks} ranks {minimum} each in {steps} steps; "
            f"expected at most {budget // (ranks * minimum)} steps"
        )
    return allocate([1.0] * ranks, budget, minimum=least)


@dataclass(frozen=True)
class Imbalance:
    """How unevenly ranks were busy over some steps. CV: population deviation over mean (DECISIONS 18)."""

    step_cv: float | None  # mean over the steps of the CV over the ranks; None where nothing was measured
    round_cv: float | None  # CV of the ranks' sums
    slowest_s: float  # sum over steps of the slowest rank
    ideal_s: float  # the same work at the same paces, ended by all at once

    @property
    def ratio(self) -> float | None:
        """How much longer it took than the ideal; 1 is none."""
        return self.slowest_s / self.ideal_s if self.ideal_s > 0 else None


def imbalance(seconds: Sequence[Sequence[float]], shares: Sequence[int]) -> Imbalance:
    """Return the figures of steps x ranks of seconds, in which each rank took its share of samples.

    The ideal: if each rank's pace is its seconds over its share, N samples take N / (sum of 1 / pace).
    """
    columns = [sum(column) for column in zip(*seconds, strict=True)]
    step_cvs = [cv for row in seconds if (cv := variation(row)) is not None]
    rates = [share / total for share, total in zip(shares, columns, strict=True) if total > 0]
    return Imbalance(
        step_cv=sum(step_cvs) / len(step_cvs) if step_cvs else None,
        round_cv=variation(columns),
        slowest_s=sum(max(row) for row in seconds),
        ideal_s=sum(shares) / sum(rates) if rates else 0.0,
    )


def variation(values: Sequence[float]) -> float | None:
    """Return the population's coefficient of variation; None without a mean above 0."""
    mean = sum(values) / len(values) if values else 0.0
    if mean <= 0:
        return None
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) / mean
