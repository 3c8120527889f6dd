# SPDX-License-Identifier: Apache-2.0
"""`paceline simulate` as a user meets it: table, JSON, files, folders, sentences for what is wrong, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline_host.commands import program
from paceline_host.ledger import Ledger


def simulate(*words: str) -> int:
    """Run the command in this process."""
    return program().run(["simulate", *words])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return what it prints with --json."""
    assert simulate(*words, "--json") == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def test_a_table_compares_policies_and_says_that_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--rounds", "6", "--no-journal") == 0
    out = capsys.readouterr().out
    assert "simulated, full protocol: 11 boards (eleven-boards), 6 rounds x 12,001 samples, seed 1" in out
    assert "joules are modelled" in out
    equal, timely, _ = [line.split() for line in out.splitlines() if line.startswith(("equal", "time", "low-energy"))]
    assert equal[:2] == ["equal", "6"]
    assert timely[4].startswith("-"), "against equal"
    assert not list(Path().iterdir()), "nothing is kept"


def test_runs_are_kept_where_other_commands_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    shown = found(capsys, "--rounds", "4", "--policies", "equal,frontier:energy")
    assert [one["policy"] for one in shown["policies"]] == ["equal", "frontier:energy"]
    assert (shown["schema"], shown["simulated"], shown["boards"]) == ("paceline-simulation-1", True, 11)
    folder = Path("runs/simulated-001")
    for name in ("equal", "frontier-energy"):
        with Ledger(folder / name) as ledger:
            assert ledger.verify().faults == ()
            assert ledger.run.data_label == "none: simulated"
    assert program().run(["report", str(folder), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert len(reported["runs"]) == 2
    assert program().run(["explain", str(folder / "frontier-energy"), "--round", "3"]) == 0
    assert program().run(["whatif", str(folder / "equal"), "--policy", "time"]) == 0


def test_a_file_says_what_is_to_happen_and_options_override_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(
        'policies = ["time"]\nrounds = 5\nseed = 9\n[[fault]]\nboard = 1\nround = 3\nwhat = "throttle"\nfactor = 3.0\n',
        encoding="utf-8",
    )
    plain = found(capsys, "mine.toml", "--no-journal")
    assert (plain["rounds"], plain["seed"]) == (5, 9)
    rounds = plain["policies"][0]["round_s"]
    assert rounds[2] > 1.5 * rounds[1]
    other = found(capsys, "mine.toml", "--no-journal", "--rounds", "7", "--fault", "board=2 round=6 leave")
    assert (other["rounds"], other["policies"][0]["leases_lost"]) == (7, 1)
    assert other["policies"][0]["round_s"][:5] == rounds, "what comes later changes nothing before"


def test_all_that_is_wrong_in_a_file_is_told_at_once_with_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.toml").write_text('bogus = 1\nrounds = 0\npolicies = ["tyme", "equal", "frontier:budget=0J"]\n')
    assert simulate("wrong.toml") == 3
    told = capsys.readouterr().err
    for sentence in (
        "wrong.toml, line 1: unknown key bogus", "wrong.toml, line 2: rounds: expected a whole number >= 1",
        "wrong.toml, line 3: policies #1: unknown policy 'tyme'; did you mean time?",
        "wrong.toml, line 3: policies #3:",
    ):  # fmt: skip
        assert sentence in told


def test_paths_in_a_file_start_at_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deep").mkdir()
    Path("deep/fleet.toml").write_text(
        'name = "own"\n[[boards]]\nname = "a"\nspeed = 1.0\nidle_w = 1.0\nactive_w = 2.0\n', encoding="utf-8"
    )
    Path("deep/load.trace").write_text(
        '{"schema": "paceline-trace-1", "period_us": 1000}\n{"t0": 0, "t1": 1000, "uw": 7000000}\n', encoding="utf-8"
    )
    Path("deep/mine.toml").write_text(
        'profile = "./fleet.toml"\nrounds = 2\npolicies = ["equal"]\n[[trace]]\nboard = 0\nactive = "load.trace"\n',
        encoding="utf-8",
    )
    shown = found(capsys, "deep/mine.toml", "--no-journal")
    (one,) = shown["policies"]
    assert shown["boards"] == 1
    assert one["parts_j"]["compute"] == pytest.approx(7.0 * 2 * 1091 * 0.0025)


@pytest.mark.parametrize("mode", [[], ["--controller-only"]])
def test_a_goal_that_cannot_be_kept_is_told_wherever_its_figures_are(
    capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    words = ["--rounds", "4", "--policies", "frontier:energy,frontier:budget=1J", *mode]
    kept, given_up = found(capsys, *words)["policies"]
    assert kept["notes"] == []
    (note,) = given_up["notes"]
    assert note.startswith("first in round 2: no plan takes 1 J or less")
    assert note.endswith("(planned for frontier:energy)")
    assert simulate(*words) == 0
    assert f"- frontier:budget=1J: {note}" in capsys.readouterr().out
    if mode:
        return
    folder = "runs/simulated-001"
    assert program().run(["report", folder, "--json"]) == 0
    assert [run["notes"] for run in json.loads(capsys.readouterr().out)["runs"]] == [[], [note]]
    assert program().run(["report", folder]) == 0
    assert f"- frontier:budget=1J: {note}" in " ".join(capsys.readouterr().out.split())


def test_the_controller_alone_takes_many_boards(capsys: pytest.CaptureFixture[str]) -> None:
    shown = found(capsys, "--controller-only", "--boards", "3000", "--rounds", "3", "--policies", "equal,time")
    assert shown["mode"] == "controller only, no protocol"
    equal, timely = shown["policies"]
    assert timely["makespan_s"] < equal["makespan_s"]
    assert equal["samples"] == timely["samples"] == 3 * 3000 * 1091
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fault", "board=3 leave"], "--fault 'board=3 leave': does not say round"),
        (["--fault", "board=30 round=2 leave"], "fault of board 30: there are 11 boards"),
        (["--boards", "30000"], "30000 boards are too many to speak the protocol (at most 20000); add --controller-on"),
        (["--boards", "2000000"], "boards"),
        (["--policies", "tiem"], "did you mean time?"),
        (["--policies", "gpsl"], "a method of split learning, which the simulator does not do"),
        (["--policies", "time,ema-batch:every=3"], "'ema-batch:every=3' counts steps of a round, which regime pma has"),
        (["--policies", "time,time"], "each only once"),
        (["--profile", "twelve-boards"], "there is no profile 'twelve-boards'; did you mean eleven-boards?"),
        (["--rounds", "0"], "rounds"),
        (["--budget", "5"], "is below 11 boards x 1 samples"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_is_wrong_gets_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*words) == 3
    assert sentence in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_recorded_run_with_other_boards_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--rounds", "3", "--policies", "equal") == 0
    assert simulate("--replay", "runs/simulated-001/equal", "--policies", "time", "--no-journal", "--rounds", "3") == 0
    assert "costs of runs/simulated-001/equal" in capsys.readouterr().out
    assert simulate("--replay", "runs/simulated-001/equal", "--boards", "5") == 3
    assert "has 11 boards, which cannot be made 5" in capsys.readouterr().err
    Path("fixed.toml").write_text("round_fixed_s = 1.0\n")
    assert simulate("fixed.toml", "--replay", "runs/simulated-001/equal", "--profile", "nope", "--drift", "0.5") == 3
    assert "so leave out drift, profile, round_fixed_s" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [(), ("--controller-only",)], ids=["full", "controller only"])
def test_ctrl_c_ends_it_in_order(mode: tuple[str, ...], tmp_path: Path) -> None:
    code = "from paceline_host.cli import main; raise SystemExit(main())"
    many = ["--rounds", "1000000", "--policies", "time", *mode]
    with subprocess.Popen(
        [sys.executable, "-c", code, "simulate", *many], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "time: round" in process.stderr.readline(), "its first word of progress"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "- time: interrupted" in out
    assert "interrupted; what is above is what was simulated until then" in err
    if not mode:
        with Ledger(tmp_path / "runs" / "simulated-001" / "time") as ledger:
            assert ledger.verify().faults == ()
            assert ledger.run.ended is not None
            assert ledger.run.ended["reason"] == "interrupted"
