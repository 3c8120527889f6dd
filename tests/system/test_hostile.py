# SPDX-License-Identifier: Apache-2.0
"""Hostile peers against a running host: what strangers can take, what a board with a good key can and cannot do."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from paceline import wire
from paceline.keys import read_pair
from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, Program, endpoint_of, until
from .raw_peer import RawPeer
from .test_daemon import LONG, Daemon

GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE".ljust(64, b"\0")
DESCRIPTORS = 160  # of a host that a flood can exhaust in no time
FLOOD = 400


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def floats(value: float, nbytes: int) -> bytes:
    return struct.pack("<f", value) * (nbytes // 4)


def test_what_is_said_again_what_is_huge_and_what_lies_is_seen_for_what_it_is(bench: Bench) -> None:
    bench.make_keys("evil", "good")
    host = bench.host(bench.experiment("lies", {"rounds": 6, "budget": 400, "policies": ["time"]}))
    endpoint = endpoint_of(host)
    bench.agent("good", endpoint, Declared(speed=4.0))
    with RawPeer(bench.folder, "evil", endpoint) as evil:
        evil.hello()
        evil.ready()
        first, nbytes = evil.take()
        for number in range(1, 7):
            assign = first if number == 1 else evil.take()[0]
            if number == 2:  # all of the round before once more: its lease is over
                evil.upload(first, floats(0.01, nbytes))
                assert evil.hear(wire.Answer).verdict == "stale"
            huge, lies = number == 4, number == 5
            took_us, joules = (100_000_000, 300_000_000) if lies else (100_000, 300_000)
            evil.upload(assign, floats(1e6 if huge else 0.01, nbytes), compute_us=took_us, compute_uj=joules)
            answer = evil.hear(wire.Answer)
            assert answer.verdict == ("rejected" if huge else "accepted"), answer.reason
            if huge:
                assert "times the" in answer.reason
        assert host.ends() == 0, host.err

    assert "evil: update refused: its norm per step" in host.err
    with Ledger(bench.folder / "runs" / "lies-001" / "time") as ledger:
        assert ledger.verify().faults == ()
        assert [(c.round, c.board) for c in ledger.contributions(verdict="rejected")] == [(4, 0)]
        (dropped,) = ledger.events("dropped")
        assert "3 stale-lease" in dropped.detail, "RESULT, CHUNK and COMMIT"
    told = bench.call("paceline", "explain", bench.folder / "runs" / "lies-001" / "time", "--round", "6")
    assert told.out.count("its last report was 100 times off, and waits for a second one like it") == 1


def test_a_board_that_sends_rubbish_without_end_fills_no_log_and_no_journal(bench: Bench) -> None:
    bench.make_keys("evil", "good")
    fleet = {"kind": "boards", "keys": "keys", "start_s": 4.0}
    host = bench.host(bench.experiment("noise", {"rounds": 3, "budget": 60, "policies": ["equal"]}, fleet=fleet))
    endpoint = endpoint_of(host)
    with RawPeer(bench.folder, "evil", endpoint) as evil:
        evil.hello()
        run = evil.hear(wire.Load).run
        for number in range(3000):
            evil.send_frames(b"\xc1%d" % number)
        for window in range(1, 201):  # joules of as many lives as it likes
            evil.send(wire.Energy(evil.session, window, run, 0, 1, 1, 1, 1, 1, 5, 1, 10, 10, "modelled", 0))
        evil.send(wire.Bye(evil.session, "enough"))
        bench.agent("good", endpoint, Declared(speed=4.0))
        assert host.ends() == 0, host.err
    with Ledger(bench.folder / "runs" / "noise-001" / "equal") as ledger:
        assert len([event for event in ledger.events("warning") if event.board == 0]) <= 21
        assert len(ledger.energy(board=0)) == 64
        (dropped,) = ledger.events("dropped")
        assert "136 against-the-run" in dropped.detail
        assert "3000 malformed" in dropped.detail
    assert host.err.count("evil sent a malformed message") <= 20
    assert "evil goes on like that; what comes within a minute is only counted" in host.err


class Flood(threading.Thread):
    """Keeps so many connections open that never finish their handshake; a new one for each that the host cuts off."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        ip, port = endpoint.removeprefix("tcp://").split(":")
        self.address = ip, int(port)
        self.made = 0
        self._over = threading.Event()

    def run(self) -> None:
        held: list[socket.socket] = []
        while not self._over.wait(0.002):
            with suppress(OSError):
                stranger = socket.create_connection(self.address, timeout=1.0)
                stranger.sendall(GREETING)
                held.append(stranger)
                self.made += 1
            if len(held) > FLOOD:
                held.pop(0).close()
        for stranger in held:
            stranger.close()

    def end(self) -> None:
        self._over.set()
        self.join()


def descriptors(program: Program) -> int:
    return len(os.listdir(f"/proc/{program.pid}/fd"))


def test_a_flood_of_strangers_stops_no_board_and_leaves_nothing_behind(bench: Bench) -> None:
    """More connections than the host has descriptors: it says so, and what is connected is served."""
    bench.make_keys("good", "late")
    experiment = bench.experiment("flood", {"rounds": 60, "budget": 400, "minimum": 10, "policies": ["equal"]})
    limited = f"import os, resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}));"
    arguments = ["paceline", "run", str(experiment), "--runs-dir", str(bench.folder / "runs")]
    command = f"{limited} import sys; sys.argv = {arguments!r}; from paceline_host.cli import main; sys.exit(main())"
    host = bench.start_python("host", "-c", command)
    endpoint = endpoint_of(host)
    for board in ("good", "late"):
        bench.agent(board, endpoint, Declared(speed=1.0))
    bench.watch("flood-001/equal", "a round", lambda ledger: len(ledger.rounds()) >= 2, host)
    before = descriptors(host)

    flood = Flood(endpoint)
    flood.start()
    try:
        host.says("connections, no more are let in")
        reached = bench.watch("flood-001/equal", "rounds", lambda ledger: len(ledger.rounds()), host)
        bench.watch("flood-001/equal", "more rounds", lambda ledger: len(ledger.rounds()) >= reached + 3, host)
    finally:
        flood.end()

    assert flood.made > DESCRIPTORS
    until("its connections to be gone", lambda: host.process.poll() is not None or descriptors(host) <= before + 5)
    assert host.ends(60.0) == 0, host.err
    with Ledger(bench.folder / "runs" / "flood-001" / "equal") as ledger:
        assert ledger.verify().faults == ()


def test_a_boards_key_is_changed_without_stopping_the_run(daemon: Daemon) -> None:
    """What was stolen with the old key is worth nothing from the moment on that the new one is in its place."""
    daemon.make_board("a")
    daemon.make_board("b")
    host = daemon.start()
    daemon.agent("a")
    old = daemon.agent("b")
    ticket = daemon.submit("long", {**LONG, "rounds": 60})
    until("work", lambda: daemon.is_active(ticket, 2))

    stolen = read_pair(daemon.bench.folder / "b" / "b.key")
    (daemon.bench.folder / "b").rename(daemon.bench.folder / "b-before")
    daemon.make_board("b")  # a new pair, admitted in place of the old one
    host.says("withdrawn: b")
    assert old.ends() == 5, old.err
    assert "its key was withdrawn" in old.err
    daemon.agent("b")
    until("it to be back", lambda: daemon.board("b").get("state") == "connected")

    assert read_pair(daemon.bench.folder / "b" / "b.key") != stolen
    daemon.ask("stop")
    until("the end", lambda: daemon.status()["active"] is None)
    with Ledger(Path(daemon.home) / "runs" / ticket / "equal") as ledger:
        assert ledger.verify().faults == ()
        assert {c.board for c in ledger.contributions(verdict="accepted")} == {0, 1}


def test_an_operator_whose_key_is_withdrawn_sees_nothing_more_of_a_run(daemon: Daemon) -> None:
    daemon.make_board("a")
    host = daemon.start()
    daemon.agent("a")
    ticket = daemon.submit("long", LONG)
    until("work", lambda: daemon.is_active(ticket, 2))
    watch = daemon.bench.start("watch", "paceline", "watch", "--host", "h")
    watch.says("round")
    (operator,) = (daemon.home / "keys" / "operators").glob("*.pub")
    key = operator.read_bytes()
    operator.unlink()
    host.says("operators withdrawn: ")
    assert watch.ends(40.0) != 0
    assert "refused this operator's key" in daemon.ask("stop", exits=5).err
    operator.write_bytes(key)
    host.says("operators admitted: ")
    daemon.ask("stop")
