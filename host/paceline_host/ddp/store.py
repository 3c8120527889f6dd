# SPDX-License-Identifier: Apache-2.0
"""The disk of a run of synchronised ranks: one commit closes a round, with its model's checkpoint and its state.

What travels is the state (model, optimiser memory, steps), so a run that is taken up goes on with the same bits
(DECISIONS 1); what is evaluated and checkpointed is the model at its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.tasks import Task
from paceline.tasks.states import memory_of
from paceline_host import checkpoint, records
from paceline_host import steps as s
from paceline_host.ddp.steps import CloseSteps, KeepState, RankPart, StateKept, StateRefused
from paceline_host.psl.store import read_state, write_state
from paceline_host.recovery import Recovered
from paceline_host.reducer import NORM_HISTORY, Refused, Verified
from paceline_host.store import Job, Store, StoreEvent


class RankStore(Store):
    """See Store. `model` is the state."""

    def __init__(
        self, folder: Path, run: records.Run, boards: Sequence[records.Board], task: Task, clock: Callable[[], float],
        wake: Callable[[], None], recovered: Recovered | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, run, boards, task, clock, wake, recovered)
        self._weights, self._weights_sha256 = self.model, self.model_sha256
        if recovered is not None and recovered.epoch is not None:
            self.model = read_state(folder, recovered.epoch.round, recovered.epoch.state_sha256)
        else:
            self.model = self._first_state()
        self.model_sha256 = checkpoint.sha256(self.model)
        self._kept: bytes | None = None
        self._history: list[Verified] = []

    def _first_state(self) -> bytes:
        from paceline.tasks.modules import Trainable  # here: it loads torch, which a simulated run does without

        return bytes(Trainable(self._task).initial_state())

    def _slices(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, s.StoreSlices)
        if action.first:
            row = records.Round(action.slices[0].round, self._clock(), self._weights_sha256, job.allocate_s)
            self._journal.add_plan(row, action.slices)
        else:
            self._journal.add_slices(action.slices)
        return [s.SlicesStored(action.slices)]

    def _keep(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, KeepState)
        found = self._judged(job, self._history)
        if not isinstance(found, StateKept):
            return [found]
        self._kept = bytes(job.upload or b"")
        return [found]

    def _judged(self, job: Job, history: list[Verified]) -> StateKept | StateRefused:
        """Verify the state that came in; `history`: those before it, to which it is added."""
        action, upload = job.action, job.upload
        assert isinstance(action, KeepState)
        assert upload is not None
        digest = checkpoint.sha256(upload)
        if digest != action.result.update_sha256:
            return StateRefused(action.board, action.lease, "the state does not match its hash")
        weights = memoryview(upload)[: len(self._weights)]
        # Every step has the same batch, all ranks' together: the guard needs no size of it.
        verdict = self._reducer.verify(weights, self._weights, action.steps, action.steps, history)
        if isinstance(verdict, Refused):
            return StateRefused(action.board, action.lease, verdict.reason)
        if not self._reducer.are_finite(memory_of(upload, len(self._weights))):  # under adam it stands still, unseen
            reason = "the optimiser's memory holds values that are not finite (NaN or infinity)"
            return StateRefused(action.board, action.lease, reason)
        history[:] = [*history[1 - NORM_HISTORY :], verdict]
        return StateKept(action.board, action.lease, digest)

    def _close(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, CloseSteps)
        assert self._kept is not None
        state, self._kept = self._kept, None
        self._go_on_from(state)
        return self._closed(job, action, self._rows(action, job.at_s, self._history[-1].norm_per_step))

    def _go_on_from(self, state: bytes) -> None:
        """The next round begins with this state."""
        self.model, self.model_sha256 = state, checkpoint.sha256(state)
        self._weights = state[: len(self._weights)]
        self._weights_sha256 = checkpoint.sha256(self._weights)

    def _closed(
        self, job: Job, action: CloseSteps, rows: Sequence[records.Contribution], left: int = 0
    ) -> list[StoreEvent]:
        """Checkpoint, evaluate and journal a round whose state is there."""
        number = action.round
        state_sha256 = write_state(self._folder, number, self.model, fsync=self._run.fsync)
        checkpoint.save(
            checkpoint.path(self._folder, number), self._task.manifest, self._weights,
            {"round": str(number), "run": self._run.run_id}, fsync=self._run.fsync,
        )  # fmt: skip
        began_s = time.perf_counter()
        quality = self._task.evaluate(self._weights)
        evaluation_s = time.perf_counter() - began_s
        self._journal.add_contributions([(row, None) for row in rows])
        self._journal.close_round(
            number, closed_s=job.at_s, model_sha256=self._weights_sha256, evaluation_s=evaluation_s, loss=quality.loss,
            accuracy=quality.accuracy, metric=quality.metric, flags=self._flags(number), left=left,
        )  # fmt: skip
        epoch = records.Epoch(number, action.steps, action.voided, left, 0, 0, 0.0, "", state_sha256)
        self._journal.add_epoch(epoch, [])
        self._journal.add_rank_steps([(number, board, data) for board, data in sorted(action.figures.items())])
        return [s.RoundDone(number, self.model_sha256)]

    def _rows(self, action: CloseSteps, at_s: float, norm: float) -> list[records.Contribution]:
        return [self._row(action, part, at_s, norm) for part in action.parts]

    def _row(self, action: CloseSteps, part: RankPart, at_s: float, norm: float) -> records.Contribution:
        result, commit = part.result, part.commit
        known: dict[str, Any] = {"reason": "its account is with its last slice of the round, or it was lost"}
        if result is not None and commit is not None:
            known = {
                "compute_us": result.compute_us, "compute_uj": commit.compute_uj, "compute_bound_uj": commit.bound_uj,
                "energy_source": commit.energy_source, "energy_flags": commit.energy_flags,
                "overruns": result.overruns, "late_us": result.late_us, "update_sha256": result.update_sha256,
                "update_norm": norm,
            }  # fmt: skip
        return records.Contribution(
            part.slice.round, part.slice.index, action.attempt, part.lease, part.board, "accepted", at_s,
            samples=part.slice.samples, steps=part.steps, **known,
        )  # fmt: skip

    _JOBS: dict[type[object], Callable[[Any, Job], list[StoreEvent]]] = {
        **Store._JOBS, s.StoreSlices: _slices, KeepState: _keep, CloseSteps: _close,
    }  # fmt: skip
