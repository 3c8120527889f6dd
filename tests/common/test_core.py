# SPDX-License-Identifier: Apache-2.0
"""Permutation and allocation across the border, against plain integers and exact fractions."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from array import array
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline import allocate, permutation
from paceline.errors import CoreError

COSTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50)


# Permutation


@given(seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**32 - 1), n=st.integers(0, 3000))
def test_a_permutation_holds_each_number_once(seed: int, epoch: int, n: int) -> None:
    assert sorted(permutation(seed, epoch, n)) == list(range(n))


def test_a_permutation_is_a_buffer_of_32_bit_words() -> None:
    view = memoryview(permutation(7, 0, 10))
    assert (view.format, view.itemsize, len(view)) == ("I", 4, 10)


def test_epochs_and_seeds_give_different_orders() -> None:
    orders = {tuple(permutation(seed, epoch, 100)) for seed in (1, 2, 1 << 40) for epoch in (0, 1)}
    assert len(orders) == 6


@pytest.mark.parametrize(
    ("seed", "epoch", "n"), [(-1, 0, 5), (1 << 64, 0, 5), (0, 1 << 32, 5), (0, 0, -1), (0, 0, 1 << 32)]
)
def test_a_permutation_out_of_range_is_refused(seed: int, epoch: int, n: int) -> None:
    with pytest.raises(CoreError, match="expected a whole number from 0"):
        permutation(seed, epoch, n)


def test_every_order_of_four_is_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    trials = 24_000
    for seed in range(trials):
        order = tuple(permutation(seed, 0, 4))
        counts[order] = counts.get(order, 0) + 1
    expected = trials / 24
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 24
    assert chi_squared < 60  # 23 degrees of freedom: 60 has a chance of 4e-5, and the seeds are fixed


# Allocation


@given(costs=COSTS, budget=st.integers(50, 10**6))
def test_shares_sum_to_the_budget(costs: list[float], budget: int) -> None:
    shares = allocate(costs, budget)
    assert sum(shares) == budget
    assert min(shares) >= 1


@given(costs=COSTS, budget=st.integers(50, 10**6))
def test_a_dearer_participant_never_gets_more(costs: list[float], budget: int) -> None:
    by_cost = sorted(zip(costs, allocate(costs, budget), strict=True))
    assert all(a[0] == b[0] or a[1] >= b[1] for a, b in pairwise(by_cost))


@st.composite
def limited(draw: st.DrawFn) -> tuple[list[float], int, list[int], list[int]]:
    costs = draw(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
    n = len(costs)
    minimum = draw(st.lists(st.integers(0, 200), min_size=n, max_size=n))
    capacity = [
        low + more
        for low, more in zip(minimum, draw(st.lists(st.integers(0, 500), min_size=n, max_size=n)), strict=True)
    ]
    budget = draw(st.integers(sum(minimum), sum(capacity)))
    return costs, budget, minimum, capacity


@given(limited())
def test_limits_are_kept_and_the_sum_is_exact(case: tuple[list[float], int, list[int], list[int]]) -> None:
    costs, budget, minimum, capacity = case
    shares = allocate(costs, budget, minimum, capacity)
    assert sum(shares) == budget
    assert all(low <= share <= high for low, share, high in zip(minimum, shares, capacity, strict=True))


def exact(costs: list[float], budget: int, minimum: list[int], capacity: list[int]) -> tuple[list[int], Fraction]:
    """Return the shares in exact arithmetic, and how far the nearest decision was from falling the other way."""
    price = [Fraction(cost) for cost in costs]
    edges = sorted({limit * c for c, low, high in zip(price, minimum, capacity, strict=True) for limit in (low, high)})

    def total(lam: Fraction) -> Fraction:
        return sum(
            (
                max(Fraction(low), min(Fraction(high), lam / c))
                for c, low, high in zip(price, minimum, capacity, strict=True)
            ),
            Fraction(0),
        )

    upper = next((edge for edge in edges if total(edge) >= budget), edges[-1])
    lower = max((edge for edge in edges if edge < upper), default=Fraction(0))
    rise = total(upper) - total(lower)
    lam = lower + (budget - total(lower)) / rise * (upper - lower) if rise else upper
    real = [
        max(Fraction(low), min(Fraction(high), lam / c)) for c, low, high in zip(price, minimum, capacity, strict=True)
    ]
    open_ = [i for i, x in enumerate(real) if minimum[i] < lam / price[i] < capacity[i]]
    shares = [int(x) for x in real]
    rest = budget - sum(shares)
    order = sorted(open_, key=lambda i: (shares[i] - real[i], i))
    for i in order[:rest]:
        shares[i] += 1
    remainders = sorted(real[i] - int(real[i]) for i in open_)
    gaps = [b - a for a, b in pairwise([Fraction(0), *remainders, Fraction(1)])]
    gaps += [abs(lam / c - limit) for i, c in enumerate(price) for limit in (minimum[i], capacity[i])]
    return shares, min(gaps)


@given(limited())
def test_shares_are_those_of_exact_arithmetic(case: tuple[list[float], int, list[int], list[int]]) -> None:
    wanted, margin = exact(*case)
    assume(margin > Fraction(1, 10**8))  # doubles are off by less than 1e-9 here: n <= 12, shares below 1e4
    costs, budget, minimum, capacity = case
    assert allocate(costs, budget, minimum, capacity) == wanted


@given(limited(), st.randoms(use_true_random=False))
def test_permuted_participants_get_permuted_shares(
    case: tuple[list[float], int, list[int], list[int]], shuffler: random.Random
) -> None:
    costs, budget, minimum, capacity = case
    assume(exact(*case)[1] > 0)  # ties go to the lower index, whoever that is
    order = list(range(len(costs)))
    shuffler.shuffle(order)
    moved = allocate([costs[i] for i in order], budget, [minimum[i] for i in order], [capacity[i] for i in order])
    shares = allocate(costs, budget, minimum, capacity)
    assert moved == [shares[i] for i in order]


def test_the_reference_split_of_eleven_boards() -> None:
    costs = [1, 1.6, 2.5, 2.5, 5, 5.2, 7, 12, 14, 22, 25]
    assert allocate(costs, 6000) == [1875, 1172, 750, 750, 375, 360, 268, 156, 134, 85, 75]


def test_a_fleet_of_ten_thousand_is_divided() -> None:
    rng = random.Random(3)
    costs = [rng.uniform(1, 100) for _ in range(10_000)]
    shares = allocate(costs, 10**6, minimum=5, capacity=[rng.randint(50, 500) for _ in costs])
    assert sum(shares) == 10**6
    assert min(shares) >= 5


@pytest.mark.parametrize(
    ("costs", "limits", "sentence"),
    [
        ([1, 1, 1], {"minimum": 4}, "a budget of 10 samples is 2 short of the sum of the minima; raise it to 12"),
        ([1, 1], {"capacity": 3}, "4 samples of a budget of 10 find no place within the capacities; lower it to 6"),
        ([1, 1], {"minimum": 5, "capacity": 4}, "a minimum is above its capacity"),
        ([1, 0.0], {}, "each cost must be a number from 1e-100 to 1e100"),
        ([1, float("nan")], {}, "each cost must be a number"),
        ([1, float("inf")], {}, "each cost must be a number"),
        ([1, "x"], {}, "costs: expected a flat sequence of numbers"),
        ([1, 2], {"minimum": [1]}, "minimum holds 1 values for 2 participants"),
        ([1, 2], {"minimum": -1}, "minimum is -1; expected a whole number from 0"),
        ([1, 2], {"capacity": [1, 2**32]}, "capacity: expected a flat sequence of whole numbers"),
        ([], {}, "10 samples of a budget of 10 find no place"),
    ],
)
def test_what_cannot_be_divided_is_said_in_a_sentence(
    costs: list[float], limits: dict[str, int], sentence: str
) -> None:
    with pytest.raises(CoreError, match=re.escape(sentence)):
        allocate(costs, 10, **limits)


@pytest.mark.parametrize(
    "costs", [[1.0, 2.0, 4.0], (1, 2, 4), array("d", [1, 2, 4]), array("f", [1, 2, 4]), range(1, 4)]
)
def test_any_sequence_or_buffer_goes_in(costs: list[float]) -> None:
    assert allocate(costs, 700) == allocate([float(cost) for cost in costs], 700)


def test_numpy_arrays_go_in() -> None:
    numpy = pytest.importorskip("numpy")
    for kind in ("float64", "float32", "int64"):
        assert allocate(numpy.array([1, 2, 4], dtype=kind), 700) == [400, 200, 100]
    assert allocate(numpy.array([1.0, 9.0, 2.0, 9.0, 4.0])[::2], 700, numpy.array([0, 0, 0])) == [400, 200, 100]


def test_importing_the_library_loads_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, paceline, paceline.energy, paceline.policies; sys.exit(len({'numpy', 'torch'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
