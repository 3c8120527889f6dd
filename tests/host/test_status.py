# SPDX-License-Identifier: Apache-2.0
"""Whom each wait is for, since when, until when: read from real machines in every phase."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes import FakeBoard, World
from tests.host.test_round_machine import Script
from tests.split_world import SplitWorld

from paceline_host.server import Presence
from paceline_host.status import NO_LIMIT, OWN_WORK, board_rows, render, run_waits

Row = dict[str, Any]


def waits(script: Script, phase_since_s: float = 100.0) -> list[Row]:
    return run_waits(script.machine, phase_since_s, script.now_s)


def boards(script: Script) -> dict[str, Row]:
    names = [board.name for board in script.machine.boards]
    here = {board.name: Presence(True, 100.0) for board in script.machine.boards if board.session is not None}
    rows = board_rows(names, script.machine, here, 90.0, script.now_s)
    return {row["name"]: row for row in rows}


def limits(row: Row) -> tuple[float | None, str]:
    return row["until_s"], row["limit"]


def test_at_the_start_the_run_waits_for_each_board_until_the_start_deadline() -> None:
    script = Script()
    script.connect(0)
    script.ready(0)
    script.now_s += 5.0
    script.connect(1)
    left_s = script.facts.start_s - 5.0
    assert [(wait["for"], wait["since_s"], *limits(wait)) for wait in waits(script)] == [
        ("b1: its trainer to load", 0.0, left_s, "start deadline"),
        ("b2: to connect", 5.0, left_s, "start deadline"),
    ]
    rows = boards(script)
    assert (rows["b0"]["doing"], *limits(rows["b0"])) == ("waits for b1, b2", left_s, "start deadline")
    assert (rows["b1"]["doing"], *limits(rows["b1"])) == ("waits for its trainer to load", left_s, "start deadline")
    assert (rows["b2"]["state"], *limits(rows["b2"])) == ("absent", None, "none: nobody waits")


def test_in_a_round_it_waits_for_who_works_until_their_leases_end_and_the_others_wait_for_them() -> None:
    script = Script().begin()
    script.now_s += 2.0
    lease = script.machine.boards[1].lease
    assert lease is not None
    left_s = round(lease.end_s - script.now_s, 3)
    script.work(0)
    script.settle()
    script.take(1)
    rows = boards(script)
    assert [wait["for"].partition(":")[0] for wait in waits(script)] == ["b1", "b2"]
    assert all((wait["since_s"], *limits(wait)) == (2.0, left_s, "lease") for wait in waits(script))
    assert (rows["b0"]["doing"], rows["b0"]["since_s"], *limits(rows["b0"])) == (
        "waits for b1, b2",
        0.0,
        left_s,
        "lease",
    )
    assert rows["b1"]["doing"].startswith("trains, 0 of ")
    assert rows["b2"]["doing"] == "takes the model"


def test_a_result_in_the_stores_hands_has_no_limit_and_says_so() -> None:
    script = Script().begin()
    script.work(0)
    row = boards(script)["b0"]
    assert (row["doing"], *limits(row)) == ("waits for the host's verdict", None, NO_LIMIT)
    assert limits(waits(script)[0]) == (None, NO_LIMIT)


def test_between_rounds_the_run_waits_for_the_hosts_disk() -> None:
    script = Script().begin()
    for board in range(3):
        script.work(board)
    script.settle(3)
    assert script.machine.phase == "closing"
    script.now_s += 1.0
    (wait,) = waits(script, script.now_s - 1.0)
    assert (wait["for"], wait["since_s"], *limits(wait)) == ("the host's disk", 1.0, None, NO_LIMIT)
    assert boards(script)["b0"]["doing"] == "waits for the next plan"


def test_without_boards_it_waits_for_any_to_come_back_for_a_patience() -> None:
    script = Script().begin()
    for board in range(3):
        script.lose(board)
    script.now_s += 10.0
    (wait,) = waits(script)
    assert (wait["for"], *limits(wait)) == ("any board to come back", script.facts.patience_s - 10.0, "patience")


def test_in_a_step_of_split_learning_it_waits_for_who_owes_its_part_or_for_the_host() -> None:
    world = SplitWorld(rounds=1, paces_s=(1.0, 5.0, 1.0), sizes=(200, 200, 0), boards=3)
    world.commit_s = 1.0
    seen: dict[int, tuple[list[Row], list[Row], float]] = {}
    asked_s = 0.0

    def hook(world_: World, when: str, who: str, kind: str, board: FakeBoard) -> bool:
        nonlocal asked_s
        machine, now_s = world.machine, world.now_s
        if len(world.journal.batches.get(1, ())) < 3:
            return True  # far from the epoch's beginning
        if (when, kind, board.index) == ("before", "tensor/model", 1):
            asked_s = now_s - world._latency_s
        if (when, who, kind) == ("after", "host", "tensor"):
            names = [each.name for each in machine.boards]
            rows = board_rows(names, machine, dict.fromkeys(names, Presence(True, 0.0)), 0.0, now_s)
            seen.setdefault(board.index, (run_waits(machine, 0.0, now_s), rows, now_s - asked_s))
        return True

    world.hook = hook
    for board in world.boards:
        board.start()
    assert world.run().ok
    (wait,), rows, since_s = seen[0]  # it gives first
    lease_s = rows[1]["until_s"]
    assert (wait["for"].partition(",")[0], limits(wait)) == ("board-1: trains", (lease_s, "lease"))
    assert wait["since_s"] == rows[1]["since_s"] == pytest.approx(since_s, abs=1e-3)
    assert 0 < lease_s < 2 * world.facts.patience_s
    assert [(row["doing"], limits(row)) for row in rows[::2]] == [("waits for board-1", (lease_s, "lease"))] * 2
    assert rows[0]["since_s"] == 0.0, "it has just given its part"
    (wait,), rows, _ = seen[1]
    assert (wait["for"], wait["since_s"], limits(wait)) == ("the host's part of the step", 0.0, (None, OWN_WORK))
    assert {(row["doing"], limits(row)) for row in rows} == {(f"waits for {wait['for']}", (None, OWN_WORK))}
    assert rows[0]["since_s"] > 0.0 == rows[1]["since_s"], "each waits since it gave its part"


def test_at_the_end_it_waits_for_last_joules() -> None:
    script = Script(rounds=1).begin()
    for board in range(3):
        script.work(board)
    script.settle()
    assert script.machine.phase == "ending"
    found = waits(script)
    assert [wait["for"] for wait in found] == [f"b{i}: its last joules" for i in range(3)]
    assert limits(found[0]) == (script.facts.patience_s / 6, "end deadline")
    assert boards(script)["b0"]["doing"] == "waits for the end of the run"


def test_boards_outside_a_run_are_idle_gone_or_for_later() -> None:
    script = Script(1).begin()
    seen = {"idle": Presence(True, 95.0), "gone": Presence(False, 98.0, "no sign of life"), "b0": Presence(True, 100.0)}
    rows = board_rows(["gone", "idle", "never"], None, seen, 90.0, 100.0)
    assert [(row["state"], row["doing"], row["since_s"]) for row in rows] == [
        ("gone", "no sign of life", 2.0),
        ("connected", "idle, no run is active", 5.0),
        ("absent", "has not been here since the host started", 10.0),
    ]
    (since,) = board_rows(["idle"], None, seen, 90.0, 100.0, 99.0)
    assert since["since_s"] == 1.0, "it has been idle since the last run ended"
    (later,) = board_rows(["idle"], script.machine, seen, 90.0, 100.0)
    assert later["doing"] == "takes part from the next experiment on"


def test_as_text_each_wait_has_its_instants_on_the_readers_clock() -> None:
    script = Script().begin()
    script.now_s += 65.0
    status = {
        "host": {"endpoint": "tcp://0.0.0.0:5570", "version": "0.1.0", "pid": 7, "fingerprint": "ab", "up_s": 7300.0,
                 "boards": "/k/boards"},
        "active": {"ticket": "demo-001", "by": "ann", "policy": "time", "round": 1, "rounds": 3, "phase": "working",
                   "stopping": "", "waits": waits(script)},
        "queue": [{"ticket": "demo-002", "by": "bob"}],
        "boards": list(boards(script).values()),
        "pending": [{"fingerprint": "f00", "address": "192.0.2.9", "times": 3, "last_s": 12.0}],
    }  # fmt: skip
    text = render(status, 60.0)
    assert "host     tcp://0.0.0.0:5570, paceline 0.1.0, pid 7, up 2 h 1 min, key ab" in text
    assert "active   demo-001 of ann, time: round 1/3, working" in text
    assert "waits for b0: takes the model, since 23:59:55 (65 s), until 00:01:55 (55 s, lease)" in text
    assert "queue    1. demo-002 of bob" in text
    assert "boards   3 known, 3 connected" in text
    assert "unknown key f00 from 192.0.2.9, 3 times, last 12 s ago" in text
    assert "copy its NAME.pub to /k/boards" in text
