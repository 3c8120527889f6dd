# SPDX-License-Identifier: Apache-2.0
"""Synchronised ranks for real: processes, sockets, gloo, a small set of pictures. What they train is what one process
would train on the union of their batches, whoever is slow, killed or stopped on the way.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import permutation
from paceline.tasks import make
from paceline.uneven import Deal
from paceline_host import checkpoint
from paceline_host.ledger import Ledger
from paceline_host.report import load_report, render

from .fleet_tools import TRAIN, Bench, Declared, until
from .test_resume import KILLED, mortal

PLANTED = Path(__file__).parent / "planted"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
BOARDS = {"fast": Declared(speed=400.0), "middle": Declared(speed=200.0), "slow": Declared(speed=100.0)}
STEPS, ROUNDS, BUDGET = 5, 2, 60
POLICIES = ["equal", "time", "ema-batch", "ema-batch:every=2"]
TASK = {"name": "mnist", "model": "cnn", "precision": "float64", "learning_rate": 0.1, "momentum": 0.9}
RUN = {"regime": "ddp", "rounds": ROUNDS, "policies": ["equal"], "seed": 3, "budget": BUDGET, "steps": STEPS}


def experiment(
    bench: Bench, pictures: Path, run: Mapping[str, object] | None = None, *,
    task: Mapping[str, object] | None = None, boards: Mapping[str, Declared] = BOARDS,
) -> Path:  # fmt: skip
    """Write an experiment of synchronised ranks."""
    return bench.experiment(
        "exp", {**RUN, **(run or {})}, task={**TASK, **(task or {})}, more=f'[data]\nfolder = "{pictures}"',
        fleet={"kind": "local", "profile": bench.profile(boards)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(pictures: Path) -> list[np.ndarray[Any, Any]]:
    return trained_alone(pictures, ROUNDS)


def trained_alone(pictures: Path, rounds: int, learning_rate: float = 0.1) -> list[np.ndarray[Any, Any]]:
    """Train as one process would: the union batches, one mean loss. Return the weights after each round."""
    import torch

    from paceline.tasks.modules import Trainable

    options = {**{key: value for key, value in TASK.items() if key != "name"}, "learning_rate": learning_rate}
    task = make("mnist", options, 3, pictures)
    trainable = Trainable(task)
    trainable.initial_state()
    deal = Deal([BUDGET], STEPS)
    left = []
    for number in range(rounds):
        for step in range(STEPS):
            places = [number * BUDGET + place for place in deal.places(step, 0)]
            indices = [permutation(3, p // TRAIN, TRAIN)[p % TRAIN] for p in places]
            x, y = trainable.batch(indices, 0)
            trainable.flat.gradient.zero_()
            torch.nn.functional.cross_entropy(trainable.flat.module(x), y).backward()  # type: ignore[no-untyped-call]
            trainable.optimiser.step(trainable.flat.gradient)
        left.append(np.frombuffer(bytes(trainable.state())[: trainable.model_bytes], np.float64))
    return left


def models(folder: Path, pictures: Path, rounds: int = ROUNDS) -> list[np.ndarray[Any, Any]]:
    """Return the weights after each round, after checking the ledger's laws."""
    task = make("mnist", {key: value for key, value in TASK.items() if key != "name"}, 3, pictures)
    with Ledger(folder) as ledger:
        proof = ledger.verify()
        assert proof.ok, proof.faults
        assert proof.samples == rounds * BUDGET
        assert ledger.run.ended is not None
        assert ledger.run.ended["ok"], ledger.run.ended
        counted = [ledger.counted(row.round) for row in ledger.rounds()]
        assert all(set(one.values()) == {1} for one in counted)
    return [
        np.frombuffer(checkpoint.load(checkpoint.path(folder, n + 1), task.manifest)[0], np.float64)
        for n in range(rounds)
    ]


def same(found: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> bool:
    return all(float(np.abs(a - b).max()) < 1e-12 for a, b in zip(found, expected, strict=True))


def test_any_policy_trains_what_one_process_would(
    tmp_path: Path, pictures: Path, alone: list[np.ndarray[Any, Any]]
) -> None:
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, {"policies": POLICIES}))
        assert host.ends() == 0, host.err
        folder = bench.folder / "runs" / "exp-001"
        for policy in POLICIES:
            assert same(models(folder / policy.replace(":", "-"), pictures), alone), policy
        text = render(load_report(folder))
        for row in ("CV of forward times of a step", "slowest rank of each step", "drift found at rounds' begins"):
            assert row in text
        ranks = load_report(folder).runs[0].ranks
        assert ranks is not None
        assert ranks.steps == STEPS
        assert ranks.drift == 0
        assert ranks.forward_step_cv is not None


def in_a_step(bench: Bench, host: Any) -> int:
    """Wait until ranks step; return the process of the slow board's trainer."""
    bench.watch("exp-001/equal", "a plan", lambda ledger: ledger.slices(1), host)
    pids: dict[str, int] = {}

    def ready(ledger: Ledger) -> bool:
        pids.update({b.name: b.trainer_pid for b in ledger.boards() if b.trainer_pid is not None})
        return len(pids) == len(BOARDS)

    bench.watch("exp-001/equal", "trainers", ready, host)
    until("connections to the other ranks", lambda: sockets(pids["slow"]) > 4)
    return pids["slow"]


def sockets(pid: int) -> int:
    """Return how many sockets a process has: two before it has met the others, six and more in a group."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links.append(os.readlink(fd))
    return sum(link.startswith("socket:") for link in links)


@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "trainer"), (signal.SIGSTOP, "sign of where it is")])
def test_a_rank_that_is_killed_or_stopped_changes_nothing_of_what_is_trained(
    tmp_path: Path, pictures: Path, alone: list[np.ndarray[Any, Any]], number: int, said: str
) -> None:
    with Bench(tmp_path) as bench:
        slow = {"reference_seconds_per_sample": 6.0}  # a step of the slow board takes a quarter of a second
        host = bench.host(experiment(bench, pictures, {"patience_s": 2.0}, task=slow))
        pid = in_a_step(bench, host)
        try:
            os.kill(pid, number)
            assert host.ends() == 0, host.err
        finally:
            with suppress(ProcessLookupError):  # its agent has killed it when it did not let go of its work
                os.kill(pid, signal.SIGKILL)
        assert said in host.err
        folder = bench.folder / "runs" / "exp-001" / "equal"
        assert same(models(folder, pictures), alone)
        with Ledger(folder) as ledger:
            assert any(c.verdict != "accepted" for c in ledger.contributions())
            waited = [event.board for event in ledger.events("waited")]
            assert waited == ([2] if number == signal.SIGSTOP else [])
            formed = [str(event.detail) for event in ledger.events("formed")]
            assert formed
            assert "again a group, of 2 ranks" in formed[-1]
        whatif = bench.call("paceline", "whatif", folder, "--policy", "time", "--json")
        assert whatif.ends() == 0, whatif.err
        found = json.loads(whatif.out)
        assert found["notes"][0] == "round 1: slow lost work in it; it is told as it was planned, as if nobody had"
        assert sum(found["recorded"]["shares"]) == sum(found["policies"][0]["shares"]) == BUDGET
        assert found["policies"][0]["seconds"] > 0


def test_a_rank_whose_step_outlasts_the_patience_is_told_by_name(
    tmp_path: Path, pictures: Path, alone: list[np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("PACELINE_PLANTED", "still")
    monkeypatch.setenv("PACELINE_PLANT", str(mark))
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, {"patience_s": 3.0}))
        until("a rank to stand still", mark.exists)
        try:
            bench.watch("exp-001/equal", "the others to give up", lambda ledger: ledger.events("broken"), host)
        finally:
            os.kill(int(mark.read_text("utf-8")), signal.SIGCONT)
        assert host.ends() == 0, host.err
        folder = bench.folder / "runs" / "exp-001"
        assert same(models(folder / "equal", pictures), alone)
        with Ledger(folder / "equal") as ledger:
            ((board, text),) = [(event.board, str(event.detail)) for event in ledger.events("waited")]
            assert all(c.verdict == "accepted" for c in ledger.contributions()), "it is late, and not lost"
        assert board == 2
        assert text.startswith("round 1: the others waited 3 s for slow's part of step 1: it needed ")
        assert text in host.err
        assert "waited a whole patience for the step of slow (1 times)" in render(load_report(folder)).replace(
            "\n  ", " "
        )


def test_a_board_that_stands_still_beyond_the_patience_and_comes_to_is_in_again(tmp_path: Path, pictures: Path) -> None:
    rounds = 6
    with Bench(tmp_path) as bench:
        slow = {"reference_seconds_per_sample": 6.0}
        host = bench.host(experiment(bench, pictures, {"patience_s": 2.0, "rounds": rounds}, task=slow))
        trainer = in_a_step(bench, host)
        with Ledger(bench.folder / "runs" / "exp-001" / "equal") as ledger:
            agent = next(board.agent_pid for board in ledger.boards() if board.name == "slow")
        assert agent is not None
        for pid in (agent, trainer):
            os.kill(pid, signal.SIGSTOP)
        try:
            bench.watch(
                "exp-001/equal", "its lease to be lost",
                lambda ledger: [c for c in ledger.contributions() if (c.board, c.verdict) == (2, "lost")], host,
            )  # fmt: skip
        finally:
            for pid in (agent, trainer):
                os.kill(pid, signal.SIGCONT)
        assert host.ends() == 0, host.err
        folder = bench.folder / "runs" / "exp-001" / "equal"
        assert same(models(folder, pictures, rounds), trained_alone(pictures, rounds))
        with Ledger(folder) as ledger:
            assert 2 not in {c.board for c in ledger.contributions(1, "accepted") if c.compute_us}
            assert {c.board for c in ledger.contributions(rounds, "accepted")} == {0, 1, 2}


def test_a_rank_that_dies_or_diverges_in_any_phase_of_a_step_changes_nothing_of_what_is_trained(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, marks = 11, tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("PACELINE_PLANTED", "ranks")
    monkeypatch.setenv("PACELINE_PLANT", str(marks))
    with Bench(tmp_path) as bench:
        rate = 0.01  # rounding grows tenfold a round at 0.1, and these are many
        slow = {"reference_seconds_per_sample": 6.0}  # so that who was lost is back before the rounds are over
        task = {**slow, "learning_rate": rate}
        host = bench.host(experiment(bench, pictures, {"rounds": rounds, "patience_s": 6.0}, task=task))
        assert host.ends(120.0) == 0, host.err
        assert {path.name for path in marks.iterdir()} == {"forward", "backward", "all-reduce", "nan", "between"}
        folder = bench.folder / "runs" / "exp-001" / "equal"
        assert same(models(folder, pictures, rounds), trained_alone(pictures, rounds, rate))
        with Ledger(folder) as ledger:
            lost = [c for c in ledger.contributions() if c.verdict != "accepted"]
            assert len(lost) == len({c.round for c in lost}) == 5
            assert sum("the loss is not finite" in c.reason for c in lost) == 1
            assert sum("the trainer process is gone" in c.reason for c in lost) == 4
            whole = {c.board for c in ledger.contributions(rounds, "accepted")}
            assert whole == {0, 1, 2}, "who was lost in a round is back in the next one"


def test_a_host_killed_in_a_round_tells_its_policy_of_the_steps_that_were_done(
    tmp_path: Path, pictures: Path, alone: list[np.ndarray[Any, Any]]
) -> None:
    with Bench(tmp_path) as bench:
        paced = {"reference_seconds_per_sample": 6.0}
        file = experiment(bench, pictures, {"policies": ["ema-batch:every=2"]}, task=paced)
        listed, name, bits = bench.folder / "points", "ema-batch-every=2", dict[str, list[bytes]]()
        assert mortal(bench, "LIST", listed, "run", file, "--runs-dir", bench.folder / "runs") == 0
        with Ledger(bench.folder / "runs" / "exp-001" / name) as ledger:
            last = {c.board: c.samples for c in sorted(ledger.contributions(1, "accepted"), key=lambda c: c.slice)}
            assert last[0] > last[1] > last[2], "the first round's last steps are divided as its first ones were"
            assert len(ledger.events("paces")) == ROUNDS * 3
        points = [p for p in listed.read_text("utf-8").split() if "tensor" in p]
        hit = bench.folder / "hit"
        assert mortal(bench, points[-4], hit, "run", file, "--runs-dir", bench.folder / "again") == KILLED
        resumed = bench.start("resume", "paceline", "resume", bench.folder / "again" / "exp-001")
        assert resumed.ends() == 0, resumed.err
        assert same(models(bench.folder / "again" / "exp-001" / name, pictures), alone)
        replayed = bench.start(
            "replay", "paceline", "run", file, "--runs-dir", bench.folder / "third", "--replay-reports",
            bench.folder / "runs" / "exp-001",
        )  # fmt: skip
        assert replayed.ends() == 0, replayed.err
        for run in ("runs", "third"):
            bits[run] = [model.tobytes() for model in models(bench.folder / run / "exp-001" / name, pictures)]
        assert bits["runs"] == bits["third"], "the same measurements lead to the same shares, and they to the same bits"


def test_a_host_killed_in_a_round_comes_to_the_same_bits(tmp_path: Path, pictures: Path) -> None:
    with Bench(tmp_path) as bench:
        file = experiment(bench, pictures)
        listed = bench.folder / "points"
        assert mortal(bench, "LIST", listed, "run", file, "--runs-dir", bench.folder / "runs") == 0
        whole = models(bench.folder / "runs" / "exp-001" / "equal", pictures)
        points = [p for p in listed.read_text("utf-8").split() if "tensor" in p or "commit" in p]
        assert len(points) > 10
        point = points[2 * len(points) // 3]
        hit = bench.folder / "hit"
        assert mortal(bench, point, hit, "run", file, "--runs-dir", bench.folder / "again") == KILLED
        folder = bench.folder / "again" / "exp-001"
        resumed = bench.start("resume", "paceline", "resume", folder)
        assert resumed.ends() == 0, resumed.err
        again = models(folder / "equal", pictures)
        assert all((a == b).all() for a, b in zip(again, whole, strict=True))


def test_verify_finds_the_right_scaling_right_and_a_wrong_one_wrong(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bench(tmp_path) as bench:
        boards = {name: BOARDS[name] for name in ("fast", "slow")}
        file = experiment(bench, pictures, boards=boards)
        paused = ("--set", f"run.steps={BUDGET}", "--set", "run.min_batch=0")  # in one of two steps
        right = bench.call("paceline", "verify", "ddp", file, *paused, "--json")
        assert right.ends() == 0, right.err
        rows = json.loads(right.out)["differences"]
        assert [row["precision"] for row in rows] == ["float64", "float32"]
        assert rows[0]["largest"] < 1e-14
        assert rows[0]["shares"] == [1, 2], "so the first has no sample in one of the steps"
        monkeypatch.setenv("PYTHONPATH", str(PLANTED))
        monkeypatch.setenv("PACELINE_PLANTED", "scaling")  # there each rank's mean counts alike
        wrong = bench.call("paceline", "verify", "ddp", file)
        assert wrong.ends() == 9
        assert "float64" in wrong.out
        assert "WRONG" in wrong.out
        monkeypatch.delenv("PYTHONPATH")
        neither = bench.call("paceline", "verify", "ddp", file, "--set", 'task.norm="batch"')
        assert neither.ends() == 3
        assert "cannot be compared; expected a model without it" in neither.err
        assert neither.err.count("the model has BatchNorm: each rank") == 1


def test_the_shipped_experiment_is_verified_as_it_is_but_for_its_size(tmp_path: Path, pictures: Path) -> None:
    with Bench(tmp_path) as bench:
        texts = {"fleet.profile": bench.profile(BOARDS), "data.folder": str(pictures)}
        changes = {**texts, "run.budget": BUDGET, "run.steps": 1}
        sets = [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        found = bench.start("verify", "paceline", "verify", "ddp", EXPERIMENTS / "ddp.toml", *sets, "--json")
        assert found.ends(90.0) == 0, found.err
    rows = json.loads(found.out)["differences"]
    assert [(row["precision"], row["ok"], row["samples"]) for row in rows] == [
        ("float64", True, BUDGET), ("float32", True, BUDGET),
    ]  # fmt: skip
    assert len(set(rows[0]["shares"])) == len(BOARDS), "equal ones would hide the mean of means"


def test_batch_norms_statistics_are_one_ranks_and_the_weights_do_not_drift(tmp_path: Path, pictures: Path) -> None:
    boards = {name: BOARDS[name] for name in ("fast", "slow")}
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, task={"norm": "batch"}, boards=boards))
        assert host.ends() == 0, host.err
    assert "each rank normalises by its own batch, and batches are unequal" in host.err
    folder = tmp_path / "runs" / "exp-001" / "equal"
    with Ledger(folder) as ledger:
        kept = [(event.round, event.board) for event in ledger.events("buffers")]
        assert kept == [(1, 0), (2, 0)]
        assert {row.update_sha256 for row in ledger.contributions(1, "accepted")} != {None}
        assert len({row.update_sha256 for row in ledger.contributions(1, "accepted")}) == 2, "each has its own"
    ranks = load_report(folder).runs[0].ranks
    assert ranks is not None
    assert ranks.drift == 0


def test_training_that_diverges_ends_with_the_reason(tmp_path: Path, pictures: Path) -> None:
    with Bench(tmp_path) as bench:
        deep = {"model": "mlp", "hidden": [32] * 4, "learning_rate": 100.0, "precision": "float32"}
        file = experiment(bench, pictures, {"rounds": 20}, task=deep)
        host = bench.host(file)
        assert host.ends() == 9, host.err
        assert "has training diverged? a smaller learning_rate may help" in host.err
    with Ledger(tmp_path / "runs" / "exp-001" / "equal") as ledger:
        ended = ledger.run.ended
        assert ended is not None
        assert ended["ok"] is False
        # Whether boards or groups use up their chances first is a matter of whose trainer fails first; both ends are
        # tried apart, without clocks, in tests/host/test_rank_machine.py. The reason is always the last failure's.
        reason = ended["reason"]
        assert re.search(r"(no board may go on|groups in a row did no step), the last was \w+: error: ", reason)
        assert reason.endswith("the loss is not finite; has training diverged? a smaller learning_rate may help")
        assert ledger.rounds()[0].closed_s is None, "a round of a model that is no more was counted"


@pytest.mark.parametrize(
    ("run", "task", "said"),
    [
        ({"steps": 30}, {}, "expected at most 20 steps"),
        ({"steps": 0}, {}, "run.steps is missing"),
        ({}, {"name": "linear"}, "its model is no torch module"),
        (
            {"backend": "nccl"},
            {},
            'run.backend = "nccl": the emulated boards of a local fleet train on the CPU; expected',
        ),
        ({"regime": "pma"}, {}, "only regime ddp has such steps"),
        ({"regime": "pma", "policies": ["ema-batch:every=2"]}, {}, "counts steps of a round, which regime pma has not"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    tmp_path: Path, pictures: Path, run: dict[str, object], task: dict[str, object], said: str
) -> None:
    with Bench(tmp_path) as bench:
        options = {"name": "linear"} if task else TASK
        file = bench.experiment(
            "exp", {**RUN, **run}, task=options, more=f'[data]\nfolder = "{pictures}"',
            fleet={"kind": "local", "profile": bench.profile(BOARDS)},
        )  # fmt: skip
        text = file.read_text("utf-8")
        if task:
            file.write_text(text.replace("batch = 8\n", ""), "utf-8")
        host = bench.host(file)
        assert host.ends() == 3
        assert said in host.err
