# SPDX-License-Identifier: Apache-2.0
"""The host's store without its thread: the production journal, verification, averaging and checkpoints; or, to be
quick, verification and averaging alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

from paceline.tasks import Evaluation, Task
from paceline_host import records
from paceline_host.journal import Journal
from paceline_host.mixing.store import MixingStore
from paceline_host.recovery import Recovered
from paceline_host.store import Job, Store, StoreEvent


class InlineStore(Store):
    """Does jobs when it is told to, and writes no time but virtual one. A context manager."""

    def __init__(
        self, folder: Path, run: records.Run, boards: Sequence[records.Board], task: Task, clock: Callable[[], float],
        recovered: Recovered | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, run, boards, task, clock, lambda: None, recovered)

    def do(self, jobs: Sequence[Job]) -> list[StoreEvent]:
        """Do a batch as one commit; return what it leads to."""
        with self._journal.transaction():
            return self._do(jobs)

    def __enter__(self) -> InlineStore:
        self._journal = self._opened()
        if self._recovered is not None:
            self._take_up(self._recovered)
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def _opened(self) -> Journal:
        return Journal.open(self._folder, fsync=self._run.fsync)

    def _evaluate(self) -> tuple[Evaluation, float]:
        return self._task.evaluate(self.model), 0.0


class MemoryStore(InlineStore):
    """Keeps nothing."""

    def _begin(self) -> None:
        """No folder is made."""

    def _opened(self) -> Journal:
        return cast(Journal, _Nowhere())

    def _save(self, number: int) -> None:
        """No checkpoint is written."""


class InlineMixingStore(InlineStore, MixingStore):
    """The same of regime async."""


class MemoryMixingStore(MemoryStore, MixingStore):
    """The same of regime async; keeps nothing."""


class _Nowhere:
    """What a Journal does for a store, without a file: every row is the first of its key."""

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add_contributions(self, batch: Sequence[object]) -> list[bool]:
        return [True] * len(batch)

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    add_plan = add_slices = add_mix = set_energy = set_board = add_event = close_round = end = close = _nothing
