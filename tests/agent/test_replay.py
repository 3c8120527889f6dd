# SPDX-License-Identifier: Apache-2.0
"""Traces: what is written is what is read, a cut one is read up to the cut, a damaged one is refused by its line."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.energy import EnergyIntegrator
from paceline.talk import printable
from paceline_agent.joules import Joules
from paceline_agent.metering import Pace
from paceline_agent.meters import Count, MeterError, MeterSettings, Reading
from paceline_agent.meters.replay import PERIOD_MAX_US, Miss, Recorder, Replay, end_of, read_trace

INSTANTS = st.integers(0, 1 << 61)
FLAGS = st.lists(st.sampled_from(["negative", "derived_total", "mirrored"]), unique=True).map(tuple)
READINGS = st.builds(
    lambda t_us, length_us, power_uw, error_uw, flags: Reading(t_us, t_us + length_us, power_uw, error_uw, flags),
    INSTANTS, st.integers(0, 1 << 40), st.integers(-(10**11), 10**11), st.integers(0, 10**11), FLAGS,
)  # fmt: skip
COUNTS = st.builds(Count, INSTANTS, INSTANTS, INSTANTS, FLAGS)
MISSES = st.builds(Miss, st.text().map(printable))
PACES = st.builds(Pace, st.integers(1, 60_000_000))


def written(entries: list[Reading | Count | Miss | Pace]) -> str:
    file = io.StringIO()
    now_us = 0
    recorder = Recorder(file, "hwmon/ina219/ch1", 50_000, lambda: now_us)
    for entry in entries:
        now_us = end_of(entry) if isinstance(entry, Reading | Count) else now_us
        if isinstance(entry, Miss):
            recorder.missed(entry.text)
        elif isinstance(entry, Pace):
            recorder.paced(entry.period_us)
        else:
            recorder.took([entry])
    return file.getvalue()


def in_order(entries: list[Reading | Count | Miss | Pace]) -> list[Reading | Count | Miss | Pace]:
    """Leave misses and periods where they are, and let readings come as time does."""
    readings = sorted((entry for entry in entries if isinstance(entry, Reading | Count)), key=end_of)
    return [readings.pop(0) if isinstance(entry, Reading | Count) else entry for entry in entries]


def trace_at(folder: Path, *entries: Reading | Count | Miss | Pace) -> Path:
    path = folder / "load.trace"
    path.write_text(written(list(entries)), encoding="utf-8")
    return path


@given(
    entries=st.one_of(*(st.lists(st.one_of(kind, MISSES, PACES)) for kind in (READINGS, COUNTS))).map(
        lambda entries: in_order(entries)
    )
)
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Reading | Count | Miss | Pace]
) -> None:
    path = trace_at(tmp_path_factory.mktemp("trace"), *entries)
    trace = read_trace(path)
    assert (trace.source, trace.period_us, list(trace.entries)) == ("hwmon/ina219/ch1", 50_000, entries)


def test_a_trace_that_was_cut_off_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = trace_at(tmp_path, Reading(0, 0, 5), Reading(10, 10, 6))
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[:-3], encoding="utf-8")
    assert read_trace(path).entries == (Reading(0, 0, 5),)


@pytest.mark.parametrize(
    "line",
    [
        "", "[]", "nonsense", '{"t0":0,"t1":1}', '{"t0":2,"t1":1,"uw":1,"error":0}', '{"t":-1,"uj":1,"error":0}',
        '{"t":1,"uj":1.5,"error":0}', '{"t":1,"uj":true,"error":0}', '{"t":1,"uj":1,"error":0,"flags":[1]}',
        json.dumps({"t": 1 << 70, "uj": 1, "error": 0}), "[" * 5000,
        '{"t0":0,"t1":0,"uw":1,"error":0,"flags":["a\\u001b"]}', '{"t":1,"uj":1,"error":0,"flags":["weird"]}',
        '{"t":1,"uj":1,"error":0,"flags":["unknown"]}', '{"t":1,"uj":1,"error":0,"flags":[["lost"]]}',
        '{"period_us":4294967296}', '{"period_us":9223372036854775807}', '{"missed":"EIO","t":-1}',
        json.dumps({"t": 1 << 62, "uj": 1, "error": 0}),
    ],
)  # fmt: skip
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = trace_at(tmp_path, Reading(0, 0, 5))
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(MeterError, match=r"load.trace, line 3: "):
        read_trace(path)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (Reading(99, 99, 5), "it ends 101 us before the reading above it"),
        (Count(300, 5), "readings of power or counts of joules, never both"),
    ],
)
def test_readings_out_of_order_or_of_two_kinds_are_refused_by_their_line(
    tmp_path: Path, then: Reading | Count, said: str
) -> None:
    path = trace_at(tmp_path, Reading(100, 100, 5), Reading(200, 200, 5), Miss("EIO"), then)
    with pytest.raises(MeterError, match=f"load.trace, line 5: .*{said}"):
        read_trace(path)


def test_what_a_trace_shows_to_people_cannot_move_their_screen(tmp_path: Path) -> None:
    path = trace_at(tmp_path, Reading(0, 0, 5), Miss("\x1b[31mEIO\n"))
    assert read_trace(path).entries[-1] == Miss("[31mEIO")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("hwmon/ina219/ch1", "\\u001b[31mEVIL"), encoding="utf-8")
    with pytest.raises(MeterError, match=r"line 1: expected .* source \(printable\)"):
        read_trace(path)


@pytest.mark.parametrize(
    "head", ["", "{}\n", '{"schema":"paceline-trace-2","source":"x","period_us":1}\n', "\x00\n",
             '{"schema":"paceline-trace-1","source":"x","period_us":0}\n', "[" * 5000 + "\n",
             '{"schema":"paceline-trace-1","source":"x","period_us":9223372036854775807}\n'],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path: Path, head: str) -> None:
    path = tmp_path / "other"
    path.write_text(head, encoding="utf-8")
    with pytest.raises(MeterError, match="other, line 1: expected"):
        read_trace(path)
    with pytest.raises(MeterError, match="nowhere cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")


def test_a_source_replays_at_the_pace_at_which_it_was_recorded(tmp_path: Path) -> None:
    path = trace_at(
        tmp_path, Reading(1000, 1000, 5), Reading(2000, 2500, -6, 1, ("negative",)), Miss("EIO"), Reading(4000, 4000, 7)
    )
    meter = Replay(MeterSettings("replay", trace=str(path)), 500_000)
    assert meter.source == "replay/hwmon/ina219/ch1"
    assert meter.read(499_999) == []
    assert meter.read(500_000) == [Reading(500_000, 500_000, 5)]
    assert meter.read(501_499) == []
    assert meter.read(502_000) == [Reading(501_000, 501_500, -6, 1, ("negative",))]
    with pytest.raises(MeterError, match="EIO"):
        meter.read(502_500)
    assert meter.read(503_000) == [Reading(503_000, 503_000, 7)]
    with pytest.raises(MeterError, match=r"load\.trace is over"):
        meter.read(504_000)


def test_a_full_disk_ends_the_recording_and_not_the_reading() -> None:
    with suppress(OSError), open("/dev/full", "w", encoding="utf-8", buffering=1) as file:
        recorder = Recorder(file, "x", 1)
        recorder.took([Reading(0, 0, 5)])
        assert recorder.error is not None
        assert recorder.error.strerror == "No space left on device"


def test_a_replay_comes_in_the_period_of_its_recording(tmp_path: Path) -> None:
    path = trace_at(tmp_path, Reading(0, 0, 5), Pace(20_000), Reading(10, 10, 6), Reading(20, 20, 6))
    meter = Replay(MeterSettings("replay", trace=str(path)), 0)
    assert meter.rhythm.usual_us == 50_000
    assert meter.read(10) == [Reading(0, 0, 5), Reading(10, 10, 6)]
    assert meter.rhythm.usual_us == 20_000


def test_the_longest_period_of_a_trace_is_one_that_the_integrator_takes(tmp_path: Path) -> None:
    path = trace_at(tmp_path, Reading(0, 0, 5), Pace(PERIOD_MAX_US), Reading(10, 10, 6))
    path.write_text(path.read_text(encoding="utf-8").replace("50000", str(PERIOD_MAX_US), 1), encoding="utf-8")
    assert read_trace(path).entries[1] == Pace(PERIOD_MAX_US)
    with Joules(MeterSettings("replay", trace=str(path))) as joules:
        assert f"{PERIOD_MAX_US / 1000:g} ms" in joules.rhythm
    EnergyIntegrator(1).set_period(PERIOD_MAX_US)


def test_a_recording_whose_sensor_vanished_lasts_until_its_last_miss(tmp_path: Path) -> None:
    readings = [Reading(t_us, t_us, 5) for t_us in range(0, 500_001, 50_000)]
    head, *lines = written([*readings, *[Miss("gone")] * 3]).splitlines()
    lines[-3:] = [json.dumps({"missed": "gone", "t": t_us}) for t_us in (550_000, 600_000, 1_000_000)]
    path = tmp_path / "load.trace"
    path.write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    trace = read_trace(path)
    assert trace.span_us == (0, 1_000_000)
    meter = Replay(MeterSettings("replay", trace=str(path)), 0)
    assert len(meter.read(549_999)) == 11
    assert meter.read(549_999) == [], "it has not failed yet"
    for t_us in (550_000, 600_000, 1_000_000):
        assert meter.read(t_us - 1) == []
        with pytest.raises(MeterError, match="gone"):
            meter.read(t_us)
