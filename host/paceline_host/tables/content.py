# SPDX-License-Identifier: Apache-2.0
"""What stands in the files that a cell names: a digest, which changes where a figure could. Empty: it names none.

A shipped profile is part of paceline, as the code is, so neither is in any digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from paceline.errors import SettingsError
from paceline_host.experiment import Experiment
from paceline_host.profile import is_path, load_profile
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.traces import Trace


def digest_of_scenario(scenario: Scenario) -> str:
    """Return that of its profile and its traces. Raises SettingsError for one that cannot be read."""
    traces = [path for one in scenario.trace for path in (one.active, one.idle) if path]
    return _digest([*_boards(scenario.profile), *(json.dumps(Trace(Path(path)).knots) for path in traces)])


def digest_of_experiment(experiment: Experiment) -> str:
    """Return that of its profile and its own data. Raises SettingsError likewise."""
    boards = _boards(experiment.fleet.profile) if experiment.fleet.kind == "local" else []
    return _digest([*boards, *(_files(Path(experiment.data.folder)) if experiment.data.folder else ())])


def _boards(profile: str) -> list[str]:
    return [json.dumps(asdict(load_profile(profile)))] if is_path(profile) else []


def _files(folder: Path) -> Iterable[str]:
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file():  # a pipe would be waited for
                with path.open("rb") as file:
                    yield f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise SettingsError([f"data.folder {folder}: {error.filename}: {error.strerror}"]) from None


def _digest(parts: Iterable[str]) -> str:
    text = "\n".join(parts)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
