# SPDX-License-Identifier: Apache-2.0
"""What an epoch's order and a round's batches cost, from Python, beside the best that numpy makes of them.

All contenders of a case take turns in one run, in an order that turns too; ratios are formed inside a turn. CPU time of
this thread. numpy's batches are checked against the core's; its orders are others, and are checked to be orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from paceline import batch_schedule, core, permutation
from paceline.errors import RunError
from paceline_host.bench_controller import Row, turned

ORDERS = {60_000: (25, 20), 1_000_000: (9, 1)}  # samples: (turns, calls a turn)
BATCHES = {(11, 100): (25, 50), (1_000, 100): (9, 1)}  # (ranks, steps): the same


def measure(say: Callable[[str], None]) -> Iterator[Row]:
    """Yield (name, unit, values) of each figure."""
    for samples, (turns, calls) in ORDERS.items():
        say(f"orders of {samples:,} samples")
        yield from _order(samples, turns, calls)
    for (ranks, steps), (turns, calls) in BATCHES.items():
        say(f"batches of {ranks:,} ranks in {steps} steps")
        yield from _batches(ranks, steps, turns, calls)


def _order(samples: int, turns: int, calls: int) -> Iterator[Row]:
    def by_numpy() -> Any:
        return np.random.Generator(np.random.Philox(7)).permutation(np.arange(samples, dtype=np.uint32))

    for order in (permutation(7, 0, samples), by_numpy()):
        if not (np.sort(np.asarray(order)) == np.arange(samples)).all():
            raise RunError(f"what should be an order of {samples} samples has not each of them once")
    contenders = {"paceline": lambda: permutation(7, 0, samples), "numpy, Philox": by_numpy}
    yield from _rows(f"order of {samples:,} samples, a sample", turned(contenders, turns, calls), samples)


def _batches(ranks: int, steps: int, turns: int, calls: int) -> Iterator[Row]:
    shares = np.random.default_rng(1).integers(2 * steps, 40 * steps, ranks)
    listed = shares.tolist()
    if numpy_schedule(shares, steps).tolist() != batch_schedule(listed, steps):
        raise RunError("numpy's batches are not the core's")
    contenders = {
        "in C": core.prepared_schedule(listed, steps),
        "paceline": lambda: batch_schedule(listed, steps),
        "numpy": lambda: numpy_schedule(shares, steps),
    }
    what = f"batches of {ranks:,} ranks in {steps} steps, a batch"
    yield from _rows(what, turned(contenders, turns, calls), ranks * steps)


def _rows(what: str, found: dict[str, list[float]], parts: int) -> Iterator[Row]:
    for name, values in found.items():
        yield f"{what}: {name}", "ns", [1000 * value / parts for value in values]
    *ours, peer = found
    for name in ours:
        yield f"{what}: {name} / {peer}", "x", [x / y for x, y in zip(found[name], found[peer], strict=True)]


def numpy_schedule(shares: Any, steps: int) -> Any:
    """Return steps x ranks: rank by rank the round's places are numbered, place j belongs to step j mod steps."""
    ends = np.cumsum(shares)
    step = np.arange(steps)[:, np.newaxis]

    def before(place: Any) -> Any:  # how many of the places below belong to a step
        return (place - step + steps - 1) // steps

    return before(ends) - before(ends - shares)
