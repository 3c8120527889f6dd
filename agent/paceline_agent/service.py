# SPDX-License-Identifier: Apache-2.0
"""An installed agent as a service: systemd's where that runs and the unit is there, else a process in the background.

Both are started until the agent itself says READY, so that whoever starts one hears at once why it did not come up.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from paceline.errors import RunError, StorageError
from paceline_agent.places import UNIT, Places

READY_S = 60.0  # a slow card needs half of it for the imports
STOP_S = 20.0  # the agent's own end takes a few seconds: goodbye, trainer, meter
LOG_BYTES = 1 << 20  # of a log that nobody rotates: at the next start it becomes agent.log.old


class Service(Protocol):
    """What can be done with an installed agent."""

    kind: str

    def start(self) -> None:
        """End it when it runs, then start it. Raises RunError with its last words."""

    def stop(self) -> None:
        """End it in order; nothing when it does not run."""

    def is_running(self) -> bool:
        """Tell whether it runs."""

    def log(self, lines: int) -> str:
        """Return its last words."""


def service(where: Places) -> Service:
    """Return the service of an installed agent."""
    if where.unit is not None and where.unit.exists() and Path("/run/systemd/system").is_dir():
        return _Systemd()
    return _Background(where)


class _Systemd:
    kind = "systemd"

    def start(self) -> None:
        systemctl("reset-failed", UNIT, check=False)
        if systemctl("restart", UNIT, check=False):
            raise RunError(f"the agent did not come up; it says: {_line(self.log(3))}")

    def stop(self) -> None:
        systemctl("stop", UNIT)

    def is_running(self) -> bool:
        return not systemctl("is-active", "--quiet", UNIT, check=False)

    def log(self, lines: int) -> str:
        command = ["journalctl", "--unit", UNIT, "--lines", str(lines), "--no-pager", "--output", "cat"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.rstrip()


class _Background:
    """A process of its own session. That it runs, the lock on its state folder says; who it is, agent.pid."""

    kind = "background"

    def __init__(self, where: Places) -> None:
        self._where = where
        self._log, self._pid = where.state / "agent.log", where.state / "agent.pid"

    def start(self) -> None:
        self.stop()
        where = self._where
        where.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            if self._log.stat().st_size > LOG_BYTES:
                self._log.replace(self._log.with_suffix(".log.old"))
        address = f"paceline-{secrets.token_hex(8)}"
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as ear, self._log.open("ab") as log:
            begin = log.tell()
            ear.bind(f"\0{address}")
            ear.settimeout(0.2)
            process = subprocess.Popen(
                [str(where.program), "run", "--config", str(where.config)], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd="/", start_new_session=True, env={**os.environ, "NOTIFY_SOCKET": f"@{address}"},
            )  # fmt: skip
            self._pid.write_text(f"{process.pid}\n", encoding="ascii")
            end_s = time.monotonic() + READY_S
            while process.poll() is None and time.monotonic() < end_s:
                with suppress(TimeoutError):
                    if ear.recv(100) == b"READY=1":
                        return
        status = process.poll()
        how = f"ended with status {status}" if status is not None else f"was not ready within {READY_S:g} s"
        self.stop()
        with self._log.open("rb") as log:
            log.seek(begin)
            said = log.read().decode("utf-8", "replace")
        raise RunError(f"the agent {how}; it says: {_line(said)}")

    def stop(self) -> None:
        if not self.is_running():
            return
        try:
            pid = int(self._pid.read_text(encoding="ascii"))
        except (OSError, ValueError):
            raise RunError(
                f"an agent that this did not start works in {self._where.state}; end it there, then try again"
            ) from None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            end_s = time.monotonic() + STOP_S
            while self.is_running() and time.monotonic() < end_s:
                time.sleep(0.02)
            if not self.is_running():
                self._pid.unlink(missing_ok=True)
                return
        raise RunError(f"the agent with pid {pid} does not end; look at it, then try again")

    def is_running(self) -> bool:
        try:
            descriptor = os.open(self._where.state / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{self._where.state}: {error.strerror}; use the user that installed it") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def log(self, lines: int) -> str:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def _line(words: str) -> str:
    """Return the last words of a program on one line."""
    return " / ".join(line for line in words.splitlines()[-3:] if line.strip()) or "nothing"


def systemctl(*arguments: str, check: bool = True) -> int:
    """Run systemctl; return its exit status. Raises RunError."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RunError(f"systemctl {' '.join(arguments)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.returncode
