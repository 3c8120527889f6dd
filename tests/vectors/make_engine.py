# SPDX-License-Identifier: Apache-2.0
"""Digests of many draws, one for all structures and machines: from counts in blocks of 1000, by plain subtraction."""

from __future__ import annotations

import struct
import zlib
from collections import Counter

from tests.vectors.make_rng import SAMPLER, below, words
from tests.vectors.rows import write

BLOCK = 1000

# clients, batch, steps, seed, epoch, scale: pool k holds (k * k mod 41) * scale
CASES = [
    (10, 128, 12, 7, 0, 60),
    (10, 4096, 1, 7, 0, 60),
    (17, 50, 20, 9, 3, 8),
    (64, 128, 40, 1, 1, 5),
    (65, 300, 20, 2**40 + 5, 1, 5),
    (1000, 128, 60, 3, 0, 1),
    (1000, 3000, 8, 3, 0, 1),  # the last step is what is left
    (1000, 600, 4, 4, 9, 214_000),  # close to 2^32 samples in all: words are skipped
    (20_000, 128, 30, 2**64 - 1, 2, 1),
    (20_000, 5000, 3, 5, 2**32 - 1, 1),
    (300_000, 200, 8, 6, 0, 1),
]


def pool(k: int, scale: int) -> int:
    """Return what client k begins with."""
    return k * k % 41 * scale


def digest(clients: int, batch: int, steps: int, seed: int, epoch: int, scale: int) -> tuple[int, int]:
    """Return what is left and the CRC-32 of all steps' (ids..., counts...)."""
    pools = [pool(k, scale) for k in range(clients)]
    blocks = [sum(pools[at : at + BLOCK]) for at in range(0, clients, BLOCK)]
    total, crc = sum(pools), 0
    for step in range(steps):
        stream = words(seed, SAMPLER, epoch, step)
        drawn: Counter[int] = Counter()
        for _ in range(min(batch, total)):
            r, block = below(stream, total), 0
            while r >= blocks[block]:
                r -= blocks[block]
                block += 1
            k = block * BLOCK
            while r >= pools[k]:
                r -= pools[k]
                k += 1
            pools[k] -= 1
            blocks[block] -= 1
            total -= 1
            drawn[k] += 1
        numbers = sorted(drawn) + [drawn[k] for k in sorted(drawn)]
        crc = zlib.crc32(struct.pack(f"<{len(numbers)}I", *numbers), crc)
    return total, crc


def main() -> None:
    """Write the digests."""
    rows = [[*case, *digest(*case)] for case in CASES]
    write("engine", "clients, batch, steps, seed, epoch, scale, total after, CRC-32 of each draw's numbers", rows)


if __name__ == "__main__":
    main()
