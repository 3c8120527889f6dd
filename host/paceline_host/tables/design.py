# SPDX-License-Identifier: Apache-2.0
"""Table files: TOML -> one frozen dataclass, and its cells. A cell is a row with a seed: one comparison of policies
over one fleet, of real runs or of simulated ones. Runs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from paceline.errors import SettingsError
from paceline.policies import policy
from paceline.settings import Bounds, Check, Doc, load_table, read, shown
from paceline.sheet import Sheet
from paceline_host.experiment import effective, load_experiment
from paceline_host.simulation.scenario import Scenario
from paceline_host.studies.design import differ

Metric = Literal[
    "makespan",
    "predicted",
    "later",
    "joules",
    "waiting",
    "compute_cv",
    "forward_cv",
    "slowest",
    "target_s",
    "target_j",
    "accuracy",
    "loss",
    "controller",
]
METRICS = get_args(Metric)


@dataclass(frozen=True)
class Row:
    """One experiment file, or one scenario of the simulator. Policies and all else stand there."""

    name: Annotated[str, Bounds(ge=1, le=60), Check(shown)]
    experiment: str = ""  # path from the table file's folder
    simulate: dict[str, object] = field(default_factory=dict)  # keys of a file of `paceline simulate`


@dataclass(frozen=True)
class Expectation:
    """What is expected of a policy: a figure, or with `against` its change, that lies within `low` and `high`.

    Changes are in percent; those of figures that are percentages themselves (accuracy, CV, controller) in points.
    """

    what: Annotated[str, Bounds(ge=1)]
    metric: Metric
    policy: Annotated[str, Check(policy)]
    against: str = ""
    low: float | None = None
    high: float | None = None
    rows: tuple[str, ...] = ()  # beginnings of rows' names; empty: all


@dataclass(frozen=True)
class Table:
    """One table file."""

    kind: Annotated[Literal["runs"], Doc("runs of experiment files, or simulated ones")]
    title: Annotated[str, Bounds(ge=1)]
    seeds: Annotated[tuple[Annotated[int, Bounds(ge=0, lt=1 << 63)], ...], Check(differ)]
    rows: tuple[Row, ...]
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One comparison. `settings`: all that decides what comes out, but for the machine."""

    row: str
    seed: int
    policies: tuple[str, ...]
    experiment: Path | None  # None: simulated
    settings: str  # JSON

    def key(self) -> str:
        """Return its folder's name: readable, and another one for any other comparison."""
        safe = "".join(c if c.isalnum() else "_" for c in self.row)
        return f"{safe}-s{self.seed}-{hashlib.sha256(self.settings.encode()).hexdigest()[:10]}"

    def overrides(self) -> list[str]:
        """Return what of the experiment file is set otherwise."""
        return [f"run.seed={self.seed}"]

    def scenario(self) -> Scenario:
        """Return what is simulated."""
        return load_table(json.loads(self.settings), Scenario, where="simulate")


def load_table_file(path: Path) -> Table:
    """Read a table file. Raises SettingsError with one sentence for each fault."""
    table, faults = read(Sheet.read(path, path.name), Table)
    if table is not None:
        faults = [f"{path.name}: {fault}" for fault in _faults(table)]
    if table is None or faults:
        raise SettingsError(faults)
    return table


def cells(table: Table, path: Path) -> list[Cell]:
    """Return every comparison, seed by seed: an unfinished table has few seeds of all rows. Raises SettingsError."""
    return [_cell(row, seed, path.parent) for seed in table.seeds for row in table.rows]


def _cell(row: Row, seed: int, folder: Path) -> Cell:
    if not row.experiment:
        scenario = load_table({**row.simulate, "seed": seed}, Scenario, where=f"row {row.name!r}: simulate")
        plain = {**row.simulate, "seed": seed, "policies": list(scenario.policies)}
        return Cell(row.name, seed, scenario.policies, None, json.dumps(plain, sort_keys=True))
    path = folder / row.experiment
    experiment = load_experiment(path, [f"run.seed={seed}"])
    settings = json.dumps(effective(experiment), sort_keys=True, default=str)
    return Cell(row.name, seed, experiment.run.policies, path, settings)


def _faults(table: Table) -> Iterator[str]:
    """Yield what no single key shows."""
    names = [row.name for row in table.rows]
    if not names or len(set(names)) < len(names):
        yield "rows: expected one [[rows]] at least, and no two of one name"
    for row in table.rows:
        if bool(row.experiment) == bool(row.simulate):
            yield f"row {row.name!r}: expected `experiment` or [rows.simulate], and not both"
    for one in table.expect:
        where = f"expect {one.what!r}"
        if one.low is None and one.high is None:
            yield f"{where}: expected low, high or both, or nothing could speak against it"
        if one.low is not None and one.high is not None and one.low > one.high:
            yield f"{where}: low {one.low:g} is above high {one.high:g}"
        for start in one.rows:
            if not any(name.startswith(start) for name in names):
                yield f"{where}: no row's name begins with {start!r}"


def as_plain(cell: Cell) -> dict[str, object]:
    """Return a cell for its record."""
    return asdict(cell) | {"experiment": str(cell.experiment) if cell.experiment else ""}
