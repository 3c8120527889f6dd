# SPDX-License-Identifier: Apache-2.0
"""What is to be simulated: one frozen dataclass, filled from a TOML file and the command line. Decides nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from paceline.policies import METHODS, fits, policy
from paceline.settings import Bounds, Check
from paceline_host.profile import is_path
from paceline_host.simulation.faults import Fault
from paceline_host.simulation.traces import Traced

SHARE = 1091  # samples a board and round, where no budget is given: the demo's
REGIME = "pma"  # whose rounds are simulated
MOST_BOARDS = 1_000_000
MOST_IN_FULL = 20_000  # boards that speak the protocol


def _simulated(name: str) -> None:
    entry = policy(name)
    if entry.name in METHODS:
        raise ValueError(f"policy {name!r} is a method of split learning, which the simulator does not do")
    if not fits(entry, REGIME):
        why = "counts steps of a round, which" if entry.every else "is nothing for"
        raise ValueError(f"policy {name!r} {why} regime {REGIME}{' has not' if entry.every else ''}")


@dataclass(frozen=True)
class Scenario:
    """Defaults: the demo's experiment over the demo's fleet."""

    policies: Annotated[tuple[Annotated[str, Check(_simulated)], ...], Bounds(ge=1)] = ("equal", "time", "low-energy")
    rounds: Annotated[int, Bounds(ge=1, le=1_000_000)] = 20
    boards: Annotated[int, Bounds(ge=0, le=MOST_BOARDS)] = 0  # 0: as many as the profile has; more: like those
    budget: Annotated[int, Bounds(ge=0, le=2_000_000_000)] = 0  # samples a round; 0: SHARE for each board
    seed: Annotated[int, Bounds(ge=0, lt=1 << 63)] = 1
    profile: Annotated[str, Bounds(ge=1)] = "eleven-boards"  # shipped, or a path
    samples: Annotated[int, Bounds(ge=1, lt=1 << 31)] = 60_000  # in the data set that nobody reads
    batch: Annotated[int, Bounds(ge=1, le=1 << 20)] = 16
    minimum: Annotated[int, Bounds(ge=0)] = 1
    slice: Annotated[int, Bounds(ge=0, le=1 << 31)] = 0  # samples, of fedasync; 0: a quarter of an equal share
    seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.0025  # of a board of speed 1.0
    round_fixed_s: Annotated[float, Bounds(ge=0, le=3600)] = 0.0  # of each slice, whatever its size
    noise: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # relative, of a slice as a whole; of steps: the profile's
    drift: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # relative, of seconds per sample from one round to the next
    latency_s: Annotated[float, Bounds(ge=0, le=60)] = 0.001
    megabits_per_s: Annotated[float, Bounds(gt=0, le=1e6)] = 100.0  # of each board's link, each way
    model_bytes: Annotated[int, Bounds(ge=16, le=1 << 34)] = 203_560  # that links are charged for; the demo's
    patience_s: Annotated[float, Bounds(ge=1, le=3600)] = 30.0
    fault_rate: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # of a board in a round, at random
    fault: tuple[Fault, ...] = ()
    trace: tuple[Traced, ...] = ()  # boards of a profile whose watts are recorded ones

    def __post_init__(self) -> None:
        if len(set(self.policies)) < len(self.policies):
            raise ValueError("policies: each only once")

    def budget_of(self, boards: int) -> int:
        """Return the samples a round."""
        return self.budget or SHARE * boards


def resolve(table: dict[str, Any], base: Path) -> None:
    """Let the relative paths of a file's table start at the file's folder, as those of all our files do."""
    profile, traces = table.get("profile"), table.get("trace")
    if isinstance(profile, str) and is_path(profile):
        table["profile"] = os.path.normpath(base / profile)
    for one in traces if isinstance(traces, list) else ():
        for key in ("active", "idle"):
            if isinstance(one, dict) and isinstance(path := one.get(key), str) and path:
                one[key] = os.path.normpath(base / path)
