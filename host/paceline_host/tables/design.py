# SPDX-License-Identifier: Apache-2.0
"""Table files: TOML -> one frozen dataclass, and its cells. A cell is a row with a seed: one comparison of policies
over one fleet, of real runs or of simulated ones. Runs nothing.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from paceline.errors import SettingsError
from paceline.policies import policy
from paceline.settings import Bounds, Check, Doc, did_you_mean, load_table, read, shown
from paceline.sheet import Sheet
from paceline_host.experiment import effective, load_experiment
from paceline_host.simulation.scenario import Scenario, resolve
from paceline_host.studies.design import differ
from paceline_host.tables.content import digest_of_experiment, digest_of_scenario

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


def _policy_or_none(name: str) -> None:
    if name:
        policy(name)


@dataclass(frozen=True)
class Expectation:
    """What is expected of a policy: a figure, or with `against` its change, that lies within `low` and `high`.

    Changes are in percent; those of figures that are percentages themselves (accuracy, CV, controller) in points.
    """

    what: Annotated[str, Bounds(ge=1)]
    metric: Metric
    policy: Annotated[str, Check(policy)]
    against: Annotated[str, Check(_policy_or_none)] = ""
    low: float | None = None
    high: float | None = None
    rows: tuple[str, ...] = ()  # beginnings of rows' names; empty: all

    def concerns(self, row: str) -> bool:
        """Tell whether it is stated of a row."""
        return not self.rows or row.startswith(self.rows)


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
    content: str = ""  # digest of the user's own files that the settings name; empty: of none

    def key(self) -> str:
        """Return its folder's name: readable, and another one for any other comparison."""
        safe = "".join(c if c.isalnum() else "_" for c in self.row)
        return f"{safe}-s{self.seed}-{hashlib.sha256((self.settings + self.content).encode()).hexdigest()[:10]}"

    def overrides(self) -> list[str]:
        """Return what of the experiment file is set otherwise."""
        return [f"run.seed={self.seed}"]

    def scenario(self) -> Scenario:
        """Return what is simulated."""
        return load_table(json.loads(self.settings), Scenario, where="simulate")


def load_table_file(path: Path) -> Table:
    """Read a table file. Raises SettingsError with one sentence for each fault."""
    sheet = Sheet.read(path, path.name)
    table, faults = read(sheet, Table)
    if table is not None:
        faults = list(_faults(table, sheet))
    if table is None or faults:
        raise SettingsError(faults)
    return table


def cells(table: Table, path: Path) -> list[Cell]:
    """Return every comparison, seed by seed: an unfinished table has few seeds of all rows. Raises SettingsError."""
    files: dict[str, str] = {}  # what a row names is read once, not for each seed
    found = [_cell(row, seed, path.absolute().parent, files) for seed in table.seeds for row in table.rows]
    if faults := list(_unheard(table, {cell.row: cell.policies for cell in found}, Sheet.read(path, path.name))):
        raise SettingsError(faults)
    return found


def _cell(row: Row, seed: int, folder: Path, files: dict[str, str]) -> Cell:
    if not row.experiment:
        plain = copy.deepcopy(row.simulate) | {"seed": seed}
        resolve(plain, folder)
        scenario = load_table(plain, Scenario, where=f"row {row.name!r}: simulate")
        settings = json.dumps(plain | {"policies": list(scenario.policies)}, sort_keys=True)
        content = files[row.name] if row.name in files else digest_of_scenario(scenario)
        files[row.name] = content
        return Cell(row.name, seed, scenario.policies, None, settings, content)
    path = folder / row.experiment
    experiment = load_experiment(path, [f"run.seed={seed}"])
    settings = json.dumps(effective(experiment), sort_keys=True, default=str)
    content = files[row.name] if row.name in files else digest_of_experiment(experiment)
    files[row.name] = content
    return Cell(row.name, seed, experiment.run.policies, path, settings, content)


def _faults(table: Table, sheet: Sheet) -> Iterator[str]:
    """Yield what no single key shows."""
    names = [row.name for row in table.rows]
    if not names or len(set(names)) < len(names):
        yield f"{sheet.place(('rows',))}: rows: expected one [[rows]] at least, and no two of one name"
    for place, row in enumerate(table.rows):
        if row.simulate:
            yield from read(sheet, Scenario, ("rows", place, "simulate"), without=("seed",))[1]
        if bool(row.experiment) == bool(row.simulate):
            yield (
                f"{sheet.place(('rows', place))}: row {row.name!r}: expected `experiment` or [rows.simulate], and not "
                "both"
            )
    for place, one in enumerate(table.expect):
        where = f"{sheet.place(('expect', place))}: expect {one.what!r}"
        if one.low is None and one.high is None:
            yield f"{where}: expected low, high or both, or nothing could speak against it"
        if one.low is not None and one.high is not None and one.low > one.high:
            yield f"{where}: low {one.low:g} is above high {one.high:g}"
        if one.policy == one.against:
            yield f"{where}: policy and against are both {one.policy!r}; a run has no change against itself"
        for start in one.rows:
            if not any(name.startswith(start) for name in names):
                yield f"{where}: no row's name begins with {start!r}"


def _unheard(table: Table, policies: Mapping[str, Sequence[str]], sheet: Sheet) -> Iterator[str]:
    """Yield the expectations that no row could ever answer; `policies`: of each row."""
    for place, one in enumerate(table.expect):
        rows = [own for name, own in policies.items() if one.concerns(name)]
        for key, wanted in (("policy", one.policy), ("against", one.against)):
            if wanted and not any(wanted in own for own in rows):
                known = list(dict.fromkeys(name for own in rows for name in own))
                yield (
                    f"{sheet.place(('expect', place, key))}: expect {one.what!r}: {key} {wanted!r} is in no row that "
                    f"it is of; {did_you_mean(wanted, known)}"
                )
                break
        else:
            if one.against and not any(one.policy in own and one.against in own for own in rows):
                yield (
                    f"{sheet.place(('expect', place, 'against'))}: expect {one.what!r}: no row has both {one.policy!r} "
                    f"and {one.against!r}"
                )


def as_plain(cell: Cell) -> dict[str, object]:
    """Return a cell for its record."""
    return asdict(cell) | {"experiment": str(cell.experiment) if cell.experiment else ""}
