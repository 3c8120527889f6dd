# SPDX-License-Identifier: Apache-2.0
"""The agent's meters and smbus2 against a real kernel, in a virtual machine, over sensors whose true joules are known.

One boot serves all tests. Without the kernel in build/vm they are skipped: `make test-vm` fetches and builds it.
Not reached by this: noise and drift, the ADC's own errors, the timing of a real bus, true joules.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline_agent.meters import SOURCES

from . import guest, joules, kernel, riscv64
from .metered import FAULTS, LOADS, METERED

LIMIT_S = 240  # four times what it takes on two busy cores
MACHINE = os.environ.get("PACELINE_VM_MACHINE", "x86_64")
IS_X86 = MACHINE == "x86_64"
on_x86 = pytest.mark.skipif(not IS_X86, reason="Debian's kernels of other machines have no powercap and no INA drivers")
MEASURED = [name for name, what in METERED.items() if what.source in SOURCES and (IS_X86 or what.chip is not None)]
WITH_CHIP = [name for name in MEASURED if METERED[name].chip is not None]
ENXIO, EBUSY, EREMOTEIO = 6, 16, 121

pytestmark = pytest.mark.timeout(kernel.FETCH_S + kernel.UNPACK_S + kernel.BUILD_S + LIMIT_S)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Boot the guest once; return what each of its checks has answered."""
    fetch = "1" in (os.environ.get("PACELINE_NO_SKIP"), os.environ.get("PACELINE_VM_FETCH"))
    try:
        guest.emulator(MACHINE)
        with_kernel = kernel.ready(fetch) if IS_X86 else riscv64.ready(fetch)
    except kernel.Missing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("guest")
    command = f"env PYTHONPATH={os.environ.get('PYTHONPATH', '')} {sys.executable} -m tests.vm.inside"  # as here
    if not IS_X86:
        command = "env PYTHONPATH=common:agent python3 -m tests.vm.inside chips"
    ran = guest.run(with_kernel, command, folder, LIMIT_S)
    print(f"guest: {ran.seconds:.1f} s, its command from {ran.up_seconds} s of its own time on")
    assert ran.status == 0, f"the guest's command ended with {ran.status}:\n{ran.console[-4000:]}"
    joules.keep(MACHINE, ran.answer)
    assert isinstance(ran.answer, dict), f"the guest's answer is cut off or missing:\n{ran.console[-4000:]}"
    return ran.answer


def found(answers: dict[str, Any], check: str) -> Any:
    """Return what a check has found."""
    answer = answers[check]
    assert "broke" not in answer, f"{check} broke in the guest:\n{answer['broke']}"
    return answer["found"]


def test_the_guest_runs_the_kernel_that_was_fetched(answers: dict[str, Any]) -> None:
    version = found(answers, "kernel")["version"].split()[2]
    cache = kernel.CACHE if IS_X86 else riscv64.CACHE
    assert (cache / version / "complete").exists()


# I2C ----------------------------------------------------------------------------------------------------------------


def test_smbus2_reads_the_same_register_in_each_way(answers: dict[str, Any]) -> None:
    read = found(answers, "ways to read")
    assert read["combined"] == read["pointer first"] == 0x1234, "the most significant byte comes first"
    assert read["word"] == 0x3412, "SMBus words are the other way round"
    assert read["block"] == [0x12, 0x34]
    assert read["absent"] == read["absent, combined"] == ENXIO


# shunt (10 uV), bus (4 mV << 3, CNVR, OVF), current, power, configuration (SBOS448G, 8.6); calibration 4096 but twice
INA219 = {
    "1 A at 5 V": [0x2710, 0x2712, 0x2710, 0x09C4, 0x3FFF],
    "-160 mA": [0xF9C0, 0x2712, 0xF9C0, 0x0190, 0x3FFF],
    "beyond the range": [0x7D00, 0x2712, 0x7D00, 0x1F40, 0x399F],
    "beyond a gain of 1": [0x0FA0, 0x2712, 0x0FA0, 0x03E8, 0x219F],
    "beyond the arithmetic": [0x4E20, 0x2713, 0x9C40, 0x2710, 0x399F],
    "20 V": [0x03E8, 0x9C42, 0x03E8, 0x03E8, 0x399F],
    "20 V in the range of 16 V": [0x03E8, 0x7D02, 0x03E8, 0x0320, 0x199F],
    "lost calibration": [0x2710, 0x2712, 0x0000, 0x0000, 0x3FFF],
}


@pytest.mark.parametrize("what", INA219)
def test_registers_of_an_ina219_are_those_of_its_datasheet(answers: dict[str, Any], what: str) -> None:
    assert [f"{word:04x}" for word in found(answers, "ina219")[what]] == [f"{word:04x}" for word in INA219[what]]


def test_flags_of_an_ina219_tell_of_new_conversions(answers: dict[str, Any]) -> None:
    ina219 = found(answers, "ina219")
    assert ina219["power-on"] == ina219["after a reset"] == [0x399F, 0]
    assert ina219["flag while converting"] == 0
    assert ina219["flag after reading 02"] == 2, "reading the flag does not clear it"
    assert ina219["flag after reading 03"] == 0
    assert ina219["flag after the only conversion"] == 0
    assert ina219["shunt after the only conversion"] == 0x2710, "triggered: it stays what it was"
    assert ina219["shunt while stuck"] == 0x4E20, "1 A came after 2 A, and does not show"


def test_registers_of_an_ina3221_are_those_of_its_datasheet(answers: dict[str, Any]) -> None:
    ina3221 = found(answers, "ina3221")
    assert ina3221["power-on"] == [0x7127, 0x7FF8, 0x7FF8, 0x7FF8, 0x7FFE, 0x2710, 0x2328, 0x5449, 0x3220]
    one, minus_one, full = (0x4E20, 0x1388), (0xFFF8, 0x0CE8), (0x7FF8, 0x2EE0)  # shunt 40 uV << 3, bus 8 mV << 3
    assert ina3221["rails"] == [*one, *minus_one, *full]
    assert ina3221["sum"] == (2500 - 1) << 1
    assert ina3221["flag while converting"] == ina3221["flag while powered down"] == 0
    assert ina3221["disabled channel"] == 0xFFF8, "it keeps its last value"
    assert ina3221["another die"] == 0x2260


def test_faults_come_and_go(answers: dict[str, Any]) -> None:
    faults = found(answers, "faults")
    assert faults["two of three fail"] == [ENXIO, ENXIO, None]
    assert faults["another errno"] == EREMOTEIO
    assert faults["forced 0xffff"] == [0xFFFF, 0xFFFF]
    assert faults["forced 0x0000"] == [0, 0]
    assert faults["slow bus, seconds"] >= 0.03
    assert faults["at the end"] is None


# Trees --------------------------------------------------------------------------------------------------------------


@on_x86
def test_the_kernels_drivers_show_what_the_chips_have(answers: dict[str, Any]) -> None:
    hwmon = found(answers, "hwmon")
    ina219 = {"name": "ina219", "in0": "12", "in1": "5000", "curr1": "1200", "power1": "6000000"}  # mV, mA, uW
    assert {name.removesuffix("_input"): text for name, text in hwmon["ina219"].items()} == ina219
    ina3221 = hwmon["ina3221"]
    assert ina3221["name"] == "ina3221"
    assert [ina3221[f"in{i}_input"] for i in (1, 2, 3)] == ["1000", "2000", "3000"]
    assert [ina3221[f"curr{i}_input"] for i in (1, 2, 3)] == ["300", "-800", "2000"]
    assert [ina3221[f"in{i}_input"] for i in (4, 5, 6)] == ["3000", "-8000", "20000"], "shunts, in microvolts"
    for name, current_ma in (("ina219", 1200), ("ina3221", 300)):
        assert hwmon[f"{name}, NACK"] == ENXIO
        assert hwmon[f"{name}, then"] == current_ma
    assert hwmon["bound chip over /dev/i2c"] == EBUSY, "a driver that is bound owns the chip"


@on_x86
def test_powercap_zones_are_those_of_a_processor_and_count(answers: dict[str, Any]) -> None:
    powercap = found(answers, "powercap")
    range_uj = (2**32 - 1) * 116 // 1000
    assert {zone: powercap[zone][:2] for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1")} == {
        "intel-rapl:0": ["package-0", str(range_uj)],
        "intel-rapl:0:0": ["core", str(range_uj)],
        "intel-rapl:0:1": ["dram", str(range_uj)],
    }
    assert powercap["mode"] & 0o077 == 0, "root's alone"
    least_s, most_s = powercap["seconds, at least and at most"]
    assert 20.0 * (least_s - 0.001) <= powercap["joules"] <= 20.0 * (most_s + 0.001), "20 W, updated each millisecond"
    before, after = powercap["around a reset"]
    assert after < before


# The agent ----------------------------------------------------------------------------------------------------------


def test_each_source_of_this_agent_was_measured(answers: dict[str, Any]) -> None:
    metered = found(answers, "metered")
    assert [name for name in metered if "absent" not in metered[name]] == MEASURED
    assert set(MEASURED) >= ({"rapl", "ina219", "ina3221"} if IS_X86 else {"ina219", "ina3221"})


def test_a_user_without_rights_is_told_which_file_is_closed(answers: dict[str, Any]) -> None:
    refused = found(answers, "refused")
    closed = {"rapl": "energy_uj", "ina219": "/dev/i2c-", "ina3221": "/dev/i2c-"}  # what hwmon shows is for all
    for name in MEASURED:
        if name in closed:
            assert closed[name] in (refused[name] or ""), refused
        else:
            assert refused[name] is None, refused


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", MEASURED)
def test_joules_are_true_within_their_bound(answers: dict[str, Any], name: str, load: str) -> None:
    """Truth follows the conversions (DECISIONS 33). Between readings nobody knows more than `unseen_uj` allows."""
    window = found(answers, "metered")[name][load]
    assert window["energy_uj"] is not None, window
    off_uj = abs(window["energy_uj"] - window["converted_uj"])
    assert off_uj <= window["bound_uj"] + window["unseen_uj"], describe(name, load, window)
    if window["covered_us"] == window["span_us"]:
        assert window["bound_uj"] <= 0.08 * window["converted_uj"], "the bound says something"
    assert window["converted_uj"] == pytest.approx(window["delivered_uj"], rel=0.2 if load == "bursty" else 0.02)


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_source_measures_follows_the_load(answers: dict[str, Any], name: str) -> None:
    """A stuck value would be right for one load and wrong for the other. (Bursts are a matter of chance to some.)"""
    windows = found(answers, "metered")[name]
    measured, true = (windows["stepped"][of] / windows["steady"][of] for of in ("energy_uj", "converted_uj"))
    assert true < 0.8
    assert measured == pytest.approx(true, rel=0.2), describe(name, "stepped", windows["stepped"])


@pytest.mark.parametrize("load", ["steady", "stepped"])
@pytest.mark.parametrize("name", MEASURED)
def test_joules_are_within_1_percent_where_the_load_is_slower_than_the_readings(
    answers: dict[str, Any], name: str, load: str
) -> None:
    """But for what none of its readings can have seen; a gap, on a machine that stood still, is the bound's affair."""
    window = found(answers, "metered")[name][load]
    if window["covered_us"] < window["span_us"]:
        return
    off_uj = abs(window["energy_uj"] - window["converted_uj"])
    assert off_uj <= max(0.01 * window["converted_uj"], window["unseen_uj"]), describe(name, load, window)


@on_x86
def test_a_counter_that_wraps_loses_nothing(answers: dict[str, Any]) -> None:
    window = found(answers, "metered")["rapl"]["steady"]
    assert window["converted_uj"] > 2**32 * 116 // 1000, "more than the counter holds, so it has wrapped"
    assert window["energy_uj"] == pytest.approx(window["converted_uj"], rel=0.1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_no_energy(answers: dict[str, Any], fault: str) -> None:
    """After a fault joules are right within the bound, or unknown; and it is told where something was missed."""
    for name in WITH_CHIP:
        window = found(answers, "metered")[name][fault]
        if window["energy_uj"] is not None:
            off_uj = abs(window["energy_uj"] - window["converted_uj"])
            assert off_uj <= window["bound_uj"] + window["unseen_uj"], describe(name, fault, window)
        if fault in ("nack", "stuck", "SDA high", "SDA low"):
            assert window["covered_us"] < window["span_us"], describe(name, fault, window)
        if fault == "reset":
            assert window["flags"], describe(name, fault, window)


def describe(name: str, load: str, window: dict[str, Any]) -> str:
    """Return one line about a window."""
    return f"{name}, {load}: {window}"


def test_a_missing_emulator_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernel.Missing, match="qemu-system-x86_64 is missing: apt-get install"):
        guest.emulator()


def test_a_missing_kernel_is_told_and_not_fetched_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel, "CACHE", tmp_path)
    with pytest.raises(kernel.Missing, match="make test-vm"):
        kernel.ready(fetch=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernel.Missing, match="apt-get is missing"):
        kernel.ready(fetch=True)
    assert list(tmp_path.iterdir()) == []
