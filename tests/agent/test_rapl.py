# SPDX-License-Identifier: Apache-2.0
"""RAPL on real files laid out as powercap lays them out: what the counters say, and what they must not be taken for."""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline import machine as m
from paceline.energy import Energy, EnergyIntegrator
from paceline.errors import SettingsError
from paceline.settings import load
from paceline_agent.joules import Joules
from paceline_agent.ledger import FLAGS
from paceline_agent.metering import MeterThread
from paceline_agent.meters import Count, Domain, MeterError, MeterSettings, open_source
from paceline_agent.meters.counting import POWER_MAX_W
from paceline_agent.meters.findings import Where
from paceline_agent.meters.rapl import UPDATE_US, Rapl, find

INTEL_UJ, AMD_UJ = 262_143_328_850, 65_532_610_987  # max_energy_range_uj at units of 61 035 and 15 258 nJ
INTEL_MODULUS_UJ = 2**32 * 61_035 // 1000
PERIOD_US = 100_000
PATIENCE_S = 20.0


@pytest.fixture
def powercap() -> Iterator[Path]:
    """Return an empty folder that a user without rights may enter too."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def put(path: Path, text: str) -> None:
    """Write beside and rename: a reader sees the old text or the new one."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="ascii")
    beside.rename(path)


def zone(root: Path, folder: str, name: str, count_uj: int = 0, range_uj: int = INTEL_UJ) -> Path:
    """Lay out one zone; return the file of its counter."""
    place = root / folder
    place.mkdir()
    (place / "name").write_text(f"{name}\n", encoding="ascii")
    (place / "max_energy_range_uj").write_text(f"{range_uj}\n", encoding="ascii")
    (place / "energy_uj").write_text(f"{count_uj}\n", encoding="ascii")
    return place / "energy_uj"


def meter_at(root: Path, period_ms: int = 100, domains: tuple[Domain, ...] = ()) -> Rapl:
    settings = MeterSettings("rapl", period_ms, rapl_root=str(root), domains=domains)
    return Rapl(settings, 0, timer_us=lambda: 0)


def watch(meter: Rapl, counters: dict[Path, list[int]]) -> list[Count]:
    """Let the counters run through their values, one set a period."""
    counts = []
    for number, values in enumerate(zip(*counters.values(), strict=True)):
        for path, value in zip(counters, values, strict=True):
            put(path, f"{value}\n")
        counts += meter.read(number * PERIOD_US)
    return counts


def whole(counts: list[Count]) -> Energy:
    """Integrate counts from the first to the last."""
    integrator = EnergyIntegrator(PERIOD_US)
    for count in counts:
        integrator.add_counter(count.t_us, count.count_uj)
    energy = integrator.window(counts[0].t_us, counts[-1].t_us)
    assert energy is not None
    return energy


# Which counters ------------------------------------------------------------------------------------------------------


def test_what_lies_inside_a_package_is_not_counted_again(powercap: Path) -> None:
    (powercap / "intel-rapl").mkdir()  # the control type has no counter of its own
    package = zone(powercap, "intel-rapl:0", "package-0")
    inside = [zone(powercap, f"intel-rapl:0:{n}", name) for n, name in enumerate(("core", "uncore", "dram"))]
    others = [zone(powercap, "intel-rapl:1", "psys"), zone(powercap, "intel-rapl-mmio:0", "package-0")]
    meter = meter_at(powercap)
    assert meter.source == "rapl/package-0"
    counts = watch(meter, {package: [100, 300, 1_000_000]} | {path: [5, 10**6, 10**6] for path in inside + others})
    assert whole(counts).energy_uj == 1_000_000 - 100


def test_packages_go_by_name_and_add_up(powercap: Path) -> None:
    first = zone(powercap, "intel-rapl:2", "package-0", range_uj=AMD_UJ)  # the zone's number is not the socket's
    second = zone(powercap, "intel-rapl:0", "package-1")
    zone(powercap, "intel-rapl:1", "psys")
    meter = meter_at(powercap)
    assert meter.source == "rapl/package-0+package-1"
    counts = watch(meter, {first: [0, 10, 40], second: [7, 107, 207]})
    assert whole(counts).energy_uj == 40 + 200


def test_the_platform_stands_in_where_there_is_no_package(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "psys")
    meter = meter_at(powercap)
    assert meter.source == "rapl/psys"
    assert whole(watch(meter, {counter: [1, 2, 11]})).energy_uj == 10


def test_the_memory_mapped_twin_stands_in_for_a_package_that_has_no_other(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl-mmio:0", "package-0")
    assert whole(watch(meter_at(powercap), {counter: [1, 2, 11]})).energy_uj == 10


# Covers by choice, dies, twins --------------------------------------------------------------------------------------


def sockets(powercap: Path) -> dict[str, Path]:
    """Lay out a server: two packages, each with memory, the second one's zones first."""
    tops = {"package-0": "intel-rapl:1", "package-1": "intel-rapl:0"}
    files = {name: zone(powercap, folder, name) for name, folder in tops.items()}
    for name, folder in tops.items():
        files[f"{name}/core"] = zone(powercap, f"{folder}:0", "core")
        files[f"{name}/dram"] = zone(powercap, f"{folder}:1", "dram", range_uj=65_712_999_613)
    files["psys"] = zone(powercap, "intel-rapl:2", "psys")
    return files


STEPS = {
    "package-0": 100, "package-0/core": 60, "package-0/dram": 10, "package-1": 200, "package-1/core": 90,
    "package-1/dram": 30, "psys": 500,
}  # fmt: skip


@pytest.mark.parametrize(
    ("domains", "source", "step_uj"),
    [
        (("package", "dram"), "package-0+package-0/dram+package-1+package-1/dram", 340),
        (("dram",), "package-0/dram+package-1/dram", 40),
        (("core",), "package-0/core+package-1/core", 150),
        (("psys",), "psys", 500),
        ((), "package-0+package-1", 300),
    ],
    ids=str,
)
def test_a_cover_by_choice_counts_each_joule_once(
    powercap: Path, domains: tuple[Domain, ...], source: str, step_uj: int
) -> None:
    files = sockets(powercap)
    meter = meter_at(powercap, domains=domains)
    assert meter.source == f"rapl/{source}"
    counts = watch(meter, {file: [7, 7 + STEPS[name], 7 + 2 * STEPS[name]] for name, file in files.items()})
    assert whole(counts).energy_uj == 2 * step_uj


@pytest.mark.parametrize(
    ("domains", "said"),
    [
        (("psys", "package"), "psys and package, which psys contains already"),
        (("package", "core", "uncore"), "package and core, uncore, which package contains already"),
        (("psys", "dram"), "psys and dram"),
        (("package", "dram", "package"), "meter.domains names package twice; keep one of them"),
        (("uncore",), "this processor counts no uncore; change meter.domains"),
    ],
    ids=str,
)
def test_a_cover_that_counts_twice_or_is_not_there_is_refused(
    powercap: Path, domains: tuple[Domain, ...], said: str
) -> None:
    sockets(powercap)
    with pytest.raises(MeterError, match=said):
        meter_at(powercap, domains=domains)


def dies(powercap: Path, *counts_uj: int) -> list[Path]:
    return [
        zone(powercap, f"intel-rapl:{die}", f"package-0-die-{die}", count_uj) for die, count_uj in enumerate(counts_uj)
    ]


def test_dies_that_mirror_their_socket_are_counted_once(powercap: Path) -> None:
    first, second = dies(powercap, 9_000_000_000, 9_000_000_000)  # AMD Zen 2: both show the socket's counter
    meter = meter_at(powercap)
    assert meter.source == "rapl/package-0"
    # the second is read a moment later, and so may be an update ahead
    counts = watch(meter, {first: [9_000_000_000, 9_001_000_000], second: [9_000_000_700, 9_001_000_300]})
    assert whole(counts).energy_uj == 1_000_000
    assert {count.flags for count in counts} == {("mirrored",)}


def test_dies_with_a_counter_each_add_up(powercap: Path) -> None:
    first, second = dies(powercap, 1_000_000_000, 7_000_000_000)
    counts = watch(meter_at(powercap), {first: [1_000_000_000, 1_000_001_000], second: [7_000_000_000, 7_000_000_050]})
    assert whole(counts).energy_uj == 1050
    assert {count.flags for count in counts} == {()}


def test_dies_that_part_later_lose_nothing_from_then_on(powercap: Path) -> None:
    first, second = dies(powercap, 0, 0)  # just started: nothing tells them apart yet
    counts = watch(meter_at(powercap), {first: [0, 5_000_000, 10_000_000], second: [0, 50_000_000, 100_000_000]})
    assert whole(counts).energy_uj == 110_000_000


def test_a_package_beside_its_dies_is_counted_alone(powercap: Path) -> None:
    files = dies(powercap, 0, 1_000_000_000)
    package = zone(powercap, "intel-rapl:7", "package-0")
    counts = watch(meter_at(powercap), {package: [0, 900], files[0]: [0, 500], files[1]: [0, 400]})
    assert whole(counts).energy_uj == 900


def test_zones_that_change_places_are_followed_by_name(powercap: Path) -> None:
    first, second = zone(powercap, "intel-rapl:0", "package-0"), zone(powercap, "intel-rapl:1", "package-1")
    meter = meter_at(powercap)
    counts = watch(meter, {first: [1_000_000, 1_000_100], second: [5_000_000, 5_000_100]})
    for file, name, count in ((first, "package-1", 5_000_250), (second, "package-0", 1_000_200)):
        put(file.with_name("name"), f"{name}\n")
        put(file, f"{count}\n")
    counts += meter.read(2 * PERIOD_US)
    energy = whole(counts)
    assert (energy.energy_uj, energy.flags) == (200 + 250, ())


def test_what_was_counted_in_a_suspend_is_nobodys(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    asleep_us = [0, 0, 3_600_000_000, 3_600_000_000]
    meter = Rapl(MeterSettings("rapl", rapl_root=str(powercap)), 0, lambda: asleep_us.pop(0))
    counts = watch(meter, {counter: [0, 1_000, 9_000, 10_000]})
    energy = whole(counts)
    assert "reset" in energy.flags
    assert counts[-1].count_uj - counts[-2].count_uj == 1_000
    assert counts[-2].count_uj < counts[-3].count_uj, "an hour's joules in a tenth of a second"


# Wraps and resets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("range_uj", "unit_nj"), [(INTEL_UJ, 61_035), (AMD_UJ, 15_258)])
def test_a_wrap_is_exact_to_the_microjoule(powercap: Path, range_uj: int, unit_nj: int) -> None:
    ticks = [2**32 - 50_000, 2**32 - 1, 2**32 + 100_000]  # what the hardware would count with more bits
    counter = zone(powercap, "intel-rapl:0", "package-0", range_uj=range_uj)
    shown = [tick % 2**32 * unit_nj // 1000 for tick in ticks]
    energy = whole(watch(meter_at(powercap), {counter: shown}))
    truth_uj = Fraction((ticks[-1] - ticks[0]) * unit_nj, 1000)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj) < 2  # each end is cut to whole microjoules, and so is the modulus
    assert energy.flags == ()


@given(
    steps_uj=st.lists(st.integers(0, POWER_MAX_W * PERIOD_US), min_size=1, max_size=8), start=st.integers(0, INTEL_UJ)
)
def test_any_way_through_the_range_keeps_every_microjoule(steps_uj: list[int], start: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        counter = zone(Path(folder), "intel-rapl:0", "package-0")
        counted, shown = start, [start]
        for step_uj in steps_uj:
            counted += step_uj
            shown.append(counted % INTEL_MODULUS_UJ)
        assume(max(shown) <= INTEL_UJ)  # above are microjoules between two counts of the hardware
        counts = watch(meter_at(Path(folder)), {counter: shown})
    assert whole(counts).energy_uj == sum(steps_uj)
    assert [later.count_uj - count.count_uj for count, later in pairwise(counts)] == steps_uj


def test_a_reset_drops_its_step_and_says_so(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    shown = [500_000_000, 501_000_000, 502_000_000, 17, 1_000_017]  # back to 17 would be 2.6 MW
    energy = whole(watch(meter_at(powercap), {counter: shown}))
    assert "reset" in energy.flags
    assert energy.covered_us == 3 * PERIOD_US, "the step that was dropped is not covered"
    assert energy.energy_uj == 4_000_000, "it is bridged at the power before it"


def test_a_reset_of_one_package_drops_the_step_of_all(powercap: Path) -> None:
    first, second = zone(powercap, "intel-rapl:0", "package-0"), zone(powercap, "intel-rapl:1", "package-1")
    counts = watch(meter_at(powercap), {first: [1000, 2000, 5, 1005], second: [0, 50, 100, 150]})
    assert [later.count_uj - count.count_uj for count, later in pairwise(counts)] == [1050, -1, 1050]
    assert "reset" in whole(counts).flags


def test_a_reset_before_anything_was_counted_is_no_joule(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    counts = watch(meter_at(powercap), {counter: [9_000_000, 3, 1_003]})
    assert [count.t_us for count in counts] == [PERIOD_US, 2 * PERIOD_US]
    assert whole(counts).energy_uj == 1000


def test_a_pause_in_which_it_may_have_wrapped_twice_is_dropped(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0", range_uj=AMD_UJ)
    meter = meter_at(powercap)
    counts = watch(meter, {counter: [0, 1000]})
    put(counter, "2000\n")
    counts += meter.read(60_000_000)
    assert counts[-1].count_uj < counts[-2].count_uj
    assert "reset" in whole(counts).flags


def test_a_period_that_could_hide_a_wrap_is_refused(powercap: Path) -> None:
    zone(powercap, "intel-rapl:0", "package-0", range_uj=AMD_UJ)
    with pytest.raises(MeterError, match=r"period_ms = 60000 is too long for package-0.* 65532 J: use at most 16383"):
        meter_at(powercap, 60_000)
    assert meter_at(powercap, 16_383).source == "rapl/package-0"


def test_a_slow_read_counts_in_its_middle_and_may_be_off_by_half_of_it(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    ticks = iter(range(0, 1_000_000, 10_000))  # each look at the clock is 10 ms later
    slow = Rapl(MeterSettings("rapl", rapl_root=str(powercap)), 0, timer_us=lambda: next(ticks))
    counts = watch(slow, {counter: [0, 1_000_000]})
    assert [count.t_us for count in counts] == [15_000, PERIOD_US + 15_000]
    quick = zone(powercap, "intel-rapl:1", "package-0", 0)
    shutil.rmtree(counter.parent)
    steady = watch(meter_at(powercap), {quick: [0, 1_000_000]})
    peak_w = 1.0 / ((PERIOD_US + UPDATE_US) / 1e6)
    assert counts[-1].error_uj - steady[-1].error_uj == pytest.approx(peak_w * 5_000, abs=2)


# Readings that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "N/A\n", "-5\n", f"{INTEL_UJ + 1}\n"])
def test_a_reading_that_is_no_count_is_missed_and_loses_nothing(powercap: Path, text: str) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    meter = meter_at(powercap)
    counts = watch(meter, {counter: [0, 1000]})
    put(counter, text)
    with pytest.raises(MeterError, match="energy_uj: expected a count of microjoules"):
        meter.read(2 * PERIOD_US)
    put(counter, "3500")  # no newline is no fault
    counts += meter.read(3 * PERIOD_US)
    energy = whole(counts)
    assert (energy.energy_uj, energy.flags) == (3500, ())


def test_when_one_of_two_fails_the_other_ones_joules_are_not_lost(powercap: Path) -> None:
    first, second = zone(powercap, "intel-rapl:0", "package-0"), zone(powercap, "intel-rapl:1", "package-1")
    meter = meter_at(powercap)
    counts = watch(meter, {first: [0, 1000], second: [0, 10]})
    put(first, "2000")
    put(second, "")
    with pytest.raises(MeterError, match="intel-rapl:1"):
        meter.read(2 * PERIOD_US)
    put(second, "30")
    counts += meter.read(3 * PERIOD_US)
    assert whole(counts).energy_uj == 2030


def test_a_counter_that_was_gone_is_a_new_one_wherever_it_comes_back(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    meter = meter_at(powercap)
    counts = watch(meter, {counter: [0, 1000]})
    shutil.rmtree(counter.parent)
    with pytest.raises(MeterError, match="cannot be read: No such file or directory; it is tried again"):
        meter.read(2 * PERIOD_US)
    with pytest.raises(MeterError, match="expected zones named package-0"):
        meter.read(3 * PERIOD_US)
    counter = zone(powercap, "intel-rapl:4", "package-0", 7_000_000)
    counts += meter.read(4 * PERIOD_US)
    put(counter, "7000500")
    counts += meter.read(5 * PERIOD_US)
    energy = whole(counts)
    assert set(energy.flags) == {"gap", "reset"}
    assert energy.covered_us == 2 * PERIOD_US
    assert counts[-1].count_uj - counts[-2].count_uj == 500


def test_other_packages_than_before_are_not_taken_for_them(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    meter = meter_at(powercap)
    shutil.rmtree(counter.parent)
    with pytest.raises(MeterError):
        meter.read(0)
    zone(powercap, "intel-rapl:0", "package-1")
    with pytest.raises(MeterError, match="has package-1 now, where it had package-0"):
        meter.read(PERIOD_US)


def test_two_readings_within_an_update_are_one(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    meter = meter_at(powercap)
    counts = watch(meter, {counter: [0, 1000]})
    put(counter, "1900000")
    assert meter.read(PERIOD_US + 999) == []
    counts += meter.read(PERIOD_US + 1000)  # a late update: 1.9 kW over this millisecond alone
    assert whole(counts).energy_uj == 1_900_000


# What is said at the start -------------------------------------------------------------------------------------------


@contextmanager
def without_rights() -> Iterator[None]:
    """Be nobody, if we are root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_permission_denied_names_the_file_and_the_fix(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    counter.chmod(0o400 if os.geteuid() == 0 else 0)
    with without_rights(), pytest.raises(MeterError) as caught:
        meter_at(powercap)
    text = str(caught.value)
    assert f"{counter} may not be read by user " in text
    assert f"sudo chmod 0440 {counter}" in text
    assert "/etc/udev/rules.d/" in text
    assert "\n" not in text


def test_rights_that_come_back_are_a_new_base(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    counter.chmod(0o444)
    with without_rights():
        meter = meter_at(powercap)
    counts = watch(meter, {counter: [0, 1000]})
    counter.chmod(0)
    with without_rights(), pytest.raises(MeterError, match="may not be read"):
        meter.read(2 * PERIOD_US)
    counter.chmod(0o444)
    with without_rights():
        counts += meter.read(3 * PERIOD_US)
    assert "reset" in whole(counts).flags


def test_a_machine_without_rapl_is_told_so(powercap: Path) -> None:
    with pytest.raises(MeterError, match="is not there: this kernel has no RAPL"):
        meter_at(powercap / "powercap")
    with pytest.raises(MeterError, match="there are none"):
        meter_at(powercap)
    zone(powercap, "dtpm:0", "soc")
    with pytest.raises(MeterError, match="found soc; choose another"):
        meter_at(powercap)


@pytest.mark.parametrize("text", ["", "0\n", "many\n"])
def test_a_range_that_is_none_is_refused(powercap: Path, text: str) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")
    put(counter.with_name("max_energy_range_uj"), text)
    with pytest.raises(MeterError, match="max_energy_range_uj: expected a count of microjoules above 0"):
        meter_at(powercap)


@pytest.mark.parametrize("range_j", [1, 20, 99])
def test_a_range_that_could_wrap_twice_between_readings_is_refused_by_scan_and_meter_alike(
    powercap: Path, range_j: int
) -> None:
    root = powercap / "class" / "powercap"
    root.mkdir(parents=True)
    zone(root, "intel-rapl:0", "package-0", range_uj=range_j * 1_000_000)
    with pytest.raises(MeterError, match=f"begins anew after {range_j} J .*; at least 100 J are needed"):
        meter_at(root)
    (finding,) = find(Where(powercap))
    assert (finding.usable, f"after {range_j} J" in finding.about) == (False, True)


def test_without_a_range_nothing_is_measured(powercap: Path) -> None:
    zone(powercap, "intel-rapl:0", "package-0").with_name("max_energy_range_uj").unlink()
    with pytest.raises(MeterError, match="a wrap looks like a reset"):
        meter_at(powercap)


def test_the_settings_of_one_source_are_not_those_of_another(powercap: Path) -> None:
    zone(powercap, "intel-rapl:0", "package-0")
    settings = load(f'source = "rapl"\nrapl_root = "{powercap}"\n', MeterSettings, where="agent.toml")
    meter = open_source(settings, 0)
    assert meter is not None
    assert meter.source == "rapl/package-0"
    for text in ('source = "rapl"\nidle_w = 1.0', 'rapl_root = "/elsewhere"'):
        with pytest.raises(SettingsError, match=r"belongs? to source"):
            load(text, MeterSettings, where="agent.toml")


# The whole way -------------------------------------------------------------------------------------------------------


class Load:
    """A writer that moves a counter on at its own pace, by rename, and wraps on the way."""

    STEP_UJ, STEP_S = 40_000, 0.002  # about 20 W

    def __init__(self, counter: Path, start_uj: int) -> None:
        self._counter, self._start_uj = counter, start_uj
        self.steps = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def energy_uj(self) -> int:
        return self.steps * self.STEP_UJ

    def _run(self) -> None:
        while not self._ending.wait(self.STEP_S):
            put(self._counter, f"{(self._start_uj + self.energy_uj + self.STEP_UJ) % INTEL_MODULUS_UJ}\n")
            self.steps += 1


def test_the_meters_thread_loses_no_microjoule_of_a_running_counter(powercap: Path) -> None:
    start_uj = INTEL_UJ - 50 * Load.STEP_UJ  # wraps after a tenth of a second
    counter = zone(powercap, "intel-rapl:0", "package-0", start_uj)
    thread = MeterThread(meter_at(powercap, 10), 0.01)
    counts: list[Count] = []

    def collect(until_uj: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not counts or counts[-1].count_uj < counts[0].count_uj + until_uj:
            assert time.monotonic() < end_s, thread.trouble
            select.select([thread.fileno()], [], [], 0.1)
            counts.extend(reading for reading in thread.drain() if isinstance(reading, Count))

    try:
        collect(0)  # the base is read before the counter moves
        with Load(counter, start_uj) as load:
            collect(150 * Load.STEP_UJ)
        thread.read_now()
        collect(load.energy_uj)
    finally:
        thread.stop()
    energy = whole(counts)
    assert energy.energy_uj == load.energy_uj, "what the writer wrote is what was counted"
    assert energy.flags == ()


def test_a_boards_round_is_measured_by_counters(powercap: Path) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0")

    def now_us() -> int:
        return time.monotonic_ns() // 1000

    with Joules(MeterSettings("rapl", 20, rapl_root=str(powercap))) as joules, Load(counter, 0):
        assert (joules.source, joules.known) == ("rapl/package-0", True)
        end_s = time.monotonic() + PATIENCE_S

        def settled() -> list[m.Event]:
            assert time.monotonic() < end_s, joules.trouble
            select.select([joules.fileno()], [], [], 0.05)
            joules.drain()
            return joules.settled()

        open_us = now_us() + 100_000  # after the first reading: what was before that is unknown
        while now_us() < open_us:
            settled()
        joules.open(open_us)
        joules.mark(open_us + 50_000, "compute", 5)
        while now_us() < open_us + 250_000:
            assert settled() == []
        joules.activity(now_us(), False)
        joules.mark(open_us + 250_000, "transfer", 5)
        joules.measure(5)
        joules.measure_split("run", 1, open_us + 300_000)
        events: list[m.Event] = []
        while len(events) < 2:
            events += settled()
    (measured,) = (event for event in events if isinstance(event, m.Measured))
    (split,) = (event.energy for event in events if isinstance(event, m.SplitMeasured))
    assert measured.energy_uj is not None
    assert measured.energy_uj > 0
    assert measured.bound_uj is not None
    assert measured.bound_uj >= 2 * (INTEL_UJ // 2**32), "the counter's resolution, at either edge"
    assert (split.compute_uj, split.source) == (measured.energy_uj, "rapl/package-0")
    assert split.other_uj is not None
    assert split.transfer_uj is not None
    assert split.total_uj == split.other_uj + measured.energy_uj + split.transfer_uj


# Standing still ------------------------------------------------------------------------------------------------------


def test_a_package_that_stands_still_beside_one_that_counts_is_told(powercap: Path) -> None:
    first, second = zone(powercap, "intel-rapl:0", "package-0"), zone(powercap, "intel-rapl:1", "package-1")
    moving = [number * 10**6 for number in range(5)]
    counts = watch(meter_at(powercap), {first: moving, second: [0, 10**6, 2 * 10**6, 2 * 10**6, 2 * 10**6]})
    assert [count.flags for count in counts] == [(), (), (), (), ("frozen",)]


def test_graphics_that_are_off_are_no_counter_that_is_frozen(powercap: Path) -> None:
    zone(powercap, "intel-rapl:0", "package-0")
    core, uncore = zone(powercap, "intel-rapl:0:0", "core"), zone(powercap, "intel-rapl:0:1", "uncore")
    meter = meter_at(powercap, domains=("core", "uncore"))
    counts = watch(meter, {core: [number * 10**6 for number in range(5)], uncore: [5] * 5})
    assert [count.flags for count in counts] == [()] * 5


@pytest.mark.parametrize("is_still", [True, False])
def test_joules_of_a_slice_over_a_counter_that_stands_still_are_unknown_and_never_0(
    powercap: Path, is_still: bool
) -> None:
    counter = zone(powercap, "intel-rapl:0", "package-0", 10**9)
    settings = MeterSettings("rapl", 20, rapl_root=str(powercap))
    with Joules(settings) as joules:
        begin_us = time.monotonic_ns() // 1000
        joules.open(begin_us)
        joules.mark(begin_us + 100_000, "compute", 1)
        joules.mark(begin_us + 500_000, "transfer", 1)
        joules.measure(1)
        joules.measure_split("run", 1, begin_us + 500_000)
        deadline_s = time.monotonic() + PATIENCE_S
        events: list[m.Event] = []
        while len(events) < 2 and time.monotonic() < deadline_s:
            now_us = time.monotonic_ns() // 1000
            if not is_still:
                put(counter, f"{10**9 + 5 * (now_us - begin_us)}\n")
            select.select([joules.fileno()], [], [], 0.002)
            joules.drain()
            events += joules.settled()
        measured = next(event for event in events if isinstance(event, m.Measured))
        split = next(event.energy for event in events if isinstance(event, m.SplitMeasured))
        assert bool(joules.doubt) is is_still
    if is_still:
        assert (measured.energy_uj, measured.bound_uj) == (None, None)
        assert measured.flags & FLAGS["frozen"]
        assert split.total_uj is None
    else:
        assert measured.energy_uj is not None
        assert measured.bound_uj is not None
        assert abs(measured.energy_uj - 5 * 400_000) <= measured.bound_uj + 5 * 10_000  # a file is written each 2 ms
