# SPDX-License-Identifier: Apache-2.0
"""The disk and the arithmetic of a run of split learning: the server part, both optimisers, and the journal.

A step is memory only; an epoch, and with it what each board has given, is a commit, with a checkpoint of the model and
one of the optimisers before it. So a run that is taken up begins its open epoch anew, and gives the same bits
(DECISIONS 1).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.deviation import judge
from paceline.errors import DamagedError, StorageError
from paceline.split import SplitError, Upload
from paceline.tasks import SplitTask
from paceline_host import checkpoint, records
from paceline_host import steps as s
from paceline_host.journal import sync_folder
from paceline_host.psl.steps import (
    CloseEpoch,
    CommitStep,
    ComputeStep,
    EpochClosed,
    StepCommitted,
    StepComputed,
    StepRefused,
    StorePart,
    VoidStep,
)
from paceline_host.recovery import Recovered
from paceline_host.store import Job, Store, StoreEvent

if TYPE_CHECKING:
    from paceline.split.host import SplitHost


class SplitStore(Store):
    """See Store."""

    def __init__(
        self, folder: Path, run: records.Run, boards: Sequence[records.Board], task: SplitTask,
        clock: Callable[[], float], wake: Callable[[], None], recovered: Recovered | None = None, *,
        smashed: str = "float32", device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(folder, run, boards, task, clock, wake, recovered)
        self._split = self._side(task, smashed, device)
        if recovered is not None and recovered.epoch is not None:
            epoch = recovered.epoch
            self._split.load_state(read_state(folder, epoch.round, epoch.state_sha256))
        self.part = self._split.client_part()
        self.gradients: Mapping[int, bytes] = {}
        self._rows: list[tuple[records.Step, Sequence[int]]] = []
        self._parts: list[tuple[records.Contribution, int]] = []  # what boards have given to the open epoch, and leases
        self._open: records.Step | None = None
        self._open_labels: Sequence[int] = ()
        self._host_s = 0.0
        self._voided = 0

    def _side(self, task: SplitTask, smashed: str, device: str) -> SplitHost:
        from paceline.split.host import SplitHost  # here: it loads torch, which a simulated run does without

        return SplitHost(task, smashed, device)

    def outgoing(self, board: int, what: str) -> bytes:
        """See SplitSide; the loop's thread asks after the answer that made it ready."""
        return self.part if what == "model" else self.gradients[board]

    # Jobs -----------------------------------------------------------------------------------------------------------

    def _slices(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, s.StoreSlices)
        self._rows.clear()
        self._parts.clear()
        self._host_s, self._voided = 0.0, 0
        if action.first:
            row = records.Round(action.slices[0].round, self._clock(), self.model_sha256, 0.0)
            self._journal.add_plan(row, action.slices)
        return [s.SlicesStored(action.slices)]

    def _compute(self, job: Job) -> list[StoreEvent]:
        action, tensors = job.action, job.tensors
        assert isinstance(action, ComputeStep)
        began_s = time.perf_counter()
        try:
            step = self._split.step([Upload(board, samples, tensors[board]) for board, samples in action.boards])
        except SplitError as error:
            return self._refused(error, action.step, action.redraw)
        self._host_s += time.perf_counter() - began_s
        self.gradients = step.gradients
        self._open = records.Step(action.round, action.step, action.redraw, step.samples, step.loss, step.right)
        self._open_labels = step.labels
        return [StepComputed(action.step, action.redraw)]

    def _commit_step(self, job: Job) -> list[StoreEvent]:
        action, tensors = job.action, job.tensors
        assert isinstance(action, CommitStep)
        assert self._open is not None
        began_s = time.perf_counter()
        try:
            self._split.commit({board: tensors[board] for board in action.boards})
        except SplitError as error:
            return self._refused(error, action.step, action.redraw)
        self.part = self._split.client_part()
        self._host_s += time.perf_counter() - began_s
        self._rows.append((self._open, self._open_labels))
        self._open = None
        return [StepCommitted(action.step, action.redraw)]

    def _refused(self, error: SplitError, step: int, redraw: int) -> list[StoreEvent]:
        if error.client is None:  # nobody's in particular: the training itself cannot go on
            raise error
        self._split.void()
        return [StepRefused(step, redraw, error.client, error.text)]

    def _void_step(self, job: Job) -> list[StoreEvent]:
        assert isinstance(job.action, VoidStep)
        self._split.void()
        self._open = None
        self._voided += 1
        return []

    def _part(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, StorePart)
        result, commit, item = action.result, action.commit, action.slice
        digest = self._split.digest()
        known: dict[str, Any] = {"reason": "it was gone when the epoch ended"}
        if result is not None and commit is not None:
            known = {
                "compute_us": result.compute_us, "compute_uj": commit.compute_uj, "compute_bound_uj": commit.bound_uj,
                "compute_sampling_uj": commit.sampling_uj, "energy_source": commit.energy_source,
                "energy_flags": commit.energy_flags, "overruns": result.overruns, "late_us": result.late_us,
                "update_sha256": result.update_sha256,
            }  # fmt: skip
            if result.update_sha256 != digest:
                text = f"its client part is {result.update_sha256[:12]}, the host's {digest[:12]}"
                self._journal.add_event(records.Event(job.at_s, "drift", text, item.round, action.board))
        row = records.Contribution(
            item.round, item.index, result.attempt if result is not None else 0, action.lease, action.board,
            "accepted", job.at_s, samples=action.samples, steps=action.steps, **known,
        )  # fmt: skip
        self._parts.append((row, action.lease))
        return []

    def _close(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, CloseEpoch)
        self.model = self._split.model()
        self.model_sha256 = checkpoint.sha256(self.model)
        state_sha256 = write_state(self._folder, action.round, self._split.state(), fsync=self._run.fsync)
        checkpoint.save(
            checkpoint.path(self._folder, action.round), self._task.manifest, self.model,
            {"round": str(action.round), "run": self._run.run_id}, fsync=self._run.fsync,
        )  # fmt: skip
        began_s = time.perf_counter()
        quality = self._task.evaluate(self.model)
        evaluation_s = time.perf_counter() - began_s
        totals = [sum(column) for column in zip(*(labels for _, labels in self._rows), strict=True)]
        steps = [replace(row, deviation=judge(labels, totals).l1) for row, labels in self._rows]
        rows = [(row, None) for row, _ in self._parts if row.samples]  # who gave nothing has no account
        self._journal.add_contributions(rows)
        self._journal.close_round(
            action.round, closed_s=job.at_s, model_sha256=self.model_sha256, evaluation_s=evaluation_s,
            loss=quality.loss, accuracy=quality.accuracy, metric=quality.metric, flags=self._flags(action.round),
            left=action.left,
        )  # fmt: skip
        epoch = records.Epoch(
            action.round, len(steps), self._voided, action.left, action.sent_bytes, action.received_bytes,
            self._host_s, self._split.digest(), state_sha256,
        )  # fmt: skip
        self._journal.add_epoch(epoch, steps)
        stored = [s.ResultStored(row.board, lease) for row, lease in self._parts if lease]
        return [*stored, EpochClosed(action.round)]

    _JOBS: dict[type[object], Callable[[Any, Job], list[StoreEvent]]] = {
        **Store._JOBS, s.StoreSlices: _slices, ComputeStep: _compute, CommitStep: _commit_step, VoidStep: _void_step,
        StorePart: _part, CloseEpoch: _close,
    }  # fmt: skip


def state_path(folder: Path, number: int) -> Path:
    """Return where a run's folder keeps model and optimisers as an epoch left them."""
    return folder / "checkpoints" / f"round-{number:05d}.state"


def write_state(folder: Path, number: int, state: bytes, *, fsync: bool) -> str:
    """Write a state, whole or not at all, and return its hash; only the last two are kept. Raises StorageError."""
    path = state_path(folder, number)
    partial = path.with_name(f".{path.name}.partial")
    try:
        checkpoint.make_folder(path.parent, fsync=fsync)
        with partial.open("wb") as file:
            file.write(state)
            file.flush()
            if fsync:
                os.fsync(file.fileno())
        os.rename(partial, path)
        if fsync:
            sync_folder(path.parent)
        state_path(folder, number - 2).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: the optimisers' state cannot be written: {error.strerror}") from error
    return hashlib.sha256(state).hexdigest()


def read_state(folder: Path, number: int, sha256: str) -> bytes:
    """Return the state after an epoch. Raises DamagedError when it is not what the journal names."""
    path = state_path(folder, number)
    try:
        state = path.read_bytes()
    except OSError as error:
        raise DamagedError(
            f"{path}: cannot be read ({error.strerror}); restore the folder, or begin a new run"
        ) from None
    if hashlib.sha256(state).hexdigest() != sha256:
        raise DamagedError(f"{path}: is not the state that the journal names; restore the folder, or begin a new run")
    return state
