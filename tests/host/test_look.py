# SPDX-License-Identifier: Apache-2.0
"""`explain` and `whatif` over journals whose story is known."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import RunError, SettingsError, StorageError
from paceline.policies import policy
from paceline_host import planner
from paceline_host.cli import main
from paceline_host.explain import explain, one_run, words
from paceline_host.journal import Journal
from paceline_host.records import Epoch, Round
from paceline_host.regimes.pma import Pma
from paceline_host.whatif import Recording, table, whatif

from .run_folder import Story, boards_of, model_hash, run_row

PACE_S, WATTS = (0.01, 0.03, 0.03), (5.0, 3.0, 3.0)


def told(tmp_path: Path, name: str, rounds: int = 4, **changes: object) -> Path:
    """Tell a run whose shares are those that the policy gives."""
    made, shares = planner.make(policy(name), 3, 100, 1), []
    for _ in range(rounds):
        shares.append(made.plan(range(3)))
        for board, n in enumerate(shares[-1]):
            us = round(n * PACE_S[board] * 1e6)
            made.observe(board, us * 1e-6, round(us * WATTS[board]) * 1e-6, n)
    folder = tmp_path / "c-001" / name.replace(":", "-")
    run = run_row(run_id=f"c-001/{name}", policy=name, rounds=rounds)
    story = Story(run=run, shares=shares, accuracy=[0.5] * rounds)
    replace(story, **changes).tell(folder)  # type: ignore[arg-type]
    return folder


def test_a_weighted_share_is_explained_by_cost_and_medians(tmp_path: Path) -> None:
    facts = explain(told(tmp_path, "time"), 2)
    assert facts["median_seconds_per_sample"] == pytest.approx(0.03)
    first = facts["boards"][0]
    assert first["cost"] == pytest.approx(1 / 3)
    assert first["samples"] == 60
    assert first["unlimited_share"] == pytest.approx(60.0)
    assert first["reported_energy_per_sample_j"] == pytest.approx(0.05)
    text = "\n".join(words(facts, "board-0"))
    assert "cost 0.3333 (1 is typical), which alone would make 60.0" in text
    assert "new shares, foretold to gain 65.0 %" in text
    assert "board-1" not in text


def test_shares_that_stay_are_explained_by_the_dead_band(tmp_path: Path) -> None:
    facts = explain(told(tmp_path, "time"), 3)
    assert facts["predicted_gain"] == pytest.approx(0.0)
    assert not facts["kept"]  # the new plan is the old one


def test_a_goal_is_explained_by_marginal_joules(tmp_path: Path) -> None:
    facts = explain(told(tmp_path, "frontier:energy"), 3)
    assert facts["kind"] == "frontier"
    first = facts["boards"][0]
    assert (first["active_w"], first["wait_from"]) == (pytest.approx(5.0), "active watts")
    assert first["marginal_j"] == pytest.approx(0.0)
    assert facts["predicted_j"] == pytest.approx(0.6 * 5 + 0.6 * 3 * 2, rel=0.02)
    assert "a sample adds" in "\n".join(words(facts))


@pytest.mark.parametrize("name", ["equal", "static"])
def test_a_policy_without_costs_says_so(tmp_path: Path, name: str) -> None:
    assert "shares do not follow costs" in "\n".join(words(explain(told(tmp_path, name), 2)))


def test_shares_by_throughput_are_explained_by_it(tmp_path: Path) -> None:
    facts = explain(told(tmp_path, "ema-batch"), 3)
    assert facts["boards"][1]["seconds_per_sample"] == pytest.approx(0.03)
    text = "\n".join(words(facts))
    assert "shares follow throughput alone" in text
    assert "half new each round, by the one before" in text
    assert "do not follow costs" not in text


def test_what_was_not_there_is_named(tmp_path: Path) -> None:
    folder = told(tmp_path, "time")
    with pytest.raises(RunError, match="no round 9; rounds 1 to 4"):
        explain(folder, 9)
    with pytest.raises(RunError, match=r"no board 'x'; there were: board-0, board-1, board-2"):
        words(explain(folder, 2), "x")
    told(tmp_path, "equal")
    with pytest.raises(StorageError, match="holds 2 runs; name one of them"):
        one_run(tmp_path / "c-001")


@pytest.mark.parametrize(
    ("ended", "asked", "said"),
    [
        (0, 1, "epoch 1 has not ended; none has ended yet"),
        (1, 2, "epoch 2 has not ended; epochs 1 to 1 have ended"),
        (1, 0, "there is no epoch 0; epochs 1 to 1 have ended"),
        (1, -1, "there is no epoch -1; "),
        (1, 4, "there is no epoch 4; "),
    ],
)
def test_an_epoch_that_is_not_there_is_named(tmp_path: Path, ended: int, asked: int, said: str) -> None:
    with pytest.raises(RunError, match=said):
        explain(split_run(tmp_path / "fls", ended), asked)


def test_a_board_that_held_no_samples_is_not_said_to_have_been_away(tmp_path: Path) -> None:
    facts = explain(split_run(tmp_path / "fls", 1), 1)
    with pytest.raises(RunError, match=r"board 'board-2' held no samples in epoch 1; there were: board-0, board-1"):
        words(facts, "board-2")
    with pytest.raises(RunError, match=r"no board 'x'; there were: board-0, board-1"):
        words(facts, "x")


def split_run(folder: Path, ended: int) -> Path:
    """Tell a run of split learning of three epochs, of which so many have ended; its third board holds no samples."""
    run = run_row(run_id="fls", policy="fls", regime="psl", rounds=3)
    with Journal.create(folder, run, boards_of(3, "modelled")) as journal:
        for number in range(1, ended + 1):
            slices = Pma(run.samples, run.budget).plan(number, [(0, 60), (1, 40)])
            journal.add_plan(Round(number, float(number), model_hash(number - 1), 0.0), slices)
            journal.add_epoch(Epoch(number, 10, 0, 0, 0, 0, 0.0, "", ""), [])
    return folder


def test_a_run_under_its_own_policy_costs_what_it_cost(tmp_path: Path) -> None:
    found = whatif(told(tmp_path, "time"), ["time", "equal"])
    same, equal = found["policies"]
    assert same["seconds"] == found["recorded"]["seconds"]
    assert same["shares"] == found["recorded"]["shares"]
    assert same["joules_against_recorded"] in (None, 0.0)
    assert equal["seconds"] == pytest.approx(4 * 0.99, rel=0.03)
    assert "(recorded)" in table(found)


def test_what_a_policy_would_have_done_within_rounds_is_said_to_be_left_out(tmp_path: Path) -> None:
    run = run_row(run_id="c-001/time", policy="time", regime="ddp", rounds=4)
    folder = told(tmp_path, "time", run=run)
    found = whatif(folder, ["ema-batch", "ema-batch:every=2"])
    assert found["notes"] == ["ema-batch:every=2: by plans of whole rounds; what it gains within one is left out"]
    assert table(found).endswith("is left out")
    assert whatif(folder, ["equal"])["notes"] == []
    with pytest.raises(SettingsError, match="oort cannot divide a run of regime ddp"):
        whatif(folder, ["oort"])


def test_a_recorded_run_that_was_dealt_anew_within_rounds_is_told_by_what_was_done(tmp_path: Path) -> None:
    run = run_row(run_id="c-001/every", policy="ema-batch:every=2", regime="ddp", rounds=4)
    folder = tmp_path / "c-001" / "every"
    Story(run=run, shares=[(34, 33, 33)] * 4, accuracy=[0.5] * 4).tell(folder)
    with sqlite3.connect(folder / "journal.sqlite") as journal:  # as if board 0 had taken over from the others
        journal.execute("UPDATE contribution SET samples = 60, compute_us = 600000 WHERE board = 0")
        journal.execute("UPDATE contribution SET samples = 20, compute_us = 600000 WHERE board > 0")
    recorded = whatif(folder, ["equal"])["recorded"]
    assert recorded["shares"] == (60, 20, 20)
    assert recorded["seconds"] == pytest.approx(4 * 0.6)


def test_least_joules_cost_no_more_than_what_was_recorded(tmp_path: Path) -> None:
    found = whatif(told(tmp_path, "equal", rounds=6), ["frontier:energy", "frontier:time"])
    assert Recording(tmp_path / "c-001" / "equal").wait_w
    energy, time = found["policies"]
    assert energy["total_j"] < found["recorded"]["total_j"]
    assert energy["total_j"] <= time["total_j"] * 1.02
    assert time["seconds"] < found["recorded"]["seconds"]


def test_without_readings_joules_are_unknown(tmp_path: Path) -> None:
    found = whatif(told(tmp_path, "equal", active_w=(None, None, None), source=""), ["time"])
    assert found["policies"][0]["total_j"] is None
    assert "unknown" in table(found)


def test_the_commands_print_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(told(tmp_path, "time"))
    assert main(["explain", folder, "--round", "2", "--board", "board-2", "--json"]) == 0
    assert [entry["board"] for entry in json.loads(capsys.readouterr().out)["boards"]] == ["board-2"]
    assert main(["whatif", folder, "--policy", "frontier:edp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["policy"] == "frontier:edp"
    assert main(["whatif", folder, "--policy", "frontier:fast"]) == 3
    assert "frontier:energy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "more"), [("explain", ("--round", "9")), ("whatif", ("--policy", "time"))], ids=["explain", "whatif"]
)
def test_the_status_of_what_cannot_be_answered_is_in_the_help(
    command: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([command, str(split_run(tmp_path / "fls", 1)), *more])
    with pytest.raises(SystemExit):
        main([command, "--help"])
    exits = " ".join(capsys.readouterr().out.replace("\xa0", " ").split()).partition("exit status")[2]
    assert f"{status} the run failed" in exits


def test_a_round_that_was_dealt_in_several_slices_costs_what_it_cost(tmp_path: Path) -> None:
    from paceline_host.details import details

    whole, cut = (told(tmp_path / str(halves), "time", rounds=6, in_two=halves) for halves in (False, True))
    facts, others = explain(cut, 3), explain(whole, 3)
    assert [entry.pop("slices") for entry in facts["boards"]] == [[30, 30], [10, 10], [10, 10]]
    assert [entry.pop("slices") for entry in others["boards"]] == [[60], [20], [20]]
    assert facts == others
    assert "dealt anew in its course; it did 30 + 30 = 60 samples" in "\n".join(words(explain(cut, 3), "board-0"))
    assert whatif(cut, ["equal"]) == whatif(whole, ["equal"])
    ours, theirs = details(cut).boards[0], details(whole).boards[0]
    assert ours.joules_per_sample is not None
    assert (ours.proportional, ours.joules_per_sample) == (theirs.proportional, theirs.joules_per_sample)


def test_the_page_shows_both_models_of_a_boards_seconds(tmp_path: Path) -> None:
    from paceline_host.details import details

    folder = told(tmp_path, "time", rounds=6)
    first = details(folder).boards[0]
    assert first.proportional == pytest.approx((0.01, 0.0))
    assert first.affine is not None
    assert not first.is_affine  # nothing is fixed there
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Two models of each board" in page
