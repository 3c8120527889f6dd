# SPDX-License-Identifier: Apache-2.0
"""Vectors of sampler and schedule, from the plainest replicas: a scan over all pools, places dealt out one by one."""

from __future__ import annotations

import random
import struct
import zlib
from collections import Counter

from tests.vectors.make_rng import SAMPLER, below, words
from tests.vectors.rows import write

INIT, DRAW, COMMIT, VOID, SET, ADD, MANY, DIGEST = range(8)
MOST_IDS = 24
PADDING = [0] * MOST_IDS


class Script:
    """Drives a flat list of pools and writes down each step and what came out."""

    def __init__(self) -> None:
        self.rows: list[list[object]] = []
        self.pools: list[int] = []

    def note(self, op: int, a: int = 0, b: int = 0, drawn: dict[int, int] | None = None) -> None:
        drawn = drawn or {}
        ids, counts = sorted(drawn), [drawn[k] for k in sorted(drawn)]
        row = [op, a, b, sum(self.pools), len(ids), (ids + PADDING)[:MOST_IDS], (counts + PADDING)[:MOST_IDS]]
        self.rows.append(row)

    def begin(self, seed: int, epoch: int, pools: list[int]) -> None:
        self.seed, self.epoch, self.pools = seed, epoch, []
        self.step = self.redraw = 0
        self.note(INIT, seed, epoch)
        for pool in pools:
            self.add(pool)

    def add(self, pool: int) -> None:
        self.pools.append(pool)
        self.note(ADD, pool)

    def put(self, k: int, count: int) -> None:
        self.pools[k] = count
        self.note(SET, k, count)

    def take(self, batch: int) -> Counter[int]:
        stream = words(self.seed, SAMPLER + 256 * self.redraw, self.epoch, self.step)
        drawn: Counter[int] = Counter()
        for _ in range(min(batch, sum(self.pools))):
            r = below(stream, sum(self.pools))
            k = 0
            while r >= self.pools[k]:
                r -= self.pools[k]
                k += 1
            self.pools[k] -= 1
            drawn[k] += 1
        return drawn

    def draw(self, batch: int, commit: bool = True) -> Counter[int]:
        drawn = self.take(batch)
        self.note(DRAW, batch, 0, drawn)
        if commit:
            self.step, self.redraw = self.step + 1, 0
            self.note(COMMIT)
        return drawn

    def void(self, drawn: Counter[int]) -> None:
        for k, count in drawn.items():
            self.pools[k] += count
        self.redraw += 1
        self.note(VOID, 0, 0, drawn)

    def digest(self, batch: int, steps: int) -> None:
        """Draw many steps and note the CRC-32 of all (ids..., counts...)."""
        crc = 0
        for _ in range(steps):
            drawn = self.take(batch)
            numbers = sorted(drawn) + [drawn[k] for k in sorted(drawn)]
            crc = zlib.crc32(struct.pack(f"<{len(numbers)}I", *numbers), crc)
            self.step += 1
        self.rows.append([DIGEST, batch, steps, sum(self.pools), crc, PADDING, PADDING])


def schedules(rng: random.Random) -> list[list[object]]:
    """Return rows of shares dealt out over steps, place by place."""
    rows: list[list[object]] = []
    for n, steps, largest in [(1, 1, 5), (3, 4, 9), (4, 7, 40), (8, 5, 900), (8, 12, 12), (5, 3, 2), (8, 2, 1000)]:
        shares = [rng.randint(steps if largest > steps else 0, max(largest, steps)) for _ in range(n)]
        table = [[0] * n for _ in range(steps)]
        place = 0
        for i, share in enumerate(shares):
            for _ in range(share):
                table[place % steps][i] += 1
                place += 1
        flat = [batch for step in table for batch in step]
        rows.append([n, steps, (shares + [0] * 8)[:8], (flat + [0] * 96)[:96]])
    return rows


def main() -> None:
    """Write sampler and schedule."""
    rng, script = random.Random(20240609), Script()
    script.begin(7, 0, [3, 2, 1, 1])
    for batch in (3, 3, 3, 3):
        script.draw(batch)
    script.begin((1 << 64) - 2, 5, [rng.randint(0, 30) for _ in range(20)])
    script.draw(16)
    script.draw(5)
    lost = script.draw(16, commit=False)
    script.void(lost)
    gone = max(lost)
    kept = script.pools[gone]
    script.put(gone, 0)
    script.void(script.draw(16, commit=False))
    script.draw(16)
    script.put(gone, kept)
    script.add(17)
    script.draw(16)
    script.add(0)
    script.put(21, 3)
    while sum(script.pools):
        script.draw(22)
    script.begin(11, 1, [0xFFFFFFFF - 5, 0, 5])  # the largest pool there is: every other word near the top is skipped
    script.draw(8)
    script.begin(99, 2, [])
    script.draw(4)
    script.begin(3, 0, [])
    script.pools = [k * k % 41 for k in range(1000)]
    script.note(MANY, 1000, 41)
    script.digest(128, 40)
    columns = (
        "op, a, b, total after, n_ids, ids[24], counts[24]; op: 0 init (seed, epoch), 1 draw, 2 commit, 3 void, 4 set, "
        "5 add, 6 make a pools, pool k with k * k mod b, 7 digest: batch, steps, total, CRC-32 of each draw's numbers"
    )
    write("sampler", columns, script.rows)
    write("schedule", "n, steps, shares[8], batches[96] step by step", schedules(rng))


if __name__ == "__main__":
    main()
