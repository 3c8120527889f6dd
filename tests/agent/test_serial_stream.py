# SPDX-License-Identifier: Apache-2.0
"""Samples of a device under a virtual clock -> joules, against a truth: wraps, losses, resets, drift and jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import Energy, EnergyIntegrator
from paceline_agent.meters import Reading
from paceline_agent.meters.serial_stream import WRAP, Kind, Sample, Stream

START_US = 9_000_000_000
PERIOD_US = 20_000
DELAY_US = 500  # the least delay, and what is declared of it
LOW_UW, HIGH_UW, HALF_US = 2_000_000, 6_000_000, 330_000


def power_uw(t_us: int) -> int:
    return HIGH_UW if t_us // HALF_US % 2 else LOW_UW


def truth_uj(t0_us: int, t1_us: int) -> float:
    def until(t_us: int) -> int:
        whole, rest = divmod(t_us, 2 * HALF_US)
        return LOW_UW * t_us + (HIGH_UW - LOW_UW) * (whole * HALF_US + max(0, rest - HALF_US))

    return (until(t1_us) - until(t0_us)) / 1e6


@dataclass(frozen=True)
class Device:
    """What a device at the end of a line says, second by second, without faults."""

    kind: Kind
    ppm: float = 0
    seed: int = 0
    jitter_us: int = 2_000
    first_t_us: int = 0
    first_sequence: int = 0

    def samples(self, count: int, begin_us: int = START_US) -> list[Sample]:
        noise = random.Random(self.seed)
        made, last_us = [], begin_us
        for number in range(count):
            t_us = begin_us + number * PERIOD_US
            passed_us = round((t_us - begin_us) * (1 + self.ppm / 1e6))
            sample = Sample(
                arrival_us=t_us + DELAY_US + round(noise.expovariate(1) * self.jitter_us),
                t_us=(self.first_t_us + passed_us) % WRAP,
                sequence=(self.first_sequence + number) % WRAP,
            )
            if self.kind == "energy":  # by the device's own clock
                sample = replace(sample, energy_nj=round(truth_uj(begin_us, t_us) * 1000 * (1 + self.ppm / 1e6)))
            elif self.kind == "mean":
                mean_uw = truth_uj(last_us, t_us) * 1e6 / (t_us - last_us) if number else 0
                sample = replace(sample, power_uw=round(mean_uw))
            else:
                sample = replace(sample, power_uw=power_uw(t_us))
            made.append(sample)
            last_us = t_us
        return made


def feed(stream: Stream, samples: list[Sample]) -> list[Reading]:
    readings = []
    for sample in samples:
        stream.add(sample)
        readings += stream.take()
    return readings


def joules(readings: list[Reading], t0_us: int, t1_us: int) -> tuple[Energy, int]:
    """Return a window of the real integrator and the bound with its edges."""
    integrator = EnergyIntegrator(PERIOD_US)
    for r in readings:
        if r.t0_us < r.t1_us:
            integrator.add_interval(r.t0_us, r.t1_us, r.power_uw, r.error_uw)
        else:
            integrator.add_point(r.t1_us, r.power_uw, r.error_uw)
    energy = integrator.window(t0_us, t1_us)
    assert energy is not None
    assert energy.energy_uj is not None
    return energy, energy.bound_uj + 2 * max(r.edge_uj for r in readings) + energy.edge_uj


# What is known -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ppm", [-300, -100, 0, 100, 300, 10_000])
@pytest.mark.parametrize("kind", ["energy", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_joules_hold_their_bound_whatever_the_devices_clock_does(kind: Kind, ppm: float, seed: int) -> None:
    samples = Device(kind, ppm, seed).samples(1500)
    readings = feed(Stream(kind, DELAY_US), samples)
    t0_us, t1_us = START_US + 5 * HALF_US, START_US + 85 * HALF_US
    energy, bound_uj = joules(readings, t0_us, t1_us)
    truth = truth_uj(t0_us, t1_us)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth) <= bound_uj
    assert bound_uj < 0.01 * truth, "a bound that says nothing would always hold"
    assert abs(energy.energy_uj - truth) < 0.001 * truth
    assert energy.flags == ()


@pytest.mark.parametrize("ppm", [-300, 100])
@pytest.mark.parametrize("seed", range(5))
def test_instants_come_to_the_truth_and_each_reading_bears_what_the_clock_may_be_off(ppm: float, seed: int) -> None:
    stream = Stream("mean", DELAY_US)
    readings = feed(stream, Device("mean", ppm, seed).samples(1500))
    assert stream.clock is not None
    truth_us = [START_US + number * PERIOD_US for number in range(1500)][-len(readings) :]
    for r, t_us in list(zip(readings, truth_us, strict=True))[-200:]:
        assert -stream.clock.spread_us - 100 <= r.t1_us - t_us <= DELAY_US + stream.clock.spread_us + 100
        assert r.error_uw >= r.power_uw * stream.clock.skew_error / 2
        assert r.edge_uj >= (HIGH_UW - LOW_UW) * (DELAY_US + stream.clock.spread_us / 2) / 1e6


def test_a_start_when_nobody_had_time_to_listen_is_made_good_bit_by_bit() -> None:
    samples = Device("energy").samples(1500)
    samples = [replace(s, arrival_us=s.arrival_us + 20_000) for s in samples[:150]] + samples[150:]
    stream = Stream("energy", DELAY_US)
    readings = feed(stream, samples)
    assert readings[100].t1_us > START_US + 101 * PERIOD_US + 15_000
    assert abs(readings[-1].t1_us - (START_US + 1499 * PERIOD_US)) < 2_000
    assert stream.clock is not None
    assert samples[-1].t_us is not None
    assert abs(readings[-1].t1_us - stream.clock.host_us(samples[0].arrival_us + samples[-1].t_us)) <= 1, "all of it"
    assert all(abs(r.t1_us - r.t0_us - PERIOD_US) < 0.03 * PERIOD_US for r in readings)


@pytest.mark.parametrize("ppm", [-100, 100])
def test_points_come_to_the_truth_within_what_a_period_can_hide(ppm: float) -> None:
    readings = feed(Stream("point", DELAY_US), Device("point", ppm).samples(1500))
    t0_us, t1_us = START_US + 5 * HALF_US, START_US + 85 * HALF_US
    energy, bound_uj = joules(readings, t0_us, t1_us)
    hidden_uj = 80 * (HIGH_UW - LOW_UW) * PERIOD_US / 2 / 1e6  # each edge of the load lies between two points
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(t0_us, t1_us)) <= bound_uj + hidden_uj


@given(st.sampled_from(["energy", "mean", "point"]), st.integers(0, WRAP - 1), st.integers(0, WRAP - 1))
def test_wraps_of_time_and_sequence_change_nothing(kind: Kind, first_t_us: int, first_sequence: int) -> None:
    plain = feed(Stream(kind, DELAY_US), Device(kind).samples(150))
    there = Device(kind, first_t_us=first_t_us, first_sequence=first_sequence)
    assert feed(Stream(kind, DELAY_US), there.samples(150)) == plain
    for turn in (1, 60, 149):  # a wrap at each of these
        device = Device(kind, first_t_us=WRAP - turn * PERIOD_US + 7, first_sequence=WRAP - turn)
        assert feed(Stream(kind, DELAY_US), device.samples(150)) == plain
    assert plain


def test_an_hour_and_more_of_silence_is_unwrapped_by_our_own_clock() -> None:
    """The device's microseconds have gone round once, nobody saw it."""
    device = Device("energy", jitter_us=0)
    before = device.samples(150)
    away_us = 5_000_000_000
    after = [
        replace(s, arrival_us=s.arrival_us + away_us, t_us=(s.t_us + away_us) % WRAP, sequence=s.sequence + 250_000)
        for s in device.samples(300)[150:]
        if s.t_us is not None and s.sequence is not None
    ]
    stream = Stream("energy", DELAY_US)
    readings = feed(stream, before + after)
    long = next(r for r in readings if r.t1_us - r.t0_us > 1_000_000)
    assert abs(long.t1_us - long.t0_us - away_us - PERIOD_US) <= 1
    assert stream.health.resets == 0


@given(st.data())
def test_readings_are_in_order_and_never_overlap(data: st.DataObject) -> None:
    kind: Kind = data.draw(st.sampled_from(["energy", "mean", "point"]))
    stream, samples = Stream(kind, DELAY_US), []
    arrival_us = START_US
    for _ in range(data.draw(st.integers(0, 60))):
        arrival_us += data.draw(st.integers(0, 3_000_000))
        values = data.draw(st.integers(-(2**40), 2**40))
        samples.append(
            Sample(
                arrival_us,
                None if kind == "energy" else values,
                values if kind == "energy" else None,
                t_us=data.draw(st.integers(0, WRAP - 1) | st.just(arrival_us % WRAP)),
                sequence=data.draw(st.none() | st.integers(0, WRAP - 1) | st.integers(0, 5)),
            )
        )
    readings = feed(stream, samples)
    stream.reset()
    readings += stream.take()
    assert all(r.t0_us <= r.t1_us for r in readings)
    assert all(a.t1_us <= b.t0_us and a.t1_us < b.t1_us for a, b in pairwise(readings))


# What is not -------------------------------------------------------------------------------------------------------


def test_lost_counters_lose_no_joule() -> None:
    samples = Device("energy", 100).samples(1000)
    kept = [s for n, s in enumerate(samples) if n % 50 < 2 or n % 7]
    stream = Stream("energy", DELAY_US)
    readings = feed(stream, kept)
    t0_us, t1_us = START_US + 2 * HALF_US, START_US + 56 * HALF_US
    energy, bound_uj = joules(readings, t0_us, t1_us)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(t0_us, t1_us)) <= bound_uj
    assert abs(energy.energy_uj - truth_uj(t0_us, t1_us)) < 0.003 * truth_uj(t0_us, t1_us)
    assert stream.health.lost == len(samples) - len(kept)


@pytest.mark.parametrize("kind", ["mean", "point"])
def test_lost_powers_are_a_hole_that_the_bound_covers(kind: Kind) -> None:
    samples = Device(kind, 0, 3).samples(400)
    stream = Stream(kind, DELAY_US)
    readings = feed(stream, samples[:200] + samples[230:])
    assert stream.health.lost == 30
    edge_us = samples[199].arrival_us
    hole = next(b for a, b in pairwise(readings) if b.t0_us - a.t1_us > 25 * PERIOD_US)
    assert hole.t0_us > edge_us, "nothing is said of what was lost"
    assert hole.error_uw >= HIGH_UW - LOW_UW
    after = readings[readings.index(hole) + 1]
    assert after.error_uw < 100_000, "one reading bears it, the next is as good as ever"
    t0_us, t1_us = START_US + 2 * HALF_US, START_US + 20 * HALF_US
    energy, bound_uj = joules(readings, t0_us, t1_us)
    assert energy.flags == ("gap",)
    assert energy.energy_uj is not None
    hidden_uj = 20 * (HIGH_UW - LOW_UW) * PERIOD_US / 1e6 if kind == "point" else 0
    assert abs(energy.energy_uj - truth_uj(t0_us, t1_us)) <= bound_uj + hidden_uj


def test_a_mean_after_a_loss_is_the_base_of_the_next_one() -> None:
    samples = Device("mean", jitter_us=0).samples(300)
    readings = feed(Stream("mean", DELAY_US), samples[:200] + samples[201:])
    hole = [(a.t1_us, b.t0_us) for a, b in pairwise(readings) if a.t1_us < b.t0_us]
    assert [end - begin for begin, end in hole] == [2 * PERIOD_US]


def test_what_comes_twice_counts_once() -> None:
    samples = Device("energy").samples(200)
    doubled = [s for each in samples for s in (each, each)]
    stream = Stream("energy", DELAY_US)
    assert feed(stream, doubled) == feed(Stream("energy", DELAY_US), samples)
    assert stream.health.doubled == 200


def test_a_device_that_began_anew_adds_nothing_of_its_own() -> None:
    before = Device("energy").samples(200)
    after = Device("energy", seed=2).samples(200, START_US + 300 * PERIOD_US)
    stream = Stream("energy", DELAY_US)
    readings = feed(stream, before)
    stream.reset()
    readings += stream.take() + feed(stream, after)
    assert stream.health.resets == 1
    holes = [(a, b) for a, b in pairwise(readings) if a.t1_us < b.t0_us]
    assert len(holes) == 1
    assert abs(holes[0][1].t0_us - holes[0][0].t1_us - 101 * PERIOD_US) < 1_000
    assert holes[0][1].error_uw >= HIGH_UW - LOW_UW, "flagged in the bound"
    t0_us, t1_us = START_US + HALF_US, START_US + 24 * HALF_US
    energy, bound_uj = joules(readings, t0_us, t1_us)
    assert "gap" in energy.flags
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(t0_us, t1_us)) <= bound_uj


def test_a_reset_that_nobody_announced_is_seen_by_sequence_and_by_time() -> None:
    before = Device("energy", first_sequence=500, first_t_us=77_000_000).samples(200)
    on_us = 77_000_000 + 220 * PERIOD_US
    for first_sequence, first_t_us in ((0, on_us), (720, 0), (720, on_us + 60_000_000)):
        device = Device("energy", first_sequence=first_sequence, first_t_us=first_t_us)
        stream = Stream("energy", DELAY_US)
        readings = feed(stream, before + device.samples(200, START_US + 220 * PERIOD_US))
        assert stream.health.resets == 1
        assert stream.health.lost < 100
        assert all(LOW_UW - 1 <= r.power_uw <= HIGH_UW + 1 for r in readings)
        assert abs(readings[-1].t1_us - (START_US + 419 * PERIOD_US)) < 5_000


def test_a_stale_sample_is_no_reading_and_not_lost() -> None:
    samples = Device("mean", jitter_us=0).samples(300)
    stream = Stream("mean", DELAY_US)
    readings = feed(stream, samples[:200])
    stream.skip(samples[200].sequence)
    readings += feed(stream, samples[201:])
    assert (stream.health.stale, stream.health.lost) == (1, 0)
    assert len([1 for a, b in pairwise(readings) if a.t1_us < b.t0_us]) == 1


def test_a_counter_that_jumps_beyond_belief_is_no_reading() -> None:
    samples = Device("energy").samples(300)
    samples = samples[:200] + [replace(s, energy_nj=(s.energy_nj or 0) + 10**15) for s in samples[200:]]
    stream = Stream("energy", DELAY_US)
    assert max(r.power_uw for r in feed(stream, samples)) <= HIGH_UW + 1
    assert stream.health.stale == 1


# Without a device's time ---------------------------------------------------------------------------------------------


def test_without_device_time_readings_stand_where_they_arrive() -> None:
    samples = [replace(s, t_us=None, sequence=None) for s in Device("point").samples(100)]
    readings = feed(Stream("point", DELAY_US), samples)
    assert [r.t1_us for r in readings] == sorted({s.arrival_us for s in samples})[: len(readings)]
    assert len(readings) >= 99


def test_a_counter_without_device_time_still_adds_up_exactly() -> None:
    samples = [replace(s, t_us=None, sequence=None) for s in Device("energy").samples(200)]
    readings = feed(Stream("energy", DELAY_US), samples)
    total_uj = sum(r.power_uw * (r.t1_us - r.t0_us) for r in readings) / 1e6
    assert abs(total_uj - (samples[-1].energy_nj or 0) / 1000) < 10


def test_a_counter_that_falls_back_began_anew() -> None:
    samples = [replace(s, t_us=None, sequence=None) for s in Device("energy").samples(200)]
    again = [replace(s, arrival_us=s.arrival_us + 200 * PERIOD_US) for s in samples]
    stream = Stream("energy", DELAY_US)
    readings = feed(stream, samples + again)
    assert stream.health.resets == 1
    assert min(r.power_uw for r in readings) >= 0
