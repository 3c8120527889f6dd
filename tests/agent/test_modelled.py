# SPDX-License-Identifier: Apache-2.0
"""The declared power of an emulated board, against exact arithmetic over its edges."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import EnergyIntegrator
from paceline.errors import SettingsError
from paceline.settings import load
from paceline_agent.ledger import Ledger
from paceline_agent.meters import MeterSettings, Reading, open_source
from paceline_agent.meters.modelled import Modelled

IDLE_W, ACTIVE_W = 2.5, 11.0


def board() -> Modelled:
    return Modelled(MeterSettings("modelled", idle_w=IDLE_W, active_w=ACTIVE_W), 0)


def energy_pj(readings: list[Reading]) -> int:
    return sum((r.t1_us - r.t0_us) * r.power_uw for r in readings)


def declared_pj(edges: list[tuple[int, bool]], end_us: int) -> Fraction:
    """Return the declared energy from 0 to end_us, by adding up rectangles."""
    total, since, active = Fraction(0), 0, False
    for t_us, now_active in [*edges, (end_us, False)]:
        total += Fraction(ACTIVE_W if active else IDLE_W) * 10**6 * (t_us - since)
        since, active = t_us, now_active
    return total


def test_readings_end_at_the_edges() -> None:
    meter = board()
    meter.activity(300, True)
    meter.activity(700, False)
    readings = meter.read(1000)
    assert readings == [Reading(0, 300, 2_500_000), Reading(300, 700, 11_000_000), Reading(700, 1000, 2_500_000)]


def test_an_edge_in_the_future_waits_for_its_time() -> None:
    meter = board()
    meter.activity(1500, True)
    assert meter.read(1000) == [Reading(0, 1000, 2_500_000)]
    assert meter.read(2000) == [Reading(1000, 1500, 2_500_000), Reading(1500, 2000, 11_000_000)]


@given(
    gaps_us=st.lists(st.integers(1, 200_000), min_size=0, max_size=20),
    lateness_us=st.lists(st.integers(0, 5_000), min_size=20, max_size=20),
)
def test_late_edges_lose_and_invent_nothing(gaps_us: list[int], lateness_us: list[int]) -> None:
    edges, t_us = [], 0
    for number, gap_us in enumerate(gaps_us):
        t_us += gap_us
        edges.append((t_us, number % 2 == 0))
    meter, readings, read_us = board(), [], 0
    for (edge_us, active), late_us in zip(edges, lateness_us, strict=False):
        read_us = max(read_us + 1, edge_us + late_us)  # a reading slips in between the edge and the news of it
        readings += meter.read(read_us)
        meter.activity(edge_us, active)
    end_us = max(read_us, t_us) + 10_000_000  # long enough to make good what is owed, but for a remainder
    readings += meter.read(end_us)
    readings += meter.read(end_us + 1)  # over one microsecond nothing remains
    assert energy_pj(readings) == declared_pj(edges, end_us + 1)
    assert all(r.power_uw >= 0 for r in readings)
    assert [r.t0_us for r in readings[1:]] == [r.t1_us for r in readings[:-1]], "readings are contiguous"


def test_an_edge_a_second_late_just_before_a_forced_reading_loses_nothing() -> None:
    meter, integrator, readings = board(), EnergyIntegrator(100_000), []
    for t_us in range(100_000, 2_100_000, 100_000):
        readings += meter.read(t_us)
    meter.activity(1_000_000, True)
    for t_us in (2_000_003, 2_100_000, 3_000_000):  # 8.5 J in 3 us would be a power that the integrator refuses
        readings += meter.read(t_us)
    for reading in readings:
        integrator.add_interval(reading.t0_us, reading.t1_us, reading.power_uw)
    energy = integrator.window(0, 3_000_000)
    assert energy is not None
    assert energy.energy_uj is not None
    assert 0 <= 2_500_000 + 2 * 11_000_000 - energy.energy_uj <= 1  # a remainder below a microjoule is owed on


def test_a_window_between_late_edges_is_exact() -> None:
    meter, integrator, ledger = board(), EnergyIntegrator(100_000), Ledger(0)
    heard = {101_000: (99_000, True), 401_000: (399_000, False)}  # a reading slips in before either is heard
    for t_us in (100_000, 101_000, 200_000, 300_000, 400_000, 401_000, 500_000):
        if t_us in heard:
            edge_us, active = heard[t_us]
            meter.activity(edge_us, active)
            ledger.mark(edge_us, "compute" if active else "transfer", 1)
        for reading in meter.read(t_us):
            integrator.add_interval(reading.t0_us, reading.t1_us, reading.power_uw)
        ledger.settle(integrator.final_us or 0, integrator.window)
    tally = ledger.computed(1)
    assert tally is not None
    assert (tally.energy_uj, tally.span_us) == (300_000 * 11, 300_000)
    ledger.ask(500_000, None)
    ((_, split),) = ledger.settle(500_000, integrator.window)
    assert split.total.energy_uj is not None
    assert 0 <= 300_000 * 11 + 500_000 - split.total.energy_uj <= 1  # 200 ms at 2.5 W; a remainder is owed on


def test_edges_that_run_backwards_do_not_run_time_backwards() -> None:
    meter = board()
    meter.activity(600, True)
    meter.activity(500, False)
    assert meter.read(1000) == [Reading(0, 600, 2_500_000), Reading(600, 1000, 2_500_000)]


def test_no_meter_is_no_meter() -> None:
    assert open_source(MeterSettings(), 0) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('source = "modelled"\nidle_w = 1.0', "needs idle_w and active_w"),
        ("idle_w = 1.0\nactive_w = 2.0", 'belong to source = "modelled"'),
        ('source = "ina999"', "source"),
        ('source = "modelled"\nidle_w = -1.0\nactive_w = 2.0', "idle_w"),
        ('source = "modelled"\nidle_w = 1.0\nactive_w = 2.0\nperiod_ms = 0', "period_ms"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load(text, MeterSettings, where="agent.toml")
