# SPDX-License-Identifier: Apache-2.0
"""What the store of synchronised ranks takes of a rank: a state that training can go on from, and no other."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.host.run_folder import boards_of, run_row
from tests.system.conftest import write_pictures

from paceline.tasks import make
from paceline.tasks.modules import Trainable
from paceline.wire import Result
from paceline_host.ddp.steps import KeepState, StateKept, StateRefused
from paceline_host.ddp.store import RankStore
from paceline_host.store import Job

ANSWER_S = 60.0
Answer = StateKept | StateRefused


@pytest.fixture
def trainable(tmp_path: Path) -> Trainable:
    write_pictures(tmp_path)
    made = Trainable(make("mnist", {"model": "mlp", "hidden": [4], "optimizer": "adam"}, 3, tmp_path))
    made.initial_state()
    return made


@pytest.fixture
def keep(trainable: Trainable, tmp_path: Path) -> Callable[[], Answer]:
    """Return a function that gives the trainable's state to a store, and returns the store's answer."""

    def give() -> Answer:
        answers: queue.SimpleQueue[list[object]] = queue.SimpleQueue()
        run = run_row(fsync=False, samples=trainable._task.samples)
        store = RankStore(
            tmp_path / "run", run, boards_of(1), trainable._task, lambda: 0.0, lambda: answers.put(store.events())
        )
        store.start()
        try:
            state = trainable.state()
            digest = hashlib.sha256(state).hexdigest()
            result = Result(7, "r", 1, 0, 0, 100, 40, 1, 1000, 0, 0, store.model_sha256, len(state), digest, False)
            action: Any = KeepState(0, 100, 1, result)
            store.post([Job(action, 0.1, state)])
            (answer,) = answers.get(timeout=ANSWER_S)
        finally:
            store.finish()
        assert isinstance(answer, Answer)
        return answer

    return give


def test_a_state_after_a_step_is_kept(trainable: Trainable, keep: Callable[[], Answer]) -> None:
    trainable.flat.gradient.fill_(0.5)
    trainable.optimiser.step(trainable.flat.gradient)
    assert isinstance(keep(), StateKept)


def test_a_state_whose_optimiser_has_no_numbers_left_is_refused_though_its_model_has(
    trainable: Trainable, keep: Callable[[], Answer]
) -> None:
    """The square of such a gradient is infinite, so that under adam nothing moves any more, and nobody would know."""
    trainable.flat.gradient.fill_(1e25)
    trainable.optimiser.step(trainable.flat.gradient)
    assert np.isfinite(np.frombuffer(trainable.state(), "<f4", trainable.model_bytes // 4)).all()
    answer = keep()
    assert isinstance(answer, StateRefused)
    assert "the optimiser's memory holds values that are not finite" in answer.reason
