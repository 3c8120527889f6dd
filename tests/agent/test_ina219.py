# SPDX-License-Identifier: Apache-2.0
"""INA219 through real smbus2 against a register model that converts: joules, bounds, and each fault by its kind."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.energy import EnergyIntegrator
from paceline_agent.meters import MeterError, MeterSettings, RailSettings, Reading
from paceline_agent.meters.bus import I2cBus
from paceline_agent.meters.ina219 import Ina219

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.i2c_models import Adapter, Clock, Ina219Model, Load, install, steady

CYCLE_US = 68_100 + 532
PLAIN = MeterSettings("ina219", shunt_ohm=0.1)


class Bench:
    """A bus with chips, and the meter that reads them, in virtual time."""

    def __init__(self, folder: Path, patch: Callable[..., None], *chips: Ina219Model) -> None:
        self.clock = Clock()
        self.chips = chips or (Ina219Model(steady(1000)),)
        self.adapter = Adapter(self.clock, {0x40 + k: chip for k, chip in enumerate(self.chips)})
        self.path = folder / "i2c-7"
        self.path.touch()
        install({self.path: self.adapter}, patch)
        self.trouble: list[str] = []

    def meter(self, settings: MeterSettings = PLAIN) -> Ina219:
        return Ina219(settings, self.clock.now_us, I2cBus(str(self.path), self.clock))

    def run(self, meter: Ina219, seconds: float) -> list[Reading]:
        """Read as the meter's thread does: when something is due, and once a period while there is trouble."""
        readings: list[Reading] = []
        end_us = self.clock.now_us + round(seconds * 1e6)
        while self.clock.now_us < end_us:
            try:
                readings += meter.read(self.clock.now_us)
            except MeterError as error:
                self.trouble.append(str(error))
                self.clock.now_us += 100_000
            else:
                self.clock.now_us = max(self.clock.now_us + 500, min(meter.due_us, self.clock.now_us + 100_000))
        return readings


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    return lambda *chips: Bench(tmp_path, monkeypatch.setattr, *chips)


def integrated(readings: list[Reading]) -> EnergyIntegrator:
    e = EnergyIntegrator(100_000)
    for reading in readings:
        e.add_interval(reading.t0_us, reading.t1_us, reading.power_uw, reading.error_uw)
    return e


def test_it_converts_for_energy_and_says_so(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    assert b.chips[0].config == 0x39FF, "32 V, +-320 mV, bus 12 bits, shunt 128 samples, both continuously"
    assert meter.duty == pytest.approx(0.992, abs=1e-3)
    assert meter.source == "ina219/0x40"
    assert (0x40, bytes([0x00, 0x39, 0xFF])) in b.adapter.log, "high byte first"
    assert [register for register, _ in b.chips[0].writes] == [0], "nothing but the configuration is written"


@pytest.mark.parametrize("milliamps", [0, 120, 1000, 3100, -160])
def test_a_steady_load_is_told_as_it_is(bench: Callable[..., Bench], milliamps: int) -> None:
    b = bench(Ina219Model(steady(milliamps)))
    readings = b.run(b.meter(), 2.0)
    assert {reading.power_uw for reading in readings} == {milliamps * 5_000}
    assert {reading.flags for reading in readings} == {("negative",) if milliamps < 0 else ()}


def test_every_conversion_is_told_once_and_they_follow_each_other(bench: Callable[..., Bench]) -> None:
    b = bench()
    readings = b.run(b.meter(), 10.0)
    conversions = b.chips[0].ended(b.clock.now_us)
    assert conversions - 1 <= len(readings) <= conversions
    model = b.chips[0]
    for number, reading in enumerate(readings[3:], 4):  # the first ends are not exact yet
        assert abs(reading.t1_us - (model.began_us + number * CYCLE_US)) <= 1_500, number
    assert all(a.t1_us == z.t0_us for a, z in pairwise(readings[3:]))


@pytest.mark.parametrize("speed", [Fraction(95, 100), Fraction(1), Fraction(109, 100)], ids=str)
def test_joules_of_a_stepped_load_are_true_whatever_the_clock_of_the_chip(
    bench: Callable[..., Bench], speed: Fraction
) -> None:
    load = Load(tuple((k * 700_000, (400_000, 1_700_000, 900_000)[k % 3]) for k in range(40)))
    b = bench(Ina219Model(load, speed=speed))
    e = integrated(b.run(b.meter(), 12.0))
    window = e.window(3_000_000, 12_000_000)
    assert window is not None
    assert window.energy_uj is not None
    truth = load.energy_uj(3_000_000, 12_000_000)
    assert window.coverage == 1.0
    assert abs(window.energy_uj - truth) <= window.bound_uj + window.edge_uj
    assert abs(window.energy_uj - truth) <= truth / 200


def test_bursts_that_are_shorter_than_a_conversion_are_counted(bench: Callable[..., Bench]) -> None:
    steps = [(k * 23_500, (1_600_000, 800_000)[k % 2]) for k in range(600)]
    b = bench(Ina219Model(Load(tuple(steps))))
    e = integrated(b.run(b.meter(), 12.0))
    window = e.window(2_000_000, 12_000_000)
    assert window is not None
    assert window.energy_uj is not None
    truth = b.chips[0].load.energy_uj(2_000_000, 12_000_000)
    assert abs(window.energy_uj - truth) <= truth / 200


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    milliamps=st.integers(-2900, 2900),
    bus_mv=st.integers(3000, 25_000),
    offset_uv=st.integers(-200, 200),
    gain=st.fractions(Fraction(99, 100), Fraction(101, 100), max_denominator=1000),
    bus_gain=st.fractions(Fraction(99, 100), Fraction(101, 100), max_denominator=1000),
    resistor=st.fractions(Fraction(99, 100), Fraction(101, 100), max_denominator=1000),
)
def test_the_bound_holds_for_any_chip_and_resistor_within_their_specifications(
    tmp_path: Path, milliamps: int, bus_mv: int, offset_uv: int, gain: Fraction, bus_gain: Fraction, resistor: Fraction
) -> None:
    load = steady(milliamps, bus_mv)
    chip = Ina219Model(load, wrong=(offset_uv, gain, bus_gain), true_uohm=round(100_000 * resistor))
    with pytest.MonkeyPatch.context() as patch:
        b = Bench(tmp_path, patch.setattr, chip)
        reading = b.run(b.meter(), 0.3)[-1]
    true_uw = milliamps * bus_mv
    assert abs(reading.power_uw - true_uw) <= reading.error_uw
    assert reading.error_uw <= abs(true_uw) * 4 // 100 + 2_600 * bus_mv // 1000 * 1000 + 20_000, "and is not idle talk"


@pytest.mark.parametrize(("range_mv", "offset_uv"), [(40, 106), (80, 131), (160, 171), (320, 241)])
def test_the_bound_is_reached_where_all_is_at_its_worst(
    bench: Callable[..., Bench], range_mv: int, offset_uv: int
) -> None:
    """Offset, its drift and half a step of the converter, but for the 5 uV of the model's own rounding."""
    shares = []
    for milliamps in (20, 33, 47, 153, 389):
        wrong = (-offset_uv, Fraction(99, 100), Fraction(99, 100))
        b = bench(Ina219Model(steady(milliamps, 5_003), wrong=wrong, true_uohm=99_000))
        reading = b.run(b.meter(MeterSettings("ina219", shunt_ohm=0.1, range_mv=range_mv)), 0.2)[-1]  # type: ignore[arg-type]
        shares.append((milliamps * 5_003 - reading.power_uw) / reading.error_uw)
    assert 0.9 < max(shares) <= 1.0


@pytest.mark.parametrize(
    ("range_mv", "config", "full_ma"), [(40, 0x21FF, 400), (80, 0x29FF, 800), (160, 0x31FF, 1600), (320, 0x39FF, 3200)]
)
def test_a_shunt_at_full_scale_is_flagged_as_more_than_is_told(
    bench: Callable[..., Bench], range_mv: int, config: int, full_ma: int
) -> None:
    b = bench(Ina219Model(steady(3500)))
    readings = b.run(b.meter(MeterSettings("ina219", shunt_ohm=0.1, range_mv=range_mv)), 0.5)  # type: ignore[arg-type]
    assert b.chips[0].config == config
    assert {(reading.power_uw, reading.flags) for reading in readings} == {(full_ma * 5_000, ("saturated",))}


def test_an_overflow_of_the_chips_arithmetic_is_flagged_and_voids_nothing(bench: Callable[..., Bench]) -> None:
    b = bench(Ina219Model(steady(200), overflow=True))
    readings = b.run(b.meter(), 0.5)
    assert {(reading.power_uw, reading.flags) for reading in readings} == {(1_000_000, ("overflow",))}


def test_one_transfer_that_fails_is_tried_again_and_nothing_is_lost(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    for fault in (errno.EREMOTEIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENXIO, errno.EIO):
        b.adapter.faults = [fault, fault]
        assert b.run(meter, 0.3)
    assert b.trouble == []


def test_a_chip_that_is_gone_is_trouble_and_comes_back(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    b.run(meter, 0.5)
    chip = b.adapter.chips.pop(0x40)
    assert b.run(meter, 3.0) == []
    assert b.trouble[0] == (
        f"{b.path}: the chip at 0x40 cannot be read (tried 3 times): no chip answers [errno 6]; "
        "check its wiring, power and address"
    )
    b.trouble.clear()
    b.adapter.chips[0x40] = chip
    readings = b.run(meter, 1.0)
    assert b.trouble == []
    assert readings[0].t0_us >= readings[0].t1_us - 1.1 * CYCLE_US, "what passed meanwhile is nobody's power"


def test_a_brown_out_is_found_flagged_and_made_good(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    before = b.run(meter, 1.0)
    chip = b.chips[0]
    chip.reset(b.clock.now_us)
    after = b.run(meter, 1.0)
    assert chip.config == 0x39FF
    assert meter.resets == 1
    assert [reading.flags for reading in after[:2]] == [("reset",), ()]
    assert {reading.power_uw for reading in (*before, *after)} == {5_000_000}
    assert after[0].t0_us >= chip.began_us - 1_500, "no reading reaches back over the reset"


def test_a_reset_between_the_poll_and_the_values_does_not_pass(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    b.run(meter, 0.5)
    reads = 0

    def reset_before_the_shunt() -> None:
        nonlocal reads
        if b.chips[0].ended(b.clock.now_us) > b.chips[0].cleared and reads == 0:
            reads = 1
        elif reads == 1:
            b.chips[0].reset(b.clock.now_us)
            reads = 2

    b.adapter.hook = reset_before_the_shunt
    readings = b.run(meter, 1.0)
    assert reads == 2
    assert meter.resets == 1
    assert {reading.power_uw for reading in readings} == {5_000_000}, "a zero of the reset chip is no power"


def test_a_stuck_chip_is_stale_and_counts_no_more(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    b.run(meter, 0.5)
    b.chips[0].frozen_us = b.clock.now_us
    b.run(meter, 0.1)
    assert b.run(meter, 2.0) == []
    assert "has ended no conversion for 208 ms (CNVR stays 0); its last value is not counted again" in b.trouble[0]
    b.chips[0].frozen_us = None
    assert b.run(meter, 2.0)


def test_a_chip_in_power_down_is_woken_not_believed(bench: Callable[..., Bench]) -> None:
    b = bench()
    meter = b.meter()
    b.run(meter, 0.5)
    b.chips[0].write(0, 0x39F8, b.clock.now_us)
    readings = b.run(meter, 1.0)
    assert b.chips[0].config == 0x39FF
    assert readings[0].flags == ("reset",)


@pytest.mark.parametrize("wire", [b"\xff\xff", b"\x00\x00"], ids=["SDA unplugged", "SDA low"])
def test_an_open_or_shorted_bus_is_no_power(bench: Callable[..., Bench], wire: bytes) -> None:
    b = bench()
    meter = b.meter()
    b.run(meter, 0.5)
    b.adapter.stuck = wire
    assert b.run(meter, 2.0) == []
    assert f"shows 0x{wire.hex()} where 0x39ff was written" in b.trouble[-1]
    b.adapter.stuck = None
    assert b.run(meter, 1.0)[0].power_uw == 5_000_000


def test_another_chip_at_the_address_is_refused(bench: Callable[..., Bench]) -> None:
    class Other(Ina219Model):
        def read(self, register: int, now_us: int) -> bytes:
            return {0xFE: b"\x54\x49", 0xFF: b"\x32\x20"}.get(register) or super().read(register, now_us)

    b = bench(Other(steady(1)))
    with pytest.raises(MeterError, match="names itself 0x3220"):
        b.meter()
    assert b.chips[0].writes == [], "and not configured"


def test_a_chip_that_takes_no_configuration_is_refused(bench: Callable[..., Bench]) -> None:
    class Deaf(Ina219Model):
        def write(self, register: int, value: int, now_us: int) -> None:
            """An EEPROM would do worse."""

    b = bench(Deaf(steady(1)))
    with pytest.raises(MeterError, match="shows 0x399f where 0x39ff was written; expected an INA219"):
        b.meter()


def test_a_chip_of_a_kernel_driver_is_left_to_it(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.adapter.owned.add(0x40)
    with pytest.raises(MeterError, match="a kernel driver owns the chip at 0x40; set meter"):
        b.meter()
    assert b.chips[0].writes == []


@pytest.mark.parametrize("transfer_us", [120, 5_000, 30_000])
def test_joules_are_true_on_a_slow_bus(bench: Callable[..., Bench], transfer_us: int) -> None:
    load = Load(tuple((k * 900_000, (400_000, 1_700_000)[k % 2]) for k in range(40)))
    b = bench(Ina219Model(load))
    meter = b.meter()
    b.adapter.transfer_us = transfer_us
    readings = b.run(meter, 20.0)
    window = integrated(readings).window(2_700_000, 20_000_000)
    assert window is not None
    assert window.energy_uj is not None
    truth = load.energy_uj(2_700_000, 20_000_000)
    assert window.coverage == 1.0
    assert abs(window.energy_uj - truth) <= truth * (1 if transfer_us < 30_000 else 4) / 100


def test_several_chips_are_summed_where_all_have_told(bench: Callable[..., Bench]) -> None:
    loads = [Load(((0, 1_000_000), (5_000_000, 300_000))), Load(((0, 500_000), (6_000_000, 900_000)), bus_mv=12_000)]
    third = Ina219Model(steady(77))
    b = bench(Ina219Model(loads[0]), Ina219Model(loads[1], speed=Fraction(104, 100)), third)
    rails = (
        RailSettings("5V", address=0x40),
        RailSettings("12V", address=0x41),
        RailSettings("part", address=0x42, counted=False),
    )
    meter = b.meter(MeterSettings("ina219", shunt_ohm=0.1, rails=rails))
    assert meter.source == "ina219/5V+12V"
    readings = b.run(meter, 9.0)
    window = integrated(readings).window(2_000_000, 9_000_000)
    assert window is not None
    assert window.energy_uj is not None
    truth = sum((load.energy_uj(2_000_000, 9_000_000) for load in loads), Fraction(0))
    assert abs(window.energy_uj - truth) <= truth / 200
    shown = {rail.name: (rail.power_uw, rail.counted) for rail in meter.seen_rails()}
    assert shown == {"5V": (1_500_000, True), "12V": (10_800_000, True), "part": (385_000, False)}


def test_the_sum_is_unknown_while_one_of_its_chips_is(bench: Callable[..., Bench]) -> None:
    b = bench(Ina219Model(steady(1000)), Ina219Model(steady(1000)))
    rails = (RailSettings(address=0x40), RailSettings(address=0x41))
    meter = b.meter(MeterSettings("ina219", shunt_ohm=0.1, rails=rails))
    b.run(meter, 1.0)
    chip = b.adapter.chips.pop(0x41)
    b.run(meter, 0.2)
    assert b.run(meter, 2.0) == []
    b.adapter.chips[0x41] = chip
    readings = b.run(meter, 1.0)
    assert {reading.power_uw for reading in readings} == {10_000_000}
    assert readings[0].t0_us >= 4_000_000, "no joules for the time in which one was gone"
