# SPDX-License-Identifier: Apache-2.0
"""Experiment files: TOML -> one frozen dataclass. All keys, units, defaults and reasons stand here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from paceline import toml
from paceline.errors import SettingsError
from paceline.policies import IN_STEPS, METHODS, MIXINGS, POLICIES, Policy, fits, policy
from paceline.settings import Bounds, Check, did_you_mean, load_table, read, shown
from paceline.sheet import Sheet
from paceline.silos import Dealing
from paceline.split.clients import Partition
from paceline.tasks import TASKS
from paceline.tasks.options import OPTIONS
from paceline_host.ddp.run import too_little
from paceline_host.hfl import declared
from paceline_host.host_config import endpoint_fault
from paceline_host.mixing.law import MixingSettings
from paceline_host.profile import is_path, load_profile


def _some(policies: tuple[str, ...]) -> None:
    if not policies:
        raise ValueError('expected at least one policy, for instance ["time"]')


NO_KEYS = "fleet.keys is missing"


@dataclass(frozen=True)
class RunSettings:
    """What is run. Each policy is a run of its own over the same fleet, with the same seed and samples."""

    rounds: Annotated[int, Bounds(ge=1, le=100_000)]
    budget: Annotated[int, Bounds(ge=0, le=1 << 31)] = 0  # samples a round, all boards together; psl: left out, all
    policies: Annotated[tuple[Annotated[str, Check(policy)], ...], Check(_some)] = ("time",)
    regime: Literal["pma", "psl", "ddp", "hfl", "async"] = "pma"  # fedasync*: async, beside pma
    seed: Annotated[int, Bounds(ge=0, lt=1 << 63)] = 1
    minimum: Annotated[int, Bounds(ge=1)] = 1  # samples that each board gets at least, so that its cost stays known
    steps: Annotated[int, Bounds(ge=0, le=20_000)] = 0  # ddp, hfl: optimiser steps of a round
    min_batch: Annotated[int, Bounds(ge=0, le=65_536)] = 1  # samples of each board in each such step; 0: may pause
    backend: Literal["gloo", "nccl"] = "gloo"  # ddp, hfl: carries the gradients; nccl: of boards with a CUDA GPU each
    allow_plain_collectives: bool = False  # gloo is plain text; off loopback it needs this consent
    patience_s: Annotated[float, Bounds(ge=0.5, le=86_400)] = 30.0  # the one knob: every wait is derived from it
    chunk_bytes: Annotated[int, Bounds(ge=1 << 15, le=1 << 20)] = 1 << 19  # at most; slow links get smaller ones
    fsync: bool = True  # false: for measuring what it costs; a power cut may then lose rounds


@dataclass(frozen=True)
class FleetSettings:
    """Who takes part. `local` starts emulated boards of a profile here; `boards` waits for agents on real ones."""

    kind: Literal["local", "boards"] = "local"
    profile: str = "eleven-boards"  # name of a shipped profile, or the path of one; local only
    listen: str = "tcp://127.0.0.1:*"  # where agents connect; * takes a free port
    keys: str = ""  # folder with host.key, host.pub and boards/NAME.pub; boards only
    start_s: Annotated[float, Bounds(gt=0)] = 120.0  # start without boards that are not ready by then


@dataclass(frozen=True)
class EnergySettings:
    """`required` = false lets a policy that weighs energy run by time alone when no board has a meter.

    `idle_baseline` = false: boards with a sensor begin at once, and do not measure for 30 s what they draw while
    nothing is done (`idle_s` in their agent.toml).
    """

    required: bool = True
    idle_baseline: bool = True


@dataclass(frozen=True)
class DataSettings:
    """`folder`: your own files (IDX for mnist) instead of the fetched set; boards read their own agent.toml."""

    folder: str = ""


@dataclass(frozen=True)
class SplitSettings(Partition):
    """Regime psl: who the clients are, and what travels. The layer to cut behind is the task's (task.cut)."""

    smashed: Literal["float32", "float16", "bfloat16", "float64"] = "float32"  # what travels at the cut
    device: Literal["cpu", "cuda"] = "cpu"  # of the host's part


@dataclass(frozen=True)
class SiloSettings:
    """Regime hfl, [[silo]], once for each: boards that step together over data that never leave them.

    `samples` left out: a part of the training set, dealt as [silos] says; [BEGIN, END]: that range of it; N: the
    boards' own data, N samples, the same on each of them.
    """

    name: Annotated[str, Bounds(ge=1, le=40), Check(shown)]
    boards: tuple[str, ...]
    budget: Annotated[int, Bounds(ge=1, le=1 << 31)]  # samples a round; it stays in the silo
    samples: Annotated[int, Bounds(ge=1)] | tuple[int, int] | None = None


@dataclass(frozen=True)
class Experiment:
    """One experiment file. `task` is free: the task checks its own options (name, batch, learning_rate, ...)."""

    run: RunSettings
    task: dict[str, object]
    fleet: FleetSettings = field(default_factory=FleetSettings)
    energy: EnergySettings = field(default_factory=EnergySettings)
    data: DataSettings = field(default_factory=DataSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    silo: tuple[SiloSettings, ...] = ()
    silos: Dealing = field(default_factory=Dealing)
    mixing: MixingSettings = field(default_factory=MixingSettings)

    def policies(self) -> list[Policy]:
        """Return the policies, in order."""
        return [policy(name) for name in self.run.policies]


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, with "TABLE.KEY=VALUE" overrides; relative paths in it start at its folder.

    Raises SettingsError with one sentence for each fault.
    """
    return load_with_sheet(path, overrides)[0]


def load_with_sheet(
    path: Path, overrides: Sequence[str] = (), *, keys_needed: bool = True, resolved: bool = True
) -> tuple[Experiment, Sheet]:
    """Read an experiment file as `load_experiment` does; return it with the sheet that knows where each key stands.

    Not `keys_needed`: a daemon's boards have their keys there. Not `resolved`: paths are left as they are.
    """
    sheet = Sheet.read(path, path.name)
    faults: list[str] = []
    for text in overrides:
        try:
            sheet.override(text)
        except SettingsError as error:
            faults += error.errors
    if resolved:
        _resolve(sheet, path.absolute().parent)
    experiment, found = read(sheet, Experiment)
    faults += [*found, *_task_faults(sheet), *_faults(sheet)]
    if not keys_needed:
        faults = [fault for fault in faults if NO_KEYS not in fault]
    if experiment is None or faults:
        raise SettingsError(faults)
    return experiment, sheet


def effective(experiment: Experiment) -> dict[str, Any]:
    """Return all settings of an experiment as tables, the defaults of its task among them."""
    table: dict[str, Any] = toml.plain(experiment)
    name = str(experiment.task["name"])
    options = {key: value for key, value in experiment.task.items() if key != "name"}
    if not experiment.silo:
        del table["silo"]
    table["task"] = {"name": name, **toml.plain(load_table(options, OPTIONS[name], where="task"))}
    return table


def _regime_faults(sheet: Sheet, names: Sequence[object]) -> Iterator[str]:
    """Yield what does not go with the regime: policies divide samples, methods of split learning divide batches."""
    if not isinstance(sheet.at(("run",)), dict):
        return  # it is told that it is none
    regime = sheet.at(("run", "regime")) or "pma"
    is_split = regime == "psl"
    steps = sheet.at(("run", "steps"))
    in_steps = regime in ("ddp", "hfl")
    if in_steps and not steps:
        yield f"{sheet.place(('run', 'steps'))}: run.steps is missing: expected the optimiser steps of a round"
    if not in_steps and steps:
        yield f"{sheet.place(('run', 'steps'))}: run.steps: only regime ddp has such steps; leave it out"
    if regime == "hfl" and not sheet.at(("silo",)):
        yield f"{sheet.name}: there is no [[silo]]: regime hfl needs one for each silo, with name, boards and budget"
    if regime != "hfl" and sheet.at(("silo",)):
        yield f"{sheet.place(('silo', 0))}: silo: only regime hfl has silos; leave [[silo]] out"
    budget = sheet.at(("run", "budget"))
    if is_split and budget:
        yield f"{sheet.place(('run', 'budget'))}: run.budget: an epoch of psl uses each sample once; leave it out"
    if regime == "hfl" and budget:
        yield f"{sheet.place(('run', 'budget'))}: run.budget: each silo has a budget of its own; leave it out"
    if regime not in ("psl", "hfl") and not budget:
        yield f"{sheet.place(('run', 'budget'))}: run.budget is missing: expected the samples of a round"
    plain = {**POLICIES, **MIXINGS}
    known = METHODS if is_split else {name: entry for name, entry in plain.items() if fits(entry, str(regime))}
    for name in names:
        if isinstance(name, str) and name in {**METHODS, **plain} and name not in known:
            yield (
                f"{sheet.place(('run', 'policies'))}: run.policies: {name!r} is nothing for regime "
                f"{regime}; known: {', '.join(known)}"
            )
        if isinstance(name, str) and name.startswith(IN_STEPS) and not in_steps:
            yield (
                f"{sheet.place(('run', 'policies'))}: run.policies: {name!r} counts steps of a round, which regime "
                f"{regime} has not; ddp and hfl have"
            )
    if is_split and not names:
        yield f"{sheet.place(('run', 'policies'))}: run.policies is missing: regime psl has {', '.join(METHODS)}"


def _task_faults(sheet: Sheet) -> list[str]:
    """Return what is wrong with the task's name and options; its options are told only when its name is known."""
    task = sheet.at(("task",))
    if not isinstance(task, dict):
        return []
    name = task.get("name")
    if not isinstance(name, str):
        return [
            f"{sheet.place(('task', 'name'))}: task.name is missing: expected the name of a task, "
            'for instance name = "mnist"'
        ]
    if name not in TASKS:
        return [
            f"{sheet.place(('task', 'name'))}: task.name: there is no task {name!r}; {did_you_mean(name, list(TASKS))}"
        ]
    return read(sheet, OPTIONS[name], ("task",), without=("name",))[1]


def _resolve(sheet: Sheet, base: Path) -> None:
    """Let the file's relative paths start at its own folder, as those of all our files do."""
    for table, key in (("fleet", "profile"), ("fleet", "keys"), ("data", "folder")):
        value = sheet.at((table, key))
        if isinstance(value, str) and value and (key != "profile" or is_path(value)):
            sheet.table[table][key] = os.path.normpath(base / value)


def _faults(sheet: Sheet) -> Iterator[str]:
    """Yield what no single key shows."""
    names = sheet.at(("run", "policies"))
    if isinstance(names, list) and len({str(name) for name in names}) < len(names):
        yield f"{sheet.place(('run', 'policies'))}: run.policies names a policy twice"
    yield from _regime_faults(sheet, names if isinstance(names, list) else [])
    fleet = sheet.at(("fleet",))
    if isinstance(fleet, dict) and fleet.get("kind") == "boards" and not fleet.get("keys"):
        yield (
            f'{sheet.place(("fleet", "kind"))}: {NO_KEYS}: kind = "boards" needs the folder that `paceline keys` made'
        )
    listen = sheet.at(("fleet", "listen"))
    if isinstance(listen, str) and (fault := endpoint_fault(listen)):
        yield f"{sheet.place(('fleet', 'listen'))}: fleet.listen = {fault}"
    boards: list[str] | None = None  # of real ones the keys tell, which may be elsewhere
    if (fleet is None or isinstance(fleet, dict)) and (sheet.at(("fleet", "kind")) or "local") == "local":
        profile = sheet.at(("fleet", "profile"))
        profile = FleetSettings.profile if profile is None else profile
        try:
            boards = [board.name for board in load_profile(profile).boards] if isinstance(profile, str) else None
        except SettingsError as error:
            yield from (f"{sheet.place(('fleet', 'profile'))}: fleet.profile: {fault}" for fault in error.errors)
    yield from _rank_faults(sheet, boards)


def _rank_faults(sheet: Sheet, boards: list[str] | None) -> Iterator[str]:
    """Yield what is wrong with the budgets and silos of synchronised ranks, as far as the file could be read."""
    run = read(sheet, RunSettings, ("run",))[0] if isinstance(sheet.at(("run",)), dict) else None
    regime = sheet.at(("run", "regime"))
    if regime == "ddp" and run and run.budget and boards and (fault := too_little(run, run.budget, len(boards))):
        yield f"{sheet.place(('run', 'budget'))}: {fault}"
    rows = sheet.at(("silo",))
    if regime != "hfl" or not isinstance(rows, list):
        return
    read_rows = ((i, read(sheet, SiloSettings, ("silo", i))[0]) for i, row in enumerate(rows) if isinstance(row, dict))
    silos = {i: one for i, one in read_rows if one is not None}
    for keys, text in declared.faults(silos, run, boards, final=len(silos) == len(rows)):
        yield f"{sheet.place(keys)}: {text}"
