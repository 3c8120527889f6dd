# SPDX-License-Identifier: Apache-2.0
"""Disks that are full, folders that cannot be written, files that rot: the old state stays whole, and a run goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline_host.comparison import held
from paceline_host.journal import JOURNAL, Journal
from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, until
from .test_resume import BOARDS, EVERY, FIRST, MORTAL, RUN, models, mortal

STORAGE = 10  # exit status
DISK_BYTES = 4 << 20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system of its own at `folder`; skip where nobody may mount."""
    as_root = [] if os.getuid() == 0 else ["sudo", "-n"]
    folder.mkdir()
    options = f"size={DISK_BYTES},mode=0777"
    mounted = subprocess.run(
        [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run([*as_root, "umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str | None]]:
    """Return the points at which a run writes, and its models."""
    with Bench(tmp_path_factory.mktemp("unbroken")) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        listed = bench.folder / "points"
        assert mortal(bench, "LIST", listed, "run", experiment, "--runs-dir", bench.folder / "runs") == 0
        points = listed.read_text(encoding="utf-8").split()
        writes = [
            point for point in points if point.partition(":")[0].partition("-")[0] in ("commit", "spool", "checkpoint")
        ]
        return writes, models(bench.folder / "runs" / "exp-001" / "equal")


@pytest.mark.in_turn
@pytest.mark.timeout(600)
def test_whenever_the_disk_is_full_the_journal_is_whole_and_the_run_goes_on_once_there_is_room(
    unbroken: tuple[list[str], list[str | None]], tmp_path: Path
) -> None:
    points, wanted = unbroken
    assert {point.partition(":")[0].partition("-")[0] for point in points} == {"commit", "spool", "checkpoint"}
    chosen = points[FIRST::EVERY]
    for point in chosen:
        with small_disk(tmp_path / point.replace(":", "-")) as disk, Bench(disk) as bench:
            experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
            ballast, run = disk / "ballast", disk / "runs" / "exp-001"
            arguments = ("run", experiment, "--runs-dir", disk / "runs", "--quiet")
            host = bench.start_python(f"full-{point.replace(':', '-')}", MORTAL, f"full@{point}", ballast, *arguments)
            status = host.ends()
            if status == 0:  # what it had left to write found room in pages that it held already
                assert models(run / "equal") == wanted
                continue
            assert status == STORAGE, f"{point}: status {status}"
            ballast.unlink()
            again = bench.start_python("again", MORTAL, "NEVER", disk / "none", "resume", run, "--quiet")
            assert again.ends() == 0, f"{point}: {again.err}"
            assert models(run / "equal") == wanted, point


def test_a_full_disk_is_told_in_one_sentence_with_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, Bench(tmp_path / "bench") as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        arguments = ("run", experiment, "--runs-dir", disk / "runs", "--quiet")
        host = bench.start_python("full", MORTAL, "full@commit-StoreResult:2", disk / "ballast", *arguments)
        assert host.ends() == STORAGE
        (line,) = [line for line in host.err.splitlines() if "disk is full" in line]
        assert "the disk is full; make room" in line
        assert line.endswith(f"go on with: paceline resume {disk / 'runs' / 'exp-001'}")
        assert "Traceback" not in host.err


def test_a_checkpoint_that_rotted_is_made_anew_from_the_journal(tmp_path: Path) -> None:
    """The bytes are the same as before: it is the round's updates, added in the same order."""
    with Bench(tmp_path) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        died = tmp_path / "died"
        mortal(bench, "said:assign:5", died, "run", experiment, "--runs-dir", tmp_path / "runs")
        run = tmp_path / "runs" / "exp-001"
        (file,) = (run / "equal" / "checkpoints").glob("*.safetensors")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        again = bench.start("again", "paceline", "resume", run, "--quiet")
        assert again.ends() == 0, again.err
        assert "is damaged: its bytes do not match its hash" in again.err
        assert "making it anew" in again.err
        with Ledger(run / "equal") as ledger:
            assert ledger.rounds()[1].base_sha256 == ledger.rounds()[0].model_sha256
        assert len(models(run / "equal")) == 2


def test_a_run_that_another_process_writes_is_not_taken_up(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        mortal(bench, "said:assign:2", tmp_path / "died", "run", experiment, "--runs-dir", tmp_path / "runs")
        run = tmp_path / "runs" / "exp-001"
        with Journal.open(run / "equal"):
            refused = bench.call("paceline", "resume", run)
        assert refused.ends() == STORAGE
        assert "a process is still writing this run" in refused.err
        with held(run):
            refused = bench.call("paceline", "resume", run)
        assert refused.ends() == STORAGE
        assert "a process is still working on this comparison" in refused.err
        assert bench.start("again", "paceline", "resume", run, "--quiet").ends() == 0


def test_a_folder_that_cannot_be_written_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    """As another user than root, whom no permission stops; a file system mounted read-only stops everybody."""
    with small_disk(tmp_path / "disk") as disk, Bench(tmp_path / "bench") as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        mortal(bench, "said:assign:5", tmp_path / "died", "run", experiment, "--runs-dir", disk / "runs")
        run = disk / "runs" / "exp-001"
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".log"}
        as_root = [] if os.getuid() == 0 else ["sudo", "-n"]
        until("the fleet to follow its host", lambda: not bench.left())
        # A process gives up its files a moment after its environment: until then the mount is busy.
        remount = [*as_root, "mount", "-o", "remount,ro", str(disk)]
        until("the disk to be read-only", lambda: subprocess.run(remount, check=False, stderr=subprocess.DEVNULL).returncode == 0)
        try:
            commands: list[list[str | Path]] = [["resume", run], ["run", experiment, "--runs-dir", disk / "runs"]]
            for arguments in commands:
                refused = bench.call("paceline", *arguments, "--quiet")
                assert refused.ends() == STORAGE, refused.err
                assert "Traceback" not in refused.err
                assert str(disk) in refused.err
            shown = bench.call("paceline", "report", run)
            assert shown.ends() == 0, shown.err
            assert "makespan, whole run" in shown.out
            assert f"no picture and no page: {run}" in shown.err
        finally:
            subprocess.run([*as_root, "mount", "-o", "remount,rw", str(disk)], check=True)
        assert {path: path.read_bytes() for path in before} == before
        assert bench.start("again", "paceline", "resume", run, "--quiet").ends() == 0


def test_an_experiment_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        mortal(bench, "said:assign:2", tmp_path / "died", "run", experiment, "--runs-dir", tmp_path / "runs")
        run = tmp_path / "runs" / "exp-001"
        text = (run / "experiment.toml").read_text(encoding="utf-8")
        (run / "experiment.toml").write_text(text.replace("budget = 24", "budget = 27"), encoding="utf-8")
        bench.profile({**BOARDS, "late": Declared()})
        refused = bench.call("paceline", "resume", run)
        assert refused.ends() == 3
        assert "budget is now 27, the run was begun with 24" in refused.err
        assert "the boards are now fast, middle, slow, late" in refused.err
        (run / "experiment.toml").write_text(text.replace("minimum = 1\n", "minimum = 2\n"), encoding="utf-8")
        bench.profile(BOARDS)
        refused = bench.call("paceline", "resume", run)
        assert refused.ends() == 3
        assert "minimum is now 2, the run was begun with 1" in refused.err
        assert "starting" not in refused.err, "it is said before a board is started"


def test_what_holds_no_run_is_not_resumed(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        empty = bench.call("paceline", "resume", tmp_path)
        assert empty.ends() == STORAGE
        assert "nothing was begun there" in empty.err
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        assert bench.host(experiment, "--quiet").ends() == 0
        run = tmp_path / "runs" / "exp-001"
        done = bench.call("paceline", "resume", run)
        assert done.ends() == 0
        assert "every run is finished, nothing is left to do" in done.err
        shutil.copy(__file__, run / "equal" / JOURNAL)
        broken = bench.call("paceline", "resume", run)
        assert broken.ends() == STORAGE
        assert "is not a journal of paceline, or is damaged" in broken.err


def test_a_run_goes_on_from_any_working_directory(tmp_path: Path) -> None:
    """Relative paths in an experiment start at its folder, and what is kept beside the runs is absolute."""
    with Bench(tmp_path) as bench:
        bench.profile(BOARDS)
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": "profile.toml"})
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        died = bench.start_python(
            "dies", MORTAL, "said:assign:5", tmp_path / "died", "run", experiment, "--runs-dir", elsewhere / "runs",
            "--quiet", cwd=elsewhere,
        )  # fmt: skip
        assert died.ends() == -9
        again = bench.start("again", "paceline", "resume", "runs/exp-001", "--quiet", cwd=elsewhere)
        assert again.ends() == 0, again.err


def spoiled(bench: Bench, point: str = "said:assign:5") -> Path:
    """Let a run's host die; return the comparison's folder, for a test to spoil."""
    experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
    assert mortal(bench, point, bench.folder / "died", "run", experiment, "--runs-dir", bench.folder / "runs") == -9
    return bench.folder / "runs" / "exp-001"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("equal/journal.sqlite*", "holds models or updates of a run, but no journal.sqlite that knows them"),
        (
            "equal/journal.sqlite-*",
            "has the model of round 1, but its journal ends with round 0; restore journal.sqlite",
        ),
        ("equal/updates.spool", "and it holds updates that are counted; restore it"),
        ("experiment.toml", "its experiment.toml is gone; put it back, for instance as a copy of"),
    ],
)
def test_what_is_gone_is_named_and_nothing_that_is_left_is_touched(tmp_path: Path, what: str, says: str) -> None:
    with Bench(tmp_path) as bench:
        run = spoiled(bench, "committed-StoreResult:5")  # two of the second round are counted, one is not
        for path in run.glob(what):
            path.unlink()
        left = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
        assert left
        refused = bench.call("paceline", "resume", run)
        assert refused.ends() == STORAGE, refused.err
        assert says in refused.err
        assert "then go on with" not in refused.err, "that would not help"
        assert "Traceback" not in refused.err
        assert {path: path.read_bytes() for path in run.rglob("*.safetensors")} == left


def test_a_damaged_key_of_an_emulated_board_is_made_anew(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        run = spoiled(bench)
        key = run / "fleet" / "fast" / "fast.key"
        text = key.read_text(encoding="ascii")
        key.write_text(("0" if text[0] != "0" else "1") + text[1:], encoding="ascii")
        again = bench.start("again", "paceline", "resume", run, "--quiet")
        assert again.ends() == 0, again.err
        assert "not ready" not in again.err
        assert len(models(run / "equal")) == 2


def test_a_run_is_not_gone_on_with_over_another_model_or_another_fleet(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        run = spoiled(bench)
        text = (run / "experiment.toml").read_text(encoding="utf-8")
        (run / "experiment.toml").write_text(text.replace("batch = 8", "batch = 8\nballast = 1000"), encoding="utf-8")
        refused = bench.call("paceline", "resume", run)
        assert refused.ends() == 3, refused.err
        assert "options is now {'batch': 8, 'ballast': 1000}" in refused.err
        (run / "experiment.toml").write_text(text, encoding="utf-8")
        bench.profile({**BOARDS, "slow": Declared(speed=0.5)})
        refused = bench.call("paceline", "resume", run)
        assert refused.ends() == 3, refused.err
        assert "the fleet's profile is not the one that the run was begun with" in refused.err


def test_odd_names_of_folders_work_or_are_refused(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        for name in ("-dash", "with blanks and ü"):
            went = bench.call("paceline", "run", experiment, "--quiet", f"--runs-dir={name}")
            assert went.ends() == 0, went.err
        refused = bench.call("paceline", "run", experiment, "--runs-dir=" + os.fsdecode(b"bad-\xff"))
        assert refused.ends() == STORAGE
        assert "is not UTF-8" in refused.err
        assert "Traceback" not in refused.err
