# SPDX-License-Identifier: Apache-2.0
"""Silos for real: processes, sockets, a gloo group in each silo, a small set of pictures. What they train is what one
process makes by stepping over each silo's union batches and averaging, whoever is slow, killed or late on the way.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import permutation
from paceline.silos import Dealing
from paceline.tasks import make
from paceline.uneven import Deal
from paceline_host import checkpoint
from paceline_host.ledger import Ledger
from paceline_host.report import load_report, render

from .fleet_tools import Bench, Declared, until
from .test_ddp import sockets
from .test_resume import KILLED, mortal

BOARDS = {
    "fast": Declared(speed=400.0), "lone": Declared(speed=200.0), "slow": Declared(speed=100.0),
}  # fmt: skip
SILOS = {"pair": (("fast", "slow"), 40), "single": (("lone",), 15)}  # interleaved on purpose: lone is board 1
STEPS, ROUNDS = 5, 3
TASK = {"name": "mnist", "model": "cnn", "precision": "float64", "learning_rate": 0.1, "momentum": 0.9}
SLOW = {"reference_seconds_per_sample": 10.0}  # a step of the slow board takes 0.4 s
PACED = {"reference_seconds_per_sample": 1.0}  # far above what this machine needs for a sample
RUN = {"regime": "hfl", "rounds": ROUNDS, "policies": ["equal"], "seed": 3, "steps": STEPS}
SEED_OF_DEAL = 1
WITHIN_S = 90.0  # a bound against hanging

Weights = np.ndarray[Any, Any]


def silo_tables(samples: Mapping[str, object] | None = None) -> str:
    """Return the silos as TOML."""
    lines = []
    for name, (boards, budget) in SILOS.items():
        lines += ["[[silo]]", f'name = "{name}"', f"boards = {json.dumps(boards)}", f"budget = {budget}"]
        lines += [f"samples = {samples[name]}"] if samples and name in samples else []
    return "\n".join(lines)


def experiment(
    bench: Bench, pictures: Path, run: Mapping[str, object] | None = None, *,
    task: Mapping[str, object] | None = None, silos: str = "",
) -> Path:  # fmt: skip
    """Write an experiment of silos."""
    more = f'[data]\nfolder = "{pictures}"\n{silos or silo_tables()}'
    return bench.experiment(
        "exp", {**RUN, **(run or {})}, task={**TASK, **(task or {})}, more=more,
        fleet={"kind": "local", "profile": bench.profile(BOARDS)},
    )  # fmt: skip


def trained_alone(
    pictures: Path, members: Sequence[Sequence[int]], lapsed: Sequence[tuple[int, int]] = ()
) -> list[Weights]:
    """Train as one process would: each silo's union batches, then the mean by samples. `lapsed`: (round, silo)."""
    import torch

    from paceline.tasks.modules import Trainable

    task = make("mnist", {key: value for key, value in TASK.items() if key != "name"}, 3, pictures)
    trainable = Trainable(task)
    size = trainable.model_bytes
    state = bytes(trainable.initial_state())
    memory, left = state[size:], []
    for number in range(ROUNDS):
        total, mean = 0, np.zeros(size // 8)
        for silo, ((_, budget), mine) in enumerate(zip(SILOS.values(), members, strict=True)):
            if (number + 1, silo) in lapsed:
                continue
            trainable.load_state(state)
            deal = Deal([budget], STEPS)
            for step in range(STEPS):
                places = [number * budget + place for place in deal.places(step, 0)]
                indices = [int(mine[permutation(3, p // len(mine), len(mine))[p % len(mine)]]) for p in places]
                x, y = trainable.batch(indices, 0)
                trainable.flat.gradient.zero_()
                torch.nn.functional.cross_entropy(trainable.flat.module(x), y).backward()  # type: ignore[no-untyped-call]
                trainable.optimiser.step(trainable.flat.gradient)
            mean += budget * np.frombuffer(bytes(trainable.state())[:size], np.float64)
            total += budget
        left.append(mean / total)
        state = left[-1].tobytes() + memory
    return left


@pytest.fixture(scope="module")
def dealt(pictures: Path) -> list[Sequence[int]]:
    """Return the sample numbers of each silo, as they are dealt by default."""
    task = make("mnist", {key: value for key, value in TASK.items() if key != "name"}, 3, pictures)
    return Dealing(seed=SEED_OF_DEAL).members(task, len(SILOS))


@pytest.fixture(scope="module")
def alone(pictures: Path, dealt: list[Sequence[int]]) -> list[Weights]:
    return trained_alone(pictures, dealt)


def models(folder: Path, pictures: Path, samples: int = ROUNDS * 55) -> list[Weights]:
    """Return the weights after each round, after checking the ledger's laws."""
    task = make("mnist", {key: value for key, value in TASK.items() if key != "name"}, 3, pictures)
    with Ledger(folder) as ledger:
        proof = ledger.verify()
        assert proof.ok, proof.faults
        assert proof.samples == samples
        assert ledger.run.ended is not None
        assert ledger.run.ended["ok"], ledger.run.ended
        counted = [ledger.counted(row.round) for row in ledger.rounds()]
        assert all(set(one.values()) == {1} for one in counted)
    return [
        np.frombuffer(checkpoint.load(checkpoint.path(folder, n + 1), task.manifest)[0], np.float64)
        for n in range(ROUNDS)
    ]


def same(found: list[Weights], expected: list[Weights]) -> bool:
    return all(float(np.abs(a - b).max()) < 1e-12 for a, b in zip(found, expected, strict=True))


def test_any_policy_trains_what_one_process_would_by_silos(
    tmp_path: Path, pictures: Path, alone: list[Weights]
) -> None:
    policies = ["equal", "time", "ema-batch:every=2", "frontier:energy"]
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, {"policies": policies}, task=PACED))
        assert host.ends(WITHIN_S) == 0, host.err
        folder = bench.folder / "runs" / "exp-001"
        for policy in policies:
            assert same(models(folder / policy.replace(":", "-"), pictures), alone), policy
        with Ledger(folder / "time") as ledger:
            shares = {s.board: s.samples for s in ledger.slices(ROUNDS) if s.redealt_from is None}
        assert shares[0] + shares[2] == 40
        assert shares[0] > shares[2], "time has given the faster board of the pair no more"
        assert shares[1] == 15
        text = render(load_report(folder))
        for row in ("silo pair: makespan", "silo single: makespan", "  then waits for the other silos"):
            assert row in text
        explained = bench.call("paceline", "explain", folder / "time", "--round", "3")
        assert explained.ends(WITHIN_S) == 0, explained.err
        assert "silo single: 15 samples, which are dealt in it alone" in explained.out
        foretold = bench.call("paceline", "whatif", folder / "equal", "--policy", "time")
        assert foretold.ends(WITHIN_S) == 0, foretold.err


@pytest.mark.parametrize(
    ("samples", "members"),
    [
        ({"pair": "[0, 50]", "single": "[50, 90]"}, [range(50), range(50, 90)]),
        ({"pair": "90", "single": "90"}, [range(90), range(90)]),
    ],
    ids=["ranges", "own"],
)
def test_silos_may_name_ranges_or_have_data_of_their_own(
    tmp_path: Path, pictures: Path, samples: dict[str, str], members: list[range]
) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, silos=silo_tables(samples)))
        assert host.ends(WITHIN_S) == 0, host.err
        folder = bench.folder / "runs" / "exp-001" / "equal"
        assert same(models(folder, pictures), trained_alone(pictures, members))


def pids_in_a_step(bench: Bench, host: Any) -> dict[str, tuple[int, int]]:
    """Wait until the pair steps; return the processes of each board's agent and trainer."""
    bench.watch("exp-001/equal", "a plan", lambda ledger: ledger.slices(1), host)
    pids: dict[str, tuple[int, int]] = {}

    def ready(ledger: Ledger) -> bool:
        pids.update({b.name: (b.agent_pid or 0, b.trainer_pid) for b in ledger.boards() if b.trainer_pid is not None})
        return len(pids) == len(BOARDS)

    bench.watch("exp-001/equal", "trainers", ready, host)
    until("connections to the other rank", lambda: sockets(pids["slow"][1]) > 2)
    return pids


def test_a_leader_that_is_killed_changes_nothing_of_what_is_trained(
    tmp_path: Path, pictures: Path, alone: list[Weights]
) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, task=SLOW))
        os.kill(pids_in_a_step(bench, host)["fast"][1], signal.SIGKILL)  # the first rank: it holds the pair's store
        assert host.ends(WITHIN_S) == 0, host.err
        folder = bench.folder / "runs" / "exp-001" / "equal"
        assert same(models(folder, pictures), alone)
        with Ledger(folder) as ledger:
            assert {c.board for c in ledger.contributions() if c.verdict != "accepted"} == {0}
            assert not ledger.lapsed()


def test_a_silo_that_is_lost_lapses_and_the_others_go_on(
    tmp_path: Path, pictures: Path, dealt: list[Sequence[int]]
) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, task=SLOW))
        pids = pids_in_a_step(bench, host)
        os.kill(pids["lone"][0], signal.SIGKILL)
        assert host.ends(WITHIN_S) == 0, host.err
        folder = bench.folder / "runs" / "exp-001"
        with Ledger(folder / "equal") as ledger:
            lapsed = [(number, 1) for number, silos in ledger.lapsed().items() if "single" in silos]
        assert {2, 3} <= {number for number, _ in lapsed}
        found = models(folder / "equal", pictures, ROUNDS * 55 - 15 * len(lapsed))
        assert same(found, trained_alone(pictures, dealt, lapsed))
        assert f"silo single: its 15 samples lapse in round {ROUNDS}" in host.err
        assert "silo single took no part in round" in render(load_report(folder))


def test_a_host_killed_in_a_round_comes_to_the_same_bits(tmp_path: Path, pictures: Path) -> None:
    with Bench(tmp_path) as bench:
        file = experiment(bench, pictures)
        listed = bench.folder / "points"
        assert mortal(bench, "LIST", listed, "run", file, "--runs-dir", bench.folder / "runs") == 0
        whole = models(bench.folder / "runs" / "exp-001" / "equal", pictures)
        points = [p for p in listed.read_text("utf-8").split() if "CloseSilos" in p or "heard:commit" in p]
        for number, point in enumerate([points[len(points) // 2], "committed-CloseSilos:2"]):
            again = bench.folder / f"again-{number}"
            assert mortal(bench, point, bench.folder / f"hit-{number}", "run", file, "--runs-dir", again) == KILLED
            resumed = bench.start(f"resume-{number}", "paceline", "resume", again / "exp-001")
            assert resumed.ends(WITHIN_S) == 0, resumed.err
            assert all(
                (a == b).all() for a, b in zip(models(again / "exp-001" / "equal", pictures), whole, strict=True)
            )


def test_silos_over_other_boards_than_the_fleets_are_refused_before_anything_starts(
    tmp_path: Path, pictures: Path
) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, silos=silo_tables().replace('"lone"', '"lome"')))
        assert host.ends(WITHIN_S) == 3
        assert "silo 'single': there is no board 'lome' in the fleet; did you mean lone?" in host.err
        assert not (bench.folder / "runs").exists()
