# SPDX-License-Identifier: Apache-2.0
"""The allocation policies and the methods of split learning by name. A table and its look-up; what they do is done
elsewhere.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Literal

from paceline.goals import PREFIX, Goal

ANY_WEIGHT = "w_energy:"
IN_STEPS = "ema-batch:every="


@dataclass(frozen=True)
class Policy:
    """A policy as an experiment names it."""

    name: str
    kind: Literal["equal", "static", "weighted", "frontier", "ema-batch", "oort", "mixing", "method"]
    # Weight of joules in the cost, for "weighted"; the rest is the weight of time. "frontier": above 0 where joules
    # matter, so that meters are asked for.
    w_energy: float | None = None
    every: int = 0  # so many steps of a round, and shares are planned anew; 0: they stay for the round


POLICIES = {
    entry.name: entry
    for entry in (
        Policy("equal", "equal"),  # the same share for everybody
        Policy("static", "static"),  # measured in the first round, then fixed
        Policy("ema-batch", "ema-batch"),  # smoothed throughput alone, renewed each round
        Policy("oort", "oort"),  # two thirds of the boards are selected, who have the same share; the others wait
        Policy("time", "weighted", 0.0),
        Policy("low-energy", "weighted", 0.25),
        Policy("balanced", "weighted", 0.5),
        Policy("high-energy", "weighted", 0.75),
        Policy("energy", "weighted", 1.0),
    )
}
MIXINGS = {  # of regime async: updates are mixed in as they arrive, whatever their age, or the less the older they are
    name: Policy(name, "mixing") for name in ("fedasync", "fedasync-poly", "fedasync-hinge")
}
METHODS = {name: Policy(name, "method") for name in ("gpsl", "fls", "fpls", "central")}  # of regime psl


def policy(name: str) -> Policy:
    """Return what a name stands for in any table; "w_energy:0.3" is any weight from 0 to 1, "frontier:..." a goal,
    "ema-batch:every=10" is renewed within a round of synchronised ranks.

    Raises ValueError: one sentence, a suggestion.
    """
    for table in (POLICIES, MIXINGS, METHODS):
        if name in table:
            return table[name]
    if name.startswith(PREFIX):
        return Policy(name, "frontier", 0.0 if Goal.parse(name).kind == "time" else 1.0)
    if name.startswith(IN_STEPS):
        return Policy(name, "ema-batch", every=_steps(name))
    if name.startswith(ANY_WEIGHT):
        return Policy(name, "weighted", _weight(name))
    close = difflib.get_close_matches(
        name, [*POLICIES, *MIXINGS, *METHODS, ANY_WEIGHT, f"{PREFIX}energy"], n=1, cutoff=0.6
    )
    known = (
        f"{', '.join(POLICIES)}, w_energy:X with X from 0 to 1, frontier:energy; of regime async {', '.join(MIXINGS)}; "
        f"of regime psl {', '.join(METHODS)}"
    )
    hint = f"did you mean {close[0]}?" if close else f"known: {known}"
    raise ValueError(f"unknown policy {name!r}; {hint}")


def fits(entry: Policy, regime: str) -> bool:
    """Tell whether a policy makes sense in an experiment of a regime: all ranks of a group work, in step, and only they
    have steps within a round.

    Mixing has a regime of its own, `regime_of`, and stands beside those that divide samples for comparison.
    """
    if entry.kind == "mixing":
        return regime in ("pma", "async")
    if entry.kind == "oort":
        return regime == "pma"
    return regime != "async" and (not entry.every or regime in ("ddp", "hfl"))


def regime_of(entry: Policy, regime: str) -> str:
    """Return the regime of a policy's run in an experiment of a regime."""
    return "async" if entry.kind == "mixing" else regime


def _steps(name: str) -> int:
    number = name.removeprefix(IN_STEPS)
    if not (number.isascii() and number.isdigit() and int(number)):
        raise ValueError(f"policy {name!r}: expected a number of steps from 1 on; for instance {IN_STEPS}10")
    return int(number)


def _weight(name: str) -> float:
    try:
        weight = float(name.removeprefix(ANY_WEIGHT))
    except ValueError:
        weight = math.nan
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"policy {name!r}: the weight is no number from 0 to 1; for instance w_energy:0.3")
    return weight
