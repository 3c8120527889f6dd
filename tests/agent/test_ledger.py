# SPDX-License-Identifier: Apache-2.0
"""The ledger's laws against exact arithmetic: categories add up, waste moves, the unknown stays unknown."""

from __future__ import annotations

import random
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import Energy, EnergyIntegrator
from paceline_agent.ledger import CATEGORIES, FLAGS, LATE_US, Edge, Ledger, Split, Tally
from paceline_agent.measuring import Scatter

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


def test_a_late_edge_wins_over_a_younger_mark_that_was_heard_before_it() -> None:
    ledger = Ledger(0)
    ledger.mark(300_000, "transfer")
    ledger.mark(200_000, "compute", 1)
    ledger.mark(400_000, "wait")
    ledger.ask(500_000, None)
    ((_, split),) = settle(ledger, constant(1_000_000, 500_000))
    assert split.parts_uj == {"other": 200_000, "transfer": 0, "compute": 200_000, "wait": 100_000, "wasted": 0}


def test_an_edge_that_is_older_than_the_last_reading_finds_its_own_time() -> None:
    ledger = Ledger(0)
    ledger.mark(100_000, "transfer")
    settle(ledger, constant(1_000_000, 300_000))
    ledger.mark(299_000, "compute", 1)
    ledger.mark(800_000, "transfer")
    settle(ledger, constant(1_000_000, 800_000))
    tally = ledger.computed(1)
    assert tally is not None
    assert (tally.energy_uj, tally.span_us) == (501_000, 501_000)


def test_an_edge_that_is_older_than_an_answer_counts_from_there() -> None:
    ledger = Ledger(0)
    ledger.ask(300_000, "told")
    settle(ledger, constant(1_000_000, 300_000))
    ledger.mark(200_000, "compute", 1)
    ledger.ask(500_000, "end")
    ((_, split),) = settle(ledger, constant(1_000_000, 500_000))
    assert split.parts_uj["other"] == 300_000
    assert split.parts_uj["compute"] == 200_000


UNIT_US = 50_000
LATE = LATE_US // UNIT_US
UNITS = 4 * LATE
acts = st.lists(
    st.tuples(st.sampled_from(["mark", "mark", "settle", "ask"]), st.integers(0, UNITS), st.sampled_from(CATEGORIES)),
    max_size=40,
)


@given(acts=acts, seed=st.integers(0, 10**6))
def test_marks_in_any_order_cut_the_window_as_a_table_of_moments_would(
    acts: list[tuple[str, int, str]], seed: int
) -> None:
    """The oracle keeps a category for every unit of time, and the same power is drawn in each of them."""
    rng = random.Random(seed)
    power_uw = [20 * rng.randint(0, 10**6) for _ in range(UNITS)]  # a unit takes whole microjoules
    integrator = EnergyIntegrator(UNIT_US)
    for unit, power in enumerate(power_uw):
        integrator.add_interval(unit * UNIT_US, (unit + 1) * UNIT_US, power)

    def energy_uj(units: Iterable[int]) -> int:
        return sum(power_uw[unit] // 20 for unit in units)

    ledger, table, settled, marked, asked, told = Ledger(0), ["other"] * UNITS, 0, 0, 0, 0
    for act, unit, category in [*acts, ("ask", UNITS, ""), ("settle", UNITS, "")]:
        if act == "mark":
            marked = max(unit, settled)
            table[marked:] = [category] * (UNITS - marked)
            ledger.mark(unit * UNIT_US, category, 1)
        elif act == "ask":
            asked = max(asked, unit)  # questions come in order
            ledger.ask(asked * UNIT_US, asked)
        else:
            for key, split in ledger.settle(unit * UNIT_US, integrator.window):
                assert isinstance(key, int)
                told, upto = told + 1, max(key, settled)
                for part in CATEGORIES:
                    spent = [u for u in range(upto) if table[u] == part]
                    assert split.parts_uj[part] == energy_uj(spent)
                assert split.total.energy_uj == energy_uj(range(upto)) == parts_sum(split)
                assert split.total.span_us == upto * UNIT_US
            due = min(unit, max(marked, asked if asked > settled else 0))
            settled = max(settled, due, unit - LATE)
    assert told == 1 + sum(act == "ask" for act, _, _ in acts)


@given(cuts=st.lists(st.integers(0, 1_000_000), min_size=2, max_size=12), power_uw=st.integers(0, 10**8))
def test_what_lies_between_two_answers_is_that_windows_energy(cuts: list[int], power_uw: int) -> None:
    integrator = constant(power_uw, 1_000_000)
    ledger, cuts = Ledger(0), sorted(cuts)
    for number, t_us in enumerate(cuts):
        ledger.mark(t_us, CATEGORIES[number % len(CATEGORIES)], number)
        ledger.ask(t_us, t_us)
    totals = [split.total.energy_uj for _, split in settle(ledger, integrator)]
    for (t0_us, before), (t1_us, after) in pairwise(zip(cuts, totals, strict=True)):
        window = integrator.window(t0_us, t1_us)
        assert window is not None
        assert before is not None
        assert after is not None
        assert after - before == window.energy_uj


def test_a_verdict_that_comes_after_the_next_lease_began_still_counts() -> None:
    ledger = Ledger(0)
    for t_us, category, lease in ((0, "compute", 1), (100_000, "compute", 2), (300_000, "wait", 0)):
        ledger.mark(t_us, category, lease)
    settle(ledger, constant(1_000_000, 500_000))
    ledger.void(1)
    parts = ledger.split().parts_uj
    assert (parts["compute"], parts["wasted"]) == (200_000, 100_000)


def test_thousands_of_leases_without_a_verdict_keep_their_sum_and_no_memory() -> None:
    ledger, integrator = Ledger(0), constant(1_000_000, 1_000_000)
    for lease in range(1, 5001):
        ledger.mark(lease * 100, "compute", lease)
    ledger.mark(600_000, "wait")
    settle(ledger, integrator)
    assert ledger.split().parts_uj["compute"] == 599_900
    assert ledger.computed(5000) is not None
    assert ledger.computed(1) == Tally(None, flags=1)  # long since part of the sum


def test_a_lease_that_never_computed_has_no_known_energy() -> None:
    assert Ledger(0).computed(9) == Tally(None, flags=1)


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

    ledger.ask(200_000, "end")
    ((_, split),) = ledger.settle(200_000, window)
    assert split.parts_uj["other"] is None
    assert split.parts_uj["compute"] == 5
    assert split.total.energy_uj is None
    assert split.total.flags & 1


def test_an_unknown_category_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no such category"):
        Ledger(0).mark(1, "lunch")


def test_each_edge_of_a_stretch_may_be_off_by_what_a_counter_resolves() -> None:
    ledger, integrator = Ledger(0), constant(1_000_000, 500_000)
    ledger.mark(100_000, "compute", 1)
    ledger.mark(300_000, "transfer")
    for t_us in (150_000, 200_000, 500_000):  # how often a stretch is looked at makes no more edges
        ledger.ask(t_us, t_us)
        ((_, split),) = ledger.settle(t_us, integrator.window, lambda t_us: Edge(70, 90))
    tally = ledger.computed(1)
    assert tally is not None
    assert (tally.energy_uj, tally.bound_uj, tally.split_uj) == (200_000, 140, 180)
    assert split.total.bound_uj == 140, "what an edge inside moves stays in the total"
    assert (split.compute_split_uj, split.total.flags) == (180, 0)


@given(steps=marks, edge_uj=st.integers(0, 10**6), void=st.sets(st.integers(1, 4)), looks=st.integers(1, 20))
def test_the_total_bears_its_two_ends_alone_and_compute_its_own_edges(
    steps: list[tuple[int, str, int]], edge_uj: int, void: set[int], looks: int
) -> None:
    integrator, ledger = constant(2_000_000, 1_000_000), Ledger(0)
    for t_us, category, lease in sorted(steps, key=lambda step: step[0]):
        ledger.mark(t_us, category, lease if category == "compute" else 0)
    for lease in void:
        ledger.void(lease)
    for look in range(1, looks + 1):
        ledger.ask(1_000_000 * look // looks, look)
        ((_, split),) = ledger.settle(1_000_000 * look // looks, integrator.window, lambda t_us: Edge(edge_uj, edge_uj))
        assert split.total.bound_uj == 2 * edge_uj
    last = {0: ("other", 0)} | {t_us: (category, lease) for t_us, category, lease in steps}
    begins = sorted(last)
    computing = [
        1 + (end_us < 1_000_000)
        for begin_us, end_us in zip(begins, [*begins[1:], 1_000_000], strict=True)
        if last[begin_us][0] == "compute" and last[begin_us][1] not in void and begin_us < end_us
    ]
    assert split.compute_split_uj == edge_uj * sum(computing)
    compute_uj = split.parts_uj["compute"] or 0
    assert bool(split.total.flags & FLAGS["estimated"]) == (10 * split.compute_split_uj > compute_uj)


def test_sampling_adds_up_over_the_stretches_of_a_category() -> None:
    integrator, ledger = constant(1_000_000, 600_000), Ledger(0)
    ledger.mark(100_000, "compute", 1)
    ledger.mark(300_000, "wait")
    ledger.mark(400_000, "compute", 2)
    ledger.ask(600_000, "end")
    asked: list[tuple[int, int]] = []

    def scatter(t0_us: int, t1_us: int) -> Scatter:
        asked.append((t0_us, t1_us))
        return Scatter(2.0, 1, unseen={18: (t1_us - t0_us) / 1e6})

    ((_, split),) = ledger.settle(600_000, integrator.window, scatter=scatter)
    assert asked == [(0, 100_000), (100_000, 300_000), (300_000, 400_000), (400_000, 600_000)]
    one = ledger.computed(1)
    assert one is not None
    assert one.scatter.count == 1
    assert one.scatter.weights == pytest.approx(0.2)
    assert split.total.scatter.count == 4
    assert split.total.scatter.weights == pytest.approx(0.6)
    assert split.wait_us == 100_000
