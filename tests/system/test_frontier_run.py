# SPDX-License-Identifier: Apache-2.0
"""A goal as the policy of a real run: what boards draw while they wait reaches it, and a resume plans the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.policies import policy
from paceline_host import planner, recovery
from paceline_host.cli import main
from paceline_host.explain import explain
from paceline_host.ledger import Ledger
from paceline_host.waits import KIND

EXPERIMENT = """
[run]
rounds = 6
budget = 300
policies = ["frontier:energy"]
fsync = false
[task]
name = "linear"
batch = 10
[fleet]
profile = "eleven-boards"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("goal")
    (home / "goal.toml").write_text(EXPERIMENT, encoding="utf-8")
    assert main(["run", str(home / "goal.toml"), "--runs-dir", str(home / "runs")]) == 0
    return home / "runs" / "goal-001" / "frontier-energy"


def test_waits_are_told_and_journaled(run: Path) -> None:
    with Ledger(run) as ledger:
        events = ledger.events(KIND)
        assert ledger.verify().ok
    assert events
    assert {event.round for event in events} <= set(range(2, 7))
    seconds, joules = next(iter(json.loads(events[-1].detail).values()))
    assert 0.0 < joules / seconds < 100.0
    last = explain(run, 6)
    assert {entry["wait_from"] for entry in last["boards"]} <= {"waits", "others' ratio"}
    assert any(entry["wait_from"] == "waits" for entry in last["boards"])


def test_a_planner_that_is_told_the_journal_plans_the_same(run: Path) -> None:
    """`replay` raises where a plan differs; without the waits it would."""
    recovery.replay(planner.make(policy("frontier:energy"), 11, 300, 1), run)
