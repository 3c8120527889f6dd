# SPDX-License-Identifier: Apache-2.0
"""Traces: what a meter read, as lines of JSON, and a source that reads them again.

The first line tells schema, source and period, each further one is a reading (t0, t1 in us, power and error in uW), a
count (t, uJ), a miss (at t), or another period (us) that counts from there on. Readings are of one kind and in the
order of their time; what is shown to people cannot move their screen. A recording that was cut off ends with half a
line, which is left out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeGuard

from paceline import foreign
from paceline.talk import printable
from paceline.wire import ENERGY_FLAGS
from paceline_agent.cadence import Rhythm
from paceline_agent.metering import Pace
from paceline_agent.meters import Count, MeterError, MeterSettings, Reading
from paceline_agent.meters.sysfs import timer_us

SCHEMA = "paceline-trace-1"
PERIOD_MAX_US = (1 << 32) - 1  # 71 minutes
TIME_MAX_US = 1 << 62  # moved by any time of a running machine it still is one
FLAGS = (ENERGY_FLAGS.keys() - {"unknown", "gap", "estimated"}) | {"derived_total", "mirrored"}  # of readings


@dataclass(frozen=True)
class Miss:
    """A read that failed."""

    text: str
    t_us: int | None = field(default=None, compare=False)  # None: an older recording


@dataclass(frozen=True)
class Trace:
    """A whole recording."""

    source: str
    period_us: int
    entries: tuple[Reading | Count | Miss | Pace, ...]

    @property
    def span_us(self) -> tuple[int, int]:
        """Return the instants of the first reading and of the last one or the last miss, (0, 0) without a reading."""
        if not self.readings:
            return 0, 0
        missed_us = [entry.t_us for entry in self.entries if isinstance(entry, Miss) and entry.t_us is not None]
        return begin_of(self.readings[0]), max([end_of(self.readings[-1]), *missed_us])

    @property
    def readings(self) -> list[Reading | Count]:
        """Return what was read, in the order of its time."""
        return [entry for entry in self.entries if not isinstance(entry, Miss | Pace)]


class Recorder:
    """Writes a trace, read by read; a tap of a SampledMeter."""

    def __init__(self, file: IO[str], source: str, period_us: int, timer_us: Callable[[], int] = timer_us) -> None:
        """`timer_us`: the clock of the readings, which tells when a read failed."""
        self._file, self._timer_us = file, timer_us
        self._lock = threading.Lock()
        self.readings = self.misses = 0
        self.error: OSError | None = None  # why nothing more is written; the thread that reads goes on
        self._write({"schema": SCHEMA, "source": source, "period_us": period_us})

    def took(self, readings: Sequence[Reading | Count]) -> None:
        """Write readings down."""
        for reading in readings:
            self.readings += 1
            if isinstance(reading, Count):
                line: dict[str, object] = {"t": reading.t_us, "uj": reading.count_uj, "error": reading.error_uj}
            else:
                line = {"t0": reading.t0_us, "t1": reading.t1_us, "uw": reading.power_uw, "error": reading.error_uw}
            self._write(line | ({"flags": list(reading.flags)} if reading.flags else {}))

    def missed(self, trouble: str) -> None:
        """Write down that a read failed."""
        self.misses += 1
        self._write({"missed": trouble, "t": self._timer_us()})

    def paced(self, period_us: int) -> None:
        """Write down that what follows comes in another period."""
        self._write({"period_us": period_us})

    def _write(self, line: dict[str, object]) -> None:
        with self._lock:
            try:
                if self.error is None:
                    self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            except OSError as error:
                self.error = error


class Replay:
    """Gives the readings of a trace at the pace at which they were taken, from `now_us` on."""

    def __init__(self, settings: MeterSettings, now_us: int) -> None:
        self._path = settings.trace
        self._trace = read_trace(Path(settings.trace))
        self.source = f"replay/{self._trace.source}"
        self.rhythm = _own(self._trace.period_us)
        self._shift_us = now_us - self._trace.span_us[0]
        self._next = 0

    def read(self, now_us: int) -> list[Reading | Count]:
        """Return what is due. Raises MeterError where the recorded read failed, and once the trace is over."""
        due: list[Reading | Count] = []
        entries = self._trace.entries
        while self._next < len(entries):
            entry = entries[self._next]
            if isinstance(entry, Miss):
                if due or (entry.t_us is not None and entry.t_us + self._shift_us > now_us):
                    return due
                self._next += 1
                raise MeterError(entry.text)
            if isinstance(entry, Pace):
                self.rhythm = _own(entry.period_us)
                self._next += 1
                continue
            if end_of(entry) + self._shift_us > now_us:
                return due
            self._next += 1
            due.append(_moved(entry, self._shift_us))
        if not due:
            raise MeterError(f"{self._path} is over")
        return due

    def activity(self, t_us: int, active: bool) -> None:
        """What was, was."""

    def close(self) -> None:
        """Nothing is held open."""


def _own(period_us: int) -> Rhythm:
    return Rhythm(period_us, period_us, is_fixed=True, why="of the recording")


def read_trace(path: Path) -> Trace:
    """Read a recording. Raises MeterError with the line that is wrong."""
    try:
        text = foreign.read_text(path, foreign.MOST_RECORD_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MeterError(f"{path} cannot be read: {why}", "name a file of `paceline-agent meter record`") from None
    lines = text.split("\n")[:-1]  # what no newline ends was cut off
    head = _object(path, 1, lines[0] if lines else "")
    source, period_us = head.get("source"), head.get("period_us")
    if (
        head.get("schema") != SCHEMA
        or not _is_name(source)
        or not (_is_int(period_us) and 0 < period_us <= PERIOD_MAX_US)
    ):
        raise MeterError(
            f"{path}, line 1: expected the head of a {SCHEMA} file, with source (printable) and period_us (from 1 to"
            f" {PERIOD_MAX_US})"
        )
    return Trace(source, period_us, tuple(_entries(path, lines[1:])))


def begin_of(reading: Reading | Count) -> int:
    """Return the instant at which a reading begins."""
    return reading.t_us if isinstance(reading, Count) else reading.t0_us


def end_of(reading: Reading | Count) -> int:
    """Return the instant at which a reading ends."""
    return reading.t_us if isinstance(reading, Count) else reading.t1_us


def _entries(path: Path, lines: Sequence[str]) -> Iterator[Reading | Count | Miss | Pace]:
    last: Reading | Count | None = None
    for number, text in enumerate(lines, 2):
        entry = _entry(path, number, text)
        yield entry
        if isinstance(entry, Miss | Pace):
            continue
        if last is not None and type(entry) is not type(last):
            raise MeterError(f"{path}, line {number}: a trace has readings of power or counts of joules, never both")
        if last is not None and end_of(entry) < end_of(last):
            back_us = end_of(last) - end_of(entry)
            raise MeterError(
                f"{path}, line {number}: it ends {back_us} us before the reading above it; traces are in the order of"
                " time, one for each recording"
            )
        last = entry


def _entry(path: Path, number: int, text: str) -> Reading | Count | Miss | Pace:
    line = _object(path, number, text)
    flags = line.get("flags", [])
    numbers = {key: value for key, value in line.items() if _is_int(value) and abs(value) < 1 << 63}
    if not isinstance(flags, list) or not all(isinstance(flag, str) and flag in FLAGS for flag in flags):
        raise MeterError(f"{path}, line {number}: flags are an array, of {', '.join(sorted(FLAGS))}")
    if not all(0 <= numbers.get(key, 0) < TIME_MAX_US for key in ("t", "t0", "t1")):
        raise MeterError(f"{path}, line {number}: a time is from 0 to {TIME_MAX_US - 1} us")
    if isinstance(line.get("missed"), str):
        return Miss(printable(str(line["missed"])), numbers.get("t"))
    if 0 < numbers.get("period_us", 0) <= PERIOD_MAX_US:
        return Pace(numbers["period_us"])
    if {"t", "uj", "error"} <= numbers.keys() and min(numbers.values()) >= 0:
        return Count(numbers["t"], numbers["uj"], numbers["error"], tuple(flags))
    if {"t0", "t1", "uw", "error"} <= numbers.keys() and 0 <= numbers["t0"] <= numbers["t1"]:
        return Reading(numbers["t0"], numbers["t1"], numbers["uw"], max(0, numbers["error"]), tuple(flags))
    raise MeterError(f"{path}, line {number}: expected a reading, a count, a miss or a period, got {text[:60]!r}")


def _object(path: Path, number: int, text: str) -> dict[str, object]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise MeterError(f"{path}, line {number}: expected one JSON object, got {text[:60]!r}")
    return line


def _is_int(value: object) -> TypeGuard[int]:
    return type(value) is int


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable() and value != ""


def _moved(reading: Reading | Count, by_us: int) -> Reading | Count:
    if isinstance(reading, Count):
        return Count(reading.t_us + by_us, reading.count_uj, reading.error_uj, reading.flags)
    t0_us, t1_us = reading.t0_us + by_us, reading.t1_us + by_us
    return Reading(t0_us, t1_us, reading.power_uw, reading.error_uw, reading.flags)
