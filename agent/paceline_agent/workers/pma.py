# SPDX-License-Identifier: Apache-2.0
"""Periodic model averaging on a board: take the round's base model, train on a slice, hand back the model.

Regime async is the same on a board, but that its loss holds it to the base model.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.core import permutation
from paceline.errors import DataError, SettingsError
from paceline.tasks import Task
from paceline_agent import memory
from paceline_agent.channel import Work
from paceline_agent.workers import Clock

_permutation = functools.lru_cache(maxsize=2)(permutation)  # 4 bytes a sample; a slice touches two epochs at most


class PmaWorker:
    """See paceline_agent.workers.Worker."""

    def __init__(self, task: Task, options: Mapping[str, object]) -> None:
        if options:
            raise SettingsError([f"regime pma takes no options, it was given {', '.join(options)}"])
        self._task = task
        self.learner = task.learner()
        self._rho = 0.0
        self.samples = task.samples
        self.inbox_bytes = self.outbox_bytes = self.update_bytes = self.model_bytes = task.manifest.nbytes

    def warm_up(self, batch: int) -> None:
        """Take one step of the task's own batch too, if it is larger, in as large parts as fit (DECISIONS 45)."""
        self.learner.load(self._task.initial())
        self.learner.step(range(min(batch, self._task.samples)))
        options: Any = self._task.options  # type: ignore[attr-defined]
        part = largest = min(options.batch, self._task.samples)
        if largest <= batch:
            return
        memory.bound()
        while True:
            self.learner.at_once = part if part < largest else 0
            try:
                self.learner.step(range(largest))
            except (MemoryError, RuntimeError) as error:  # numpy's, torch's
                if part == 1 or not (isinstance(error, MemoryError) or "allocate memory" in str(error)):
                    raise
                part = -(-part // 2)
                continue
            if part < largest:
                text = f"trainer: a batch of {largest} does not fit into memory: {part} samples at a time"
                print(text, file=sys.stderr, flush=True)
            return

    def work(self, work: Work, model: memoryview, update: memoryview, clock: Clock) -> memoryview:
        order = slice_order(work, self._task.samples)
        self.learner.load(model, self._rho)  # local optimiser state is forgotten here (DECISIONS 5)
        clock.begin()
        for batch in minibatches(order, work.batch):
            self.learner.step(batch)
            clock.step(len(batch))
        clock.end()
        self.learner.dump(update)
        return update


class AsyncWorker(PmaWorker):
    """Its one option is rho, the weight of 1/2 |weights - base|^2 in the loss."""

    def __init__(self, task: Task, options: Mapping[str, object]) -> None:
        rho = options.get("rho")
        if options.keys() != {"rho"} or not isinstance(rho, int | float) or not 0.0 <= rho <= 1000.0:
            raise SettingsError([f"regime async takes rho, a number from 0 to 1000; it was given {dict(options)}"])
        super().__init__(task, {})
        self._rho = float(rho)


def slice_order(work: Work, samples: int) -> memoryview:
    """Return the sample numbers of a slice, in the order of its positions: permutation(plan_seed, epoch)[position]."""
    order = array("I")
    for epoch, begin, end in work.ranges:
        if not begin < end <= samples:
            raise DataError(
                f"range {begin}..{end} of epoch {epoch} is outside the {samples} samples of this board's data"
            )
        order.frombytes(memoryview(_permutation(work.plan_seed, epoch, samples))[begin:end].cast("B"))
    return memoryview(order)


def minibatches(order: memoryview, batch: int) -> Iterator[memoryview]:
    """Yield `batch` numbers at a time, across the borders of ranges; the last may be fewer."""
    for begin in range(0, len(order), batch):
        yield order[begin : begin + batch]
