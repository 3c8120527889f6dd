# SPDX-License-Identifier: Apache-2.0
"""The integrator's laws: windows telescope, gaps are counted, counters wrap, and the bound holds the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline.energy import Energy, EnergyIntegrator
from paceline.errors import CoreError

PERIOD_US = 1000


def fed(kind: str, seed: int, n: int = 60) -> tuple[EnergyIntegrator, int, int]:
    """Return an integrator with n readings of a kind, some after gaps, and the instants it spans."""
    rng = random.Random(seed)
    e = EnergyIntegrator(PERIOD_US, counter_modulus_uj=1 << 32)
    start = t = rng.randint(0, 10**12)
    count = rng.randint(0, (1 << 32) - 1)
    for _ in range(n):
        step = rng.randint(1, 2 * PERIOD_US) if rng.random() < 0.9 else rng.randint(4 * PERIOD_US, 50 * PERIOD_US)
        if kind == "interval":
            e.add_interval(t, t + step, rng.randint(0, 10**7), 1000)
            t += step + rng.choice([0, 0, rng.randint(1, 9 * PERIOD_US)])
        elif kind == "point":
            t += step
            e.add_point(t, rng.randint(0, 10**7), 1000)
        else:
            t += step
            count = (count + rng.randint(0, step * 10)) % (1 << 32)
            e.add_counter(t, count)
    assert e.final_us is not None
    return e, start + (0 if kind == "interval" else 2 * PERIOD_US), e.final_us


def joules(energy: Energy | None) -> int:
    """Return the microjoules of a window that must be known."""
    assert energy is not None
    assert energy.energy_uj is not None
    return energy.energy_uj


@pytest.mark.parametrize("kind", ["interval", "point", "counter"])
@given(seed=st.integers(0, 10**6), shares=st.lists(st.floats(0, 1), min_size=3, max_size=8))
def test_windows_that_meet_add_up_exactly(kind: str, seed: int, shares: list[float]) -> None:
    e, start, end = fed(kind, seed)
    first = start + 50 * PERIOD_US  # past the first reading, wherever it came
    assume(first < end)
    edges = sorted(first + int(share * (end - first)) for share in shares)
    parts = [e.window(a, b) for a, b in pairwise(edges)]
    whole = e.window(edges[0], edges[-1])
    assert whole is not None
    known = [part for part in parts if part is not None]
    assert len(known) == len(parts)
    assert sum(joules(part) for part in known) == joules(whole)
    assert sum(part.covered_us for part in known) == whole.covered_us
    assert sum(part.bound_uj for part in known) == whole.bound_uj
    assert all(joules(part) >= 0 for part in known)  # no power was below 0


@given(seed=st.integers(0, 10**6))
def test_points_are_integrated_by_trapezoid(seed: int) -> None:
    rng = random.Random(seed)
    e, t = EnergyIntegrator(PERIOD_US), 7
    readings = []
    for _ in range(30):
        readings.append((t, rng.randint(-(10**6), 10**8)))
        e.add_point(*readings[-1])
        t += rng.randint(1, 5000)
    total = sum(Fraction(p + q, 2) * (b - a) for (a, p), (b, q) in pairwise(readings)) / 10**6
    assert joules(e.window(readings[0][0], readings[-1][0])) == math.floor(total)


@given(seed=st.integers(0, 10**6), at=st.floats(0, 1))
def test_an_edge_between_points_is_on_the_trapezoid(seed: int, at: float) -> None:
    rng = random.Random(seed)
    p, q, length = rng.randint(0, 10**7), rng.randint(0, 10**7), rng.randint(1, 10**5)
    e = EnergyIntegrator(10**6)
    e.add_point(0, p)
    e.add_point(length, q)
    dt = int(at * length)
    exact = (p * dt + Fraction((q - p) * dt * dt, 2 * length)) / 10**6
    assert abs(joules(e.window(0, dt)) - exact) <= 1 + Fraction(abs(q - p), 2 * 10**6)  # time is whole microseconds


def test_nothing_is_final_before_a_reading_at_or_after_the_end() -> None:
    e = EnergyIntegrator(PERIOD_US)
    assert e.window(0, 1) is None
    assert e.final_us is None
    e.add_point(100, 10**6)
    e.add_point(200, 10**6)
    assert e.window(100, 201) is None
    before = e.window(100, 200)
    e.add_point(300, 9 * 10**6)
    assert e.window(100, 200) == before


def test_a_gap_is_bridged_and_counted_as_uncovered() -> None:
    e = EnergyIntegrator(PERIOD_US)
    e.add_point(0, 2 * 10**6)
    e.add_point(3000, 2 * 10**6)  # three periods are no gap
    e.add_point(6001, 4 * 10**6)
    window = e.window(0, 6001)
    assert window is not None
    assert joules(window) == 6000 + 9003
    assert (window.covered_us, window.flags, window.coverage) == (3000, ("gap",), 3000 / 6001)
    assert window.bound_uj == 3001  # the gap may have been at 2 W or at 4 W instead of 3 W
    inside = e.window(3000, 4000)
    assert inside is not None
    assert inside.covered_us == 0


def test_the_window_before_the_first_reading_is_unknown_and_never_zero() -> None:
    e = EnergyIntegrator(PERIOD_US)
    e.add_point(1000, 10**6)
    e.add_point(2000, 10**6)
    window = e.window(500, 2000)
    assert window is not None
    assert (window.energy_uj, window.covered_us, window.flags) == (None, 1000, ("unknown",))
    early = e.window(10, 20)
    assert early is not None
    assert early.energy_uj is None


def test_what_is_forgotten_is_said() -> None:
    e = EnergyIntegrator(PERIOD_US, knots=10)
    for k in range(30):
        e.add_point(1000 * k, 10**6)
    assert joules(e.window(20_000, 29_000)) == 9000
    with pytest.raises(LookupError, match="begins at 19000 us, but readings are kept from 20000 to 29000 us"):
        e.window(19_000, 29_000)


def test_a_counter_wraps_at_its_modulus() -> None:
    e = EnergyIntegrator(PERIOD_US, counter_modulus_uj=262_143_328_850)
    e.add_counter(0, 262_143_328_000)
    e.add_counter(1000, 150)
    window = e.window(0, 1000)
    assert joules(window) == 1000


def test_a_counter_without_modulus_that_goes_back_was_reset() -> None:
    e = EnergyIntegrator(PERIOD_US)
    for k, count in enumerate([0, 5000, 100, 5100]):
        e.add_counter(1000 * k, count)
    windows = [e.window(1000 * k, 1000 * k + 1000) for k in range(3)]
    assert [joules(w) for w in windows] == [5000, 5000, 5000]  # bridged at the rate before
    assert [w.flags for w in windows if w] == [(), ("gap", "reset"), ()]
    assert [w.covered_us for w in windows if w] == [1000, 0, 1000]


def test_a_counter_that_claims_the_impossible_adds_nothing_of_it() -> None:
    e = EnergyIntegrator(PERIOD_US, max_power_uw=100_000_000)
    e.add_counter(0, 0)
    e.add_counter(1000, 5000)
    e.add_counter(2000, 10**12)
    window = e.window(1000, 2000)
    assert window is not None
    assert (joules(window), window.flags) == (5000, ("gap", "reset"))


@pytest.mark.parametrize(
    "add",
    [
        lambda e: e.add_point(1000, 1),
        lambda e: e.add_point(999, 1),
        lambda e: e.add_point(2000, 10**12),
        lambda e: e.add_point(1 << 60, 1),
        lambda e: e.add_counter(2000, 1),
        lambda e: e.add_interval(1000, 2000, 1),
    ],
    ids=["same instant", "going back", "a terawatt", "years ahead", "another kind", "yet another"],
)
def test_a_reading_that_is_none_is_refused_and_changes_nothing(add: Callable[[EnergyIntegrator], None]) -> None:
    e = EnergyIntegrator(PERIOD_US)
    e.add_point(0, 10**6)
    e.add_point(1000, 10**6)
    with pytest.raises(CoreError):
        add(e)
    assert e.final_us == 1000
    e.add_point(2000, 10**6)
    assert joules(e.window(0, 2000)) == 2000


def test_an_overlap_of_intervals_counts_once() -> None:
    e = EnergyIntegrator(PERIOD_US)
    e.add_interval(0, 1000, 10**6)
    e.add_interval(900, 2000, 10**6)
    assert joules(e.window(0, 2000)) == 2000
    with pytest.raises(CoreError, match="readings must follow each other"):
        e.add_interval(1500, 2000, 10**6)


@given(seed=st.integers(0, 10**6))
def test_the_bound_holds_the_truth_when_the_instrument_is_off(seed: int) -> None:
    """Power is constant within each averaging interval; every reading is off by up to error_uw, either way."""
    rng = random.Random(seed)
    e, t, error_uw = EnergyIntegrator(PERIOD_US), 0, 50_000
    edges, truth = [0], [Fraction(0)]
    for _ in range(50):
        power, length = rng.randint(10**6, 9 * 10**6), rng.randint(500, 1500)
        e.add_interval(t, t + length, power + rng.randint(-error_uw, error_uw), error_uw)
        t += length
        edges.append(t)
        truth.append(truth[-1] + Fraction(power * length, 10**6))
    for _ in range(10):
        a, b = sorted(rng.sample(range(len(edges)), 2))
        window = e.window(edges[a], edges[b])
        assert window is not None
        assert window.edge_uj == 0
        assert abs(joules(window) - (truth[b] - truth[a])) <= window.bound_uj + 2  # two roundings


@given(seed=st.integers(0, 10**6))
def test_the_bound_of_a_gap_holds_any_power_seen_before(seed: int) -> None:
    rng = random.Random(seed)
    e, t, powers = EnergyIntegrator(PERIOD_US), 0, []
    for _ in range(20):
        powers.append(rng.randint(10**6, 9 * 10**6))
        e.add_interval(t, t + 1000, powers[-1])
        t += 1000
    end = t + 50 * PERIOD_US
    e.add_interval(end, end + 1000, powers[0])
    window = e.window(t, end)
    assert window is not None
    for power in powers:
        assert abs(joules(window) - Fraction(power * (end - t), 10**6)) <= window.bound_uj + 2


@given(seed=st.integers(0, 10**6), at=st.floats(0, 1), to=st.floats(0, 1))
def test_edges_between_counts_are_off_by_no_more_than_is_said(seed: int, at: float, to: float) -> None:
    """Between two counts the energy may have flowed at any time; only their difference is known."""
    rng = random.Random(seed)
    times = [0]
    for _ in range(6):
        times.append(times[-1] + rng.randint(1, 2 * PERIOD_US))
    flow = sorted(rng.randint(0, times[-1]) for _ in range(200))  # a microjoule at each of these instants
    e = EnergyIntegrator(PERIOD_US)
    for t in times:
        e.add_counter(t, sum(instant < t for instant in flow))
    a, b = sorted(int(share * times[-1]) for share in (at, to))
    window = e.window(a, b)
    assert window is not None
    assert abs(joules(window) - sum(a <= instant < b for instant in flow)) <= window.edge_uj + window.bound_uj + 2
