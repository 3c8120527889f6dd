# SPDX-License-Identifier: Apache-2.0
"""What `paceline-agent meter` does: looks for sensors, and shows, records, replays and compares what they read."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from paceline import toml
from paceline.errors import StorageError
from paceline.talk import Talk
from paceline_agent import meter_choice
from paceline_agent.cadence import Cadence, rhythm_of
from paceline_agent.comparing import compare
from paceline_agent.frozen import watcher
from paceline_agent.measuring import Measurement, Measuring
from paceline_agent.metering import Pace
from paceline_agent.meters import SYSFS, MeterError, open_source
from paceline_agent.meters.findings import Finding, Where
from paceline_agent.meters.findings import scan as ask
from paceline_agent.meters.rail import Rail
from paceline_agent.meters.replay import Miss, Recorder, read_trace
from paceline_agent.probing import Watched, doubts
from paceline_agent.rail_joules import RailJoules
from paceline_agent.sampled import MeterWindow, SampledMeter, opened
from paceline_agent.sieve import Sieve

KERNELS = ("hwmon", "power_supply", "rapl")  # sources that look below sysfs_root


def scan(arguments: argparse.Namespace, talk: Talk) -> int:
    """Show all findings; status 7 when no meter can be used."""
    rooted = {} if arguments.sysfs_root is None else {"sysfs_root": str(arguments.sysfs_root.absolute())}
    found = ask(Where(arguments.sysfs_root or Path(SYSFS), i2c_bus=arguments.i2c_bus, listen=True))
    found = [_with(each, rooted) for each in found]
    if arguments.json:
        print(json.dumps({"schema": "paceline-scan-1", "findings": [_plain(finding) for finding in found]}, indent=1))
    else:
        print("\n".join(line for finding in found for line in _lines(finding)))
    if any(finding.usable and finding.kind in ("meter", "rail") for finding in found):
        return 0
    talk.error("no meter is usable here; each line above says why, and what to do", event="meter")
    return MeterError.exit_code


def watch(arguments: argparse.Namespace, talk: Talk) -> int:
    """Show rails and the window so far, until told to stop."""
    with ExitStack() as life:
        stop = life.enter_context(_until(arguments.seconds))
        tally = RailJoules()
        meter = life.enter_context(opened(meter_choice.first(arguments), {}, [tally]))
        tally.meter = meter
        window = meter.window()
        table = _Table()
        with window:
            tally.begin()
            rhythm = ""
            while not stop(arguments.every):
                if said := meter.trouble or meter.doubt:
                    talk.warning(f"meter: {said}", event="meter")
                for text in meter.said():
                    talk.info(f"the meter says: {text}", event="meter")
                if rhythm != (rhythm := _rhythm(meter)):
                    talk.info(f"{meter.source}: {rhythm}", event="period")
                if arguments.json:
                    plain = _plain_rails(meter.rails(), tally.joules()) | window.so_far().plain() | _plain_rhythm(meter)
                    _print_json("paceline-watch-1", plain)
                else:
                    table.show(meter.rails(), tally.joules(), window.so_far())
        _show_result(window.result, arguments.json)
    return 0


def record(arguments: argparse.Namespace, talk: Talk) -> int:
    """Write a trace until told to stop."""
    settings = meter_choice.first(arguments)
    with ExitStack() as life:
        stop = life.enter_context(_until(arguments.seconds))
        source = open_source(settings, time.monotonic_ns() // 1000)
        if source is None:
            raise MeterError('meter.source = "none" reads nothing', "name a sensor with --source")
        try:
            file = arguments.file.open("x", encoding="utf-8", buffering=1)
        except OSError as error:
            source.close()
            raise StorageError(f"{arguments.file} cannot be written: {error.strerror}; name a new file") from None
        life.callback(_close, file)
        set_us = None if settings.period_ms is None else settings.period_ms * 1000
        recorder = Recorder(file, source.source, Cadence(rhythm_of(source), set_us).period_us)
        if recorder.error is not None:  # not even the head fits: a file that nobody can replay would be in the way
            source.close()
            arguments.file.unlink(missing_ok=True)
            raise StorageError(f"{arguments.file} cannot be written: {recorder.error.strerror}; nothing is left of it")
        meter = life.enter_context(SampledMeter(source, settings, [recorder]))
        with meter.window() as window:
            while not stop(1.0) and recorder.error is None:
                if said := meter.trouble or meter.doubt:
                    talk.warning(f"meter: {said}", event="meter")
        if recorder.error is not None:
            raise StorageError(f"{arguments.file} cannot be written: {recorder.error.strerror}; it ends before that")
        _show_result(window.result, arguments.json)
    talk.info(f"{arguments.file}: {recorder.readings} readings, {recorder.misses} missed", event="recorded")
    return 0


def replay(arguments: argparse.Namespace, talk: Talk) -> int:
    """Integrate a trace."""
    trace = read_trace(arguments.file)
    first_us, last_us = trace.span_us
    if first_us == last_us:
        count, missed = len(trace.readings), sum(isinstance(entry, Miss) for entry in trace.entries)
        what = "no readings" if not count else "readings of one instant only"
        raise MeterError(f"{arguments.file} has {what} ({missed} missed), so its joules are unknown", "record anew")
    begin_us = first_us + round(arguments.begin * 1e6)
    end_us = last_us if arguments.end is None else first_us + round(arguments.end * 1e6)
    if begin_us >= min(end_us, last_us):
        raise MeterError(
            f"{arguments.file} has {(last_us - first_us) / 1e6:g} s, and --begin must lie before that and before --end"
        )
    measuring = Measuring(f"replay/{trace.source}", trace.period_us)
    sieve, frozen = Sieve(), watcher("replay", trace.source)
    window = measuring.open(begin_us)
    measuring.end(window, end_us)
    for entry in trace.entries:
        if isinstance(entry, Miss):
            measuring.miss()
        elif isinstance(entry, Pace):
            measuring.set_period(entry.period_us)
        else:
            good, faults = sieve.take([entry])
            for reading in good:
                measuring.add(reading if frozen is None else frozen.flagged(reading, 0))
            for fault in faults:
                measuring.miss()
                talk.warning(f"{arguments.file}: a reading is left out: {fault}", event="meter")
    measuring.give_up(window)
    _show_result(measuring.result(window), arguments.json)
    return 0


def selftest(arguments: argparse.Namespace, talk: Talk) -> int:
    """Compare two meters over one window."""
    with ExitStack() as life:
        stop = life.enter_context(_until(arguments.seconds))
        asked = [meter_choice.first(arguments)]
        if (other := meter_choice.second(arguments)) is not None:
            asked.append(other)
        watched = [Watched() for _ in asked]
        meters = [life.enter_context(opened(settings, {}, [tap])) for settings, tap in zip(asked, watched, strict=True)]
        if asked[1:] == asked[:1]:
            raise MeterError(
                f"both sensors are the same {meters[0].source}, and a sensor agrees with itself whatever it shows",
                "name another one with --against, or another rail with --against-rail",
            )
        for meter, tap in zip(meters, watched, strict=True):
            tap.meter = meter
        windows: list[MeterWindow] = []
        with ExitStack() as measured:
            windows += [measured.enter_context(meter.window()) for meter in meters]
            stop(arguments.seconds)
        results = [window.result for window in windows]
        doubted = doubts(watched)
        rhythms = [_plain_rhythm(meter) for meter in meters]
    for source, doubt in doubted.items():
        talk.warning(f"{source}: {doubt}", event="frozen")
    verdict = None
    if not doubted or all(result.energy_uj is not None for result in results):
        verdict = compare(results[0], arguments.known_w or results[1], arguments.within)
    is_ok = verdict is not None and verdict.is_ok and not doubted
    if arguments.json:
        shown = [result.plain() | rhythm for result, rhythm in zip(results, rhythms, strict=True)]
        judged = {} if verdict is None else verdict.plain()
        _print_json("paceline-selftest-1", {"meters": shown, "frozen": doubted} | judged | {"ok": is_ok})
    else:
        for result in results:
            _show_result(result, False)
        if verdict is not None:
            print(verdict)
    return 0 if is_ok else MeterError.exit_code


def _close(file: IO[str]) -> None:
    """Close a file each line of which is on its way already; that it could not be written has been told."""
    with suppress(OSError):
        file.close()


@contextmanager
def _until(seconds: float | None) -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for so long, and returns whether it is time to end: a signal, or the length.

    The length counts from its first call: some meters need seconds for their first reading.
    """
    ending = threading.Event()
    end_s: float | None = None

    def stop(wait_s: float) -> bool:
        nonlocal end_s
        if seconds is not None and end_s is None:
            end_s = time.monotonic() + seconds
        left_s = wait_s if end_s is None else min(wait_s, max(0.0, end_s - time.monotonic()))
        return ending.wait(left_s) or (end_s is not None and time.monotonic() >= end_s)

    before = {number: signal.signal(number, lambda *_: ending.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lines(finding: Finding) -> Iterator[str]:
    mark = "yes" if finding.usable else "no"
    about = finding.about
    if re.match(rf"{re.escape(finding.name)}[: ]", about):  # its name stands before it already
        about = about.removeprefix(finding.name).removeprefix(":").strip()
    yield f"{finding.kind:6} {finding.source:13} {mark:4} {finding.name}: {about}"
    if finding.todo:
        yield f"{'':26}{finding.todo}"
    if finding.usable and finding.kind in ("meter", "rail"):
        keys = {"source": finding.source, **finding.settings}
        yield from (
            f"{'':26}{line}" for line in ("[meter]", *(f"{key} = {toml.inline(value)}" for key, value in keys.items()))
        )


def _with(finding: Finding, keys: Mapping[str, object]) -> Finding:
    """Return a finding that can be used where it was found."""
    if not finding.usable or finding.source not in KERNELS:
        return finding
    return dataclasses.replace(finding, settings={**finding.settings, **keys})


def _plain(finding: Finding) -> dict[str, object]:
    plain = dataclasses.asdict(finding)
    if finding.usable and finding.kind in ("meter", "rail"):
        plain["settings"] = {"source": finding.source, **finding.settings}
    return plain


class _Table:
    """Rails and the whole; on a terminal each picture takes the place of the one before."""

    def __init__(self) -> None:
        self._height = 0

    def show(self, rails: Sequence[Rail], joules: Mapping[str, float], so_far: Measurement) -> None:
        """Print the next picture."""
        if self._height and sys.stdout.isatty():
            print(f"\x1b[{self._height}A\x1b[J", end="")
        rows = [f"{'':24}{'volts':>10}{'amps':>10}{'watts':>10}{'joules':>12}{'coverage':>10}"]
        if self._height and not sys.stdout.isatty():
            rows = []
        for rail in rails:
            values = (rail.voltage_uv, rail.current_ua, rail.power_uw)
            cells = "".join(f"{_milli(value):>10}" for value in values)
            rows.append(f"{rail.name[:23]:24}{cells}{_number(joules.get(rail.name)):>12}")
        rows.append(
            f"{so_far.source[-23:]:24}{'':20}{_number(so_far.power_w):>10}{_number(so_far.energy_j):>12}"
            f"{so_far.coverage * 100:>9.1f}%"
        )
        print("\n".join(rows), flush=True)
        self._height = len(rows)


def _show_result(result: Measurement, as_json: bool) -> None:
    if as_json:
        _print_json("paceline-measurement-1", result.plain())
        return
    if result.energy_j is None:
        energy = "energy unknown"
    else:
        sampling = "unknown" if result.sampling_j is None else f"+-{result.sampling_j:.3f} J"
        energy = (
            f"{result.energy_j:.3f} J, {_number(result.power_w)} W; instrument at most +-{result.bound_j:.3f} J,"
            f" sampling {sampling}"
        )
    print(
        f"{result.source} ({result.provenance}): {energy}; {result.seconds:.3f} s,"
        f" coverage {result.coverage * 100:.1f} %, longest gap {result.longest_gap_us / 1e6:.3f} s,"
        f" {result.readings} readings, {result.missed} missed"
        + (f"; {', '.join(result.flags)}" if result.flags else "")
    )


def _plain_rails(rails: Sequence[Rail], joules: Mapping[str, float]) -> dict[str, object]:
    return {
        "rails": [
            {
                "name": rail.name, "volts": _si(rail.voltage_uv), "amps": _si(rail.current_ua),
                "watts": _si(rail.power_uw), "joules": joules.get(rail.name),
            }
            for rail in rails
        ]
    }  # fmt: skip


def _rhythm(meter: SampledMeter) -> str:
    return f"a reading each {meter.period_us / 1000:g} ms ({meter.rhythm})"


def _plain_rhythm(meter: SampledMeter) -> dict[str, object]:
    return {"period_s": meter.period_us / 1e6, "period_why": meter.rhythm}


def _print_json(schema: str, plain: dict[str, object]) -> None:
    print(json.dumps({"schema": schema, **plain}), flush=True)


def _si(micro: int | None) -> float | None:
    return None if micro is None else micro / 1e6


def _milli(micro: int | None) -> str:
    return "-" if micro is None else f"{micro / 1e6:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
