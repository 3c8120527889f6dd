# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and SIGKILL to `paceline run` with an emulated fleet: nothing is left, and the run can be read."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from paceline_host.ledger import Ledger

from .fleet_tools import END_S, Bench, Declared, Program, mid_round, until

FLEET = {"quick": Declared(speed=8.0), "middling": Declared(speed=1.0), "slow": Declared(speed=0.02)}


def start(bench: Bench) -> tuple[Program, Path]:
    """Start a run whose second round would take a minute; return when its slow board is in the middle of that."""
    experiment = bench.experiment(
        "long",
        {"rounds": 9, "budget": 300, "minimum": 100, "policies": ["equal", "time"]},
        fleet={"profile": bench.profile(FLEET)},
    )
    host = bench.host(experiment)
    bench.watch("long-001/equal", "the middle of a round", lambda ledger: mid_round(ledger, 1, [2]), host)
    return host, bench.folder / "runs" / "long-001"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["Ctrl-C", "SIGTERM", "SIGHUP"])
def test_an_interrupted_run_leaves_no_process_and_a_readable_folder(bench: Bench, number: signal.Signals) -> None:
    host, folder = start(bench)
    assert len(bench.left()) >= 1 + 3 + 3 + 1, "host, agents, trainers, trainer server"

    host.signal(number)

    assert host.ends() == 128 + number, host.err
    assert bench.left() == {}
    assert "interrupted; to go on: paceline resume" in host.err
    with Ledger(folder / "equal") as ledger:
        assert ledger.verify().faults == ()
        assert ledger.run.ended is not None
        assert ledger.run.ended["ok"] is False
        assert ledger.run.ended["reason"] == "interrupted"
    assert not (folder / "time").exists(), "no other policy was begun"
    report = bench.call("paceline", "report", folder)
    assert report.ends() == 0, report.err
    assert "equal" in report.out


def test_the_fleet_dies_with_a_killed_parent(bench: Bench) -> None:
    host, folder = start(bench)

    host.signal(signal.SIGKILL)

    assert host.ends() == -signal.SIGKILL
    until("agents, trainers and their server to end", lambda: not bench.left(), END_S)
    with Ledger(folder / "equal") as ledger:
        assert ledger.run.ended is None
        assert ledger.verify().faults == ()
    assert bench.call("paceline", "report", folder).ends() == 0
