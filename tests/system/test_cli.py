# SPDX-License-Identifier: Apache-2.0
"""Both command lines as a user meets them: help, exit statuses, JSON, and sentences that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.data.idx import write_idx
from paceline.data.sources import FILES, SOURCES

from .fleet_tools import Bench, Declared

HELP = [
    ("paceline",), ("paceline", "run"), ("paceline", "runs"), ("paceline", "report"), ("paceline", "data"),
    ("paceline", "data", "fetch"), ("paceline", "data", "partition"), ("paceline", "keys"), ("paceline", "explain"),
    ("paceline", "whatif"), ("paceline", "bench"), ("paceline", "boards"), ("paceline", "boards", "install"),
    ("paceline-agent",), ("paceline-agent", "run"), ("paceline-agent", "keys"),
    ("paceline-agent", "doctor"), ("paceline-agent", "install"),
    ("paceline-agent", "meter"), ("paceline-agent", "meter", "selftest"),
]  # fmt: skip


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_explains_each_command(bench: Bench, command: tuple[str, ...]) -> None:
    shown = bench.call(*command, "--help")

    assert shown.ends() == 0
    assert shown.out.startswith(f"usage: {' '.join(command)} ")
    assert shown.err == ""
    assert f"\n  {' '.join(command)}" in shown.out.partition("examples:")[2]
    assert "exit status: 0" in shown.out


@pytest.mark.parametrize("program", ["paceline", "paceline-agent"])
def test_a_wrong_command_line_is_exit_2(bench: Bench, program: str) -> None:
    shown = bench.call(program, "no-such-command")
    assert shown.ends() == 2
    assert "invalid choice: 'no-such-command'" in shown.err
    assert bench.call(program).ends() == 2


@pytest.mark.parametrize("module", ["paceline_host", "paceline_agent"])
def test_talk_never_lands_on_stdout_when_stderr_is_closed(module: str, tmp_path: Path) -> None:
    (tmp_path / "cut.toml").write_text("[run", encoding="utf-8")
    command = {"paceline_host": "run cut.toml", "paceline_agent": "run --config cut.toml"}[module]
    shell = f"exec {sys.executable} -m {module} {command} 2>&-"
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")


RUN = "[run]\nrounds = 1\nbudget = 100\n"
LINEAR = '[task]\nname = "linear"\n'
REFUSED = [
    ("unknown key", RUN + "rouns = 2\n" + LINEAR, 3, ["bad.toml, line 4: unknown key run.rouns; did you mean rounds?"]),
    ("several at once", '[run]\nrounds = 0\nbudget = "many"\n[fleet]\nkind = "cloud"\n' + LINEAR, 3,
     ["run.rounds", "run.budget", "fleet.kind"]),
    ("no TOML", "[run\nrounds = 1\n", 3, ["bad.toml", "line 1"]),
    ("unknown policy", RUN + 'policies = ["tine"]\n' + LINEAR, 3, ["unknown policy 'tine'", "did you mean time?"]),
    ("unknown task", RUN + '[task]\nname = "linar"\n', 3, ["linar", "linear"]),
    ("unknown task option", RUN + LINEAR + "learning_rat = 0.1\n", 3, ["did you mean learning_rate?"]),
    ("unknown profile", RUN + LINEAR + '[fleet]\nprofile = "eleven-bords"\n', 3, ["eleven-bords", "eleven-boards"]),
    ("boards without keys", RUN + LINEAR + '[fleet]\nkind = "boards"\n', 3, ["fleet.keys is missing"]),
    ("no such keys folder", RUN + LINEAR + '[fleet]\nkind = "boards"\nkeys = "nowhere"\n', 5,
     ["nowhere/boards does not exist"]),
    ("budget too small", "[run]\nrounds = 1\nbudget = 100\nminimum = 10\n" + LINEAR, 3,
     ["budget = 100 is below 11 boards x 10 samples; raise it to 110 or more"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "status", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_run_that_cannot_be_is_refused_in_a_sentence(bench: Bench, text: str, status: int, said: list[str]) -> None:
    experiment = bench.folder / "bad.toml"
    experiment.write_text(text, encoding="utf-8")

    refused = bench.host(experiment)

    assert refused.ends() == status, refused.err
    assert [fragment for fragment in said if fragment not in refused.err] == [], refused.err
    assert "Traceback" not in refused.err
    assert refused.out == ""
    assert bench.left() == {}
    assert not list((bench.folder / "runs").glob("*/*/journal.sqlite"))


def test_a_file_that_is_not_there_is_named(bench: Bench) -> None:
    refused = bench.call("paceline", "run", "nowhere.toml")
    assert refused.ends() == 3
    assert "nowhere.toml" in refused.err
    assert bench.call("paceline-agent", "run", "--config", "nowhere.toml").ends() == 3


def own_digits(folder: Path) -> None:
    """Write a tiny data set in the format of MNIST."""
    folder.mkdir()
    for images, labels, count in ((FILES[0], FILES[1], 40), (FILES[2], FILES[3], 10)):
        write_idx(folder / images, (count, 28, 28), bytes(count * 28 * 28))
        write_idx(folder / labels, (count,), bytes(i % 10 for i in range(count)))


def cut_short(folder: Path) -> str:
    """Take the last bytes of a file away; return what must be said."""
    path = folder / FILES[0]
    path.write_bytes(path.read_bytes()[:-100])
    return f"{path}"


def claim_to_be_mnist(folder: Path) -> str:
    """Put a fetched set's provenance beside files that are not it; return what must be said."""
    (folder / "provenance.json").write_text(json.dumps({"source": SOURCES[0].key}), encoding="utf-8")
    return f"expected {SOURCES[0].sha256[0]} for {SOURCES[0].key}"


@pytest.mark.parametrize("damage", [cut_short, claim_to_be_mnist], ids=["truncated", "wrong hash"])
def test_damaged_data_are_refused_before_anything_starts(bench: Bench, damage: object) -> None:
    folder = bench.folder / "digits"
    own_digits(folder)
    assert callable(damage)
    said = damage(folder)
    experiment = bench.experiment(
        "digits", {"rounds": 1, "budget": 40}, task={"name": "mnist"}, fleet={}, more=f'[data]\nfolder = "{folder}"'
    )

    refused = bench.host(experiment)

    assert refused.ends() == 3, refused.err
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert "starting" not in refused.err


def test_an_agent_refuses_what_it_cannot_serve_with(bench: Bench) -> None:
    bench.make_keys("pi")
    config = bench.write_agent("pi", "tcp://127.0.0.1:1")
    secret = bench.folder / "pi" / "pi.key"

    secret.chmod(0o644)
    readable = bench.call("paceline-agent", "run", "--config", config)
    assert readable.ends() == 5
    assert "has mode 0644, others may read it; run: chmod 600" in readable.err

    config.write_text(config.read_text(encoding="utf-8").replace("[meter]", "[metre]"), encoding="utf-8")
    misspelt = bench.call("paceline-agent", "run", "--config", config)
    assert misspelt.ends() == 3
    assert "metre" in misspelt.err
    assert "did you mean" in misspelt.err

    again = bench.call("paceline-agent", "keys", "--dir", bench.folder / "pi", "--name", "pi")
    assert again.ends() == 5
    assert "exists already" in again.err
    assert secret.stat().st_size == 41, "the old key is untouched"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, dict[str, object]]:
    """Run two short policies once with --json; return the bench and what stood on stdout."""
    with Bench(tmp_path_factory.mktemp("cli")) as bench:
        profile = bench.profile({"one": Declared(speed=4.0), "two": Declared(speed=2.0)})
        experiment = bench.experiment(
            "short", {"rounds": 9, "budget": 64, "policies": ["equal", "w_energy:0.3"]}, fleet={"profile": profile}
        )
        host = bench.host(experiment, "--json", "--set", "run.rounds=2", "--set", "run.fsync=false")
        assert host.ends() == 0, host.err
        assert bench.left() == {}, "a run ends its fleet itself"
        answer = json.loads(host.out)
        assert isinstance(answer, dict)
        return bench, answer


def test_a_runs_json_and_that_of_its_report_are_the_same(finished: tuple[Bench, dict[str, object]]) -> None:
    bench, answer = finished
    assert answer["schema"] == "paceline-report-1"
    again = bench.call("paceline", "report", bench.folder / "runs" / "short-001", "--json")
    assert again.ends() == 0
    assert json.loads(again.out) == answer


def test_a_report_is_a_table_and_a_picture(finished: tuple[Bench, dict[str, object]]) -> None:
    bench, _ = finished
    folder = bench.folder / "runs" / "short-001"
    table = bench.call("paceline", "report", folder)
    assert table.ends() == 0
    for words in ("equal", "w_energy:0.3", "makespan, whole run", "joules, total", "modelled", "2/2, 128"):
        assert words in table.out
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    one = bench.call("paceline", "report", folder / "equal")
    assert one.ends() == 0
    assert "w_energy" not in one.out


def test_runs_lists_what_was_run(finished: tuple[Bench, dict[str, object]]) -> None:
    bench, _ = finished
    listed = bench.call("paceline", "runs", "--json")
    assert listed.ends() == 0
    answer = json.loads(listed.out)
    assert answer["schema"] == "paceline-runs-1"
    assert [(row["policy"], row["state"], row["rounds_done"]) for row in answer["runs"]] == [
        ("equal", "finished", 2), ("w_energy:0.3", "finished", 2),
    ]  # fmt: skip
    assert "short-001/equal" in bench.call("paceline", "runs").out


def test_nothing_to_show_is_said(bench: Bench) -> None:
    empty = bench.call("paceline", "runs")
    assert empty.ends() == 0
    assert empty.out == ""
    assert "no runs in runs; begin with: paceline run" in empty.err
    missing = bench.call("paceline", "report", "runs/never-001")
    assert missing.ends() == 10
    assert "no run in it" in missing.err


SENSELESS = {
    "no number of clients": ([], "--clients is missing: --method iid needs to know how many there are"),
    "an option of another method": (
        ["--clients", "4", "--alpha", "2"],
        "--alpha is for --method dirichlet, dirichlet-",
    ),
    "a column beside iid": (["--clients", "4", "--column", "x"], "--column is for --method natural, not for iid"),
    "a picture of no kind": (["--clients", "4", "--picture", "x.pdf"], "a picture ends in .svg or .png"),
    "a seed too large": (["--clients", "4", "--seed", "9" * 30], "expected a whole number from 0 to 2^64 - 1"),
}


@pytest.mark.parametrize(("arguments", "said"), list(SENSELESS.values()), ids=list(SENSELESS))
def test_a_partition_that_makes_no_sense_is_refused_before_any_data_is_opened(
    bench: Bench, arguments: list[str], said: str
) -> None:
    refused = bench.call("paceline", "data", "partition", "mnist", "--folder", bench.folder / "none", *arguments)
    assert refused.ends() == 3
    assert said in refused.err
    assert refused.out == ""


def test_data_that_no_package_holds_are_asked_for_by_their_folder(bench: Bench) -> None:
    refused = bench.call("paceline", "data", "partition", "cifar100", "--clients", "4")
    assert refused.ends() == 3
    assert "no package is known that holds it; point `folder` at a folder with" in refused.err
