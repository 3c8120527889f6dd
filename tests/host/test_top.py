# SPDX-License-Identifier: Apache-2.0
"""The page of `paceline top`: what it says, and that it fits whatever terminal there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import World
from tests.simulated import Boards, exact, faults, in_full

from paceline_host.ledger import Ledger
from paceline_host.recent import KEPT, Recent
from paceline_host.run_status import newest, run_status
from paceline_host.server import Presence
from paceline_host.simulation.run import run_policy
from paceline_host.simulation.scenario import Scenario
from paceline_host.status import board_rows, run_waits
from paceline_host.top import page

Row = dict[str, Any]
NOON_S = 43_200.0


def looked_at(world: World) -> Row:
    """Return the document of a host in the middle of a round."""
    for board in world.boards:
        board.start()
    found: list[Row] = []

    def look() -> None:
        names = [board.name for board in world.boards]
        here = {name: Presence(True, 1000.0) for name in names}
        recent = Recent()
        recent.add("expired", "board-2: no progress of the model for 30 s", world.now_s - 60.0, "board-2")
        found.append(
            {
                "host": {"endpoint": "tcp://127.0.0.1:5570", "up_s": 93.0, "draining": ""},
                "active": {
                    "ticket": "demo-001", "policy": "time", "round": world.machine.round, "rounds": 3,
                    "phase": world.machine.phase, "stopping": "",
                    "waits": run_waits(world.machine, 1000.0, world.now_s),
                },
                "boards": board_rows(names, world.machine, here, 1000.0, world.now_s),
                "queue": [{"ticket": "next-002", "by": "ann"}],
                "pending": [{"fingerprint": "ab:cd", "address": "192.0.2.9", "times": 3}],
                "events": recent.rows(world.now_s),
            }
        )  # fmt: skip

    world.at(5.0, look)
    world.run()
    return found[0]


DOCUMENT = looked_at(World())


def test_it_says_of_each_board_its_share_costs_and_whom_it_waits_for() -> None:
    text = "\n".join(page(DOCUMENT, NOON_S, 200))
    assert "demo-001, time: working" in text
    assert re.search(r"round \d/3  [#.]{24}  \d+ of \d+ samples", text)
    for row in DOCUMENT["boards"]:
        line = next(line for line in text.splitlines() if line.startswith(row["name"]))
        assert f"{row['done']}/{row['share']}" in line
        assert row["doing"] in line
        assert f"{row['energy_j']:.1f}" in line
        assert f"{row['power_w']:.2f}" in line
    assert re.search(r"^waits for board-\d: trains, .*until \d\d:\d\d:\d\d \(.*, lease\)$", text, re.MULTILINE)
    assert "refused: unknown key ab:cd from 192.0.2.9, 3 times" in text
    assert "11:59:00  expired: board-2: no progress of the model for 30 s" in text


def test_what_is_unknown_is_a_dash_and_never_a_zero() -> None:
    unknown = dict.fromkeys(("seconds_per_sample", "energy_per_sample_j", "energy_j", "power_w"))
    document = {**DOCUMENT, "boards": [{**DOCUMENT["boards"][0], **unknown}]}
    line = next(line for line in page(document, NOON_S, 200) if line.startswith("board-0"))
    assert line.split()[2:6] == ["-"] * 4


def test_a_host_without_a_run_has_a_page_too() -> None:
    idle = {"name": "pi", "state": "gone", "doing": "no sign of life", "since_s": 5.0, "until_s": None, "limit": ""}
    text = "\n".join(page({**DOCUMENT, "active": None, "boards": [idle]}, NOON_S, 80))
    assert "no experiment is active" in text
    assert "gone: no sign of life, 5.0 s" in text


@given(st.integers(1, 250), st.integers(1, 60), st.integers(0, 40), st.integers(0, KEPT))
def test_it_fits_any_terminal(columns: int, lines: int, boards: int, events: int) -> None:
    document = {**DOCUMENT, "boards": DOCUMENT["boards"][:1] * boards, "events": DOCUMENT["events"] * events}
    shown = page(document, NOON_S, columns, lines)
    assert len(shown) <= lines
    assert max(map(len, shown), default=0) <= columns
    if lines >= 16 and columns >= 40 and boards:
        assert any(line.startswith("board-0") for line in shown)
    if lines >= 16 and events:
        assert any(line.startswith("11:59:00"[:columns]) for line in shown)


def test_what_a_board_says_moves_no_screen() -> None:
    evil = {**DOCUMENT, "events": [{"ago_s": 0.0, "kind": "failed", "text": "\x1b[2J\x07\nx", "board": ""}]}
    assert all(line.isprintable() for line in page(evil, NOON_S, 200))


def test_the_last_events_are_kept_the_others_are_not() -> None:
    recent = Recent()
    for number in range(3 * KEPT):
        recent.add("lost", f"event {number}", float(number), "pi")
    rows = recent.rows(3.0 * KEPT)
    assert [row["text"] for row in rows] == [f"event {number}" for number in range(2 * KEPT, 3 * KEPT)]
    assert rows[-1]["ago_s"] == 1.0


# Of a journal -------------------------------------------------------------------------------------------------------


def fleet(*words: str) -> Boards:
    return Boards(Scenario(rounds=4, budget=600, minimum=10, fault=faults(*words)), exact([4.0, 2.0, 1.0]))


def test_of_a_run_that_is_over_it_tells_what_its_journal_holds(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "equal"
    in_full(fleet("board=2 round=2 leave", "board=2 round=3 return"), "equal", folder)
    document = run_status(newest(folder.parent))
    assert document["active"]["phase"] == "finished"
    assert (document["active"]["over"], document["active"]["waits"]) == (True, [])
    assert [(row["share"], row["done"]) for row in document["boards"]] == [(200, 200)] * 3
    with Ledger(folder) as ledger:
        for row, board in zip(document["boards"], ledger.boards(), strict=True):
            last: dict[str, int | None] = {split.session: split.total_uj for split in ledger.energy(board.board)}
            joules = sum(total for total in last.values() if total is not None) * 1e-6
            assert abs(row["energy_j"] - joules) < 1e-9
            assert 2.0 <= row["power_w"] <= 6.0, "between the declared watts"
        reasons = [event.detail for event in ledger.events("lost")]
    assert reasons
    assert set(reasons) <= {event["text"] for event in document["events"]}
    assert "round 4/4" in "\n".join(page(document, NOON_S, 120))


def test_of_a_run_that_was_interrupted_it_tells_whom_it_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "equal"
    seen: list[int] = []
    run_policy(fleet(), "equal", folder, lambda: 2 in seen, seen.append)
    document = run_status(folder)
    active = document["active"]
    assert (active["round"], active["phase"]) == (2, "ended: interrupted")
    assert [wait["for"] for wait in active["waits"]] == ["board-0", "board-1", "board-2"]
    assert [row["doing"] for row in document["boards"]] == ["is waited for"] * 3
