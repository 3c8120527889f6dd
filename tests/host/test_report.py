# SPDX-License-Identifier: Apache-2.0
"""Report and picture from journals on disk, against figures worked out by hand from the story that they were told."""

from __future__ import annotations

import argparse
import json
import struct
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from paceline.errors import StorageError
from paceline_host import closed_form
from paceline_host.details import details
from paceline_host.figures import figures, label
from paceline_host.journal import Journal
from paceline_host.ledger import Ledger
from paceline_host.plot import draw
from paceline_host.profile import BoardProfile
from paceline_host.records import Board, Energy, Run
from paceline_host.report import load_report, notes, render
from paceline_host.target import Target

from .run_folder import Story, run_row

THIRDS = ((34, 33, 33),) * 3


def equal_row(**changes: object) -> Run:
    return run_row(**{"run_id": "c-001/equal", "policy": "equal", "started": "2026-01-01T00:00:00Z", **changes})


def time_row(**changes: object) -> Run:
    return run_row(**{"run_id": "c-001/time", "policy": "time", "started": "2026-01-01T00:01:00Z", **changes})


def compared(tmp_path: Path, **changes: object) -> Path:
    """Tell `equal` and, changed, `time`."""
    folder = tmp_path / "c-001"
    Story(run=equal_row(), shares=THIRDS).tell(folder / "equal")
    replace(Story(run=time_row()), **changes).tell(folder / "time")  # type: ignore[arg-type]
    return folder


def cells(table: str, name: str) -> list[str]:
    """Return the cells of the first row of this name."""
    line = next(line for line in table.splitlines() if line.strip().startswith(name))
    return [cell.strip() for cell in line.strip().removeprefix(name).split("  ") if cell.strip()]


def test_the_figures_are_those_of_the_story(tmp_path: Path) -> None:
    """Seconds a sample 0.01, 0.03, 0.03; shares 40/30/30, then twice 60/20/20; 5, 3, 3 W at work and 1 W waiting."""
    Story(run=time_row()).tell(tmp_path / "r")
    run = figures(tmp_path / "r")
    assert [r.makespan_s for r in run.rounds] == pytest.approx([0.9, 0.6, 0.6])
    assert run.makespan_s == pytest.approx(2.1)
    assert run.makespan_median_s == pytest.approx(0.6)
    assert [r.end_s for r in run.rounds] == pytest.approx([0.9, 1.5, 2.1])
    compute = 5 * (0.4 + 0.6 + 0.6) + 2 * 3 * (0.9 + 0.6 + 0.6)
    assert run.joules.parts_j == pytest.approx(
        {"compute": compute, "wait": 0.5, "transfer": 0.9, "wasted": 0.15, "other": 0.18}
    )
    assert run.joules.total_j == pytest.approx(compute + 1.73)
    assert run.rounds[-1].joules == pytest.approx(run.joules.total_j)
    assert (run.joules.label, run.joules.complete, run.joules.coverage) == ("modelled", True, 1.0)
    assert run.joules.bound_j == pytest.approx(3e-3)
    assert run.rounds[0].compute_cv == pytest.approx(0.2357022604 / 0.7333333333)  # of 0.4, 0.9, 0.9
    assert run.compute_cv == pytest.approx(0.0, abs=1e-9)
    assert run.controller_fraction == pytest.approx(3e-5 / 2.1)
    assert (run.accuracy, run.samples, run.faults, run.complete) == (0.9, 300, (), True)
    assert run.rounds[1].samples == {"board-0": 60, "board-1": 20, "board-2": 20}


def test_the_table_compares_with_equal(tmp_path: Path) -> None:
    report = load_report(compared(tmp_path))
    assert [run.run.policy for run in report.runs] == ["equal", "time"]
    table = render(report)
    assert (
        cells(table, "makespan, whole run") == ["3.06 s", "2.10 s"]
        or cells(table, "makespan, whole run")[1] == "2.10 s"
    )
    assert cells(table, "against equal")[0] == "reference"
    change = report.change(report.runs[1])
    assert change is not None
    assert change.makespan == pytest.approx(2.1 / 2.97 - 1)
    assert cells(table, "against equal")[1] == f"{100 * (2.1 / 2.97 - 1):+.1f} %"
    assert cells(table, "joules are") == ["modelled", "modelled"]
    assert cells(table, "every sample counted exactly once") == ["yes", "yes"]
    assert "closed form" not in table  # nothing was declared
    assert "one seed" in table


def test_time_and_joules_are_counted_until_an_accuracy_was_reached(tmp_path: Path) -> None:
    report = load_report(compared(tmp_path))
    assert "to the target" not in render(report)
    first, last = report.runs[1].rounds[1], report.runs[1].rounds[-1]
    assert first.accuracy is not None
    assert last.accuracy is not None
    text = render(replace(report, target=Target("accuracy", first.accuracy)))
    assert cells(text, "time to the target")[1] == f"{first.end_s:.2f} s"
    assert cells(text, "joules to the target")[1] == f"{first.joules:.1f} J"
    text = render(replace(report, target=Target("accuracy", last.accuracy + 0.01)))
    assert cells(text, "time to the target") == ["not reached", "not reached"]


def test_a_task_without_accuracy_has_a_loss_to_reach(tmp_path: Path) -> None:
    report = load_report(compared(tmp_path, accuracy=(None, None, None)))
    first = report.runs[1].rounds[1]
    assert first.loss is not None
    assert report.runs[1].rounds[0].loss > first.loss  # type: ignore[operator]
    told = replace(report, target=Target.read(f"loss={first.loss}"))
    assert cells(render(told), "time to the target")[1] == f"{first.end_s:.2f} s"
    assert cells(render(told), "joules to the target")[1] == f"{first.joules:.1f} J"
    entry = told.as_json()["runs"][1]
    assert entry["target"] == {"what": "loss", "value": first.loss}
    assert entry["to_target"] == {"round": first.round, "seconds": first.end_s, "joules": first.joules}
    assert "to_target" not in report.as_json()["runs"][1]
    wrong = render(replace(report, target=Target.read("0.9")))
    assert cells(wrong, "time to the target")[1] == "none"
    assert "has no accuracy to reach; expected: --target loss=X" in wrong


@pytest.mark.parametrize("text", ["0", "1.5", "loss=0", "loss=inf", "loss=nan", "loss", "rmse=0.5", ""])
def test_a_target_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no target; expected .*, or loss=X with X above 0"):
        Target.read(text)


def test_json_says_the_same(tmp_path: Path) -> None:
    report = load_report(compared(tmp_path, active_w=(5.0, None, 3.0)))
    told = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert (told["schema"], told["name"]) == ("paceline-report-1", "c-001")
    equal, time = told["runs"]
    assert (equal["policy"], equal["against_equal"]) == ("equal", None)
    assert time["makespan_s"] == pytest.approx(2.1)
    assert time["joules"]["unknown"] == ["board-1"]
    assert time["against_equal"]["makespan"] == pytest.approx(2.1 / 2.97 - 1)
    assert time["against_equal"]["joules"] is None
    assert time["counted_exactly_once"] is True
    assert time["data_label"] == "synthetic"


def test_unknown_joules_are_never_nothing(tmp_path: Path) -> None:
    table = render(load_report(compared(tmp_path, active_w=(5.0, None, 3.0))))
    assert cells(table, "joules, total")[1].startswith(">= ")
    assert cells(table, "compute")[1].startswith(">= ")
    assert "time: joules unknown, wholly or for a time, on board-1" in table
    (tmp_path / "b").mkdir()
    table = render(load_report(compared(tmp_path / "b", active_w=(None, None, None))))
    assert cells(table, "joules, total")[1] == "unknown"
    assert cells(table, "wait")[1] == "unknown"
    assert cells(table, "joules are") == ["modelled", "unknown"]


def test_joules_are_called_what_they_are(tmp_path: Path) -> None:
    table = render(load_report(compared(tmp_path, source="ina3221/ch1")))
    assert cells(table, "joules are") == ["modelled", "measured"]
    assert label({"modelled/declared", "rapl/package-0"}) == "measured and modelled"


def test_the_two_uncertainties_stand_apart_and_doubts_are_told(tmp_path: Path) -> None:
    folder = compared(tmp_path, source="hwmon/x")
    with Journal.open(folder / "time") as journal:
        for board, (sampling_uj, flags) in enumerate([(3_000_000, 64), (4_000_000, 512 | 128), (0, 0)]):
            row = replace(
                _energy_of(folder / "time", board), bound_uj=700_000, sampling_uj=sampling_uj, split_uj=9, flags=flags
            )
            journal.set_energy(row)
    report = load_report(folder)
    joules = next(run.joules for run in report.runs if run.run.policy == "time")
    assert joules.bound_j == pytest.approx(2.1), "worst cases add up"
    assert joules.sampling_j == pytest.approx(5.0), "squares of what is independent add up"
    table = render(report)
    assert cells(table, "instrument, at most") == ["none", "+-2.1 J"]
    assert cells(table, "sampling, 95 %") == ["none", "+-5 J"]
    assert "joules by purpose are an estimate on board-0:" in " ".join(table.split())
    assert "time: readings of board-1: lost, frozen" in table
    told = json.loads(json.dumps(report.as_json(), allow_nan=False))["runs"][1]["joules"]
    assert (told["estimated"], told["flags"]) == (["board-0"], {"board-1": ["lost", "frozen"]})
    with Journal.open(folder / "time") as journal:
        journal.set_energy(replace(_energy_of(folder / "time", 0), sampling_uj=None))
    assert figures(folder / "time").joules.sampling_j is None, "unknown on one board, unknown for all"


def test_waits_replace_what_was_drawn_before_the_first_round(tmp_path: Path) -> None:
    Story(run=time_row(), source="hwmon/x").tell(tmp_path / "r")
    with Journal.open(tmp_path / "r") as journal:
        for board, idle_uw in ((0, 1_500_000), (1, 2_500_000), (2, None)):
            journal.set_board(Board(board, f"board-{board}", energy_source="hwmon/x", idle_uw=idle_uw))
        waited = _energy_of(tmp_path / "r", 1)
        assert waited.wait_uj is not None
        assert waited.total_uj is not None
        more_uj = 8_000_000 - waited.wait_uj
        journal.set_energy(replace(waited, wait_uj=8_000_000, total_uj=waited.total_uj + more_uj, wait_us=2_000_000))
    assert figures(tmp_path / "r").joules.waiting_w == pytest.approx({"board-0": 1.5, "board-1": 4.0})


def _energy_of(folder: Path, board: int) -> Energy:
    with Ledger(folder) as ledger:
        return ledger.energy(board)[-1]


def test_a_board_that_never_reported_and_one_that_came_back_make_the_total_a_lower_bound(tmp_path: Path) -> None:
    Story(run=time_row()).tell(tmp_path / "r")
    whole = figures(tmp_path / "r").joules
    with Journal.open(tmp_path / "r") as journal:
        journal.set_energy(Energy(3, 2, "s1", 1, 0, 0, 0, 0, 1, 5, 5, 0, "modelled"))
    joules = figures(tmp_path / "r").joules
    assert joules.unknown == ("board-2",)  # between its sessions
    assert joules.total_j is not None
    assert joules.total_j == pytest.approx((whole.total_j or 0) + 1e-6)
    with Journal.open(tmp_path / "r") as journal:
        journal._db.execute("DELETE FROM energy WHERE board = 1")
    assert figures(tmp_path / "r").joules.unknown == ("board-1", "board-2")


@pytest.mark.parametrize(
    ("sql", "unknown"),
    [
        ("DELETE FROM energy WHERE board = 1 AND round = 3", ("board-1",)),
        ("UPDATE contribution SET verdict = 'lost' WHERE board = 2 AND round = 3", ()),
        ("DELETE FROM energy WHERE board = 2 AND round > 1", ("board-2",)),
        ("UPDATE contribution SET verdict = 'lost' WHERE board = 2 AND round > 1;"
         "DELETE FROM energy WHERE board = 2 AND round > 1", ("board-2",)),
        ("DELETE FROM contribution WHERE board = 1 AND round = 3;"
         "DELETE FROM energy WHERE board = 1 AND round = 3", ("board-1",)),
        ("DELETE FROM contribution WHERE board = 1 AND round = 3;"
         "DELETE FROM energy WHERE board = 1 AND round = 3;"
         "INSERT INTO event (at_s, kind, detail, round, board)"
         " SELECT closed_s, 'lost', '\"gone\"', NULL, 1 FROM round WHERE round = 2", ()),
    ],
    ids=["one round older", "lost but told", "none since", "lost and not told", "there without work", "gone before"],
)  # fmt: skip
def test_joules_that_end_before_their_board_did_are_a_lower_bound(
    tmp_path: Path, sql: str, unknown: tuple[str, ...]
) -> None:
    Story(run=time_row()).tell(tmp_path / "time")
    assert figures(tmp_path / "time").joules.unknown == ()
    with Journal.open(tmp_path / "time") as journal:
        for statement in sql.split(";"):
            journal._db.execute(statement)
    assert figures(tmp_path / "time").joules.unknown == unknown
    assert tuple(board.name for board in details(tmp_path / "time").boards if board.gaps) == unknown
    total = cells(render(load_report(tmp_path / "time")), "joules, total")[0]
    assert total.startswith(">=") == bool(unknown)


def test_late_steps_forbid_percentages(tmp_path: Path) -> None:
    """Board 1 and 2 take 2 steps a round, so that one late step in five is far above 5 %."""
    report = load_report(compared(tmp_path, overruns=1))
    table = render(report)
    assert cells(table, "against equal") == ["reference", "not stated"]
    assert "time: pace not held: 3 of 3 boards were late" in " ".join(table.split())
    assert "time: no percentages: pace not held in time" in table
    assert report.as_json()["runs"][1]["pace_held"] is False


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": time_row(rounds=4)}, "time is not complete"),
        ({"run": time_row(budget=90), "shares": ((30, 30, 30),) * 3}, "not the same number of samples"),
    ],
    ids=["unfinished", "other budget"],
)
def test_what_did_not_do_the_same_work_is_not_compared(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    table = render(load_report(compared(tmp_path, **changes)))
    assert f"time: no percentages: {why}" in table


def test_a_ledger_that_does_not_add_up_is_shouted(tmp_path: Path) -> None:
    folder = compared(tmp_path)
    with Journal.open(folder / "time") as journal:
        journal._db.execute("UPDATE slice SET ranges = '[[0,1,41]]' WHERE round = 1 AND slice = 0")
    table = render(load_report(folder))
    assert cells(table, "every sample counted exactly once") == ["yes", "NO"]
    assert "FAULT in the ledger: round 1" in table
    assert "time: no percentages: time is not complete" in table


def test_the_closed_form_takes_the_executed_shares(tmp_path: Path) -> None:
    profiles = [
        BoardProfile(f"board-{i}", speed, 1.0, 5.0, step_fixed_s=0.002) for i, speed in enumerate((3.0, 1.0, 1.0))
    ]
    declared = {"reference_seconds_per_sample": 0.03, "boards": [asdict(p) for p in profiles]}
    folder = compared(tmp_path, run=time_row(declared=declared))
    report = load_report(folder)
    expected = closed_form.run_seconds(profiles, Story().shares, 10, 0.03)
    assert report.runs[1].predicted_s == pytest.approx(expected)
    table = render(report)
    assert cells(table, "closed form predicts") == ["unknown", f"{expected:.2f} s"]


def test_a_run_that_has_only_begun_is_all_unknown(tmp_path: Path) -> None:
    Journal.create(tmp_path / "r", time_row(), [Board(0, "b")]).close()
    report = load_report(tmp_path / "r")
    table = render(report)
    for name in ("makespan, whole run", "joules, total", "accuracy at the end", "every sample counted exactly once"):
        assert cells(table, name) == ["unknown"], name
    assert "time: unfinished after 0 of 3 rounds" in table
    json.dumps(report.as_json(), allow_nan=False)
    assert draw(report, tmp_path / "p.png").stat().st_size > 0


def test_a_task_without_accuracy_shows_its_loss(tmp_path: Path) -> None:
    folder = compared(tmp_path, accuracy=(None, None, None))
    table = render(load_report(folder))
    assert cells(table, "accuracy at the end") == ["90.00 %", "none"]
    assert cells(table, "loss at the end")[1] == "0.3333"


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no run in it"):
        load_report(tmp_path)


# The picture ----------------------------------------------------------------------------------------------------------


def pixels(path: Path) -> tuple[int, int, bytes]:
    """Return width, height and the unpacked rows of a PNG."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    data, at = b"", 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        if content[at + 4 : at + 8] == b"IDAT":
            data += content[at + 8 : at + 8 + length]
        at += length + 12
    return width, height, zlib.decompress(data)


@pytest.mark.parametrize("policies", [1, 3, 9])
def test_the_picture_has_size_and_content(tmp_path: Path, policies: int) -> None:
    folder = tmp_path / "c-001"
    for i in range(policies):
        changes = {"policy": f"w_energy:{i / 10}", "started": f"2026-01-01T00:0{i}:00Z"}
        Story(run=time_row(**changes), active_w=(5.0, None if i == 1 else 3.0, 3.0)).tell(folder / str(i))
    width, height, rows = pixels(draw(load_report(folder), tmp_path / "p.png"))
    assert (width, height > 900) == (1400, True)
    assert len(set(zip(rows[::4], rows[1::4], rows[2::4], strict=False))) > 50  # colours, roughly: not a blank sheet


def test_a_picture_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    Story().tell(tmp_path / "r")
    with pytest.raises(StorageError, match="the picture cannot be written"):
        draw(load_report(tmp_path / "r"), tmp_path / "missing" / "p.png")


@pytest.mark.parametrize(
    ("reason", "first"),
    [("interrupted", ""), ("it is so; set run.some_key = true", "set that in {}/experiment.toml, then ")],
)
def test_whoever_is_told_to_go_on_is_told_what_must_be_set_before(tmp_path: Path, reason: str, first: str) -> None:
    folder = compared(tmp_path)
    report = load_report(folder)
    stopped = replace(report.runs[0], state=f"stopped: {reason}")
    said = notes(replace(report, runs=(stopped,)))
    assert [line for line in said if "to go on" in line] == [
        f"equal: stopped: {reason} after 3 of 3 rounds; to go on: {first.format(folder)}paceline resume {folder}/equal"
    ]
