# SPDX-License-Identifier: Apache-2.0
"""What the frames of a meter come to, under a virtual clock: quantities, units, channels, flags, instrument bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline_agent.meters import MeterSettings, Reading
from paceline_agent.meters import serial_frames as f
from paceline_agent.meters.serial_meter import Frames

START_US, PERIOD_US, COUNT = 7_000_000_000, 20_000, 150

# INA219: 4 mV and, at 0.1 ohm, 0.1 mA a count; 0.5 % and 3 mW
PAIR = f.Channel("VIN", f.PAIR, f.COUNTED, 4_000_000, 100_000, gain_ppm=5_000, offset_uw=3_000)
POWER = f.Channel("CPU", f.POWER, f.COUNTED | f.MEAN, 20_000_000)
ENERGY = f.Channel("BAT", f.ENERGY, f.COUNTED, 1_000_000)
OTHER = f.Channel("part", f.ENERGY, 0, 1_000)


def hear(
    channels: tuple[f.Channel, ...], values: Sequence[tuple[tuple[int, ...], ...]], flags: dict[int, int], *names: str
) -> tuple[Frames, list[Reading]]:
    """Let a meter say its values one period after the other, the last of them for ever."""
    speech = Frames(MeterSettings("serial", 20, port="/dev/x", channels=names), 0)
    speech.hear(START_US, f.encode(f.Ident(PERIOD_US, 258, bytes(8), "", channels)))
    for number in range(COUNT):
        raw = f.pack_values(channels, values[min(number, len(values) - 1)])
        frame = f.ReadingFrame(number, number * PERIOD_US, 2, flags.get(number, 0), len(channels), raw)
        assert speech.hear(START_US + number * PERIOD_US, f.encode(frame))
    assert speech.trouble == ""
    assert speech.stream is not None
    return speech, speech.stream.take()


def test_voltage_and_current_make_signed_power_and_its_bound() -> None:
    _, readings = hear((PAIR,), [((1250, 5000),), ((1250, -5000),)], {})
    assert {(r.power_uw, r.t0_us == r.t1_us) for r in readings} == {(2_500_000, True), (-2_500_000, True)}
    step_uw = 5_000 * 100 // 1000 + 5_000 * 400 // 1000  # 5 V by one count of current, 0.5 A by one of voltage
    instrument_uw = 2_500_000 * 5_000 // 1_000_000 + 3_000
    assert all(r.error_uw >= instrument_uw + step_uw for r in readings)
    assert readings[-1].error_uw < 1.2 * (instrument_uw + step_uw)


def test_a_mean_power_fills_the_time_since_the_reading_before() -> None:
    _, readings = hear((POWER,), [((100,),)], {})
    assert {r.power_uw for r in readings} == {2_000_000}
    assert len(readings) == COUNT - 1, "since when the first is the mean, nobody knows"
    assert sum(r.t1_us - r.t0_us for r in readings) == (COUNT - 1) * PERIOD_US


def test_energy_may_wrap() -> None:
    top = 2**63 - 1
    _, readings = hear((ENERGY,), [((top,),), ((-top - 1 + 39,),)], {})
    assert [r.power_uw for r in readings[:2]] == [2_000_000, 0]  # 40 mJ in 20 ms


def test_a_counter_that_falls_without_a_boot_was_reset_though_another_one_hides_it_in_the_sum() -> None:
    both = f.Channel("part", f.ENERGY, f.COUNTED, 1_000_000)
    values: list[tuple[tuple[int, ...], ...]] = [
        ((20 * (number if number < 50 else number - 50),), (20 * number + (10_000 if number >= 50 else 0),))
        for number in range(COUNT)
    ]
    speech, readings = hear((ENERGY, both), values, {})
    assert speech.stream is not None
    assert speech.stream.health.resets == 1
    assert {r.power_uw for r in readings} == {2_000_000}, "the step in which one fell is no energy"
    (flagged,) = [number for number, r in enumerate(readings) if r.flags]
    assert readings[flagged].flags == ("reset",)
    assert readings[flagged].t0_us - readings[flagged - 1].t1_us == pytest.approx(PERIOD_US, abs=2)


def test_the_total_is_what_counts_or_what_was_chosen() -> None:
    values: list[tuple[tuple[int, ...], ...]] = [((number * 20,), (number * 7_000,)) for number in range(COUNT)]
    assert {r.power_uw for r in hear((ENERGY, OTHER), values, {})[1]} == {1_000_000}
    assert {r.power_uw for r in hear((ENERGY, OTHER), values, {}, "part")[1]} == {350_000}
    assert {r.power_uw for r in hear((ENERGY, OTHER), values, {}, "part", "BAT")[1]} == {1_350_000}


def test_what_is_not_fresh_is_no_reading_and_what_is_at_the_end_of_the_scale_is_told() -> None:
    values = [((9999 if number == 30 else 100,),) for number in range(COUNT)]
    speech, readings = hear((POWER,), values, {30: f.STALE, 40: f.SATURATED, 41: f.SATURATED})
    assert {r.power_uw for r in readings} == {2_000_000}
    assert speech.stream is not None
    assert [(number, r.flags) for number, r in enumerate(readings) if r.flags] == [
        (29, ("stale",)), (37, ("saturated",)), (38, ("saturated",)),
    ]  # fmt: skip
    assert (speech.stream.health.stale, speech.stream.health.saturated, speech.stream.health.lost) == (1, 2, 0)


@pytest.mark.parametrize(
    ("channels", "wanted", "named"),
    [
        ((OTHER,), (), "choose of them, got []"),
        ((ENERGY, POWER), (), "of different kinds"),
        ((ENERGY, OTHER), ("BAT", "part", "BAT"), "meter.channels names BAT twice, and its joules would count twice"),
    ],
)
def test_channels_that_make_no_total_are_refused(
    channels: tuple[f.Channel, ...], wanted: tuple[str, ...], named: str
) -> None:
    speech = Frames(MeterSettings("serial", 20, port="/dev/x", channels=wanted), 0)
    speech.hear(START_US, f.encode(f.Ident(PERIOD_US, 1, bytes(8), "", channels)))
    assert named in speech.trouble


def test_a_fault_ends_with_the_next_value() -> None:
    speech, _ = hear((POWER,), [((100,),)], {})
    speech.hear(START_US, f.encode(f.Fault(4, 255, "\x1b[31m4.1 V\n")))
    assert speech.trouble == "the meter reports fault 4: [31m4.1 V"
    speech.hear(START_US, f.encode(f.Fault(4, 255, "4.1 V")))
    assert speech.trouble == "the meter reports fault 4: 4.1 V"
    frame = f.ReadingFrame(COUNT, COUNT * PERIOD_US, 2, 0, 1, f.pack_values((POWER,), ((100,),)))
    speech.hear(START_US + COUNT * PERIOD_US, f.encode(frame))
    assert speech.trouble == ""
