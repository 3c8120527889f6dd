# SPDX-License-Identifier: Apache-2.0
"""A board's joules, seen from the agent's loop: meter thread, integrator and ledger as one thing that answers
questions.

Used by one thread. Questions (`measure`, `measure_split`) are answered by `settled`, once readings have come that make
the answer final.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from paceline import machine as m
from paceline.energy import Energy, EnergyIntegrator
from paceline.errors import CoreError
from paceline.wire import Energy as EnergyMessage
from paceline_agent.cadence import rhythm_of
from paceline_agent.counter_edges import CounterEdges
from paceline_agent.flagged import Flagged
from paceline_agent.frozen import STANDS_STILL, WATCHED, Frozen, watcher
from paceline_agent.gaps import Peak
from paceline_agent.late import Late
from paceline_agent.ledger import FLAGS, Edge, Ledger, Split, Tally
from paceline_agent.measuring import Scatter, Spread
from paceline_agent.metering import MeterThread, Pace
from paceline_agent.meters import INSTANT, SCATTERED, Count, Meter, MeterSettings, Reading, open_source

KNOTS = 1024  # readings that are remembered
# A slice waits for the joules of its window, from their asking on, this long at least, for three of the source's own
# periods, and never longer than the last: then it goes without.
WAIT_S, WAIT_PERIODS, WAIT_MOST_S = 1.0, 3, 10.0
LOOK_S = 0.1


class Joules:
    """Context manager: the meter runs inside it. `source` labels every joule; `known` is False without a meter."""

    def __init__(
        self, settings: MeterSettings, opened: Callable[[MeterSettings, int], Meter | None] = open_source
    ) -> None:
        self._settings = settings
        self._opened = opened
        self.source: str = settings.source
        self.known = settings.source != "none"
        self._ledger: Ledger | None = None
        self._measuring: list[int] = []
        self._waits: dict[int, Late] = {}  # lease of these -> when it has waited long enough
        self._thread: MeterThread | None = None
        self._integrator: EnergyIntegrator | None = None
        self._flagged = Flagged()
        self._edge_uj = 0  # how far energy may be off where a window is cut
        self._spread: Spread | None = Spread()  # None: nothing lies between readings
        self._scatters: deque[tuple[int, Scatter]] = deque(maxlen=KNOTS)  # from when on, and what
        self._counts = CounterEdges(KNOTS)
        self._is_points = self._is_counter = False
        self._frozen: Frozen | None = None
        self._is_live = settings.source in WATCHED  # edges of this board's work tell of it
        self._doubt = ""  # of the last reading
        self._peak = Peak()
        self._idle: Ledger | None = None
        self.idle: Tally | None = None  # what `measure_idle` has found
        self._active_us: int | None = None  # since when it computes
        self._lone_pipe: tuple[int, int] | None = None
        self._is_news = True  # since the last `settled`: a reading or a question; else nothing can have become final

    def __enter__(self) -> Joules:
        meter = self._opened(self._settings, _now_us())
        if meter is None:
            self._lone_pipe = os.pipe()
            return self
        self.source = meter.source
        self._meter = meter
        self._frozen = watcher(self._settings.source, meter.source, rhythm_of(meter).update_us)
        name, set_ms = self._settings.source, self._settings.period_ms
        self._thread = MeterThread(
            meter, None if set_ms is None else set_ms / 1000, instant=name in INSTANT, scattered=name in SCATTERED
        )
        self._spread = None if name in INSTANT else self._spread
        self._period_us = self._thread.cadence.period_us
        self._integrator = EnergyIntegrator(self._period_us, KNOTS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.stop()
        for descriptor in self._lone_pipe or ():
            os.close(descriptor)

    def fileno(self) -> int:
        """Return the descriptor that tells of new readings; without a meter, one that never does."""
        if self._thread is not None:
            return self._thread.fileno()
        assert self._lone_pipe is not None
        return self._lone_pipe[0]

    @property
    def rhythm(self) -> str:
        """How often the meter is read, and why; "" without one."""
        if self._thread is None:
            return ""
        return f"a reading each {self._thread.cadence.period_us / 1000:g} ms: {self._thread.cadence.why}"

    @property
    def trouble(self) -> str:
        """Why there are no readings at present."""
        return self._thread.trouble if self._thread is not None else ""

    @property
    def doubt(self) -> str:
        """Why its readings are not to be trusted."""
        return self._doubt

    def said(self) -> list[str]:
        """Return what the meter itself has said to a person since the last call."""
        return self._thread.said() if self._thread is not None else []

    def activity(self, t_us: int, active: bool) -> None:
        """Computing began or ended. At its end a reading is taken at once, so that the window can be closed."""
        if self._thread is not None:
            self._meter.activity(t_us, active)
            if self._frozen is not None and self._is_live:
                self.drain()  # what was read before belongs there
            if self._frozen is not None and self._is_live and self._frozen.edge(t_us, active):
                self._flagged.add(self._frozen.since_us, t_us, ("frozen",))  # what is not settled yet
            if active:
                self._active_us = t_us
            elif self._active_us is not None:
                self._thread.needs(t_us - self._active_us)
                self._active_us = None
            if not active:
                self._thread.read_now()
                self.drain()

    def open(self, t_us: int) -> None:
        """Open the window of a run; an older one is forgotten."""
        self._ledger, self._is_news = Ledger(t_us), True
        self._measuring.clear()
        self._waits.clear()

    def mark(self, t_us: int, category: str, lease: int) -> None:
        """From t_us on time is spent on `category`."""
        if self._ledger is not None:
            self._ledger.mark(t_us, category, lease)

    def void(self, lease: int) -> None:
        """What was computed under this lease is wasted."""
        if self._ledger is not None:
            self._ledger.void(lease)

    def measure(self, lease: int) -> None:
        """Ask for a lease's compute energy."""
        period_s = rhythm_of(self._meter).update_us / 1e6 if self._thread is not None else 0.0
        wait_s = min(max(WAIT_S, WAIT_PERIODS * period_s), WAIT_MOST_S)
        self._measuring.append(lease)
        self._waits = {each: self._waits[each] for each in self._measuring if each in self._waits}  # not those of old
        self._waits[lease] = Late(time.monotonic() + wait_s)
        self._is_news = True

    def measure_split(self, run: str, round_: int, t_us: int) -> None:
        """Ask for the split as of t_us."""
        if self._ledger is not None:
            self._ledger.ask(t_us, (run, round_))
            self._is_news = True

    def measure_idle(self, t0_us: int, t1_us: int) -> None:
        """Have the joules of a time in which nothing is done found; they are in `idle` when they are final."""
        self._idle = Ledger(t0_us)
        self._idle.ask(t1_us, None)
        self._is_news = True

    def drain(self) -> None:
        """Take the readings that have come."""
        if self._thread is None or self._integrator is None:
            return
        self._is_news = True
        for reading in self._thread.drain():
            if isinstance(reading, Pace):
                self._period_us = reading.period_us
                self._integrator.set_period(reading.period_us)
                continue
            if self._frozen is not None:
                steps, counts = getattr(self._meter, "steps", 0), getattr(self._meter, "counts", False)
                reading = self._frozen.flagged(reading, steps, counts=counts)
            self._doubt = self._why_frozen() if "frozen" in reading.flags else ""
            self._note(reading)
            self._peak.add(reading)
            try:
                edge_uj = reading.error_uj if isinstance(reading, Count) else reading.edge_uj
                self._edge_uj = max(self._edge_uj, edge_uj)
                if isinstance(reading, Count):
                    self._is_counter = True
                    self._counts.add(reading)
                    self._integrator.add_counter(reading.t_us, reading.count_uj)
                elif reading.t0_us < reading.t1_us:
                    self._integrator.add_interval(reading.t0_us, reading.t1_us, reading.power_uw, reading.error_uw)
                else:
                    self._is_points = True
                    self._integrator.add_point(reading.t1_us, reading.power_uw, reading.error_uw)
            except CoreError:
                continue  # not after the last reading: nothing new is known
            if self._spread is not None and isinstance(reading, Reading):
                fresh = self._spread.add(reading)
                if fresh is not None:
                    self._scatters.append(fresh)

    @property
    def look_s(self) -> float:
        """Within how many seconds to ask `settled` though there is nothing to read."""
        return LOOK_S if self._measuring else math.inf

    def settled(self) -> list[m.Event]:
        """Return the answers that have become final."""
        overdue = {lease for lease in self._measuring if self._waits[lease].is_over(time.monotonic())}
        if not (self._is_news or overdue or self._is_down()):
            return []
        self._is_news = False
        if self._idle is not None and self._integrator is not None:
            final_us = _now_us() if self._is_down() else self._integrator.final_us or 0
            for _, split in self._idle.settle(final_us, self._window):
                self._idle, self.idle = None, split.total
        if self._ledger is None:
            return [m.Measured(lease, None, None, self.source, 1) for lease in self._take_measuring()]
        if self._integrator is None:
            answers = self._ledger.settle(_now_us(), None)
        else:
            final_us = self._integrator.final_us or 0
            until_us = _now_us() if self._is_down() else final_us
            scatter = None if self._spread is None else self._scatter
            is_exact = self._spread is None and not self._is_counter and not self._edge_uj  # a model, at every instant
            answers = self._ledger.settle(until_us, self._window, None if is_exact else self._edge, scatter)
        events: list[m.Event] = [  # before those of leases, so that both go as one message
            m.SplitMeasured(_message(key, split, self.source, self._sampling_uj(split.total))) for key, split in answers
        ]
        for lease in self._take_measuring():
            tally = self._ledger.computed(lease)
            if tally is None and lease in overdue:
                events.append(m.Measured(lease, None, None, self.source, FLAGS["unknown"]))
            elif tally is None:
                self._measuring.append(lease)
            else:
                bound_uj = None if tally.energy_uj is None else tally.bound_uj
                flags = tally.flags | (FLAGS["estimated"] if tally.is_estimated else 0)
                sampling_uj = self._sampling_uj(tally)
                events.append(m.Measured(lease, tally.energy_uj, bound_uj, self.source, flags, sampling_uj))
        return events

    def _sampling_uj(self, tally: Tally) -> int | None:
        """Return the 95 % half-width; of counters and of intervals that leave nothing out it is 0."""
        if tally.energy_uj is None or self._integrator is None:
            return None
        if self._is_counter or self._spread is None or (not self._is_points and tally.scatter.weights == 0):
            return 0
        return tally.scatter.half_width_uj()

    def _scatter(self, t0_us: int, t1_us: int) -> Scatter:
        """Return what readings from t0_us up to t1_us, that one left out, say of sampling."""
        out = Scatter()
        for t_us, fresh in reversed(self._scatters):
            if t_us < t0_us:
                break
            if t_us < t1_us:
                out.add(fresh)
        return out

    def _edge(self, t_us: int) -> Edge:
        """Return what an edge at t_us may put on the wrong side.

        That is what a count resolves, and what lies between readings.
        """
        assert self._integrator is not None
        energy = None
        final_us = self._integrator.final_us
        if self._spread is not None and final_us is not None and t_us < final_us:
            with suppress(LookupError):  # so long ago that its joules are unknown anyway
                energy = self._integrator.window(t_us, final_us)
        between_uj = energy.edge_uj if energy is not None else 0
        if self._is_counter:
            between_uj = self._counts.between_uj(t_us, between_uj)
        return Edge(self._edge_uj + (0 if self._is_points else between_uj), self._edge_uj + between_uj)

    def _window(self, t0_us: int, t1_us: int) -> Energy | None:
        assert self._integrator is not None
        try:
            energy = self._integrator.window(t0_us, t1_us)
        except LookupError:  # the loop was blocked for longer than the integrator remembers
            return _unknown(t0_us, t1_us)
        if energy is None:
            return _unknown(t0_us, t1_us) if self._is_down() else None
        gap_uj = self._peak.bound_uj(t1_us - t0_us - energy.covered_us)
        if gap_uj is None:
            energy = replace(energy, energy_uj=None)
        elif gap_uj:
            energy = replace(energy, bound_uj=energy.bound_uj + gap_uj)
        said = self._flagged.over(t0_us, t1_us)
        if "frozen" in said:
            energy = replace(energy, energy_uj=None)  # nobody counted
        return replace(energy, flags=tuple(dict.fromkeys((*energy.flags, *said)))) if said else energy

    def _why_frozen(self) -> str:
        if self._frozen is not None and self._frozen.is_frozen:
            return str(self._frozen)
        return STANDS_STILL

    def _note(self, reading: Reading | Count) -> None:
        """Keep the flags of a reading, so that windows can be given them."""
        if not reading.flags:
            return
        t0_us, t1_us = (reading.t_us,) * 2 if isinstance(reading, Count) else (reading.t0_us, reading.t1_us)
        if "frozen" in reading.flags and self._integrator is not None:  # what has passed since the last one, at least
            t0_us = min(t0_us, self._integrator.final_us or t0_us)
            if self._frozen is not None and self._frozen.is_frozen:
                t0_us = min(t0_us, self._frozen.since_us)
        self._flagged.add(t0_us, t1_us, reading.flags, 3 * self._period_us)

    def _is_down(self) -> bool:
        return self._thread is not None and self._thread.down

    def _take_measuring(self) -> list[int]:
        taken, self._measuring = self._measuring, []
        return taken


def _unknown(t0_us: int, t1_us: int) -> Energy:
    return Energy(None, t0_us, t1_us, 0, 0, 0, ("unknown",))


def _message(key: object, split: Split, source: str, sampling_uj: int | None) -> EnergyMessage:
    assert isinstance(key, tuple)
    run, round_ = key
    parts, total = split.parts_uj, split.total
    return EnergyMessage(
        1, 1, run, round_, parts["compute"], parts["wait"], parts["transfer"], parts["wasted"], parts["other"],
        total.energy_uj, _bound_uj(total), total.span_us, total.covered_us, source, total.flags,
        sampling_uj, None if parts["compute"] is None else split.compute_split_uj, split.wait_us,
    )  # fmt: skip


def _bound_uj(total: Tally) -> int | None:
    return None if total.energy_uj is None else total.bound_uj


def _now_us() -> int:
    return time.monotonic_ns() // 1000
