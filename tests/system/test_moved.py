# SPDX-License-Identifier: Apache-2.0
"""A host that gets another address under the same name, and another key: boards find it, or say what to do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from .fleet_tools import BIN, Bench, Declared, Program, until
from .test_daemon import LONG, Daemon

NAME = "paceline-host.example"
OWN_HOSTS = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'  # in a mount namespace that ends with the process


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def with_hosts(bench: Bench, hosts: Path, *argv: str | Path) -> Program:
    """Start a program that sees this file as /etc/hosts; skip where nobody may have a mount of his own."""
    as_root = ["--map-root-user"] if os.getuid() else []
    unshare: list[str | Path] = ["unshare", "--mount", *as_root, "sh", "-c", OWN_HOSTS, "sh", hosts]
    tried = subprocess.run([*unshare, "true"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"cannot have a mount namespace: {tried.stderr.decode().strip()}")
    program = Program(bench, f"named-{len(bench.programs)}", [*unshare, *argv])
    bench.programs.append(program)
    return program


def move(daemon: Daemon, hosts: Path, address: str) -> None:
    """Let the host end in order, and come back at another address, which the name stands for from now on."""
    daemon.host.signal(signal.SIGTERM)
    assert daemon.host.ends() == 0, daemon.host.err
    port = daemon.endpoint.rpartition(":")[2]
    daemon.endpoint = f"tcp://{address}:{port}"
    (daemon.home / "host.toml").write_text(f'listen = "{daemon.endpoint}"\npatience_s = 3.0\n', encoding="utf-8")
    operator = (daemon.home / "operator.toml").read_text(encoding="utf-8")
    lines = [f'endpoint = "{daemon.endpoint}"' if "endpoint" in line else line for line in operator.splitlines()]
    (daemon.home / "operator.toml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    hosts.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n", encoding="utf-8")
    daemon.start()


@pytest.mark.in_turn
def test_a_board_finds_its_host_at_another_address_and_goes_on_with_another_key_of_it(daemon: Daemon) -> None:
    hosts = daemon.bench.folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {NAME}\n", encoding="utf-8")
    daemon.make_board("a")
    daemon.start()
    port = daemon.endpoint.rpartition(":")[2]
    config = daemon.bench.write_agent("a", f"tcp://{NAME}:{port}", Declared(), host_key="../h/keys/host.pub")
    pinned = daemon.bench.folder / "a" / "host.pub"  # a copy, as on a board
    pinned.write_bytes((daemon.home / "keys" / "host.pub").read_bytes())
    config.write_text(config.read_text(encoding="utf-8").replace("../h/keys/host.pub", "host.pub"), "utf-8")
    agent = with_hosts(daemon.bench, hosts, BIN / "paceline-agent", "run", "--config", config)
    ticket = daemon.submit("moved", LONG)
    until("work", lambda: daemon.is_active(ticket, 2))

    move(daemon, hosts, "127.0.0.2")
    daemon.host.says(f"taken up from before: {ticket}")
    until("work at the other address", lambda: daemon.board("a").get("doing", "").startswith("trains"))
    assert agent.process.poll() is None, "the same agent has found it"

    # The host's key is changed as docs/SECURITY.md has it; that a board with the old one does not talk to it, the tests
    # of the link show.
    daemon.host.signal(signal.SIGTERM)
    assert daemon.host.ends() == 0, daemon.host.err
    (daemon.home / "before").mkdir()
    for name in ("host.key", "host.pub"):
        (daemon.home / "keys" / name).rename(daemon.home / "before" / name)
    made = daemon.bench.call("paceline", "keys", "--dir", daemon.home / "keys")
    assert made.ends() == 0, made.err
    daemon.start()
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 0, agent.err

    pinned.write_bytes((daemon.home / "keys" / "host.pub").read_bytes())
    with_hosts(daemon.bench, hosts, BIN / "paceline-agent", "run", "--config", config)
    until("work under the new key", lambda: daemon.board("a").get("doing", "").startswith("trains"))
    daemon.ask("stop")
    until("its end", lambda: daemon.state(ticket) == "stopped")
    with daemon.ledger(f"{ticket}/equal") as ledger:
        assert ledger.verify().faults == ()
        assert len(ledger.events("resumed")) == 2
