# SPDX-License-Identifier: Apache-2.0
"""open_meter and its windows, with real threads, real files and the real clock."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.errors import SettingsError
from paceline_agent.meters import MeterError, MeterSettings, Reading, open_meter
from paceline_agent.sampled import FORCED_S, SampledMeter

from . import trees
from .trees import battery, hwmon, ina2xx, ina3221, processor, put


class Sensor:
    """A point source of 2 W that can fail."""

    source = "sensor"

    def __init__(self) -> None:
        self.broken = threading.Event()
        self.silent = threading.Event()
        self.closed = False
        self.asked = 0
        self.instants: list[int] = []

    def read(self, now_us: int) -> Sequence[Reading]:
        self.asked += 1
        if self.silent.is_set():
            return []
        if self.broken.is_set():
            raise MeterError("unplugged")
        self.instants.append(now_us)
        return [Reading(now_us, now_us, 2_000_000, 1000)]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        self.closed = True


def settings(period_ms: int = 1000) -> MeterSettings:
    return MeterSettings("hwmon", period_ms)


def test_a_window_takes_the_energy_of_what_is_done_inside_it() -> None:
    sensor = Sensor()
    with SampledMeter(sensor, settings()) as meter:
        with meter.window() as w:
            begin_s = time.monotonic()
            time.sleep(0.1)
            inside_s = time.monotonic() - begin_s
        assert w.result.seconds >= inside_s
        assert w.result.energy_uj == 2 * (w.result.end_us - w.result.start_us)
        assert (w.coverage, w.result.flags, w.result.source) == (1.0, (), "sensor")
    assert sensor.closed


def test_windows_may_lie_in_one_another_and_in_threads() -> None:
    with SampledMeter(Sensor(), settings()) as meter:
        joules: list[float | None] = []

        def work() -> None:
            with meter.window() as w:
                pass
            joules.append(w.energy_j)

        with meter.window() as outer:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(joules) == 4
        assert outer.energy_j is not None
        assert all(joule is not None and joule <= outer.energy_j for joule in joules)


def test_a_sensor_that_dies_in_a_window_leaves_it_unknown() -> None:
    sensor = Sensor()
    with SampledMeter(sensor, settings(20)) as meter:
        with meter.window() as w:
            sensor.broken.set()
        assert w.energy_j is None
        assert "unknown" in w.result.flags
        assert w.result.missed > 0
        assert meter.trouble == "unplugged"


def test_a_dead_sensor_is_not_asked_faster_however_many_windows_wait_for_it() -> None:
    sensor = Sensor()
    with SampledMeter(sensor, settings(50)) as meter, meter.window() as outer:
        inner = [meter.window().__enter__() for _ in range(4)]
        begin_s = time.monotonic()
        sensor.broken.set()
        threads = [threading.Thread(target=window.__exit__, args=(None, None, None)) for window in inner]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        periods = (time.monotonic() - begin_s) / 0.05
        assert 0 < outer.so_far().missed <= 2 * periods + 2


def test_a_source_that_has_nothing_new_is_not_asked_at_full_speed() -> None:
    sensor = Sensor()
    sensor.silent.set()
    with SampledMeter(sensor, settings(50)) as meter:
        before, begin_s = sensor.asked, time.monotonic()
        assert not meter.read_until(lambda: False, 0.3)
        assert 0 < sensor.asked - before <= 1.2 * (time.monotonic() - begin_s) / FORCED_S + 20


def test_an_error_inside_a_window_is_not_held_up_by_it() -> None:
    sensor = Sensor()

    def work(meter: SampledMeter) -> None:
        with meter.window():
            sensor.broken.set()
            raise ZeroDivisionError

    with SampledMeter(sensor, settings()) as meter, pytest.raises(ZeroDivisionError):
        work(meter)


def test_a_source_of_instants_is_read_once_at_random_in_each_period() -> None:
    sensor = Sensor()
    with SampledMeter(sensor, settings(period_ms=10)):
        end_s = time.monotonic() + 20
        while len(sensor.instants) < 60:
            assert time.monotonic() < end_s
            time.sleep(0.01)
    steps_us = {after - before for before, after in zip(sensor.instants, sensor.instants[1:], strict=False)}
    assert min(steps_us) < 7_000, "a steady reader would never be so soon"


@contextmanager
def moving(counter: Path, step_uj: int) -> Iterator[list[int]]:
    """Let a counter run; yield what it has counted."""
    counted = [0]
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(0.002):
            put(counter, counted[0] + step_uj)
            counted[0] += step_uj

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counted
    finally:
        ending.set()
        thread.join()


def test_a_window_over_counters_holds_the_truth_within_its_bound(tmp_path: Path) -> None:
    counter = processor(tmp_path)
    with (
        open_meter("rapl", sysfs_root=str(tmp_path), period_ms=1000) as meter,
        moving(counter, 40_000) as counted,
    ):
        with meter.window() as w:
            before_uj = counted[0]
            while counted[0] < before_uj + 40 * 40_000:
                time.sleep(0.001)
            inside_uj = counted[0] - before_uj
        after_uj = counted[0] - before_uj + 40_000
    result = w.result
    assert (result.provenance, result.sampling_uj, result.coverage) == ("counter", 0, 1.0)
    assert result.energy_uj is not None
    assert result.bound_uj is not None
    assert inside_uj - result.bound_uj - 40_000 <= result.energy_uj <= after_uj + result.bound_uj + 40_000


def test_auto_takes_what_sees_the_whole_board(tmp_path: Path) -> None:
    processor(tmp_path)
    with pytest.raises(MeterError, match="stands still"):
        open_meter(sysfs_root=str(tmp_path))
    with trees.moving(tmp_path / "class"), open_meter(sysfs_root=str(tmp_path)) as meter:
        assert meter.source == "rapl/package-0"
    battery(tmp_path, power_now=5_000_000)
    with open_meter(sysfs_root=str(tmp_path)) as meter:
        assert meter.source == "power_supply/BAT0"
    ina3221(tmp_path, ("a", "b", "c"))  # which of them feed the board nobody knows
    with open_meter(sysfs_root=str(tmp_path)) as meter:
        assert meter.source == "power_supply/BAT0"
    hwmon(tmp_path, 9, "ina238", "7-0044", {"in1_input": 12_000, "in1_label": "VIN\n", "curr1_input": 500})
    with open_meter(sysfs_root=str(tmp_path)) as meter:
        assert meter.source == "hwmon/ina238/VIN"


def test_settings_choose_a_meter_too(tmp_path: Path) -> None:
    ina2xx(tmp_path)
    with open_meter(MeterSettings("hwmon", sysfs_root=str(tmp_path))) as meter, meter.window() as w:
        (rail,) = meter.rails()
        assert (rail.voltage_uv, rail.current_ua, rail.power_uw) == (5_000_000, 1_200_000, 6_000_000)
    assert w.result.power_w == pytest.approx(6.0)


def test_declared_watts_are_active_where_the_program_says_so() -> None:
    with open_meter("modelled", idle_w=2.0, active_w=6.0) as meter:
        with meter.window() as w, meter.active():
            begin_s = time.monotonic()
            time.sleep(0.05)
            inside_s = time.monotonic() - begin_s
        assert w.energy_j is not None
        assert 6 * (inside_s - 1e-5) <= w.energy_j <= 6 * w.result.seconds
        with meter.window() as w:
            time.sleep(0.05)
        assert w.result.power_w == pytest.approx(2.0, rel=0.05)


def test_a_forked_child_is_told_to_open_a_meter_of_its_own() -> None:
    sensor = Sensor()
    with SampledMeter(sensor, settings()) as meter, meter.window() as w:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # whoever hangs here ends
            told = 0
            for look in (lambda: meter.window().__enter__(), w.so_far, lambda: w.__exit__(None, None, None)):
                try:
                    look()
                except MeterError as error:
                    told += "before it forked this one" in str(error)
            meter.close()
            os._exit(told + 10 * sensor.closed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert not sensor.closed
    assert w.energy_j is not None


def test_a_window_that_has_not_begun_says_so() -> None:
    with SampledMeter(Sensor(), settings()) as meter:
        w = meter.window()
        for look in (lambda: w.energy_j, lambda: w.coverage, w.so_far):
            with pytest.raises(MeterError, match="this window has not begun; open it by"):
                look()


@pytest.mark.parametrize("wrong", [5, None, Path("x")])
def test_what_is_no_source_is_no_source(wrong: object) -> None:
    with pytest.raises(TypeError, match="expected the name of a source, or MeterSettings, got"):
        open_meter(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="period_ms: not beside MeterSettings"):
        open_meter(settings(), period_ms=20)


def test_what_cannot_be_opened_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        MeterError, match=r"no meter is usable here \(.*rapl: .*is not there.*`paceline-agent meter scan`"
    ):
        open_meter(sysfs_root=str(tmp_path))
    with pytest.raises(MeterError, match="measures nothing"):
        open_meter("none")
    with pytest.raises(SettingsError, match="did you mean labels"):
        open_meter("hwmon", label=["VDD_IN"])
    with pytest.raises(SettingsError, match="did you mean hwmon"):
        open_meter("hwmom")


def test_a_window_over_a_counter_that_stands_still_is_unknown_and_says_why(tmp_path: Path) -> None:
    processor(tmp_path)
    with open_meter("rapl", sysfs_root=str(tmp_path), period_ms=20) as meter:
        with meter.window() as w:
            end_s = time.monotonic() + 20
            while not meter.doubt:
                assert time.monotonic() < end_s
                time.sleep(0.01)
            assert (w.so_far().energy_j, w.so_far().power_w) == (None, None)
        assert "has not moved by a bit" in meter.doubt
    assert (w.energy_j, w.result.bound_j) == (None, None)
    assert set(w.result.flags) == {"frozen", "unknown"}


def test_who_computes_inside_who_computes_still_does_once_the_inner_one_is_over() -> None:
    settings = MeterSettings("modelled", period_ms=20, idle_w=1.0, active_w=6.0)
    with open_meter(settings) as meter:
        with meter.active():
            with meter.active():
                pass
            with meter.window() as inside:
                time.sleep(0.05)
        with meter.window() as after:
            time.sleep(0.05)
    assert inside.result.power_w == pytest.approx(6.0)
    assert after.result.power_w == pytest.approx(1.0)


@pytest.mark.parametrize("source", ["modelled", "hwmon"])
def test_a_closed_meter_opens_no_window(tmp_path: Path, source: str) -> None:
    ina2xx(tmp_path)
    keys: dict[str, object] = (
        {"idle_w": 1.0, "active_w": 6.0} if source == "modelled" else {"sysfs_root": str(tmp_path)}
    )
    meter = open_meter(source, **keys)
    meter.close()
    with pytest.raises(MeterError, match="is closed: nobody reads it any more; open it anew"), meter.window():
        pass


def test_readings_that_cannot_be_are_told_and_counted_and_their_time_is_not_covered(tmp_path: Path) -> None:
    folder = ina2xx(tmp_path)
    with open_meter("hwmon", sysfs_root=str(tmp_path), period_ms=20) as meter, meter.window() as w:
        put(folder / "curr1_input", 999_999_999)
        end_s = time.monotonic() + 20
        while (so_far := w.so_far()).coverage > 0.9 or so_far.missed < 5:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert so_far.energy_j is None
        assert "which no board draws" in meter.trouble
        put(folder / "curr1_input", 1_000)
        while w.so_far().energy_j is None:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert meter.trouble == ""
    assert w.result.coverage < 1
    assert "gap" in w.result.flags
