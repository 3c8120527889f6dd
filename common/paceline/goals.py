# SPDX-License-Identifier: Apache-2.0
"""What a plan is to achieve: least joules, least seconds, or one within a bound on the other; and the plan that does.

One round only, from a model that the caller has: measuring and deciding again each round is in `paceline.loop`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from statistics import median

from paceline import core
from paceline.errors import CoreError

PREFIX = "frontier:"
EXAMPLES = (
    "frontier:time, frontier:energy, frontier:edp, frontier:deadline=30s, frontier:deadline=1.2x, frontier:budget=500J"
)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of joules in the cost; no plan is to be worse than what one of these gives
WEIGHTS_MOST = 10_000  # boards up to which they are tried: above, whole samples are as good as real ones
_UNITS = {
    "deadline": {"s": 1.0, "ms": 1e-3, "min": 60.0, "x": 1.0},
    "budget": {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "Wh": 3600.0},
}


@dataclass(frozen=True)
class Goal:
    """`kind`: time, energy, edp, deadline (seconds), factor (of the least time) or budget (joules)."""

    kind: str
    limit: float = 0.0

    @classmethod
    def parse(cls, name: str) -> Goal:
        """Return the goal of "frontier:energy", "frontier:deadline=30s", ... Raises ValueError, a sentence."""
        kind, equals, amount = name.removeprefix(PREFIX).partition("=")
        if (
            not name.startswith(PREFIX)
            or kind not in ("time", "energy", "edp", *_UNITS)
            or bool(equals) != (kind in _UNITS)
        ):
            raise ValueError(f"unknown policy {name!r}; known: {EXAMPLES}")
        if not equals:
            return cls(kind)
        found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?) ?([A-Za-z]+)", amount)
        try:
            limit = float(found[1]) * _UNITS[kind][found[2]] if found else math.nan
        except (ValueError, KeyError):
            limit = math.nan
        if not 0.0 < limit <= 1e100:
            units = ", ".join(_UNITS[kind])
            raise ValueError(
                f"policy {name!r}: expected {kind}=NUMBER and one of the units {units}; for instance {EXAMPLES}"
            )
        if found is not None and found[2] == "x":
            if limit < 1.0:
                raise ValueError(f"policy {name!r}: no round is shorter than the shortest; expected 1x or more")
            return cls("factor", limit)
        return cls(kind, limit)


@dataclass(frozen=True)
class Pace:
    """What a board costs: seconds are fixed_seconds + seconds_per_sample * n, joules likewise, and watts in between."""

    seconds_per_sample: float
    energy_per_sample_j: float
    wait_w: float  # at the barrier; never guess 0, which rewards waiting
    fixed_seconds: float = 0.0
    fixed_j: float = 0.0
    minimum: int = 1
    capacity: int | None = None
    group: int = 0
    spared_w: float = 0.0  # of wait_w, what is saved between its group's end and the round's

    def seconds(self, samples: int) -> float:
        """Return how long a share takes."""
        return self.fixed_seconds + self.seconds_per_sample * samples


@dataclass(frozen=True)
class Plan:
    """Whole samples, and how good they are by the model; `real_*` is the optimum in real ones, a bound for all."""

    shares: list[int]
    seconds: float
    energy_j: float
    real_seconds: float
    real_j: float
    slack_j: float  # no more than so many joules above real_j, for `energy`
    least_seconds: float
    least_j: float
    curve: list[tuple[float, float]]  # corners (seconds, least joules), from least joules to least seconds


class OutOfReachError(CoreError):
    """A goal's limit that no plan keeps; `nearest` is the limit next to it that one does."""

    def __init__(self, text: str, nearest: float) -> None:
        super().__init__(text)
        self.nearest = nearest


def frontier(
    policy: str | Goal, paces: Sequence[Pace], budget: int | Sequence[int], current: Sequence[int] | None = None
) -> Plan:
    """Return the plan that serves the goal best by the model. `budget`: samples, of each group where there are several.

    It is never longer and dearer than `current` (shares of before, optional), or than any weight of joules and seconds
    gives. Raises OutOfReachError, which names the nearest limit that can be kept, and CoreError for impossible figures.
    """
    goal = Goal.parse(policy) if isinstance(policy, str) else policy
    budgets = [budget] if isinstance(budget, int) else list(budget)
    rows = [
        (p.fixed_seconds, p.seconds_per_sample, p.fixed_j, p.energy_per_sample_j, p.wait_w, p.spared_w, p.minimum,
         core.U32_MAX if p.capacity is None else p.capacity, p.group)
        for p in paces
    ]  # fmt: skip
    rivals = [current] if current is not None and len(current) == len(paces) else []
    rivals += list(weighted(paces, budgets))
    times = [max((p.seconds(n) for p, n in zip(paces, shares, strict=True)), default=0.0) for shares in rivals]
    verdict, shares, figures, curve = core.frontier_plan(goal.kind, goal.limit, rows, budgets, times)
    if verdict:
        raise _out_of_reach(goal, paces, figures)
    return Plan(
        shares, figures["seconds"], figures["energy_j"], figures["real_seconds"], figures["real_j"],
        figures["slack_j"], figures["least_seconds"], figures["least_j"], curve,
    )  # fmt: skip


def weighted(paces: Sequence[Pace], budgets: Sequence[int]) -> Iterator[list[int]]:
    """Yield the shares that each of WEIGHTS gives, with the same limits; nothing where these cannot be kept."""
    if not 0 < len(paces) <= WEIGHTS_MOST or any(p.energy_per_sample_j <= 0.0 for p in paces):
        return
    members = [[i for i, p in enumerate(paces) if p.group == g] for g in range(len(budgets))]
    for weight in WEIGHTS:
        shares = [0] * len(paces)
        try:
            for own, budget in zip(members, budgets, strict=True):
                tau = median(paces[i].seconds_per_sample for i in own) if own else 1.0
                eps = median(paces[i].energy_per_sample_j for i in own) if own else 1.0
                costs = [
                    (1 - weight) * paces[i].seconds_per_sample / tau + weight * paces[i].energy_per_sample_j / eps
                    for i in own
                ]
                least, most = [paces[i].minimum for i in own], [_most(paces[i].capacity) for i in own]
                for i, share in zip(own, core.allocate(costs, budget, least, most), strict=True):
                    shares[i] = share
        except CoreError:
            continue  # the frontier itself says what is wrong
        yield shares


def cost(paces: Sequence[Pace], shares: Sequence[int], n_groups: int = 1) -> tuple[float, float]:
    """Return seconds and joules of a round by the model."""
    ends = [p.seconds(n) for p, n in zip(paces, shares, strict=True)]
    groups = [
        max((end for p, end in zip(paces, ends, strict=True) if p.group == g), default=0.0) for g in range(n_groups)
    ]
    seconds = max(ends, default=0.0)
    joules = 0.0
    for p, n, end in zip(paces, shares, ends, strict=True):
        joules += p.fixed_j + p.energy_per_sample_j * n + p.wait_w * (seconds - end)
        joules -= p.spared_w * (seconds - groups[p.group])
    return seconds, joules


def _most(capacity: int | None) -> int:
    return core.U32_MAX if capacity is None else capacity


def _up(limit: float) -> str:
    """Return it in six digits, rounded up: what is shown can be asked for."""
    return f"{Context(prec=6, rounding=ROUND_CEILING).create_decimal(repr(limit)):g}"


def _out_of_reach(goal: Goal, paces: Sequence[Pace], figures: dict[str, float]) -> OutOfReachError:
    nearest = figures["nearest"]
    if goal.kind == "budget":
        return OutOfReachError(
            f"no plan takes {goal.limit:g} J or less; least joules are {_up(nearest)}: ask for that or more, or for "
            "frontier:energy", nearest,
        )  # fmt: skip
    least = [p.seconds(p.minimum) for p in paces]
    late = max(range(len(paces)), key=lambda i: least[i]) if paces else 0
    why = "all boards are full then"
    if paces and least[late] >= figures["least_seconds"] * (1 - 1e-12):
        why = f"board {late} takes that long for its minimum alone"
    text = f"no plan ends within {goal.limit:g} s; the shortest takes {_up(figures['least_seconds'])} s ({why})"
    if goal.kind == "factor":
        text = f"no round is shorter than the shortest, {goal.limit:g}x of it is asked for"
    return OutOfReachError(f"{text}: ask for that or more, or for frontier:time", nearest)
