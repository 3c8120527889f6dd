# SPDX-License-Identifier: Apache-2.0
"""What changes under a fleet while it works: protocols that are not the host's, clocks that are wrong."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from paceline import wire
from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, endpoint_of
from .raw_peer import RawPeer
from .test_daemon import TWO_ROUNDS, Daemon

PLANTED = str(Path(__file__).parent / "planted")
HOUR_S, YEAR_S = 3600, 365 * 86_400


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def test_boards_of_this_protocol_and_of_the_one_before_work_in_one_run_and_others_are_told_what_to_do(
    bench: Bench,
) -> None:
    bench.make_keys("now", "before", "newer", "older")
    run = {"rounds": 2, "budget": 64, "policies": ["equal"]}
    fleet = {"kind": "boards", "keys": "keys", "start_s": 4.0}
    host = bench.host(bench.experiment("mixed", run, fleet=fleet))
    endpoint = endpoint_of(host)
    bench.agent("now", endpoint, Declared(speed=4.0))
    with (
        RawPeer(bench.folder, "before", endpoint) as before,
        RawPeer(bench.folder, "newer", endpoint) as newer,
        RawPeer(bench.folder, "older", endpoint) as older,
    ):
        newer.greet(wire.PROTOCOL + 1, chunk_max=None, lanes=4)
        refusal = newer.hear(wire.Reject)
        assert refusal.code == "version"
        assert f"speaks protocol {wire.PROTOCOL + 1}, this host (paceline" in refusal.text
        assert "upgrade the host, or put its version on the board, on the host: paceline boards install newer" in (
            refusal.text
        )
        older.greet(wire.OLDEST - 1, kept_run=None, kept_round=None, kept_slice=None, clock_s=None)
        refusal = older.hear(wire.Reject)
        assert refusal.text.endswith("; put its version on the board, on the host: paceline boards install older")

        before.greet(wire.OLDEST, clock_s=None)
        assert before.hear(wire.Welcome).proto == wire.OLDEST
        before.ready()
        for _ in range(2):
            assign, nbytes = before.take()
            before.upload(assign, struct.pack("<f", 0.01) * (nbytes // 4))
        assert host.ends() == 0, host.err
    assert host.err.count("paceline boards install newer") == 1
    with Ledger(bench.folder / "runs" / "mixed-001" / "equal") as ledger:
        assert ledger.verify().faults == ()
        names = {board.board: board.name for board in ledger.boards()}
        assert {names[c.board] for c in ledger.contributions(verdict="accepted")} == {"now", "before"}
        told = [event.detail for event in ledger.events()]
    assert any("starting without" in text and "newer" in text and "older" in text for text in told)


def test_clocks_that_are_wrong_by_an_hour_and_by_a_year_are_told_and_cost_nothing(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's is an hour ahead, one board's a year behind: boards without a battery begin in any year."""
    for name in ("right", "lost"):
        daemon.make_board(name)
    monkeypatch.setenv("PYTHONPATH", PLANTED)
    monkeypatch.setenv("PACELINE_PLANTED", "clock")
    monkeypatch.setenv("PACELINE_CLOCK_OFF", str(HOUR_S))
    host = daemon.start()
    monkeypatch.setenv("PACELINE_CLOCK_OFF", str(-YEAR_S))
    lost = daemon.agent("lost")
    monkeypatch.setenv("PACELINE_CLOCK_OFF", "0")
    daemon.agent("right")
    host.says("right: its clock is 60 min behind this host's")
    host.says("lost: its clock is 365 days behind this host's")

    ended = daemon.ask("run", daemon.bench.experiment("clocks", TWO_ROUNDS, fleet={"kind": "boards"}))
    assert "every sample counted exactly once" in ended.out
    with daemon.ledger("clocks-001/equal") as ledger:
        assert ledger.verify().faults == ()
        assert all(0 < (row.makespan_s or 0.0) < 60 for row in ledger.rounds())
        assert abs(time.time() + HOUR_S - _utc(ledger.run.started)) < 600, "its label is the host's clock"
        warned = [event.detail for event in ledger.events("warning")]
        assert sorted(text.split(":")[0] for text in warned) == ["lost", "right"]
    assert {row["name"]: round(row["clock_off_s"] / HOUR_S) for row in daemon.status()["boards"]} == {
        "right": -1, "lost": -1 - 365 * 24,
    }  # fmt: skip
    assert "its clock is 365 days behind this host's" in daemon.ask("status").out
    doctor = daemon.bench.call("paceline", "doctor", "--config", "h/host.toml")
    assert "lost: its clock is 365 days behind this host's" in doctor.out
    assert lost.process.poll() is None


def _utc(stamp: str) -> float:
    return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
