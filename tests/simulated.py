# SPDX-License-Identifier: Apache-2.0
"""What tests of the simulator share: small scenarios, and runs of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline_host.profile import BoardProfile
from paceline_host.simulation.faults import Fault, parse
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.results import Outcome
from paceline_host.simulation.run import run_alone, run_policy
from paceline_host.simulation.scenario import Scenario


class Boards(Fleet):
    """A fleet of these boards."""

    def __init__(self, scenario: Scenario, boards: Sequence[BoardProfile]) -> None:
        super().__init__(scenario, None)
        self._boards = list(boards)
        self.names = [board.name for board in boards]


def exact(speeds: Sequence[float], idle_w: float = 2.0, active_w: float = 6.0) -> list[BoardProfile]:
    """Return boards without noise and without fixed seconds."""
    return [BoardProfile(f"board-{i}", speed, idle_w, active_w) for i, speed in enumerate(speeds)]


def faults(*texts: str) -> tuple[Fault, ...]:
    """Return faults as they are written."""
    return tuple(parse(text) for text in texts)


def in_full(fleet: Fleet, policy: str, folder: Path | None = None) -> Outcome:
    """Run a policy with the full protocol."""
    return run_policy(fleet, policy, folder, lambda: False, lambda round_: None)


def alone(fleet: Fleet, policy: str) -> Outcome:
    """Run a policy with the controller alone."""
    return run_alone(fleet, policy, lambda round_, took_s, cpu_s: None)
