# SPDX-License-Identifier: Apache-2.0
"""`paceline boards console`: an installation through a login on a serial line that garbles, loses bytes and is cut."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .console_board import PASSWORD, ConsoleBoard
from .fleet_tools import Bench, Program, until
from .test_boards import METER, row

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(300)]
PYTHON = str(getattr(sys, "_base_executable", sys.executable))
ENDPOINT = "tcp://127.0.0.1:9"  # the board has no network: nobody is there


@pytest.fixture
def board(bench: Bench) -> Iterator[ConsoleBoard]:
    """Yield a board behind a console; afterwards end what it still does."""
    made = ConsoleBoard(bench)
    yield made
    made.close()
    for pid in agents(bench):
        os.kill(pid, signal.SIGTERM)
    until("the agents to end", lambda: not agents(bench))


def agents(bench: Bench) -> list[int]:
    return [pid for pid, line in bench.left().items() if "paceline-agent run" in line]


def console(bench: Bench, port: str, bundle: Path, password: str = PASSWORD) -> Program:
    secret = bench.folder / "password"
    secret.write_text(f"{password}\n", encoding="utf-8")
    secret.chmod(0o600)
    program = bench.start(
        f"console-{len(bench.programs)}", "paceline", "boards", "console", port, "--name", "pi4", "--user",
        "--endpoint", ENDPOINT, "--password-file", secret, "--python", PYTHON, "--bundle", bundle, "--meter", METER,
        "--baud", "4000000", "--json",
    )  # fmt: skip
    program.ends(200.0)
    assert PASSWORD not in program.out + program.err
    return program


def test_a_bad_line_that_is_cut_is_taken_up_again_and_the_agent_runs(
    bench: Bench, board: ConsoleBoard, bundle: Path
) -> None:
    assert bench.call("paceline", "keys").ends() == 0
    cut = console(bench, board.plug(one_in=5000, clean=300, cut=bundle.stat().st_size // 2).port, bundle)
    assert cut.ends() == 4, cut.err
    assert "is gone" in cut.err
    assert "plug it in again and repeat the command" in cut.err
    line = board.plug(one_in=5000, clean=300)
    made = console(bench, line.port, bundle)
    assert made.ends() == 0, made.err
    assert "are there from before" in made.err
    assert line.faults > 20, "the line was bad"
    first = row(made)
    assert (first["state"], first["meter"], first["watts"]) == ("installed", "modelled", pytest.approx(2.0, abs=0.2))
    home = board.home / ".local" / "paceline"
    assert os.readlink(home / "current") == first["release"]
    assert (bench.folder / "keys/boards/pi4.pub").read_bytes() == (home / "etc/pi4.pub").read_bytes()
    assert len(agents(bench)) == 1
    assert sorted(path.name for path in board.home.iterdir()) == [".local"], "nothing of the transfer is left"
    assert list(board.tmp.iterdir()) == []
    (listed,) = json.loads(bench.call("paceline", "boards", "list", "--json").out)["boards"]
    assert (listed["name"], listed["address"]) == ("pi4", None), "there is no way to it over ssh"

    wrong = console(bench, board.plug().port, bundle, password="another")
    assert wrong.ends() == 5, "and it had logged out"
    assert "it does not let root in with that password" in wrong.err
    assert wrong.err.count("another") == 0
    assert len(wrong.err.splitlines()) == 2, "asked once, no loop"


def test_a_port_that_is_none_is_told(bench: Bench, bundle: Path) -> None:
    assert bench.call("paceline", "keys").ends() == 0
    failed = console(bench, "/dev/ttyNOSUCH0", bundle)
    assert failed.ends() == 4
    assert "/dev/ttyNOSUCH0 cannot be opened" in failed.err
    assert len(failed.err.splitlines()) == 1
