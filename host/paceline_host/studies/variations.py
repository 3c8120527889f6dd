# SPDX-License-Identifier: Apache-2.0
"""Fixed local batches with one of their traits changed, to see which one it is that harms. Pure: counts only.

A fixed batch's tail, after the first client has run out, differs from exact sampling in three ways at once: its batches
are small, their labels are one-sided, and there are many of them, each a full step of the optimiser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.batches import Schedule, Step, schedule
from paceline.sampler import GlobalSampler

VARIATIONS = {  # name -> what is changed, for tables
    "fls-cut": "fls, and the epoch ends when the first client has run out",
    "fls-mixed": "the batch sizes of fls, but drawn from all clients exactly: small batches, not one-sided ones",
    "fls-weighted": "fls, and a step's gradient counts by its samples: one-sided, but no larger than its share",
}


class Cut:
    """A schedule until its first client has run out. It does not use all samples."""

    def __init__(self, whole: Schedule, sizes: Sequence[int]) -> None:
        self.method = f"{whole.method}-cut"
        self.clients = whole.clients
        self.effective_batch = whole.effective_batch
        self._whole = whole
        self.steps = first_depletion(whole, sizes)

    def __iter__(self) -> Iterator[Step]:
        for number, step in enumerate(self._whole, 1):
            yield step
            if number == self.steps:
                return


class Mixed:
    """A schedule's batch sizes, drawn as `gpsl` draws."""

    def __init__(self, whole: Schedule, sizes: Sequence[int], seed: int, epoch: int) -> None:
        self.method = f"{whole.method}-mixed"
        self.clients = whole.clients
        self.effective_batch = whole.effective_batch
        self.steps = whole.steps
        self._batches = [sum(counts) for _, counts in whole]
        self._sizes, self._seed, self._epoch = list(sizes), seed, epoch

    def __iter__(self) -> Iterator[Step]:
        sampler = GlobalSampler(self._sizes, seed=self._seed, epoch=self._epoch)
        for batch in self._batches:
            yield sampler.draw(batch)


def plan(method: str, sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0) -> Schedule:
    """Return the steps of an epoch, as `paceline.batches.schedule` does, for variations too."""
    base, _, change = method.partition("-")
    whole = schedule(base, sizes, batch, seed, epoch)
    if change == "cut":
        return Cut(whole, sizes)
    return Mixed(whole, sizes, seed, epoch) if change == "mixed" else whole


def first_depletion(steps: Schedule, sizes: Sequence[int]) -> int:
    """Return after how many steps the first client that had samples has none left."""
    left = list(sizes)
    number = 0
    for ids, counts in steps:
        number += 1
        for k, count in zip(ids, counts, strict=True):
            left[k] -= count
        if any(size and not rest for size, rest in zip(sizes, left, strict=True)):
            break
    return number
