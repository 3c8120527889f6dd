# SPDX-License-Identifier: Apache-2.0
"""Prints what calls of the core cost from Python, best of five blocks: `python tests/bench/bench_core.py`."""

from __future__ import annotations

import platform
import random
import timeit
from collections.abc import Callable

from paceline import Controller, GlobalSampler, allocate, permutation


def show(what: str, call: Callable[[], object], number: int) -> None:
    """Print the time of one call."""
    best = min(timeit.repeat(call, number=number, repeat=5)) / number
    print(f"{what}: {best * 1e6:.1f} us")


def allocation(n: int, number: int) -> None:
    """Measure one split."""
    rng = random.Random(1)
    costs = [rng.uniform(1, 100) for _ in range(n)]
    show(f"allocate, {n} participants", lambda: allocate(costs, 100 * n), number)


def controller() -> None:
    """Measure a round of eleven reports and an allocation."""
    c = Controller(11, 6000)

    def one_round() -> None:
        for i in range(11):
            c.observe(i, 1.0 + i, 5.0, 500)
        c.allocate()

    show("Controller, 11 participants, 11 reports and allocate", one_round, 2000)


def sampler(n: int) -> None:
    """Measure a step of 128 draws."""
    rng = random.Random(1)
    s = GlobalSampler([rng.randint(1, 4_000_000 // n) for _ in range(n)], seed=1)
    show(f"GlobalSampler.draw(128), {n} clients", lambda: s.draw(128), 200)


def main() -> None:
    """Measure allocation, controller, sampler and permutation."""
    print(f"{platform.machine()}, Python {platform.python_version()}, lists in, lists out")
    for n, number in ((11, 20_000), (1000, 200), (100_000, 2)):
        allocation(n, number)
    controller()
    for n in (10, 1000, 100_000):
        sampler(n)
    show("permutation of 60000", lambda: permutation(7, 0, 60_000), 20)


if __name__ == "__main__":
    main()
