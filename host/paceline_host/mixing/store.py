# SPDX-License-Identifier: Apache-2.0
"""The store of a run of regime async: each verified update is mixed into the model in the commit that counts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.tasks import Task
from paceline_host import checkpoint, records
from paceline_host import machine as m
from paceline_host.mixing.law import Mixing
from paceline_host.mixing.steps import Mixed
from paceline_host.recovery import RESUMED, Recovered
from paceline_host.reducer import mixed
from paceline_host.store import Job, Store, StoreEvent


class MixingStore(Store):
    """See Store. `model` is the newest; a round's checkpoint is what it was when the round was closed."""

    def __init__(
        self, folder: Path, run: records.Run, boards: Sequence[records.Board], task: Task, clock: Callable[[], float],
        wake: Callable[[], None], recovered: Recovered | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, run, boards, task, clock, wake, recovered)
        self._mixing = Mixing.read(run.mixing)
        standing = recovered.standing if recovered is not None else None
        self._version, self._rounds = (standing.version, standing.closed) if standing is not None else (0, 0)

    def _slices(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.StoreSlices)
        if action.first:
            row = records.Round(action.slices[0].round, self._clock(), self.model_sha256, 0.0)
            self._journal.add_plan(row, action.slices)
        else:
            self._journal.add_slices(action.slices)
        return [m.SlicesStored(action.slices)]

    def _count(self, action: m.StoreResult, upload: bytearray | memoryview, at_s: float) -> StoreEvent:
        result, age = action.result, self._version - action.version
        weight = self._mixing.weight(age)
        self._version += 1
        self._journal.add_mix(records.Mix(self._version, result.round, result.slice, age, weight, self._rounds))
        self.model = mixed(self._task.manifest, self.model, upload, weight)
        self.model_sha256 = checkpoint.sha256(self.model)
        return Mixed(action.board, result.lease, self._version, self.model, self.model_sha256)

    def _finish_round(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.FinishRound)
        self._rounds = action.round
        return self._close_round(action.round, job.at_s)

    def _flags(self, number: int) -> str:
        old = self._recovered
        was_open = old is not None and old.standing is not None and old.standing.closed < number <= old.machine.round
        return RESUMED if was_open else ""

    _JOBS: dict[type[object], Callable[[Any, Job], list[StoreEvent]]] = {
        **Store._JOBS, m.StoreSlices: _slices, m.FinishRound: _finish_round,
    }  # fmt: skip
