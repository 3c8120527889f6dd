# SPDX-License-Identifier: Apache-2.0
"""The store's commits: which results share one, and which do not wait. Its files are read by other tests."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.host.run_folder import boards_of, run_row

from paceline.tasks import make
from paceline.wire import INLINE_BYTES, Commit, Ready, Result
from paceline_host import machine as m
from paceline_host.ledger import Ledger
from paceline_host.recovery import recover
from paceline_host.regimes import Slice
from paceline_host.store import Job, Store

SHARES = (40, 30, 30)
FOREVER_S = 3600.0  # whoever waits for this fails the test
ANSWER_S = 60.0


class Desk:
    """A store at work on the first round of a run, and the answers it gives; those of a commit come together."""

    def __init__(self, folder: Path, ballast: int) -> None:
        self._answers: queue.SimpleQueue[list[object]] = queue.SimpleQueue()
        self.folder, self._task = folder, make("linear", {"ballast": ballast} if ballast else {}, 7, None)
        run, began_s = run_row(fsync=False, samples=self._task.samples), time.monotonic()
        self.store = Store(folder, run, boards_of(3), self._task, lambda: time.monotonic() - began_s, self._wake)
        self.store.together_s = FOREVER_S
        self.store.start()
        ends = [sum(SHARES[: i + 1]) for i in range(3)]
        self._slices = tuple(
            Slice(1, i, i, ((0, end - share, end),)) for i, (share, end) in enumerate(zip(SHARES, ends, strict=True))
        )
        self.store.post([Job(m.StoreSlices(self._slices, first=True), 0.0)])
        assert self.answers() == [m.SlicesStored(self._slices)]

    def _wake(self) -> None:
        self._answers.put(self.store.events())

    def answers(self) -> list[object]:
        """Return what the next commit is answered by."""
        return self._answers.get(timeout=ANSWER_S)

    def result(self, index: int, *, last: bool) -> Job:
        """Return the job of a slice's result."""
        update = bytearray(self._task.initial())
        digest, samples = hashlib.sha256(update).hexdigest(), SHARES[index]
        result = Result(
            7, "r", 1, index, 0, 100 + index, samples, 1, 1000, 0, 0, self.store.model_sha256, len(update), digest,
            False,
        )  # fmt: skip
        commit = Commit(7, 100 + index, 5, 1, "modelled", 0)
        return Job(m.StoreResult(index, self._slices[index], result, commit, last), 0.1, update)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Desk]:
    """Return a desk whose updates are small."""
    desk = Desk(tmp_path / "run", ballast=0)
    yield desk
    desk.store.finish()


def stored(*indices: int) -> list[object]:
    return [m.ResultStored(index, 100 + index) for index in indices]


def test_small_results_share_a_commit_that_the_last_one_of_the_round_makes_at_once(small: Desk) -> None:
    for index in range(3):
        small.store.post([small.result(index, last=index == 2)])
    assert small.answers() == stored(0, 1, 2)
    with Ledger(small.folder) as ledger:
        assert [(row.slice, row.verdict) for row in ledger.contributions(1)] == [(i, "accepted") for i in range(3)]


def test_a_small_result_that_none_follows_is_committed_after_a_moment(small: Desk) -> None:
    small.store.together_s = 0.0
    small.store.post([small.result(0, last=False)])
    assert small.answers() == stored(0)


def test_a_large_result_waits_for_no_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", ballast=INLINE_BYTES)
    desk.store.post([desk.result(0, last=False)])
    assert desk.answers() == stored(0)
    desk.store.finish()


def test_what_waits_for_others_is_committed_when_the_store_is_to_finish(small: Desk) -> None:
    small.store.post([small.result(0, last=False)])
    small.store.finish()
    assert small.answers() == stored(0)


def test_idle_watts_that_were_measured_outlive_the_host(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", ballast=0)
    task = make("linear", {}, 7, None)
    ready = Ready(7, "r", task.manifest.digest(), task.manifest.nbytes, task.samples, "synthetic", 9, "modelled", True)
    desk.store.post([Job(m.StoreReady(1, replace(ready, idle_uw=2_500_000), 8, "0"), 0.2)])
    desk.store.finish()
    recovered = recover(desk.folder, task, lambda text: None)
    store = Store(desk.folder, recovered.run, boards_of(3), task, lambda: 1.0, lambda: None, recovered)
    store.start()
    store.post([Job(m.StoreReady(1, ready, 8, "0"), 0.3)])  # in the middle of a run nobody measures anew
    store.finish()
    with Ledger(desk.folder) as ledger:
        assert ledger.boards()[1].idle_uw == 2_500_000
