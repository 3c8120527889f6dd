# SPDX-License-Identifier: Apache-2.0
"""From a fleet and a policy's name to the figures of its run: the two modes side by side."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline_host.simulation.alone import OnRound, simulate_alone
from paceline_host.simulation.faults import Fault, by_round, drawn
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.results import Outcome


def run_policy(
    fleet: Fleet, name: str, folder: Path | None, stopping: Callable[[], bool], on_round: Callable[[int], None]
) -> Outcome:
    """Run a policy with the full protocol; `folder`: of its journal, None: nowhere. Raises PacelineError."""
    from paceline_host.simulation.world import opened, simulate  # with it comes numpy, which the controller needs not

    with (
        opened(fleet.scenario, fleet.names, fleet.models(), name, folder, fleet.declared(), faults_of(fleet)) as world,
        _unswept(),
    ):
        world.on_round = on_round
        return simulate(world, name, stopping)


def run_alone(fleet: Fleet, name: str, on_round: OnRound) -> Outcome:
    """Run a policy without protocol. Raises PacelineError."""
    with _unswept():
        return simulate_alone(fleet.scenario, fleet.models(), name, faults_of(fleet), on_round)


def faults_of(fleet: Fleet) -> Mapping[int, Sequence[Fault]]:
    """Return what becomes of a fleet, by round: as written down, and as drawn. Raises SettingsError."""
    s, boards = fleet.scenario, len(fleet.names)
    chance = drawn(s.fault_rate, boards, s.rounds, s.seed) if s.fault_rate else []
    return by_round([*s.fault, *chance], boards, s.rounds)


@contextmanager
def _unswept() -> Iterator[None]:
    """Let nothing look for cycles meanwhile: there are few, and looking for them is half of a large run's time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
