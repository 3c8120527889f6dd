# SPDX-License-Identifier: Apache-2.0
"""Split learning for real: processes, sockets, torch, a small set of pictures. What it trains is what one process would
train; who is lost leaves the pool; a host that is killed begins its epoch anew and comes to the same model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.data import Partition
from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline.tasks import SplitTask, make
from paceline_host.explain import explain, words
from paceline_host.ledger import Ledger
from paceline_host.psl.plan import EpochPlan
from paceline_host.report import load_report, render

from .fleet_tools import TRAIN, Bench, Declared, endpoint_of
from .test_resume import EVERY, FIRST, KILLED, MORTAL, chosen, models

PLANTED = Path(__file__).parent / "planted"
BOARDS = {"fast": Declared(speed=400.0), "middle": Declared(speed=200.0), "slow": Declared(speed=100.0)}
TASK = {"name": "mnist", "model": "cnn", "cut": "conv1", "batch": 16, "precision": "float64", "learning_rate": 0.1}
SPLIT = {"clients": 6, "partition": "iid"}
RUN = {"regime": "psl", "rounds": 2, "policies": ["gpsl"], "seed": 3}


def experiment(
    bench: Bench, pictures: Path, run: Mapping[str, object] | None = None, *, task: Mapping[str, object] | None = None,
    split: Mapping[str, object] | None = None, fleet: Mapping[str, object] | None = None,
    boards: Mapping[str, Declared] = BOARDS,
) -> Path:  # fmt: skip
    """Write an experiment of split learning."""
    lines = ["[split]", *(f"{key} = {json.dumps(value)}" for key, value in {**SPLIT, **(split or {})}.items())]
    data = [] if fleet is not None else ["[data]", f'folder = "{pictures}"']
    return bench.experiment(
        "exp", {**RUN, **(run or {})}, task={**TASK, **(task or {})}, more="\n".join([*lines, *data]),
        fleet=fleet if fleet is not None else {"kind": "local", "profile": bench.profile(boards)},
    )  # fmt: skip


def alone(
    pictures: Path, method: str, split: Mapping[str, Any] = SPLIT, epochs: int = 2,
    befall: Callable[[EpochPlan, int], None] = lambda plan, epoch: None,
) -> list[bytes]:  # fmt: skip
    """Train as one process would, from the definitions: counts, orders, one mean loss. Return each epoch's model.

    `befall` may let clients go and come before a step is drawn.
    """
    import torch

    from paceline.data import partition
    from paceline.local_draw import LocalDraw
    from paceline.tasks.flat import Flat

    options = {key: value for key, value in TASK.items() if key != "name"}
    task: Any = make("mnist", options, RUN["seed"], pictures)  # type: ignore[arg-type]
    flat = Flat(task.whole())
    flat.load(task.initial())
    clients = 1 if method == "central" else split["clients"]
    members: Any = [range(task.samples)]
    if clients > 1:
        members = partition(task.labels(), clients, split["partition"], seed=1).indices()
    left: list[bytes] = []
    velocity: Any = None
    for epoch in range(epochs):
        plan = EpochPlan(method, [len(m) for m in members], 16, RUN["seed"], epoch)  # type: ignore[arg-type]
        orders = [LocalDraw(len(m), 1, epoch, k).draw(len(m)) for k, m in enumerate(members)]
        while True:
            befall(plan, epoch)
            if plan.over:
                break
            indices = [
                int(members[k][orders[k][plan.used[k] + i]])
                for k, count in enumerate(plan.counts)
                for i in range(count)
            ]
            inputs, labels = task.batch(indices, epoch)
            loss = torch.nn.functional.cross_entropy(flat.module(inputs), labels)
            grads = torch.autograd.grad(loss, flat.parameters)
            with torch.no_grad():
                flat_grad = torch.cat([g.reshape(-1) for g in grads])
                velocity = flat_grad if velocity is None else velocity * 0.5 + flat_grad
                flat.weights -= 0.1 * velocity
            plan.commit()
        left.append(flat.to_bytes())
    return left


def weights(folder: Path, number: int, task: SplitTask) -> Any:
    """Return the weights of a checkpoint."""
    from paceline_host import checkpoint

    return np.frombuffer(checkpoint.load(checkpoint.path(folder, number), task.manifest)[0], np.float64)


def test_over_the_link_it_trains_what_one_process_would_train(tmp_path: Path, pictures: Path) -> None:
    methods = ["gpsl", "fls", "fpls", "central"]
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, {"policies": methods}), "--json")
        assert host.ends(120.0) == 0, host.err
    task: Any = make("mnist", {k: v for k, v in TASK.items() if k != "name"}, 3, pictures)
    for method in methods:
        folder = tmp_path / "runs" / "exp-001" / method
        for number, wanted in enumerate(alone(pictures, method), start=1):
            got = weights(folder, number, task)
            np.testing.assert_allclose(got, np.frombuffer(wanted, np.float64), rtol=0, atol=1e-9, err_msg=method)
        with Ledger(folder) as ledger:
            assert ledger.verify().ok, ledger.verify().faults
            assert not ledger.events("drift"), "a board held other weights than the host"
            assert [epoch.left for epoch in ledger.epochs()] == [0, 0]
            steps = ledger.steps(1)
            assert sum(step.samples for step in steps) == TRAIN
            assert all(step.deviation is not None and 0 <= step.deviation <= 2 for step in steps)
            assert {c.board for c in ledger.contributions(1)} == ({0} if method == "central" else {0, 1, 2})
            assert all(e.total_uj for e in ledger.energy())  # also of boards that only watched
    kept = Partition.from_bytes((tmp_path / "runs" / "exp-001" / "clients.partition").read_bytes(), task.labels())
    assert (kept.clients, kept.method) == (SPLIT["clients"], SPLIT["partition"])
    runs = {run["policy"]: run for run in json.loads(host.out)["runs"]}
    assert runs["gpsl"]["split"]["steps"] == runs["central"]["split"]["steps"] == 6
    assert runs["gpsl"]["accuracy"] == runs["central"]["accuracy"] or runs["gpsl"]["accuracy"] > 0.3
    text = render(load_report(tmp_path / "runs" / "exp-001"))
    assert "label deviation of a step, mean L1" in text
    assert "closed form" not in text


@pytest.mark.timeout(300)
def test_a_board_that_is_killed_leaves_the_pool_and_the_run_goes_on(tmp_path: Path, pictures: Path) -> None:
    slow = {name: Declared(speed=0.02) for name in BOARDS}  # an epoch takes seconds
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, {"patience_s": 3.0}, boards=slow))
        bench.watch("exp-001/gpsl", "the first epoch's plan", lambda ledger: ledger.slices(1), host)
        pid = bench.watch("exp-001/gpsl", "a board's pid", lambda ledger: ledger.boards()[1].agent_pid, host)
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        assert host.ends(120.0) == 0, host.err
        with Ledger(tmp_path / "runs" / "exp-001" / "gpsl") as ledger:
            assert ledger.verify().ok, ledger.verify().faults
            left = sum(epoch.left for epoch in ledger.epochs())
            assert left > 0
            assert any("without middle" in event.detail for event in ledger.events("left"))
    text = " ".join(render(load_report(tmp_path / "runs" / "exp-001")).split())
    assert "samples were left out of epochs" in text
    assert f"every sample counted exactly once none twice, {left:,} left out" in text
    page = (tmp_path / "runs" / "exp-001" / "report.html").read_text(encoding="utf-8")
    assert f"no sample counted twice, {left:,} left out" in page


def test_a_trainer_that_is_killed_comes_back_into_the_run(tmp_path: Path, pictures: Path) -> None:
    slow = {name: Declared(speed=0.02) for name in BOARDS}  # an epoch takes seconds
    with Bench(tmp_path) as bench:
        host = bench.host(experiment(bench, pictures, {"rounds": 3}, boards=slow))
        pid = bench.watch(
            "exp-001/gpsl", "a trainer's pid", lambda ledger: ledger.slices(1) and ledger.boards()[1].trainer_pid, host
        )
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        assert host.ends(120.0) == 0, host.err
        with Ledger(tmp_path / "runs" / "exp-001" / "gpsl") as ledger:
            assert ledger.verify().ok, ledger.verify().faults
            assert ledger.events("left"), "nobody was lost"
            assert {c.board: c.samples for c in ledger.contributions(3)} == {0: 30, 1: 30, 2: 30}, ledger.events()


def churn(ledger: Ledger) -> Callable[[EpochPlan, int], None]:
    """Return what the journal says of clients' coming and going, to be done to a plan before each step."""
    said: dict[tuple[int, int], list[tuple[str, int]]] = {}
    names = {board.name: board.board for board in ledger.boards()}
    for event in ledger.events():
        if found := re.match(r"epoch (\d+), step (\d+): without ([\w, ]+)(\(?)", str(event.detail)):
            epoch, what = int(found[1]) - 1, "lost" if found[4] else "gone"  # with a reason, or since before the epoch
            for name in found[3].strip().split(", "):
                said.setdefault((epoch, int(found[2])), []).append((what, names[name]))
        elif found := re.match(r"([\w, ]+) back in step (\d+)", str(event.detail)):
            for name in found[1].split(", "):
                said.setdefault((epoch, int(found[2])), []).append(("back", names[name]))
    redrawn = {(step.round - 1, step.step): step.redraw for number in range(1, 20) for step in ledger.steps(number)}

    def befall(plan: EpochPlan, epoch: int) -> None:
        for what, board in said.pop((epoch, plan.step), []):
            clients = [2 * board, 2 * board + 1]
            if what == "lost" and redrawn.get((epoch, plan.step), 0) > plan.redraw:
                plan.void(clients)
            elif what == "lost":  # its part of the step was there: it goes after it
                said.setdefault((epoch, plan.step + 1), []).insert(0, ("gone", board))
            else:
                for client in clients:
                    (plan.remove if what == "gone" else plan.restore)(client)
        plan.changed()

    return befall


@pytest.mark.in_turn
@pytest.mark.timeout(300)
def test_a_board_lost_in_any_phase_of_a_step_costs_its_share_of_that_step_and_nothing_else(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, epochs = tmp_path / "marks", 10
    marks.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("PACELINE_PLANTED", "clients")
    monkeypatch.setenv("PACELINE_PLANT", str(marks))
    with Bench(tmp_path) as bench:
        run = {"rounds": epochs, "patience_s": 2.0}
        host = bench.host(experiment(bench, pictures, run, task={"reference_seconds_per_sample": 6.0}))
        assert host.ends(200.0) == 0, host.err
    assert len(list(marks.iterdir())) == epochs - 1, "not every fault came about"
    folder = tmp_path / "runs" / "exp-001" / "gpsl"
    with Ledger(folder) as ledger:
        assert ledger.verify().ok, ledger.verify().faults
        for epoch in ledger.epochs():
            assert sum(step.samples for step in ledger.steps(epoch.round)) + epoch.left == TRAIN
        befall = churn(ledger)
        failed = [event.detail for event in ledger.events("failed") if event.detail.startswith("slow: ")]
    assert [text for text in failed if "as planted" in text] == failed[-1:], "its end was a failure once more"
    facts = explain(folder, 1)
    assert [entry["samples_held"] for entry in facts["boards"]] == [30, 30, 30]
    assert sum(entry["samples"] for entry in facts["boards"]) + facts["left"] == TRAIN
    assert facts["voided"] == 1
    assert "5.3 a step are expected" in "\n".join(words(facts, "slow"))
    task: Any = make("mnist", {k: v for k, v in TASK.items() if k != "name"}, 3, pictures)
    wanted = alone(pictures, "gpsl", epochs=epochs, befall=befall)
    for number, state in enumerate(wanted, start=1):
        got = weights(folder, number, task)
        np.testing.assert_allclose(got, np.frombuffer(state, np.float64), rtol=0, atol=1e-6, err_msg=f"epoch {number}")


@pytest.mark.timeout(900)
def test_killed_at_every_write_a_run_of_split_learning_resumes_to_the_same_model(
    tmp_path: Path, pictures: Path
) -> None:
    def lives(folder: Path, targets: list[str]) -> list[str | None]:
        with Bench(folder) as bench:
            command: list[str | Path] = ["run", experiment(bench, pictures), "--runs-dir", folder / "runs"]
            for target in targets:
                died = folder / target.replace(":", "-")
                program = bench.start_python(f"{target}-{command[0]}", MORTAL, target, died, *command, "--quiet")
                status = program.ends(120.0)  # torch is loaded anew each time
                assert status == (KILLED if target not in ("LIST", "NEVER") else 0), f"{target}: {status}"
                command = ["resume", folder / "runs" / "exp-001"]
            return models(folder / "runs" / "exp-001" / "gpsl")

    wanted = lives(tmp_path / "unbroken", ["LIST"])
    points = (tmp_path / "unbroken" / "LIST").read_text(encoding="utf-8").split()
    kinds = {point.rpartition(":")[0] for point in points}
    assert {
        "commit-ComputeStep",
        "committed-CommitStep",
        "committed-CloseEpoch",
        "said:tensor",
        "heard:tensor",
    } <= kinds
    every = chosen(points, 0, 1)
    few = every[
        FIRST :: max(1, len(every) // (12 if EVERY == 1 else 4))
    ]  # each life loads torch anew, which takes seconds

    def outcome(point: str) -> str:
        try:
            got = lives(tmp_path / point.replace(":", "-"), [point, "NEVER"])
        except AssertionError as error:
            return f"{point}: {error}"
        return "" if got == wanted else f"{point}: other models: {got} instead of {wanted}"

    with ThreadPoolExecutor(2) as pool:
        faults = [text for text in pool.map(outcome, few) if text]
    assert not faults, f"{len(faults)} of {len(few)} points:\n" + "\n".join(faults)


@pytest.mark.timeout(300)
def test_boards_with_data_of_their_own_are_a_client_each(tmp_path: Path, pictures: Path) -> None:
    with Bench(tmp_path) as bench:
        bench.make_keys("one", "two")
        file = experiment(bench, pictures, fleet={"kind": "boards", "keys": "keys"}, split={"partition": "own"})
        text = file.read_text(encoding="utf-8") + f'[data]\nfolder = "{pictures}"\n'
        file.write_text(text, encoding="utf-8")
        host = bench.host(file)
        endpoint = endpoint_of(host)
        for board, count in (("one", 40), ("two", 25)):
            own = tmp_path / f"own-{board}"
            own.mkdir()
            for images, labels, number in ((*FILES[:2], count), (*FILES[2:], 5)):
                write_idx(own / images, (number, 8, 8), bytes(i % 251 for i in range(number * 64)))
                write_idx(own / labels, (number,), bytes(i % 10 for i in range(number)))
            config = bench.write_agent(board, endpoint)
            config.write_text(f'data_dir = "../own-{board}"\n' + config.read_text(encoding="utf-8"), encoding="utf-8")
            bench.start(board, "paceline-agent", "run", "--config", config)
        assert host.ends(120.0) == 0, host.err
        with Ledger(tmp_path / "runs" / "exp-001" / "gpsl") as ledger:
            assert ledger.verify().ok, ledger.verify().faults
            assert {s.board: s.samples for s in ledger.slices(1)} == {0: 40, 1: 25}


FAULTS = {
    "no cut": ({}, {"cut": ""}, {}, "the part to cut behind, one of conv1, conv2, hidden"),
    "no such cut": ({}, {"cut": "conv9"}, {}, "conv9"),
    "a policy": ({"policies": ["time"]}, {}, {}, "'time' is nothing for regime psl; known: gpsl, fls, fpls, central"),
    "a budget": ({"budget": 90}, {}, {}, "an epoch of psl uses each sample once; leave it out"),
    "too few clients": ({}, {}, {"clients": 2}, "split.clients = 2 is less than the 3 boards"),
    "no such partition": ({}, {}, {"partition": "iit"}, "did you mean"),
    "central over own data": ({"policies": ["central"]}, {}, {"partition": "own"}, "needs all data in one place"),
    "more clients than samples": (
        {},
        {},
        {"clients": TRAIN + 1},
        f"{TRAIN} samples are too few for {TRAIN + 1} clients",
    ),
    "a method that is none": ({"policies": ["gpls"]}, {}, {}, "did you mean gpsl?"),
    "no such dtype": ({}, {}, {"smashed": "float8"}, "float8"),
    "a task of one part": ({}, {"name": "linear"}, {}, "cannot be cut"),
}
if shutil.which("nvidia-smi") is None:
    FAULTS["no CUDA"] = (
        {},
        {},
        {"device": "cuda"},
        'split.device = "cuda": the torch of this host finds no CUDA device',
    )


@pytest.mark.parametrize(("run", "task", "split", "said"), list(FAULTS.values()), ids=list(FAULTS))
def test_what_cannot_be_run_is_said_before_anything_is_made(
    tmp_path: Path, pictures: Path, run: dict[str, object], task: dict[str, object], split: dict[str, object], said: str
) -> None:
    with Bench(tmp_path) as bench:
        file = experiment(bench, pictures, run, task=task, split=split)
        if task.get("name") == "linear":
            text = file.read_text(encoding="utf-8")
            gone = ("model", "cut", "precision")
            file.write_text("\n".join(x for x in text.splitlines() if not x.startswith(gone)), encoding="utf-8")
        host = bench.host(file)
        assert host.ends() == 3
        assert said in host.err
        assert not (tmp_path / "runs").exists()


@pytest.mark.timeout(300)
def test_a_board_with_the_same_pictures_in_another_order_is_refused_by_name(tmp_path: Path, pictures: Path) -> None:
    """Its numbers of samples are right, so only what it holds can tell."""
    with Bench(tmp_path) as bench:
        bench.make_keys("one", "two")
        file = experiment(bench, pictures, {"rounds": 1}, fleet={"kind": "boards", "keys": "keys"})
        text = file.read_text(encoding="utf-8") + f'[data]\nfolder = "{pictures}"\n'
        file.write_text(text, encoding="utf-8")
        turned = tmp_path / "turned"
        shutil.copytree(pictures, turned)
        for name, width, shape in ((FILES[0], 64, (TRAIN, 8, 8)), (FILES[1], 1, (TRAIN,))):
            items = (pictures / name).read_bytes()[-width * TRAIN :]
            each = [items[at : at + width] for at in range(0, len(items), width)]
            write_idx(turned / name, shape, b"".join(reversed(each)))
        host = bench.host(file)
        agents = {}
        for board, folder in (("one", pictures), ("two", turned)):
            config = bench.write_agent(board, endpoint_of(host))
            config.write_text(f'data_dir = "{folder}"\n' + config.read_text(encoding="utf-8"), encoding="utf-8")
            agents[board] = bench.start(board, "paceline-agent", "run", "--config", config)
        host.says("two is refused: its data are as many as the host's, but other ones", 120.0)
        assert agents["two"].ends() != 0
        assert "give both the same data" in agents["two"].err
        told = bench.watch("exp-001/gpsl", "one to be ready", lambda ledger: ledger.boards()[0].data_sha256, host)
        host.signal(signal.SIGTERM)  # it waits for "two" until its start deadline
        host.ends()
        assert "one is refused" not in host.err
        with Ledger(tmp_path / "runs" / "exp-001" / "gpsl") as ledger:
            assert told == ledger.run.data_sha256
            assert [board.samples for board in ledger.boards()] == [TRAIN // 2, None]
