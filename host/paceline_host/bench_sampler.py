# SPDX-License-Identifier: Apache-2.0
"""The global sampler against what a user would write instead, and against what no sampler of its kind can beat.

All contenders in one run, each in every round, in an order that turns; ratios are formed inside a round. CPU time of
the process over whole epochs, the making of tree or order included; numpy's exact sampler, whose step costs the same
wherever the epoch stands, over its first steps. Sparse output. What is drawn is checked, or a wrong law would win.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline import GlobalSampler, core
from paceline.errors import RunError

SIGMA = 1.5  # of the log-normal sizes
BLOCK_S = 0.02  # each is run again until so much CPU time is gone
LIMIT, ENGINE, BY_CLIENT = "machine's limit", "paceline, in C", "paceline by client, in C"
FENWICK = "paceline Fenwick, in C, nothing told"
STEPWISE, WHOLE = "paceline, Python, step by step", "paceline, Python, whole epoch"
MARGINALS, COUNT = "numpy exact, marginals", "numpy exact, count"
BINCOUNT, UNIQUE = "numpy shuffle, bincount", "numpy shuffle, unique"
EXACT, SHUFFLE = (MARGINALS, COUNT), (BINCOUNT, UNIQUE)

Pools = NDArray[np.uint32]


@dataclass(frozen=True)
class Case:
    """K clients with 1,000,000 samples in all, B drawn a step."""

    clients: int
    batch: int
    samples: int = 1_000_000

    def __str__(self) -> str:
        return f"K={self.clients} B={self.batch}"


CASES = (
    Case(10, 128),
    Case(100, 128),
    Case(1000, 128),
    Case(10_000, 128),
    Case(100_000, 128),
    Case(1_000_000, 128),
    Case(10, 4096),
    Case(1000, 4096),
    Case(1_000_000, 4096),
)


def unequal_pools(case: Case) -> Pools:
    """Return log-normal sizes that sum to the samples."""
    weights = np.random.default_rng(5).lognormal(0.0, SIGMA, case.clients)
    ends = np.rint(np.cumsum(weights) / weights.sum() * case.samples).astype(np.int64)
    pools: Pools = np.diff(ends, prepend=0).astype(np.uint32)
    return pools


def _in_c(case: Case, pools: Pools, seed: int, by_client: bool = False, simd: str = "best") -> int:
    return core.EngineHandle.init(pools, seed, 0, simd).drain(case.batch, by_client)


def _fenwick(case: Case, pools: Pools, seed: int) -> int:
    s = core.SamplerHandle.init(pools, seed, 0)
    s.skip(case.samples // case.batch, case.batch)
    return case.samples - s.total


def _stepwise(case: Case, pools: Pools, seed: int) -> int:
    s = GlobalSampler(pools, seed, replay=False)
    while s.total:
        s.draw(case.batch)
    return case.samples


def _whole(case: Case, pools: Pools, seed: int) -> int:
    GlobalSampler(pools, seed, replay=False).schedule(case.batch)
    return case.samples


def _limit(case: Case, cells: array[int], seed: int) -> int:
    core.random_updates(seed, case.samples, cells)
    return case.samples


def _exact(case: Case, pools: Pools, seed: int, method: Literal["marginals", "count"]) -> int:
    rng, left, drawn = np.random.default_rng(seed), pools.astype(np.int64), 0
    end_s = time.process_time() + BLOCK_S
    while drawn == 0 or (time.process_time() < end_s and case.samples - drawn >= case.batch):
        counts = rng.multivariate_hypergeometric(left, case.batch, method=method)
        ids = np.flatnonzero(counts)
        left[ids] -= counts[ids]
        drawn += case.batch
    if left.min() < 0 or int(left.sum()) != case.samples - drawn:
        raise RunError(f"numpy's exact sampler drew what is not there ({case})")
    return drawn


def _shuffled(case: Case, labels: NDArray[np.unsignedinteger], seed: int, tally: str) -> int:
    np.random.default_rng(seed).shuffle(labels)
    drawn = 0
    for at in range(0, case.samples, case.batch):
        step = labels[at : at + case.batch]
        if tally == "bincount":
            dense = np.bincount(step)
            ids = np.flatnonzero(dense)
            counts = dense[ids]
        else:
            ids, counts = np.unique(step, return_counts=True)
        drawn += len(step)
    if len(ids) != len(counts):
        raise RunError(f"numpy's tally is no pairs ({case})")
    return drawn


def contenders(case: Case) -> dict[str, Callable[[int], int]]:
    """Return each one's epoch (of a seed) -> samples drawn; those that are hopeless for this case are left out."""
    pools = unequal_pools(case)
    labels = np.repeat(np.arange(case.clients, dtype=np.min_scalar_type(case.clients - 1)), pools)
    cells = array("I", [1]) * case.clients
    best = core.simd_here()["best"]
    found: dict[str, Callable[[int], int]] = {
        LIMIT: lambda seed: _limit(case, cells, seed),
        ENGINE: lambda seed: _in_c(case, pools, seed),
        **{
            f"{ENGINE}, {simd}": lambda seed, simd=simd: _in_c(case, pools, seed, simd=simd)  # type: ignore[misc]
            for simd, number in core.simd_here().items()
            if number != best
        },
        FENWICK: lambda seed: _fenwick(case, pools, seed),
        STEPWISE: lambda seed: _stepwise(case, pools, seed),
        WHOLE: lambda seed: _whole(case, pools, seed),
        MARGINALS: lambda seed: _exact(case, pools, seed, "marginals"),
        COUNT: lambda seed: _exact(case, pools, seed, "count"),
        UNIQUE: lambda seed: _shuffled(case, labels, seed, "unique"),
    }
    if by_client_pays(case):
        found[BY_CLIENT] = lambda seed: _in_c(case, pools, seed, by_client=True)
    if case.clients <= 10_000:  # above, a step clears and scans more places than it has samples, and `unique` is faster
        found[BINCOUNT] = lambda seed: _shuffled(case, labels, seed, "bincount")
    if case.clients > 100_000:  # 0.2 s a step; `count` is the faster one by far
        del found[MARGINALS]
    return found


def by_client_pays(case: Case) -> bool:
    """Return whether a number a client is less work than a draw a sample."""
    return case.batch >= 100 * case.clients


def check(case: Case) -> None:
    """Draw an epoch by each way of paceline's and count it; RunError where a sample is missing or comes twice."""
    pools = unequal_pools(case)
    for by_client in (False, True) if by_client_pays(case) else (False,):
        used = np.zeros(case.clients, np.int64)
        for number, (ids, counts) in enumerate(GlobalSampler(pools, 1).schedule(case.batch, by_client=by_client)):
            used[np.asarray(ids)] += np.asarray(counts)
            if sum(counts) != min(case.batch, case.samples - number * case.batch):
                raise RunError(f"{case}: step {number} has {sum(counts)} samples")
        if not np.array_equal(used, pools):
            raise RunError(f"{case}: an epoch did not use each sample once")


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Return nanoseconds a draw of each contender, round by round."""
    check(case)
    runs = contenders(case)
    order = list(runs)
    found: dict[str, list[float]] = {name: [] for name in order}
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            began_ns, took_ns, drawn = time.process_time_ns(), 0, 0
            while took_ns < BLOCK_S * 1e9:
                drawn += runs[name](number)
                took_ns = time.process_time_ns() - began_ns
            found[name].append(took_ns / drawn)
    return found


def ratios(found: dict[str, list[float]]) -> Iterator[tuple[str, list[float]]]:
    """Yield what is compared with what, and the ratio of each round; rivals in the faster form of the round."""
    for ours in (ENGINE, BY_CLIENT, STEPWISE, WHOLE):
        if ours in found:
            for rivals, name in ((EXACT, "numpy exact"), (SHUFFLE, "numpy shuffle")):
                times = [found[rival] for rival in rivals if rival in found]
                yield f"{name} / {ours}", [min(each) / own for *each, own in zip(*times, found[ours], strict=True)]
    yield f"{ENGINE} / {LIMIT}", [own / least for own, least in zip(found[ENGINE], found[LIMIT], strict=True)]
