# SPDX-License-Identifier: Apache-2.0
"""`paceline verify ddp`: one step over the fleet, compared with what one process makes of the same samples.

With plain gradient descent at rate 1 the weights move by the gradient, so the whole way is tried as runs use it: the
schedule, the group, the hook. Shares are unequal on purpose, since equal ones hide the mean of means. Where a rank may
pause, it is two steps, in one of which the first rank has no sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import allocate, permutation
from paceline.errors import RunError, SettingsError
from paceline.policies import Policy, policy
from paceline.talk import Talk
from paceline.tasks import Task
from paceline.tasks.modules import Trainable, way_of
from paceline.uneven import Deal
from paceline_host import checkpoint, planner
from paceline_host.comparison import Comparison, Watcher, boards_of, folder_name, new_folder
from paceline_host.ddp.run import too_little
from paceline_host.embedded import run_embedded
from paceline_host.experiment import Experiment

POLICY = "equal"
# Of the largest component of the gradient. float32: the weights' own rounding is larger than the gradient's.
ALLOWED = {"float64": 1e-10, "float32": 1e-3}


@dataclass(frozen=True)
class Difference:
    """What the step (or both) over the fleet and alone differ by."""

    precision: str
    largest: float  # of any component
    gradient: float  # the largest component
    samples: int
    shares: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """The scaling is right."""
        return self.largest <= ALLOWED[self.precision] * self.gradient


class Ramp:
    """Shares in proportion to 1, 2, 3, ...: no two alike, where the budget allows; the first has 1 if it may."""

    heeds_waits = False
    every = 0
    notes: tuple[str, ...] = ()

    def __init__(self, budget: int, minimum: int) -> None:
        self._budget, self._minimum = budget, minimum
        self.shares: list[int] = []

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the shares of the present boards."""
        costs = [1.0 / (i + 1) for i in range(len(present))]
        if self._minimum or len(costs) < 2:
            self.shares = allocate(costs, self._budget, minimum=self._minimum)
        else:
            self.shares = [1, *allocate(costs[1:], self._budget - 1, minimum=1)]
        return self.shares

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Learn nothing."""

    def observe_wait(self, board: int, seconds: float, energy_j: float) -> None:
        """Learn nothing."""

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        """Learn nothing."""

    def observe_idle(self, board: int, watts: float) -> None:
        """Nothing is learned."""

    def seconds_per_sample(self, board: int) -> float | None:
        """Return None: nothing is measured."""
        return None


class OneStep(Comparison):
    """A comparison of one run, one round and one step, with shares in a ramp."""

    ramp: Ramp

    @property
    def task(self) -> Task:
        """The task that is trained."""
        return self._task

    def need_one_answer(self) -> None:
        """Raise SettingsError for a model whose gradient depends on how the batch is divided."""
        if self._trainable.has_batch_norm:
            raise SettingsError(
                [
                    "task: the model has BatchNorm, so no scaling makes the fleet's gradient that of one process: they "
                    'cannot be compared; expected a model without it, for instance norm = "group"'
                ]
            )

    def _planner(self, policy: Policy, boards: int, replayed: Path | None) -> planner.Planner:
        self.ramp = Ramp(self.experiment.run.budget, self.experiment.run.min_batch)
        return self.ramp


def variant(experiment: Experiment, precision: str, boards: int) -> Experiment:
    """Return an experiment's one step whose weights move by the gradient. Raises SettingsError."""
    run = experiment.run
    if run.regime != "ddp":
        raise SettingsError(
            [f'run.regime = "{run.regime}": expected "ddp"; its ranks are one group, of silos each is one']
        )
    steps = 1 if run.min_batch else 2
    samples = max(-(-run.budget // run.steps) * steps, boards * (boards + 1) // 2, steps)
    task = {**experiment.task, "optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0, "precision": precision}
    return replace(
        experiment, task=task, run=replace(run, rounds=1, steps=steps, budget=samples, policies=(POLICY,), minimum=1)
    )  # fmt: skip


def verify(experiment: Experiment, precision: str, runs_dir: Path, talk: Talk) -> Difference:
    """Run one step over the fleet, or two, and compare. Raises PacelineError."""
    watcher = Watcher(talk.info, lambda name, machine, now_s: None, lambda folder, outcome: None)
    boards = len(boards_of(experiment.fleet)[1])
    one = variant(experiment, precision, boards)
    if fault := too_little(experiment.run, experiment.run.budget, boards):
        raise SettingsError([fault])
    comparison = OneStep(one, watcher)
    comparison.need_one_answer()
    folder = new_folder(runs_dir, "verify")
    if not run_embedded(comparison, folder, talk):
        raise RunError("the step over the fleet did not end well, as was said above; nothing can be compared")
    moved, _ = checkpoint.load(
        checkpoint.path(folder / folder_name(policy(POLICY)), 1), comparison.task.manifest
    )  # fmt: skip
    return compare(comparison.task, moved, one.run.seed, Deal([one.run.budget], one.run.steps), precision,
                   comparison.ramp.shares)  # fmt: skip


def compare(
    task: Task, moved: bytes, seed: int, deal: Deal, precision: str, shares: Sequence[int]
) -> Difference:  # fmt: skip
    """Compare the model that the fleet left with one process's steps on the union batches, which `deal` deals to it."""
    epochs = range(-(-sum(deal.shares) // task.samples))
    indices = [index for epoch in epochs for index in permutation(seed, epoch, task.samples)]
    batches = [[indices[place] for place in deal.places(step, 0)] for step in range(deal.steps)]
    largest, gradient = way_of(Trainable(task), batches, moved)
    return Difference(precision, largest, gradient, sum(deal.shares), tuple(shares))
