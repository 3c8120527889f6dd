# SPDX-License-Identifier: Apache-2.0
"""Tables of runs without boards: what a file declares and what is wrong with it, medians, verdicts, pages, command."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import DamagedError, SettingsError
from paceline_host.commands import program
from paceline_host.figures import figures as figures_of
from paceline_host.plot_table import draw_table
from paceline_host.studies.figures import NOT_SEEN, OPEN, SEEN
from paceline_host.tables.design import METRICS, Table, cells, load_table_file
from paceline_host.tables.figures import Figures, Spread, change, figures, verdict
from paceline_host.tables.page import as_csv, as_json, markdown
from paceline_host.tables.run import of_run, read_records, run_cell

from .run_folder import Story

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "experiments" / "tables").glob("*.toml"))
EXPERIMENT = """
[run]
rounds = 2
budget = 60
policies = ["equal", "time"]
[task]
name = "linear"
[fleet]
profile = "ten-unpaced"
[energy]
required = false
"""
PLAIN = """
kind = "runs"
title = "a table"
seeds = [1, 2, 3]
[[rows]]
name = "real"
experiment = "own.toml"
[[rows]]
name = "simulated"
simulate = { rounds = 3, policies = ["equal", "time", "frontier:energy"] }
[[expect]]
what = "shorter"
metric = "makespan"
policy = "time"
against = "equal"
high = -30.0
"""


def table_of(folder: Path, text: str = PLAIN) -> tuple[Table, Path]:
    (folder / "own.toml").write_text(EXPERIMENT, encoding="utf-8")
    path = folder / "table.toml"
    path.write_text(text, encoding="utf-8")
    return load_table_file(path), path


def test_cells_are_every_row_with_every_seed_seed_by_seed(tmp_path: Path) -> None:
    table, path = table_of(tmp_path)
    every = cells(table, path)
    assert [(cell.row, cell.seed) for cell in every] == [
        (row, seed) for seed in (1, 2, 3) for row in ("real", "simulated")
    ]
    assert every[0].policies == ("equal", "time")
    assert every[1].scenario().seed == 1
    assert len({cell.key() for cell in every}) == 6


def test_a_changed_experiment_is_another_cell_and_no_other_changes(tmp_path: Path) -> None:
    table, path = table_of(tmp_path)
    before = [cell.key() for cell in cells(table, path)]
    (tmp_path / "own.toml").write_text(EXPERIMENT.replace("budget = 60", "budget = 61"))
    after = [cell.key() for cell in cells(table, path)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True] * 3


PROFILE = """
name = "own"
[[boards]]
name = "a"
speed = 1.0
idle_w = 1.0
active_w = 2.0
"""
TRACE = '{"schema": "paceline-trace-1", "period_us": 1000}\n{"t0": 0, "t1": 1000, "uw": 5000000}\n'
OWN_FILES = {  # of the files that a cell names: what it holds, and what has changed in it
    "profile.toml": (PROFILE, PROFILE.replace("speed = 1.0", "speed = 0.1")),
    "load.trace": (TRACE, TRACE.replace("5000000", "500000000")),
    "data/reviews.txt": ("good", "bad"),
}
NAMING = """
kind = "runs"
title = "a table of own files"
seeds = [1]
[[rows]]
name = "profile.toml"
simulate = { profile = "./profile.toml", rounds = 2, policies = ["equal"] }
[[rows]]
name = "load.trace"
simulate = { rounds = 2, policies = ["equal"], trace = [{ board = 0, active = "load.trace" }] }
[[rows]]
name = "experiment"
experiment = "own.toml"
"""


def test_a_cell_is_another_one_where_a_file_that_it_names_has_changed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, (before, _) in OWN_FILES.items():
        (tmp_path / name).write_text(before)
    table, path = table_of(tmp_path, NAMING)
    experiment = EXPERIMENT.replace('"ten-unpaced"', '"./profile.toml"') + '[data]\nfolder = "data"\n'
    (tmp_path / "own.toml").write_text(experiment, encoding="utf-8")
    for name, (before, after) in OWN_FILES.items():
        keys = {cell.row: cell.key() for cell in cells(table, path)}
        (tmp_path / name).write_text(after)
        changed = {cell.row for cell in cells(table, path) if cell.key() != keys[cell.row]}
        assert changed == {"load.trace": {name}, "profile.toml": {name, "experiment"}}.get(name, {"experiment"})
        (tmp_path / name).write_text(before)
        assert {cell.row: cell.key() for cell in cells(table, path)} == keys


def test_paths_of_a_simulated_row_start_at_the_tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "elsewhere").mkdir(parents=True)
    (tmp_path / "deep" / "data").mkdir()
    for name, (before, _) in OWN_FILES.items():
        (tmp_path / "deep" / name).write_text(before)
    table, path = table_of(tmp_path / "deep", NAMING)
    keys = []
    for place in (tmp_path, tmp_path / "deep" / "elsewhere"):
        monkeypatch.chdir(place)
        keys.append([cell.key() for cell in cells(table, Path(os.path.relpath(path)))])
    assert keys[0] == keys[1]


FAULTS = {
    "both kinds": (('experiment = "own.toml"', 'experiment = "own.toml"\nsimulate = { rounds = 3 }'), "and not both"),
    "neither kind": (('experiment = "own.toml"', ""), "row 'real': expected `experiment` or"),
    "one name twice": (('name = "simulated"', 'name = "real"'), "no two of one name"),
    "no limit": (("high = -30.0", ""), "nothing could speak against it"),
    "low above high": (("high = -30.0", "low = 5.0\nhigh = 1.0"), "expect 'shorter': low 5 is above high 1"),
    "no such policy": (('policy = "time"', 'policy = "tyme"'), "unknown policy 'tyme'; did you mean time?"),
    "no such row": (("high = -30.0", 'high = 1.0\nrows = ["fake"]'), "no row's name begins with 'fake'"),
    "no such metric": (('metric = "makespan"', 'metric = "speed"'), "expect"),
    "a name with a line's end": (('name = "real"', r'name = "re\nal"'), "name: expected characters that can be shown"),
    "against a policy that is none": (('against = "equal"', 'against = "eqaul"'), "did you mean equal?"),
    "against itself": (('against = "equal"', 'against = "time"'), "line 11: expect 'shorter': policy and against are"),
    "an unknown key of the simulator": (
        ("rounds = 3", "bogus = 3"),
        "table.toml, line 10: unknown key rows #2.simulate",
    ),
    "no policy of the simulator": (
        ('"equal", "time", "frontier:energy"]', '"eqal"]'),
        "table.toml, line 10: rows #2.simulate.policies #1: unknown",
    ),
    "a seed twice": (("[1, 2, 3]", "[1, 1]"), "each once"),
}


@pytest.mark.parametrize(("swap", "sentence"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_file_says_what_is_wrong(tmp_path: Path, swap: tuple[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        table_of(tmp_path, PLAIN.replace(*swap))
    assert sentence in str(caught.value)


UNHEARD = {
    "policy": (('policy = "time"', 'policy = "oort"'), "line 14: expect 'shorter': policy 'oort' is in no row"),
    "policy of other rows": (
        ('policy = "time"\nagainst = "equal"', 'policy = "frontier:energy"\nrows = ["real"]'),
        "line 14: expect 'shorter': policy 'frontier:energy' is in no row that it is of; known: equal, time",
    ),
    "against": (('against = "equal"', 'against = "static"'), "line 15: expect 'shorter': against 'static' is in no"),
    "never both": (
        (
            '["equal", "time", "frontier:energy"]',
            '["frontier:energy"]',
            'policy = "time"',
            'policy = "frontier:energy"',
        ),
        "no row has both 'frontier:energy' and 'equal'",
    ),
}


@pytest.mark.parametrize(("swap", "sentence"), UNHEARD.values(), ids=UNHEARD)
def test_an_expectation_that_no_row_can_answer_is_a_fault(tmp_path: Path, swap: tuple[str, ...], sentence: str) -> None:
    text = PLAIN
    for old, new in zip(swap[::2], swap[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    table, path = table_of(tmp_path, text)
    with pytest.raises(SettingsError, match=re.escape(sentence)):
        cells(table, path)


def test_an_expectation_of_rows_that_are_not_finished_is_open(tmp_path: Path) -> None:
    table, path = table_of(tmp_path)
    page = markdown(figures(table, cells(table, path), {}), "table")
    assert "| shorter | at most -30 % | none is finished | not stated | open |" in page
    assert "0 seen, 0 not seen, 1 open." in page


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_tables_and_their_experiments_can_be_read(path: Path) -> None:
    table = load_table_file(path)
    assert len(table.seeds) >= 3
    for cell in cells(table, path):
        assert cell.experiment is None or "Expected, before it was ever run" in cell.experiment.read_text()
    named = {one.policy for one in table.expect} | {one.against for one in table.expect if one.against}
    assert named <= {name for cell in cells(table, path) for name in cell.policies}


# Figures ------------------------------------------------------------------------------------------------------------


def run_of(makespan: float, **other: Any) -> dict[str, Any]:
    plain = dict.fromkeys(METRICS) | {"samples": 60, "late": 0.0, "complete": True, "joules_are": "modelled"}
    return plain | {"loss_is": "mse", "data": "made up", "makespan": makespan} | other


def made_of(tmp_path: Path, times: list[dict[str, Any]]) -> Figures:
    """Return figures of the row "real": equal takes 10 s, `times` are the runs of policy time, one a seed."""
    table, path = table_of(tmp_path)
    every = cells(table, path)
    own = [cell for cell in every if cell.row == "real"]
    records = {
        cell.key(): {"policies": {"equal": run_of(10.0), "time": run}, "load": [1.0, 2.0]}
        for cell, run in zip(own, times, strict=False)
    }
    return figures(table, every, records)


def test_a_figure_is_the_median_and_a_change_is_of_the_same_seed(tmp_path: Path) -> None:
    made = made_of(tmp_path, [run_of(5.0), run_of(4.0), run_of(7.5)])
    assert (made.finished, made.planned) == (3, 6)
    (row,) = made.rows
    equal, time = row.lines
    assert time.figures["makespan"] == Spread(5.0, 4.0, 7.5, 3)
    assert time.changes["makespan"] == Spread(-50.0, -60.0, -25.0, 3)
    assert time.figures["joules"] is time.changes["joules"] is equal.changes["makespan"] is None
    ((_, (finding,)),) = made.expectations
    assert finding.verdict == OPEN  # one seed of three is above -30 %
    assert made_of(tmp_path, [run_of(5.0), run_of(4.0)]).expectations[0][1][0].verdict == SEEN


def test_no_change_is_stated_where_the_pace_was_not_held_or_work_differs(tmp_path: Path) -> None:
    odd = [run_of(5.0, late=7.0, loss=2.0), run_of(5.0, complete=False, loss=2.0), run_of(5.0, samples=59, loss=2.0)]
    made = made_of(tmp_path, odd)
    assert made.rows[0].lines[1].changes["makespan"] is None
    runs = {"equal": run_of(10.0, loss=4.0), "time": odd[0]}
    assert change(runs, "time", "equal", "loss") == -50.0  # quality needs no pace
    assert change({**runs, "time": odd[1]}, "time", "equal", "loss") is None
    assert made.rows[0].lines[1].late == 1
    assert made.expectations[0][1][0].verdict == OPEN
    page = markdown(made, "table")
    assert "Pace not held: time in 1 of 3 seeds." in page
    assert "| shorter | at most -30 % | real | not stated | open |" in page


def test_percentages_change_by_points(tmp_path: Path) -> None:
    runs = {"equal": run_of(1.0, accuracy=80.0, loss=2.0), "time": run_of(1.0, accuracy=81.0, loss=1.0)}
    assert change(runs, "time", "equal", "accuracy") == 1.0
    assert change(runs, "time", "equal", "loss") == -50.0


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(4, 6, SEEN), (5, None, OPEN), (None, 4.5, OPEN), (7, None, NOT_SEEN), (None, 3, NOT_SEEN), (None, 6, SEEN)],
)
def test_a_verdict_needs_every_seed(low: float | None, high: float | None, wanted: str) -> None:
    assert verdict(Spread(5, 4, 6, 3), low, high) == wanted
    assert verdict(None, low, high) == OPEN


def test_the_files_hold_a_line_for_each_run(tmp_path: Path) -> None:
    made = made_of(tmp_path, [run_of(5.0), run_of(4.0)])
    rows = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert [(row["policy"], row["seed"], row["makespan"]) for row in rows] == [
        ("equal", "1", "10"), ("time", "1", "5"), ("equal", "2", "10"), ("time", "2", "4"),
    ]  # fmt: skip
    assert json.loads(json.dumps(as_json(made, "t")))["rows"][0]["lines"][1]["changes"]["makespan"]["median"] == -55.0
    picture = draw_table(made, tmp_path / "t.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_seconds_and_joules_to_a_loss_are_those_of_the_rounds_up_to_it(tmp_path: Path) -> None:
    Story().tell(tmp_path / "run")
    run = figures_of(tmp_path / "run")
    losses = [one.loss or 0.0 for one in run.rounds]
    assert losses == sorted(losses, reverse=True)
    second = run.rounds[1]
    for target in (second.loss, losses[0] / 1.002):
        found = of_run(run, target)
        assert (found["target_s"], found["target_j"]) == (second.end_s, second.joules)
    for target in (losses[0], losses[0] / 1.0005):  # as good as the same
        assert of_run(run, target)["target_s"] == run.rounds[0].end_s
    for target in (losses[2] / 1.002, None):
        assert of_run(run, target)["target_s"] is of_run(run, target)["target_j"] is None


def test_a_loss_that_some_seeds_do_not_reach_has_their_number_beside_it(tmp_path: Path) -> None:
    page = markdown(made_of(tmp_path, [run_of(5.0, target_s=2.0), run_of(4.0), run_of(7.5, target_s=3.0)]), "t")
    assert "| 2.50 (2.00 to 3.00) (2 of 3 seeds) |" in page


# Runs ---------------------------------------------------------------------------------------------------------------


def test_the_command_runs_a_simulated_row_once_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PLAIN.replace('[[rows]]\nname = "real"\nexperiment = "own.toml"\n', "").replace("[1, 2, 3]", "[4]")
    _, path = table_of(tmp_path, text)
    work = ["--work-dir", str(tmp_path / "work")]
    assert program().run(["experiments", "run", str(path), *work, "--out", str(tmp_path / "out")]) == 0
    first = capsys.readouterr()
    assert "1 of 1: simulated, seed 4" in first.err
    assert "| `frontier:energy` |" in first.out
    assert "seen |" in first.out
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["table.csv", "table.md", "table.png"]
    assert program().run(["experiments", "run", str(path), *work]) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "seed 4" not in again.err
    assert program().run(["experiments", "table", str(path), *work]) == 0
    assert capsys.readouterr().out == first.out
    assert program().run(["experiments", "list", str(tmp_path), *work, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert [(row["file"], row["cells"], row["finished"]) for row in listed] == [(str(path), 1, 1)]


@pytest.mark.parametrize(("text", "found"), [("", "kind is missing"), ('kind = "run"\n', "kind = 'run'")])
def test_a_file_of_neither_kind_is_told_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, found: str
) -> None:
    (tmp_path / "neither.toml").write_text(text, encoding="utf-8")
    assert program().run(["experiments", "show", str(tmp_path / "neither.toml")]) == 3
    told = capsys.readouterr().err
    assert f'{found}: expected "split"' in told
    assert 'or "runs"' in told


def test_options_of_trainings_are_refused_for_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = table_of(tmp_path)
    assert program().run(["experiments", "run", str(path), "--jobs", "2"]) == 3
    assert "--jobs and --device are for studies" in capsys.readouterr().err


def test_what_an_interrupted_cell_left_is_run_anew(tmp_path: Path) -> None:
    from paceline.talk import Talk

    table, path = table_of(tmp_path)
    cell = cells(table, path)[1]
    left = tmp_path / cell.key()
    left.mkdir()
    (left / "half").write_text("done")
    record = run_cell(cell, tmp_path, Talk("test"), lambda stop: None)
    assert not (left / "half").exists()
    assert read_records(tmp_path, [cell]) == {cell.key(): json.loads(json.dumps(record))}


@pytest.mark.parametrize("text", ["{", "{}", '{"policies": {"equal": {"makespan": 1.0}}}', "[]"])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    table, path = table_of(tmp_path)
    cell = cells(table, path)[1]
    (tmp_path / cell.key()).mkdir()
    (tmp_path / cell.key() / "cell.json").write_text(text)
    with pytest.raises(DamagedError, match=rf"{cell.key()}/cell.json: cannot be read .*; remove its folder"):
        read_records(tmp_path, [cell])
