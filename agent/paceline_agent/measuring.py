# SPDX-License-Identifier: Apache-2.0
"""Readings -> what a window took, and how good that figure is. Pure: knows no sensor, no clock and no thread.

Energy, coverage and the instrument's bound are the integrator's. Beside them stands what it has no room for: longest
gap, number of readings, the readings' own flags, and the sampling uncertainty, which is statistics over the readings
(DECISIONS 32). A window may be longer than what the integrator remembers: it grows reading by reading.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from paceline.energy import EnergyIntegrator
from paceline.errors import CoreError
from paceline_agent.gaps import Peak, is_seen
from paceline_agent.meters import Count, Reading

KNOTS = 1024
GAP_PERIODS = 3  # without a reading are a gap, as for the integrator
LAGS = (1, 2, 4, 8, 16)  # readings are compared with those so many places away; longer gaps are the bound's affair
ENOUGH = 8  # comparisons, to speak of a variance
# Of `paceline bench energy`, which shows where these would be too small: a mean over what an interval source has not
# seen varies as well as those beside it (less, the longer it is), a lone step may fall into a gap, comparisons overlap,
# and the weights of neighbours are not independent.
INTERVAL, GAP, FREE, SLACK = 2.0, 1.7, 0.5, 1.12
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # two-sided 95 %, 1 to 10 degrees of freedom


@dataclass(frozen=True)
class Measurement:
    """What a window took. Two uncertainties that are never added: what the instrument may be off at most, and within
    what the truth lies in 95 of 100 cases because power was looked at now and then only."""

    source: str
    provenance: str  # "measured" (power), "counter" (of joules), "modelled"
    energy_uj: int | None  # None: unknown, never 0
    start_us: int
    end_us: int
    covered_us: int  # what lies in no gap of more than three periods
    longest_gap_us: int  # longest time without a reading
    readings: int
    missed: int  # reads that failed
    bound_uj: int | None  # worst case: instrument, gaps, edges
    sampling_uj: int | None  # half-width; 0 for counters, None with fewer than three readings
    flags: tuple[str, ...]

    @property
    def energy_j(self) -> float | None:
        """Joules; None: unknown."""
        return None if self.energy_uj is None else self.energy_uj / 1e6

    @property
    def bound_j(self) -> float | None:
        """Joules by which the instrument may be off at most."""
        return None if self.bound_uj is None else self.bound_uj / 1e6

    @property
    def sampling_j(self) -> float | None:
        """Joules of sampling uncertainty, 95 %."""
        return None if self.sampling_uj is None else self.sampling_uj / 1e6

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end_us - self.start_us) / 1e6

    @property
    def coverage(self) -> float:
        """Share of the window that lies in no gap; of one without any length 0 while nothing is known of it."""
        length_us = self.end_us - self.start_us
        if length_us == 0:
            return 0.0 if self.energy_uj is None else 1.0
        return self.covered_us / length_us

    @property
    def power_w(self) -> float | None:
        """Mean watts."""
        return None if self.energy_uj is None or not self.seconds else self.energy_uj / 1e6 / self.seconds

    def plain(self) -> dict[str, object]:
        """Return all figures for JSON, in joules and seconds."""
        return {
            "source": self.source, "provenance": self.provenance, "energy_j": self.energy_j, "seconds": self.seconds,
            "power_w": self.power_w, "coverage": self.coverage, "longest_gap_s": self.longest_gap_us / 1e6,
            "readings": self.readings, "missed": self.missed, "bound_j": self.bound_j, "sampling_j": self.sampling_j,
            "flags": list(self.flags),
        }  # fmt: skip


@dataclass
class Scatter:
    """What readings say of the uncertainty of sampling; of several stretches of time it adds up."""

    squares: float = 0.0  # W^2: variances of one reading against its neighbours, summed ...
    count: int = 0  # ... and their number ...
    spaced_us: float = 0.0  # ... and the times between readings there
    far: dict[int, tuple[float, int]] = field(default_factory=dict)  # octave of time -> the same for others so far away
    unseen: dict[int, float] = field(default_factory=dict)  # octave of time -> s^2: spans that nobody looked into
    bent_j: float = 0.0  # what straight lines leave out of a load that bends the same way all along

    @property
    def weights(self) -> float:
        """Times that nobody looked into, squared and summed, in s^2."""
        return sum(self.unseen.values())

    def add(self, other: Scatter) -> None:
        """Take what another stretch says."""
        self.squares += other.squares
        self.count += other.count
        self.spaced_us += other.spaced_us
        self.bent_j += other.bent_j
        for octave, (squares, count) in other.far.items():
            known = self.far.get(octave, (0.0, 0))
            self.far[octave] = (known[0] + squares, known[1] + count)
        for octave, weight in other.unseen.items():
            self.unseen[octave] = self.unseen.get(octave, 0.0) + weight

    def half_width_uj(self) -> int | None:
        """Return the 95 % half-width, None while too few readings tell of it."""
        if self.count == 0:
            return None
        free = max(1, round(self.count * FREE))
        student = STUDENT[free - 1] if free <= len(STUDENT) else 1.96 + 2.7 / free
        near = self.squares / self.count
        usual = round(2 * self.spaced_us / self.count).bit_length()  # a span above that octave is a gap
        variance = sum(
            weight * max(near, self._variance(octave) * (GAP if octave > usual else 1.0))
            for octave, weight in self.unseen.items()
        )
        return round((SLACK * student * math.sqrt(variance) + abs(self.bent_j)) * 1e6)

    def _variance(self, octave: int) -> float:
        """Return the variance of a reading against others that are about so far away, or a little further."""
        squares, count = 0.0, 0
        for each in sorted(self.far, key=lambda each: (each < octave, abs(each - octave))):
            squares, count = squares + self.far[each][0], count + self.far[each][1]
            if count >= ENOUGH:
                break
        return squares / count if count else 0.0


class Spread:
    """How far sampling may lead astray, from how far each reading lies off the line through two others.

    A span that nobody looked into is off by as much as readings are that lie so far apart: next to nothing for a load
    that is smooth at that scale, all their spread for bursts between readings. Right for readings at random instants
    (bursts in step with the readings hide from any statistics).
    """

    def __init__(self, start_us: int = 0) -> None:
        self._start_us = start_us  # spans that end before it are nobody's concern
        self._seen: deque[tuple[int, float]] = deque(maxlen=2 * LAGS[-1] + 1)  # middle, watts
        self._last: Reading | None = None
        self._total = Scatter()

    def add(self, reading: Reading) -> tuple[int, Scatter] | None:
        """Take the next reading; return what is new, and the instant to which it belongs."""
        last, self._last = self._last, reading
        self._seen.append(((reading.t0_us + reading.t1_us) // 2, reading.power_uw / 1e6))
        if last is None:
            return None
        fresh = Scatter()
        for lag in LAGS:
            if len(self._seen) > 2 * lag:
                self._compare(fresh, lag, is_point=reading.t0_us == reading.t1_us)
        if reading.t1_us > self._start_us and reading.t0_us > last.t1_us:
            blind_us, own_us = reading.t0_us - last.t1_us, reading.t1_us - reading.t0_us
            times = INTERVAL + min(1.0, own_us / blind_us) if own_us else 1.0
            fresh.unseen[(blind_us + own_us).bit_length()] = times * (blind_us / 1e6) ** 2
        self._total.add(fresh)
        return (last.t1_us + reading.t0_us) // 2, fresh

    def half_width_uj(self) -> int | None:
        """Return the 95 % half-width, None while too few readings tell of it."""
        return self._total.half_width_uj()

    def _compare(self, fresh: Scatter, lag: int, *, is_point: bool) -> None:
        """Note how far a reading is off the line through two others, `lag` places away on either side."""
        before, here, after = self._seen[-1 - 2 * lag], self._seen[-1 - lag], self._seen[-1]
        if not before[0] < here[0] < after[0]:
            return  # intervals that overlap
        span_us = after[0] - before[0]
        share = (here[0] - before[0]) / span_us
        off_w = here[1] - before[1] * (1 - share) - after[1] * share
        square = off_w**2 / (1 + share**2 + (1 - share) ** 2)
        if lag == 1:
            fresh.squares, fresh.count, fresh.spaced_us = square, 1, span_us / 2
            if is_point:
                fresh.bent_j = off_w * span_us / 12e6  # a parabola's, over two equal spans
        squares, count = fresh.far.get(span_us.bit_length(), (0.0, 0))
        fresh.far[span_us.bit_length()] = (squares + square, count + 1)


class Window:
    """A window in progress."""

    def __init__(self, start_us: int, missed: int) -> None:
        self.start_us = start_us
        self.end_us: int | None = None
        self.settled_us = start_us  # up to here it is counted
        self.seen_us = start_us  # end of the last reading in it
        self.energy_uj: int | None = 0
        self.covered_us = self.bound_uj = self.edge_uj = self.longest_gap_us = self.readings = 0
        self.missed_before = missed
        self.flags: dict[str, None] = {}  # an ordered set
        self.spread = Spread(start_us)

    @property
    def is_final(self) -> bool:
        """Return whether it has ended, and all of it is counted."""
        return self.end_us is not None and self.settled_us >= self.end_us


class Measuring:
    """Windows over readings of one source. One thread at a time."""

    def __init__(self, source: str, period_us: int) -> None:
        self._source = source
        self._integrator = EnergyIntegrator(period_us, KNOTS)
        self._windows: list[Window] = []
        self._is_counter = self._is_points = False
        self._missed = 0
        self._period_us = period_us
        self._peak = Peak()
        self._before_us = 0  # end of the reading before the one that is being taken
        self._recent: deque[Reading] = deque(maxlen=2 * LAGS[-1] + 1)  # what a window that is opened now finds

    @property
    def final_us(self) -> int | None:
        """The instant up to which energy is final; None before the first reading."""
        return self._integrator.final_us

    @property
    def is_counter(self) -> bool:
        """Return whether the source counts joules."""
        return self._is_counter

    def add(self, reading: Reading | Count) -> None:
        """Take a reading; one that is not after the last one is left out."""
        self._before_us = self._integrator.final_us or 0
        try:
            if isinstance(reading, Count):
                self._is_counter = True
                self._integrator.add_counter(reading.t_us, reading.count_uj)
            elif reading.t0_us < reading.t1_us:
                self._integrator.add_interval(reading.t0_us, reading.t1_us, reading.power_uw, reading.error_uw)
            else:
                self._is_points = True
                self._integrator.add_point(reading.t1_us, reading.power_uw, reading.error_uw)
        except CoreError:
            return
        self._peak.add(reading)
        if isinstance(reading, Reading):
            self._recent.append(reading)
        for window in self._windows:
            self._see(window, reading)
            self._grow(window)
        self._windows = [window for window in self._windows if not window.is_final]

    def set_period(self, period_us: int) -> None:
        """Learn that readings come in another period from now on."""
        self._period_us = period_us
        self._integrator.set_period(period_us)

    def miss(self) -> None:
        """Learn that a read failed."""
        self._missed += 1

    def open(self, t_us: int) -> Window:
        """Open a window."""
        window = Window(t_us, self._missed)
        for reading in self._recent:
            window.spread.add(reading)
        self._windows.append(window)
        self._grow(window)
        return window

    def end(self, window: Window, t_us: int) -> None:
        """Let a window end at t_us, where it has not been counted to yet. Raises ValueError."""
        if t_us < window.settled_us:
            raise ValueError(f"the window is counted up to {window.settled_us} us already, it cannot end at {t_us}")
        window.end_us = t_us
        self._grow(window)

    def give_up(self, window: Window) -> None:
        """Count no more for a window: what is not settled stays unknown, and with it the energy."""
        self._windows = [each for each in self._windows if each is not window]
        if window.end_us is not None and not window.is_final:
            window.energy_uj, window.flags["unknown"] = None, None
            window.settled_us = window.end_us

    def result(self, window: Window, now_us: int | None = None) -> Measurement:
        """Return what a window took, as far as it is counted.

        now_us: the window goes on; once there was no reading for so long that it is a gap, its joules are unknown.
        """
        end_us = window.settled_us
        in_gap = now_us is not None and window.end_us is None and now_us - end_us > GAP_PERIODS * self._period_us
        if in_gap and now_us is not None:
            end_us = now_us
        is_nothing = window.end_us is not None and (self.final_us or -1) >= window.start_us  # it has no length
        energy_uj = window.energy_uj if end_us > window.start_us or is_nothing else None  # not begun to count is not 0
        if in_gap or "frozen" in window.flags or not is_seen(window.covered_us, end_us - window.start_us):
            energy_uj = None
        known = energy_uj is not None
        provenance = "counter" if self._is_counter else "measured"
        if self._source.removeprefix("replay/").startswith("modelled"):
            provenance = "modelled"
        sampling_uj = 0 if self._is_counter else window.spread.half_width_uj()
        return Measurement(
            self._source, provenance, energy_uj, window.start_us, end_us, window.covered_us,
            max(window.longest_gap_us, end_us - window.seen_us), window.readings, self._missed - window.missed_before,
            window.bound_uj + 2 * window.edge_uj if known else None, sampling_uj if known else None,
            tuple(window.flags if known else window.flags | {"unknown": None}),
        )  # fmt: skip

    def _see(self, window: Window, reading: Reading | Count) -> None:
        begin_us, t_us = (reading.t_us,) * 2 if isinstance(reading, Count) else (reading.t0_us, reading.t1_us)
        edge_uj = reading.error_uj if isinstance(reading, Count) else reading.edge_uj
        window.edge_uj = max(window.edge_uj, edge_uj)
        if not isinstance(reading, Count):
            window.spread.add(reading)  # the one after the end, too: power ran towards it
        if "frozen" in reading.flags and t_us > window.start_us and self._before_us < (window.end_us or t_us):
            window.flags["frozen"] = None  # of the time since the reading before, at least
        if t_us <= window.start_us or (window.end_us is not None and t_us > window.end_us):
            return
        window.longest_gap_us = max(window.longest_gap_us, begin_us - window.seen_us)
        window.seen_us = t_us
        window.readings += 1
        window.flags |= dict.fromkeys(reading.flags)

    def _grow(self, window: Window) -> None:
        """Count what has become final; the pieces of a window telescope exactly."""
        final_us = self._integrator.final_us or 0
        until_us = final_us if window.end_us is None else min(final_us, window.end_us)
        if until_us <= window.settled_us:
            return
        try:
            energy = self._integrator.window(window.settled_us, until_us)
        except LookupError:
            energy = None
        window.settled_us = until_us
        if energy is None or energy.energy_uj is None or window.energy_uj is None:
            window.energy_uj, window.flags["unknown"] = None, None
        else:
            window.energy_uj += energy.energy_uj
        if energy is not None:
            gap_uj = self._peak.bound_uj(energy.end_us - energy.start_us - energy.covered_us)
            if gap_uj is None:  # before any power was seen
                window.energy_uj = None
            window.bound_uj += gap_uj or 0
            window.covered_us += energy.covered_us
            # Between two readings of an instant nothing is known, at an edge as anywhere: that is sampling.
            window.bound_uj += energy.bound_uj + (0 if self._is_points else energy.edge_uj)
            window.flags |= dict.fromkeys(energy.flags)
