# SPDX-License-Identifier: Apache-2.0
"""A daemon that is drained in a run: it ends after the round, and the next one goes on to the same end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .fleet_tools import Bench, until
from .test_daemon import TWO_ROUNDS, Daemon
from .test_resume import models

RUN = {"rounds": 7, "budget": 90, "policies": ["equal", "time"]}
SPEEDS = {"fast": 0.4, "middle": 0.2, "slow": 0.1}  # a round takes 0.3 s


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def left(runs: Path) -> set[str]:
    return {path.parent.name for path in runs.glob("*/ticket.toml")}


def test_a_daemon_that_is_drained_ends_after_the_round_and_the_next_one_goes_on_to_the_same_models(
    daemon: Daemon,
) -> None:
    for name in SPEEDS:
        daemon.make_board(name)
    host = daemon.start()
    for name, speed in SPEEDS.items():
        daemon.agent(name, speed=speed)
    ticket = daemon.submit("drained", RUN)
    behind = daemon.submit("plain", {**RUN, "policies": ["equal"]})
    until("its first round", lambda: daemon.is_active(ticket, 1))

    drain = daemon.bench.start("drain", "paceline", "drain", "--host", "h", "--json")
    drain.says(f"{ticket} goes on to the end of its round, then the host ends")
    more = daemon.bench.call("paceline", "run", daemon.bench.experiment("more", TWO_ROUNDS), "--host", "h", "--detach")

    assert host.ends() == 0, host.err
    assert drain.ends() == 0, drain.err
    assert json.loads(drain.out) == {"schema": "paceline-drain-1", "ticket": ticket, "ended": True}
    assert more.ends() in (4, 9), "refused, or the host had ended before it was asked"
    assert left(daemon.home / "runs") == {ticket, behind}
    assert (daemon.state(ticket), daemon.state(behind)) == ("active", "queued")
    with daemon.ledger(f"{ticket}/equal") as ledger:
        rounds = ledger.rounds()
        assert 1 <= len(rounds) < RUN["rounds"], "it ended in the middle"  # type: ignore[operator]
        assert all(row.closed_s is not None for row in rounds), "and between two rounds"
        assert {c.verdict for c in ledger.contributions()} == {"accepted"}
        assert ledger.run.ended is not None
        assert ledger.run.ended["reason"].startswith("drained by ")
    assert not (daemon.home / "runs" / ticket / "time").exists(), "nor was the next run of it begun"

    again = daemon.start()
    again.says(f"taken up from before: {ticket}, {behind}")
    until("all to be done", lambda: daemon.state(behind) == "finished")
    assert daemon.state(ticket) == "finished"
    runs = daemon.home / "runs"
    assert models(runs / ticket / "equal") == models(runs / behind / "equal")

    idle = daemon.ask("drain")
    assert "the host has ended; what is left goes on when it is started again" in idle.err
    assert again.ends() == 0, again.err


def test_while_it_is_drained_a_daemon_says_so_and_takes_nothing(daemon: Daemon) -> None:
    daemon.make_board("a")
    host = daemon.start()
    agent = daemon.agent("a", speed=0.002)  # a round takes a while
    ticket = daemon.submit("slow", TWO_ROUNDS)
    until("its first round", lambda: daemon.is_active(ticket, 1))
    daemon.ask("drain", "--detach")
    assert "admits nothing, ends when the open round is over" in daemon.ask("status").out
    refused = daemon.ask("run", daemon.bench.experiment("more", TWO_ROUNDS, fleet={"kind": "boards"}), exits=9)
    assert "this host takes no experiment any more (drained by " in refused.err
    assert "this host takes no experiment any more" in daemon.ask("resume", ticket, exits=9).err
    assert host.process.poll() is None, "the round is still open"
    daemon.ask("stop", ticket)  # which needs not wait for it
    assert host.ends() == 0, host.err
    assert daemon.state(ticket) == "stopped"
    assert agent.process.poll() is None
