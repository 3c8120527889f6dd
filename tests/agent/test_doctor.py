# SPDX-License-Identifier: Apache-2.0
"""The agent's doctor: each row on a board that is well, and on one that is not; and what a child may die of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from paceline.checkup import Row
from paceline.keys import write_pair
from paceline_agent.doctor import Roots, _library, examine, throttling
from paceline_agent.link import new_pair
from paceline_host.link import HostLink

METER = '[meter]\nsource = "modelled"\nidle_w = 1.0\nactive_w = 2.0\n'
NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """Return the trees of a board that shows nothing."""
    for name in ("sys", "dev"):
        (tmp_path / name).mkdir()
    return Roots(tmp_path / "sys", tmp_path / "dev")


@contextmanager
def host(tmp_path: Path, *, knows: bool = True) -> Iterator[Path]:
    """Run a host's link; yield the agent.toml of a board that it knows, or not."""
    keys, board = new_pair(), new_pair()
    write_pair(tmp_path, "pi", board)
    link = HostLink("tcp://127.0.0.1:*", keys, {"pi": board.public if knows else new_pair().public}, lambda text: None)
    try:
        yield agent_toml(tmp_path, link.endpoint, keys.public)
    finally:
        link.close()


def agent_toml(folder: Path, endpoint: str, host_key: str, meter: str = METER) -> Path:
    path = folder / "agent.toml"
    lines = f'key_file = "pi.key"\nstate_dir = "state"\n[host]\nendpoint = "{endpoint}"\npublic_key = "{host_key}"\n'
    path.write_text(lines + meter, encoding="utf-8")
    return path


def rows(config: Path | None, roots: Roots) -> dict[str, Row]:
    """Return the rows before those of the libraries, which take seconds."""
    return {row.name: row for row in takewhile(lambda row: row.name != "numpy", examine(config, roots))}


def test_a_board_that_is_well_has_no_bad_row(tmp_path: Path, roots: Roots) -> None:
    with host(tmp_path) as config:
        found = {row.name: row for row in examine(config, roots)}
    assert {name: row.state for name, row in found.items() if row.state != "ok"} == {}
    assert {"python", "clock", "config", "disk", "meter", "key", "host", "numpy", "torch"} <= found.keys()
    assert "takes this board's key" in found["host"].about
    assert not (tmp_path / "state").exists(), "a doctor only looks"


def test_a_host_that_does_not_know_the_key_is_told_from_one_that_is_not_there(tmp_path: Path, roots: Roots) -> None:
    with host(tmp_path, knows=False) as config:
        refused = rows(config, roots)["host"]
        assert (refused.state, refused.exit_code) == ("bad", 5)
        assert "the host refused this board's key" in refused.about
        other = agent_toml(
            tmp_path, config.read_text("utf-8").split('endpoint = "')[1].split('"')[0], new_pair().public
        )
        wrong = rows(other, roots)["host"]
        assert (wrong.state, wrong.exit_code, wrong.fix) == ("bad", 5, "correct host.public_key in agent.toml")


def test_a_key_that_others_may_read_and_a_broken_file_are_bad(tmp_path: Path, roots: Roots) -> None:
    write_pair(tmp_path, "pi", new_pair())
    (tmp_path / "pi.key").chmod(0o644)
    key = rows(agent_toml(tmp_path, NOBODY, new_pair().public), roots)["key"]
    assert (key.state, key.exit_code) == ("bad", 5)
    assert "chmod 600" in key.about
    (tmp_path / "agent.toml").write_text("key_fiel = 1\n", encoding="utf-8")
    found = rows(tmp_path / "agent.toml", roots)
    assert (found["config"].state, found["config"].exit_code) == ("bad", 3)
    assert "did you mean key_file" in found["config"].about
    assert "key" not in found


def test_without_a_meter_all_that_could_be_one_says_why_it_is_not(tmp_path: Path, roots: Roots) -> None:
    (roots.sys / "bus/i2c/devices/i2c-1").mkdir(parents=True)
    found = rows(None, roots)
    assert found["meter"].state == "warn"
    assert "modprobe i2c-dev" in found["i2c"].fix
    config = agent_toml(tmp_path, NOBODY, new_pair().public, '[meter]\nsource = "rapl"\nrapl_root = "none"\n')
    wanted = rows(config, roots)["meter"]
    assert (wanted.state, wanted.exit_code) == ("bad", 7)
    assert wanted.fix


def test_heat_a_clock_that_is_held_down_and_a_weak_supply_are_seen(roots: Roots) -> None:
    for name, text in {
        "class/thermal/thermal_zone0/temp": "91000",
        "devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "600000",
        "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000",
        "class/hwmon/hwmon0/in0_lcrit_alarm": "1",
    }.items():
        (roots.sys / name).parent.mkdir(parents=True, exist_ok=True)
        (roots.sys / name).write_text(f"{text}\n", encoding="ascii")
    found = rows(None, roots)
    assert found["temperature"].about == "91 C in thermal_zone0"
    assert found["clock rate"].about == "held down: cpu0 at 0.6 of 1.8 GHz"
    assert [found[name].state for name in ("temperature", "clock rate", "supply")] == ["warn"] * 3
    (roots.sys / "class/thermal/thermal_zone0/temp").write_text("45000\n", encoding="ascii")
    assert rows(None, roots)["temperature"].state == "ok"


@pytest.mark.parametrize(
    ("bits", "says"),
    [
        (0x0, ["not since it was started"]),
        (0x50005, ["under-voltage, now", "throttled, now"]),
        (0x20000, ["the clock is capped, since it was started"]),
    ],
)
def test_the_word_of_a_raspberry_pi_is_read(bits: int, says: list[str]) -> None:
    assert [row.about for row in throttling(bits)] == says


@pytest.mark.parametrize(
    ("shell", "state", "about"),
    [
        ("kill -ILL $$", "bad", "illegal instruction"),
        ("kill -KILL $$", "bad", "loading it ended with SIGKILL"),
        ("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", "warn", "not installed"),
        ("echo 'ImportError: libgomp.so.1' >&2; exit 1", "bad", "ImportError: libgomp.so.1"),
        ("echo 2.6.0", "ok", "2.6.0"),
    ],
)
def test_what_a_library_does_to_its_process_is_told(shell: str, state: str, about: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{shell}\n", encoding="ascii")
    python.chmod(0o755)
    row = _library("torch", str(python))
    assert (row.state, row.about) == (state, about)
    assert bool(row.fix) == (state != "ok")


def test_the_command_tells_all_and_ends_with_the_first_bad_rows_status(tmp_path: Path) -> None:
    write_pair(tmp_path, "pi", new_pair())
    (tmp_path / "pi.key").chmod(0o640)
    command = [sys.executable, "-m", "paceline_agent", "doctor", "--json", "--config"]
    config = agent_toml(tmp_path, NOBODY, new_pair().public)
    done = subprocess.run([*command, config], capture_output=True, text=True, check=False, env={**os.environ})
    told = json.loads(done.stdout)
    assert (done.returncode, told["schema"], told["ok"]) == (5, "paceline-doctor-1", False)
    assert {"name", "state", "about", "fix"} == set(told["rows"][0])
