# SPDX-License-Identifier: Apache-2.0
"""One cell of a table -> its record: `paceline run`'s comparison over a fleet of its own, or the simulator's."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline import foreign
from paceline.errors import DamagedError, RunError, StorageError
from paceline.talk import Talk
from paceline_host.figures import RunFigures
from paceline_host.simulation.results import Outcome
from paceline_host.tables.design import METRICS, Cell, as_plain
from paceline_host.tables.figures import REFERENCE

RECORD = "cell.json"
TARGET_SLACK = 1.001  # synchronised ranks end with one loss whatever the policy, but for rounding
Record = dict[str, Any]


def read_records(folder: Path, cells: Iterable[Cell]) -> dict[str, Record]:
    """Return the records that are there already, by their cell's key. Raises DamagedError."""
    found = {}
    for cell in cells:
        path = folder / cell.key() / RECORD
        try:
            record = dict(json.loads(foreign.read_text(path, foreign.MOST_RECORD_BYTES)))
            if any(metric not in run for run in record["policies"].values() for metric in METRICS):
                raise ValueError("another version of paceline has made it")
            found[cell.key()] = record
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{path}: cannot be read ({error}); remove its folder, and it is run anew") from None
    return found


def run_cell(cell: Cell, folder: Path, talk: Talk, stoppable: Callable[[Callable[[str], None]], None]) -> Record | None:
    """Run a cell anew and keep its record; None: it was stopped. Raises PacelineError.

    `stoppable` is given what ends it in order.
    """
    home = folder / cell.key()
    with suppress(FileNotFoundError):
        shutil.rmtree(home)  # of a cell that was interrupted: its makespans would hold the interruption
    began_s, load = time.monotonic(), os.getloadavg()[0]
    policies = _simulated(cell) if cell.experiment is None else _run(cell, cell.experiment, home, talk, stoppable)
    if policies is None:
        return None
    record = {
        "cell": as_plain(cell), "policies": policies, "wall_s": time.monotonic() - began_s,
        "load": [load, os.getloadavg()[0]],
    }  # fmt: skip
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{RECORD}.part").write_text(json.dumps(record, indent=1), encoding="utf-8")
        (home / f"{RECORD}.part").replace(home / RECORD)
    except OSError as error:
        raise StorageError(f"{home / RECORD}: cannot be written: {error.strerror}") from None
    return record


def _run(
    cell: Cell, path: Path, home: Path, talk: Talk, stoppable: Callable[[Callable[[str], None]], None]
) -> dict[str, Any] | None:
    from paceline_host.comparison import Comparison, Watcher
    from paceline_host.embedded import run_embedded
    from paceline_host.experiment import load_experiment
    from paceline_host.report import load_report

    watcher = Watcher(talk.info, lambda policy, machine, now_s: None, lambda folder, outcome: None)
    comparison = Comparison(load_experiment(path, cell.overrides()), watcher)
    home.mkdir(parents=True)
    stoppable(comparison.stop)
    complete = run_embedded(comparison, home, talk)
    if comparison.stopping:
        return None
    if not complete:
        raise RunError(f"{cell.row}, seed {cell.seed}: a run did not finish, see paceline report {home}")
    runs = load_report(home).runs
    target = next((run.loss for run in runs if run.run.policy == REFERENCE), None)
    return {run.run.policy: of_run(run, target) for run in runs}


def _simulated(cell: Cell) -> dict[str, Any]:
    from paceline_host.simulation.fleet import Fleet
    from paceline_host.simulation.run import run_policy

    fleet = Fleet(cell.scenario(), None)
    return {
        name: of_outcome(run_policy(fleet, name, None, lambda: False, lambda number: None)) for name in cell.policies
    }


def of_run(run: RunFigures, target: float | None = None) -> Record:
    """Return what a table needs of a run; `target`: a loss. Joules that are not known of all boards are unknown."""
    joules, ranks = run.joules, run.ranks
    known = joules.complete and joules.parts_j is not None
    waiting_j = joules.parts_j["wait"] if known and joules.parts_j is not None else None
    within = TARGET_SLACK * target if target is not None else -math.inf
    there = next((one for one in run.rounds if one.loss is not None and one.loss <= within), None)
    forward_cv, slowest = (ranks.forward_step_cv, ranks.slowest) if ranks is not None else (None, None)
    return {
        "makespan": run.makespan_s, "predicted": run.predicted_s, "later": run.makespan_median_s,
        "joules": joules.total_j if known else None, "waiting": waiting_j,
        "compute_cv": _times(run.compute_cv, 100.0), "forward_cv": _times(forward_cv, 100.0),
        "slowest": slowest, "target_s": there.end_s if there is not None else None,
        "target_j": there.joules if there is not None and known else None,
        "accuracy": _times(run.accuracy, 100.0), "loss": run.loss,
        "controller": _times(run.controller_fraction, 100.0), "samples": run.samples,
        "late": 100.0 * max(run.late.values(), default=0.0), "complete": run.complete and not run.resumed,
        "joules_are": joules.label, "loss_is": run.metric, "data": run.run.data_label,
    }  # fmt: skip


def of_outcome(one: Outcome) -> Record:
    """Return what a table needs of a simulated run."""
    parts = one.parts_j if not one.unknown else None
    return {
        "makespan": one.makespan_s, "predicted": None, "later": one.later_s,
        "joules": one.joules if not one.unknown else None,
        "waiting": parts["wait"] if parts is not None else None, "compute_cv": _times(one.later_cv, 100.0),
        "forward_cv": None, "slowest": None, "target_s": None, "target_j": None, "accuracy": None, "loss": None,
        "controller": None, "samples": one.samples, "late": 0.0, "complete": one.state == "finished",
        "joules_are": "modelled", "loss_is": "", "data": "none: simulated",
    }  # fmt: skip


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
