# SPDX-License-Identifier: Apache-2.0
"""The period of reading: what the user sets stands, costs and the source's own pace win over what windows want."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import EnergyIntegrator
from paceline_agent import cadence as c
from paceline_agent.cadence import Cadence, Rhythm
from paceline_agent.metering import MeterThread, Pace
from paceline_agent.meters import Count, MeterSettings, Reading
from paceline_agent.meters.hwmon import Hwmon

from .trees import ina2xx, put

PATIENCE_S = 20.0


def after(rhythm: Rhythm, *windows_us: int, counter: bool = False, cpu_us: float = 0.0, bus_us: float = 0.0) -> Cadence:
    """Return what a source's cadence has become after these windows and a block of such reads."""
    cadence = Cadence(rhythm)
    for _ in range(c.BLOCK):
        cadence.read(rhythm, 1, cpu_us, bus_us, counter)
    for window_us in windows_us:
        cadence.window(window_us)
    return cadence


@pytest.mark.parametrize(
    ("rhythm", "windows_us", "counter", "cpu_us", "bus_us", "period_us"),
    [
        (Rhythm(), (), False, 0, 0, 100_000),
        (Rhythm(), (8_000_000,), False, 0, 0, 40_000),
        (Rhythm(), (8_000_000, 60_000_000), False, 0, 0, 40_000),
        (Rhythm(), (100_000,), False, 0, 0, 20_000),
        (Rhythm(), (600_000_000,), False, 0, 0, 100_000),
        (Rhythm(), (100_000_000,), True, 0, 0, 500_000),
        (Rhythm(), (900_000_000,), True, 0, 0, 1_000_000),
        (Rhythm(update_us=35_000), (4_000_000,), False, 0, 0, 35_000),
        (Rhythm(update_us=360_000), (), False, 0, 0, 360_000),
        (Rhythm(), (), False, 1_200, 0, 300_000),
        (Rhythm(), (), False, 9_000, 90_000, 400_000),
        (Rhythm(), (4_000_000,), False, 0, 5_000, 50_000),
        (Rhythm(longest_us=16_000), (900_000_000,), True, 0, 0, 16_000),
        (Rhythm(68_632, 68_632, is_fixed=True), (100_000,), False, 9_000, 9_000, 68_632),
    ],
    ids=[
        "nothing is known", "a short window wants more", "the shortest one counts", "but not without end",
        "a long window wants no fewer of power", "of a counter it does", "and that has an end",
        "no sooner than the source has news", "a slow source is read slowly", "a processor costs more than is wanted",
        "costs have an end",
        "so does a bus", "never so slowly that a counter could wrap twice", "a source with a pace of its own keeps it",
    ],
)  # fmt: skip
def test_the_period_follows_from_source_costs_and_windows(
    rhythm: Rhythm, windows_us: Sequence[int], counter: bool, cpu_us: float, bus_us: float, period_us: int
) -> None:
    cadence = after(rhythm, *windows_us, counter=counter, cpu_us=cpu_us, bus_us=bus_us)
    assert cadence.period_us == period_us
    assert cadence.why


@given(st.integers(10_000, 60_000_000), st.lists(st.integers(0, 10**10), max_size=9), st.floats(0, 1e6), st.booleans())
def test_what_the_user_has_set_stands(set_us: int, windows_us: list[int], cpu_us: float, counter: bool) -> None:
    cadence = Cadence(Rhythm(update_us=70_000), set_us)
    for window_us in windows_us:
        assert not cadence.window(window_us)
        assert not any(cadence.read(Rhythm(update_us=90_000), 1, cpu_us, 0, counter) for _ in range(c.BLOCK))
    assert (cadence.period_us, cadence.why) == (set_us, "set")


@given(st.lists(st.integers(0, 10**10), max_size=20), st.floats(0, 1e5), st.integers(0, 10**6), st.booleans())
def test_whatever_comes_the_costs_and_the_limits_are_held(
    windows_us: list[int], cpu_us: float, update_us: int, counter: bool
) -> None:
    cadence = after(Rhythm(update_us), *windows_us, counter=counter, cpu_us=cpu_us)
    assert c.LEAST_US <= cadence.period_us <= c.MOST_US
    floor_us = max(update_us, min(cpu_us / c.CPU_SHARE, c.COSTLY * c.USUAL_US))
    assert cadence.period_us * c.CHANGE >= min(floor_us, c.MOST_US) - 1


def test_a_window_that_was_one_of_the_last_is_forgotten_after_others() -> None:
    cadence = after(Rhythm(), 2_000_000)
    assert cadence.period_us == 20_000
    for _ in range(c.WINDOWS):
        cadence.window(10_000_000)
    assert cadence.period_us == 50_000


class Steady:
    """A source of 2 W at an instant."""

    source = "steady"

    def __init__(self, rhythm: Rhythm) -> None:
        self.rhythm = rhythm
        self.instants: list[int] = []
        self.followed: list[int] = []
        self.come = threading.Condition()

    def read(self, now_us: int) -> list[Reading | Count]:
        with self.come:
            self.instants.append(now_us)
            self.come.notify_all()
        return [Reading(now_us, now_us, 2_000_000)]

    def follow(self, period_us: int) -> None:
        self.followed.append(period_us)

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing is held open."""

    def wait(self, reads: int) -> None:
        with self.come:
            assert self.come.wait_for(lambda: len(self.instants) >= reads, PATIENCE_S)


@pytest.mark.parametrize("scattered", [False, True])
def test_a_change_of_period_is_told_among_the_readings_and_makes_no_gap(scattered: bool) -> None:
    meter = Steady(Rhythm(usual_us=400_000))
    thread = MeterThread(meter, scattered=scattered)
    try:
        meter.wait(2)
        thread.needs(2_000_000)
        meter.wait(12)
        meter.rhythm = Rhythm(update_us=60_000)
        meter.wait(18)
    finally:
        thread.stop()
    told = thread_told(thread)
    assert [pace.period_us for pace in told if isinstance(pace, Pace)] == [20_000, 60_000]
    integrator = EnergyIntegrator(400_000)
    for each in told:
        if isinstance(each, Pace):
            integrator.set_period(each.period_us)
        else:
            assert isinstance(each, Reading)
            integrator.add_point(each.t0_us, each.power_uw)
    slow_us = meter.instants[1] - meter.instants[0]
    whole = integrator.window(meter.instants[0], meter.instants[2])
    assert whole is not None
    assert whole.flags == (), f"readings were {slow_us} us apart, and more often after that"
    assert meter.followed == [60_000], "the meter's thread alone talks to the source"


def thread_told(thread: MeterThread) -> list[Reading | Count | Pace]:
    """Return what a thread that was stopped has handed over."""
    out = []
    while not thread._readings.empty():
        out.append(thread._readings.get_nowait())
    return out


def test_the_instant_in_each_period_is_drawn_and_can_be_drawn_again() -> None:
    def instants(seed: int) -> list[float]:
        dice = random.Random(seed)
        meter = Steady(Rhythm())
        thread = MeterThread(meter, 0.02, scattered=True, dice=dice)
        try:
            meter.wait(12)
        finally:
            thread.stop()
        return [((t_us - meter.instants[0]) / 20_000) % 1 for t_us in meter.instants[1:]]

    phases = instants(7)
    assert max(phases) - min(phases) > 0.3, "at the same phase each time bursts in step would hide"


def test_a_kernel_driver_tells_how_often_its_chip_converts(tmp_path: Path) -> None:
    put(ina2xx(tmp_path, "ina226") / "update_interval", 140)
    meter = Hwmon(MeterSettings("hwmon", sysfs_root=str(tmp_path)), 0)
    assert Cadence(meter.rhythm).period_us == 140_000
