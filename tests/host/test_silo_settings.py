# SPDX-License-Identifier: Apache-2.0
"""Silos in an experiment file: what is refused, in which words, and what the boards of a sound one are told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from paceline.errors import SettingsError
from paceline.tasks import Task
from paceline_host.experiment import load_experiment
from paceline_host.hfl.run import check
from paceline_host.hfl.silos import Silo, as_rows, of_rows

NAMES = ["fast", "lone", "slow"]
TASK = cast(Task, SimpleNamespace(samples=90, labels=lambda: [i % 10 for i in range(90)]))

Row = tuple[str, list[str], int, str]
PAIR: Row = ("pair", ["fast", "slow"], 40, "")
SINGLE: Row = ("single", ["lone"], 15, "")
REFUSED: list[tuple[list[Row], str]] = [
    ([PAIR, ("single", ["lone", "lome"], 15, "")], "there is no board 'lome' in the fleet; did you mean lone?"),
    ([PAIR, ("single", ["lone", "fast"], 15, "")], "board 'fast' is in silo 'pair' already; a board is in one silo"),
    ([PAIR], "silos: lone of the fleet: in no silo; expected each board in one"),
    ([PAIR, SINGLE, ("none", [], 15, "")], "silo 'none': boards is empty; expected at least one board"),
    ([PAIR, ("pair", ["lone"], 15, "")], "silo 'pair': another one has this name; expected a name of its own"),
    ([("pair", ["fast", "slow"], 9, ""), SINGLE], "does not give 2 boards 1 in each step; expected at most 4 steps"),
    ([PAIR, ("single", ["lone"], 4, "")], "does not give 1 board 1 in each step; expected at most 4 steps"),
    ([PAIR, ("single", ["lome"], 15, "")], "there is no board 'lome' in the fleet; did you mean lone?"),
    (
        [("pair", ["fast", "slow"], 40, "samples = [0, 50]"), ("single", ["lone"], 15, "samples = [60, 60]")],
        "samples = [60, 60]: expected 0 <= begin < end",
    ),
    ([PAIR, ("single", ["lone"], 15, "samples = [0, 50]")], "expected one way for all silos"),
    (
        [("pair", ["fast", "slow"], 40, "samples = [0, 50]"), ("single", ["lone"], 15, "samples = [49, 90]")],
        "silo 'single': its samples begin at 49, those of silo 'pair' end at 50; none is in two",
    ),
    (
        [("pair", ["fast", "slow"], 40, "samples = [0, 50]"), ("single", ["lone"], 15, "samples = [50, 91]")],
        "samples = [50, 91]: expected 0 <= begin < end <= 90",
    ),
]


FLEET = "".join(f'[[boards]]\nname = "{name}"\nspeed = 1.0\nidle_w = 1.0\nactive_w = 2.0\n' for name in NAMES)
LOCAL = '[fleet]\nprofile = "./fleet"\n'
REAL = '[fleet]\nkind = "boards"\nkeys = "keys"\n'  # whose boards the file does not tell


def file_of(
    folder: Path, silos: list[Row], run: str = "steps = 5", more: str = "", fleet: str = LOCAL
) -> Path:  # fmt: skip
    """Write an experiment of silos, and the fleet's profile beside it."""
    (folder / "fleet").write_text(f'name = "three"\n{FLEET}', "utf-8")
    tables = "\n".join(
        f'[[silo]]\nname = "{name}"\nboards = {json.dumps(boards)}\nbudget = {budget}\n{rest}'
        for name, boards, budget, rest in silos
    )
    path = folder / "silos.toml"
    path.write_text(
        f'[run]\nregime = "hfl"\nrounds = 3\n{run}\n[task]\nname = "mnist"\n{fleet}{more}\n{tables}\n', "utf-8"
    )
    return path


@pytest.mark.parametrize("fleet", [REAL, LOCAL], ids=["real", "local"])
@pytest.mark.parametrize(("silos", "said"), REFUSED)
def test_silos_that_cannot_be_are_refused_in_one_sentence_each(
    tmp_path: Path, silos: list[Row], said: str, fleet: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        check(load_experiment(file_of(tmp_path, silos, fleet=fleet)), TASK, NAMES)
    assert len(caught.value.errors) == 1
    assert said in caught.value.errors[0]


def test_all_that_is_wrong_in_a_file_is_told_at_once_with_its_lines(tmp_path: Path) -> None:
    silos: list[Row] = [
        ("pair", ["fast", "slow", "none"], 2, ""), ("pair", ["fast"], 15, "samples = [9, 9]"),
        ("lost", ["lone"], 15, "colour = 1"),
    ]  # fmt: skip
    path = file_of(tmp_path, silos, run="steps = 5\nseed = -1")
    lines = path.read_text("utf-8").split("\n")
    with pytest.raises(SettingsError) as caught:
        load_experiment(path)
    told = [lines[int(error.partition("line ")[2].partition(":")[0]) - 1] for error in caught.value.errors]
    assert sorted(told) == sorted(
        ["seed = -1", "colour = 1", 'name = "pair"', 'boards = ["fast", "slow", "none"]', 'boards = ["fast"]',
         "samples = [9, 9]", "[[silo]]"]
    )  # fmt: skip


def test_a_budget_too_small_for_the_ranks_is_told_with_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, [], run="steps = 5\nbudget = 12")
    path.write_text(path.read_text("utf-8").replace('"hfl"', '"ddp"'), "utf-8")
    with pytest.raises(SettingsError) as caught:
        load_experiment(path)
    assert caught.value.errors == [
        "silos.toml, line 5: run.steps = 5: a budget of 12 samples does not give 3 boards 1 in each step; expected at "
        "most 4 steps"
    ]


@pytest.mark.parametrize(
    ("silos", "run", "said"),
    [
        ([], "steps = 5", "there is no [[silo]]: regime hfl needs one for each silo"),
        ([PAIR, SINGLE], "", "run.steps is missing"),
        ([PAIR, SINGLE], "steps = 5\nbudget = 55", "run.budget: each silo has a budget of its own; leave it out"),
    ],
)
def test_a_file_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, silos: list[Row], run: str, said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_experiment(file_of(tmp_path, silos, run))
    assert said in str(caught.value)


def test_silos_of_another_regime_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, [PAIR], "budget = 60")
    path.write_text(path.read_text("utf-8").replace('"hfl"', '"pma"'), "utf-8")
    with pytest.raises(SettingsError, match="only regime hfl has silos"):
        load_experiment(path)


def test_a_sound_file_becomes_silos_and_a_rule_for_each(tmp_path: Path) -> None:
    silos, rules = check(load_experiment(file_of(tmp_path, [PAIR, SINGLE])), TASK, NAMES)
    assert silos == [Silo(0, "pair", (0, 2), 40, 45), Silo(1, "single", (1,), 15, 45)]
    assert [(rule["kind"], rule["silo"], rule["silos"]) for rule in rules] == [("dealt", 0, 2), ("dealt", 1, 2)]
    assert of_rows(json.loads(json.dumps(as_rows(silos, rules)))) == silos
    own: list[Row] = [("pair", ["fast", "slow"], 40, "samples = 70"), ("single", ["lone"], 15, "samples = 12")]
    silos, rules = check(load_experiment(file_of(tmp_path, own)), TASK, NAMES)
    assert [silo.samples for silo in silos] == [70, 12]
    assert [rule["kind"] for rule in rules] == ["own", "own"]


def test_a_board_that_is_known_and_in_no_silo_matters_once_it_is_the_runs(tmp_path: Path) -> None:
    experiment = load_experiment(file_of(tmp_path, [PAIR], fleet=REAL))
    silos, _ = check(experiment, TASK, NAMES, final=False)
    assert silos == [Silo(0, "pair", (0, 2), 40, 90)]
    assert check(experiment, TASK, ["slow", "fast"])[0] == [Silo(0, "pair", (0, 1), 40, 90)]


def test_more_silos_than_samples_say_so(tmp_path: Path) -> None:
    few = cast(Task, SimpleNamespace(samples=1, labels=lambda: [0]))
    with pytest.raises(SettingsError, match="silos: 1 samples are too few for 2"):
        check(load_experiment(file_of(tmp_path, [PAIR, SINGLE])), few, NAMES)


def test_a_deal_that_cannot_be_names_the_keys_of_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, [PAIR, SINGLE], more='[silos]\npartition = "severe"')
    with pytest.raises(SettingsError) as caught:
        check(load_experiment(path), TASK, NAMES)
    assert "2 clients x 2 cannot hold all 10 classes" in str(caught.value)
    assert 'the silos here: silos.partition = "severe", silos.classes_per_silo = 2' in str(caught.value)


@pytest.mark.parametrize("name", [r"\u001b[31mx", r"x\n"])
def test_a_name_that_would_colour_or_break_a_line_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"name: expected characters that can be shown, in one line"):
        load_experiment(file_of(tmp_path, [PAIR, (name, ["lone"], 15, "")]))
