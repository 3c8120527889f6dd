# SPDX-License-Identifier: Apache-2.0
"""The store of split learning, over a side that trains nothing: an epoch is one commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from paceline.wire import Commit, Result
from paceline_host import records
from paceline_host import steps as s
from paceline_host.journal import JOURNAL, connect
from paceline_host.psl.steps import CloseEpoch, CommitStep, ComputeStep, EpochClosed, StorePart
from paceline_host.regimes import Slice
from paceline_host.simulation.chaos.client import gradient, smashed, update
from paceline_host.simulation.chaos.disk import Disk, Doom
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import drawn
from paceline_host.simulation.chaos.psl import ChaosSplitStore, Splitting
from paceline_host.simulation.clock import Clock
from paceline_host.store import Job

SAMPLES = 50
WHOLE = Slice(1, 0, 0, ((0, 0, SAMPLES),))


def store_in(folder: Path) -> ChaosStore:
    plan = replace(drawn(1, "psl"), samples=SAMPLES, budget=SAMPLES)
    run = records.Run(
        run_id="r", policy="gpsl", regime="psl", seed=1, budget=SAMPLES, rounds=1, samples=SAMPLES, batch=SAMPLES,
        task="simulated", data_label="none", energy_required=False, boards=1,
    )  # fmt: skip
    doom = Doom()
    disk = Disk(folder, doom, Random(1))
    disk.folder.mkdir(parents=True)
    return Splitting(plan, Clock()).store(disk, doom, run, [records.Board(0, "board-0")], lambda: 1.0, None)


def do(store: ChaosStore, action: Any, data: bytes = b"") -> list[object]:
    return store.do([Job(action, 1.0, tensors={0: bytearray(data)})])


def test_what_boards_gave_to_an_epoch_is_on_disk_and_answered_when_it_closes(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert isinstance(store, ChaosSplitStore)
    result = Result(7, "r", 1, 0, 0, 5, SAMPLES, 1, 1000, 0, 0, "", 0, store.side.digest(), False)
    with store:
        db = connect(store._folder / JOURNAL, "ro")

        def counted() -> list[tuple[int, int]]:
            return db.execute("SELECT lease, samples FROM contribution").fetchall()

        data = smashed(store.part, [(0, place) for place in range(SAMPLES)])
        back = update(store.part, gradient([data], SAMPLES))
        do(store, s.StoreSlices((WHOLE,), first=True))
        do(store, ComputeStep(1, 0, 0, ((0, SAMPLES),)), data)
        do(store, CommitStep(1, 0, 0, (0,)), back)
        given = StorePart(0, WHOLE, 5, SAMPLES, 1, result, Commit(7, 5, 10, 0, "modelled", 0, 0))
        assert do(store, given) == []
        assert counted() == [], "a host that is killed here does the epoch anew, and what was given with it"
        assert do(store, CloseEpoch(1, 1, 0, 0, 0)) == [s.ResultStored(0, 5), EpochClosed(1)]
        assert counted() == [(5, SAMPLES)]
        db.close()
