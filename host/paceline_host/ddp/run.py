# SPDX-License-Identifier: Apache-2.0
"""From an experiment of synchronised ranks to facts of one run, and what is wrong with it before anything starts."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from paceline.errors import SettingsError
from paceline.tasks import Task
from paceline_host.ddp.steps import NEEDS_CONSENT, RankFacts

if TYPE_CHECKING:
    from paceline.tasks.modules import Trainable
    from paceline_host.experiment import FleetSettings, RunSettings


def check(run: RunSettings, task: Task, boards: int) -> Trainable:
    """Return the task as a module; no `boards`: silos have them. Raises SettingsError."""
    if boards and (fault := too_little(run, run.budget, boards)):
        raise SettingsError([fault])
    from paceline.tasks.modules import Trainable  # torch: a file of settings is read without it

    return Trainable(task)


def consent(run: RunSettings, fleet: FleetSettings, ranks: int) -> None:
    """Raise SettingsError where a group of so many ranks would need a consent that is not given.

    Where agents may come by several ways (0.0.0.0, a name), that shows when they say where they are: see RankMachine.
    """
    host = fleet.listen.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return
    stays = ranks < 2 or address.is_loopback or address.is_unspecified
    if not (run.allow_plain_collectives or stays):
        raise SettingsError([f"fleet.listen = {fleet.listen}: {NEEDS_CONSENT.format(host)}"])


def backend(run: RunSettings, fleet: FleetSettings) -> None:
    """Raise SettingsError where a backend cannot serve a fleet; a board without CUDA refuses by itself."""
    if run.backend == "nccl" and fleet.kind == "local":
        raise SettingsError(
            ['run.backend = "nccl": the emulated boards of a local fleet train on the CPU; expected "gloo", or '
             'fleet.kind = "boards" with a CUDA GPU on each']
        )  # fmt: skip


def too_little(run: RunSettings, budget: int, boards: int) -> str:
    """Return which key asks for more than a budget has for so many boards, and how much it may; "": none does."""
    each = budget // boards
    if least(run) <= each:
        if run.steps <= budget:
            return ""
        too_many = f"a budget of {budget} samples does not give each step one"  # where every rank may pause
        return f"run.steps = {run.steps}: {too_many}; expected at most {budget} steps"
    has_not = f"a budget of {budget} samples does not give {boards} board{'s' * (boards > 1)}"
    if not each:
        return f"{has_not} one each; expected at least {least(run) * boards} samples"
    if run.minimum > each:
        return f"run.minimum = {run.minimum}: {has_not} so many each; expected at most {each}"
    if run.min_batch > each:
        return f"run.min_batch = {run.min_batch}: {has_not} so many in a step; expected at most {each}"
    most = each // run.min_batch
    return f"run.steps = {run.steps}: {has_not} {run.min_batch} in each step; expected at most {most} steps"


def least(run: RunSettings) -> int:
    """Return the smallest share of a round that gives a rank its part of each step."""
    return max(run.minimum, run.steps * run.min_batch)


def facts(run: RunSettings, trainable: Trainable) -> RankFacts:
    """Return what a round is made of."""
    options = {"steps": run.steps, "minimum": run.min_batch, "patience_s": run.patience_s,
               "plain": run.allow_plain_collectives, "backend": run.backend}  # fmt: skip
    return RankFacts(run.steps, run.min_batch, options, trainable.has_batch_norm)


def notes(trainable: Trainable) -> list[str]:
    """Return what is to be said of a model before it is trained so."""
    if not trainable.has_batch_norm:
        return []
    return [
        'the model has BatchNorm: each rank normalises by its own batch, and batches are unequal; norm = "group" does '
        "not depend on them. Its statistics are one rank's, whose state a round leaves to all (event buffers)"
    ]
