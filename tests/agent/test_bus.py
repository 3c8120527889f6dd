# SPDX-License-Identifier: Apache-2.0
"""The I2C bus through real smbus2: bytes on the wires, tries, times and the sentences of what goes wrong."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline_agent.meters import MeterError
from paceline_agent.meters.bus import REOPEN_FAILURES, TRY_US, I2cBus

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.i2c_models import FUNC_BLOCKS, FUNC_I2C, Adapter, Clock, Ina219Model, install, steady

Open = Callable[..., tuple[I2cBus, Adapter]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    def make(**changes: object) -> tuple[I2cBus, Adapter]:
        clock = Clock()
        chip = Ina219Model(steady(1000))
        adapter = Adapter(clock, {0x40: chip}, **changes)  # type: ignore[arg-type]
        path = tmp_path / "i2c-1"
        path.touch()
        install({path: adapter}, monkeypatch.setattr)
        return I2cBus(str(path), clock), adapter

    return make


@pytest.mark.parametrize("functions", [FUNC_I2C | FUNC_BLOCKS, FUNC_I2C, FUNC_BLOCKS], ids=["all", "i2c", "blocks"])
def test_words_go_high_byte_first_and_a_read_writes_the_pointer_only(opened: Open, functions: int) -> None:
    bus, adapter = opened(functions=functions)
    bus.claim(0x40)
    bus.write(0x40, 0x05, 0x1000)
    word = bus.read(0x40, 0x05)
    assert (word.wire, word.value) == (b"\x10\x00", 0x1000)
    assert adapter.log == [(0x40, b"\x05\x10\x00"), (0x40, b"\x05")]
    assert adapter.chips[0x40].calibration == 0x1000, "reading has written nothing"


def test_the_times_of_a_word_are_those_of_its_own_transfer(opened: Open) -> None:
    bus, adapter = opened()
    adapter.faults = [errno.EREMOTEIO]
    word = bus.read(0x40, 0x00)
    assert (word.before_us, word.after_us) == (1_000_470, 1_000_940)
    assert bus.retries == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (errno.ENXIO, "no chip answers [errno 6]"),
        (errno.EREMOTEIO, "no chip answers [errno 121]"),
        (errno.ETIMEDOUT, "the bus is held low, or too slow [errno 110]"),
        (errno.EAGAIN, "another master has the bus [errno 11]"),
        (errno.EIO, "Input/output error [errno 5]"),
    ],
)
def test_tries_are_bounded_and_the_reason_is_told(opened: Open, fault: int, said: str) -> None:
    bus, adapter = opened()
    adapter.faults = [fault] * 10
    with pytest.raises(MeterError, match=r"0x40 cannot be read \(tried 3 times\): " + re.escape(said)):
        bus.read(0x40, 0x00)
    assert len(adapter.faults) == 7


def test_what_comes_too_late_is_not_tried_again(opened: Open) -> None:
    bus, adapter = opened(transfer_us=TRY_US + 1)
    adapter.faults = [errno.ETIMEDOUT]
    with pytest.raises(MeterError, match="tried once"):
        bus.read(0x40, 0x00)


def test_an_adapter_that_is_gone_is_opened_again(opened: Open) -> None:
    bus, adapter = opened()
    path = Path(bus.name)
    adapter.faults = [errno.ENODEV] * REOPEN_FAILURES
    for _ in range(REOPEN_FAILURES):
        with pytest.raises(MeterError, match="tried once"):
            bus.read(0x40, 0x00)
    path.rename(path.with_name("gone"))
    with pytest.raises(MeterError, match="is not there"):
        bus.read(0x40, 0x00)
    path.with_name("gone").rename(path)
    assert bus.read(0x40, 0x00).value == 0x399F


def test_an_adapter_without_combined_transfers_is_refused(opened: Open) -> None:
    with pytest.raises(MeterError, match="this adapter can do no combined transfers"):
        opened(functions=0)


def test_a_bus_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match=r"/dev/i2c-99 is not there \(.*\): enable I2C, load the module i2c-dev"):
        I2cBus(99)
    with pytest.raises(MeterError, match="is no I2C bus; expected a device like /dev/i2c-1"):
        I2cBus("/dev/null")


def test_a_bus_that_may_not_be_opened_names_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refused)  # root may open anything
    with pytest.raises(MeterError, match=r"may not be opened: .*usermod -aG i2c"):
        I2cBus(1)


def test_no_descriptor_is_left(opened: Open) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        opened()[0].close()
        with pytest.raises(MeterError):
            opened(functions=0)
        with pytest.raises(MeterError):
            I2cBus("/dev/null")
    assert len(os.listdir("/proc/self/fd")) == before
