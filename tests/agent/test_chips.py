# SPDX-License-Identifier: Apache-2.0
"""What [meter] says about chips, which of them are found on a bus, how their readings reach the joules of a window."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import machine as m
from paceline.errors import SettingsError
from paceline.settings import load
from paceline_agent.config import load_config
from paceline_agent.joules import Joules
from paceline_agent.ledger import FLAGS
from paceline_agent.metering import MeterThread
from paceline_agent.meters import Meter, MeterError, MeterSettings, RailSettings, Reading, open_source
from paceline_agent.meters.bus import I2cBus, now_us
from paceline_agent.meters.chips import probe
from paceline_agent.meters.findings import Where, scan
from paceline_agent.meters.ina import Sum

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.i2c_models import Adapter, Clock, Ina219Model, Ina3221Model, install, steady

PATIENCE_S = 20.0


class Real(Clock):
    """The real clock; transfers take no time of their own."""

    @property
    def now_us(self) -> int:
        return now_us()

    @now_us.setter
    def now_us(self, value: int) -> None:
        """Time passes by itself."""


def test_the_keys_of_a_table_become_settings() -> None:
    text = """
    source = "ina3221"
    bus = "/dev/i2c-7"
    address = 0x41
    shunt_ohm = 0.01
    rails = [{ channel = 1, name = "VDD_IN" }, { channel = 2, shunt_ohm = 0.02, counted = false }]
    """
    rails = (RailSettings("VDD_IN", channel=1), RailSettings(channel=2, shunt_ohm=0.02, counted=False))
    expected = MeterSettings("ina3221", bus="/dev/i2c-7", address=0x41, shunt_ohm=0.01, rails=rails)
    assert load(text, MeterSettings) == expected
    assert load('source = "ina219"\nshunt_ohm = 0.1', MeterSettings).bus == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('source = "ina219"', "meter.shunt_ohm is missing: the resistor's ohms"),
        ('source = "rapl"\nshunt_ohm = 0.1', 'meter.shunt_ohm belongs to source = "ina219" or "ina3221"'),
        ('source = "ina219"\nshunt_ohm = 0.1\naverage = 3', "meter.average is 3; an ina219 can do 1, 2, 4, 8"),
        ('source = "ina219"\nshunt_ohm = 0.1\nrails = [{ channel = 1 }]', "channel belongs to an ina3221"),
        ('source = "ina3221"\nshunt_ohm = 0.1\nrails = [{ address = 0x41 }]', "address belongs to an ina219"),
        ('source = "ina3221"\nshunt_ohm = 0.1\nrails = [{}, { channel = 2 }]', "needs its channel"),
        ('source = "ina3221"\nshunt_ohm = 0.1\nrails = [{ channel = 2 }, { channel = 2 }]', "in the same place"),
        ('source = "ina219"\nshunt_ohm = 0.1\nrails = [{}, { address = 0x40 }]', "in the same place"),
        ('source = "ina219"\nshunt_ohm = 0.1\nrails = [{ counted = false }]', "no rail is counted"),
        ('source = "ina3221"\naddress = 0x44\nshunt_ohm = 0.1', "an ina3221 answers to 0x40, 0x41, 0x42 or 0x43"),
        ('source = "ina219"\naddress = 0x39\nshunt_ohm = 0.1', "address"),
        ('source = "ina219"\nshunt_ohm = 0.0', "shunt_ohm"),
        ('source = "ina219"\nshunt_ohm = 0.1\nrange_mv = 100', "one of 40, 80, 160, 320"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(text: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text, MeterSettings)
    assert named in str(caught.value)


@pytest.mark.parametrize("source", ["ina219", "ina3221"])
def test_a_bus_that_is_not_there_is_told_when_the_meter_is_opened(source: str) -> None:
    settings = MeterSettings(source, bus=99, shunt_ohm=0.1)  # type: ignore[arg-type]
    with pytest.raises(MeterError, match="/dev/i2c-99 is not there"):
        open_source(settings, 0)


def test_chips_are_told_apart_by_reading_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ina226(Ina219Model):
        def read(self, register: int, now_us: int) -> bytes:
            return {0x00: b"\x41\x27", 0xFE: b"\x54\x49", 0xFF: b"\x22\x60"}.get(register, b"\0\0")

    chips = {
        0x40: Ina219Model(steady(1)),
        0x41: Ina3221Model({1: steady(1)}),
        0x42: Ina226(steady(1)),
        0x44: Ina219Model(steady(1)),
        0x45: Ina219Model(steady(1), config=0x3EEF),
        0x60: Ina219Model(steady(1)),
    }
    adapter = Adapter(Clock(), chips, owned={0x44})
    (path := tmp_path / "i2c-3").touch()
    install({path: adapter}, monkeypatch.setattr)
    found = {chip.address: (chip.source, chip.about) for chip in probe(I2cBus(str(path), adapter.clock))}
    told = [finding for finding in scan(Where(tmp_path, tmp_path, "3")) if finding.kind == "rail"]
    assert [(each.source, each.usable, dict(each.settings)) for each in told if each.usable] == [
        ("ina3221", True, {"bus": str(path), "address": 0x41}),
        ("ina219", True, {"bus": str(path), "address": 0x40}),
    ]
    assert len(told) == 5
    assert not [each for each in scan(Where(tmp_path, tmp_path, "4")) if each.kind == "rail"], "another bus"
    assert list(found) == [0x40, 0x41, 0x42, 0x44, 0x45]
    assert [source for source, _ in found.values()] == ["ina219", "ina3221", "", "", ""]
    assert "INA226" in found[0x42][1]
    assert "a kernel driver owns the chip at 0x44" in found[0x44][1]
    assert "register 00 is 0x3eef" in found[0x45][1]
    assert all(len(data) == 1 for _, data in adapter.log), "pointers only, no data"


def test_a_sum_is_told_where_all_chips_are_known_and_nowhere_else() -> None:
    total = Sum(2)
    total.add(0, Reading(0, 10, 5, 1))
    assert total.take() == []
    total.add(1, Reading(4, 12, 100, 2, ("saturated",)))
    assert total.take() == [Reading(4, 10, 105, 3, ("saturated",))]
    total.add(0, Reading(20, 30, 7, 1))
    total.add(1, Reading(12, 22, 200, 2))
    assert total.take() == [Reading(20, 22, 207, 3)]
    total.add(1, Reading(22, 40, 300, 2))
    assert total.take() == [Reading(22, 30, 307, 3)]


class Due:
    """A source that asks to be read again after a hundredth of its period."""

    source = "due"

    def __init__(self, flags: Callable[[int], tuple[str, ...]] = lambda now: ()) -> None:
        self.due_us = 0
        self.reads: list[int] = []
        self.enough = threading.Event()
        self._flags = flags

    def read(self, now_us: int) -> Sequence[Reading]:
        self.reads.append(now_us)
        self.due_us = now_us + 10_000
        if len(self.reads) == 20:
            self.enough.set()
        return [Reading(now_us, now_us, 1_000_000, 0, self._flags(now_us))]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Nothing was opened."""


def test_a_source_is_read_when_it_says_that_it_is_due() -> None:
    meter = Due()
    thread = MeterThread(meter, 1_000.0)
    try:
        assert meter.enough.wait(PATIENCE_S), "a period is a quarter of an hour here"
    finally:
        thread.stop()
    assert all(z - a >= 10_000 for a, z in zip(meter.reads, meter.reads[1:], strict=False))


def test_the_flags_of_readings_are_those_of_the_windows_around_them() -> None:
    begin_us = now_us()
    edge_us = begin_us + 200_000
    meter = Due(lambda t_us: ("saturated", "negative") if t_us < edge_us else ())
    settings = MeterSettings("modelled", idle_w=1.0, active_w=1.0)
    with Joules(settings, lambda settings, now: meter) as joules:
        joules.open(now_us())
        joules.mark(now_us() + 1, "compute", 1)
        joules.mark(edge_us + 50_000, "compute", 2)
        joules.mark(edge_us + 100_000, "wait", 0)
        joules.measure(1)
        joules.measure(2)
        events: list[m.Event] = []
        until_s = time.monotonic() + PATIENCE_S
        while len(events) < 2 and time.monotonic() < until_s:
            time.sleep(0.01)
            joules.drain()
            events += joules.settled()
    measured = {event.lease: event for event in events if isinstance(event, m.Measured)}
    assert measured[1].flags & ~FLAGS["unknown"] == FLAGS["saturated"] | FLAGS["negative"]
    assert measured[2].flags == 0


@pytest.mark.parametrize("source", ["ina219", "ina3221"])
def test_joules_of_a_board_come_from_a_chip_through_thread_integrator_and_ledger(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = Ina219Model(steady(1000)) if source == "ina219" else Ina3221Model({1: steady(1000)})
    (path := tmp_path / "i2c-1").touch()
    install({path: Adapter(Real(), {0x40: chip}, transfer_us=0)}, monkeypatch.setattr)
    settings = MeterSettings(source, bus=str(path), shunt_ohm=0.1)  # type: ignore[arg-type]
    opened: list[Meter | None] = []

    def remembered(settings: MeterSettings, now: int) -> Meter | None:
        opened.append(open_source(settings, now))
        return opened[0]

    with Joules(settings, remembered) as joules:
        until_s = time.monotonic() + PATIENCE_S

        def settled(ask: Callable[[], None], count: int) -> list[m.Event]:
            ask()
            events: list[m.Event] = []
            while len(events) < count and time.monotonic() < until_s:
                time.sleep(0.01)
                joules.drain()
                events += joules.settled()
            return events

        time.sleep(0.3)  # the first conversions
        begin_us = now_us()
        joules.open(begin_us)
        joules.mark(begin_us + 1, "compute", 1)
        joules.mark(begin_us + 400_001, "wait", 0)
        (event,) = settled(lambda: joules.measure(1), 1)
    assert isinstance(event, m.Measured)
    assert event.energy_uj is not None
    assert event.bound_uj is not None
    assert abs(event.energy_uj - 2_000_000) <= 2, "5 W for 0.4 s"
    assert event.source == replace(settings).source + ("/0x40" if source == "ina219" else "/ch1")
    assert event.flags & ~FLAGS["estimated"] == 0
    assert event.sampling_uj == 0, "a steady load"
    if source == "ina219":  # at either edge half a conversion of 69 ms or more, and all of it at the most
        assert 20_000 + 2 * 5 * 34_000 < event.bound_uj < 200_000 + 2 * 5 * 69_000
        assert event.flags == FLAGS["estimated"], "edges hide more than a tenth of 0.4 s"
    else:  # what lies between readings of an instant is sampling
        assert 20_000 < event.bound_uj < 200_000


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('source = "auto"', "meter.source: expected one of .*; `paceline-agent meter scan` shows what is here"),
        ('source = "replay"', '^agent.toml, line 6: meter.source = "replay" needs trace'),
        ('source = "ina3221"\nshunt_ohm = 0.1\nrange_mv = 40', "meter.range_mv belongs to source = .ina219."),
        (
            'source = "ina3221"\nshunt_ohm = 0.1\nrails = [{name = "a", channel = 1}, {name = "a", channel = 2}]',
            "two rails have the name 'a'",
        ),
    ],
    ids=["auto", "the table is named once", "one range", "two names"],
)
def test_what_is_wrong_with_a_meter_is_said_once_and_with_what_to_do(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "agent.toml"
    head = 'key_file = "x.key"\nstate_dir = "s"\n[host]\nendpoint = "tcp://127.0.0.1:5570"\npublic_key = "host.pub"\n'
    path.write_text(f"{head}[meter]\n{lines}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=said):
        load_config(path)
