# SPDX-License-Identifier: Apache-2.0
"""`paceline doctor` on real files, ports and daemons: each row is right, and a bad one says what to do."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.version import VERSION
from paceline_host.doctor import file_system

from .fleet_tools import Bench, Declared, until
from .raw_peer import RawPeer
from .test_daemon import Daemon


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def rows(daemon: Daemon, *arguments: str, exits: int = 0) -> dict[str, dict[str, Any]]:
    """Return the rows of `paceline doctor` by name, the last of each."""
    done = daemon.bench.call("paceline", "doctor", "--config", "h/host.toml", *arguments, "--json")
    assert done.ends() == exits, done.out + done.err
    document = json.loads(done.out)
    assert document["ok"] == (exits == 0)
    return {row["name"]: row for row in document["rows"]}


def test_a_host_that_is_fit_is_told_so_before_it_is_started(daemon: Daemon) -> None:
    daemon.make_board("pi")
    found = rows(daemon)
    assert {row["name"]: row["fix"] for row in found.values() if row["state"] != "ok"} == {
        "daemon": "start one: paceline host --config host.toml"
    }
    assert found["port"]["about"] == f"{daemon.endpoint} is free"
    assert found["peers"]["about"] == "1 boards, 1 operators"
    assert found["runs"]["about"] == "none yet"
    assert {"python", "clock", "config", "key", "descriptors", "disk", "file system", "numpy", "torch"} <= found.keys()


def test_of_a_daemon_it_tells_who_is_there_and_who_has_another_version(daemon: Daemon) -> None:
    daemon.make_board("pi")
    daemon.make_board("old")
    (daemon.bench.folder / "keys").symlink_to(daemon.home / "keys")
    daemon.make_board("stranger", admitted=False)
    daemon.start()
    daemon.agent("pi")
    assert daemon.bench.agent("stranger", daemon.endpoint, Declared(), host_key="../h/keys/host.pub").ends() == 5
    with RawPeer(daemon.bench.folder, "old", daemon.endpoint) as old:
        old.hello()
        until("both to be here", lambda: all(daemon.board(name)["state"] == "connected" for name in ("pi", "old")))
        found = rows(daemon)
    assert found["daemon"]["about"] == f"it answers at {daemon.endpoint}; 2 of 2 boards are connected"
    assert found["version"]["about"] == f"old runs paceline raw, the host {VERSION}"
    assert "copy its NAME.pub to" in found["pending"]["fix"]
    assert "port" not in found


def test_each_fault_is_named_and_ends_with_its_status(daemon: Daemon) -> None:
    (daemon.home / "keys" / "boards" / "bad.pub").write_text("no key\n")
    assert "bad.pub: not a key" in daemon.bench.call("paceline", "doctor", "--config", "h/host.toml").out

    operator = daemon.home / "operator.toml"
    operator.rename(daemon.home / "elsewhere.toml")
    with closing(socket.create_server(("127.0.0.1", int(daemon.endpoint.rpartition(":")[2])))):
        assert "Address already in use" in rows(daemon, exits=4)["port"]["about"]
    (daemon.home / "elsewhere.toml").rename(operator)

    secret = daemon.home / "keys" / "host.key"
    secret.chmod(0o644)
    assert f"chmod 600 {secret}" in rows(daemon, exits=5)["key"]["about"]
    secret.chmod(0o600)
    public = daemon.home / "keys" / "host.pub"
    public.write_bytes(next((daemon.home / "keys" / "operators").glob("*.pub")).read_bytes())
    assert "does not belong to host.key" in rows(daemon, exits=5)["key"]["about"]

    (daemon.home / "host.toml").write_text("lisen = 3\n")
    assert "did you mean listen?" in rows(daemon, exits=3)["config"]["about"]


def test_the_kind_of_a_file_system_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    deep = str(tmp_path.resolve()).replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\npc:/x {deep}/far nfs4 rw 0 0\ny {deep}/farther fuse.sshfs rw 0 0\n")
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(tmp_path / "far" / "runs", mounts) == "nfs4"
    assert file_system(tmp_path / "farther", mounts) == "fuse.sshfs"
    assert file_system(tmp_path / "far-off", mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "none") == "unknown"
