# SPDX-License-Identifier: Apache-2.0
"""Emulated boards on this machine: the same agent program and arguments as on a board, one process each (DECISIONS 50).

A fleet lives and dies with its parent: every process holds the read end of a pipe as its stdin, and ends when it
closes. All trainers are forked from one preloaded, thread-free server, so that eleven are ready in a moment.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline import toml
from paceline.errors import KeyFileError, RunError
from paceline.keys import read_pair, write_pair
from paceline_host.link import new_pair, public_of
from paceline_host.profile import BoardProfile, Profile

END_S = 5.0  # what an orderly end may take before a process is killed
SOCKET_PATH = 107  # bytes in the path of a Unix socket
SERVER_S = 60.0  # importing torch on a busy small machine


@dataclass(frozen=True)
class Ended:
    """A process of the fleet that is no more."""

    board: str
    text: str


class LocalFleet:
    """Processes of one profile. Make it, `start` it once the host listens, `close` it in any case."""

    def __init__(self, profile: Profile, folder: Path, data_dir: Path | None, preload: Sequence[str]) -> None:
        self.profile = profile
        self.folder = folder
        self._data_dir = data_dir
        self._preload = preload
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._sockets = Path(tempfile.mkdtemp(prefix="paceline-"))
        if len(str(self._sockets)) > SOCKET_PATH - len("/trainers.starting"):
            shutil.rmtree(self._sockets, ignore_errors=True)
            raise RunError(f"{self._sockets}: is too long for the path of a socket; set TMPDIR to a shorter folder")
        self.host_keys = new_pair()
        self.boards = {board.name: self._prepare(board) for board in profile.boards}

    def start(self, endpoint: str, stopping: Callable[[], bool]) -> None:
        """Start the trainer server and all agents, unless `stopping`. Raises RunError when the server fails."""
        socket_path = self._sockets / "trainers"
        self._server = self._spawn(
            "trainers",
            ["-m", "paceline_agent.trainer_server", "--socket", str(socket_path), "--preload", ",".join(self._preload)],
        )
        deadline_s = time.monotonic() + SERVER_S
        while not socket_path.exists():
            if stopping():
                return
            if self._server.poll() is not None or time.monotonic() > deadline_s:
                raise RunError(f"the trainer server did not start: {self._log_end('trainers')}")
            time.sleep(0.02)
        for seed, board in enumerate(self.profile.boards):
            config = self._home(board.name) / "agent.toml"
            config.write_text(self._agent_toml(board, endpoint, socket_path, seed), encoding="utf-8")
            self._processes[board.name] = self._spawn(
                board.name, ["-m", "paceline_agent", "run", "--config", str(config)]
            )

    def pids(self) -> dict[str, int]:
        """Return the agents' process ids by board."""
        return {name: process.pid for name, process in self._processes.items()}

    def ended(self) -> list[Ended]:
        """Return the agents that have ended since the last call."""
        out = []
        for name, process in list(self._processes.items()):
            status = process.poll()
            if status is not None:
                del self._processes[name]
                how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
                out.append(Ended(name, f"its agent process ended {how}: {self._log_end(name)}"))
        return out

    def close(self) -> None:
        """End all processes: first by closing their pipe, after END_S by force."""
        processes = [*self._processes.values(), *([self._server] if self._server else [])]
        for process in processes:
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        deadline_s = time.monotonic() + END_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self._server = None
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which ends the fleet in order
            )

    def _home(self, board: str) -> Path:
        return self.folder / board

    def _prepare(self, board: BoardProfile) -> str:
        home = self._home(board.name)
        with suppress(KeyFileError):  # a fleet that is started again: its boards are who they were
            pair = read_pair(home / f"{board.name}.key")
            if public_of(pair.secret) == pair.public:
                return pair.public
        for half in (f"{board.name}.key", f"{board.name}.pub"):  # of a host that was killed in between
            (home / half).unlink(missing_ok=True)
        pair = new_pair()
        write_pair(home, board.name, pair)
        return pair.public

    def _agent_toml(self, board: BoardProfile, endpoint: str, trainers: Path, seed: int) -> str:
        """Return what a board of this profile would have in its agent.toml, and its declared pace and power."""
        home = self._home(board.name).resolve()
        lines = [
            f"key_file = {_quoted(home / (board.name + '.key'))}",
            f"state_dir = {_quoted(home / 'state')}",
            f"data_dir = {_quoted(self._data_dir.resolve())}" if self._data_dir else "",
            "end_with_stdin = true",
            "[host]",
            f"endpoint = {_quoted(endpoint)}",
            f"public_key = {_quoted(self.host_keys.public)}",
            "[trainer]",
            f"server = {_quoted(trainers)}",
        ]
        return "\n".join([*(line for line in lines if line), *board_tables(board, seed), ""])

    def _log_end(self, name: str) -> str:
        try:
            lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else f"nothing in {name}.log"


def board_tables(board: BoardProfile, seed: int) -> list[str]:
    """Return the TOML lines of [meter] and [emulation] that make an agent behave as this board."""
    pace = {
        "speed": board.speed, "step_fixed_s": board.step_fixed_s, "noise": board.noise,
        "throttle_after_s": board.throttle_after_s, "throttle_factor": board.throttle_factor, "seed": seed,
    }  # fmt: skip
    lines = ["[meter]", 'source = "modelled"', f"idle_w = {board.idle_w!r}", f"active_w = {board.active_w!r}"]
    if board.paced:
        lines += ["[emulation]", *(f"{key} = {value!r}" for key, value in pace.items())]
    return lines


def _quoted(value: object) -> str:
    return toml.inline(str(value))
