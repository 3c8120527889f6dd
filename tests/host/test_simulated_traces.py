# SPDX-License-Identifier: Apache-2.0
"""Recordings of meters as the watts of simulated boards; written by the agent's own recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulated import alone, in_full

from paceline.errors import SettingsError
from paceline_agent.meters import Count, Reading
from paceline_agent.meters.replay import Recorder
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.results import Outcome
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.traces import Trace, Traced

PERIOD_US = 100_000
STEADY = Scenario(rounds=4, budget=3000)


def recorded(path: Path, readings: Sequence[Reading | Count], miss_after: int | None = None) -> Path:
    """Write a recording."""
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(file, "test", PERIOD_US, timer_us=lambda: 0)
        for number, reading in enumerate(readings):
            recorder.took([reading])
            if number == miss_after:
                recorder.missed("the bus is stuck")
    return path


def intervals(watts: Sequence[float]) -> list[Reading]:
    """Return readings of a converter that averages, one after the other."""
    return [Reading(7 + PERIOD_US * k, 7 + PERIOD_US * (k + 1), round(w * 1e6)) for k, w in enumerate(watts)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(0, 10**7), st.integers(1, 10**7))
def test_a_recording_goes_on_from_its_beginning(
    tmp_path_factory: pytest.TempPathFactory, watts: list[int], at_us: int, span_us: int
) -> None:
    trace = Trace(recorded(tmp_path_factory.mktemp("t") / "a", intervals(watts)))
    joules = 0.0
    at, end = at_us, at_us + span_us
    while at < end:  # piece by piece
        k = at // PERIOD_US
        until = min(end, (k + 1) * PERIOD_US)
        joules += watts[k % len(watts)] * (until - at)
        at = until
    assert trace.mean_w(at_us, span_us) == pytest.approx(joules / span_us, rel=1e-6, abs=1e-4)
    assert trace.mean_w() == pytest.approx(sum(watts) / len(watts))


@pytest.mark.parametrize(
    "readings",
    [
        [Count(0, 500), Count(PERIOD_US, 500 + 200_000), Count(3 * PERIOD_US, 500 + 1_000_000)],
        [Reading(0, 0, 0), Reading(PERIOD_US, PERIOD_US, 4_000_000), Reading(3 * PERIOD_US, 3 * PERIOD_US, 4_000_000)],
    ],
    ids=["counter", "points"],
)
def test_every_kind_of_reading_has_its_watts(readings: list[Reading | Count], tmp_path: Path) -> None:
    trace = Trace(recorded(tmp_path / "a", readings, miss_after=1))
    assert trace.mean_w(0, PERIOD_US) == pytest.approx(2.0)
    assert trace.mean_w(PERIOD_US, 2 * PERIOD_US) == pytest.approx(4.0)


@pytest.mark.parametrize("one", [in_full, alone], ids=["full", "controller only"])
def test_a_board_draws_what_was_recorded_of_it(one: Callable[[Fleet, str], Outcome], tmp_path: Path) -> None:
    """One watt more while it works, or rests, is a joule for each of those seconds."""
    found = []
    for active, idle in ((9.0, 2.0), (10.0, 2.0), (9.0, 3.0)):
        work, rest = recorded(tmp_path / "w", intervals([active])), recorded(tmp_path / "r", intervals([idle]))
        found.append(one(Fleet(replace(STEADY, trace=(Traced(0, str(work), str(rest)),)), None), "time"))
    plain = one(Fleet(STEADY, None), "time")
    assert {outcome.round_s for outcome in found} == {plain.round_s}, "watts are no seconds"
    least_j, work_j, rest_j = (outcome.joules or 0.0 for outcome in found)
    works_s, rests_s = work_j - least_j, rest_j - least_j
    assert min(works_s, rests_s) > 0.2 * plain.makespan_s
    assert works_s + rests_s == pytest.approx(plain.makespan_s, rel=0.1)


def test_a_recording_that_varies_is_met_at_its_time(tmp_path: Path) -> None:
    """A second of 20 W in each hundred: a short run meets it or does not, its mean would be 1.2 W."""
    path = recorded(tmp_path / "w", intervals([1.0] * 990 + [20.0] * 10))
    outcome = in_full(Fleet(replace(STEADY, trace=(Traced(0, str(path), str(path)),)), None), "time")
    bare = recorded(tmp_path / "n", intervals([1.0]))
    constant = in_full(Fleet(replace(STEADY, trace=(Traced(0, str(bare), str(bare)),)), None), "time")
    assert outcome.makespan_s < 30.0
    assert outcome.joules == pytest.approx(constant.joules, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "No such file"),
        ("", "line 1 is not the head of a paceline-trace-1 file"),
        ('{"schema":"paceline-trace-1","source":"x","period_us":1000}\n', "it holds no stretch of time"),
        ('{"schema":"paceline-trace-1","source":"x","period_us":1000}\n{"t0":1}\n', "line 2: no reading of a trace"),
        ('{"schema":"paceline-trace-1","source":"x","period_us":1000}\n[1]\n', "line 2: no reading of a trace"),
        (
            '{"schema":"paceline-trace-1","source":"x","period_us":1000}\n{"t0":5,"t1":9,"uw":1}\n{"t0":1,"t1":4,"uw":1}\n',
            "line 3: no reading of a trace",
        ),
    ],
)
def test_what_is_no_recording_gets_a_sentence(text: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=sentence):
        Trace(path)


def test_a_board_that_is_not_there_has_no_recording(tmp_path: Path) -> None:
    path = recorded(tmp_path / "w", intervals([1.0]))
    with pytest.raises(SettingsError, match="there are 11, from 0 on"):
        Fleet(replace(STEADY, trace=(Traced(11, str(path)),)), None)
