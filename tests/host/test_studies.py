# SPDX-License-Identifier: Apache-2.0
"""Studies without training: what a file declares, what is wrong with one, variations, intervals, verdicts, pages."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from paceline.batches import schedule
from paceline.errors import DamagedError, SettingsError
from paceline_host.commands import program
from paceline_host.studies.design import Cell, Setting, Study, cells, load_study
from paceline_host.studies.figures import Spread, figures, spread, t_quantile, verdict
from paceline_host.studies.page import as_csv, as_json, markdown
from paceline_host.studies.pool import read_cells, write_cell
from paceline_host.studies.progress import Progress, clock
from paceline_host.studies.variations import Mixed, first_depletion, plan

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "experiments" / "studies").glob("*.toml"))
PLAIN = """
kind = "split"
title = "a study"
seeds = [1, 2, 3]
epochs = 2
[task]
name = "mnist"
model = "cnn"
cut = "conv1"
momentum = 0.0
[[models]]
name = "digits"
task = { norm = "batch" }
[[grids]]
methods = ["gpsl", "fls", "central"]
partitions = ["severe", "iid"]
clients = [4, 8]
batches = [16]
[[expect]]
what = "as central"
method = "gpsl"
against = "central"
low = -2.0
high = 2.0
"""


def study_of(folder: Path, text: str = PLAIN) -> Study:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return load_study(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_study_declares_five_seeds_an_interval_and_what_it_expects(path: Path) -> None:
    study = load_study(path)
    assert len(study.seeds) >= 5
    assert study.confidence == 0.95
    assert study.expect
    assert len({cell.key() for cell in cells(study)}) == len(cells(study))
    matched = figures(study, {}).expectations
    assert all(each.findings for each in matched), "an expectation that no setting matches says nothing"


def test_the_studies_at_full_size_are_the_papers() -> None:
    clients, batches = (
        load_study(ROOT / f"experiments/studies/gpsl_full_{what}.toml") for what in ("clients", "batches")
    )
    for study in (clients, batches):
        assert (study.epochs, study.seeds) == (100, (1, 2, 3, 4, 5))
        assert study.task == {
            "name": "cifar10", "model": "resnet18", "cut": "layer1", "norm": "batch", "optimizer": "sgd",
            "learning_rate": 0.01, "momentum": 0.0, "augment": True,
        }  # fmt: skip
    settings = {cell.setting for cell in cells(clients)}
    assert {s.clients for s in settings} == {0, 16, 32, 64, 128}
    assert {s.batch for s in settings} == {128}
    assert {s.partition for s in settings} == {"", "iid", "mild", "severe"}
    assert {(s.clients, s.batch, s.partition) for s in (cell.setting for cell in cells(batches)) if s.clients} == {
        (128, 64, "severe"), (128, 128, "severe"), (128, 256, "severe"),
    }  # fmt: skip


def test_central_is_trained_once_a_batch_and_seeds_come_one_after_the_other(tmp_path: Path) -> None:
    every = cells(study_of(tmp_path))
    assert [cell.seed for cell in every] == [1] * 9 + [2] * 9 + [3] * 9
    assert sum(cell.setting.method == "central" for cell in every) == 3
    assert {cell.task["norm"] for cell in every} == {"batch"}


def test_a_changed_setting_is_another_cell(tmp_path: Path) -> None:
    one = cells(study_of(tmp_path))
    other = cells(study_of(tmp_path, PLAIN.replace("epochs = 2", "epochs = 3")))
    assert not {cell.key() for cell in one} & {cell.key() for cell in other}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"fls"', '"flss"', "there is no method 'flss'; did you mean fls?"),
        ('name = "mnist"', 'name = "mnst"', "there is no task 'mnst'; did you mean mnist?"),
        ('cut = "conv1"', "", "task.cut is missing"),
        ("[1, 2, 3]", "[1, 1]", "each once"),
        ('"severe", "iid"', '"severest"', 'grids #1.partitions #1: expected one of "iid"'),
        ("low = -2.0\nhigh = 2.0", "", "nothing could speak against it"),
        ("low = -2.0", "low = 3.0", "low 3 is above high 2"),
        ('against = "central"', 'against = "centre"', "there is no method 'centre'; did you mean central?"),
        ('kind = "split"', 'kind = "splitt"', 'kind: expected one of "split"'),
        ('momentum = 0.0', "momentun = 0.0", "did you mean momentum?"),
        ('"fls",', '"fls-weighted",', None),
        ('["gpsl", "fls", "central"]', '["fls-weighted"]\nmodels = ["letters"]', "there is no model 'letters'"),
        ("momentum = 0.0", "batch = 8", "the grids say the batches"),
        ("epochs = 2", "epochs = 0", "epochs: expected a whole number >= 1"),
    ],
)  # fmt: skip
def test_each_fault_of_a_file_is_one_sentence(tmp_path: Path, old: str, new: str, told: str | None) -> None:
    assert old in PLAIN
    text = PLAIN.replace(old, new)
    if told is None:
        study_of(tmp_path, text)
        return
    with pytest.raises(SettingsError) as refused:
        study_of(tmp_path, text)
    assert len(refused.value.errors) == 1, refused.value.errors
    assert told in refused.value.errors[0]
    assert "study.toml" in refused.value.errors[0]


def test_weighted_steps_need_a_plain_optimiser(tmp_path: Path) -> None:
    text = PLAIN.replace('"fls",', '"fls-weighted",').replace("momentum = 0.0", "momentum = 0.5")
    with pytest.raises(SettingsError, match="fls-weighted needs a plain step"):
        study_of(tmp_path, text)


SIZES = lists(integers(0, 40), min_size=1, max_size=12).filter(any)


@given(SIZES, integers(1, 64), integers(0, 9))
def test_mixed_has_the_batch_sizes_of_fls_and_uses_each_sample_once(sizes: list[int], batch: int, seed: int) -> None:
    mixed, fixed = plan("fls-mixed", sizes, batch, seed, 1), schedule("fls", sizes, batch, seed, 1)
    assert isinstance(mixed, Mixed)
    assert [sum(counts) for _, counts in mixed] == [sum(counts) for _, counts in fixed]
    used = [0] * len(sizes)
    for ids, counts in mixed:
        for k, count in zip(ids, counts, strict=True):
            used[k] += count
    assert used == sizes


@given(SIZES, integers(1, 64))
def test_cut_is_fls_until_the_first_client_has_run_out(sizes: list[int], batch: int) -> None:
    cut, fixed = list(plan("fls-cut", sizes, batch)), list(schedule("fls", sizes, batch))
    assert cut == fixed[: len(cut)]
    left = list(sizes)
    for step, (ids, counts) in enumerate(cut):
        assert step == 0 or all(rest or not size for size, rest in zip(sizes, left, strict=True))
        for k, count in zip(ids, counts, strict=True):
            left[k] -= count
    assert any(size and not rest for size, rest in zip(sizes, left, strict=True))
    assert len(cut) == first_depletion(schedule("fls", sizes, batch), sizes)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (200, 1.9719)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(t, abs=6e-5)


@pytest.mark.parametrize(
    ("mean", "half", "low", "high", "came"),
    [
        (0.5, 1.0, -2.0, 2.0, "seen"),
        (1.5, 1.0, -2.0, 2.0, "open"),
        (4.0, 1.0, -2.0, 2.0, "not seen"),
        (-30.0, 25.0, None, -10.0, "open"),
        (-40.0, 25.0, None, -10.0, "seen"),
        (0.9, 0.02, 0.95, None, "not seen"),
    ],
)
def test_an_interval_is_within_its_limits_outside_or_across(
    mean: float, half: float, low: float | None, high: float | None, came: str
) -> None:
    assert verdict(Spread(mean, 1.0, half, 5), low, high) == came


def record_of(cell: Cell, **values: Any) -> dict[str, Any]:
    base = {
        "cell": {"epochs": cell.epochs}, "data_label": "digits", "effective_batch": 16, "steps": 9, "epochs": 2,
        "tail_begins": 8, "clients_hold": [3, 40], "wall_s": 2.0,
    }  # fmt: skip
    return base | values


def whole(study: Study) -> dict[str, dict[str, Any]]:
    """Return records in which GPSL is a tenth of a point above central, whatever the seed does to both."""
    found = {}
    for cell in cells(study):
        accuracy = 0.9 - 0.1 * cell.seed + 0.001 * (cell.setting.method == "gpsl")
        values = {"accuracy": accuracy, "deviation": 1.0, "deviation_before_depletion": 1.0, "cpu_s": 1.5}
        found[cell.key()] = record_of(cell, **values, before_depletion=accuracy, recalibrated=None)
    return found


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    made = figures(study_of(tmp_path), whole(study_of(tmp_path)))
    (expected,) = made.expectations
    assert expected.count("seen") == 4
    assert all(one.value and one.value.mean == pytest.approx(0.1) for one in expected.findings)
    assert all(row.accuracy and row.accuracy.deviation == pytest.approx(10.0) for row in made.rows)


def test_a_diverged_training_is_told_and_has_no_accuracy(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    found = whole(study)
    lost = next(cell for cell in cells(study) if cell.setting.method == "gpsl")
    found[lost.key()] = record_of(lost, failed="the loss is nan: the training has diverged")
    made = figures(study, found)
    row = next(row for row in made.rows if row.setting == lost.setting)
    assert (row.seeds, row.failed, row.accuracy and row.accuracy.count) == (3, 1, 2)
    assert "gpsl (1 of 3 diverged)" in markdown(made, "study")
    assert "has diverged" in as_csv(made)


def test_an_unfinished_study_says_so_and_decides_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    made = figures(study, dict(list(whole(study).items())[:9]))
    assert "9 of 27 trainings are finished" in markdown(made, "study")
    assert made.expectations[0].count("open") == 4
    assert as_json(made, "study")["finished"] == 9


def test_the_csv_has_a_line_a_cell(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    rows = list(csv.DictReader(io.StringIO(as_csv(figures(study, whole(study))))))
    assert len(rows) == 27
    assert {row["seed"] for row in rows} == {"1", "2", "3"}
    assert {row["clients"] for row in rows if row["method"] == "central"} == {""}


def test_a_record_comes_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    every = cells(study_of(tmp_path))
    write_cell(tmp_path / "kept", every[0], record_of(every[0], accuracy=0.5))
    assert read_cells(tmp_path / "kept", every) == {every[0].key(): record_of(every[0], accuracy=0.5)}
    (tmp_path / "kept" / f"{every[1].key()}.json").write_text("{", encoding="utf-8")
    with pytest.raises(DamagedError, match="remove it, and it is trained anew"):
        read_cells(tmp_path / "kept", every)


def test_time_to_go_counts_what_is_left_by_its_model(tmp_path: Path) -> None:
    said: list[str] = []
    every = cells(study_of(tmp_path))
    slow = replace(every[0], setting=replace(every[0].setting, model="slow"), seed=7)
    progress = Progress([*every, slow], {}, 2, said.append)
    progress.over(every[0], {"wall_s": 10.0, "accuracy": 0.5})
    assert progress.to_go_s([]) == pytest.approx((26 * 10 + 10) / 2)  # of the slow one nothing is known yet
    progress.over(slow, {"wall_s": 100.0})
    assert progress.to_go_s([(every[1], 4.0)]) == pytest.approx((26 * 10 - 4) / 2)
    assert [clock(s) for s in (9.0, 75.0, 3700.0)] == ["9 s", "1 min 15 s", "1 h 01 min"]


def test_one_value_has_no_interval() -> None:
    assert spread([3.0], 0.95) == Spread(3.0, 0.0, None, 1)
    assert spread([1.0, 2.0, 3.0], 0.95).half_width == pytest.approx(4.3027 / 3**0.5, abs=1e-3)


def test_a_setting_reads_as_a_few_words() -> None:
    assert Setting("digits", "iid", 4, 16, "fls").text() == "digits, iid, K 4, B 16, fls"
    assert Setting("digits", "", 0, 16, "central").text() == "digits, B 16, central"


def test_a_file_that_is_no_study_is_named_and_does_not_keep_the_others_from_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_of(tmp_path)
    (tmp_path / "another.toml").write_text("[run]\nrounds = 3\n", encoding="utf-8")
    assert program().run(["experiments", "list", str(tmp_path), "--work-dir", str(tmp_path / "work")]) == 0
    told = capsys.readouterr()
    assert [line.split("  ")[-1] for line in told.out.splitlines()] == ["a study"]
    assert f"{tmp_path / 'another.toml'} is left out, it is no study and no table: " in told.err


def test_a_study_that_is_not_there_is_named_as_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert program().run(["experiments", "run", "/nowhere/study.toml"]) == 3
    assert "/nowhere/study.toml: cannot read it: No such file" in capsys.readouterr().err


def test_a_list_of_no_files_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program().run(["experiments", "list"]) == 0
    assert "no file *.toml in experiments/studies nor in experiments/tables: name the" in capsys.readouterr().err
