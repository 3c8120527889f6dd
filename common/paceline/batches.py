# SPDX-License-Identifier: Apache-2.0
"""How many samples each client gives in each step of an epoch of split learning: four methods behind one interface.

`gpsl` draws B from all pools without replacement (exactly as central training would), `central` is the same with all
data at one client, `fls` and `fpls` are the fixed local batches that GPSL is compared with, as their published code
defines them. Pure: knows no network, no sample and no label.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from paceline.errors import CoreError, SettingsError
from paceline.sampler import GlobalSampler
from paceline.settings import did_you_mean

Step = tuple[list[int], list[int]]  # client ids in increasing order, and how many samples each gives (all >= 1)


class Schedule(Protocol):
    """One epoch. Iterating yields `steps` Steps, each time the same ones; together they use each sample once."""

    method: str
    clients: int  # whom the ids of a Step name; 1 for central, where client 0 holds all data
    steps: int
    effective_batch: int  # samples of the first step: what the method makes of the batch that was asked for

    def __iter__(self) -> Iterator[Step]: ...


class Global:
    """`gpsl`: batches of exactly B drawn over all clients, the last one what is left (or all of them near-equal)."""

    def __init__(
        self, sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0, *, near_equal: bool = False
    ) -> None:
        self.method = "gpsl"
        self.clients = len(sizes)
        self._sizes, self._seed, self._epoch = list(sizes), seed, epoch
        self._batches = _cut(sum(sizes), batch, near_equal)
        self.steps = len(self._batches)
        self.effective_batch = self._batches[0]

    def __iter__(self) -> Iterator[Step]:
        sampler = GlobalSampler(self._sizes, seed=self._seed, epoch=self._epoch)
        for batch in self._batches:
            yield sampler.draw(batch)


class Central:
    """`central`: the pools are one; which samples come when is its local order."""

    def __init__(
        self, sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0, *, near_equal: bool = False
    ) -> None:
        self.method = "central"
        self.clients = 1
        self._batches = _cut(sum(sizes), batch, near_equal)
        self.steps = len(self._batches)
        self.effective_batch = self._batches[0]

    def __iter__(self) -> Iterator[Step]:
        for batch in self._batches:
            yield [0], [batch]


class Fixed:
    """`fls`, `fpls`: client k gives b_k a step until it has none left; nobody fills in for it, no batch is repaired.

    A client without samples counts among the K, as in the published code, and never gives any; there it makes the epoch
    endless, here it does not, as the epoch has max_k ceil(D_k / b_k) steps.
    """

    def __init__(self, method: str, sizes: Sequence[int], local: Sequence[int]) -> None:
        self.method = method
        self.clients = len(sizes)
        self.local = tuple(local)  # b_k
        self._sizes = list(sizes)
        self.steps = max(-(-size // b) for size, b in zip(sizes, local, strict=True))
        self.effective_batch = sum(min(size, b) for size, b in zip(sizes, local, strict=True))

    def __iter__(self) -> Iterator[Step]:
        left = self._sizes.copy()
        alive = [k for k, size in enumerate(left) if size]
        while alive:
            counts = [min(self.local[k], left[k]) for k in alive]
            yield alive, counts
            for k, count in zip(alive, counts, strict=True):
                left[k] -= count
            alive = [k for k in alive if left[k]]


def fls(sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0) -> Schedule:
    """Fixed local batches: b_k = max(1, round(B / K)), half to even."""
    return Fixed("fls", sizes, [max(1, half_even(batch, len(sizes)))] * len(sizes))


def fpls(sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0) -> Schedule:
    """Fixed proportional local batches: b_k = max(1, round(B D_k / D)), half to even."""
    total = sum(sizes)
    return Fixed("fpls", sizes, [max(1, half_even(batch * size, total)) for size in sizes])


METHODS: dict[str, Callable[..., Schedule]] = {"gpsl": Global, "fls": fls, "fpls": fpls, "central": Central}


def schedule(method: str, sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0) -> Schedule:
    """Return the steps of an epoch over clients of these sizes.

    Seed and epoch name the draws of `gpsl`; the others draw nothing. Sizes and batch may be whole numbers of any type:
    they are computed with as Python's own, which do not overflow. Raises SettingsError for a method that does not
    exist, CoreError for a batch below 1, no samples at all, more than 2^32 - 1, or what is no whole number.
    """
    if method not in METHODS:
        raise SettingsError([f"method: there is no method {method!r}; {did_you_mean(method, list(METHODS))}"])
    sizes, batch = [_whole(size, "a client's size") for size in sizes], _whole(batch, "batch")
    if batch < 1:
        raise CoreError(f"batch is {batch}; a step takes at least 1 sample")
    if any(size < 0 for size in sizes) or not 0 < sum(sizes) < 1 << 32:
        raise CoreError(
            f"{len(sizes)} clients hold {sum(sizes)} samples; expected sizes of 0 or more with a sum of 1 to 2^32 - 1"
        )
    return METHODS[method](sizes, batch, seed, epoch)


def _whole(value: int, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise CoreError(f"{what} is {value!r}; expected a whole number") from None


def half_even(numerator: int, denominator: int) -> int:
    """Return the whole number nearest to a quotient, of two equally near the even one; exact at any size."""
    below, rest = divmod(numerator, denominator)
    return below + (2 * rest > denominator or (2 * rest == denominator and below % 2 == 1))


def _cut(total: int, batch: int, near_equal: bool) -> list[int]:
    """Return the batch sizes of an epoch: B until the pool is empty, or as many that differ by one at most."""
    steps = -(-total // batch)
    if near_equal:
        return [total // steps + (step < total % steps) for step in range(steps)]
    return [batch] * (steps - 1) + [total - (steps - 1) * batch]
