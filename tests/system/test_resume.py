# SPDX-License-Identifier: Apache-2.0
"""A host that is killed, at every point of a run: what was counted stays counted, and the end is that of an unbroken run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared

MORTAL = Path(__file__).parent / "mortal_host.py"
KILLED = -9
RUN = {"rounds": 2, "budget": 24, "policies": ["equal"]}
BOARDS = {"fast": Declared(speed=4.0), "middle": Declared(speed=2.0), "slow": Declared(speed=1.0)}


def mortal(bench: Bench, target: str, file: Path, *arguments: str | Path) -> int:
    """Run the host that kills itself at `target`; return its exit status."""
    name = f"mortal-{file.stem}-{len(bench.programs)}-{arguments[0]}"
    program = bench.start_python(name, MORTAL, target, file, *arguments, "--quiet")
    return program.ends()


def models(folder: Path) -> list[str | None]:
    """Return the hashes of the models that the rounds left, after checking the ledger's laws."""
    with Ledger(folder) as ledger:
        proof = ledger.verify()
        assert proof.ok, proof.faults
        assert ledger.run.ended is not None
        assert ledger.run.ended["ok"], ledger.run.ended
        return [row.model_sha256 for row in ledger.rounds()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str | None]]:
    """Return the points that a run passes, and its models."""
    with Bench(tmp_path_factory.mktemp("unbroken")) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        listed = bench.folder / "points"
        assert mortal(bench, "LIST", listed, "run", experiment, "--runs-dir", bench.folder / "runs") == 0
        return listed.read_text(encoding="utf-8").split(), models(bench.folder / "runs" / "exp-001" / "equal")


def kill_and_resume(folder: Path, points: Sequence[str], *arguments: str | Path) -> list[str | None]:
    """Kill the host at a point, its resumed lives at the further ones; let the last live on. Return the models."""
    with Bench(folder) as bench:
        experiment = bench.experiment("exp", RUN, fleet={"kind": "local", "profile": bench.profile(BOARDS)})
        runs = folder / "runs"
        run = runs / "exp-001"
        command: list[str | Path] = ["run", experiment, "--runs-dir", runs]
        for point in points:
            died = folder / f"died-{point.replace(':', '-')}"
            assert mortal(bench, point, died, *command, *arguments) == KILLED, f"never came to {point}"
            assert died.read_text(encoding="utf-8") == f"{point}\n"
            command = ["resume", run]
        assert mortal(bench, "NEVER", folder / "none", *command, *arguments) == 0
        return models(run / "equal")


def test_killed_at_every_write_and_after_every_message_a_run_resumes_to_the_same_model(
    unbroken: tuple[list[str], list[str | None]], tmp_path: Path
) -> None:
    points, wanted = unbroken
    kinds = {point.rpartition(":")[0] for point in points}
    assert {"commit", "committed", "said:assign", "said:answer", "heard:result", "heard:commit"} <= kinds

    def outcome(point: str) -> str:
        try:
            got = kill_and_resume(tmp_path / point.replace(":", "-"), [point])
        except AssertionError as error:
            return f"{point}: {error}"
        return "" if got == wanted else f"{point}: other models: {got} instead of {wanted}"

    with ThreadPoolExecutor(2) as pool:
        faults = [text for text in pool.map(outcome, points) if text]
    assert not faults, f"{len(faults)} of {len(points)} points:\n" + "\n".join(faults)
