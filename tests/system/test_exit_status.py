# SPDX-License-Identifier: Apache-2.0
"""Every exit status of the table is reached by a real program, for the reason that the table names."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import wire
from paceline.errors import EXITS, PacelineError
from paceline.keys import read_boards, read_pair
from paceline_agent.meters import MeterError
from paceline_host.link import HostLink

from .fleet_tools import WAIT_S, Bench, Program, endpoint_of

ROOT = Path(__file__).resolve().parents[2]


def ok(bench: Bench) -> Program:
    return bench.call("paceline", "runs")


def bug(bench: Bench) -> Program:
    program = Program(bench, "bug", [sys.executable, "-c", BUG])
    bench.programs.append(program)
    return program


BUG = """
import sys
from paceline.commandline import Program
program = Program("program", "1", "A program.")
program.command("break", lambda arguments, talk: 1 // 0, "break", examples=[("program break", "break")])
sys.exit(program.run(["break"]))
"""


def usage(bench: Bench) -> Program:
    return bench.call("paceline", "run", "--no-such-option")


def configuration(bench: Bench) -> Program:
    return bench.call("paceline-agent", "config", "show", "--config", "none.toml")


def connection(bench: Bench) -> Program:
    bench.make_keys("pi")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f'fleet.listen="tcp://127.0.0.1:{taken.getsockname()[1]}"'
        host = bench.host(bench.experiment("taken", {"rounds": 1, "budget": 10}), "--set", listen)
        host.ends()
    return host


def keys(bench: Bench) -> Program:
    return bench.call("paceline", "run", experiment_of_boards(bench), "--set", 'fleet.keys="nowhere"')


def partial(bench: Bench) -> Program:
    """Name two boards to install on, at a port on which nothing listens."""
    bench.make_keys()
    two = ("a=root@127.0.0.1", "b=root@127.0.0.1")
    return bench.call("paceline", "boards", "install", *two, "--port", "1", "--dry-run")


def experiment_of_boards(bench: Bench) -> Path:
    return bench.experiment("boards", {"rounds": 1, "budget": 10, "patience_s": 0.5})


def version(bench: Bench) -> Program:
    """Let an agent meet a host that says what a host of another version says."""
    bench.make_keys("pi")
    folder = bench.folder / "keys"
    link = HostLink("tcp://127.0.0.1:*", read_pair(folder / "host.key"), read_boards(folder / "boards"), print)
    try:
        agent = bench.agent("pi", link.endpoint)
        end_s = time.monotonic() + WAIT_S
        while agent.process.poll() is None and time.monotonic() < end_s:
            link.poll(0.1)
            for arrival in link.receive():
                message = wire.decode(arrival.header, wire.FROM_AGENT)
                if isinstance(message, wire.Hello):
                    link.send_to(arrival.route, wire.encode(wire.Reject(message.session, "version", "too old for it")))
        assert "too old for it" in agent.err
        return agent
    finally:
        link.close()


def meter(bench: Bench) -> Program:
    bench.make_keys("pi")
    config = bench.write_agent("pi", "tcp://127.0.0.1:1")
    text = re.sub(
        r"\[meter\].*", f'[meter]\nsource = "rapl"\nrapl_root = "{bench.folder}"\n', config.read_text(), flags=re.DOTALL
    )
    config.write_text(text, encoding="utf-8")
    return bench.call("paceline-agent", "run", "--config", config)


def run_failed(bench: Bench) -> Program:
    bench.make_keys("pi")
    return bench.host(experiment_of_boards(bench), "--set", "fleet.start_s=0.2")


def storage(bench: Bench) -> Program:
    return bench.call("paceline", "report", "nowhere")


def interrupted(number: signal.Signals) -> Callable[[Bench], Program]:
    def interrupt(bench: Bench) -> Program:
        bench.make_keys("pi")
        host = bench.host(experiment_of_boards(bench))
        endpoint_of(host)
        host.signal(number)
        return host

    return interrupt


REACHED: dict[int, Callable[[Bench], Program]] = {
    0: ok, 1: bug, 2: usage, 3: configuration, 4: connection, 5: keys, 6: version, 7: meter, 8: partial,
    9: run_failed, 10: storage, 130: interrupted(signal.SIGINT), 143: interrupted(signal.SIGTERM),
}  # fmt: skip


@pytest.mark.parametrize("status", EXITS, ids=EXITS.__getitem__)
def test_each_exit_status_is_reached(bench: Bench, status: int) -> None:
    program = REACHED[status](bench)
    assert program.ends() == status, program.err
    assert ("Traceback" in program.err) == (status == 1), program.err
    assert bool(program.err) or status == 0, "whatever is not well is said"


def test_errors_carry_statuses_of_the_table() -> None:
    def below(error: type[PacelineError]) -> list[type[PacelineError]]:
        return [error, *(each for kind in error.__subclasses__() for each in below(kind))]

    assert MeterError in below(PacelineError)
    assert {error.exit_code for error in below(PacelineError)} <= EXITS.keys()


def test_the_readme_has_the_table() -> None:
    (line,) = re.findall(
        r"^Exit status: (.*?)\.$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert line.replace("\n", " ") == ", ".join(f"{status} {what}" for status, what in EXITS.items())


HOOK = """
import atexit, os, signal, sys

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Hook())
if {module!r} == "the end":
    atexit.register(os.kill, os.getpid(), signal.{number})
from {package}.cli import main
sys.exit(main({words!r}))
"""
HOST = ["config", "show", "x.toml"]
AGENT = ["config", "show", "--config", "agent.toml"]
LOADING = [
    ("paceline_host", HOST, module)
    for module in ("paceline", "paceline._core", "argparse", "paceline_host.commands.keys", "the end")
] + [
    ("paceline_host", HOST, "paceline_host.experiment"),
    ("paceline_agent", AGENT, "paceline.commandline"),
    ("paceline_agent", AGENT, "paceline_agent.config"),
    ("paceline_agent", AGENT, "the end"),
]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize(("package", "words", "module"), LOADING, ids=[f"{row[0]}: {row[2]}" for row in LOADING])
def test_a_signal_while_modules_are_loaded_ends_a_program_without_a_word(
    tmp_path: Path, package: str, words: list[str], module: str, number: signal.Signals
) -> None:
    (tmp_path / "x.toml").write_text('[run]\nrounds = 1\nbudget = 1\n[task]\nname = "linear"\n', encoding="utf-8")
    (tmp_path / "agent.toml").write_text(
        "key_file = 'a.key'\nstate_dir = 's'\n[host]\nendpoint = 'tcp://h:1'\npublic_key = 'h.pub'\n", encoding="utf-8"
    )
    code = HOOK.format(module=module, number=number.name, package=package, words=words)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert bool(done.stdout) == (module == "the end"), "nothing that was printed is lost"


def test_a_reader_that_has_seen_enough_and_a_full_disk_are_told_apart(bench: Bench) -> None:
    paceline = Path(sys.executable).parent / "paceline"
    shell = f"set -o pipefail; {paceline} completion bash | true"
    enough = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (enough.returncode, enough.stderr) == (0, "")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [paceline, "completion", "bash"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 10
    assert done.stderr == "paceline: cannot write the output: No space left on device\n"
