# SPDX-License-Identifier: Apache-2.0
"""The host computes no joule and knows no pace: only what a board's own agent.toml says changes report and shares."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, endpoint_of, mid_round, shares

COMMON = Declared(speed=1.0, idle_w=1.0, active_w=3.0)
CHANGED = {
    "as-it-was": COMMON,
    "more-watts": Declared(speed=1.0, idle_w=1.0, active_w=12.0),
    "half-the-speed": Declared(speed=0.5, idle_w=1.0, active_w=3.0),
}
POLICIES = ("time", "energy")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run one experiment three times; return the comparison's folder by what one board's agent.toml said."""
    with Bench(tmp_path_factory.mktemp("measured")) as bench:
        bench.make_keys("fixed", "varied")
        experiment = bench.experiment("same", {"rounds": 3, "budget": 480, "policies": POLICIES})
        hosts = {}
        for what, declared in CHANGED.items():
            host = hosts[what] = bench.host(experiment, runs=f"runs-{what}")
            endpoint = endpoint_of(host)
            bench.agent("fixed", endpoint, COMMON, state=f"state-{what}", name=f"{what}.toml")
            bench.agent("varied", endpoint, declared, state=f"state-{what}", name=f"{what}.toml")
        for host in hosts.values():
            assert host.ends() == 0, host.err
        return {what: bench.folder / f"runs-{what}" / "same-001" for what in CHANGED}


def last_share(folder: Path, policy: str, board: int) -> int:
    """Return what a board was dealt in the last round."""
    with Ledger(folder / policy) as ledger:
        return shares(ledger, 3)[board]


def test_watts_of_one_board_change_its_joules_and_its_share_by_energy_alone(runs: dict[str, Path]) -> None:
    before, after = runs["as-it-was"], runs["more-watts"]

    assert last_share(after, "energy", 1) < 0.5 * last_share(before, "energy", 1), "four times the joules a sample"
    assert last_share(after, "time", 1) > 0.8 * last_share(before, "time", 1), "no slower than it was"
    assert joules_per_sample(after, 1) > 3 * joules_per_sample(before, 1)
    assert joules_per_sample(after, 0) < 2 * joules_per_sample(before, 0)
    assert reported_joules(after) > 1.5 * reported_joules(before)


def test_speed_of_one_board_changes_its_share_by_time(runs: dict[str, Path]) -> None:
    before, after = runs["as-it-was"], runs["half-the-speed"]

    assert last_share(before, "time", 1) > 200, "as fast as the other: half of 480, and some room for a busy machine"
    assert last_share(after, "time", 1) < 190, "half as fast: a third of 480"
    assert last_share(after, "time", 0) + last_share(after, "time", 1) == 480


def test_the_host_was_told_nothing_of_it(runs: dict[str, Path]) -> None:
    told = {
        (folder / "experiment.toml").read_bytes() + b"".join((folder / p / "run.toml").read_bytes() for p in POLICIES)
        for folder in runs.values()
    }
    assert len(told) == 1, "what the host was given is the same, byte for byte"


@pytest.mark.parametrize("what", CHANGED)
def test_joules_of_work_are_the_declared_watts_times_the_measured_seconds(runs: dict[str, Path], what: str) -> None:
    watts = [COMMON.active_w, CHANGED[what].active_w]
    for policy in POLICIES:
        with Ledger(runs[what] / policy) as ledger:
            assert ledger.verify().faults == ()
            for c in ledger.contributions(verdict="accepted"):
                assert c.energy_source == "modelled"
                assert c.compute_uj == pytest.approx(c.compute_us * (watts[c.board] or 0.0), rel=1e-3)


def joules_per_sample(folder: Path, board: int) -> float:
    """Return the joules of a board's samples in the first round, when all have the same share."""
    with Ledger(folder / "time") as ledger:
        (row,) = [c for c in ledger.contributions(1, "accepted") if c.board == board]
    assert row.compute_uj is not None
    return row.compute_uj * 1e-6 / row.samples


def reported_joules(folder: Path) -> float:
    """Return the joules of work that the report of policy `time` gives."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (run,) = [run for run in report["runs"] if run["policy"] == "time"]
    joules = run["joules"]["parts_j"]["compute"]
    assert isinstance(joules, float)
    return joules


def test_a_board_that_stood_still_within_its_lease_gets_less_next_round(bench: Bench) -> None:
    experiment = bench.experiment(
        "stopped",
        {"rounds": 3, "budget": 600, "minimum": 20, "policies": ["time"], "patience_s": 9.0},
        fleet={"profile": bench.profile({"steady": Declared(speed=2.0), "stopped": Declared(speed=0.5)})},
    )
    host = bench.host(experiment)
    run = "stopped-001/time"
    bench.watch(run, "the middle of round 1", lambda ledger: mid_round(ledger, 1, [1]), host)
    with Ledger(bench.folder / "runs" / run) as ledger:
        board = ledger.boards()[1]
    assert board.agent_pid is not None
    assert board.trainer_pid is not None
    pids = (board.agent_pid, board.trainer_pid)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.0)  # the very thing under test: a board that stands still for two seconds
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

    assert host.ends() == 0, host.err
    with Ledger(bench.folder / "runs" / run) as ledger:
        assert ledger.verify().faults == ()
        assert [c.verdict for c in ledger.contributions(1)] == ["accepted", "accepted"], "its lease outlived that"
        (row,) = [c for c in ledger.contributions(1) if c.board == 1]
        assert row.compute_us > 2_500_000, "600 ms of work, and two seconds of standing still"
        declared = 600 * 0.5 / 2.5
        assert shares(ledger, 2)[1] < 0.75 * declared, "less than its declared speed would have brought it"
        assert shares(ledger, 3)[1] > shares(ledger, 2)[1], "and back it comes"
