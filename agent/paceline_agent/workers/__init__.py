# SPDX-License-Identifier: Apache-2.0
"""What a trainer does under each regime: a table of workers by name. A worker knows the task and its slice; no socket.

Importing this package loads neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from paceline.errors import SettingsError
from paceline.settings import did_you_mean
from paceline.tasks import Task
from paceline_agent.channel import Work

WORKERS: dict[str, str] = {"pma": "paceline_agent.workers.pma:PmaWorker"}


class Clock(Protocol):
    """What a worker tells of its work; `step` raises when the work is to end."""

    def begin(self) -> None:
        """Computing begins."""

    def step(self, samples: int) -> None:
        """An optimiser step on this many samples is done; waits for the declared pace."""

    def end(self) -> None:
        """Computing has ended."""


class Worker(Protocol):
    """One trainer's part of a regime."""

    def warm_up(self, batch: int) -> None:
        """Take one step for nothing, so that no first use of a library falls into a compute window."""

    def work(self, work: Work, model: memoryview, update: memoryview, clock: Clock) -> None:
        """Train on one slice, from `model` to `update`."""


def worker(regime: str, task: Task) -> Worker:
    """Return a new worker. Raises SettingsError for a regime that boards do not know."""
    target = WORKERS.get(regime)
    if target is None:
        raise SettingsError([f"there is no regime {regime!r} on boards; {did_you_mean(regime, list(WORKERS))}"])
    module, attribute = target.split(":")
    return cast(Worker, getattr(importlib.import_module(module), attribute)(task))
