# SPDX-License-Identifier: Apache-2.0
"""Whatever only starts, helps or lists loads neither torch nor numpy: real processes in which both refuse."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.keys import write_pair
from paceline.wire import Hello, decode
from paceline_host.link import HostLink, new_pair

ROOT = Path(__file__).resolve().parents[2]
HELLO_WITHIN_S = 30.0  # a bound against hanging, not a measurement

# The refusal is no ImportError, so no `except ImportError` of the code under test can hide it.
BORDER = """
import sys

class Border:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise SystemExit(f"crossed the border: something imports {name}")

sys.meta_path.insert(0, Border())
"""
MAIN = """
sys.argv = [{argv0!r}, *{arguments!r}]
from {package}.cli import main
sys.exit(main())
"""


def behind_the_border(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh process that can load neither torch nor numpy."""
    command = [sys.executable, "-c", BORDER + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("library", ["torch", "numpy", "numpy.linalg"])
def test_the_border_stops_who_crosses_it(library: str, tmp_path: Path) -> None:
    code = f"try:\n    import {library}\nexcept Exception:\n    pass"
    done = behind_the_border(code, tmp_path)
    assert done.returncode == 1
    assert "crossed the border" in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "paceline",
        "paceline.batches",
        "paceline.core",
        "paceline.energy",
        "paceline.policies",
        "paceline.settings",
        "paceline.wire",
        "paceline.tensors",
        "paceline.data",
        "paceline.deviation",
        "paceline.split.layout",
        "paceline.tasks",
        "paceline_agent.agent",
        "paceline_agent.commands",
        "paceline_agent.meter_tool",
        "paceline_agent.meters",
        "paceline_agent.sampled",
        "paceline_host.commands",
        "paceline_host.experiment",  # the server and its reducer come when a run starts, and may
        "paceline_host.journal",
        "paceline_host.machine",
    ],
)
def test_importing_loads_neither_torch_nor_numpy(module: str, tmp_path: Path) -> None:
    done = behind_the_border(f"import {module}", tmp_path)
    assert done.returncode == 0, done.stderr


def test_measuring_a_window_loads_neither(tmp_path: Path) -> None:
    (tmp_path / "class" / "power_supply" / "BAT0").mkdir(parents=True)
    for name, text in (("type", "Battery"), ("status", "Discharging"), ("power_now", "5000000")):
        (tmp_path / "class" / "power_supply" / "BAT0" / name).write_text(f"{text}\n", encoding="ascii")
    done = behind_the_border(
        "from paceline_agent.meters import open_meter\n"
        f"with open_meter(sysfs_root={str(tmp_path)!r}) as meter, meter.window() as w:\n    pass\n"
        "assert w.result.source == 'power_supply/BAT0', w.result",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "paceline --help",
        "paceline run --help",
        "paceline runs",
        "paceline keys --help",
        "paceline host --init made",
        "paceline status --help",
        "paceline completion bash",
        "paceline simulate --controller-only --rounds 2 --policies time,frontier:energy",
        f"paceline config show {ROOT}/experiments/demo.toml",
        "paceline-agent --help",
        "paceline-agent run --help",
        "paceline-agent meter scan --help",
        "paceline-agent service start --help",
        "paceline boards install --help",
    ],
)
def test_a_command_that_trains_nothing_loads_neither(command: str, tmp_path: Path) -> None:
    program, *arguments = command.split()
    package = {"paceline": "paceline_host", "paceline-agent": "paceline_agent"}[program]
    done = behind_the_border(MAIN.format(argv0=program, arguments=arguments, package=package), tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_agent_says_hello_without_either(tmp_path: Path) -> None:
    host, board = new_pair(), new_pair()
    write_pair(tmp_path, "board", board)
    link = HostLink("tcp://127.0.0.1:*", host, {"board": board.public}, print)
    config = tmp_path / "agent.toml"
    config.write_text(
        f'key_file = "board.key"\nstate_dir = "state"\n[host]\nendpoint = "{link.endpoint}"\n'
        f'public_key = "{host.public}"\n[meter]\nsource = "modelled"\nidle_w = 2.0\nactive_w = 5.0\n',
        encoding="utf-8",
    )
    code = MAIN.format(argv0="paceline-agent", arguments=["run", "--config", str(config)], package="paceline_agent")
    agent = subprocess.Popen(
        [sys.executable, "-c", BORDER + code], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    hello = None
    try:
        until_s = time.monotonic() + HELLO_WITHIN_S
        while hello is None and agent.poll() is None and time.monotonic() < until_s:
            link.poll(0.1)
            for arrival in link.receive():
                hello = hello or decode(arrival.header, (Hello,))
    finally:
        agent.kill()
        _, said = agent.communicate()
        link.close()
    assert isinstance(hello, Hello), said
    assert hello.pid == agent.pid
