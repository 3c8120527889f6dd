# SPDX-License-Identifier: Apache-2.0
"""Experiment files: all faults at once, each with its place; the effective settings are an experiment file again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import toml
from paceline.errors import SettingsError
from paceline.tasks import TASKS
from paceline.tasks.options import OPTIONS
from paceline_host.comparison import Comparison, Watcher
from paceline_host.experiment import effective, load_experiment, load_with_sheet

ROOT = Path(__file__).resolve().parents[2]
SOUND = '[run]\nrounds = 1\nbudget = 100\n[task]\nname = "linear"\n'


def faults(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    path = tmp_path / "x.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_experiment(path, overrides)
    return caught.value.errors


def test_schema_policies_task_options_profile_and_overrides_are_judged_in_one_go(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        '[run]\nrounds = 0\nbudget = 100\npolicies = ["eqal", 3, "time", "time"]\n[task]\nname = "linear"\n'
        'learning_rat = 0.1\nbatch = 0\n[fleet]\nprofile = "eleven-bords"\n',
        "run.seed=-1", "run.x", "energy.requird=true",
    )  # fmt: skip
    assert [fault.split(";")[0].partition(" expected")[0] for fault in found] == [
        "--set run.x:",
        "x.toml, line 2: run.rounds:",
        "x.toml, line 4: run.policies #1: unknown policy 'eqal'",
        "x.toml, line 4: run.policies #2:",
        "--set run.seed=-1: run.seed:",
        "--set energy.requird=true: unknown key energy.requird",
        "x.toml, line 7: unknown key task.learning_rat",
        "x.toml, line 8: task.batch:",
        "x.toml, line 4: run.policies names a policy twice",
        "x.toml, line 10: fleet.profile: there is no profile 'eleven-bords'",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SOUND.replace("100", "100\npolicies = []"), "x.toml, line 4: run.policies: expected at least one policy"),
        (SOUND.replace('"linear"', "3"), "x.toml, line 5: task.name is missing: expected the name of a task"),
        (SOUND.replace("linear", "linar"), "x.toml, line 5: task.name: there is no task 'linar'; did you mean linear?"),
        (SOUND + '[fleet]\nkind = "boards"\n', "x.toml, line 7: fleet.keys is missing"),
        ("[run]\nrounds = 1\nbudget = 1\n", "x.toml: task is missing"),
        ("run = 3\n[task]\nname = 'linear'\n", "x.toml, line 1: run: expected a table, got 3"),
    ],
)
def test_what_no_single_key_shows_is_told_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    (found,) = faults(tmp_path, text)
    assert found.startswith(sentence)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.name)
def test_effective_settings_written_and_read_again_are_the_same(path: Path, tmp_path: Path) -> None:
    experiment, sheet = load_with_sheet(path, ["run.patience_s=7.5"])
    shown = effective(experiment)
    again = tmp_path / "again.toml"
    again.write_text(toml.write(shown, sheet.origin), encoding="utf-8")
    assert effective(load_experiment(again)) == shown
    assert shown["run"]["patience_s"] == 7.5


@pytest.mark.parametrize(
    ("regime", "policy", "fits"),
    [
        ("pma", "fedasync", True), ("async", "fedasync-poly", True), ("async", "time", False), ("async", "oort", False),
        ("ddp", "fedasync-hinge", False), ("psl", "fedasync", False),
    ],
)  # fmt: skip
def test_mixing_stands_beside_averaging_and_under_its_own_regime_alone(
    tmp_path: Path, regime: str, policy: str, fits: bool
) -> None:
    steps = "steps = 2\n" if regime == "ddp" else ""
    text = SOUND.replace("rounds = 1\n", f'rounds = 1\nregime = "{regime}"\npolicies = ["{policy}"]\n{steps}')
    path = tmp_path / "x.toml"
    path.write_text(text.replace("budget = 100\n", "") if regime == "psl" else text, encoding="utf-8")
    if fits:
        assert [one.name for one in load_experiment(path).policies()] == [policy]
    else:
        with pytest.raises(SettingsError, match=f"run.policies: '{policy}' is nothing for regime {regime}; known: "):
            load_experiment(path)


def test_each_task_has_options() -> None:
    assert OPTIONS.keys() == TASKS.keys()


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:99999", "tcp://:5", "127.0.0.1:5570", "tcp://a"])
def test_an_address_that_cannot_be_listened_on_is_refused(tmp_path: Path, listen: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f'[run]\nrounds = 1\nbudget = 9\n[task]\nname = "linear"\n[fleet]\nlisten = "{listen}"\n', "utf-8")
    with pytest.raises(SettingsError, match=r"e.toml, line 7: fleet.listen = .*expected tcp://ADDRESS:PORT"):
        load_experiment(path)


def test_a_fault_in_an_override_is_blamed_on_the_override(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('[run]\nrounds = 1\nbudget = 9\npolicies = ["time"]\n[task]\nname = "linear"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r'^--set run.policies=\["eqal"\]: '):
        load_experiment(path, ['run.policies=["eqal"]'])


def test_a_budget_of_more_epochs_than_an_assignment_can_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('[run]\nrounds = 1\nbudget = 3000\n[task]\nname = "linear"\nsamples = 10\n', encoding="utf-8")
    watcher = Watcher(lambda text: None, lambda policy, machine, now_s: None, lambda folder, outcome: None)
    with pytest.raises(SettingsError, match=r"run.budget = 3000 is more than 62 times the data set"):
        Comparison(load_experiment(path), watcher)
