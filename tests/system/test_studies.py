# SPDX-License-Identifier: Apache-2.0
"""`paceline experiments` for real: worker processes, torch, a small set of pictures; interrupted, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.data.idx import write_idx
from paceline.data.sources import FILES

STUDY = """
kind = "split"
title = "pictures of 8 x 8"
seeds = [1, 2]
epochs = {epochs}
[task]
name = "mnist"
model = "cnn"
cut = "conv1"
learning_rate = {rate}
momentum = 0.0
[[models]]
name = "bn"
task = {{ norm = "batch" }}
[[grids]]
methods = ["gpsl", "fls", "fls-cut", "fls-mixed", "fls-weighted", "central"]
partitions = ["severe"]
clients = [8]
batches = [16]
[[expect]]
what = "gpsl is exact"
method = "gpsl"
metric = "deviation"
low = 0.5
high = 1.5
[data]
folder = "pictures"
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Write a study and its pictures: ten shapes and noise; return the file."""
    folder, source = tmp_path / "pictures", np.random.default_rng(1)
    folder.mkdir()
    shapes = source.integers(0, 200, (10, 8, 8))
    for (images, labels), count in zip((FILES[:2], FILES[2:]), (100, 20), strict=True):
        classes = np.arange(count) % 10
        noisy = shapes[classes] + source.integers(0, 56, (count, 8, 8))
        write_idx(folder / images, (count, 8, 8), noisy.astype(np.uint8).tobytes())
        write_idx(folder / labels, (count,), classes.astype(np.uint8).tobytes())
    path = tmp_path / "small.toml"
    path.write_text(STUDY.format(epochs=2, rate=0.1), encoding="utf-8")
    return path


def paceline(study: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline_host", "experiments", *arguments],
        cwd=study.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip


def kept(study: Path) -> dict[str, int]:
    """Return the finished cells, and when each was written."""
    return {path.name: path.stat().st_mtime_ns for path in (study.parent / "runs/studies/small").glob("*.json")}


@pytest.mark.timeout(300)
def test_a_study_trains_its_cells_and_writes_what_came_of_them(study: Path) -> None:
    done = paceline(study, "run", str(study), "--jobs", "2", "--json", "--out", "results")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["finished"], told["planned"]) == (12, 12)
    rows = {row["setting"]["method"]: row for row in told["rows"]}
    assert rows.keys() == {"gpsl", "fls", "fls-cut", "fls-mixed", "fls-weighted", "central"}
    assert rows["gpsl"]["steps"]["mean"] == rows["central"]["steps"]["mean"] == 7
    assert rows["fls-mixed"]["steps"] == rows["fls"]["steps"] == rows["fls-weighted"]["steps"]
    assert rows["fls-cut"]["steps"]["mean"] < rows["fls"]["steps"]["mean"]
    for row in rows.values():
        assert 0 <= row["accuracy"]["mean"] <= 100
        assert row["recalibrated"]["count"] == 2
    page = (study.parent / "results/small.md").read_text(encoding="utf-8")
    assert "12 of 12 trainings are finished" in page
    assert "| gpsl is exact | " in page
    assert (study.parent / "results/small.png").read_bytes().startswith(b"\x89PNG")
    assert len((study.parent / "results/small.csv").read_text(encoding="utf-8").splitlines()) == 13
    before = kept(study)
    again = paceline(study, "run", str(study), "--json")
    assert json.loads(again.stdout) == told
    assert "12 of 12 cells are finished already" in again.stderr
    assert kept(study) == before
    assert json.loads(paceline(study, "show", str(study), "--json").stdout) == told
    listed = json.loads(paceline(study, "list", ".", "--json").stdout)["studies"]
    assert [(one["finished"], one["cells"]) for one in listed] == [(12, 12)]


@pytest.mark.timeout(300)
def test_ctrl_c_keeps_what_is_finished_and_a_second_run_goes_on(study: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline_host", "experiments", "run", str(study), "--jobs", "1"],
        cwd=study.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while len(kept(study)) < 2:
        assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    before = kept(study)
    assert process.returncode == 130, said
    assert 2 <= len(before) < 12
    assert f"{len(before)} of 12 cells are kept" in said
    assert _group(process.pid) == []
    assert paceline(study, "run", str(study)).returncode == 0
    after = kept(study)
    assert len(after) == 12
    assert {name: after[name] for name in before} == before


def _group(leader: int) -> list[str]:
    """Return the processes of a process group that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == leader and state != "Z":
                found.append(entry.name)
    return found


@pytest.mark.timeout(300)
def test_a_training_that_diverges_is_a_result_and_ends_nothing(study: Path) -> None:
    study.write_text(STUDY.format(epochs=2, rate=100.0), encoding="utf-8")
    done = paceline(study, "run", str(study), "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    assert sum(row["seeds"] for row in rows) == 12
    assert any(row["failed"] for row in rows)


@pytest.mark.parametrize(
    ("change", "arguments", "status", "told"),
    [
        (("pictures", "nowhere"), (), 3, "nowhere"),
        (("clients = [8]", "clients = [400]"), (), 3, "100 samples are too few for 400 clients"),
        (("epochs = 2", "epochs = 0"), (), 3, "epochs: expected a whole number"),
        (("", ""), ("--jobs", "-1"), 3, "--jobs -1: expected a whole number from 1"),
        (("", ""), ("--device", "warp"), 3, "warp"),
    ],
)
@pytest.mark.timeout(300)
def test_what_cannot_be_trained_is_one_sentence(
    study: Path, change: tuple[str, str], arguments: tuple[str, ...], status: int, told: str
) -> None:
    study.write_text(study.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    done = paceline(study, "run", str(study), *arguments)
    assert done.returncode == status, done.stderr
    (line,) = done.stderr.splitlines()
    assert told in line
    assert "Traceback" not in done.stderr
