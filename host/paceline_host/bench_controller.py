# SPDX-License-Identifier: Apache-2.0
"""What a plan costs, by the number of boards: the C core, the same from Python, and the best that numpy makes of it.

All contenders of a size take turns in one run, in an order that turns too; ratios are formed inside a turn. CPU time of
this thread: other programs make it longer, but not by waiting. numpy's results are checked against the core's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from paceline import Controller, Goal, Pace, allocate, core, frontier
from paceline.errors import RunError

SIZES = {11: (40, 400), 1_000: (25, 20), 100_000: (9, 1), 1_000_000: (5, 1)}  # boards: (turns, calls a turn)
PACE = np.dtype(
    {
        "names": ["a", "tau", "f", "eps", "p", "spared", "minimum", "capacity", "group"],
        "formats": ["f8"] * 6 + ["u4"] * 3,
        "itemsize": 64,
    }
)
Row = tuple[str, str, list[float]]


def measure(say: Callable[[str], None]) -> Iterator[Row]:
    """Yield (name, unit, values) of each figure."""
    for size, (turns, calls) in SIZES.items():
        say(f"{size:,} boards")
        rng = np.random.default_rng(1)
        tau = np.exp(rng.uniform(np.log(1e-3), np.log(0.03), size))
        watts, budget = rng.uniform(2.0, 30.0, size), 100 * size
        yield from _allocation(size, turns, calls, tau, budget)
        yield from _frontiers(size, turns, max(1, calls // 8), tau, watts, watts * rng.uniform(0.0, 0.5, size), budget)


def _allocation(size: int, turns: int, calls: int, costs: Any, budget: int) -> Iterator[Row]:
    if list(numpy_allocate(costs, budget)) != allocate(costs, budget):
        raise RunError("numpy's shares are not the core's")  # equal but for ties and the last bit, which these lack
    contenders: dict[str, Callable[[], object]] = {
        "C": core.prepared_allocate(costs, budget),
        "Python": lambda: allocate(costs, budget),
        "numpy": lambda: numpy_allocate(costs, budget),
    }
    if size == 11:
        boards = Controller(size, budget)
        for i, cost in enumerate(costs):
            boards.observe(i, cost * 100, cost * 500, 100)
        contenders["Controller"] = boards.allocate
        listed = list(costs)
        contenders["Python"] = lambda: allocate(listed, budget)
    yield from _rows(f"allocate, K = {size:,}", turned(contenders, turns, calls))


def _frontiers(size: int, turns: int, calls: int, tau: Any, watts: Any, wait_w: Any, budget: int) -> Iterator[Row]:
    paces = np.zeros(size, PACE)
    paces["tau"], paces["eps"], paces["p"], paces["minimum"], paces["capacity"] = (
        tau,
        watts * tau,
        wait_w,
        1,
        0xFFFFFFFF,
    )
    in_c = core.prepared_frontier("energy", 0.0, paces, budget)
    contenders: dict[str, Callable[[], object]] = {
        "C": in_c,
        "numpy": lambda: numpy_least_joules(tau, watts * tau, wait_w, budget),
    }
    if size <= 1_000:
        boards = [Pace(t, w * t, p) for t, w, p in zip(tau.tolist(), watts.tolist(), wait_w.tolist(), strict=True)]
        contenders["Python"] = lambda: frontier(Goal("energy"), boards, budget)
    joules = numpy_least_joules(tau, watts * tau, wait_w, budget)[1]
    if not abs(in_c()[1] / joules - 1) < 1e-6:
        raise RunError(f"numpy finds {joules} J, the core {in_c()[1]} J")
    yield from _rows(f"frontier:energy, K = {size:,}", turned(contenders, turns, calls))


def turned(contenders: Mapping[str, Callable[[], object]], turns: int, calls: int) -> dict[str, list[float]]:
    """Return microseconds a call, of contenders that take turns."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for call in contenders.values():
        call()
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call, began_ns = contenders[name], time.thread_time_ns()
            for _ in range(calls):
                call()
            found[name].append((time.thread_time_ns() - began_ns) / calls / 1000)
    return found


def _rows(what: str, found: Mapping[str, list[float]]) -> Iterator[Row]:
    long = found["C"][0] > 10_000
    for name, values in found.items():
        yield f"{what}: {name}", "ms" if long else "us", [value / 1000 if long else value for value in values]
    for name, values in found.items():
        if name != "C":
            yield f"{what}: {name} / C", "x", [value / c for value, c in zip(values, found["C"], strict=True)]


# What one writes with numpy -------------------------------------------------------------------------------------------


def numpy_allocate(costs: Any, budget: int, minimum: int = 1) -> Any:
    """Return the shares of `allocate` with one minimum for all; sums in another order."""
    weights = 1.0 / costs
    shares = weights * (budget / weights.sum())
    low = shares < minimum
    while low.any():  # whoever is below the minimum gets it, and the others share the rest
        rest = budget - minimum * int(low.sum())
        shares = np.where(low, minimum, weights * (rest / weights[~low].sum()))
        lower = low | (shares < minimum)
        if (lower == low).all():
            break
        low = lower
    whole = shares.astype(np.uint32)
    left = budget - int(whole.sum())
    if left:
        part = shares - whole
        part[low] = -1.0
        whole[np.argpartition(part, -left)[-left:]] += 1
    return whole


def numpy_least_joules(tau: Any, eps: Any, wait_w: Any, budget: int) -> tuple[float, float]:
    """Return seconds and joules of the cheapest plan in real samples, by halving; one sample each at least."""
    marginal = eps - wait_w * tau
    order = np.argsort(marginal)
    tau, marginal, power = tau[order], marginal[order], wait_w.sum()
    base, rest = marginal.sum(), budget - len(tau)

    def joules(t: float) -> float:
        room = np.minimum(np.maximum(t / tau - 1.0, 0.0), rest)
        filled = np.cumsum(room)
        k = int(np.searchsorted(filled, rest))
        return float(
            base
            + power * t
            + marginal[:k] @ room[:k]
            + marginal[min(k, len(tau) - 1)] * (rest - filled[k - 1] if k else rest)
        )

    low, high = max(budget / (1.0 / tau).sum(), tau.max()), 4.0 * budget / (1.0 / tau).sum()
    golden = 0.6180339887498949
    while high - low > 1e-7 * high:  # convex in between
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if joules(a) <= joules(b) else (a, high)
    return low, joules(low)
