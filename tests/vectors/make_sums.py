# SPDX-License-Identifier: Apache-2.0
"""Vectors of the sums over models, from a replica in plain doubles in the same order of operations."""

from __future__ import annotations

import random
import struct
from fractions import Fraction

from tests.vectors.rows import write

MOST = 37  # items of a vector: two blocks of sixteen, and a rest
LANES = 16


def single(x: float) -> float:
    """Return the float32 next to a double."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def word(x: float) -> int:
    """Return the 32 bits of a float32."""
    return int.from_bytes(struct.pack("<f", x), "little")


def added(values: list[float], weight: float, sums: list[float]) -> list[float]:
    """Return sums + weight * values."""
    return [s + weight * v for v, s in zip(values, sums, strict=True)]


def distance(values: list[float], base: list[float]) -> float:
    """Return the sum of squares of differences, in lanes that are added up by halves."""
    lanes = [0.0] * LANES
    for i, (v, b) in enumerate(zip(values, base, strict=True)):
        lanes[i % LANES] += (v - b) * (v - b)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[k] + lanes[k + half] for k in range(half)]
    return lanes[0]


def mixed(model: list[float], update: list[float], weight: float) -> list[float]:
    """Return (1 - weight) * model + weight * update in float32."""
    return [single((1.0 - weight) * m + weight * u) for m, u in zip(model, update, strict=True)]


def main() -> None:
    """Write sums."""
    rng = random.Random(20240611)
    rows: list[list[object]] = []
    differs = 0
    for n in (0, 1, 15, 16, 17, 32, MOST):
        model, update = ([single(rng.uniform(-2, 2)) for _ in range(n)] for _ in range(2))
        sums, weight, mix = [rng.uniform(-1e4, 1e4) for _ in range(n)], rng.uniform(1, 5000), rng.uniform(0.01, 1)
        after = added(update, weight, sums)
        fused = [float(Fraction(s) + Fraction(weight) * Fraction(v)) for v, s in zip(update, sums, strict=True)]
        differs += sum(a != f for a, f in zip(after, fused, strict=True))
        words, doubles = [0] * (MOST - n), [0.0] * (MOST - n)
        columns = [[word(x) for x in of] + words for of in (model, update, mixed(model, update, mix))]
        rows.append([n, weight, mix, distance(update, model), *columns, sums + doubles, after + doubles])
    assert differs > 5, "the vectors must hold values on which fused arithmetic differs"
    names = "n, weight, mix, distance of update and model (bits), model[37], update[37], mixed[37] (bits of float32)"
    write("sums", names + ", sums[37] before and [37] after (bits)", rows)


if __name__ == "__main__":
    main()
