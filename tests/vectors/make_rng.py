# SPDX-License-Identifier: Apache-2.0
"""Vectors of the random words, bounded integers and permutations, from a replica in plain integers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from tests.vectors.rows import write

M32 = 0xFFFFFFFF
PERMUTATION, SAMPLER = 1, 2

# Published with Random123 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11).
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((M32, M32, M32, M32), (M32, M32), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Return a block of Philox4x32-10."""
    x, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(q >> 32) ^ x[1] ^ k[0], q & M32, (p >> 32) ^ x[3] ^ k[1], p & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return tuple(x)


def words(seed: int, purpose: int, epoch: int, step: int) -> Iterator[int]:
    """Yield the words of a stream."""
    for block in range(1 << 32):
        yield from philox((block, step, epoch, purpose), (seed & M32, seed >> 32))


def below(stream: Iterator[int], n: int) -> int:
    """Return an integer of [0, n): word * n / 2^32, words that would favour a value skipped."""
    while True:
        product = next(stream) * n
        if product & M32 >= (1 << 32) % n:
            return product >> 32


def permutation(seed: int, epoch: int, n: int) -> list[int]:
    """Return Fisher-Yates from the end."""
    stream = words(seed, PERMUTATION, epoch, 0)
    out = list(range(n))
    for i in range(n - 1, 0, -1):
        j = below(stream, i + 1)
        out[i], out[j] = out[j], out[i]
    return out


def crc(numbers: list[int]) -> int:
    """Return the CRC-32 of 32-bit little-endian words."""
    return zlib.crc32(struct.pack(f"<{len(numbers)}I", *numbers))


def main() -> None:
    """Write philox, below and permutation."""
    assert all(philox(counter, key) == out for counter, key, out in PUBLISHED)
    own = [((7 * i, i, 3, 1), (0xDEADBEEF + i, 0x80000000 >> i)) for i in range(8)]
    rows = [*PUBLISHED, *((counter, key, philox(counter, key)) for counter, key in own)]
    write("philox", "counter[4], key[2], out[4]; the first three are Random123's known answers", rows)

    streams = [
        (0, SAMPLER, 0, 0),
        (7, SAMPLER, 1, 2),
        ((1 << 64) - 1, SAMPLER + 256, M32, M32),
        (1 << 32, PERMUTATION, 5, 0),
    ]
    # Above 2^31 every other word is skipped, so a wrong rule shows at once.
    bounds = [1, 2, 3, 6, 1000, 65537, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 3 << 30, M32]
    table = []
    for stream in streams:
        for n in bounds:
            source = words(*stream)
            table.append((*stream, n, [below(source, n) for _ in range(8)], next(source)))
    write("below", "seed, purpose, epoch, step, n, eight integers below n, the word after them", table)

    cases = [(7, 0, 1), (7, 0, 2), (7, 0, 10), (7, 1, 10), (1 << 63, 9, 257), (123456789012345, 3, 1000)]
    places = []
    for seed, epoch, n in cases:
        out = permutation(seed, epoch, n)
        places.append((seed, epoch, n, (out * 8)[:8], crc(out)))
    write("permutation", "seed, epoch, n, the first eight places (repeated where n < 8), CRC-32 of all", places)


if __name__ == "__main__":
    main()
