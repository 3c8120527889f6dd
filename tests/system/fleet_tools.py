# SPDX-License-Identifier: Apache-2.0
"""A bench for system tests: real processes, real sockets, real files. Whatever it started it ends, and proves that.

Every process of a bench carries a mark in its environment, which its children inherit; so what a test left behind is
found whoever started it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from paceline.errors import StorageError
from paceline_host.ledger import Ledger
from paceline_host.records import Run

BIN = Path(sys.executable).parent
WAIT_S = 30.0  # far above what anything here takes; a test that needs it has failed
END_S = 5.0  # what processes may take to follow their parent
MARK = "PACELINE_BENCH"
TRAIN, TEST = 90, 20  # pictures of the fixture of that name
T = TypeVar("T")


def until(what: str, probe: Callable[[], T], wait_s: float = WAIT_S) -> T:
    """Return the first truthy answer of `probe`; fail with `what` when there is none in time."""
    end_s = time.monotonic() + wait_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end_s:
            raise AssertionError(f"waited {wait_s:g} s in vain for: {what}")
        time.sleep(0.01)


@dataclass(frozen=True)
class Declared:
    """What a board's agent.toml declares."""

    speed: float = 1.0
    idle_w: float = 1.0
    active_w: float | None = 3.0  # None: the board has no meter
    step_fixed_s: float = 0.0
    throttle_after_s: float = 0.0
    throttle_factor: float = 1.0

    def pace(self) -> list[str]:
        names = ("speed", "step_fixed_s", "throttle_after_s", "throttle_factor")
        return [f"{name} = {getattr(self, name)!r}" for name in names]

    def tables(self) -> list[str]:
        meter = [] if self.active_w is None else [
            "[meter]", 'source = "modelled"', f"idle_w = {self.idle_w!r}", f"active_w = {self.active_w!r}"
        ]  # fmt: skip
        return [*meter, "[emulation]", *self.pace()]


class Program:
    """A process of a bench, its two streams in files."""

    def __init__(self, bench: Bench, name: str, argv: Sequence[str | Path], cwd: Path | None = None) -> None:
        self.name = name
        self._out, self._err = bench.folder / f"{name}.out", bench.folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [str(part) for part in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd or bench.folder,
                env={**os.environ, MARK: bench.mark},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str, wait_s: float = WAIT_S) -> str:
        """Wait until stderr holds `text`; return the first whole line with it."""

        def look() -> str:
            if self.process.poll() is not None and text not in self.err:
                raise AssertionError(
                    f"{self.name} ended with {self.process.returncode}, never said {text!r}:{self.err}"
                )
            return next((line for line in self.err.splitlines(keepends=True) if text in line and line[-1] == "\n"), "")

        return until(f"{self.name} to say {text!r}; it said:\n{self.err}", look, wait_s)

    def ends(self, wait_s: float = WAIT_S) -> int:
        """Wait for the end; return the exit status (negative: the signal)."""
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {wait_s:g} s; it said:\n{self.err}") from None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)


@dataclass
class Bench:
    """A folder with keys, boards, experiments, runs; and the processes that work on it."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    programs: list[Program] = field(default_factory=list)

    def __enter__(self) -> Bench:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End everything; when the test went well, also require that the programs' own end had left nothing."""
        for program in self.programs:
            if program.process.poll() is None:
                program.signal(signal.SIGCONT)
                program.signal(signal.SIGTERM)
        for program in self.programs:
            with suppress(subprocess.TimeoutExpired):
                program.process.wait(END_S)
        left: Mapping[int, str] = {}
        with suppress(AssertionError):
            until("nothing left", lambda: not self.left(), END_S)
        left = self.left()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for program in self.programs:
            program.process.wait()
        if kind is None:
            assert not left, f"still alive after the end: {left}"

    # Processes --------------------------------------------------------------------------------------------------------

    def start(self, name: str, *argv: str | Path, cwd: Path | None = None) -> Program:
        """Start a program of the virtual environment: argv[0] is `paceline` or `paceline-agent`."""
        program = Program(self, name, [BIN / argv[0], *argv[1:]], cwd)
        self.programs.append(program)
        return program

    def start_python(self, name: str, *argv: str | Path, cwd: Path | None = None) -> Program:
        """Start a Python program of ours."""
        program = Program(self, name, [sys.executable, *argv], cwd)
        self.programs.append(program)
        return program

    def call(self, *argv: str | Path) -> Program:
        """Run a program to its end."""
        program = self.start(f"call-{len(self.programs)}", *argv)
        program.ends()
        return program

    def left(self) -> dict[int, str]:
        """Return pid -> command line of each living process of this bench."""
        mark = f"{MARK}={self.mark}".encode()
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found[int(folder.name)] = command_line(int(folder.name))
        return found

    # Files ------------------------------------------------------------------------------------------------------------

    def make_keys(self, *boards: str) -> None:
        """Make the host's keys and those of the boards, with the two programs; then do what they say."""
        assert self.call("paceline", "keys", "--dir", "keys").ends() == 0
        for board in boards:
            made = self.call("paceline-agent", "keys", "--dir", self.folder / board, "--name", board)
            assert made.ends() == 0, made.err
            public = Path(made.out.strip())
            (self.folder / "keys" / "boards" / public.name).write_bytes(public.read_bytes())

    def write_agent(
        self, board: str, endpoint: str, declared: Declared | None = None, *, state: str = "state",
        host_key: str = "../keys/host.pub", name: str = "agent.toml",
    ) -> Path:  # fmt: skip
        """Write an agent.toml; return its path."""
        lines = [
            f'key_file = "{board}.key"', f'state_dir = "{state}"', "[host]", f'endpoint = "{endpoint}"',
            f'public_key = "{host_key}"', *(declared or Declared()).tables(), "",
        ]  # fmt: skip
        path = self.folder / board / name
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    def agent(self, board: str, endpoint: str, declared: Declared | None = None, **more: str) -> Program:
        """Start a board's agent."""
        config = self.write_agent(board, endpoint, declared, **more)
        return self.start(f"{board}-{config.stem}-{len(self.programs)}", "paceline-agent", "run", "--config", config)

    def experiment(
        self, name: str, run: Mapping[str, object], *, task: Mapping[str, object] | None = None,
        fleet: Mapping[str, object] | None = None, more: str = "",
    ) -> Path:  # fmt: skip
        """Write an experiment over the boards whose keys were made, or over `fleet`; the linear task, no torch."""
        tables = {
            "run": {"patience_s": 6.0, **run},
            "task": {"name": "linear", "batch": 8, **(task or {})},
            "fleet": fleet if fleet is not None else {"kind": "boards", "keys": "keys"},
        }
        lines = [
            line
            for table, content in tables.items()
            for line in (f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in content.items()))
        ]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join([*lines, more, ""]), encoding="utf-8")
        return path

    def profile(self, boards: Mapping[str, Declared]) -> str:
        """Write a profile of an emulated fleet; return its path."""
        lines = ['name = "bench"']
        for name, board in boards.items():
            power = [f"idle_w = {board.idle_w!r}", f"active_w = {board.active_w!r}"]
            lines += ["[[boards]]", f'name = "{name}"', *board.pace(), *power]
        path = self.folder / "profile.toml"
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return str(path)

    def host(self, experiment: Path, *arguments: str, runs: str = "runs") -> Program:
        """Start `paceline run`."""
        return self.start(
            f"host-{len(self.programs)}", "paceline", "run", experiment, "--runs-dir", self.folder / runs, *arguments
        )

    def ledger(self, run: str) -> Ledger | None:
        """Open the journal of runs/RUN as it is now; None: there is none yet."""
        try:
            return Ledger(self.folder / "runs" / run)
        except StorageError:
            return None

    def watch(self, run: str, what: str, probe: Callable[[Ledger], T], host: Program | None = None) -> T:
        """Wait until `probe` of the run's journal is truthy; return that."""

        def look() -> T | None:
            alive = host is None or host.process.poll() is None
            ledger = self.ledger(run)
            answer = None
            if ledger is not None:
                with ledger:
                    answer = probe(ledger)
            if not answer and not alive:
                raise AssertionError(f"the host ended before: {what}\n{host.err if host else ''}")
            return answer

        answer = until(what, look)
        assert answer is not None
        return answer


def endpoint_of(host: Program) -> str:
    """Wait until a host that waits for boards listens; return where."""
    return host.says("listening on").split("listening on ")[1].split(" ")[0]


def command_line(pid: int) -> str:
    """Return a process's command line, empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def shares(ledger: Ledger, round_: int) -> dict[int, int]:
    """Return what each board was dealt in the plan of a round."""
    return {s.board: s.samples for s in ledger.slices(round_) if s.redealt_from is None}


def mid_round(ledger: Ledger, number: int, at_work: Sequence[int]) -> bool:
    """Tell whether round `number` is open, somebody has done a slice of it, and none of `at_work` has."""
    rounds = [r for r in ledger.rounds() if r.round == number and r.closed_s is None]
    done = {c.board for c in ledger.contributions(number, "accepted")}
    return bool(rounds) and bool(done) and not done & set(at_work)


def places_of(run: Run, round_: int) -> list[tuple[int, int]]:
    """Return the (epoch, position) pairs that a round must count: its stretch of the stream of epochs."""
    return [divmod(place, run.samples) for place in range((round_ - 1) * run.budget, round_ * run.budget)]
