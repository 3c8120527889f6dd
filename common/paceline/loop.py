# SPDX-License-Identifier: Apache-2.0
"""A goal in a closed loop: reports -> a model of each board -> the plan that serves the goal, or the one there is.

Watts are smoothed, not joules per sample: they hardly depend on the share. Fixed seconds are taken as timed where a
board times them apart; else a fit infers them, and is believed where it foretells better than seconds / samples do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from paceline.core import ControllerHandle, Fit
from paceline.goals import Goal, OutOfReachError, Pace, Plan, cost, frontier

HYSTERESIS = 0.02  # a plan is kept while another is foretold to gain no more than so much
FLOOR = 0.01  # of an equal share, that each board gets at least: its costs stay known
WATTS_EMA = 0.5
WAIT_S = 1.0  # of waiting, from which on its watts are believed more than those of an idle board
_BOARD = struct.Struct("<12dI")


@dataclass(frozen=True)
class Model:
    """What is thought of one board, and why. None: not known."""

    fixed_seconds: float
    seconds_per_sample: float
    active_w: float | None
    wait_w: float | None
    seconds_from: Literal["timed apart", "affine fit", "proportional", "median of the others"]
    wait_from: Literal["waits", "idle", "others' ratio", "active watts", "unknown"]
    affine: tuple[float, float, float]  # fixed seconds, seconds a sample, relative error with which it foretold
    proportional: tuple[float, float]  # seconds a sample, relative error


@dataclass
class _Board:
    fit: Fit = field(default_factory=Fit)
    watts: float = 0.0  # while computing; 0: unknown
    pace_apart: float = 0.0  # seconds a sample beside fixed seconds that were timed; 0: they were not
    idle_w: float = 0.0  # measured before the run; 0: it was not


class Loop:
    """The memory of a goal beside that of a controller. Boards are the controller's participants."""

    def __init__(self, goal: Goal, boards: int, hysteresis: float = HYSTERESIS) -> None:
        self.goal, self.hysteresis = goal, hysteresis
        self.settled = False  # members, budgets and limits are those of the last plan
        self.paces: list[Pace] = []  # of the present, in order: what the last plan was made of
        self.plan: Plan | None = None  # the last that was made, and ...
        self.kept = False  # ... whether the one before it was kept instead
        self.notes: tuple[str, ...] = ()  # what the last plan had to assume or to give up
        self._boards = [_Board() for _ in range(boards)]

    def add(self) -> None:
        """A participant is added."""
        self._boards.append(_Board())

    def set_idle(self, i: int, watts: float) -> None:
        """Take what board i draws idle, a prior of what it draws while it waits."""
        self._boards[i].idle_w = watts

    def observe(self, i: int, seconds: float, energy_j: float | None, samples: int, fixed_seconds: float) -> None:
        """Take a report that the controller has believed."""
        if samples == 0:
            return
        board = self._boards[i]
        board.fit.observe(seconds, samples)
        weight = min(1.0, samples / board.fit.typical_samples)  # few samples tell little
        if energy_j is not None and 0.0 < energy_j < float("inf"):
            watts = energy_j / seconds
            board.watts += (WATTS_EMA * weight if board.watts else 1.0) * (watts - board.watts)
        if 0.0 < fixed_seconds < seconds:
            pace = (seconds - fixed_seconds) / samples
            board.pace_apart += (WATTS_EMA * weight if board.pace_apart else 1.0) * (pace - board.pace_apart)

    # Models -----------------------------------------------------------------------------------------------------------

    def models(self, handle: ControllerHandle) -> list[Model | None]:
        """Return what is thought of each board; None of one that never reported."""
        plain, fixed = handle.column("seconds_per_sample"), handle.column("fixed_seconds")
        wait_s, wait_j = handle.column("wait_seconds"), handle.column("wait_energy_j")
        found: list[Model | None] = []
        for i, board in enumerate(self._boards):
            if plain[i] == 0.0:
                found.append(None)
                continue
            a, tau, told = self._seconds(board, plain[i], fixed[i])
            watts = board.watts if board.watts and not handle.flags(i)["energy_unknown"] else None
            wait: tuple[float | None, Literal["waits", "idle", "unknown"]] = (None, "unknown")
            if wait_s[i] >= WAIT_S or (wait_s[i] > 0.0 and not board.idle_w):
                wait = wait_j[i] / wait_s[i], "waits"
            elif board.idle_w:
                wait = board.idle_w, "idle"
            fit = board.fit
            found.append(
                Model(
                    a, tau, watts, wait[0], told, wait[1],
                    (fit.fixed_seconds, fit.seconds_per_sample, fit.error_affine**0.5),
                    (plain[i], fit.error_proportional**0.5),
                )
            )  # fmt: skip
        return _without_gaps(found)

    def _seconds(
        self, board: _Board, plain: float, fixed: float
    ) -> tuple[float, float, Literal["timed apart", "affine fit", "proportional"]]:
        if board.pace_apart:
            return fixed, board.pace_apart, "timed apart"
        if board.fit.is_affine:
            return board.fit.fixed_seconds, board.fit.seconds_per_sample, "affine fit"
        return 0.0, plain, "proportional"

    # Plans ------------------------------------------------------------------------------------------------------------

    def decide(self, handle: ControllerHandle, budgets: Sequence[int], current: Sequence[int]) -> list[int] | None:
        """Return the shares of the next round, `current` where these are kept; None while nothing is known of costs."""
        models = self.models(handle)
        self.notes, self.plan, self.kept = (), None, False
        present = [i for i in range(handle.n) if handle.flags(i)["present"]]
        if not any(models[i] for i in present):
            return None
        paces, goal = self._paces(handle, models, present, budgets)
        self.paces = paces
        lots = [n if any(p.group == g for p in paces) else 0 for g, n in enumerate(budgets)]  # nobody there: it lapses
        now = [current[i] for i in present]
        try:
            plan = frontier(goal, paces, lots, current=now if self.settled else None)
        except OutOfReachError as error:
            goal = Goal("energy" if goal.kind == "budget" else "time")
            self.notes += (f"{error} (planned for frontier:{goal.kind})",)
            plan = frontier(goal, paces, lots, current=now if self.settled else None)
        self.plan = plan
        if goal.kind == "energy" and plan.seconds > 2 * plan.least_seconds:
            self.notes += (f"least joules take long; {plan.seconds / plan.least_seconds:.2g} times the shortest round: "
                           "frontier:edp or frontier:deadline=1.2x bound that",)  # fmt: skip
        if self.settled and _fits(paces, now, lots) and self._hardly_better(goal, plan, cost(paces, now, len(lots))):
            self.kept = True
            return list(current)
        shares = [0] * handle.n
        for i, share in zip(present, plan.shares, strict=True):
            shares[i] = share
        return shares

    def _hardly_better(self, goal: Goal, plan: Plan, now: tuple[float, float]) -> bool:
        seconds, joules = now
        limit_s = goal.limit * plan.least_seconds if goal.kind == "factor" else goal.limit
        if goal.kind in ("deadline", "factor"):
            return seconds <= limit_s and plan.energy_j >= joules * (1 - self.hysteresis)
        if goal.kind == "budget":
            return joules <= goal.limit and plan.seconds >= seconds * (1 - self.hysteresis)
        if goal.kind == "time":
            return plan.seconds >= seconds * (1 - self.hysteresis)
        scale = (plan.seconds, seconds) if goal.kind == "edp" else (1.0, 1.0)
        return plan.energy_j * scale[0] >= joules * scale[1] * (1 - self.hysteresis)

    def _paces(
        self, handle: ControllerHandle, models: Sequence[Model | None], present: Sequence[int], budgets: Sequence[int]
    ) -> tuple[list[Pace], Goal]:
        """Return the present boards' models without gaps, and the goal that they allow."""
        groups = handle.column("group")
        of_group = [groups[i] for i in present]
        known = [models[i] for i in present]
        powered = [m for m in known if m is not None and m.active_w is not None]
        goal = self.goal if powered else Goal("time")
        if not powered and self.goal.kind != "time":
            self.notes += ("time only: no energy readings",)
        reported = [m for m in known if m is not None]
        peers: dict[int, list[Model]] = {}
        for m, g in zip(known, of_group, strict=True):
            if m is not None:
                peers.setdefault(g, []).append(m)
        paces = []
        for i, model in zip(present, known, strict=True):
            pace = _pace(model, peers.get(groups[i]) or reported, powered)
            least, most = handle.limits(i)
            paces.append(replace(pace, minimum=least, capacity=most, group=groups[i]))
        for g, budget in enumerate(budgets):
            own = [k for k, p in enumerate(paces) if p.group == g]
            floors = [_floor(paces[k], budget / len(own)) for k in own]
            if sum(floors) <= budget:
                for k, floor in zip(own, floors, strict=True):
                    paces[k] = replace(paces[k], minimum=floor)
        dear = [
            i for i, p in zip(present, paces, strict=True) if p.energy_per_sample_j < p.wait_w * p.seconds_per_sample
        ]
        if dear and powered:
            self.notes += (f"waiting is dearer than working on board {dear[0]}: was it measured under load?",)
        return paces, goal

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Return what was learned; the same bytes on every machine."""
        rows = [
            _BOARD.pack(*board.fit.values()[:-1], board.watts, board.pace_apart, board.idle_w, int(board.fit.reports))
            for board in self._boards
        ]
        return struct.pack("<Id?", len(rows), self.hysteresis, self.settled) + b"".join(rows)

    @classmethod
    def from_state(cls, goal: Goal, state: bytes) -> Loop:
        """Return the loop that `state` describes; struct.error where it is cut."""
        head = struct.calcsize("<Id?")
        n, hysteresis, settled = struct.unpack("<Id?", state[:head])
        if len(state) != head + n * _BOARD.size:
            raise struct.error("cut short")
        self = cls(goal, n, hysteresis)
        self.settled = settled
        for board, values in zip(self._boards, _BOARD.iter_unpack(state[head:]), strict=True):
            board.fit = Fit((*values[:9], values[12]))
            board.watts, board.pace_apart, board.idle_w = values[9:12]
        return self


def _floor(pace: Pace, equal: float) -> int:
    """Return a hundredth of an equal share, as far as the capacity allows, or the minimum above it."""
    floor = max(pace.minimum, round(FLOOR * equal))
    return floor if pace.capacity is None else min(floor, pace.capacity)


def _without_gaps(models: list[Model | None]) -> list[Model | None]:
    """Fill in waiting watts that nobody has seen: by the ratio that the others have, else as if work went on."""
    ratios = [m.wait_w / m.active_w for m in models if m and m.wait_w is not None and m.active_w]
    filled: list[Model | None] = []
    for m in models:
        if m is not None and m.wait_w is None and m.active_w is not None:
            if ratios:
                m = replace(m, wait_w=median(ratios) * m.active_w, wait_from="others' ratio")
            else:
                m = replace(m, wait_w=m.active_w, wait_from="active watts")
        filled.append(m)
    return filled


def _pace(model: Model | None, peers: Sequence[Model], powered: Sequence[Model]) -> Pace:
    """Return a board's costs, with the medians of the others' in place of what is not known of it."""
    if model is None:
        model = Model(
            _middle(peers, lambda m: m.fixed_seconds), _middle(peers, lambda m: m.seconds_per_sample), None, None,
            "median of the others", "unknown", (0.0, 0.0, 0.0), (0.0, 0.0),
        )  # fmt: skip
    tau, a = model.seconds_per_sample, model.fixed_seconds
    if not powered:
        return Pace(tau, 0.0, 0.0, a)
    wait = model.wait_w if model.wait_w is not None else _middle(powered, lambda m: m.wait_w or 0.0)
    if model.active_w is None:  # as many joules above waiting, a sample, as others have
        marginal = _middle(powered, lambda m: ((m.active_w or 0.0) - (m.wait_w or 0.0)) * m.seconds_per_sample)
        return Pace(tau, max(0.0, marginal + wait * tau), wait, a, wait * a)
    return Pace(tau, model.active_w * tau, wait, a, model.active_w * a)


def _middle(models: Sequence[Model], value: Callable[[Model], float]) -> float:
    return median(value(m) for m in models)


def _fits(paces: Sequence[Pace], shares: Sequence[int], budgets: Sequence[int]) -> bool:
    """Whether shares of before keep today's limits and budgets."""
    sums = [0] * len(budgets)
    for pace, share in zip(paces, shares, strict=True):
        sums[pace.group] += share
        if share < pace.minimum or (pace.capacity is not None and share > pace.capacity):
            return False
    return sums == list(budgets)
