# SPDX-License-Identifier: Apache-2.0
"""The meter's thread and the joules behind it, with a real thread and the real clock."""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from paceline import machine as m
from paceline_agent.joules import Joules
from paceline_agent.ledger import FLAGS
from paceline_agent.metering import MeterThread
from paceline_agent.meters import MeterError, MeterSettings, Reading

PATIENCE_S = 20.0
MODEL = MeterSettings("modelled", period_ms=20, idle_w=1.0, active_w=9.0)
T = TypeVar("T")


def now_us() -> int:
    return time.monotonic_ns() // 1000


def wait_for(source: MeterThread | Joules, look: Callable[[], T | None]) -> T:
    """Poll the descriptor, as the agent's loop does, until `look` finds something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        found = look()
        if found is not None:
            return found
        select.select([source.fileno()], [], [], 0.1)
    raise AssertionError("nothing came within the patience")


class Failing:
    """A sensor that answers, fails for a while, and answers again."""

    source = "failing"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or MeterError("the sensor is unplugged")
        self.broken = threading.Event()
        self.closed = False

    def read(self, now_us: int) -> Sequence[Reading]:
        if self.broken.is_set():
            raise self.error
        return [Reading(now_us, now_us, 1_000_000)]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        self.closed = True


def answers(joules: Joules) -> list[m.Event]:
    joules.drain()
    return joules.settled()


def test_a_compute_window_is_exact_to_the_microjoule() -> None:
    with Joules(MODEL) as joules:
        assert (joules.source, joules.known) == ("modelled", True)
        joules.open(now_us())
        begin_us = now_us()
        joules.activity(begin_us, True)
        joules.mark(begin_us, "compute", 5)
        end_us = begin_us + 150_000
        while now_us() < end_us:
            select.select([joules.fileno()], [], [], 0.01)
            joules.drain()
        joules.activity(end_us, False)
        joules.mark(end_us, "transfer", 5)
        joules.measure(5)
        (event,) = wait_for(joules, lambda: answers(joules) or None)
        assert isinstance(event, m.Measured)
        assert event.energy_uj is not None
        assert abs(event.energy_uj - 9 * 150_000) <= 1  # 9 W for 150 ms, but for rounding at either edge
        assert event.source == "modelled"


def test_the_split_of_a_round_adds_up() -> None:
    with Joules(MODEL) as joules:
        joules.open(now_us())
        joules.mark(now_us(), "wait", 0)
        joules.measure_split("run", 3, now_us())
        (event,) = wait_for(joules, lambda: answers(joules) or None)
        assert isinstance(event, m.SplitMeasured)
        energy = event.energy
        parts = (energy.compute_uj, energy.wait_uj, energy.transfer_uj, energy.wasted_uj, energy.other_uj)
        assert sum(part for part in parts if part is not None) == energy.total_uj
        assert (energy.run, energy.round, energy.source) == ("run", 3, "modelled")


def test_without_a_meter_energy_is_unknown_at_once_and_never_zero() -> None:
    with Joules(MeterSettings()) as joules:
        assert not joules.known
        joules.open(now_us())
        joules.mark(now_us(), "compute", 1)
        joules.mark(now_us() + 1, "wait", 0)
        joules.measure(1)
        joules.measure_split("run", 1, now_us() + 1)
        events = wait_for(joules, lambda: answers(joules) or None)
        while len(events) < 2:
            events += answers(joules)
        measured = next(e for e in events if isinstance(e, m.Measured))
        split = next(e for e in events if isinstance(e, m.SplitMeasured))
        assert measured.energy_uj is None
        assert split.energy.total_uj is None


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MeterError("the sensor is unplugged"), "the sensor is unplugged"),
        (OSError(121, "Remote I/O error"), "[Errno 121] Remote I/O error"),
        (ZeroDivisionError("a bug in the source"), "ZeroDivisionError: a bug in the source"),
    ],
    ids=["unplugged", "bus", "bug"],
)
def test_a_failing_sensor_is_named_and_tried_again(error: Exception, named: str) -> None:
    meter = Failing(error)
    thread = MeterThread(meter, 0.01)
    try:
        wait_for(thread, lambda: thread.drain() or None)
        meter.broken.set()
        wait_for(thread, lambda: thread.trouble or None)
        assert thread.trouble == named
        meter.broken.clear()
        thread.drain()
        assert wait_for(thread, lambda: thread.drain() or None)
        assert thread.trouble == ""
    finally:
        thread.stop()
    assert meter.closed


def test_the_energy_of_a_dead_sensor_becomes_unknown_and_work_goes_on() -> None:
    meter = Failing()
    with Joules(MODEL, lambda settings, now_us: meter) as joules:
        joules.open(now_us())
        joules.mark(now_us(), "compute", 1)
        meter.broken.set()
        joules.mark(now_us(), "transfer", 1)
        joules.measure(1)
        joules.measure_split("run", 1, now_us() + 1)
        events = wait_for(joules, lambda: answers(joules) or None)
        while len(events) < 2:
            events += wait_for(joules, lambda: answers(joules) or None)
        assert joules.trouble == "the sensor is unplugged"
        split = next(e for e in events if isinstance(e, m.SplitMeasured))
        assert split.energy.total_uj is None
        assert split.energy.bound_uj is None
        meter.broken.clear()
        wait_for(joules, lambda: True if joules.trouble == "" else None)
        joules.mark(now_us(), "compute", 2)
        joules.mark(now_us() + 1, "transfer", 2)
        joules.measure(2)
        (event,) = wait_for(joules, lambda: answers(joules) or None)
        assert isinstance(event, m.Measured)
        assert event.energy_uj is not None, "a sensor that came back is believed again"


def test_many_extra_readings_do_not_put_the_next_one_off() -> None:
    thread = MeterThread(Failing(), 0.05)
    try:
        for _ in range(200):
            thread.read_now()
            wait_for(thread, lambda: thread.drain() or None)
        assert wait_for(thread, lambda: thread.drain() or None), "the period goes on by itself"
    finally:
        thread.stop()


def test_nothing_is_left_of_a_stopped_meter() -> None:
    before = threading.active_count()
    for _ in range(20):
        with Joules(MODEL):
            pass
    assert threading.active_count() == before


class Bursts:
    """Power at an instant, 4 or 8 W by chance."""

    source = "bursts"

    def __init__(self) -> None:
        self._dice = random.Random(7)

    def read(self, now_us: int) -> Sequence[Reading]:
        return [Reading(now_us, now_us, self._dice.choice((4_000_000, 8_000_000)), 1000)]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing was opened."""


def test_both_uncertainties_travel_apart_and_edges_between_readings_make_the_split_an_estimate() -> None:
    settings = MeterSettings("hwmon", period_ms=20)
    with Joules(settings, lambda settings, now_us: Bursts()) as joules:
        begin_us = now_us() + 100_000
        joules.open(begin_us)
        joules.mark(begin_us + 1, "compute", 1)  # 400 ms: edges hide at most 2 x 40 ms of 8 W, a good tenth or less
        joules.mark(begin_us + 400_000, "compute", 2)  # 10 ms: they hide more than all
        joules.mark(begin_us + 410_000, "wait", 0)
        joules.measure(1)
        joules.measure(2)
        joules.measure_split("run", 1, begin_us + 600_000)
        events: list[m.Event] = []
        while len(events) < 3:
            events += wait_for(joules, lambda: answers(joules) or None)
    long, short = (event for event in events if isinstance(event, m.Measured))
    assert long.energy_uj is not None
    assert long.bound_uj is not None
    assert long.bound_uj >= 395
    if not long.flags & FLAGS["gap"]:  # a busy machine may leave some, and each adds a worst case
        assert long.bound_uj == pytest.approx(400, abs=5), "1 mW for 0.4 s; what lies between readings is no instrument"
    assert long.sampling_uj is not None
    # 2 W either way, 20 readings that stand for 20 ms each: 1.96 * 2 * 0.02 * sqrt(20) J, chance and Student apart
    assert 150_000 < long.sampling_uj < 800_000
    assert short.flags & FLAGS["estimated"]
    split = next(event.energy for event in events if isinstance(event, m.SplitMeasured))
    assert split.sampling_uj is not None
    assert split.sampling_uj > long.sampling_uj
    assert split.split_uj is not None
    assert split.split_uj > 0
    assert 150_000 <= split.wait_us <= 190_000


def test_a_model_has_neither_uncertainty() -> None:
    with Joules(MODEL) as joules:
        begin_us = now_us()
        joules.open(begin_us)
        joules.mark(begin_us + 10_000, "compute", 1)
        joules.mark(begin_us + 30_000, "wait", 0)
        joules.measure(1)
        (event,) = wait_for(joules, lambda: answers(joules) or None)
        assert isinstance(event, m.Measured)
        assert (event.bound_uj, event.sampling_uj, event.flags) == (0, 0, 0)


class Stuck:
    """A chip that converts on and on, and shows one value."""

    source, steps = "stuck", 2000

    def __init__(self) -> None:
        self.moves = threading.Event()
        self._number = 0

    def read(self, now_us: int) -> Sequence[Reading]:
        self._number += self.moves.is_set()
        return [Reading(now_us, now_us, 5_000_000 + self._number)]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing was opened."""


@pytest.mark.parametrize("moves", [False, True])
def test_joules_of_a_frozen_chip_bear_the_flag_and_a_reason(moves: bool) -> None:
    stuck = Stuck()
    with Joules(MeterSettings("hwmon", period_ms=10), lambda settings, now_us: stuck) as joules:
        if moves:
            stuck.moves.set()
        joules.open(now_us())
        for lease in range(1, 6):
            for category, active in (("compute", True), ("wait", False)):
                begin_us = now_us()
                joules.activity(begin_us, active)
                joules.mark(begin_us, category, lease if active else 0)
                wait_for(joules, lambda until_us=begin_us + 120_000: drained(joules, until_us))  # type: ignore[misc]
        joules.measure(5)
        events = wait_for(joules, lambda: answers(joules) or None)
        doubt = joules.doubt
    (measured,) = (event for event in events if isinstance(event, m.Measured))
    assert bool(measured.flags & FLAGS["frozen"]) is not moves
    assert (measured.energy_uj is None) is not moves, "what a frozen sensor shows are nobody's joules"
    assert ("has not moved by a bit" in doubt) is not moves


def drained(joules: Joules, until_us: int) -> bool | None:
    joules.drain()
    return True if now_us() >= until_us else None
