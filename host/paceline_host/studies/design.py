# SPDX-License-Identifier: Apache-2.0
"""Study files: TOML -> one frozen dataclass, and its cells. A cell is one training; the file says all of them, and what
is expected of them, before the first one is run. Knows no torch and trains nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from paceline import batches
from paceline.errors import SettingsError
from paceline.settings import Bounds, Check, Doc, did_you_mean, load_table, read
from paceline.sheet import Sheet
from paceline.tasks import TASKS
from paceline.tasks.options import OPTIONS
from paceline_host.experiment import DataSettings
from paceline_host.studies.variations import VARIATIONS

METHODS = (*batches.METHODS, *VARIATIONS)
METRICS = ("accuracy", "deviation", "before_depletion", "recalibrated")


def _method(name: str) -> None:
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; {did_you_mean(name, list(METHODS))}")


def differ(values: tuple[object, ...]) -> None:
    """Raise ValueError for no value, or one that stands there twice."""
    if not values or len(set(values)) < len(values):
        raise ValueError("expected one or more values, each once")


Method = Annotated[str, Check(_method)]
Count = Annotated[int, Bounds(ge=1, le=1 << 20)]
PartitionName = Literal["iid", "mild", "severe", "shards"]


@dataclass(frozen=True)
class Model:
    """What is trained: the keys that it adds to [task] of the study, or replaces there."""

    name: Annotated[str, Bounds(ge=1, le=40)]
    task: dict[str, object]
    epochs: Annotated[int, Bounds(ge=0, le=100_000)] = 0  # 0: the study's


@dataclass(frozen=True)
class Grid:
    """Every combination of these is trained, once a seed. `central` has neither partition nor clients: once a batch."""

    methods: Annotated[tuple[Method, ...], Check(differ)]
    partitions: Annotated[tuple[PartitionName, ...], Check(differ)]
    clients: Annotated[tuple[Count, ...], Check(differ)]
    batches: Annotated[tuple[Count, ...], Check(differ)]
    models: tuple[str, ...] = ()  # empty: all


@dataclass(frozen=True)
class Expectation:
    """What is expected to be seen, of each setting that matches: an interval that lies within `low` and `high`.

    The interval is that of `method`'s metric, or with `against` of the paired differences from that method. Accuracy is
    in points of 100; deviation is in shares of what exact sampling gives, so that 1 is exact.
    """

    what: Annotated[str, Bounds(ge=1)]
    method: Method
    metric: Literal["accuracy", "deviation", "before_depletion", "recalibrated"] = "accuracy"
    against: str = ""
    against_metric: str = ""  # "": the same
    low: float | None = None
    high: float | None = None
    models: tuple[str, ...] = ()  # empty: all, as of the others
    partitions: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Study:
    """One study file."""

    kind: Annotated[Literal["split"], Doc("what is trained: split is split learning in one process")]
    title: Annotated[str, Bounds(ge=1)]
    seeds: Annotated[tuple[Annotated[int, Bounds(ge=0, lt=1 << 63)], ...], Check(differ)]
    epochs: Annotated[int, Bounds(ge=1, le=100_000)]
    task: dict[str, object]
    models: tuple[Model, ...]
    grids: tuple[Grid, ...]
    expect: tuple[Expectation, ...] = ()
    data: DataSettings = field(default_factory=DataSettings)
    confidence: Annotated[float, Bounds(gt=0.5, lt=1)] = 0.95  # of the t-intervals over seeds
    evaluate_every: Annotated[int, Bounds(ge=1)] = 1  # epochs


@dataclass(frozen=True)
class Setting:
    """What the seeds of a study have in common."""

    model: str
    partition: str  # "": central
    clients: int  # 0: central
    batch: int
    method: str

    def where(self) -> tuple[str, str, int, int]:
        """Return all but the method."""
        return self.model, self.partition, self.clients, self.batch

    def text(self) -> str:
        """Return it in a few words."""
        who = "" if self.method == "central" else f", {self.partition}, K {self.clients}"
        return f"{self.model}{who}, B {self.batch}, {self.method}"


@dataclass(frozen=True)
class Cell:
    """One training."""

    setting: Setting
    seed: int
    epochs: int
    evaluate_every: int
    task: Mapping[str, object]
    folder: str = ""  # own files; "": the cache

    def key(self) -> str:
        """Return its file's name: readable, and another one for any other training."""
        plain = json.dumps(
            {key: value for key, value in asdict(self).items() if key != "folder" or value}, sort_keys=True
        )
        one = self.setting
        words = (one.model, one.partition or "all", f"k{one.clients}", f"b{one.batch}", one.method, f"s{self.seed}")
        safe = "-".join("".join(c if c.isalnum() else "_" for c in str(word)) for word in words)
        return f"{safe}-{hashlib.sha256(plain.encode()).hexdigest()[:10]}"


def load_study(path: Path) -> Study:
    """Read a study file. Raises SettingsError with one sentence for each fault."""
    sheet = Sheet.read(path, path.name)
    folder = sheet.at(("data", "folder"))
    if isinstance(folder, str) and folder:  # relative paths in a file start at its own folder
        sheet.table["data"]["folder"] = os.path.normpath(path.absolute().parent / folder)
    study, faults = read(sheet, Study)
    if study is not None:
        faults = [f"{path.name}: {fault}" for fault in _faults(study)]
    if study is None or faults:
        raise SettingsError(faults)
    return study


def cells(study: Study) -> list[Cell]:
    """Return every training once, seed by seed: an unfinished study has few seeds of all, not all seeds of a few."""
    models = {model.name: model for model in study.models}
    made: dict[Setting, None] = {}
    for grid in study.grids:
        for name in grid.models or models:
            for setting in _settings(grid, name):
                made[setting] = None
    return [
        Cell(
            setting, seed, models[setting.model].epochs or study.epochs, study.evaluate_every,
            _options(study, models[setting.model]), study.data.folder,
        )
        for seed in study.seeds for setting in made
    ]  # fmt: skip


def _settings(grid: Grid, model: str) -> Iterator[Setting]:
    for partition in grid.partitions:
        for clients in grid.clients:
            for batch in grid.batches:
                for method in grid.methods:
                    setting = Setting(model, partition, clients, batch, method)
                    yield replace(setting, partition="", clients=0) if method == "central" else setting


def plain_descent(task: Mapping[str, object]) -> bool:
    """Return whether a step without a gradient moves nothing: no momentum, no moments."""
    name = str(task["name"])
    options = load_table({k: v for k, v in task.items() if k != "name"}, OPTIONS[name], where="task")
    return getattr(options, "optimizer", "sgd") == "sgd" and getattr(options, "momentum", 0.0) == 0.0


def _options(study: Study, model: Model) -> dict[str, object]:
    return {**study.task, **model.task}


def _faults(study: Study) -> Iterator[str]:
    """Yield what no single key shows."""
    names = [model.name for model in study.models]
    if not names or len(set(names)) < len(names) or not study.grids:
        yield "models and grids: expected one [[models]] and one [[grids]] at least, and no two models of one name"
    weighted = any(method.endswith("-weighted") for grid in study.grids for method in grid.methods)
    for model in study.models:
        faults = list(_task_faults(model.name, _options(study, model)))
        yield from faults
        if not faults and weighted and not plain_descent(_options(study, model)):
            yield f'model {model.name}: fls-weighted needs a plain step: optimizer = "sgd" and momentum = 0.0'
    for number, grid in enumerate(study.grids, 1):
        for name in set(grid.models) - set(names):
            yield f"grids #{number}: there is no model {name!r}; {did_you_mean(name, names)}"
    for one in study.expect:
        where = f"expect {one.what!r}"
        for name in set(one.models) - set(names):
            yield f"{where}: there is no model {name!r}; {did_you_mean(name, names)}"
        if one.low is None and one.high is None:
            yield f"{where}: expected low, high or both, or nothing could speak against it"
        if one.low is not None and one.high is not None and one.low > one.high:
            yield f"{where}: low {one.low:g} is above high {one.high:g}"
        if one.against and one.against not in METHODS:
            yield f"{where}: against: there is no method {one.against!r}; {did_you_mean(one.against, list(METHODS))}"
        if one.against_metric and (one.against_metric not in METRICS or not one.against):
            yield f"{where}: against_metric is one of {', '.join(METRICS)}, with `against`; got {one.against_metric!r}"


def _task_faults(model: str, options: Mapping[str, Any]) -> Iterator[str]:
    name = options.get("name")
    if name not in TASKS:
        yield f"model {model}: task.name: there is no task {name!r}; {did_you_mean(str(name), list(TASKS))}"
        return
    sheet = Sheet(f"model {model}", {"task": dict(options)})
    yield from read(sheet, OPTIONS[str(name)], ("task",), without=("name",))[1]
    if not options.get("cut"):
        yield f'model {model}: task.cut is missing: the part to cut behind, for instance cut = "conv1"'
    if "batch" in options:
        yield f"model {model}: task.batch: the grids say the batches; leave it out"
