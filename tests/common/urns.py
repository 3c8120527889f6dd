# SPDX-License-Identifier: Apache-2.0
"""The exact law of an epoch over a small urn, by enumeration, and how far a sampler's epochs lie from it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

Epoch = tuple[tuple[int, ...], ...]  # the clients of each step, sorted, one entry a sample


def joint_law(pools: Sequence[int], batch: int) -> dict[Epoch, float]:
    """Return the chance of each epoch: all orders of all samples, cut into steps."""
    samples = [k for k, pool in enumerate(pools) for _ in range(pool)]
    ways: Counter[Epoch] = Counter()
    for order in itertools.permutations(range(len(samples))):
        drawn = [samples[i] for i in order]
        ways[tuple(tuple(sorted(drawn[at : at + batch])) for at in range(0, len(drawn), batch))] += 1
    return {epoch: n / math.factorial(len(samples)) for epoch, n in ways.items()}


def p_value(chi_squared: float, freedom: int) -> float:
    """Return P(X >= chi_squared) for a chi-squared X: the regularised incomplete gamma function, by its two series."""
    a, x = freedom / 2, chi_squared / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a)) if x > 0 else 0.0
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-15:
            n += 1
            term *= x / n
            total += term
        return 1 - scale * total
    b, c, d = x + 1 - a, 1e300, 1 / (x + 1 - a)  # Lentz's continued fraction
    h = d
    for i in range(1, 500):
        numerator = -i * (i - a)
        b += 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return scale * h


def chi_square_test(law: dict[Epoch, float], epochs: Iterable[Epoch]) -> float:
    """Return the p-value of epochs against a law; 0 when one of them cannot be."""
    seen = Counter(epochs)
    trials = sum(seen.values())
    if not set(seen) <= set(law):
        return 0.0
    chi_squared = sum((seen[epoch] - trials * p) ** 2 / (trials * p) for epoch, p in law.items())
    return p_value(chi_squared, len(law) - 1)
