# SPDX-License-Identifier: Apache-2.0
"""What runs are killed, one for each regime, and what each must come to, whatever was killed.

`pma`, `async`: each model is made again from the journal's slices alone, bit for bit. `psl`: the models of an unbroken
run, bit for bit, unless a board left the pool. `ddp`, `hfl`: those of an unbroken run but for rounding; a silo that has
lapsed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.silos import Dealing
from paceline.tasks import make
from paceline_agent.channel import Work
from paceline_agent.workers.pma import PmaWorker
from paceline_host import checkpoint
from paceline_host.ledger import Ledger

from . import test_async as mixing
from . import test_ddp as ranks
from . import test_hfl as silos
from . import test_resume as averaging
from . import test_split as split
from .fleet_tools import TRAIN, Declared

Check = Callable[[Path, Path, Path | None], None]  # its folder, the pictures' folder, the unbroken run's folder
ROUNDS = 3
EXACT = 1e-12  # of float64 weights near 1, summed in another order


@dataclass(frozen=True)
class Regime:
    """A run that is killed. `lasts_s`: about as long as it works; signals come within that."""

    run: Mapping[str, object]
    task: Mapping[str, object]
    declared: Mapping[str, Declared]
    check: Check
    lasts_s: float
    more: str = ""
    pictures: bool = True
    blows: int = 5  # a run, at most

    @property
    def policy(self) -> str:
        """Return the run's one policy."""
        policies = self.run["policies"]
        assert isinstance(policies, list)
        return str(policies[0])

    @property
    def boards(self) -> tuple[str, ...]:
        """Return the boards by number."""
        return tuple(self.declared)


class _NoClock:
    """A worker's clock where nobody waits."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def step(self, samples: int) -> None: ...


def averaged(folder: Path, pictures: Path, whole: Path | None) -> None:
    """Train again what the journal says was dealt and average it; where shares were those of `whole`, so are models."""
    found = averaging.models(folder)
    with Ledger(folder) as ledger:
        run = ledger.run
        task = make("linear", dict(run.options), run.seed, None)
        worker, model = PmaWorker(task, {}), memoryview(bytearray(task.initial()))
        for row, digest in zip(ledger.rounds(), found, strict=True):
            total, ranges = np.zeros(model.nbytes // 4), {s.index: s.ranges for s in ledger.slices(row.round)}
            for one in ledger.contributions(row.round, "accepted"):
                update = memoryview(bytearray(model.nbytes))
                worker.work(Work(one.lease, ranges[one.slice], run.batch, run.seed), model, update, _NoClock())
                assert update == ledger.update(one), f"round {row.round}, slice {one.slice}: another update"
                total += np.multiply(np.frombuffer(update, np.float32), one.samples, dtype=np.float64)
            model = memoryview((total / run.budget).astype(np.float32).tobytes())
            kept, named = checkpoint.load(checkpoint.path(folder, row.round), task.manifest)
            assert (bytes(model), named) == (bytes(kept), str(digest)), f"round {row.round}: another model"
            assert set(ledger.counted(row.round).values()) == {1}
        dealt = [(s.round, s.ranges) for s in ledger.slices()]
    if whole is not None:
        with Ledger(whole) as unbroken:
            if dealt == [(s.round, s.ranges) for s in unbroken.slices()]:
                assert found == averaging.models(whole)


def mixed(folder: Path, pictures: Path, whole: Path | None) -> None:
    """Mix again, bit for bit."""
    mixing.check(folder, ROUNDS)


def synchronised(folder: Path, pictures: Path, whole: Path | None) -> None:
    """Which ranks there were makes no difference."""
    found = ranks.models(folder, pictures, ROUNDS)
    if whole is not None:
        assert ranks.same(found, ranks.models(whole, pictures, ROUNDS))


def in_silos(folder: Path, pictures: Path, whole: Path | None) -> None:
    """Which ranks of a silo there were makes none either; a silo that lapsed is left out."""
    with Ledger(folder) as ledger:
        budgets = {name: budget for name, (_, budget) in silos.SILOS.items()}
        lapsed = [(n, list(budgets).index(name)) for n, names in ledger.lapsed().items() for name in names]
        lost = sum(list(budgets.values())[silo] for _, silo in lapsed)
    found = silos.models(folder, pictures, ROUNDS * sum(budgets.values()) - lost)
    if lapsed:
        task = make("mnist", {key: value for key, value in silos.TASK.items() if key != "name"}, 3, pictures)
        members = Dealing(seed=silos.SEED_OF_DEAL).members(task, len(budgets))
        assert silos.same(found, silos.trained_alone(pictures, members, lapsed))
    elif whole is not None:
        assert silos.same(found, silos.models(whole, pictures))


def split_up(folder: Path, pictures: Path, whole: Path | None) -> None:
    """No sample twice; where no board was lost, the model of an unbroken run."""
    found = averaging.models(folder)
    with Ledger(folder) as ledger:
        for epoch in ledger.epochs():
            assert sum(step.samples for step in ledger.steps(epoch.round)) + epoch.left == TRAIN
        if ledger.events("left"):
            return
    if whole is not None:
        assert found == averaging.models(whole)


SLOWLY = {name: Declared(speed=board.speed / 120) for name, board in averaging.BOARDS.items()}
PACED = {"reference_seconds_per_sample": 6.0}  # a step of the slow board takes a quarter of a second
REGIMES = {
    "pma": Regime(
        {**averaging.RUN, "rounds": ROUNDS}, averaging.CHUNKY, SLOWLY, averaged, 3.0, pictures=False
    ),
    "ddp": Regime({**ranks.RUN, "rounds": ROUNDS}, {**ranks.TASK, **PACED}, ranks.BOARDS, synchronised, 4.0),
    "hfl": Regime(silos.RUN, {**silos.TASK, **silos.SLOW}, silos.BOARDS, in_silos, 5.0, silos.silo_tables()),
    "psl": Regime(
        {**split.RUN, "rounds": ROUNDS}, {**split.TASK, **PACED}, split.BOARDS, split_up, 4.0,
        '[split]\nclients = 6\npartition = "iid"',
    ),
    "async": Regime(mixing.RUN, averaging.CHUNKY, SLOWLY, mixed, 3.0, "[mixing]\nslice = 6", pictures=False),
}  # fmt: skip
