# SPDX-License-Identifier: Apache-2.0
"""The disk of a run of silos, and the mean of their models, weighted by the samples that each has processed.

Silos are added in their order (DECISIONS 2). Optimiser memory stays behind: each round begins with none, as in `pma`
(DECISIONS 5), so what silos tell each other is the mean of their models and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.tasks import Task
from paceline_host import records
from paceline_host.ddp.steps import KeepState, StateKept
from paceline_host.ddp.store import RankStore
from paceline_host.hfl.silos import of_rows
from paceline_host.hfl.steps import CloseSilos
from paceline_host.ledger import LAPSED
from paceline_host.recovery import Recovered
from paceline_host.reducer import Verified
from paceline_host.store import Job, StoreEvent


class SiloStore(RankStore):
    """See Store. `model` is the state with which a round begins: the mean model, no memory, no steps."""

    def __init__(
        self, folder: Path, run: records.Run, boards: Sequence[records.Board], task: Task, clock: Callable[[], float],
        wake: Callable[[], None], recovered: Recovered | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, run, boards, task, clock, wake, recovered)
        self._silos = silos = of_rows(run.silos)
        self._of = {board: silo.number for silo in silos for board in silo.boards}
        self._states: dict[int, bytes] = {}  # that leaders gave in this round, by silo
        self._histories: dict[int, list[Verified]] = {silo.number: [] for silo in silos}
        self._no_memory = self._first_state()[len(self._weights) :]

    def _keep(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, KeepState)
        silo = self._of[action.board]
        found = self._judged(job, self._histories[silo])
        if isinstance(found, StateKept):
            self._states[silo] = bytes(job.upload or b"")
        return [found]

    def _close_silos(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, CloseSilos)
        rows: list[records.Contribution] = []
        samples = {one.silo: sum(part.slice.samples for part in one.steps.parts) for one in action.closed}
        self._reducer.begin(self._weights, sum(samples.values()))
        for silo in self._silos:
            if silo.number in samples:
                weights = memoryview(self._states[silo.number])[: len(self._weights)]
                self._reducer.add(silo.number, samples[silo.number], weights)
            else:
                self._reducer.skip(silo.number)
        self._go_on_from(self._reducer.finish() + self._no_memory)
        self._states.clear()
        for one in action.closed:
            rows += self._rows(one.steps, job.at_s - one.waited_s, self._histories[one.silo][-1].norm_per_step)
        for number, reason in sorted(action.lapsed.items()):
            silo = self._silos[number]
            detail = {"silo": silo.name, "samples": silo.budget, "reason": reason}
            self._journal.add_event(records.Event(job.at_s, LAPSED, detail, action.round))
        first = action.closed[0].steps
        whole = replace(
            first, figures={board: data for one in action.closed for board, data in one.steps.figures.items()},
            voided=sum(one.steps.voided for one in action.closed),
        )  # fmt: skip
        return self._closed(job, whole, rows, action.left)

    _JOBS: dict[type[object], Callable[[Any, Job], list[StoreEvent]]] = {
        **RankStore._JOBS, KeepState: _keep, CloseSilos: _close_silos,
    }  # fmt: skip
