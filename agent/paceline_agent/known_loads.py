# SPDX-License-Identifier: Apache-2.0
"""Loads whose joules are known in closed form, for trials of the meters. Pure; each draw of a kind is another one.

All lie between LOW_W and HIGH_W, which an INA219 and an INA3221 see with a shunt of 0.1 ohm at 5 V.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

LOW_W, HIGH_W = 2.0, 7.5


class Load(Protocol):
    """Power over time."""

    def energy_j(self, t_s: float) -> float:
        """Return what it has drawn from second 0 on, exactly."""
        ...


class Make(Protocol):
    """Draws one load of a kind, for so many seconds."""

    def __call__(self, dice: random.Random, seconds: float) -> Load: ...


@dataclass(frozen=True)
class Sine:
    """middle_w + swing_w sin(rate t + phase)."""

    middle_w: float
    swing_w: float
    rate: float  # radians a second
    phase: float

    def energy_j(self, t_s: float) -> float:
        """Return what it has drawn from second 0 on, exactly."""
        turned = math.cos(self.phase) - math.cos(self.rate * t_s + self.phase)
        return self.middle_w * t_s + self.swing_w * turned / self.rate


class Pieces:
    """Straight pieces (seconds, watts at its begin, at its end), again and again; second 0 is `phase_s` into it."""

    def __init__(self, pieces: Sequence[tuple[float, float, float]], phase_s: float = 0.0) -> None:
        self._pieces = pieces
        self._begins_s = [0.0, *accumulate(seconds for seconds, _, _ in pieces)]
        self._drawn_j = [0.0, *accumulate(seconds * (begin_w + end_w) / 2 for seconds, begin_w, end_w in pieces)]
        self._phase_s = phase_s
        self._before_j = self._since_cycle_j(phase_s)

    def energy_j(self, t_s: float) -> float:
        """Return what it has drawn from second 0 on, exactly."""
        return self._since_cycle_j(t_s + self._phase_s) - self._before_j

    def _since_cycle_j(self, t_s: float) -> float:
        cycles = math.floor(t_s / self._begins_s[-1])
        t_s -= cycles * self._begins_s[-1]
        place = min(bisect_right(self._begins_s, t_s), len(self._pieces)) - 1
        seconds, begin_w, end_w = self._pieces[place]
        dt_s = t_s - self._begins_s[place]
        within_j = begin_w * dt_s + (end_w - begin_w) * dt_s**2 / (2 * seconds)
        return cycles * self._drawn_j[-1] + self._drawn_j[place] + within_j


def steady(dice: random.Random, seconds: float) -> Load:
    """Return the same power all the time."""
    watts = dice.uniform(LOW_W, HIGH_W)
    return Pieces([(seconds, watts, watts)])


def stepped(dice: random.Random, seconds: float) -> Load:
    """Return a level for 0.4 to 4 s, then another one: rounds, and the waits between them."""
    pieces = []
    left_s = seconds
    while left_s > 0:
        pieces.append((dice.uniform(0.4, 4.0), *(dice.uniform(LOW_W, HIGH_W),) * 2))
        left_s -= pieces[-1][0]
    return Pieces(pieces)


def bursty(dice: random.Random, seconds: float) -> Load:
    """Return square bursts, 10 ms to 1 s from one to the next: minibatches."""
    return bursts(dice, seconds, math.exp(dice.uniform(math.log(0.01), 0.0)))


def bursts(dice: random.Random, seconds: float, period_s: float) -> Load:
    """Return square bursts of a given period."""
    high_s = period_s * dice.uniform(0.2, 0.8)
    return Pieces([(high_s, HIGH_W, HIGH_W), (period_s - high_s, LOW_W, LOW_W)], dice.uniform(0, period_s))


def sinusoid(dice: random.Random, seconds: float) -> Load:
    """Return a sine of 0.05 to 20 s."""
    period_s = math.exp(dice.uniform(math.log(0.05), math.log(20.0)))
    middle_w = (LOW_W + HIGH_W) / 2
    return Sine(middle_w, dice.uniform(0.2, 1.0) * (HIGH_W - middle_w), math.tau / period_s, dice.uniform(0, math.tau))


def sawtooth(dice: random.Random, seconds: float) -> Load:
    """Return a clock that falls as the board warms up and jumps back when it has cooled: 0.3 to 10 s."""
    period_s = math.exp(dice.uniform(math.log(0.3), math.log(10.0)))
    return Pieces([(period_s, HIGH_W, dice.uniform(LOW_W, HIGH_W - 1))], dice.uniform(0, period_s))


LOADS: dict[str, Make] = {
    "steady": steady, "stepped": stepped, "bursty": bursty, "sine": sinusoid, "sawtooth": sawtooth,
}  # fmt: skip
