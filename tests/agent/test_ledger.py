# SPDX-License-Identifier: Apache-2.0
"""The ledger's laws against exact arithmetic: categories add up, waste moves, the unknown stays unknown."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import Energy, EnergyIntegrator
from paceline_agent.ledger import CATEGORIES, Ledger, Split

PERIOD_US = 100_000


def constant(power_uw: int, until_us: int) -> EnergyIntegrator:
    """Return an integrator that has seen the same power from 0 on."""
    integrator = EnergyIntegrator(PERIOD_US)
    for t_us in range(PERIOD_US, until_us + PERIOD_US, PERIOD_US):
        integrator.add_interval(t_us - PERIOD_US, t_us, power_uw)
    return integrator


def settle(ledger: Ledger, integrator: EnergyIntegrator) -> list[tuple[object, Split]]:
    return ledger.settle(integrator.final_us or 0, integrator.window)


def parts_sum(split: Split) -> int:
    known = [value for value in split.parts_uj.values() if value is not None]
    assert len(known) == len(CATEGORIES)
    return sum(known)


marks = st.lists(
    st.tuples(st.integers(0, 900_000), st.sampled_from(CATEGORIES), st.integers(1, 4)), min_size=0, max_size=30
)


@given(steps=marks, power_uw=st.integers(0, 10**8), void=st.sets(st.integers(1, 4)))
def test_the_five_categories_add_up_to_one_contiguous_window(
    steps: list[tuple[int, str, int]], power_uw: int, void: set[int]
) -> None:
    integrator = constant(power_uw, 1_000_000)
    ledger = Ledger(0)
    for t_us, category, lease in sorted(steps, key=lambda step: step[0]):
        ledger.mark(t_us, category, lease if category == "compute" else 0)
    for lease in void:
        ledger.void(lease)
    ledger.ask(1_000_000, "end")
    ((key, split),) = settle(ledger, integrator)
    assert key == "end"
    assert split.total.energy_uj == parts_sum(split)
    whole = integrator.window(0, 1_000_000)
    assert whole is not None
    assert split.total.energy_uj == whole.energy_uj
    assert split.total.span_us == 1_000_000


def test_time_is_attributed_to_what_was_marked() -> None:
    ledger = Ledger(0)
    for t_us, category in ((100_000, "transfer"), (150_000, "compute"), (450_000, "transfer"), (500_000, "wait")):
        ledger.mark(t_us, category, 7 if category == "compute" else 0)
    ledger.ask(900_000, None)
    ((_, split),) = settle(ledger, constant(2_000_000, 1_000_000))
    watts = Fraction(2)
    expected = {"other": 100, "transfer": 100, "compute": 300, "wait": 400, "wasted": 0}  # milliseconds
    assert split.parts_uj == {category: int(watts * ms * 1000) for category, ms in expected.items()}


def test_a_void_lease_is_wasted_whenever_the_verdict_comes() -> None:
    for early in (True, False):
        ledger = Ledger(0)
        integrator = constant(1_000_000, 1_000_000)
        ledger.mark(200_000, "compute", 1)
        if early:
            ledger.void(1)
        ledger.mark(500_000, "wait")
        settle(ledger, integrator)
        if not early:
            ledger.void(1)
        parts = ledger.split().parts_uj
        assert (parts["compute"], parts["wasted"]) == (0, 300_000)


def test_a_later_lease_leaves_the_accepted_ones_compute() -> None:
    ledger = Ledger(0)
    integrator = constant(1_000_000, 1_000_000)
    for t_us, category, lease in (
        (0, "compute", 1),
        (200_000, "wait", 0),
        (300_000, "compute", 2),
        (400_000, "wait", 0),
    ):
        ledger.mark(t_us, category, lease)
    settle(ledger, integrator)
    ledger.void(2)
    parts = ledger.split().parts_uj
    assert (parts["compute"], parts["wasted"]) == (200_000, 100_000)


def test_a_leases_energy_is_told_only_when_it_is_final() -> None:
    ledger = Ledger(0)
    ledger.mark(0, "compute", 3)
    ledger.mark(250_000, "transfer", 3)
    settle(ledger, constant(4_000_000, 200_000))
    assert ledger.computed(3) is None
    settle(ledger, constant(4_000_000, 300_000))
    tally = ledger.computed(3)
    assert tally is not None
    assert (tally.energy_uj, tally.span_us, tally.covered_us) == (1_000_000, 250_000, 250_000)


def test_a_mark_that_is_older_than_the_last_counts_from_there() -> None:
    ledger = Ledger(0)
    ledger.mark(300_000, "transfer")
    ledger.mark(200_000, "compute", 1)  # the edge was late: no time runs backwards
    ledger.mark(400_000, "wait")
    settle(ledger, constant(1_000_000, 500_000))
    parts = ledger.split().parts_uj
    assert parts == {"other": 300_000, "transfer": 0, "compute": 100_000, "wait": 100_000, "wasted": 0}


def test_without_a_meter_all_is_unknown_and_time_still_counts() -> None:
    ledger = Ledger(0)
    ledger.mark(100_000, "compute", 1)
    ledger.mark(200_000, "wait")
    ledger.ask(300_000, "r")
    ((_, split),) = ledger.settle(400_000, None)
    assert split.parts_uj["compute"] is None
    assert split.total.energy_uj is None
    assert (split.total.span_us, split.total.covered_us) == (300_000, 0)
    tally = ledger.computed(1)
    assert tally is not None
    assert tally.energy_uj is None


def test_one_unknown_stretch_makes_its_category_and_the_total_unknown() -> None:
    ledger = Ledger(0)
    ledger.mark(100_000, "compute", 1)

    def window(t0_us: int, t1_us: int) -> Energy:
        known = t0_us >= 100_000
        return Energy(5 if known else None, t0_us, t1_us, t1_us - t0_us, 0, 0, () if known else ("unknown",))

    ledger.settle(200_000, window)
    split = ledger.split()
    assert split.parts_uj["other"] is None
    assert split.parts_uj["compute"] == 5
    assert split.total.energy_uj is None
    assert split.total.flags & 1


def test_an_unknown_category_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no such category"):
        Ledger(0).mark(1, "lunch")
