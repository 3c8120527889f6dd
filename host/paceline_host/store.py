# SPDX-License-Identifier: Apache-2.0
"""The thread that owns a run's disk and arithmetic: journal, spool, verification, averaging, checkpoint, evaluation.

Jobs come in batches, one batch a turn of the host's loop, and each batch is one commit; small results of a round that
follow each other closely share one. What must not be promised before it is on disk is answered by an event after the
commit. Knows no link and no board's session.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.quick import quicken
from paceline.tasks import Evaluation, Task
from paceline.wire import INLINE_BYTES
from paceline_host import checkpoint, records
from paceline_host import machine as m
from paceline_host.journal import Journal
from paceline_host.recovery import RESUMED, Recovered, feed
from paceline_host.reducer import NORM_HISTORY, Reducer, Refused, Verified

TOGETHER_S = 0.002  # a commit waits so long for a small result that follows another


@dataclass(frozen=True)
class Job:
    """One action of the machine with its instant (seconds since run start) and the bytes that came in for it."""

    action: m.Action
    at_s: float
    upload: bytearray | memoryview | None = None
    tensors: Mapping[int, bytearray] = field(default_factory=dict)  # of a step of split learning, by board
    allocate_s: float = 0.0


quicken((Job,))


def _may_wait(job: Job) -> bool:
    """Tell whether the commit of a job may wait for others: each costs a turn of the loop besides.

    That is so of a small result while others of its round are still to come; a large one is answered at once.
    """
    action, upload = job.action, job.upload
    if isinstance(action, m.StoreResult):
        return not action.last and upload is not None and len(upload) <= INLINE_BYTES
    return isinstance(action, m.StoreEnergy)


@dataclass(frozen=True)
class StoreFailed:
    """The store cannot go on; the run must end."""

    error: Exception


StoreEvent = Any  # StoreFailed, or what the regime's machine waits for


class Store(threading.Thread):
    """Start it, `post` batches, collect `events` whenever `wake` was called, `finish` it."""

    def __init__(
        self, folder: Path, run: records.Run, boards: Sequence[records.Board], task: Task, clock: Callable[[], float],
        wake: Callable[[], None], recovered: Recovered | None = None,
    ) -> None:  # fmt: skip
        """Begin a run, or go on with one that was `recovered` from this folder."""
        super().__init__(name="store", daemon=True)
        self._folder, self._run, self._task = folder, run, task
        idle_uw = {} if recovered is None else {board.board: board.idle_uw for board in recovered.boards}
        self._boards = [replace(board, idle_uw=idle_uw.get(board.board)) for board in boards]  # boards measure it once
        self._clock, self._wake = clock, wake
        self._inbox: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[StoreEvent] = queue.SimpleQueue()
        self.together_s = TOGETHER_S
        self._is_finishing = False
        self._norms: dict[int, list[Verified]] = {}
        self._reducer = Reducer(task.manifest)
        self._recovered = recovered
        if recovered is not None:
            self.model, self.model_sha256 = recovered.model, recovered.model_sha256
            self._norms = {board: list(norms) for board, norms in recovered.norms.items()}
            return
        self.model = task.initial()
        self.model_sha256 = checkpoint.sha256(self.model)
        self._begin()  # here, so that a fault is the caller's at once

    def post(self, jobs: list[Job]) -> None:
        """Hand over a batch."""
        self._inbox.put(jobs)

    def events(self) -> list[StoreEvent]:
        """Return what has happened since the last call."""
        out = []
        while not self._outbox.empty():
            out.append(self._outbox.get())
        return out

    def finish(self) -> None:
        """Let all batches be done and the journal be closed; call once. Raises what made the last of them fail."""
        self._inbox.put(None)
        self.join()
        for event in self.events():
            if isinstance(event, StoreFailed):
                raise event.error

    def run(self) -> None:
        """Work until told to finish. A failure is reported once and ends the work."""
        try:
            with Journal.open(self._folder, fsync=self._run.fsync) as self._journal:
                if self._recovered is not None:
                    self._take_up(self._recovered)
                while jobs := self._next(None):
                    done: list[StoreEvent] = []
                    with self._journal.transaction():
                        while jobs:
                            done += self._do(jobs)
                            jobs = self._next(self.together_s) if all(map(_may_wait, jobs)) else []
                    for event in done:
                        self._outbox.put(event)
                    if done:
                        self._wake()
        except Exception as error:  # whatever it is, the run must not wait for a store that is gone
            self._outbox.put(StoreFailed(error))
            self._wake()

    def _begin(self) -> None:
        Journal.create(self._folder, self._run, self._boards).close()

    def _next(self, timeout_s: float | None) -> list[Job]:
        """Return the next batch; none: nothing came within `timeout_s`, or it is to finish."""
        if self._is_finishing:
            return []
        try:
            jobs = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self._is_finishing = jobs is None
        return jobs or []

    def _do(self, jobs: Sequence[Job]) -> list[StoreEvent]:
        """Do a batch within a transaction; return what it leads to."""
        done: list[StoreEvent] = []
        for job in jobs:
            done += self._JOBS[type(job.action)](self, job)
        return done

    def _take_up(self, recovered: Recovered) -> None:
        if not recovered.machine.closed and self._run.regime == "pma":
            self._reducer.begin(self.model, self._run.budget)
            feed(self._reducer, recovered.counted, recovered.skipped)
        detail = {"life": recovered.machine.lives, "wall": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        number = None if recovered.machine.closed else recovered.machine.round
        self._journal.take_up(records.Event(self._clock(), RESUMED, detail, number))

    # Jobs -----------------------------------------------------------------------------------------------------------

    def _slices(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.StoreSlices)
        if action.first:
            number = action.slices[0].round
            self._journal.add_plan(
                records.Round(number, self._clock(), self.model_sha256, job.allocate_s), action.slices
            )
            self._reducer.begin(self.model, self._run.budget)
        else:
            self._journal.add_slices(action.slices)
            for index in {s.redealt_from for s in action.slices if s.redealt_from is not None}:
                self._reducer.skip(index)
        return [m.SlicesStored(action.slices)]

    def _result(self, job: Job) -> list[StoreEvent]:
        action, upload = job.action, job.upload
        assert isinstance(action, m.StoreResult)
        assert upload is not None
        result, commit, board = action.result, action.commit, action.board
        history = self._norms.setdefault(board, [])
        if checkpoint.sha256(upload) != result.update_sha256:
            return [m.ResultRefused(board, result.lease, "the update does not match its hash")]
        verdict = self._reducer.verify(upload, action.base or self.model, result.samples, result.steps, history)
        if isinstance(verdict, Refused):
            return [m.ResultRefused(board, result.lease, verdict.reason)]
        history.append(verdict)
        del history[:-NORM_HISTORY]
        row = records.Contribution(
            round=result.round, slice=result.slice, attempt=result.attempt, lease=result.lease, board=board,
            verdict="accepted", at_s=job.at_s, samples=result.samples, steps=result.steps,
            compute_us=result.compute_us, compute_uj=commit.compute_uj, compute_bound_uj=commit.bound_uj,
            energy_source=commit.energy_source, energy_flags=commit.energy_flags, overruns=result.overruns,
            late_us=result.late_us, update_sha256=result.update_sha256, update_norm=verdict.norm_per_step,
            update_bytes=len(upload), compute_sampling_uj=commit.sampling_uj,
        )  # fmt: skip
        (fresh,) = self._journal.add_contributions([(row, upload)])
        return [self._count(action, upload, job.at_s) if fresh else m.ResultStored(board, result.lease)]

    def _count(self, action: m.StoreResult, upload: bytearray | memoryview, at_s: float) -> StoreEvent:
        """Let a verified contribution count; a repeat of it is answered alike, and counted once."""
        self._reducer.add(action.result.slice, action.result.samples, upload)
        return m.ResultStored(action.board, action.result.lease)

    def _loss(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.StoreLoss)
        item = action.slice
        verdict = action.verdict
        row = records.Contribution(
            item.round, item.index, 0, action.lease, action.board, verdict, job.at_s, reason=action.reason
        )
        self._journal.add_contributions([(row, None)])
        return []

    def _energy(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.StoreEnergy)
        e = action.energy
        self._journal.set_energy(
            records.Energy(
                e.round, action.board, f"{e.window:016x}", e.compute_uj, e.wait_uj, e.transfer_uj, e.wasted_uj,
                e.other_uj, e.total_uj, e.span_us, e.covered_us, e.bound_uj, e.source, e.flags,
                e.sampling_uj, e.split_uj, e.wait_us,
            )
        )  # fmt: skip
        return []

    def _ready(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.StoreReady)
        old, ready = self._boards[action.board], action.ready
        self._boards[action.board] = records.Board(
            old.board, old.name, old.public_key, ready.energy_source if ready.energy_known else None,
            action.agent_pid, ready.trainer_pid, action.agent_version,
            idle_uw=old.idle_uw if ready.idle_uw is None else ready.idle_uw,
            samples=ready.samples, data_sha256=ready.data_sha256,
        )  # fmt: skip
        self._journal.set_board(self._boards[action.board])
        return []

    def _note(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.Note)
        self._journal.add_event(records.Event(job.at_s, action.kind, action.detail, action.round, action.board))
        return []

    def _finish_round(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.FinishRound)
        self.model = self._reducer.finish()
        self.model_sha256 = checkpoint.sha256(self.model)
        return self._close_round(action.round, job.at_s)

    def _close_round(self, number: int, at_s: float) -> list[StoreEvent]:
        """Checkpoint the present model as a round's, evaluate it, journal the round's end."""
        self._save(number)
        quality, evaluation_s = self._evaluate()
        self._journal.close_round(
            number, closed_s=at_s, model_sha256=self.model_sha256, evaluation_s=evaluation_s,
            loss=quality.loss, accuracy=quality.accuracy, metric=quality.metric, flags=self._flags(number),
        )  # fmt: skip
        return [m.RoundDone(number, self.model_sha256)]

    def _save(self, number: int) -> None:
        checkpoint.save(
            checkpoint.path(self._folder, number), self._task.manifest, self.model,
            {"round": str(number), "run": self._run.run_id}, fsync=self._run.fsync,
        )  # fmt: skip

    def _evaluate(self) -> tuple[Evaluation, float]:
        began_s = time.perf_counter()
        return self._task.evaluate(self.model), time.perf_counter() - began_s

    def _flags(self, number: int) -> str:
        """A round that two lives of the host have worked on has a makespan that says little."""
        old = self._recovered.machine if self._recovered is not None else None
        return RESUMED if old is not None and not old.closed and old.round == number else ""

    def _end(self, job: Job) -> list[StoreEvent]:
        action = job.action
        assert isinstance(action, m.Finish)
        self._journal.end(ok=action.ok, reason=action.reason, at_s=job.at_s)
        return []

    _JOBS: dict[type[object], Callable[[Any, Job], list[Any]]] = {
        m.StoreSlices: _slices, m.StoreResult: _result, m.StoreLoss: _loss, m.StoreEnergy: _energy,
        m.StoreReady: _ready, m.Note: _note, m.FinishRound: _finish_round, m.Finish: _end,
    }  # fmt: skip
