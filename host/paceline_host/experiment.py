# SPDX-License-Identifier: Apache-2.0
"""Experiment files: TOML -> one frozen dataclass. All keys, units, defaults and reasons stand here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from paceline.errors import SettingsError
from paceline.policies import Policy, policy
from paceline.settings import Bounds, did_you_mean, load, load_table
from paceline.tasks import TASKS


@dataclass(frozen=True)
class RunSettings:
    """What is run. Each policy is a run of its own over the same fleet, with the same seed and samples."""

    rounds: Annotated[int, Bounds(ge=1, le=100_000)]
    budget: Annotated[int, Bounds(ge=1, le=1 << 31)]  # samples a round, all boards together; fixed
    policies: tuple[str, ...] = ("time",)
    regime: Literal["pma"] = "pma"
    seed: Annotated[int, Bounds(ge=0, lt=1 << 63)] = 1
    minimum: Annotated[int, Bounds(ge=1)] = 1  # samples that each board gets at least, so that its cost stays known
    patience_s: Annotated[float, Bounds(gt=0, le=86_400)] = 30.0  # the one knob: every wait is derived from it
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
    """`required` = false lets a policy that weighs energy run by time alone when no board has a meter."""

    required: bool = True


@dataclass(frozen=True)
class DataSettings:
    """`folder`: your own files (IDX for mnist) instead of the fetched set; boards read their own agent.toml."""

    folder: str = ""


@dataclass(frozen=True)
class Experiment:
    """One experiment file. `task` is free: the task checks its own options (name, batch, learning_rate, ...)."""

    run: RunSettings
    task: dict[str, object]
    fleet: FleetSettings = field(default_factory=FleetSettings)
    energy: EnergySettings = field(default_factory=EnergySettings)
    data: DataSettings = field(default_factory=DataSettings)

    def policies(self) -> list[Policy]:
        """Return the policies, in order."""
        return [policy(name) for name in self.run.policies]


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, with "TABLE.KEY=VALUE" overrides. Raises SettingsError with one sentence for each
    fault.
    """
    where = path.name
    faults: list[str] = []
    try:
        experiment: Experiment | None = load(path, Experiment, where=where)
        if overrides:
            where = f"{path.name} with --set"
            experiment = load_table(_overridden(path, overrides), Experiment, where=where)
    except SettingsError as error:
        experiment, faults = None, error.errors
    faults += [f"{where}: {fault}" for fault in _faults(experiment or _readable(path))]
    if experiment is None or faults:
        raise SettingsError(faults)
    return experiment


def _faults(experiment: Experiment) -> Iterator[str]:
    """Yield what no single key shows."""
    if not isinstance(experiment.task.get("name"), str):
        yield 'task.name is missing: expected the name of a task, for instance name = "mnist"'
    elif experiment.task["name"] not in TASKS:
        name = str(experiment.task["name"])
        yield f"task.name: there is no task {name!r}; {did_you_mean(name, list(TASKS))}"
    if not experiment.run.policies:
        yield 'run.policies is empty: expected at least one, for instance ["time"]'
    if len(set(experiment.run.policies)) < len(experiment.run.policies):
        yield "run.policies names a policy twice"
    for name in experiment.run.policies:
        try:
            policy(name)
        except ValueError as error:
            yield f"run.policies: {error}"
    if experiment.fleet.kind == "boards" and not experiment.fleet.keys:
        yield 'fleet.keys is missing: kind = "boards" needs the folder that `paceline keys` made'


def _readable(path: Path) -> Experiment:
    """Return what of a faulty file can be judged all the same, so that all its faults are told at once."""
    sound = Experiment(RunSettings(rounds=1, budget=1), {"name": next(iter(TASKS))})
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return sound
    run, task = content.get("run"), content.get("task")
    names = run.get("policies") if isinstance(run, dict) else None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        sound = replace(sound, run=replace(sound.run, policies=tuple(names)))
    return replace(sound, task=task) if isinstance(task, dict) and task else sound


def _overridden(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    for text in overrides:
        (table, key), value = _override(text)
        content.setdefault(table, {})[key] = value
    return content


def _override(text: str) -> tuple[tuple[str, str], Any]:
    path, equals, value = text.partition("=")
    table, dot, key = path.strip().partition(".")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"] if equals and dot and key else None
    except tomllib.TOMLDecodeError:
        parsed = None
    if parsed is None:
        raise SettingsError(
            [
                f"--set {text}: expected TABLE.KEY=VALUE with a TOML value, for instance run.rounds=2 or "
                "'run.policies=[\"time\"]'"
            ]
        )
    return (table, key), parsed
