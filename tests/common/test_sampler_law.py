# SPDX-License-Identifier: Apache-2.0
"""Every way of drawing an epoch has the exact joint law, by chi-square against enumeration; a wrong one does not."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.common.urns import Epoch, chi_square_test, joint_law, p_value

from paceline import GlobalSampler, LocalDraw, core
from paceline.errors import CoreError

URNS = [((3, 2, 1, 1), 3), ((2, 2, 2, 1), 2), ((1, 0, 4, 2), 4), ((6, 1), 3)]
TRIALS = 8_000
# Two-sided: an epoch that fits too well is as wrong. The seeds are fixed, so a right sampler passes for ever.
LEAST_P, MOST_P = 1e-4, 1 - 1e-4

Draw = Callable[[tuple[int, ...], int, int], Iterable[tuple[Iterable[int], Iterable[int]]]]


def as_epoch(steps: Iterable[tuple[Iterable[int], Iterable[int]]]) -> Epoch:
    return tuple(tuple(k for k, n in zip(ids, counts, strict=True) for _ in range(n)) for ids, counts in steps)


def stepwise(structure: str, simd: str = "best") -> Draw:
    def draw(pools: tuple[int, ...], batch: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
        s = GlobalSampler(pools, seed, structure=structure, simd=simd)
        while s.total:
            yield s.draw(batch)

    return draw


def spread_out(pools: tuple[int, ...], batch: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Draw from a tree: 90 clients without samples stand between any two."""
    far = [pools[k // 91] if k % 91 == 0 else 0 for k in range(91 * len(pools))]
    s = GlobalSampler(far, seed)
    while s.total:
        ids, counts = s.draw(batch)
        yield [k // 91 for k in ids], counts


def by_client(pools: tuple[int, ...], batch: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    s = GlobalSampler(pools, seed)
    while s.total:
        yield s.draw_by_client(batch)


def multinomial(pools: tuple[int, ...], batch: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Draw each step with replacement, as one multinomial, cut to what is there: the mistake to be found."""
    rng, left = random.Random(seed), list(pools)
    while total := sum(left):
        drawn = Counter(rng.choices(range(len(left)), left, k=min(batch, total)))
        ids = [k for k in sorted(drawn) if left[k]]
        counts = [min(drawn[k], left[k]) for k in ids]
        for k, n in zip(ids, counts, strict=True):
            left[k] -= n
        yield ids, counts


def without_repair(pools: tuple[int, ...], batch: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Draw a step's samples by the shares at its start, skipping who is empty: nothing is lost, and it is wrong."""
    rng, left = random.Random(seed), list(pools)
    while total := sum(left):
        weights, drawn = list(left), Counter[int]()
        for _ in range(min(batch, total)):
            k = rng.choices(range(len(left)), [w if n else 0 for w, n in zip(weights, left, strict=True)])[0]
            left[k] -= 1
            drawn[k] += 1
        yield sorted(drawn), [drawn[k] for k in sorted(drawn)]


RIGHT: dict[str, Draw] = {
    "Fenwick tree": stepwise("fenwick"),
    "registers": stepwise("tree16"),
    "16-ary tree": spread_out,
    "whole epoch in one call": lambda pools, batch, seed: GlobalSampler(pools, seed).schedule(batch),
    "by client": by_client,
    "whole epoch by client": lambda pools, batch, seed: GlobalSampler(pools, seed).schedule(batch, by_client=True),
}


def law_p(draw: Draw, pools: tuple[int, ...], batch: int) -> float:
    law = joint_law(pools, batch)
    return chi_square_test(law, (as_epoch(draw(pools, batch, seed)) for seed in range(TRIALS)))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize(("pools", "batch"), URNS, ids=str)
def test_the_joint_law_of_an_epoch_is_exact(name: str, pools: tuple[int, ...], batch: int) -> None:
    p = law_p(RIGHT[name], pools, batch)
    print(f"{name}, pools {pools}, batch {batch}: p = {p:.4f}")
    assert LEAST_P < p < MOST_P


@pytest.mark.parametrize("wrong", [multinomial, without_repair])
def test_a_wrong_law_does_not_pass(wrong: Draw) -> None:
    pools, batch = URNS[0]
    assert law_p(wrong, pools, batch) < 1e-12


def test_the_p_values_are_those_of_tables() -> None:
    for chi_squared, freedom, p in [
        (3.841459, 1, 0.05),
        (18.307038, 10, 0.05),
        (23.209251, 10, 0.01),
        (9.341818, 10, 0.5),
    ]:
        assert p_value(chi_squared, freedom) == pytest.approx(p, abs=1e-7)


@pytest.mark.parametrize("way", ["draw", "draw_by_client"])
@pytest.mark.parametrize("clients", [40, 700])
def test_means_variances_and_covariances_are_hypergeometric(way: str, clients: int) -> None:
    """On a large urn: chi-square of the means, the mean ratio of variances, and the sum that any batch keeps."""
    pools = [1 + k % 13 + (400 if k % 7 == 0 else 0) for k in range(clients)]
    total, trials = sum(pools), 400
    batch = total // 5
    sums, squares, products = [0] * clients, [0] * clients, 0.0
    for seed in range(trials):
        ids, counts = getattr(GlobalSampler(pools, seed, epoch=3), way)(batch)
        got = dict(zip(ids, counts, strict=True))
        products += (got.get(0, 0) - batch * pools[0] / total) * (got.get(7, 0) - batch * pools[7] / total)
        for k, count in got.items():
            sums[k] += count
            squares[k] += count * count
    z = ratio = 0.0
    for k, pool in enumerate(pools):
        p = pool / total
        variance = batch * p * (1 - p) * (total - batch) / (total - 1)
        mean = sums[k] / trials
        z += (mean - batch * p) ** 2 / (variance / trials) * (1 - p)  # the means sum to the batch: one freedom less
        ratio += (squares[k] / trials - mean**2) / variance * trials / (trials - 1)
    assert LEAST_P < p_value(z, clients - 1) < MOST_P
    assert abs(ratio / clients - 1) < 5 * math.sqrt(2 / trials / clients)
    p, q = pools[0] / total, pools[7] / total
    covariance = -batch * p * q * (total - batch) / (total - 1)
    spread = batch * math.sqrt(p * q * (1 - p) * (1 - q)) * (total - batch) / (total - 1)
    assert abs(products / trials - covariance) < 4.5 * spread / math.sqrt(trials)


@pytest.mark.parametrize(
    ("good", "total", "sample"),
    [(40, 100, 50), (60, 100, 30), (20, 60, 22), (3000, 10**6, 4096), (500_000, 10**6, 4096), (999_000, 10**6, 4096)],
)
def test_numbers_by_client_have_the_hypergeometric_law(good: int, total: int, sample: int) -> None:
    trials = 30_000
    seen = Counter(core.hypergeometric(1, trials, good, total, sample))
    ways = math.comb(total, sample) if total <= 100 else 0
    expected = actual = chi_squared = 0.0
    freedom = -1
    for x in range(max(0, sample + good - total), min(good, sample) + 1):
        if ways:
            chance = math.comb(good, x) * math.comb(total - good, sample - x) / ways
        else:
            logs = [(good, x), (total - good, sample - x), (total, sample)]
            a, b, c = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for n, k in logs)
            chance = math.exp(a + b - c)
        expected += trials * chance
        actual += seen[x]
        if expected > 20:
            chi_squared += (actual - expected) ** 2 / expected
            freedom += 1
            expected = actual = 0.0
    assert LEAST_P < p_value(chi_squared, freedom) < MOST_P


@given(
    pools=st.lists(st.integers(0, 900), min_size=1, max_size=90), batch=st.integers(900, 9000), seed=st.integers(0, 99)
)
def test_draws_by_client_use_each_sample_once(pools: list[int], batch: int, seed: int) -> None:
    s = GlobalSampler(pools, seed)
    used: Counter[int] = Counter()
    while s.total:
        before = s.total
        ids, counts = s.draw_by_client(batch)
        assert ids == sorted(set(ids))
        assert min(counts) > 0
        assert sum(counts) == min(batch, before)
        used.update(dict(zip(ids, counts, strict=True)))
        assert s.remaining == [pool - used[k] for k, pool in enumerate(pools)]
    assert [used[k] for k in range(len(pools))] == pools


def test_a_fenwick_tree_has_no_draw_by_client() -> None:
    with pytest.raises(CoreError, match="draws sample by sample only; use structure='tree16'"):
        GlobalSampler([5], structure="fenwick").draw_by_client(1)


# Local draw


def test_local_orders_are_uniform() -> None:
    law = joint_law((1, 1, 1, 1), 1)
    orders = (tuple((k,) for k in LocalDraw(4, seed, 1, 2).draw(4)) for seed in range(TRIALS))
    assert LEAST_P < chi_square_test(law, orders) < MOST_P


@given(samples=st.integers(0, 300), cuts=st.lists(st.integers(0, 40), max_size=30), seed=st.integers(0, 2**64 - 1))
def test_a_local_order_does_not_depend_on_how_it_is_drawn(samples: int, cuts: list[int], seed: int) -> None:
    whole, order = LocalDraw(samples, seed, 4, 9).draw(samples), LocalDraw(samples, seed, 4, 9)
    assert sorted(whole) == list(range(samples))
    given_ = 0
    for cut in cuts:
        cut = min(cut, order.remaining)
        assert order.draw(cut) == whole[given_ : given_ + cut]
        order.give_back(cut // 3)
        given_ += cut - cut // 3
        order = LocalDraw.from_state(order.state())
        assert order.remaining == samples - given_
    assert order.draw(order.remaining) == whole[given_:]


def test_clients_epochs_and_seeds_have_orders_of_their_own() -> None:
    names = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1 << 32, 0, 0)]
    assert len({tuple(LocalDraw(20, *name).draw(20)) for name in names}) == len(names)


def test_what_a_local_draw_cannot_do_is_said() -> None:
    order = LocalDraw(5)
    order.draw(2)
    with pytest.raises(CoreError, match="4 samples are asked for and 3 of 5 are left"):
        order.draw(4)
    with pytest.raises(CoreError, match="3 samples cannot come back; 2 were drawn"):
        order.give_back(3)
    assert order.remaining == 3
    state = order.state()
    for damaged in (state[:-1], state + b"\0", b"", state[:9] + b"x" + state[10:]):
        with pytest.raises(CoreError, match="LocalDraw state: the bytes are damaged"):
            LocalDraw.from_state(damaged)
