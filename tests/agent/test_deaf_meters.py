# SPDX-License-Identifier: Apache-2.0
"""No meter holds up its board: whatever it answers, or does not, slices go on without joules, and the agent lives."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from paceline import machine as m
from paceline.energy import EnergyIntegrator
from paceline_agent.joules import Joules
from paceline_agent.late import GRACE_S, Late
from paceline_agent.ledger import FLAGS
from paceline_agent.metering import MeterThread
from paceline_agent.meters import POWER_MAX_UW, Count, MeterSettings, Reading
from paceline_agent.sieve import COUNT_MAX_UJ, OFF_MAX_UJ, SPAN_MAX_US, Sieve

from .trees import ina2xx, put

PATIENCE_S = 20.0
T = TypeVar("T")
Answer = Callable[[int], Sequence[Reading | Count]]


def now_us() -> int:
    return time.monotonic_ns() // 1000


def wait_for(source: Joules | MeterThread, look: Callable[[], T | None]) -> T:
    """Look as the agent's loop does: when there is something to read, and now and then."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if select.select([source.fileno()], [], [], 0.1)[0] and isinstance(source, Joules):
            source.drain()
        found = look()
        if found is not None:
            return found
    raise AssertionError("nothing came within the patience")


class Sensor:
    """Shows 2 W until it is told to answer otherwise."""

    source = "sensor"

    def __init__(self) -> None:
        self.answer: Answer = lambda t_us: [Reading(t_us, t_us, 2_000_000)]
        self.reads = 0

    def read(self, now_us: int) -> Sequence[Reading | Count]:
        self.reads += 1
        return self.answer(now_us)

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing was opened."""


HUNG = threading.Event()  # set at the end of a test: lets the thread go


def hang(t_us: int) -> Sequence[Reading]:
    HUNG.wait(PATIENCE_S)
    return []


DEAF: dict[str, tuple[Answer, str]] = {
    "half a megawatt": (lambda t_us: [Reading(t_us, t_us, 500_000_000_000)], "5e+05 W, which no board draws"),
    "more than 64 bits": (lambda t_us: [Reading(t_us, t_us, -5 * 10**20)], "-5e+14 W, which no board draws"),
    "a time before all time": (lambda t_us: [Reading(-5, -5, 1)], "which cannot be"),
    "another kind": (lambda t_us: [Count(t_us, 7)], "it gives counts where it gave power at an instant before"),
    "a bug": (lambda t_us: [1 // 0 for _ in "x"], "ZeroDivisionError"),  # type: ignore[misc]
    "nothing": (lambda t_us: [], "it answers, but has had no new reading"),
    "the same instant": (lambda t_us: [Reading(5, 5, 1)], "it answers, but has had no new reading"),
    "no answer": (hang, "does not come back"),
}


@pytest.mark.parametrize("deaf", DEAF)
def test_a_slice_goes_on_without_joules_and_the_meter_is_down_with_a_word(deaf: str) -> None:
    HUNG.clear()
    sensor = Sensor()
    answer, word = DEAF[deaf]
    with Joules(MeterSettings("hwmon", period_ms=20), lambda settings, now_us: sensor) as joules:
        try:
            wait_for(joules, lambda: sensor.reads > 3 or None)
            joules.open(now_us())
            joules.mark(now_us(), "compute", 1)
            sensor.answer = answer
            reads = sensor.reads
            wait_for(joules, lambda: sensor.reads > reads or None)
            joules.mark(now_us(), "transfer", 1)
            joules.measure(1)
            (measured,) = wait_for(joules, lambda: joules.settled() or None)
            assert measured == m.Measured(1, None, None, "sensor", FLAGS["unknown"])
            assert word in wait_for(joules, lambda: joules.trouble if word in joules.trouble else None)
            joules.measure_split("run", 1, now_us())
            (split,) = wait_for(joules, lambda: joules.settled() or None)
            assert isinstance(split, m.SplitMeasured)
            assert split.energy.total_uj is None
            sensor.answer = Sensor().answer
            HUNG.set()
            wait_for(joules, lambda: None if joules.trouble else True)
            joules.mark(now_us(), "compute", 2)
            joules.mark(now_us() + 1, "transfer", 2)
            joules.measure(2)
            (measured,) = wait_for(joules, lambda: joules.settled() or None)
            assert isinstance(measured, m.Measured)
            assert measured.energy_uj is not None, "a sensor that came to its senses is believed again"
        finally:
            HUNG.set()


def test_a_reading_that_comes_late_but_in_time_is_waited_for() -> None:
    sensor = Sensor()
    with Joules(MeterSettings("hwmon", period_ms=20), lambda settings, now_us: sensor) as joules:
        wait_for(joules, lambda: sensor.reads > 3 or None)
        joules.open(now_us())
        joules.mark(now_us(), "compute", 1)
        joules.mark(end_us := now_us() + 300_000, "transfer", 1)
        joules.measure(1)
        (measured,) = wait_for(joules, lambda: joules.settled() or None)
        assert isinstance(measured, m.Measured)
        assert measured.energy_uj is not None
        assert now_us() > end_us, "not before the window was over"


@pytest.mark.parametrize("shown", [99_999_999, -99_999_999_999_999, 999_999_999_999_999_999_999])
def test_a_file_with_a_number_that_cannot_be_is_a_failed_read_and_ends_nobody(tmp_path: Path, shown: int) -> None:
    folder = ina2xx(tmp_path)
    with Joules(MeterSettings("hwmon", period_ms=20, sysfs_root=str(tmp_path))) as joules:
        joules.open(now_us())
        put(folder / "curr1_input", shown)
        trouble = wait_for(joules, lambda: joules.trouble or None)
        assert "curr1_input" in trouble
        put(folder / "curr1_input", 1_000)
        wait_for(joules, lambda: None if joules.trouble else True)


def test_a_file_that_blocks_ends_nobody(tmp_path: Path) -> None:
    folder = ina2xx(tmp_path)
    with Joules(MeterSettings("hwmon", period_ms=20, sysfs_root=str(tmp_path))) as joules:
        os.mkfifo(tmp_path / "fifo")
        joules.open(now_us())
        joules.mark(now_us(), "transfer", 1)
        joules.measure(1)
        wait_for(joules, lambda: joules.settled() or None)  # it has read something
        joules.mark(now_us(), "compute", 1)
        os.link(tmp_path / "fifo", tmp_path / "fifo-end")
        (tmp_path / "fifo").rename(folder / "curr1_input")
        joules.mark(now_us() + 1, "transfer", 1)
        joules.measure(1)
        try:
            (measured,) = wait_for(joules, lambda: joules.settled() or None)
            assert measured == m.Measured(1, None, None, "hwmon/ina219/ch1", FLAGS["unknown"])
            assert "does not come back" in wait_for(joules, lambda: joules.trouble or None)
        finally:
            fifo = os.open(tmp_path / "fifo-end", os.O_RDWR)  # whoever waits for a writer has one
            put(folder / "curr1_input", 1_000)
            os.close(fifo)


# What can be --------------------------------------------------------------------------------------------------------

LAST = Reading(1_000, 1_000, 1)
REFUSED: dict[str, tuple[Reading | Count, Reading | Count]] = {
    "power": (LAST, Reading(2_000, 2_000, POWER_MAX_UW + 1)),
    "negative power": (LAST, Reading(2_000, 2_000, -POWER_MAX_UW - 1)),
    "error": (LAST, Reading(2_000, 2_000, 1, POWER_MAX_UW + 1)),
    "negative error": (LAST, Reading(2_000, 2_000, 1, -1)),
    "edge": (LAST, Reading(2_000, 2_000, 1, 1, (), OFF_MAX_UJ + 1)),
    "backwards": (LAST, Reading(2_000, 1_999, 1)),
    "future": (LAST, Reading(100_000_000, 100_000_000, 1)),
    "an age later": (LAST, Reading(2_000 + SPAN_MAX_US, 2_000 + SPAN_MAX_US, 1)),
    "an age long": (Reading(0, 1_000, 1), Reading(1, 2 + SPAN_MAX_US, 1)),
    "interval after instant": (LAST, Reading(1_000, 2_000, 1)),
    "count after power": (LAST, Count(2_000, 1)),
    "negative count": (Count(1_000, 0), Count(2_000, -1)),
    "count": (Count(1_000, 0), Count(2_000, COUNT_MAX_UJ + 1)),
    "count's error": (Count(1_000, 0), Count(2_000, 1, OFF_MAX_UJ + 1)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_and_what_follows_is_taken(what: str) -> None:
    last, bad = REFUSED[what]
    sieve = Sieve()
    assert sieve.take([last], 10_000) == ([last], [])
    good, (fault,) = sieve.take([bad], 10_000)
    assert good == []
    assert fault.isprintable()
    after = Count(3_000, 1) if isinstance(last, Count) else Reading(last.t0_us + 2_000, last.t1_us + 2_000, 1)
    assert sieve.take([after], 10_000) == ([after], [])


def test_whatever_passes_the_sieve_the_integrator_takes() -> None:
    dice = random.Random(4)
    extremes = (0, 1, -1, POWER_MAX_UW, -POWER_MAX_UW, POWER_MAX_UW + 1, 1 << 63, 1 << 64, -(1 << 63), 1 << 62)
    taken = 0
    for _ in range(3_000):
        sieve, integrator = Sieve(), EnergyIntegrator(100_000, 16)
        t_us = 0
        for _ in range(4):
            begin_us = t_us + dice.choice((0, 1, 1_000, SPAN_MAX_US, SPAN_MAX_US + 1, 1 << 63))
            end_us = begin_us + dice.choice((0, 0, 1, 1_000, SPAN_MAX_US, 1 << 63))
            reading = Reading(begin_us, end_us, dice.choice(extremes), dice.choice(extremes))
            newest_us = sieve.newest_us
            good, _ = sieve.take([reading])
            if not good or sieve.newest_us == newest_us:
                continue
            taken, t_us = taken + 1, end_us
            if begin_us < end_us:
                integrator.add_interval(begin_us, end_us, reading.power_uw, reading.error_uw)
            else:
                integrator.add_point(end_us, reading.power_uw, reading.error_uw)
    assert taken > 1_000


def test_a_batch_loses_only_what_cannot_be_and_each_loss_is_counted() -> None:
    missed: list[str] = []
    took: list[Reading | Count] = []
    done = threading.Event()

    class Sink:
        def took(self, readings: Sequence[Reading | Count]) -> None:
            took.extend(readings)

        def missed(self, trouble: str) -> None:
            missed.append(trouble)
            if len(missed) == 2:
                done.set()

        def paced(self, period_us: int) -> None:
            """Not of interest."""

    sensor = Sensor()
    sensor.answer = lambda t_us: (
        [Reading(t_us, t_us, 1), Reading(t_us, t_us, POWER_MAX_UW * 2), Reading(t_us, t_us, POWER_MAX_UW * 3)]
        if not done.is_set()
        else []
    )
    thread = MeterThread(sensor, 60.0, sink=Sink())
    try:
        assert done.wait(PATIENCE_S)
        assert [reading.power_uw for reading in took if isinstance(reading, Reading)] == [1]
        assert len(missed) == 2
        assert thread.trouble == "", "there was a reading"
    finally:
        thread.stop()


# Time ---------------------------------------------------------------------------------------------------------------


def test_who_was_stopped_and_goes_on_is_not_late_at_once() -> None:
    late = Late(10.0)
    assert not late.is_over(9.9)
    assert not late.is_over(500.0), "what it waits for may be there already"
    assert not late.is_over(500.0 + GRACE_S / 2)
    assert late.is_over(500.1 + GRACE_S)


@pytest.mark.parametrize(
    ("power_uw", "error_uw", "flags"),
    [(-2_000, 1_999, ("negative",)), (-2_000, 2_000, ()), (-1, 0, ("negative",)), (0, 0, ()), (5, 0, ())],
)
def test_power_that_flows_backwards_bears_the_flag_whatever_gave_it(
    power_uw: int, error_uw: int, flags: tuple[str, ...]
) -> None:
    (reading,), _ = Sieve().take([Reading(5, 5, power_uw, error_uw)])
    assert reading.flags == flags
    (again,), _ = Sieve().take([reading])
    assert again.flags == flags, "once"
