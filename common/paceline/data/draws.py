# SPDX-License-Identifier: Apache-2.0
"""Real random numbers with the same bits on every machine: uniform, normal, gamma and Dirichlet from a Philox stream.

Only + - * / and square roots of doubles are used, which IEEE 754 defines to the last bit; the C library's logarithm and
exponential differ by machine and version, as numpy's generators may by version, so both stand here as short series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from paceline.core import Rng

LN2 = 0.6931471805599453
_ROOT_HALF = 0.7071067811865476
_TO_UNIT = 1.0 / (1 << 53)


def log(x: float) -> float:
    """Return the natural logarithm of x > 0, to about 1e-15."""
    mantissa, exponent = math.frexp(x)  # exact; mantissa in [0.5, 1)
    if mantissa < _ROOT_HALF:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)  # |s| < 0.172: ten terms of atanh's series reach the last bit
    square, total = s * s, 0.0
    for k in range(21, 0, -2):
        total = total * square + 1.0 / k
    return exponent * LN2 + 2.0 * s * total


def exp(x: float) -> float:
    """Return e^x for x <= 0, to about 1e-15 of itself; below -700 it is 0."""
    if x < -700.0:
        return 0.0
    halvings = math.floor(x / LN2 + 0.5)
    rest, total = x - halvings * LN2, 1.0  # |rest| < 0.35: 16 terms
    for k in range(16, 0, -1):
        total = 1.0 + rest * total / k
    return math.ldexp(total, halvings)


class Draws:
    """Draws from one stream of random words."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def uniform(self) -> float:
        """Return a number of (0, 1): 53 bits, and half a step, so that it is never 0."""
        bits = (self._rng.word() >> 5 << 26) | (self._rng.word() >> 6)
        return (bits + 0.5) * _TO_UNIT if bits < 1 << 52 else bits * _TO_UNIT

    def normal(self) -> float:
        """Return a standard normal number (Marsaglia's polar method; the second of the pair is left)."""
        while True:
            a, b = 2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0
            square = a * a + b * b
            if 0.0 < square < 1.0:
                return a * math.sqrt(-2.0 * log(square) / square)

    def log_gamma(self, shape: float) -> float:
        """Return the logarithm of a Gamma(shape, 1) number, shape > 0 (Marsaglia and Tsang 2000).

        The logarithm, because with a small shape the number itself is often too small for a double.
        """
        if shape < 1.0:
            return self.log_gamma(shape + 1.0) + log(self.uniform()) / shape
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = 1.0 + c * x
            if v <= 0.0:
                continue
            log_v = 3.0 * log(v)
            if log(self.uniform()) < 0.5 * x * x + d - d * v * v * v + d * log_v:
                return log(d) + log_v

    def dirichlet(self, alpha: float, n: int) -> list[float]:
        """Return n shares, drawn from the symmetric Dirichlet distribution; they sum to 1 up to rounding."""
        logs = [self.log_gamma(alpha) for _ in range(n)]
        highest = max(logs)
        weights = [exp(value - highest) for value in logs]
        total = sum(weights)
        return [weight / total for weight in weights]

    def choose(self, weights: Sequence[float]) -> int:
        """Return an index with a chance in proportion to its weight."""
        edges = list(accumulate(weights))
        r = self.uniform() * edges[-1]
        return next((i for i, edge in enumerate(edges) if r < edge), len(edges) - 1)
