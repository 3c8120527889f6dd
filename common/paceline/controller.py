# SPDX-License-Identifier: Apache-2.0
"""Reports in, shares out: the adaptive controller as users meet it. Knows no board, no round and no clock.

A share is inversely proportional to a cost, the blend of a participant's smoothed seconds per sample and joules per
sample, each in units of the group's median. One call of `allocate` is one round. All rules: core_c/include/paceline.h.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline import core
from paceline.errors import CoreError
from paceline.goals import EXAMPLES, PREFIX, Goal
from paceline.loop import HYSTERESIS, Loop, Model

WEIGHTED = "weighted"
_GOAL = b"CPLG"  # begins the saved bytes of a controller with a goal; CPL1 those of C


@dataclass(frozen=True)
class Flags:
    """What is to be known of a participant's figures."""

    present: bool  # takes part
    reported: bool  # has an estimate of its own; without one the median cost of its group stands in
    energy_held: bool  # the last joules are missing; an estimate of at most five rounds stands in
    energy_unknown: bool  # no joules known, so its energy term equals its time term
    report_held: bool  # its last report was 100 times off or more, and waits for a second one like it


class Controller:
    """Divides a fixed number of samples a round among participants, by what they measured.

    budget: samples a round; one number, or one for each group. groups: the group of each (None: all in one).
    w_time None means 1 - w_energy. minimum, capacity: one number or one each; minimum 0, deadband 0.0 and capacity None
    mean none. One object may be used by one thread at a time.
    policy: "weighted" (w_energy, w_time, deadband), or a goal: "frontier:energy", "frontier:edp",
    "frontier:deadline=30s", "frontier:deadline=1.2x", "frontier:budget=500J", "frontier:time"; its plans are kept while
    others are foretold to gain less than `hysteresis`. A limit out of reach is no error here: `notes` tells it.
    """

    def __init__(
        self,
        participants: int,
        budget: int | Sequence[int],
        w_energy: float = 0.25,
        w_time: float | None = None,
        ema: float = 0.5,
        deadband: float = 0.05,
        minimum: int | Sequence[int] = 1,
        capacity: int | Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        policy: str = WEIGHTED,
        hysteresis: float = HYSTERESIS,
    ) -> None:
        self._policy, self._loop = policy, _loop(policy, participants, hysteresis)
        config = {"w_energy": w_energy, "w_time": _or_none(w_time), "ema": ema or -1.0, "deadband": deadband or -1.0}
        if deadband < 0:
            raise CoreError(f"Controller: deadband is {deadband}; expected 0 (none) or a fraction above it")
        if w_time is not None and w_time < 0:
            raise CoreError(f"Controller: w_time is {w_time}; expected 0 or more, or None for 1 - w_energy")
        budgets = [budget] if isinstance(budget, int) else budget
        self._core = core.ControllerHandle.init(participants, budgets, groups, config)
        least, most = _each(minimum, participants, "minimum"), _each(capacity, participants, "capacity")
        for i in range(participants):
            self._core.limit(i, least[i] or 0, most[i])

    @classmethod
    def from_state(cls, state: bytes) -> Controller:
        """Return the controller that `state` describes; CoreError when the bytes are damaged."""
        self = cls.__new__(cls)
        self._policy, self._loop = WEIGHTED, None
        if state[: len(_GOAL)] == _GOAL:
            self._policy, rest, state = _open(state)
            try:
                self._loop = Loop.from_state(Goal.parse(self._policy), rest)
            except (ValueError, struct.error):
                raise CoreError("Controller state: it is damaged, cut short or of another version") from None
        self._core = core.ControllerHandle.load(state)
        return self

    def state(self) -> bytes:
        """Return everything: configuration, estimates, present shares. The bytes mean the same on every machine."""
        if self._loop is None:
            return self._core.save()
        parts = self._policy.encode(), self._loop.state(), self._core.save()
        body = _GOAL + struct.pack("<3I", *map(len, parts)) + b"".join(parts)
        return body + struct.pack("<I", zlib.crc32(body))

    def __len__(self) -> int:
        return self._core.n

    def observe(
        self,
        i: int,
        seconds: float,
        energy_j: float | None,
        samples: int,
        fixed_seconds: float | None = None,
        wait_seconds: float = 0.0,
        wait_energy_j: float = 0.0,
    ) -> None:
        """Take what participant i measured of one contribution: compute only, waiting apart. energy_j None: unknown.

        samples 0 changes nothing. CoreError, and nothing changed, when seconds are not finite and above 0.
        """
        known_j = core.UNKNOWN if energy_j is None else energy_j
        self._core.observe(i, (seconds, known_j, fixed_seconds or 0.0, wait_seconds, wait_energy_j), samples)
        if self._loop is not None and not self._core.flags(i)["report_held"]:
            self._loop.observe(i, seconds, energy_j, samples, fixed_seconds or 0.0)

    def observe_wait(self, i: int, seconds: float, energy_j: float) -> None:
        """Take what participant i drew while it waited, told apart from its work."""
        self._core.add_wait(i, seconds, energy_j)

    def set_idle_power(self, i: int, watts: float) -> None:
        """Take what participant i draws idle: what it is thought to draw at the barrier, until it has waited."""
        if not 0.0 < watts < 1e100:
            raise CoreError(f"participant {i}: idle power is {watts} W; expected a number above 0")
        if self._loop is not None:
            self._loop.set_idle(i, watts)

    def allocate(self) -> list[int]:
        """End the round and return everybody's samples for the next: 0 for the absent, sums exactly to the budget(s).

        CoreError, and nothing changed, when the limits do not allow a budget; the text names the missing samples.
        """
        if self._loop is None:
            return self._core.allocate()
        before = self.shares
        shares = self._core.allocate()  # ends the round, and is the plan while no costs are known
        shares = self._loop.decide(self._core, self.budgets, before) or shares
        self._loop.settled = True
        self._core.set_shares(shares)
        return shares

    def add(self, group: int = 0, minimum: int | None = None, capacity: int | None = None) -> int:
        """Add a participant and return its index; minimum None: 1."""
        i = self._core.add(group)
        if self._loop is not None:
            self._loop.add()
        self._unsettle()
        self._core.limit(i, 1 if minimum is None else minimum, capacity)
        return i

    def remove(self, i: int) -> None:
        """Take participant i out; what it measured is kept."""
        self._core.remove(i)
        self._unsettle()

    def restore(self, i: int) -> None:
        """Bring participant i back with the estimates it had."""
        self._core.restore(i)
        self._unsettle()

    def set_budget(self, budget: int, group: int = 0) -> None:
        """Change the samples a round of a group."""
        self._core.set_budget(group, budget)
        self._unsettle()

    def set_limits(self, i: int, minimum: int = 1, capacity: int | None = None) -> None:
        """Change the fewest and the most samples of participant i; 0 and None: none."""
        self._core.limit(i, minimum, capacity)
        self._unsettle()

    def limits(self, i: int) -> tuple[int, int | None]:
        """Return minimum and capacity of participant i."""
        return self._core.limits(i)

    @property
    def budgets(self) -> list[int]:
        """Samples a round of each group."""
        return self._core.budgets()

    @property
    def lapsed(self) -> list[int]:
        """Samples of each group in the last allocation that nobody was there to take."""
        return self._core.lapsed()

    @property
    def shares(self) -> list[int]:
        """The last allocation."""
        return [int(share) for share in self._core.column("share")]

    @property
    def costs(self) -> list[float]:
        """Cost of each by present estimates; 1 is the typical one of its group."""
        return self._core.costs()

    @property
    def seconds_per_sample(self) -> list[float | None]:
        """Smoothed compute seconds per sample; None before the first report."""
        return [x or None for x in self._core.column("seconds_per_sample")]

    def pace(self, i: int) -> float | None:
        """Return participant i's smoothed compute seconds per sample; None before its first report."""
        return self._core.value("seconds_per_sample", i) or None

    @property
    def energy_per_sample_j(self) -> list[float | None]:
        """Smoothed joules per sample; None while never known."""
        return [x or None for x in self._core.column("energy_per_sample_j")]

    @property
    def wait_power_w(self) -> list[float | None]:
        """Watts while waiting, over all waits with known joules; None while there was none."""
        seconds, joules = self._core.column("wait_seconds"), self._core.column("wait_energy_j")
        return [j / s if s > 0 else None for s, j in zip(seconds, joules, strict=True)]

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self._policy

    @property
    def loop(self) -> Loop | None:
        """What the last decision was made of, where the policy is a goal."""
        return self._loop

    @property
    def models(self) -> list[Model | None]:
        """What is thought of each, where the policy is a goal; None: never reported."""
        return [] if self._loop is None else self._loop.models(self._core)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the last allocation had to assume or to give up, a sentence each."""
        return () if self._loop is None else self._loop.notes

    def _unsettle(self) -> None:
        if self._loop is not None:
            self._loop.settled = False

    def flags(self, i: int) -> Flags:
        """Return what is to be known of participant i's figures."""
        return Flags(**self._core.flags(i))


def _loop(policy: str, participants: int, hysteresis: float) -> Loop | None:
    if policy == WEIGHTED:
        return None
    if not policy.startswith(PREFIX):
        raise CoreError(f"Controller: policy is {policy!r}; known: {WEIGHTED}, {EXAMPLES}")
    if not 0.0 <= hysteresis < 1.0:
        raise CoreError(f"Controller: hysteresis is {hysteresis}; expected a fraction from 0 (none) to below 1")
    try:
        return Loop(Goal.parse(policy), participants, hysteresis)
    except ValueError as error:
        raise CoreError(f"Controller: {error}") from None


def _open(state: bytes) -> tuple[str, bytes, bytes]:
    """Take saved bytes apart: policy, the loop's, those of C. What is damaged comes out as nothing that these load."""
    body, head = state[:-4], len(_GOAL) + 12
    if len(state) < head + 4 or zlib.crc32(body) != int.from_bytes(state[-4:], "little"):
        raise CoreError("Controller state: it is damaged, cut short or of another version")
    first, second, _ = struct.unpack("<3I", state[len(_GOAL) : head])
    name, rest = body[head : head + first], body[head + first : head + first + second]
    return name.decode(errors="replace"), rest, body[head + first + second :]


def _or_none(w_time: float | None) -> float:
    """Return w_time as C reads it: 0 is the default there, negative is none."""
    return 0.0 if w_time is None else w_time or -1.0


def _each(value: int | Iterable[int] | None, n: int, name: str) -> Sequence[int | None]:
    """Return a limit for each of n participants."""
    if value is None or isinstance(value, int):
        return [value] * n
    limits = list(value)
    if len(limits) != n:
        raise CoreError(
            f"{name} holds {len(limits)} values for {n} participants; expected one each, or one number for all"
        )
    return limits
