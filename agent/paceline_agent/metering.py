# SPDX-License-Identifier: Apache-2.0
"""The meter's thread: reads a source every period and hands the readings over. Integrates nothing, decides nothing.

A source that fails, in whatever way, is tried again every period and the thread lives on; meanwhile there are no
readings, which the integrator sees as a gap. A reading that cannot be (`sieve`) is a read that failed. One that does
not come back, or brings nothing for long, marks the source down as ten failures do.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from paceline_agent.cadence import Cadence, Rhythm, rhythm_of
from paceline_agent.late import Late
from paceline_agent.meters import Count, Meter, MeterError, Reading
from paceline_agent.sieve import Sieve

DOWN_READS = 10  # so many failed reads in a row, a second by default, and nobody waits for the source any more
SILENT_S = 3.0  # so long without a new reading, in as many reads, or inside a read: the same
FIRST_S = 10.0  # ... before the first one: some devices start anew when their port is opened, and learn its clock
SAID = 64  # words of a meter that wait for somebody to look
PAUSE_S = 0.0005  # at least, whatever a source asks for
AGAIN_S = 1.0  # a source that fails is asked out of turn once a period, or once in this where a period is longer
STOP_S = 5.0  # a read that hangs longer is left behind


@dataclass(frozen=True)
class Pace:
    """Among readings: those after it come in another period."""

    period_us: int


class Sink(Protocol):
    """Who is told of each read at once."""

    def took(self, readings: Sequence[Reading | Count]) -> None:
        """Learn what a good read gave, which may be nothing."""
        ...

    def missed(self, trouble: str) -> None:
        """Learn why a read failed."""
        ...

    def paced(self, period_us: int) -> None:
        """Learn in which period the readings come from now on."""
        ...


class MeterThread:
    """Reads `meter` every `period_s`, None: as `cadence` says, which learns from the costs of reading and from `needs`.

    `fileno()` becomes readable when readings or a new trouble are there.
    """

    def __init__(
        self, meter: Meter, period_s: float | None = None, *, instant: bool = False, scattered: bool = False,
        sink: Sink | None = None, dice: random.Random | None = None,
    ) -> None:  # fmt: skip
        """Start. `instant`: reading it never blocks, so `read_now` reads in the caller's thread and wakes nobody.

        `scattered`: read at a random instant of each period, so that no load is in step with it; `dice` draws it,
        without any the system's own chance, so that no two boards or lives of one are in step. `sink`: is told of each
        read, in the thread that reads; then there is nothing to drain.
        """
        rhythm = Rhythm(is_fixed=True) if instant else rhythm_of(meter)
        self.cadence = Cadence(rhythm, None if period_s is None else round(period_s * 1e6))
        self._dice = dice or random.Random()
        self._known_us = self.cadence.period_us  # of what was handed over
        self._instant = instant
        self._scattered = scattered
        self._sink = sink
        self._turn = threading.Lock()  # readings must queue up in the order in which they were taken
        self._meter = meter
        self._readings: queue.SimpleQueue[Reading | Count | Pace] = queue.SimpleQueue()
        self._now = threading.Event()
        self._ending = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._woken = False
        self._said: deque[str] = deque(maxlen=SAID)
        self._trouble = ""  # why the last read failed
        self._sieve = Sieve()
        self._failures = 0  # in a row
        self._fruitless = 0  # reads in a row that gave nothing new
        self._heard_s = time.monotonic()  # when there was something new
        self._is_silent = False
        self._in_read: Late | None = None  # when the read that is going on will have taken too long
        self._failed_s = 0.0  # when the last read failed
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._wake_read

    @property
    def down(self) -> bool:
        """Whether the source has failed for so long that what it has not read is unknown."""
        return self._failures >= DOWN_READS or self._is_silent or self._hangs()

    @property
    def trouble(self) -> str:
        """Why there are no readings at present."""
        if self._hangs():
            return "a read of it does not come back: its bus, or the driver, hangs"
        if self._trouble or not self._is_silent:
            return self._trouble
        return f"it answers, but has had no new reading in {DOWN_READS} reads"

    def read_now(self) -> None:
        """Read at once, so that a window that has just ended can be closed. An instant source's readings can be drained
        on return. One that fails is left to its own pace: however many windows wait for it, it is not asked faster.
        """
        if self._trouble and time.monotonic() < self._failed_s + min(self._period_s, AGAIN_S):
            return
        if self._instant:
            self._read(wake=False)
        else:
            self._now.set()

    def needs(self, window_us: int) -> None:
        """Learn how long a window was: the next ones may want another period."""
        if not self._instant and self.cadence.window(window_us):
            self._now.set()  # it counts from now on, not from the end of a longer one

    def drain(self) -> list[Reading | Count | Pace]:
        """Return the readings that have come, oldest first, and where they begin to come in another period."""
        if self._woken:
            self._woken = False
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        out = []
        while not self._readings.empty():  # nobody else takes them
            out.append(self._readings.get_nowait())
        return out

    def said(self) -> list[str]:
        """Return what the meter itself has said to a person since the last call."""
        out = []
        with suppress(IndexError):
            while True:
                out.append(self._said.popleft())
        return out

    def stop(self) -> None:
        """End the thread and give the source back."""
        self._ending = True
        self._now.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():  # it may still use the source and the pipe; both end with the process
            return
        self._meter.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        begun_s = due_s = time.monotonic()
        slot, slot_s = 0, self._period_s
        while not self._ending:
            self._read()
            wait_s = self._pause_s()
            if self._scattered:
                now_s = time.monotonic()
                if slot_s != self._period_s:
                    begun_s = due_s = now_s
                    slot, slot_s = -1, self._period_s
                if now_s >= due_s:  # one random instant in each slot; slots that a slow read took up are left out
                    slot = max(slot + 1, int((now_s - begun_s) / slot_s))
                    due_s = begun_s + (slot + self._dice.random()) * slot_s
                wait_s = max(0.0, due_s - now_s)
            self._now.wait(wait_s)
            self._now.clear()

    @property
    def _period_s(self) -> float:
        return self.cadence.period_us / 1e6

    def _pause_s(self) -> float:
        """Return for how long to wait: a source may know sooner than a period when there will be something new."""
        due_us: int | None = getattr(self._meter, "due_us", None)
        if due_us is None or self._trouble:
            return self._period_s
        return min(self._period_s, max(PAUSE_S, due_us / 1e6 - time.monotonic()))

    def _read(self, *, wake: bool = True) -> None:
        with self._turn:
            self._read_in_turn(wake)

    def _read_in_turn(self, wake: bool) -> None:
        try:
            self._read_once(wake)
        finally:
            texts: list[str] = getattr(self._meter, "said", list)()
            if texts:
                self._said.extend(texts)
                self._wake()

    def _read_once(self, wake: bool) -> None:
        period_us, began_ns, cpu_ns = self.cadence.period_us, time.monotonic_ns(), time.thread_time_ns()
        if period_us > self._known_us:
            self._tell(period_us)
        newest_us = self._sieve.newest_us
        self._in_read = Late(began_ns / 1e9 + self._patience_s())
        try:
            readings, faults = self._sieve.take(self._meter.read(began_ns // 1000), began_ns // 1000)
            if faults and not readings:
                raise MeterError(faults[-1])
        except Exception as error:
            known = isinstance(error, (MeterError, OSError))  # anything else is a bug, which must not end the metering
            self._trouble = str(error) if known else f"{type(error).__name__}: {error}"
            self._failures += 1
            self._failed_s = time.monotonic()
            self._miss(self._trouble)
            self._wake()
            return
        finally:
            self._in_read = None
        self._trouble, self._failures = "", 0
        self._hear(self._sieve.newest_us > newest_us)
        for fault in faults:
            self._miss(fault)
        bus_us = (time.monotonic_ns() - began_ns) / 1e3
        if self._sink is not None:
            self._sink.took(readings)
        else:
            for reading in readings:
                self._readings.put(reading)
            if readings and wake:
                self._wake()
        if readings and period_us < self._known_us:  # a shorter one: the time before the first reading was still long
            self._tell(period_us)
        if not self._instant:
            is_counter = bool(readings) and isinstance(readings[0], Count)
            cpu_us = (time.thread_time_ns() - cpu_ns) / 1e3
            if self.cadence.read(rhythm_of(self._meter), len(readings), cpu_us, bus_us, is_counter):
                follow = getattr(self._meter, "follow", None)
                if follow is not None:
                    follow(self.cadence.period_us)

    def _miss(self, why: str) -> None:
        if self._sink is not None:
            self._sink.missed(why)

    def _hear(self, is_news: bool) -> None:
        """Learn whether a read gave something new."""
        now_s = time.monotonic()
        self._fruitless = 0 if is_news else self._fruitless + 1
        was_silent = self._is_silent
        self._is_silent = self._fruitless >= DOWN_READS and now_s - self._heard_s > self._patience_s()
        if is_news:
            self._heard_s = now_s
        if self._is_silent and not was_silent:
            self._wake()

    def _patience_s(self) -> float:
        """Return for how long to wait for something new."""
        return max(SILENT_S if self._sieve.newest_us >= 0 else FIRST_S, DOWN_READS * self._period_s)

    def _hangs(self) -> bool:
        """Return whether the read that is going on takes too long."""
        in_read = self._in_read
        return in_read is not None and in_read.is_over(time.monotonic())

    def _tell(self, period_us: int) -> None:
        self._known_us = period_us
        if self._sink is not None:
            self._sink.paced(period_us)
        else:
            self._readings.put(Pace(period_us))

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"r")
        self._woken = True  # after the write: else a drain between the two would leave the byte for ever
