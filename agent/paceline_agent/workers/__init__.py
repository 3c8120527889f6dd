# SPDX-License-Identifier: Apache-2.0
"""What a trainer does under each regime: a table of workers by name. A worker knows the task and its slice; no socket.

Importing this package loads neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

from paceline.errors import SettingsError
from paceline.settings import did_you_mean
from paceline.tasks import Task
from paceline_agent.channel import Input, Work

WORKERS: dict[str, str] = {
    "pma": "paceline_agent.workers.pma:PmaWorker",
    "async": "paceline_agent.workers.pma:AsyncWorker",
    "psl": "paceline_agent.workers.psl:PslWorker",
    "ddp": "paceline_agent.workers.ddp:DdpWorker",
    "hfl": "paceline_agent.workers.hfl:HflWorker",
}
BY_NUMPY = ("pma", "async")  # the regimes whose work a board without torch can do


class Clock(Protocol):
    """What a worker tells of its work; `step` raises when the work is to end."""

    def begin(self) -> None:
        """Computing begins."""

    def step(self, samples: int) -> None:
        """An optimiser step on this many samples is done; waits for the declared pace."""

    def end(self) -> None:
        """Computing has ended."""


class StepClock(Clock, Protocol):
    """The same for work that exchanges tensors within each step; `begin` and `end` stand around each computation."""

    host: str  # the host's endpoint

    def pause(self, samples: int, part: float) -> None:
        """A part of a step is done, not its last; waits for the declared pace."""

    def receive(self) -> Input:
        """Wait for the next tensor; it lies in `model`. Raises when the work is to end."""

    def wait(self) -> None:
        """Computing has ended, and others are waited for."""

    def look(self) -> bool:
        """Tell whether a tensor waits to be received. Raises when the work is to end."""

    def finish(self, samples: int, part: float = 1.0) -> None:
        """The last part of a step is done: it counts, after the declared pace."""

    def put_out(self, step: int, redraw: int, what: str, size: int) -> None:
        """The first `size` bytes of `update` are a tensor to be sent; they stay until the next one is received."""


class Worker(Protocol):
    """One trainer's part of a regime. `model` and `update` have inbox_bytes and outbox_bytes."""

    samples: int  # that this board holds
    model_bytes: int  # of a base that comes with an assignment
    inbox_bytes: int
    outbox_bytes: int
    update_bytes: int  # that are sent with RESULT

    def warm_up(self, batch: int) -> None:
        """Take one step for nothing, so that no first use of a library falls into a compute window."""

    def work(self, work: Work, model: memoryview, update: memoryview, clock: Any) -> memoryview | bytes:
        """Train on one slice, from `model` to `update`; return what RESULT gives the hash of.

        `clock` is what the regime needs, a Clock or a StepClock.
        """


def worker(regime: str, task: Task, options: Mapping[str, object]) -> Worker:
    """Return a new worker; `options` are the regime's. Raises SettingsError for a regime that boards do not know."""
    target = WORKERS.get(regime)
    if target is None:
        raise SettingsError([f"there is no regime {regime!r} on boards; {did_you_mean(regime, list(WORKERS))}"])
    module, attribute = target.split(":")
    return cast(Worker, getattr(importlib.import_module(module), attribute)(task, options))
