# SPDX-License-Identifier: Apache-2.0
"""Idle watts before the first round: measured once where a sensor is, told, and never in the way of a board without."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from paceline import machine as m
from paceline.talk import Talk
from paceline_agent.idle import GIVE_UP_S, REAL_S, Idle, seconds_of
from paceline_agent.joules import Joules
from paceline_agent.ledger import Tally
from paceline_agent.meters import MeterError, MeterSettings, Reading

from .test_metering import now_us, wait_for

READY = m.TrainerReady("m", 1, 2, "data", 9)
SENSOR = MeterSettings("hwmon", period_ms=10)


class Sensor:
    """A point source of 2 W that may fail, or hang."""

    source = "sensor"

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self._fails, self._hangs = fails, hangs
        self.ending = threading.Event()

    def read(self, now_us: int) -> Sequence[Reading]:
        if self._hangs:
            self.ending.wait()
        if self._fails:
            raise MeterError("unplugged")
        return [Reading(now_us, now_us, 2_000_000)]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing was opened."""


def over(joules: Joules, idle: Idle) -> m.TrainerReady:
    """Do as the agent's loop does, until the board is ready."""

    def look() -> m.TrainerReady | None:
        joules.drain()
        assert joules.settled() == []
        return idle.turn(now_us())

    return wait_for(joules, look)


def found(joules: Joules) -> Tally | None:
    joules.drain()
    assert joules.settled() == []
    return joules.idle


def test_it_is_measured_once_and_told_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with Joules(SENSOR, lambda settings, now: Sensor()) as joules:
        idle = Idle(joules, 0.3, Talk("agent"))
        assert idle.ready(READY, True, now_us()) is None
        assert over(joules, idle) == m.TrainerReady("m", 1, 2, "data", 9, idle_uw=2_000_000)
        again = idle.ready(READY, True, now_us())
        assert again is not None
        assert again.idle_uw == 2_000_000, "of the same life, and at once"
    said = capsys.readouterr().err
    assert said.count("measuring idle watts, 0 s left") == 1
    assert "idle: 2.000 W" in said


def test_a_trainer_that_goes_meanwhile_does_not_become_ready() -> None:
    with Joules(SENSOR, lambda settings, now: Sensor()) as joules:
        idle = Idle(joules, 0.1, Talk("agent"))
        assert idle.ready(READY, True, now_us()) is None
        idle.drop()
        wait_for(joules, lambda: found(joules))
        assert idle.turn(now_us()) is None
        again = idle.ready(READY, True, now_us())
        assert again is not None
        assert again.idle_uw == 2_000_000


def test_where_the_run_does_without_it_is_left_out_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    with Joules(SENSOR, lambda settings, now: Sensor()) as joules:
        assert Idle(joules, REAL_S, Talk("agent")).ready(READY, False, now_us()) == READY
    assert "idle watts are not measured: the run does without, or has begun already" in capsys.readouterr().err


def test_a_dead_meter_holds_nobody_up_for_long() -> None:
    with Joules(SENSOR, lambda settings, now: Sensor(fails=True)) as joules:
        idle = Idle(joules, 0.05, Talk("agent"))
        assert idle.ready(READY, True, now_us()) is None
        assert over(joules, idle).idle_uw is None


def test_a_meter_that_hangs_holds_nobody_up_for_ever() -> None:
    sensor = Sensor(hangs=True)
    with Joules(SENSOR, lambda settings, now: sensor) as joules:
        idle, begin_us = Idle(joules, 0.05, Talk("agent")), now_us()
        assert idle.ready(READY, True, begin_us) is None
        assert idle.turn(begin_us + 1_000_000) is None
        assert idle.turn(begin_us + round((0.06 + GIVE_UP_S) * 1e6)) == READY
        sensor.ending.set()


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (MeterSettings("modelled", idle_w=1.0, active_w=2.0), 0.0),
        (MeterSettings(), 0.0),
        (MeterSettings("replay", trace="x"), 0.0),
        (MeterSettings("rapl"), REAL_S),
        (MeterSettings("rapl", idle_s=4.0), 4.0),
        (MeterSettings("rapl", idle_s=0.0), 0.0),
    ],
    ids=["modelled", "none", "replay", "a sensor", "as set", "switched off"],
)
def test_how_long_it_takes(settings: MeterSettings, seconds: float) -> None:
    assert seconds_of(settings) == seconds


def test_a_board_without_a_sensor_is_ready_at_once_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    for settings in (MeterSettings(), MeterSettings("modelled", idle_w=1.0, active_w=2.0)):
        with Joules(settings) as joules:
            idle = Idle(joules, seconds_of(settings), Talk("agent"))
            assert [idle.ready(READY, wanted, now_us()) for wanted in (True, False)] == [READY, READY]
    assert capsys.readouterr().err == ""
