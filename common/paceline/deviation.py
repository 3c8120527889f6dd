# SPDX-License-Identifier: Apache-2.0
"""How far the labels of a step lie from those of the epoch, and how far they may. Pure: counts in, numbers out.

The deviation of a step is sum_c |n_c / B - N_c / D|, from 0 to 2: n_c of the step's B labels and N_c of the epoch's D
are of class c. The labels come with each step, so the host counts both (DECISIONS 27) and asks clients for no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import CoreError

RISK = 0.05  # of one class of one step lying beyond its bound, at most


@dataclass(frozen=True)
class StepDeviation:
    """One step against its epoch."""

    samples: int
    l1: float
    largest: float  # of one class's share
    bound: float  # `serfling` of this batch
    beyond: int  # classes whose share lies beyond it; under exact sampling a share of RISK at most


class EpochLabels:
    """The labels of an epoch's steps, in order. What an epoch's shares are is known at its end."""

    def __init__(self, classes: int) -> None:
        self._steps: list[tuple[int, ...]] = []
        self._totals = [0] * classes

    def add(self, counts: Sequence[int]) -> None:
        """Take how many labels of each class a step had."""
        if len(counts) != len(self._totals) or min(counts) < 0 or not sum(counts):
            raise CoreError(
                f"a step's labels are {len(counts)} counts with a sum of {sum(counts)}; expected a count of 0 or more "
                f"for each of {len(self._totals)} classes, and at least one label"
            )
        self._steps.append(tuple(counts))
        self._totals = [total + count for total, count in zip(self._totals, counts, strict=True)]

    @property
    def totals(self) -> tuple[int, ...]:
        """How many labels of each class came so far."""
        return tuple(self._totals)

    def deviations(self, totals: Sequence[int] | None = None) -> list[StepDeviation]:
        """Return one for each step, against the epoch's own totals or others, such as the whole training set's."""
        against = self._totals if totals is None else totals
        return [judge(counts, against) for counts in self._steps]


def judge(counts: Sequence[int], totals: Sequence[int]) -> StepDeviation:
    """Return the deviation of one step's labels from totals."""
    samples, pool = sum(counts), sum(totals)
    gaps = [abs(n / samples - all_ / pool) for n, all_ in zip(counts, totals, strict=True)]
    bound = serfling(samples, pool)
    return StepDeviation(samples, math.fsum(gaps), max(gaps), bound, sum(gap >= bound for gap in gaps))


def serfling(batch: int, pool: int, risk: float = RISK) -> float:
    """Return eps such that P(|n_c / B - N_c / D| >= eps) <= risk, for one class and any step of an exact epoch.

    Serfling's inequality (R. J. Serfling, Probability inequalities for the sum in sampling without replacement, Annals
    of Statistics 2, 1974) for values in [0, 1], both sides:

        P(|n_c / B - N_c / D| >= eps) <= 2 exp(-2 B eps^2 / (1 - (B - 1) / D))

    whose last factor is that of the finite population. Solved: eps = sqrt(ln(2 / risk) (1 - (B - 1) / D) / (2 B)). For
    all M classes at once take risk / M.
    """
    if not 1 <= batch <= pool or not 0.0 < risk < 1.0:
        raise CoreError(f"batch {batch} of pool {pool} at risk {risk}; expected 1 <= batch <= pool and 0 < risk < 1")
    return math.sqrt(math.log(2.0 / risk) * (1.0 - (batch - 1) / pool) / (2.0 * batch))


def expected(batch: int, totals: Sequence[int]) -> float:
    """Return the mean of `l1` under exact sampling: E|n_c / B - N_c / D| of a hypergeometric n_c, over all classes.

    A method that lies clearly below it is no more exact than one above (DECISIONS 28).
    """
    pool = sum(totals)
    return math.fsum(_mean_gap(batch, held, pool) for held in totals)


def _mean_gap(batch: int, held: int, pool: int) -> float:
    share = held / pool
    every = _log_choose(pool, batch)
    low, high = max(0, batch - (pool - held)), min(batch, held)
    return math.fsum(
        abs(n / batch - share) * math.exp(_log_choose(held, n) + _log_choose(pool - held, batch - n) - every)
        for n in range(low, high + 1)
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
