# SPDX-License-Identifier: Apache-2.0
"""Battery gauges on real files laid out as the power_supply class lays them out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paceline_agent.meters import Count, MeterError, MeterSettings, Reading
from paceline_agent.meters.findings import Where
from paceline_agent.meters.power_supply import PowerSupply, find

from .trees import Value, battery, outside_supply, put


def meter_at(root: Path) -> PowerSupply:
    return PowerSupply(MeterSettings("power_supply", sysfs_root=str(root)), 0, asleep=lambda: 0)


def power_uw(root: Path) -> int:
    (reading,) = meter_at(root).read(1000)
    assert isinstance(reading, Reading)
    return reading.power_uw


@pytest.mark.parametrize(
    ("files", "drawn_uw"),
    [
        ({"current_now": -600_000, "voltage_now": 4_000_000}, 2_400_000),
        ({"current_now": 600_000, "voltage_now": 4_000_000}, 2_400_000),  # this driver has no sign
        ({"power_now": 2_400_000}, 2_400_000),
        ({"power_now": -2_400_000, "current_now": 1, "voltage_now": 1}, 2_400_000),
        ({"power_now": 2_400_000, "energy_now": 50_000_000}, 2_400_000),
    ],
    ids=str,
)
def test_what_a_battery_gives_is_what_the_board_draws(tmp_path: Path, files: dict[str, Value], drawn_uw: int) -> None:
    battery(tmp_path, **files)
    assert power_uw(tmp_path) == drawn_uw


def test_batteries_add_up_and_one_that_rests_adds_nothing(tmp_path: Path) -> None:
    battery(tmp_path, 0, power_now=2_000_000)
    battery(tmp_path, 1, current_now=-500_000, voltage_now=8_000_000)
    battery(tmp_path, 2, power_now=7_000_000, status="Not charging\n")
    assert power_uw(tmp_path) == 6_000_000
    assert meter_at(tmp_path).source == "power_supply/BAT0+BAT1+BAT2"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("Charging", "no battery discharges"), ("Full", "no battery discharges"), ("Unknown", "no battery discharges"),
        ("", "no battery discharges"),
    ],
)  # fmt: skip
def test_a_gauge_on_external_power_is_no_reading_and_not_0(tmp_path: Path, status: str, said: str) -> None:
    battery(tmp_path, power_now=5_000_000, status=f"{status}\n")
    with pytest.raises(MeterError, match=said):
        meter_at(tmp_path).read(1000)


def test_a_battery_that_another_one_charges_is_no_reading(tmp_path: Path) -> None:
    battery(tmp_path, 0, power_now=9_000_000)
    battery(tmp_path, 1, power_now=4_000_000, status="Charging\n")
    with pytest.raises(MeterError, match="BAT1 is being charged"):
        meter_at(tmp_path).read(1000)


def test_a_plug_that_goes_in_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    battery(tmp_path, power_now=5_000_000)
    plug = outside_supply(tmp_path, online=0)
    meter = meter_at(tmp_path)
    assert len(meter.read(1000)) == 1
    put(plug / "online", 1)  # a weak charger: the battery goes on discharging
    with pytest.raises(MeterError, match="AC feeds this board, so the battery's gauge does not see"):
        meter.read(2000)
    put(plug / "online", 0)
    assert len(meter.read(3000)) == 1


def test_energy_left_counts_backwards_in_microwatt_hours(tmp_path: Path) -> None:
    folder = battery(tmp_path, energy_now=40_000_000)
    meter = meter_at(tmp_path)
    assert meter.read(0) == []
    put(folder / "energy_now", 39_990_000)
    first, second = meter.read(10_000_000)
    assert isinstance(first, Count)
    assert isinstance(second, Count)
    assert second.count_uj - first.count_uj == 10_000 * 3600
    assert second.error_uj >= 36_000_000, "the step of such a gauge"
    put(folder / "energy_now", 40_000_000)  # a recalibrated gauge gives nothing back
    (third,) = meter.read(20_000_000)
    assert isinstance(third, Count)
    assert third.count_uj < second.count_uj


@pytest.mark.parametrize("text", ["", "N/A\n"])
def test_what_is_no_number_is_missed(tmp_path: Path, text: str) -> None:
    folder = battery(tmp_path, power_now=5_000_000)
    meter = meter_at(tmp_path)
    put(folder / "power_now", text)
    with pytest.raises(MeterError, match="power_now: expected microwatts, got"):
        meter.read(1000)


def test_a_battery_that_is_gone_is_missed_until_it_is_back(tmp_path: Path) -> None:
    folder = battery(tmp_path, power_now=5_000_000)
    meter = meter_at(tmp_path)
    shutil.rmtree(folder)
    with pytest.raises(MeterError, match="it is tried again"):
        meter.read(1000)
    battery(tmp_path, power_now=6_000_000)
    assert len(meter.read(2000)) == 1


@pytest.mark.parametrize(
    ("lay_out", "said"),
    [
        (lambda root: None, "has no battery that feeds this board"),
        (
            lambda root: battery(root, scope="Device\n", power_now=1),
            "has no battery that feeds this board",
        ),  # a mouse's
        (lambda root: battery(root, present=0, power_now=1), "has no battery that feeds this board"),
        (
            lambda root: outside_supply(root, 1, "USB", "ucsi-source-psy-1"),
            "has no battery",
        ),  # negotiated, not measured
        (lambda root: battery(root, capacity=80), "BAT0 shows no power, current or energy"),
    ],
    ids=["nothing", "a mouse", "an empty bay", "usb-c", "capacity alone"],
)
def test_what_is_no_gauge_of_the_board_is_refused(tmp_path: Path, lay_out: object, said: str) -> None:
    assert callable(lay_out)
    lay_out(tmp_path)
    with pytest.raises(MeterError, match=said):
        meter_at(tmp_path)
    (finding,) = find(Where(tmp_path))
    assert not finding.usable


def test_scan_tells_why_a_gauge_cannot_be_used_now(tmp_path: Path) -> None:
    battery(tmp_path, power_now=5_000_000)
    outside_supply(tmp_path, online=1)
    (finding,) = find(Where(tmp_path))
    assert (finding.usable, finding.todo) == (False, "unplug it")
    put(tmp_path / "class" / "power_supply" / "AC" / "online", 0)
    (finding,) = find(Where(tmp_path))
    assert finding.usable


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"power_now": 0}, "BAT0 discharges and shows 0 W, which no running board draws"),
        ({"current_now": 0, "voltage_now": 12_000_000}, "shows 0 W, which no running board draws"),
        ({"current_now": 1_000_000, "voltage_now": -5_000_000}, "voltage_now shows -5 V"),
        ({"current_now": 1_000_000, "voltage_now": 0}, "voltage_now shows 0 V"),
        ({"power_now": 200_000_000_000}, "BAT0 shows 2e[+]05 W, which no board draws"),
        ({"power_now": 99_999_999_999_999_999_999}, "expected microwatts of at most 63 bits"),
        ({"energy_now": -1}, "no battery has less than nothing left"),
    ],
    ids=["0 W", "0 A", "negative volts", "0 V", "200 kW", "too many bits", "negative energy"],
)
def test_what_no_battery_of_a_running_board_shows_is_missed(tmp_path: Path, files: dict[str, Value], said: str) -> None:
    battery(tmp_path, **files)
    meter = meter_at(tmp_path)
    with pytest.raises(MeterError, match=said):
        meter.read(1000)
    (finding,) = find(Where(tmp_path))
    assert not finding.usable


def test_one_of_two_batteries_may_feed_the_board_alone(tmp_path: Path) -> None:
    battery(tmp_path, 0, power_now=0)
    battery(tmp_path, 1, power_now=4_000_000)
    (reading,) = meter_at(tmp_path).read(1000)
    assert isinstance(reading, Reading)
    assert reading.power_uw == 4_000_000
