# SPDX-License-Identifier: Apache-2.0
"""hwmon on real files laid out as the kernel's drivers lay them out: units, signs, rails, totals, hot-unplug."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from paceline.errors import SettingsError
from paceline.settings import load, load_table
from paceline_agent.meters import Count, MeterError, MeterSettings, Reading, open_source
from paceline_agent.meters.findings import Where
from paceline_agent.meters.hwmon import Hwmon, find

from .trees import Value, hwmon, ina2xx, ina3221, jetson_nano, put

PERIOD_US = 100_000


def meter_at(root: Path, *labels: str, took_us: int = 0) -> Hwmon:
    """Return a meter whose reads take took_us each, and as much to see whether all is in place, by its own clock."""
    now_us = 0

    def timer_us() -> int:
        nonlocal now_us
        now_us += took_us
        return now_us

    settings = MeterSettings("hwmon", sysfs_root=str(root), labels=labels)
    return Hwmon(settings, 0, timer_us, asleep=lambda: 0)


def one(meter: Hwmon, now_us: int = PERIOD_US) -> Reading:
    (reading,) = meter.read(now_us)
    assert isinstance(reading, Reading)
    return reading


# Units and signs -----------------------------------------------------------------------------------------------------


def test_an_ina219_is_volts_times_amperes_never_its_power_register(tmp_path: Path) -> None:
    ina2xx(tmp_path)
    meter = meter_at(tmp_path)
    assert meter.source == "hwmon/ina219/ch1"
    reading = one(meter)
    assert reading.power_uw == 5_000 * 1_200
    assert (reading.t0_us, reading.t1_us) == (PERIOD_US, PERIOD_US), "an instant"
    assert [(rail.voltage_uv, rail.current_ua) for rail in meter.seen_rails()] == [(5_000_000, 1_200_000)]


def test_the_instant_of_a_reading_is_the_middle_of_the_read(tmp_path: Path) -> None:
    ina2xx(tmp_path)
    assert one(meter_at(tmp_path, took_us=40_000), 1_000_000).t1_us == 1_060_000


def test_a_current_may_be_negative_and_then_so_is_the_power(tmp_path: Path) -> None:
    folder = ina2xx(tmp_path)
    put(folder / "curr1_input", "-8\n")
    reading = one(meter_at(tmp_path))
    assert (reading.power_uw, reading.flags) == (-40_000, ("negative",))


def test_power_of_hwmon_is_in_microwatts(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "acpi_power_meter", "ACPI000D:00", {"power1_average": 5_000_000})
    assert one(meter_at(tmp_path, "ch1")).power_uw == 5_000_000


def test_power_of_the_old_jetson_driver_is_in_milliwatts(tmp_path: Path) -> None:
    folder = jetson_nano(tmp_path)
    (folder / "in_voltage0_input").unlink()
    assert one(meter_at(tmp_path)).power_uw == 2_504_000


def test_the_old_jetson_driver_gives_the_boards_input(tmp_path: Path) -> None:
    jetson_nano(tmp_path)
    meter = meter_at(tmp_path)
    assert meter.source == "hwmon/ina3221x/POM_5V_IN"
    assert one(meter).power_uw == 5_008 * 500


def test_shunts_and_sums_of_an_ina3221_are_no_rails(tmp_path: Path) -> None:
    ina3221(tmp_path, ("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"))
    names = [finding.name for finding in find(Where(tmp_path))]
    assert sorted(names) == ["ina3221@1-0040/VDD_CPU_GPU_CV", "ina3221@1-0040/VDD_IN", "ina3221@1-0040/VDD_SOC"]


def test_a_powerz_is_its_bus_and_not_its_pins(tmp_path: Path) -> None:
    files: dict[str, Value] = {
        "in0_input": 20_000,
        "in0_label": "VBUS\n",
        "curr1_input": -1500,
        "curr1_label": "IBUS\n",
    }
    hwmon(tmp_path, 5, "powerz", "3-2:1.0", files | {f"in{pin}_input": 600 for pin in range(1, 6)})
    meter = meter_at(tmp_path)
    assert meter.source == "hwmon/powerz/VBUS"
    assert one(meter).power_uw == -30_000_000


# Which rails ---------------------------------------------------------------------------------------------------------


def test_the_input_rail_alone_is_the_total(tmp_path: Path) -> None:
    ina3221(tmp_path, ("VDD_SOC", "VDD_CPU_GPU_CV", "VDD_IN"))
    reading = one(meter_at(tmp_path))
    assert (reading.power_uw, reading.flags) == (5_000 * 300, ())


def test_a_board_without_an_input_rail_is_a_sum_and_says_so(tmp_path: Path) -> None:
    ina3221(tmp_path, ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"))  # AGX Orin
    ina3221(tmp_path, ("NC", "VDDQ_VDD2_1V8AO", "NC"), 4, "1-0041")
    reading = one(meter_at(tmp_path))
    assert (reading.power_uw, reading.flags) == (5_000 * (100 + 200 + 300), ("derived_total",))


def test_rails_of_a_users_choice_add_up(tmp_path: Path) -> None:
    ina3221(tmp_path, ("ch_a", "VDD_SYNC", "ch_c"))  # a label that contains NC is connected
    meter = meter_at(tmp_path, "ch_a", "ina3221/VDD_SYNC")
    assert meter.source == "hwmon/ina3221/ch_a+ina3221/VDD_SYNC"
    assert one(meter).power_uw == 5_000 * 300


def test_two_chips_of_one_kind_are_told_apart_by_their_place(tmp_path: Path) -> None:
    ina2xx(tmp_path, number=0, place="1-0040")
    put(ina2xx(tmp_path, number=1, place="1-0041") / "curr1_input", 100)
    with pytest.raises(MeterError, match=r"ch1 may be ina219@1-0040/ch1, ina219@1-0041/ch1; write one of these"):
        meter_at(tmp_path, "ch1")
    assert one(meter_at(tmp_path, "ina219@1-0041/ch1")).power_uw == 500_000
    assert one(meter_at(tmp_path, "ina219@1-0040/ch1", "ina219@1-0041/ch1")).power_uw == 6_500_000


@pytest.mark.parametrize("labels", [("a", "a"), ("a", "ina3221/a"), ("ina3221@1-0040/a", "b", "a")], ids=str)
def test_a_rail_that_is_named_twice_under_whatever_names_is_refused(tmp_path: Path, labels: tuple[str, ...]) -> None:
    ina3221(tmp_path, ("a", "b", "c"))
    with pytest.raises(MeterError, match=r"names the rail ina3221@1-0040/a twice, .*; keep one"):
        meter_at(tmp_path, *labels)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((), "which of these rails feed the board is not known: ina3221@1-0040/a, ina3221@1-0040/b; name them"),
        (("d",), "no rail d is here; found: ina3221@1-0040/a, ina3221@1-0040/b"),
        (("c",), "rail c is switched off or not connected"),
    ],
    ids=str,
)
def test_what_only_the_user_can_know_is_asked(tmp_path: Path, labels: tuple[str, ...], said: str) -> None:
    put(ina3221(tmp_path, ("a", "b", "c")) / "in3_enable", 0)
    with pytest.raises(MeterError, match=said):
        meter_at(tmp_path, *labels)


def test_parts_that_tell_their_own_power_are_not_taken_for_the_board(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "amdgpu", "0000:03:00.0", {"power1_average": 25_000_000, "power1_label": "PPT\n"})
    hwmon(tmp_path, 1, "nvme", "nvme0", {"temp1_input": 40_000})
    with pytest.raises(MeterError, match=r"not known: amdgpu@0000:03:00.0/PPT; name them in meter.labels"):
        meter_at(tmp_path)


@pytest.mark.parametrize("files", [{}, {"temp1_input": 1}], ids=["nothing", "no power"])
def test_a_board_without_any_is_told_so(tmp_path: Path, files: dict[str, int]) -> None:
    if files:
        hwmon(tmp_path, 0, "coretemp", "coretemp.0", files)
    with pytest.raises(MeterError, match=rf"no driver below {tmp_path}/class/hwmon shows power; choose another"):
        meter_at(tmp_path)


def test_labels_belong_to_hwmon(tmp_path: Path) -> None:
    ina2xx(tmp_path)
    settings = load(f'source = "hwmon"\nsysfs_root = "{tmp_path}"\n', MeterSettings, where="agent.toml")
    meter = open_source(settings, 0)
    assert meter is not None
    assert meter.source == "hwmon/ina219/ch1"
    with pytest.raises(SettingsError, match=r'meter\.labels belongs to source = "hwmon"'):
        load('source = "rapl"\nlabels = ["VDD_IN"]\n', MeterSettings, where="agent.toml")


def test_a_label_from_the_device_tree_names_a_chip_with_one_channel(tmp_path: Path) -> None:
    put(ina2xx(tmp_path) / "label", "vdd_board\n")
    assert meter_at(tmp_path, "vdd_board").source == "hwmon/ina219/vdd_board"


@pytest.mark.parametrize(
    ("current_ma", "flags"), [(1637, ()), (1638, ("saturated",)), (-1638, ("negative", "saturated"))]
)
def test_a_shunt_at_full_scale_is_a_lower_bound(tmp_path: Path, current_ma: int, flags: tuple[str, ...]) -> None:
    folder = ina3221(tmp_path, ("a", "b", "VDD_IN"))
    put(folder / "shunt3_resistor", 100_000)  # 0.1 ohm clips at 1.638 A
    put(folder / "curr3_input", current_ma)
    assert one(meter_at(tmp_path)).flags == flags


# Joule counters ------------------------------------------------------------------------------------------------------


def test_a_joule_counter_is_preferred_to_power(tmp_path: Path) -> None:
    files = {"in1_input": 5000, "curr1_input": 1000, "power1_input": 5_000_000, "energy1_input": 7_000_000_000}
    folder = hwmon(tmp_path, 0, "ina238", "1-0045", files)
    meter = meter_at(tmp_path)
    assert meter.read(0) == [], "what it has counted before is nobody's"
    put(folder / "energy1_input", 7_000_500_000)
    first, second = meter.read(PERIOD_US)
    assert isinstance(first, Count)
    assert isinstance(second, Count)
    assert second.count_uj - first.count_uj == 500_000
    put(folder / "energy1_input", 1000)  # its range is told nowhere, so this is a reset and never a wrap
    (third,) = meter.read(2 * PERIOD_US)
    assert isinstance(third, Count)
    assert third.count_uj < second.count_uj


# How good it is ------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_datasheets(tmp_path: Path) -> None:
    ina2xx(tmp_path)  # 5 V, 1.2 A at 0.1 ohm
    current_a = 0.0005 + 1.2 * (0.01 + 0.01) + 200e-6 / 0.1  # resolution, gain and shunt of 1 % each, offset
    voltage_v = 0.0005 + 5 * 0.01
    worst_uw = (5 * current_a + 1.2 * voltage_v + current_a * voltage_v) * 1e6
    assert one(meter_at(tmp_path)).error_uw == pytest.approx(worst_uw, abs=1)
    assert one(meter_at(tmp_path)).error_uw >= worst_uw


def test_the_shunts_tolerance_is_the_users_to_say(tmp_path: Path) -> None:
    ina2xx(tmp_path)  # 5.000 V, 1.200 A: one percent of it is 60 mW
    bounds = []
    for percent in (1.0, 0.0, 5.0):
        settings = load_table(
            {"source": "hwmon", "sysfs_root": str(tmp_path), "shunt_tolerance_percent": percent},
            MeterSettings,
            where="a test",
        )
        bounds.append(one(Hwmon(settings, 0)).error_uw)
    usual, exact, coarse = bounds
    assert usual == one(meter_at(tmp_path)).error_uw
    assert usual - exact == pytest.approx(60_000, rel=0.02)  # and a little for the voltage's own error
    assert coarse - exact == pytest.approx(300_000, rel=0.02)


@pytest.mark.parametrize(
    ("chip", "shunt_uohm", "percent"),
    [
        ("ina219", 150_000, 0.5), ("ina219", 300_000, 1.0), ("ina219", 750_000, 2.5), ("ina219", 100_000, 0.0),
        ("ina226", 150_000, 2.0), ("ina226", 200_000, 4.0), ("ina226", 300_000, 4.0), ("ina226", 750_000, 10.0),
        ("ina226", 1_000_000, 20.0), ("ina226", 50_000, 0.0),
    ],
)  # fmt: skip
def test_what_the_driver_rounds_at_odd_shunts_is_in_the_bound(
    tmp_path: Path, chip: str, shunt_uohm: int, percent: float
) -> None:
    folder = ina2xx(tmp_path, chip, shunt_uohm=shunt_uohm)
    put(folder / "curr1_input", 100_000)  # so that offsets and resolution vanish beside it
    put(folder / "in1_input", 32_000)
    gains = {"ina219": 0.01 + 0.01 + 0.01, "ina226": 0.001 + 0.001 + 0.01}[chip]
    error = one(meter_at(tmp_path)).error_uw / (32_000 * 100_000)
    assert error == pytest.approx(gains + percent / 100, abs=0.0025)
    said = [finding.todo for finding in find(Where(tmp_path)) if "newer drivers round" in finding.todo]
    assert bool(said) == (percent > 0)


def test_a_shunt_that_nobody_has_told_is_asked_about(tmp_path: Path) -> None:
    folder = ina2xx(tmp_path, shunt_uohm=10_000)
    (finding,) = find(Where(tmp_path))
    assert finding.usable
    assert f"write its microohms to {folder / 'shunt_resistor'}" in finding.todo


@pytest.mark.parametrize(("samples", "is_told"), [(1, False), (64, True)])
def test_a_filter_that_smears_rounds_is_told_of(tmp_path: Path, samples: int, is_told: bool) -> None:
    folder = ina3221(tmp_path, ("VDD_IN", "b", "c"))
    put(folder / "samples", samples)
    todo = next(finding.todo for finding in find(Where(tmp_path)) if finding.kind == "meter")
    assert (f"write 1 to {folder / 'samples'}" in todo) == is_told


# What fails ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "N/A\n", "1.5\n"])
def test_what_is_no_number_is_missed_and_not_0(tmp_path: Path, text: str) -> None:
    folder = ina2xx(tmp_path)
    meter = meter_at(tmp_path)
    put(folder / "curr1_input", text)
    with pytest.raises(MeterError, match="curr1_input: expected milliamperes, got"):
        meter.read(PERIOD_US)
    put(folder / "curr1_input", "123")  # no newline is no fault
    assert one(meter).power_uw == 615_000


def test_one_rail_that_fails_takes_the_sum_with_it_and_nothing_else(tmp_path: Path) -> None:
    folder = ina3221(tmp_path, ("a", "b", "c"))
    meter = meter_at(tmp_path, "a", "b")
    put(folder / "curr2_input", "")
    with pytest.raises(MeterError, match="curr2_input"):
        meter.read(PERIOD_US)
    put(folder / "curr2_input", 200)
    put(folder / "curr3_input", "")  # not chosen, so not read
    assert one(meter).power_uw == 1_500_000


def test_a_chip_that_was_unplugged_is_found_again_under_another_number(tmp_path: Path) -> None:
    shutil.rmtree(ina2xx(tmp_path, number=2))
    folder = ina2xx(tmp_path, number=2)
    meter = meter_at(tmp_path)
    shutil.rmtree(folder)
    with pytest.raises(MeterError, match="cannot be read: No such file or directory; it is tried again"):
        meter.read(PERIOD_US)
    with pytest.raises(MeterError, match=r"no rail ina219@1-0040/ch1 is here; found: none"):
        meter.read(2 * PERIOD_US)
    put(ina2xx(tmp_path, number=7) / "curr1_input", 10)
    assert one(meter).power_uw == 50_000


def test_a_rail_that_lost_a_file_is_no_other_rail_with_a_smaller_bound(tmp_path: Path) -> None:
    folder = ina2xx(tmp_path)
    meter = meter_at(tmp_path)
    before = one(meter)
    (folder / "curr1_input").unlink()
    with pytest.raises(MeterError, match="cannot be read"):
        meter.read(PERIOD_US)
    for _ in range(2):
        with pytest.raises(
            MeterError, match=r"ina219@1-0040/ch1 shows other files than at the start \(current, voltage"
        ):
            meter.read(2 * PERIOD_US)
    put(folder / "curr1_input", 1200)
    assert one(meter).error_uw == before.error_uw


def test_chips_that_change_numbers_are_not_mixed_up(tmp_path: Path) -> None:
    mine, other = ina2xx(tmp_path, number=0, place="1-0040"), ina2xx(tmp_path, number=1, place="1-0041")
    put(other / "curr1_input", 3)
    meter = meter_at(tmp_path, "ina219@1-0040/ch1")
    between = tmp_path / "between"
    mine.rename(between)
    other.rename(mine)
    between.rename(other)
    assert one(meter).power_uw == 6_000_000


def test_a_file_that_may_not_be_read_is_told_with_the_fix() -> None:
    files = {"in1_input": 5000, "curr1_input": 1, "energy1_input": 1}
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = hwmon(Path(name), 0, "ina238", "1-0045", files)
        (folder / "energy1_input").chmod(0o400 if root else 0)
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(MeterError, match=r"energy1_input may not be read by user .*sudo chgrp"):
                meter_at(Path(name))
        finally:
            if root:
                os.seteuid(0)


# What cannot be, or would count twice ---------------------------------------------------------------------------------


@pytest.mark.parametrize("milliamperes", [99_999_999, -99_999_999_999_999, 10**21])
def test_scan_takes_no_number_that_no_board_draws_for_power(tmp_path: Path, milliamperes: int) -> None:
    put(ina2xx(tmp_path) / "curr1_input", milliamperes)
    findings = find(Where(tmp_path))
    assert findings
    assert not any(finding.usable for finding in findings)
    assert any("curr1_input" in finding.about for finding in findings)


@pytest.mark.parametrize("labels", [("VDD_IN", "CPU"), ("GPU", "VDD_IN")])
def test_a_boards_input_and_what_hangs_on_it_are_not_added(tmp_path: Path, labels: tuple[str, ...]) -> None:
    ina3221(tmp_path, ("VDD_IN", "CPU", "GPU"))
    with pytest.raises(MeterError, match=r"VDD_IN and .*, which it contains already.*keep the one, or the others"):
        meter_at(tmp_path, *labels)
    assert one(meter_at(tmp_path, "CPU", "GPU")).power_uw == 5_000 * (200 + 300)


def test_an_input_on_the_old_driver_contains_its_parts_too(tmp_path: Path) -> None:
    jetson_nano(tmp_path)
    with pytest.raises(MeterError, match="POM_5V_GPU, which it contains already"):
        meter_at(tmp_path, "POM_5V_IN", "POM_5V_GPU")


def test_a_chip_beside_a_boards_input_may_be_another_boards(tmp_path: Path) -> None:
    ina3221(tmp_path, ("VDD_IN", "CPU", "GPU"))
    ina2xx(tmp_path, place="7-0041")
    assert one(meter_at(tmp_path, "VDD_IN", "ina219@7-0041/ch1")).power_uw == 5_000 * (100 + 1_200)


@pytest.mark.parametrize("lacking", ["in_voltage0_input", "in_current0_input"])
def test_a_power_alone_has_the_chips_maxima_in_its_bound(tmp_path: Path, lacking: str) -> None:
    folder = jetson_nano(tmp_path)
    whole = one(meter_at(tmp_path)).error_uw
    (folder / lacking).unlink()
    alone = one(meter_at(tmp_path))
    assert alone.power_uw == 2_504_000
    # SBOS576: 0.25 % and 16 mV of the volts, 0.25 % of the amperes, and 1 % of the shunt; the file shows whole mW
    volts, amps = 5.008, 0.5
    least_w = volts * amps * (0.0025 + 0.01) + amps * (0.016 + volts * 0.0025) + 0.001
    assert least_w * 1e6 <= alone.error_uw <= 1.02 * whole


def test_a_power_without_either_factor_is_not_called_good_to_its_last_digit(tmp_path: Path) -> None:
    folder = jetson_nano(tmp_path)
    whole = one(meter_at(tmp_path)).error_uw
    for name in ("in_voltage0_input", "in_current0_input"):
        (folder / name).unlink()
    assert one(meter_at(tmp_path)).error_uw >= whole - 6_000, "but for the digits of files that are not there"
