# SPDX-License-Identifier: Apache-2.0
"""Deviation of a step's labels: by hand, against exact enumeration, and its bound against the exact law."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import GlobalSampler
from paceline.batches import schedule
from paceline.deviation import RISK, EpochLabels, expected, judge, serfling
from paceline.errors import CoreError


def test_a_step_is_judged_against_the_epochs_own_labels() -> None:
    epoch = EpochLabels(3)
    epoch.add([4, 0, 0])
    epoch.add([1, 1, 2])
    assert epoch.totals == (5, 1, 2)
    first, second = epoch.deviations()
    assert first.l1 == pytest.approx(3 / 8 + 1 / 8 + 2 / 8)
    assert first.largest == pytest.approx(3 / 8)
    assert second.l1 == pytest.approx(3 / 8 + 1 / 8 + 2 / 8)
    assert (first.samples, second.samples) == (4, 4)
    assert epoch.deviations([10, 0, 0])[0].l1 == 0.0


@given(st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(any))
def test_it_is_0_for_the_whole_pool_and_never_above_2(totals: list[int]) -> None:
    assert judge(totals, totals).l1 == 0.0
    one = [0] * len(totals)
    one[0] = 1
    assert 0.0 <= judge(one, totals).l1 <= 2.0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), st.integers(1, 12))
def test_the_expected_deviation_is_that_of_exact_enumeration(totals: list[int], batch: int) -> None:
    pool = sum(totals)
    batch = min(batch, pool)
    exact = Fraction(0)
    for held in totals:
        for n in range(max(0, batch - pool + held), min(batch, held) + 1):
            chance = Fraction(math.comb(held, n) * math.comb(pool - held, batch - n), math.comb(pool, batch))
            exact += chance * abs(Fraction(n, batch) - Fraction(held, pool))
    assert expected(batch, totals) == pytest.approx(float(exact), rel=1e-9, abs=1e-12)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.floats(0.001, 0.9))
def test_the_bound_holds_with_the_exact_law(held: int, others: int, batch: int, risk: float) -> None:
    pool = held + others
    batch = min(batch, pool)
    bound = serfling(batch, pool, risk)
    chance = Fraction(0)
    for n in range(max(0, batch - others), min(batch, held) + 1):
        if abs(n / batch - held / pool) >= bound:
            chance += Fraction(math.comb(held, n) * math.comb(others, batch - n), math.comb(pool, batch))
    assert float(chance) <= risk


def test_the_finite_population_tightens_the_bound() -> None:
    assert serfling(128, 1 << 40) == pytest.approx(math.sqrt(math.log(40) / 256))  # Hoeffding's
    assert serfling(64, 128) == pytest.approx(math.sqrt(math.log(40) * (1 - 63 / 128) / 128))


def test_gpsl_deviates_as_exact_sampling_does_and_fixed_batches_more() -> None:
    """One class a client, so that a step's counts are its labels; the bounds are 5 standard errors, measured."""
    totals = [400, 300, 200, 60, 40]
    batch, values, beyond = 20, [], 0
    for seed in range(40):
        epoch = EpochLabels(5)
        sampler = GlobalSampler(totals, seed=seed)
        while sampler.total:
            epoch.add(sampler.draw_dense(batch))
        found = epoch.deviations()
        assert epoch.totals == tuple(totals)
        values += [step.l1 for step in found]
        beyond += sum(step.beyond for step in found)
    mean = sum(values) / len(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values)) / len(values)
    assert abs(mean - expected(batch, totals)) < 5 * error
    assert beyond <= RISK * 5 * len(values)
    fixed = EpochLabels(5)
    for ids, counts in schedule("fls", totals, batch):
        row = [0] * 5
        for k, count in zip(ids, counts, strict=True):
            row[k] = count
        fixed.add(row)
    steps = fixed.deviations()
    assert sum(step.l1 for step in steps) / len(steps) > 1.5 * mean


@pytest.mark.parametrize("counts", [[1, 2], [0, 0, 0], [3, -1, 0]])
def test_what_are_no_labels_of_a_step_is_refused(counts: list[int]) -> None:
    with pytest.raises(CoreError, match="a step's labels are"):
        EpochLabels(3).add(counts)


@pytest.mark.parametrize(("batch", "pool", "risk"), [(0, 5, 0.1), (6, 5, 0.1), (3, 5, 0.0), (3, 5, 1.0)])
def test_what_has_no_bound_is_refused(batch: int, pool: int, risk: float) -> None:
    with pytest.raises(CoreError, match="expected 1 <= batch <= pool"):
        serfling(batch, pool, risk)
