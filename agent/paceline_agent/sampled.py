# SPDX-License-Identifier: Apache-2.0
"""A meter that reads by itself, and windows on it: what `open_meter` returns. Loads neither torch nor numpy.

with open_meter() as meter, meter.window() as w:
    work()
print(w.energy_j, w.coverage)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from paceline.settings import load_table
from paceline_agent.cadence import Cadence, rhythm_of
from paceline_agent.frozen import STANDS_STILL, WATCHED, watcher
from paceline_agent.measuring import Measurement, Measuring, Window
from paceline_agent.metering import MeterThread, Sink
from paceline_agent.meters import INSTANT, SCATTERED, Count, Meter, MeterError, MeterSettings, Reading, open_source
from paceline_agent.meters.rail import Rail, ShowsRails

PATIENCE_S = 10.0  # for the reading before a window
EDGE_S = 0.05  # for the reading before the end of one
FORCED_S = 0.005  # between readings at its edges; counters move about once a millisecond


class SampledMeter:
    """Reads `meter` every period in a thread of its own; any number of windows, from any thread."""

    def __init__(self, meter: Meter, settings: MeterSettings, taps: Sequence[Sink] = ()) -> None:
        self.source = meter.source
        self._kind = settings.source
        self._meter = meter
        self._taps = taps
        self._changed = threading.Condition()
        set_us = None if settings.period_ms is None else settings.period_ms * 1000
        self._measuring = Measuring(meter.source, Cadence(rhythm_of(meter), set_us).period_us)
        self._frozen = watcher(settings.source, meter.source, rhythm_of(meter).update_us)
        self.doubt = ""  # why its readings are not to be trusted at present
        self._reads = 0  # good ones
        self._closed = False
        self._active = 0  # so many blocks say that this board computes
        self._process = os.getpid()
        self._thread = MeterThread(
            meter, None if set_us is None else set_us / 1e6, instant=settings.source in INSTANT,
            scattered=settings.source in SCATTERED, sink=self,
        )  # fmt: skip

    def __enter__(self) -> SampledMeter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def period_us(self) -> int:
        """Time between readings, as intended at present."""
        return self._thread.cadence.period_us

    @property
    def rhythm(self) -> str:
        """Why it is that."""
        return self._thread.cadence.why

    @property
    def trouble(self) -> str:
        """Why there are no readings at present."""
        return self._thread.trouble

    def close(self) -> None:
        """End the thread and give the sensor back; once is enough. In a forked child it does nothing: both are the
        parent's.
        """
        if not self._closed and not self.is_elsewhere:
            self._closed = True
            self._thread.stop()

    @property
    def steps(self) -> int:
        """Steps of its converter in the last reading; 0: not known."""
        return int(getattr(self._meter, "steps", 0))

    @property
    def is_watched(self) -> bool:
        """Whether this is a kind of source whose value must move with the load."""
        return self._kind in WATCHED

    def said(self) -> list[str]:
        """Return what the meter itself has said to a person since the last call."""
        return self._thread.said()

    def rails(self) -> Sequence[Rail]:
        """Return what was last seen on each rail, nothing where the source shows none."""
        return self._meter.seen_rails() if isinstance(self._meter, ShowsRails) else ()

    def window(self) -> MeterWindow:
        """Return a context manager that measures what is done inside it."""
        return MeterWindow(self)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Say that this board computes inside it: declared watts are `active_w` there. A sensor has no use for it."""
        self._compute(1)
        try:
            yield
        finally:
            self._compute(-1)

    def _compute(self, more: int) -> None:
        with self._changed:
            was, self._active = self._active > 0, self._active + more
            if was != (self._active > 0):
                self._meter.activity(_now_us(), self._active > 0)

    # Called by the thread that reads -----------------------------------------------------------------------------

    def took(self, readings: Sequence[Reading | Count]) -> None:
        """Count readings."""
        with self._changed:
            self._reads += 1
            readings = [self._watched(reading) for reading in readings]
            for reading in readings:
                self._measuring.add(reading)
            self._changed.notify_all()
        for tap in self._taps:
            tap.took(readings)

    def _watched(self, reading: Reading | Count) -> Reading | Count:
        if self._frozen is not None:
            reading = self._frozen.flagged(reading, self.steps, counts=bool(getattr(self._meter, "counts", False)))
        self.doubt = ""
        if "frozen" in reading.flags:
            self.doubt = str(self._frozen) if self._frozen is not None and self._frozen.is_frozen else STANDS_STILL
        return reading

    def missed(self, trouble: str) -> None:
        """Count a failed read."""
        with self._changed:
            self._measuring.miss()
            self._changed.notify_all()
        for tap in self._taps:
            tap.missed(trouble)

    def paced(self, period_us: int) -> None:
        """Judge gaps by another period."""
        with self._changed:
            self._measuring.set_period(period_us)
        for tap in self._taps:
            tap.paced(period_us)

    # Called by windows -------------------------------------------------------------------------------------------

    def read_until(self, there: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Have readings taken until `there`; return whether it came to that."""
        end_s = time.monotonic() + patience_s
        while not self._is(there):
            if time.monotonic() > end_s:
                return False
            self._thread.read_now()
            with self._changed:  # a read that brings nothing is no reason to ask again sooner
                end_of_wait_s = time.monotonic() + FORCED_S
                while not there() and (left_s := end_of_wait_s - time.monotonic()) > 0:
                    self._changed.wait(left_s)
        return True

    def _is(self, there: Callable[[], bool]) -> bool:
        with self._changed:
            return there()

    @property
    def is_elsewhere(self) -> bool:
        """Return whether this is a forked child, which has no thread that reads, and maybe a lock that nobody opens."""
        return self._process != os.getpid()

    def check_open(self) -> None:
        """Raise MeterError once it is closed."""
        if self._closed:
            raise MeterError(f"{self.source} is closed: nobody reads it any more", "open it anew")

    def check_process(self) -> None:
        """Raise MeterError in a forked child."""
        if self.is_elsewhere:
            raise MeterError(
                f"{self.source} was opened by process {self._process}, before it forked this one: nobody reads it here",
                "open a meter in the child, or start it by spawn and hand it what open_meter needs",
            )

    def needs(self, window_us: int) -> None:
        """Learn how long a window was."""
        self._thread.needs(window_us)

    def good_reads(self) -> int:
        """Return how many reads have not failed."""
        return self._reads

    def locked(self) -> tuple[threading.Condition, Measuring]:
        """Return what windows work on, and the lock to do it under."""
        return self._changed, self._measuring


class MeterWindow:
    """One window. After `with` its figures are those of `result`; inside, `so_far` tells how it goes."""

    def __init__(self, meter: SampledMeter) -> None:
        self._meter = meter
        self._lock, self._measuring = meter.locked()
        self._result: Measurement | None = None
        self._window: Window | None = None

    def __enter__(self) -> MeterWindow:
        """Open it at a reading taken now. Raises MeterError when none can be had."""
        self._meter.check_process()
        self._meter.check_open()
        begin_us = _now_us()
        if not self._meter.read_until(lambda: (self._measuring.final_us or 0) >= begin_us):
            raise MeterError(f"{self._meter.source} gives no reading: {self._meter.trouble or 'it does not answer'}")
        with self._lock:
            self._window = self._measuring.open(self._measuring.final_us or 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it now, with a reading just after, and of a counter one just before."""
        if kind is not None and self._meter.is_elsewhere:
            return  # what has gone wrong matters more
        window = self._opened()
        if self._measuring.is_counter:
            reads = self._meter.good_reads()
            self._meter.read_until(lambda: self._meter.good_reads() > reads, EDGE_S)
        with self._lock:
            self._measuring.end(window, max(_now_us(), window.settled_us))
        if kind is None:
            patience_s = 1.0 + 3 * self._meter.period_us / 1e6  # longer would be a gap
            self._meter.read_until(lambda: window.is_final, patience_s)
        with self._lock:
            self._measuring.give_up(window)
            self._result = self._measuring.result(window)
        self._meter.needs(self._result.end_us - self._result.start_us)

    def so_far(self) -> Measurement:
        """Return what it has taken up to the last reading. Raises MeterError when it has not begun."""
        window = self._opened()
        with self._lock:
            return self._measuring.result(window, _now_us())

    def _opened(self) -> Window:
        self._meter.check_process()
        if self._window is None:
            raise MeterError("this window has not begun", "open it by `with meter.window() as w:`")
        return self._window

    @property
    def result(self) -> Measurement:
        """All figures of the closed window."""
        return self._result or self.so_far()

    @property
    def energy_j(self) -> float | None:
        """Joules; None: unknown, never 0."""
        return self.result.energy_j

    @property
    def coverage(self) -> float:
        """Share of the window that lies in no gap."""
        return self.result.coverage


def opened(settings: MeterSettings | str, keys: Mapping[str, object], taps: Sequence[Sink] = ()) -> SampledMeter:
    """Return what `open_meter` returns. `taps`: are told of each read, too."""
    if isinstance(settings, str):
        settings = chosen(settings, keys)
    elif not isinstance(settings, MeterSettings):
        raise TypeError(f"open_meter: expected the name of a source, or MeterSettings, got {settings!r}")
    elif keys:
        raise TypeError(f"open_meter: {', '.join(keys)}: not beside MeterSettings, which say it")
    meter = open_source(settings, _now_us())
    if meter is None:
        raise MeterError(
            'meter.source = "none" measures nothing', "name a source, or call open_meter() to have one found"
        )
    return SampledMeter(meter, settings, taps)


def chosen(source: str, keys: Mapping[str, object], where: str = "open_meter") -> MeterSettings:
    """Return the settings of a source by name; "auto": of the one that sees most of this board. Raises MeterError.

    where: who asks, for what is told of wrong keys.
    """
    found: Mapping[str, object] = {}
    if source == "auto":
        from paceline_agent.meters.findings import Where, best

        finding = best(Where(Path(str(keys.get("sysfs_root", "/sys")))))
        source, found = finding.source, finding.settings
    return load_table({**found, **keys, "source": source}, MeterSettings, where=where)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
