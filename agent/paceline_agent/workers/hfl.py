# SPDX-License-Identifier: Apache-2.0
"""One rank of a silo on a board: a rank of synchronised training whose stream holds the samples of its silo alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from paceline.settings import load_table
from paceline.silos import SiloRule
from paceline.tasks import Task
from paceline_agent.workers.ddp import DdpWorker


class HflWorker(DdpWorker):
    """See paceline_agent.workers.Worker."""

    def __init__(self, task: Task, options: Mapping[str, object]) -> None:
        rule = cast(Mapping[str, object], options["silo"])
        super().__init__(task, {key: value for key, value in options.items() if key != "silo"})
        self._silo = load_table(rule, SiloRule, where="silo").samples(task)
        self.samples = len(self._silo)

    def _some(self, count: int) -> Sequence[int]:
        return self._silo.order(0, 0)[:count]

    def _order_of(self, epoch: int) -> Sequence[int]:
        return self._silo.order(self._seed, epoch)
