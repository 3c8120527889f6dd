# SPDX-License-Identifier: Apache-2.0
"""The meter's thread: reads a source every period and hands the readings over. Integrates nothing, decides nothing.

A source that fails, in whatever way, is tried again every period and the thread lives on; meanwhile there are no
readings, which the integrator sees as a gap.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from paceline_agent.meters import Count, Meter, MeterError, Reading

DOWN_READS = 10  # so many failed reads in a row, a second by default, and nobody waits for the source any more
PAUSE_S = 0.0005  # at least, whatever a source asks for
STOP_S = 5.0  # a read that hangs longer is left behind


class Sink(Protocol):
    """Who is told of each read at once."""

    def took(self, readings: Sequence[Reading | Count]) -> None:
        """Learn what a good read gave, which may be nothing."""
        ...

    def missed(self, trouble: str) -> None:
        """Learn why a read failed."""
        ...


class MeterThread:
    """Reads `meter` every `period_s`. `fileno()` becomes readable when readings or a new trouble are there."""

    def __init__(
        self, meter: Meter, period_s: float, *, instant: bool = False, scattered: bool = False,
        sink: Sink | None = None,
    ) -> None:  # fmt: skip
        """Start. `instant`: reading it never blocks, so `read_now` reads in the caller's thread and wakes nobody.

        `scattered`: read at a random instant of each period, so that no load is in step with it. `sink`: is told of
        each read, in the thread that reads; then there is nothing to drain.
        """
        self._instant = instant
        self._scattered = scattered
        self._sink = sink
        self._turn = threading.Lock()  # readings must queue up in the order in which they were taken
        self._meter = meter
        self._period_s = period_s
        self._readings: queue.SimpleQueue[Reading | Count] = queue.SimpleQueue()
        self._now = threading.Event()
        self._ending = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._woken = False
        self.trouble = ""  # why there are no readings at present
        self._failures = 0  # in a row
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._wake_read

    @property
    def down(self) -> bool:
        """Whether the source has failed for so long that what it has not read is unknown."""
        return self._failures >= DOWN_READS

    def read_now(self) -> None:
        """Read at once, so that a window that has just ended can be closed. An instant source's readings can be drained
        on return.
        """
        if self._instant:
            self._read(wake=False)
        else:
            self._now.set()

    def drain(self) -> list[Reading | Count]:
        """Return the readings that have come, oldest first."""
        if self._woken:
            self._woken = False
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        out = []
        while not self._readings.empty():  # nobody else takes them
            out.append(self._readings.get_nowait())
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
        slot = 0
        while not self._ending:
            self._read()
            wait_s = self._pause_s()
            if self._scattered:
                now_s = time.monotonic()
                if now_s >= due_s:  # one random instant in each slot; slots that a slow read took up are left out
                    slot = max(slot + 1, int((now_s - begun_s) / self._period_s))
                    due_s = begun_s + (slot + random.random()) * self._period_s
                wait_s = max(0.0, due_s - now_s)
            self._now.wait(wait_s)
            self._now.clear()

    def _pause_s(self) -> float:
        """Return for how long to wait: a source may know sooner than a period when there will be something new."""
        due_us: int | None = getattr(self._meter, "due_us", None)
        if due_us is None or self.trouble:
            return self._period_s
        return min(self._period_s, max(PAUSE_S, due_us / 1e6 - time.monotonic()))

    def _read(self, *, wake: bool = True) -> None:
        with self._turn:
            self._read_in_turn(wake)

    def _read_in_turn(self, wake: bool) -> None:
        try:
            readings = self._meter.read(time.monotonic_ns() // 1000)
        except Exception as error:
            known = isinstance(error, (MeterError, OSError))  # anything else is a bug, which must not end the metering
            self.trouble = str(error) if known else f"{type(error).__name__}: {error}"
            self._failures += 1
            if self._sink is not None:
                self._sink.missed(self.trouble)
            self._wake()
            return
        self.trouble, self._failures = "", 0
        if self._sink is not None:
            self._sink.took(readings)
            return
        for reading in readings:
            self._readings.put(reading)
        if readings and wake:
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"r")
        self._woken = True  # after the write: else a drain between the two would leave the byte for ever
