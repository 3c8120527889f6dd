# SPDX-License-Identifier: Apache-2.0
"""`paceline top` over a real daemon and a real journal: in a terminal, in a pipe, and when the host is gone."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest

from .fleet_tools import BIN, WAIT_S, Bench, until
from .test_daemon import LONG, Daemon


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def read_until(terminal: int, *texts: str) -> str:
    """Return what a program writes to its terminal until all texts have come, in order."""
    said, end_s = "", time.monotonic() + WAIT_S
    while not re.search(".*".join(map(re.escape, texts)), said, re.DOTALL):
        assert time.monotonic() < end_s, said
        if select.select([terminal], [], [], 0.2)[0]:
            said += os.read(terminal, 65536).decode()
    return said


def test_top_shows_a_daemon_and_a_journal_and_leaves_the_terminal_as_it_was(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "broken"):
        daemon.make_board(name)
    daemon.make_board("unknown", admitted=False)
    host = daemon.start()
    daemon.agent("a")
    daemon.agent("b", speed=0.5)
    with monkeypatch.context() as planted:
        planted.setenv("PYTHONPATH", str(Path(__file__).parent / "planted"))
        planted.setenv("PACELINE_PLANTED", "dying")
        broken = daemon.agent("broken")
    ticket = daemon.submit("watched", {**LONG, "rounds": 4000})
    until("work", lambda: daemon.is_active(ticket, 2))
    assert daemon.agent("unknown").ends() == 5

    given_up = "3 times in a row, so not started again in this run"
    assert given_up in broken.says(given_up), "the board's own log says so, too"

    page = daemon.ask("top", "--once").out
    assert f"{ticket}, equal: " in page
    assert re.search(r"^a +\d+/100 +[\d.]+ \w*s +\d+\.\d\d +[\d.]+ ", page, re.MULTILINE), page
    assert f"failed: broken: trainer-gone: the trainer ended with status 3; {given_up}" in page
    assert re.search("^broken .*gets no more work in this run, after failures", page, re.MULTILINE), page
    assert "warning: refused an unknown key from 127.0.0.1" in page
    told = json.loads(daemon.ask("top", "--once", "--json").out)
    assert {event["kind"] for event in told["events"]} >= {"begins", "warning"}
    assert {row["name"]: row["share"] for row in told["boards"]} == {"a": 100, "b": 100, "broken": 0}

    run = daemon.home / "runs" / ticket
    lines = daemon.bench.start("lines", "paceline", "top", run, "--interval", "0.2", "--json")
    until("a second look", lambda: lines.out.count("\n") >= 2)
    lines.signal(signal.SIGINT)
    assert lines.ends() == 130, lines.err
    with daemon.ledger(f"{ticket}/equal") as ledger:
        assert any("refused an unknown key" in event.detail for event in ledger.events("warning")), "a refusal is kept"
    assert {row["name"] for row in json.loads(lines.out.splitlines()[0])["boards"]} == {"a", "b", "broken"}

    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    termios.tcsetwinsize(slave, (12, 50))
    argv = [str(BIN / "paceline"), "top", "--host", "h", "--interval", "0.2"]
    top = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, cwd=daemon.bench.folder, start_new_session=True
    )
    said = read_until(master, "\x1b[H", "watched", "\x1b[J", "\x1b[H", "watched")
    top.send_signal(signal.SIGINT)
    assert top.wait(WAIT_S) == 130
    assert "\x1b[?" not in said, "no mode of the terminal is changed"
    assert termios.tcgetattr(slave) == before
    pages = [part.split("\x1b[J")[0] for part in said.split("\x1b[H")[1:-1]]
    for shown in (re.sub(r"\x1b\[K", "", part).splitlines() for part in pages):
        assert len(shown) < 12, "\n".join(shown)
        assert max(map(len, shown)) < 50
    os.close(master)
    os.close(slave)

    host.signal(signal.SIGKILL)
    host.ends()
    assert "nothing listens at" in daemon.ask("top", "--once", exits=4).err
    assert (
        "no process works on it; paceline resume goes on with it"
        in daemon.bench.call("paceline", "top", run, "--once").out
    )
