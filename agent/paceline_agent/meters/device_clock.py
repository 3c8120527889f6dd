# SPDX-License-Identifier: Apache-2.0
"""A device's clock on ours: ratio and offset from when its readings arrive, and how far off they may be. Pure.

A reading arrives some time after the instant that it names, never before. So the true line lies below all points
(device time, arrival), and near the lowest of them: it is taken from the lower convex hull, where the sum of all delays
is least. A late point, however late, moves nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SLOT_US = 250_000  # of each slot only the point with the least delay is kept ...
SLOTS = 128  # ... and so many of them, 32 s: a crystal that grows warm is followed
SETTLED_US = 2_000_000  # before that the ratio is anybody's guess
SETTLED_POINTS = 4
FLOOR_US = 100  # no operating system tells the instant of an arrival better
PRIOR = 0.0005  # how far a clock may be off while nothing is known of it: ten times what a crystal is
LIMIT = 0.05  # the worst ring oscillator


@dataclass(frozen=True)
class _Point:
    x: int  # device time since the first point
    y: int  # by how much more our clock went on until it arrived


class DeviceClock:
    """host = first arrival + x + offset + skew * x, for device time x since the first reading."""

    def __init__(self, device_us: int, arrival_us: int) -> None:
        self._device_us, self._arrival_us = device_us, arrival_us
        self._points: deque[_Point] = deque(maxlen=SLOTS)
        self._best = _Point(0, 0)  # of the present slot
        self._offset = 0.0
        self.skew = 0.0  # our clock goes on by 1 + skew while the device's goes on by 1
        self.skew_error = PRIOR
        self.spread_us = FLOOR_US  # how much the least delays differ
        self.settled = False  # whether the ratio has been seen
        self.is_absurd = False  # no clock is that wrong; its unit is another one

    def add(self, device_us: int, arrival_us: int) -> None:
        """Learn that what the device stamped device_us came at arrival_us. Device times grow."""
        point = _Point(device_us - self._device_us, (arrival_us - self._arrival_us) - (device_us - self._device_us))
        self._offset = min(self._offset, point.y - self.skew * point.x)  # nothing arrives before it was sent
        if point.x // SLOT_US != self._best.x // SLOT_US:
            self._points.append(self._best)
            self._best = point
            self._fit()
        elif self._delay(point) < self._delay(self._best):
            self._best = point

    def host_us(self, device_us: int) -> float:
        """Return the instant of our clock that a device time stands for; late by the least delay there ever was."""
        x = device_us - self._device_us
        return self._arrival_us + x + self._offset + self.skew * x

    def _delay(self, point: _Point) -> float:
        return point.y - self.skew * point.x

    def _fit(self) -> None:
        points = [*self._points, self._best]
        span = points[-1].x - points[0].x
        if span < SETTLED_US or len(points) < SETTLED_POINTS:
            return
        skew = _least_sum(points)
        self.is_absurd = abs(skew) > LIMIT
        if self.is_absurd:
            return
        delays = [point.y - skew * point.x for point in points]
        offset = min(delays)
        third = max(2, len(delays) // 3)
        ends = (delays[:third], delays[-third:])
        self.spread_us = round(max(sorted(end)[1] - offset for end in ends)) + FLOOR_US
        self.skew, self._offset = skew, offset
        self.skew_error = 4 * self.spread_us / span  # a spread at each end, two thirds of the span apart, and then some
        self.settled = True


def _least_sum(points: list[_Point]) -> float:
    """Return the slope of the line below all points for which the sum of their distances is least.

    It is the edge of the lower hull above which the points' centre lies.
    """
    hull: list[_Point] = []
    for c in points:
        while len(hull) > 1:
            a, b = hull[-2:]
            if (b.y - a.y) * (c.x - a.x) < (c.y - a.y) * (b.x - a.x):
                break
            hull.pop()
        hull.append(c)
    centre = sum(point.x for point in points) / len(points)
    right = next(i for i in range(1, len(hull)) if hull[i].x >= centre)
    a, b = hull[right - 1], hull[right]
    return (b.y - a.y) / (b.x - a.x)
