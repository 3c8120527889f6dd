# SPDX-License-Identifier: Apache-2.0
"""The host as a daemon, with real processes: operators queue, watch and stop; boards come, go, are admitted and put
out; the daemon itself ends in the middle of a run and comes back.
"""

from __future__ import annotations

import json
import signal
import socket
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, Program, until
from .test_storage import small_disk

TWO_ROUNDS = {"rounds": 2, "budget": 64, "policies": ["equal"]}
LONG = {"rounds": 400, "budget": 200, "minimum": 50, "policies": ["equal"]}  # a fifth of a second a round


@dataclass
class Daemon:
    """A host daemon of a bench, its operator and its boards; all in the folder `h` that `paceline host --init` made."""

    bench: Bench
    agents: dict[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = self.bench.call("paceline", "host", "--init", "h")
        assert made.ends() == 0, made.err
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.home = self.bench.folder / "h"
        (self.home / "host.toml").write_text(f'listen = "{self.endpoint}"\npatience_s = 3.0\n', encoding="utf-8")
        operator = (self.home / "operator.toml").read_text(encoding="utf-8")
        (self.home / "operator.toml").write_text(operator.replace("tcp://127.0.0.1:5570", self.endpoint), "utf-8")

    def start(self) -> Program:
        """Start it; wait until it serves."""
        self.host = self.bench.start(
            f"daemon-{len(self.bench.programs)}", "paceline", "host", "--config", "h/host.toml"
        )
        self.host.says("listening on")
        return self.host

    def make_board(self, name: str, *, admitted: bool = True) -> Path:
        """Make a board's keys; return its .pub."""
        made = self.bench.call("paceline-agent", "keys", "--dir", self.bench.folder / name, "--name", name)
        public = Path(made.out.strip())
        if admitted:
            self.admit(public)
        return public

    def admit(self, public: Path) -> Path:
        """Copy a .pub into the boards' folder, as a person would; return where it is then."""
        target = self.home / "keys" / "boards" / public.name
        target.write_bytes(public.read_bytes())
        return target

    def agent(self, name: str, **declared: Any) -> Program:
        """Start a board's agent."""
        self.agents[name] = self.bench.agent(name, self.endpoint, Declared(**declared), host_key="../h/keys/host.pub")
        return self.agents[name]

    def ask(self, *argv: str | Path, exits: int = 0) -> Program:
        """Call the program as the operator."""
        program = self.bench.call("paceline", *argv, "--host", "h")
        assert program.ends() == exits, program.err
        return program

    def submit(self, name: str, run: dict[str, Any], **fleet: Any) -> str:
        """Submit an experiment; return its ticket."""
        experiment = self.bench.experiment(name, run, fleet={"kind": "boards", **fleet})
        return self.ask("run", experiment, "--detach").out.strip()

    def status(self) -> dict[str, Any]:
        """Return what the daemon says of itself."""
        return dict(json.loads(self.ask("status", "--json").out))

    def board(self, name: str) -> dict[str, Any]:
        """Return a board's row of the status."""
        return next((row for row in self.status()["boards"] if row["name"] == name), {})

    def is_active(self, ticket: str, round_: int = 1) -> bool:
        """Tell whether a ticket is active and has come to a round."""
        active = self.status()["active"]
        return active is not None and active["ticket"] == ticket and active["round"] >= round_

    def ledger(self, run: str) -> Ledger:
        """Open a journal."""
        return Ledger(self.home / "runs" / run)

    def state(self, ticket: str) -> str:
        """Return the state of a ticket, as it is on disk."""
        text = (self.home / "runs" / ticket / "ticket.toml").read_text(encoding="utf-8")
        return next(line.split('"')[1] for line in text.splitlines() if line.startswith("state"))


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def test_operators_queue_watch_and_stop(daemon: Daemon) -> None:
    daemon.make_board("a")
    daemon.make_board("b")
    assert "nothing listens at" in daemon.ask("status", exits=4).err
    host = daemon.start()
    daemon.agent("a")
    daemon.agent("b")

    first = daemon.submit("first", LONG)
    second = daemon.submit("second", TWO_ROUNDS)
    third = daemon.submit("third", TWO_ROUNDS)
    assert (first, second, third) == ("first-001", "second-001", "third-001")
    until("the first to work", lambda: daemon.is_active(first, 2))
    status = daemon.status()
    assert [ticket["ticket"] for ticket in status["queue"]] == [second, third]
    assert [(row["name"], row["state"]) for row in status["boards"]] == [("a", "connected"), ("b", "connected")]
    assert status["pending"] == []
    waits = until("somebody to be waited for", lambda: daemon.status()["active"]["waits"])
    assert all({"who", "for", "since_s", "until_s", "limit"} == set(wait) for wait in waits)

    watch = daemon.bench.start("watch", "paceline", "watch", "--host", "h", "--json")
    until("two pictures", lambda: watch.out.count('"event": "view"') >= 2)
    leaving = daemon.bench.start("leaving", "paceline", "watch", first, "--host", "h")
    leaving.says("is over")
    leaving.signal(signal.SIGINT)
    assert leaving.ends() == 130, leaving.err
    assert f"no longer watching; {first} goes on: paceline watch {first}" in leaving.err

    assert "no longer in the queue" in daemon.ask("stop", third).err
    queued = daemon.bench.start("queued", "paceline", "watch", second, "--host", "h")
    queued.says(f"{second} waits in the queue, behind 1")
    assert f"{first} ends" in daemon.ask("stop").err
    assert watch.ends() == 9, watch.err
    last = json.loads(watch.out.splitlines()[-1])
    assert (last["event"], last["ticket"], last["ok"]) == ("ended", first, False)
    assert last["reason"].startswith("stopped by ")
    assert last["report"]["runs"], "what was finished is reported"

    assert queued.ends() == 0, queued.err
    assert "every sample counted exactly once" in queued.out
    assert "this host has no ticket none-001" in daemon.ask("watch", "none-001", exits=9).err
    assert "no experiment is active or queued" in daemon.ask("stop", exits=9).err
    assert f"{first}: ended: stopped by" in daemon.ask("watch", first, exits=9).err
    rows = {row["run"]: row for row in json.loads(daemon.ask("runs", "--json").out)["runs"]}
    assert {run: row["state"] for run, row in rows.items()} == {
        "first-001/equal": "stopped", "second-001/equal": "finished"
    }  # fmt: skip
    assert [daemon.state(ticket) for ticket in (first, second, third)] == ["stopped", "finished", "stopped"]
    for run in rows:
        with daemon.ledger(run) as ledger:
            assert ledger.verify().faults == ()
    host.signal(signal.SIGTERM)
    assert host.ends() == 0, host.err
    assert "Traceback" not in host.err


def test_a_faulty_experiment_comes_back_with_all_its_faults_and_is_not_queued(daemon: Daemon) -> None:
    daemon.make_board("a")
    daemon.start()
    bench, boards = daemon.bench, {"kind": "boards"}
    local = daemon.ask("run", bench.experiment("local", TWO_ROUNDS, fleet={}), exits=3)
    assert 'local.toml: fleet.kind = "local": a host daemon works with the boards that connect to it' in local.err
    faulty = bench.experiment("faulty", {**TWO_ROUNDS, "rounds": 0, "policies": ["tme"]}, fleet=boards)
    refused = daemon.ask("run", faulty, exits=3)
    assert "faulty.toml, line" in refused.err
    assert "run.rounds" in refused.err
    assert "tme" in refused.err
    options = bench.experiment("options", TWO_ROUNDS, task={"name": "linear", "bach": 3}, fleet=boards)
    assert "bach" in daemon.ask("run", options, exits=3).err
    data = bench.experiment("data", TWO_ROUNDS, fleet=boards, more='[data]\nfolder = "here"')
    assert "expected an absolute path on the host" in daemon.ask("run", data, exits=3).err
    override = daemon.ask("run", data, "--set", "run.minimum=90", "--set", 'data.folder=""', exits=3)
    assert "1 boards x 90 samples" in override.err
    status = daemon.status()
    assert (status["active"], status["queue"]) == (None, [])
    assert list((daemon.home / "runs").glob("*/")) == []


def test_boards_come_late_go_and_come_back_into_the_next_round(daemon: Daemon) -> None:
    daemon.make_board("steady")
    daemon.make_board("late")
    daemon.start()
    daemon.agent("steady")
    ticket = daemon.submit("churn", LONG, start_s=1.0)
    run = f"{ticket}/equal"
    until("a round without it", lambda: daemon.is_active(ticket, 2))
    assert daemon.board("late")["state"] == "absent"
    assert daemon.board("late")["doing"] == "has not been here since the host started"

    def works_after(round_: int) -> int:
        """Return a round after `round_` that the late board worked in; 0: none yet."""
        with daemon.ledger(run) as ledger:
            rounds = {
                c.round for c in ledger.contributions(verdict="accepted") if ledger.boards()[c.board].name == "late"
            }
        return max((r for r in rounds if r > round_), default=0)

    agent = daemon.agent("late")
    joined = until("it to take part", lambda: works_after(1))
    agent.signal(signal.SIGKILL)
    until("the host to notice", lambda: daemon.board("late")["state"] == "gone")
    assert daemon.board("late")["doing"] in ("no sign of life", "its connection is lost")
    daemon.agent("late")
    with daemon.ledger(run) as ledger:
        gone = max(r.round for r in ledger.rounds())
    until("it to take part again", lambda: works_after(max(joined, gone)))
    daemon.ask("stop")
    until("the end", lambda: daemon.state(ticket) == "stopped")
    with daemon.ledger(run) as ledger:
        assert ledger.verify().faults == ()
        assert {s.board for s in ledger.slices(1)} == {ledger_index(ledger, "steady")}


def ledger_index(ledger: Ledger, name: str) -> int:
    return next(board.board for board in ledger.boards() if board.name == name)


def test_keys_are_admitted_and_withdrawn_while_the_host_runs(daemon: Daemon) -> None:
    daemon.make_board("old")
    public = daemon.make_board("new", admitted=False)
    host = daemon.start()
    daemon.agent("old")
    stranger = daemon.agent("new")
    assert stranger.ends() == 5, stranger.err
    (pending,) = daemon.status()["pending"]
    assert pending["key"] == public.read_text().strip()
    assert pending["address"] == "127.0.0.1"
    text = daemon.ask("status").out
    assert f"unknown key {pending['fingerprint']} from 127.0.0.1" in text
    assert f"copy its NAME.pub to {daemon.home / 'keys' / 'boards'}" in text

    copy = daemon.admit(public)
    host.says("admitted: new")
    assert daemon.status()["pending"] == []
    admitted = daemon.agent("new")
    until("it to connect", lambda: daemon.board("new").get("state") == "connected")
    watched = daemon.ask("run", daemon.bench.experiment("both", TWO_ROUNDS, fleet={"kind": "boards"}))
    assert "2 boards" in watched.out

    copy.unlink()
    host.says("withdrawn: new")
    assert admitted.ends() == 5, admitted.err
    assert "its key was withdrawn" in admitted.err
    assert [row["name"] for row in daemon.status()["boards"]] == ["old"]
    copy.write_text("no key at all\n", encoding="utf-8")
    host.says("not a key (40 characters of Z85 expected); left out")
    assert daemon.board("old")["state"] == "connected"


def test_a_daemon_that_is_stopped_in_a_run_ends_in_order_and_its_queue_lives_on(daemon: Daemon) -> None:
    daemon.make_board("a")
    host = daemon.start()
    agent = daemon.agent("a")
    active = daemon.submit("active", {**LONG, "rounds": 12})
    waiting = daemon.submit("waiting", TWO_ROUNDS)
    until("it to work", lambda: daemon.is_active(active, 2))
    watch = daemon.bench.start("watch", "paceline", "watch", "--host", "h")
    watch.says("is over")

    host.signal(signal.SIGTERM)

    assert host.ends() == 0, host.err
    assert watch.ends() == 9, watch.err
    assert "it goes on when the host is started again" in watch.err
    agent.says("the host said goodbye: the host has ended")
    assert (daemon.state(active), daemon.state(waiting)) == ("active", "queued")
    with daemon.ledger(f"{active}/equal") as ledger:
        assert ledger.verify().faults == ()

    daemon.make_board("new")  # which is for later experiments: a run goes on with the boards it was begun with
    again = daemon.start()
    again.says(f"taken up from before: {active}, {waiting}")
    daemon.agent("new")
    until("the queue to be done", lambda: daemon.state(waiting) == "finished")
    assert daemon.state(active) == "finished"
    with daemon.ledger(f"{active}/equal") as ledger:
        assert ledger.verify().faults == ()
        assert [r.closed_s is not None for r in ledger.rounds()] == [True] * 12
        assert [board.name for board in ledger.boards()] == ["a"]
    with daemon.ledger(f"{waiting}/equal") as ledger:
        assert [board.name for board in ledger.boards()] == ["a", "new"]
    assert agent.process.poll() is None, "it came back by itself"
    again.signal(signal.SIGINT)
    assert again.ends() == 130, again.err


def test_a_daemon_killed_before_a_queued_experiment_began_runs_it_later(daemon: Daemon) -> None:
    daemon.make_board("a")
    host = daemon.start()
    ticket = daemon.submit("kept", TWO_ROUNDS, start_s=60.0)
    behind = daemon.submit("behind", TWO_ROUNDS)
    host.signal(signal.SIGKILL)
    assert host.ends() == -signal.SIGKILL
    assert (daemon.home / "runs" / behind / "experiment.toml").exists()
    (daemon.home / "host.toml").write_text(f'listen = "{daemon.endpoint}"\nresume = false\n', encoding="utf-8")
    daemon.start()
    daemon.agent("a")
    until("the one that had not begun", lambda: daemon.state(behind) == "finished")
    assert daemon.state(ticket) == "stopped", "resume is off"


def test_a_second_daemon_and_wrong_keys_are_refused_in_words(daemon: Daemon) -> None:
    daemon.make_board("a")
    daemon.start()
    second = daemon.bench.call("paceline", "host", "--config", "h/host.toml")
    assert second.ends() == 4, second.err
    assert f"cannot listen on {daemon.endpoint}" in second.err
    (daemon.home / "other.toml").write_text('listen = "tcp://127.0.0.1:*"\n', encoding="utf-8")
    other = daemon.bench.call("paceline", "host", "--config", "h/other.toml")
    assert other.ends() == 10, other.err
    assert "another host daemon works in" in other.err

    wrong = (daemon.home / "operator.toml").read_text(encoding="utf-8")
    daemon.bench.call("paceline", "keys", "mallory", "--dir", "m")
    key = next(line for line in wrong.splitlines() if line.startswith("key_file"))
    (daemon.home / "mallory.toml").write_text(wrong.replace(key, 'key_file = "../m/mallory.key"'), encoding="utf-8")
    (daemon.home / "misled.toml").write_text(wrong.replace("keys/host.pub", "../m/mallory.pub"), encoding="utf-8")
    refused = daemon.bench.call("paceline", "status", "--host", "h/mallory.toml")
    assert refused.ends() == 5, refused.err
    assert "refused this operator's key, fingerprint" in refused.err
    misled = daemon.bench.call("paceline", "status", "--host", "h/misled.toml")
    assert misled.ends() == 5, misled.err
    nowhere = daemon.bench.call("paceline", "status", "--host", "none/operator.toml")
    assert nowhere.ends() == 3, nowhere.err
    assert "none/operator.toml does not exist, so there is no host to speak to" in nowhere.err

    name = next((daemon.home / "keys" / "operators").glob("*.pub")).stem
    board = daemon.bench.folder / name
    board.mkdir()
    for kind in ("key", "pub"):
        (board / f"{name}.{kind}").write_bytes((daemon.home / f"{name}.{kind}").read_bytes())
    (board / f"{name}.key").chmod(0o600)
    agent = daemon.bench.agent(name, daemon.endpoint, host_key="../h/keys/host.pub")
    daemon.host.says(f"operator {name} sent a malformed message, dropped")
    assert agent.process.poll() is None
    assert [row["state"] for row in daemon.status()["boards"]] == ["absent"]


def test_what_init_made_is_never_written_over(daemon: Daemon) -> None:
    before = {path: path.read_bytes() for path in daemon.home.rglob("*") if path.is_file()}
    again = daemon.bench.call("paceline", "host", "--init", "h")
    assert again.ends() == 10, again.err
    assert "host.toml exists already" in again.err
    assert {path: path.read_bytes() for path in daemon.home.rglob("*") if path.is_file()} == before
    assert {path.name for path in before if path.stat().st_mode & 0o077 == 0} >= {"host.key"}


def test_what_cannot_be_meant_is_refused_before_the_daemon_is_asked(daemon: Daemon) -> None:
    for argv in (["stop", ""], ["stop", "../../etc"], ["watch", "a/b"]):
        assert "is no ticket" in daemon.ask(*argv, exits=2).err
    assert "a daemon has its own" in daemon.ask("runs", "--runs-dir", "x", exits=2).err


def test_an_odd_file_among_the_keys_keeps_nobody_else_out(daemon: Daemon) -> None:
    good = daemon.make_board("a")
    boards = daemon.home / "keys" / "boards"
    (boards / "junk.pub").write_text("hello", encoding="ascii")
    (boards / "empty.pub").touch()
    (boards / "folder.pub").mkdir()
    (boards / "copy.pub").write_bytes(good.read_bytes())
    host = daemon.start()
    for name in ("junk", "empty", "folder"):
        assert f"{name}.pub" in host.err
    assert "have the same public key; make each its own; left out" in host.err
    daemon.agent("a")
    until("a to be connected", lambda: daemon.board("a").get("state") == "connected")
    daemon.make_board("late")
    host.says("admitted: late")
    daemon.agent("late")
    until("late to be there", lambda: daemon.board("late").get("state") == "connected")
    daemon.submit("short", TWO_ROUNDS)
    until("the run to be over", lambda: daemon.state("short-001") == "finished")
    (daemon.home / "runs" / "short-001" / "equal" / "journal.sqlite").write_text("rot", encoding="ascii")
    rows = json.loads(daemon.ask("runs", "--json").out)["runs"]
    assert [row["state"] for row in rows if row["run"] == "short-001/equal"] == ["damaged"]


def test_a_run_that_the_disk_ended_leaves_the_boards_to_the_next_one(daemon: Daemon, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        text = (daemon.home / "host.toml").read_text(encoding="utf-8")
        (daemon.home / "host.toml").write_text(f'{text}runs_dir = "{disk / "runs"}"\n', encoding="utf-8")
        daemon.make_board("a")
        daemon.make_board("b")
        daemon.start()
        daemon.agent("a")
        daemon.agent("b")
        plan = daemon.bench.experiment("big", LONG, task={"ballast": 20_000}, fleet={"kind": "boards"})
        ticket = daemon.ask("run", plan, "--detach").out.strip()
        until("its second round", lambda: daemon.is_active(ticket, 2))
        with (disk / "ballast").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 14))
        until("the run to fail", lambda: daemon.status()["active"] is None)
        (disk / "ballast").unlink()
        again = daemon.ask("run", daemon.bench.experiment("next", TWO_ROUNDS, fleet={"kind": "boards"}))
        assert "every sample counted exactly once" in again.out
        daemon.host.process.terminate()
        assert daemon.host.ends() == 0


def test_who_watches_what_is_over_gets_its_report(daemon: Daemon) -> None:
    daemon.make_board("a")
    daemon.start()
    daemon.agent("a")
    ticket = daemon.submit("short", TWO_ROUNDS)
    until("the run to be over", lambda: daemon.state(ticket) == "finished")
    watched = daemon.ask("watch", ticket)
    assert "every sample counted exactly once" in watched.out
    (line,) = daemon.ask("watch", ticket, "--json").out.splitlines()
    assert json.loads(line)["report"]["runs"][0]["counted_exactly_once"] is True


def test_what_was_stopped_is_taken_up_again(daemon: Daemon) -> None:
    daemon.make_board("a")
    daemon.start()
    daemon.agent("a")
    ticket = daemon.submit("long", {**LONG, "rounds": 12})
    until("its third round", lambda: daemon.is_active(ticket, 3))
    daemon.ask("stop", ticket)
    until("it to be stopped", lambda: daemon.state(ticket) == "stopped")
    with daemon.ledger(f"{ticket}/equal") as ledger:
        done = len([row for row in ledger.rounds() if row.closed_s is not None])
    assert 2 <= done < 12
    assert "a/b" in daemon.ask("resume", "a/b", exits=2).err
    again = daemon.ask("resume", ticket)
    assert "every sample counted exactly once" in again.out
    assert daemon.state(ticket) == "finished"
    with daemon.ledger(f"{ticket}/equal") as ledger:
        assert ledger.verify().ok
        assert len(ledger.events("resumed")) == 1
    assert "is finished; only what was stopped" in daemon.ask("resume", ticket, exits=9).err
