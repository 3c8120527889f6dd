# SPDX-License-Identifier: Apache-2.0
"""What a run that is taken up must have as it was begun, and what may have changed; said before a board is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline import settings
from paceline.data.sources import FILES
from paceline.errors import SettingsError
from paceline_host.comparison import Comparison, Watcher, folder_name
from paceline_host.experiment import load_experiment
from paceline_host.journal import Journal
from paceline_host.psl.run import PARTITION
from paceline_host.records import Board

from ..system.conftest import write_pictures

SILENT = Watcher(lambda text: None, lambda name, machine, now_s: None, lambda folder, outcome: None)
PROFILE = """name = "pair"
[[boards]]
name = "a"
speed = 1.0
idle_w = 1.0
active_w = 2.0
[[boards]]
name = "b"
speed = 1.0
idle_w = 1.0
active_w = 2.0
"""
PSL = {
    "run": {"rounds": 2, "regime": "psl", "policies": ["gpsl"]},
    "task": {"name": "mnist", "model": "cnn", "cut": "conv1", "batch": 16},
    "split": {"clients": 6, "partition": "severe", "smashed": "bfloat16"},
}
DDP = {
    "run": {"rounds": 2, "regime": "ddp", "policies": ["equal"], "budget": 40, "steps": 4},
    "task": {"name": "mnist", "hidden": [8]},
}
BOARDS = {"a": "key of a", "b": "key of b"}
Tables = dict[str, dict[str, object]]


def comparison(folder: Path, tables: Tables) -> Comparison:
    """Return the comparison of an experiment over two emulated boards and the pictures in `folder`."""
    every: Tables = {
        **tables, "fleet": {"kind": "local", "profile": "pair.toml"}, "data": {"folder": "pictures"},
    }  # fmt: skip
    lines = [
        line
        for table, content in every.items()
        for line in (f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in content.items()))
    ]
    (folder / "exp.toml").write_text("\n".join(lines), encoding="utf-8")
    return Comparison(load_experiment(folder / "exp.toml"), SILENT)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with pictures and a profile."""
    (tmp_path / "pictures").mkdir()
    write_pictures(tmp_path / "pictures")
    (tmp_path / "pair.toml").write_text(PROFILE, encoding="utf-8")
    return tmp_path


def begin(place: Path, tables: Tables) -> Path:
    """Begin a comparison's first run, as `work` does before its first round; return its folder."""
    made, folder = comparison(place, tables), place / "exp-001"
    folder.mkdir()
    made.check(folder, BOARDS)
    (policy,) = made.experiment.policies()
    run = folder / folder_name(policy)
    boards = [Board(i, name, key) for i, (name, key) in enumerate(BOARDS.items())]
    Journal.create(run, made._row(policy, run, len(BOARDS)), boards).close()
    (run / "run.toml").write_text(settings.dump(made._only(policy)), encoding="utf-8")
    return folder


def changed(tables: Tables, table: str, key: str, value: object) -> Tables:
    return {**tables, table: {**tables[table], key: value}}


def faults(place: Path, folder: Path, tables: Tables) -> str:
    """Return what is said against going on."""
    with pytest.raises(SettingsError) as caught:
        comparison(place, tables).check(folder, BOARDS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("tables", "table", "key", "value", "said"),
    [
        (PSL, "split", "smashed", "float16", "split.smashed is now 'float16', the run was begun with 'bfloat16'"),
        (PSL, "split", "clients", 9, "split.clients is now 9, the run was begun with 6"),
        (PSL, "split", "partition", "mild", "split.partition is now 'mild', the run was begun with 'severe'"),
        (PSL, "split", "seed", 5, "split.seed is now 5, the run was begun with 1"),
        (PSL, "task", "batch", 20, "batch is now 20, the run was begun with 16"),
        (PSL, "run", "seed", 5, "seed is now 5, the run was begun with 1"),
        (DDP, "run", "steps", 5, "steps is now 5, the run was begun with 4"),
        (DDP, "run", "min_batch", 2, "min_batch is now 2, the run was begun with 1"),
        (DDP, "run", "budget", 44, "budget is now 44, the run was begun with 40"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_settings_that_deal_samples_or_make_steps_stay_as_they_were(
    place: Path, tables: Tables, table: str, key: str, value: object, said: str
) -> None:
    folder = begin(place, tables)
    comparison(place, tables).check(folder, BOARDS)
    (folder / PARTITION).unlink(missing_ok=True)  # of which the tool itself says that one may put it aside
    text = faults(place, folder, changed(tables, table, key, value))
    assert f"{said}; restore it, or begin a new run" in text
    assert not (folder / PARTITION).exists(), "another one was written beside the runs"


@pytest.mark.parametrize(
    ("table", "key", "value"), [("run", "patience_s", 60.0), ("run", "chunk_bytes", 1 << 16), ("run", "fsync", False)]
)
def test_waits_and_sizes_of_messages_may_change(place: Path, table: str, key: str, value: object) -> None:
    folder = begin(place, PSL)
    comparison(place, changed(PSL, table, key, value)).check(folder, BOARDS)


@pytest.mark.parametrize("tables", [PSL, DDP], ids=["psl", "ddp"])
def test_the_hosts_data_stay_what_they_were(place: Path, tables: Tables) -> None:
    folder = begin(place, tables)
    images = place / "pictures" / FILES[0]
    whole = images.read_bytes()
    images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # a pixel; labels and numbers are what they were
    assert "the training data are other ones than those that the run was begun with" in faults(place, folder, tables)
    shutil.move(place / "pictures", place / "elsewhere")
    (place / "elsewhere" / FILES[0]).write_bytes(whole)
    shutil.move(place / "elsewhere", place / "pictures")
    comparison(place, tables).check(folder, BOARDS)
