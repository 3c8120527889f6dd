# SPDX-License-Identifier: Apache-2.0
"""Regime async over real processes: no sample is lost with a board or a host, and the journal makes the model again."""

from __future__ import annotations

import json
import os
import signal
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.tasks import make
from paceline_host import checkpoint
from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared
from .test_resume import CHUNKY, KILLED, mortal

pytestmark = pytest.mark.in_turn  # each takes long

BOARDS = {"fast": Declared(speed=4.0), "middle": Declared(speed=2.0), "slow": Declared(speed=1.0)}
RUN = {"regime": "async", "rounds": 3, "budget": 48, "policies": ["fedasync-poly"], "chunk_bytes": 1 << 15}
WEIGHTS = struct.Struct("<10f")
RUN_FOLDER = Path("runs") / "exp-001" / "fedasync-poly"


def experiment(bench: Bench, **changes: object) -> Path:
    fleet = {"kind": "local", "profile": bench.profile(BOARDS)}
    return bench.experiment("exp", {**RUN, **changes}, task=CHUNKY, fleet=fleet, more="[mixing]\nslice = 6")


def check(folder: Path, rounds: int = 3) -> None:
    """Assert the ledger's laws, and that the last model is the updates in their order by the published rule."""
    with Ledger(folder) as ledger:
        proof = ledger.verify()
        assert (proof.faults, proof.rounds, proof.samples) == ((), rounds, rounds * 48)
        accepted = {(c.round, c.slice): c for c in ledger.contributions(verdict="accepted")}
        task = make("linear", dict(ledger.run.options), ledger.run.seed, None)
        model = WEIGHTS.unpack_from(task.initial())
        for mix in ledger.mixes():
            update = WEIGHTS.unpack_from(ledger.update(accepted[mix.round, mix.slice]))
            weight = 0.6 * (mix.age + 1) ** -0.5
            model = WEIGHTS.unpack(
                WEIGHTS.pack(*((1.0 - weight) * x + weight * y for x, y in zip(model, update, strict=True)))
            )
        last = ledger.rounds()[-1]
    found, digest = checkpoint.load(checkpoint.path(folder, rounds), task.manifest)
    assert digest == last.model_sha256
    assert WEIGHTS.unpack_from(found) == model, "bit for bit"


def test_a_host_killed_at_its_writes_and_messages_resumes_to_the_model_that_the_journal_makes(tmp_path: Path) -> None:
    with Bench(tmp_path / "whole") as bench:
        listed = bench.folder / "points"
        assert mortal(bench, "LIST", listed, "run", experiment(bench), "--runs-dir", bench.folder / "runs") == 0
        check(bench.folder / RUN_FOLDER)
        passed = listed.read_text(encoding="utf-8").split()
    kinds = (
        "commit-StoreSlices", "commit-StoreResult", "committed-StoreResult", "spool", "checkpoint",
        "commit-FinishRound", "committed-FinishRound", "said:assign", "heard:result", "heard:credit",
    )  # fmt: skip
    points = []
    for kind in kinds:
        own = [point for point in passed if point.rpartition(":")[0] == kind]
        assert own, f"{kind} never came"
        points.append(own[len(own) // 2])

    def outcome(point: str) -> str:
        with Bench(tmp_path / point.replace(":", "-")) as bench:
            command: list[str | Path] = ["run", experiment(bench), "--runs-dir", bench.folder / "runs"]
            try:
                assert mortal(bench, point, bench.folder / "died", *command) == KILLED
                before = counted(bench.folder / RUN_FOLDER)
                resumed = mortal(bench, "NEVER", bench.folder / "none", "resume", bench.folder / "runs" / "exp-001")
                assert resumed == 0
                assert counted(bench.folder / RUN_FOLDER)[: len(before)] == before, "what was mixed in stays mixed in"
                check(bench.folder / RUN_FOLDER)
            except AssertionError as error:
                return f"{point}: {error}"
        return ""

    with ThreadPoolExecutor(2) as pool:
        found = [text for text in pool.map(outcome, points) if text]
    assert not found, "\n".join(found)


def counted(folder: Path) -> list[tuple[int, int, int, float]]:
    """Return what the journal says was mixed in, in order."""
    with Ledger(folder) as ledger:
        return [(mix.round, mix.slice, mix.age, mix.weight) for mix in ledger.mixes()]


def test_an_agent_and_a_trainer_die_and_no_sample_is_lost(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, rounds=20))
        run = "exp-001/fedasync-poly"
        bench.watch(run, "the first rounds to close", lambda ledger: len(ledger.mixes()) > 12, host)
        with Ledger(bench.folder / "runs" / run) as ledger:
            boards = {board.name: board for board in ledger.boards()}
        slow, middle = boards["slow"].agent_pid, boards["middle"].trainer_pid
        assert slow is not None
        assert middle is not None
        os.kill(slow, signal.SIGKILL)
        os.kill(middle, signal.SIGKILL)
        assert host.ends() == 0, host.err
        assert "slow: its agent process ended by SIGKILL" in host.err
        check(bench.folder / "runs" / run, rounds=20)


def test_ctrl_c_ends_it_in_order_and_the_rest_is_done_later(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, rounds=20))
        run = "exp-001/fedasync-poly"
        bench.watch(run, "the first rounds to close", lambda ledger: len(ledger.mixes()) > 12, host)
        host.signal(signal.SIGINT)
        assert host.ends() == 130, host.err
        with Ledger(bench.folder / "runs" / run) as ledger:
            assert ledger.verify().faults == ()
            assert {energy.board for energy in ledger.energy()} == {0, 1, 2}
        again = bench.call("paceline", "resume", bench.folder / "runs" / "exp-001")
        assert again.ends() == 0, again.err
        check(bench.folder / "runs" / run, rounds=20)
        shown = bench.call("paceline", "report", bench.folder / "runs" / "exp-001", "--json")
        assert shown.ends() == 0, shown.err
        (found,) = json.loads(shown.out)["runs"]
        assert sum(found["mixing"]["ages"].values()) == 20 * 48 / 6
        assert found["resumed"]
