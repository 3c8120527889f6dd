# SPDX-License-Identifier: Apache-2.0
"""A board that is this machine: a real sshd on loopback, as this user, whose sessions have a home of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from .fleet_tools import MARK, Bench, Program, until

KEYS = "/etc/paceline-test-keys"  # of a whole board: of users who may not read this test's folder
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


# What a board has for itself, for as long as its sshd lives: users and settings, programs, states. Needs root.
OWN = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/up" "$1/work" &&
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/up,workdir=$1/work" /etc &&
mount -t tmpfs tmpfs /opt && mount -t tmpfs tmpfs /var/lib || { echo 'cannot mount'; exit 1; } >&2
shift; exec "$@"
"""


class Board:
    """`home` is empty at first, and the folder that the tests look at; `options` are those of `boards install`.

    whole: /etc, /opt and /var/lib are the board's own as well, seen below `root`.
    """

    def __init__(self, bench: Bench, *, whole: bool = False) -> None:
        if SSHD is None or shutil.which("ssh") is None:
            pytest.skip("sshd is missing: apt-get install openssh-server")
        self.bench = bench
        self.folder = bench.folder / "board"
        self.home, self.tmp = self.folder / "home", self.folder / "tmp"
        for folder in (self.home, self.tmp):
            folder.mkdir(parents=True)
        for name in ("host", "id"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(command, check=True, timeout=60)
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port: int = free.getsockname()[1]
        self.user = getpass.getuser()
        self.address = f"{self.user}@127.0.0.1"
        self.known_hosts = self.folder / "known_hosts"
        public = (self.folder / "host.pub").read_text(encoding="ascii")
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public}", encoding="ascii")
        environment = {"HOME": self.home, "TMPDIR": self.tmp, MARK: bench.mark}
        lines = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder / 'host'}", "PidFile none",
            f"AuthorizedKeysFile {self.folder / 'id.pub'} {KEYS}", "StrictModes no", "PermitRootLogin yes", "UsePAM no",
            "PasswordAuthentication yes", "KbdInteractiveAuthentication no",
            f"SetEnv {' '.join(f'{key}={value}' for key, value in environment.items())}", "",
        ]  # fmt: skip
        (self.folder / "sshd_config").write_text("\n".join(lines), encoding="ascii")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # what a root's sshd wants, and its package makes
        (self.folder / "own").mkdir()
        begin: list[str | Path] = ["unshare", "--mount", "sh", "-c", OWN, "sh", self.folder / "own"] if whole else []
        self.sshd = Program(bench, "sshd", [*begin, SSHD, "-D", "-e", "-f", self.folder / "sshd_config"])
        bench.programs.append(self.sshd)
        if whole and os.geteuid() != 0:
            pytest.skip("a board with users of its own needs root here")
        self.sshd.says("listening on")

    @property
    def root(self) -> Path:
        """Return where its files are seen from outside."""
        return Path(f"/proc/{self.sshd.pid}/root")

    @property
    def options(self) -> list[str]:
        """Return how to reach it."""
        return [
            "--port", str(self.port), "--identity", str(self.folder / "id"),
            "--ssh-option", f"UserKnownHostsFile={self.known_hosts}", "--ssh-option", "GlobalKnownHostsFile=/dev/null",
            "--python", str(getattr(sys, "_base_executable", sys.executable)),
        ]  # fmt: skip

    def files(self) -> list[str]:
        """Return all that is in its home, and what an installation has left in its temporary folder."""
        return sorted(str(path.relative_to(self.folder)) for top in (self.home, self.tmp) for path in top.rglob("*"))

    def agents(self) -> list[int]:
        """Return the agents that run on it."""
        return [pid for pid, line in self.bench.left().items() if "paceline-agent run" in line]

    def is_tidy(self) -> bool:
        """Wait until nothing of an installation that broke off is left in the temporary folder."""
        return bool(until("the temporary folder to be empty", lambda: not any(self.tmp.iterdir())))
