# SPDX-License-Identifier: Apache-2.0
"""INA3221 through real smbus2 against a register model that converts: joules, bounds, and each fault by its kind."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.energy import Energy, EnergyIntegrator
from paceline_agent.meters import MeterError, MeterSettings, RailSettings, Reading
from paceline_agent.meters.bus import I2cBus
from paceline_agent.meters.ina3221 import Ina3221

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.i2c_models import Adapter, Clock, Ina3221Model, Load, install, steady

PLAIN = MeterSettings("ina3221", shunt_ohm=0.1)
THREE = MeterSettings(
    "ina3221", shunt_ohm=0.1, rails=tuple(RailSettings(f"rail{k}", channel=k) for k in (1, 2, 3))
)  # fmt: skip
ONE_US = 8_244 + 332


class Bench:
    """A bus with a chip, and the meter that reads it, in virtual time."""

    def __init__(self, folder: Path, patch: Callable[..., None], chip: Ina3221Model) -> None:
        self.clock = Clock()
        self.chip = chip
        self.adapter = Adapter(self.clock, {0x40: chip})
        self.path = folder / "i2c-7"
        self.path.touch()
        install({self.path: self.adapter}, patch)
        self.trouble: list[str] = []

    def meter(self, settings: MeterSettings = PLAIN) -> Ina3221:
        return Ina3221(settings, self.clock.now_us, I2cBus(str(self.path), self.clock), random.Random(5))

    def run(self, meter: Ina3221, seconds: float) -> list[Reading]:
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
    def make(chip: Ina3221Model | Load) -> Bench:
        whole = chip if isinstance(chip, Ina3221Model) else Ina3221Model({1: chip})
        return Bench(tmp_path, monkeypatch.setattr, whole)

    return make


def window_of(readings: list[Reading], begin_us: int, end_us: int) -> Energy:
    e = EnergyIntegrator(100_000)
    for reading in readings:
        e.add_point(reading.t1_us, reading.power_uw, reading.error_uw)
    window = e.window(begin_us, end_us)
    assert window is not None
    return window


@pytest.mark.parametrize(
    ("rails", "config"),
    [((1,), 0x40BF), ((2,), 0x20BF), ((3, 1), 0x50BF), ((1, 2, 3), 0x70BF)],
    ids=["1", "2", "3 and 1", "all"],
)
def test_only_the_named_channels_convert(bench: Callable[..., Bench], rails: tuple[int, ...], config: int) -> None:
    chip = Ina3221Model({k: steady(100 * k) for k in (1, 2, 3)})
    b = bench(chip)
    named = tuple(RailSettings(channel=k) for k in rails)
    meter = b.meter(MeterSettings("ina3221", shunt_ohm=0.1, rails=named))
    assert chip.config == config, "AVG 1, bus 332 us, shunt 8.244 ms, both continuously"
    assert chip.writes == [(0, config)], "and nothing else is written"
    assert meter.source == "ina3221/" + "+".join(f"ch{k}" for k in rails)
    assert 0.28 < meter.duty < 0.5
    assert {reading.power_uw for reading in b.run(meter, 1.0)} == {sum(500_000 * k for k in rails)}


def test_a_part_of_another_rail_is_shown_and_not_added(bench: Callable[..., Bench]) -> None:
    b = bench(Ina3221Model({1: steady(1000), 2: steady(-200, 3304)}))
    rails = (
        RailSettings("VDD_IN", channel=1),
        RailSettings("VDD_SOC", channel=2, shunt_ohm=0.05, counted=False),
    )
    meter = b.meter(MeterSettings("ina3221", shunt_ohm=0.1, rails=rails))
    assert {reading.power_uw for reading in b.run(meter, 0.5)} == {5_000_000}
    whole, part = meter.seen_rails()
    assert (whole.name, whole.voltage_uv, whole.current_ua, whole.power_uw) == (
        "VDD_IN",
        5_000_000,
        1_000_000,
        5_000_000,
    )
    assert (part.shunt_uv, part.current_ua, part.power_uw) == (-20_000, -400_000, -1_321_600)
    assert part.flags == ("negative",)
    assert meter.source == "ina3221/VDD_IN"


def test_the_time_of_each_reading_is_the_middle_of_its_conversion(bench: Callable[..., Bench]) -> None:
    """A ramp shows time as power: the mean over a conversion is the power at its middle."""
    ramp = Load(tuple((k * 1_000, k * 600) for k in range(2_500)))  # 600 uA more each millisecond
    b = bench(ramp)
    readings = b.run(b.meter(), 1.4)
    for reading in readings[5:]:
        error_ua = reading.power_uw / 5 - (reading.t1_us / 1_000 - 0.5) * 600
        assert abs(error_ua) <= 1.0 * 600 + 200, "within a millisecond, and half a step of 0.4 mA"


def test_readings_do_not_keep_step_with_anything(bench: Callable[..., Bench]) -> None:
    b = bench(steady(1000))
    readings = b.run(b.meter(), 10.0)
    cycles = {round((z.t1_us - a.t1_us) / ONE_US) for a, z in pairwise(readings)}
    assert cycles == {2, 3, 4}


def test_a_shorter_period_reads_every_conversion(bench: Callable[..., Bench]) -> None:
    b = bench(steady(1000))
    meter = b.meter(MeterSettings("ina3221", shunt_ohm=0.1, period_ms=10))
    assert meter.duty == pytest.approx(0.961, abs=1e-3)
    readings = b.run(meter, 5.0)
    assert len(readings) >= 5.0e6 / ONE_US * 0.97


@pytest.mark.parametrize("speed", [Fraction(94, 100), Fraction(1), Fraction(108, 100)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_joules_of_a_stepped_load_are_true(bench: Callable[..., Bench], speed: Fraction, channels: int) -> None:
    loads = {
        k: Load(tuple((j * 700_000 + 50_000 * k, (400_000, 1_500_000, 900_000)[j % 3]) for j in range(60)))
        for k in range(1, channels + 1)
    }
    b = bench(Ina3221Model(loads, speed=speed))
    meter = b.meter(PLAIN if channels == 1 else THREE)
    window = window_of(b.run(meter, 22.0), 2_000_000, 21_000_000)
    truth = sum((load.energy_uj(2_000_000, 21_000_000) for load in loads.values()), Fraction(0))
    assert window.energy_uj is not None
    assert window.coverage == 1.0
    assert abs(window.energy_uj - truth) <= truth / 100


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    milliamps=st.integers(-1500, 1500),
    bus_mv=st.integers(1000, 25_000),
    offset_uv=st.integers(-80, 80),
    bus_offset_mv=st.integers(-16, 16),
    gains=st.tuples(*[st.fractions(Fraction(9945, 10_000), Fraction(10_055, 10_000), max_denominator=2000)] * 2),
    resistor=st.fractions(Fraction(99, 100), Fraction(101, 100), max_denominator=1000),
)
def test_the_bound_holds_for_any_chip_and_resistor_within_their_specifications(
    tmp_path: Path,
    milliamps: int,
    bus_mv: int,
    offset_uv: int,
    bus_offset_mv: int,
    gains: tuple[Fraction, Fraction],
    resistor: Fraction,
) -> None:
    wrong = (offset_uv, gains[0], bus_offset_mv, gains[1])
    chip = Ina3221Model({1: steady(milliamps, bus_mv)}, wrong=wrong, true_uohm=round(100_000 * resistor))
    with pytest.MonkeyPatch.context() as patch:
        b = Bench(tmp_path, patch.setattr, chip)
        reading = b.run(b.meter(), 0.1)[-1]
    true_uw = milliamps * bus_mv
    assert abs(reading.power_uw - true_uw) <= reading.error_uw
    assert reading.error_uw <= abs(true_uw) * 5 // 100 + 1_400 * bus_mv + 60_000, "and is not idle talk"


def test_the_bound_is_reached_where_all_is_at_its_worst(bench: Callable[..., Bench]) -> None:
    wrong = (-110, Fraction(9945, 10_000), -16, Fraction(9945, 10_000))  # the other 20 uV and 4 mV are rounding
    shares = []
    for milliamps in (20, 150, 153, 610, 613, 1490):
        chip = Ina3221Model({1: steady(milliamps, 5_003)}, wrong=wrong, true_uohm=99_000)
        b = bench(chip)
        reading = b.run(b.meter(), 0.1)[-1]
        shares.append((milliamps * 5_003 - reading.power_uw) / reading.error_uw)
    assert 0.97 < max(shares) <= 1.0
    assert min(shares) > 0.6


@pytest.mark.parametrize(("milliamps", "shown"), [(2000, 1_638_000), (-2000, -1_638_400)])
def test_full_scale_is_flagged_as_more_than_is_told(bench: Callable[..., Bench], milliamps: int, shown: int) -> None:
    b = bench(steady(milliamps))
    meter = b.meter()
    readings = b.run(meter, 0.5)
    assert {reading.power_uw for reading in readings} == {shown * 5}
    assert {reading.flags[0] for reading in readings} == {"saturated"}


def test_a_brown_out_is_found_flagged_and_made_good(bench: Callable[..., Bench]) -> None:
    b = bench(steady(1000))
    meter = b.meter()
    b.run(meter, 0.5)
    b.chip.reset(b.clock.now_us)
    readings = b.run(meter, 0.5)
    assert b.chip.config == 0x40BF
    assert meter.resets == 1
    assert [reading.flags for reading in readings[:2]] == [("reset",), ()]
    assert {reading.power_uw for reading in readings} == {5_000_000}


def test_a_stuck_chip_is_stale_and_counts_no_more(bench: Callable[..., Bench]) -> None:
    b = bench(steady(1000))
    meter = b.meter()
    b.run(meter, 0.5)
    b.chip.frozen_us = b.clock.now_us
    b.run(meter, 0.1)
    b.trouble.clear()
    assert b.run(meter, 2.0) == []
    assert "has ended no conversion for 28 ms (CVRF stays 0); its last value is not counted again" in b.trouble[0]
    b.chip.frozen_us = None
    assert b.run(meter, 1.0)


@pytest.mark.parametrize("identity", [(0x5449, 0x2260), (0xFFFF, 0xFFFF), (0, 0)], ids=["INA226", "open", "shorted"])
def test_another_chip_at_the_address_is_refused(bench: Callable[..., Bench], identity: tuple[int, int]) -> None:
    b = bench(Ina3221Model({1: steady(1)}, identity=identity))
    with pytest.raises(MeterError, match="is no INA3221: register 0xF"):
        b.meter()
    assert b.chip.writes == [], "and not configured"


@pytest.mark.parametrize("wire", [b"\xff\xff", b"\x00\x00"], ids=["SDA unplugged", "SDA low"])
def test_an_open_or_shorted_bus_is_no_power(bench: Callable[..., Bench], wire: bytes) -> None:
    b = bench(steady(1000))
    meter = b.meter()
    b.run(meter, 0.5)
    b.adapter.stuck = wire
    assert b.run(meter, 2.0) == []
    assert f"is no INA3221: register 0xFE is 0x{wire.hex()}" in b.trouble[-1]
    b.adapter.stuck = None
    assert b.run(meter, 1.0)[0].power_uw == 5_000_000


@pytest.mark.parametrize("transfer_us", [120, 3_000, 20_000])
def test_joules_are_true_on_a_slow_bus(bench: Callable[..., Bench], transfer_us: int) -> None:
    load = Load(tuple((k * 900_000, (400_000, 1_500_000)[k % 2]) for k in range(60)))
    b = bench(load)
    meter = b.meter()
    b.adapter.transfer_us = transfer_us
    window = window_of(b.run(meter, 30.0), 2_700_000, 27_900_000)
    truth = load.energy_uj(2_700_000, 27_900_000)
    assert window.energy_uj is not None
    assert abs(window.energy_uj - truth) <= truth * (1 if transfer_us < 20_000 else 4) / 100


@pytest.mark.parametrize(
    ("average", "shortest_round_s", "named"),
    [
        (64, None, "shorter than 110 s, and meter.shortest_round_s is not set"),
        (64, 60.0, "shorter than 110 s, and meter.shortest_round_s is 60"),
        (1024, 600.0, "memory of 8.8 s"),
    ],
)
def test_a_filter_that_would_smear_rounds_is_refused(
    bench: Callable[..., Bench], average: int, shortest_round_s: float | None, named: str
) -> None:
    b = bench(steady(1))
    chosen = MeterSettings("ina3221", shunt_ohm=0.1, average=average, shortest_round_s=shortest_round_s)
    with pytest.raises(MeterError, match=named):
        b.meter(chosen)
    assert b.adapter.transfers == 0


def test_a_filter_that_is_short_against_the_rounds_is_allowed_and_its_lag_taken_off(
    bench: Callable[..., Bench],
) -> None:
    load = Load(((0, 400_000), (8_000_000, 1_500_000), (15_000_000, 400_000)))
    b = bench(load)
    meter = b.meter(MeterSettings("ina3221", period_ms=10, shunt_ohm=0.1, average=4, shortest_round_s=7.0))
    assert b.chip.config == 0x42BF
    readings = b.run(meter, 21.5)
    windows = [(2_000_000, 8_000_000), (8_000_000, 15_000_000), (15_000_000, 22_000_000)]
    for begin_us, end_us in windows:
        energy_uj = window_of(readings, begin_us, end_us).energy_uj
        assert energy_uj is not None
        assert abs(energy_uj - load.energy_uj(begin_us, end_us)) <= load.energy_uj(begin_us, end_us) / 100
    energy_uj = window_of(readings, 2_000_000, 12_000_000).energy_uj  # around one step: only a lag would show
    assert energy_uj is not None
    assert abs(energy_uj - load.energy_uj(2_000_000, 12_000_000)) <= 5_500 * 5, "5 ms of 5.5 W; the lag is 26 ms"
