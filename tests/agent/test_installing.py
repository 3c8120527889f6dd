# SPDX-License-Identifier: Apache-2.0
"""An agent on its own board: what install writes, what a second call and another host meet, the unit, the service."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import KeyFileError, SettingsError
from paceline.notify import Watchdog
from paceline_agent.config import load_config
from paceline_agent.installing import Wish, install, perform, uninstall, unit_text
from paceline_agent.link import new_pair
from paceline_agent.places import SYSTEM, places
from paceline_agent.service import service

METER = 'source = "modelled"\nidle_w = 1.0\nactive_w = 2.0'
WISH = Wish("pi", "tcp://127.0.0.1:1", new_pair().public, METER)
EXPOSURE = 2.0  # at most, as `systemd-analyze security` counts it


def test_a_second_install_does_nothing_and_uninstall_leaves_what_others_made(tmp_path: Path) -> None:
    where = places(tmp_path / "home")
    steps = install(where, WISH)
    assert not where.prefix.exists(), "a list of steps is no change"
    perform(steps)
    config = load_config(where.config)
    assert config.keys(where.etc)[1] == WISH.host_key
    assert (config.meter.source, config.state_dir) == ("modelled", str(where.state))
    assert (where.etc / "pi.key").stat().st_mode & 0o777 == 0o600
    assert [step.about for step in install(where, WISH) if step.needed] == []
    (where.etc / "mine.txt").write_text("", encoding="ascii")
    perform(uninstall(where))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "home", "home/etc", "home/etc/mine.txt"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wish", "error", "says"),
    [
        (Wish("pi5", WISH.endpoint, WISH.host_key), KeyFileError, "this board is pi already"),
        (Wish("pi", WISH.endpoint, new_pair().public), KeyFileError, "this board serves another host already"),
        (Wish("pi", "tcp://127.0.0.1:2", WISH.host_key), SettingsError, "correct it there"),
        (Wish("pi", WISH.endpoint, "short"), KeyFileError, "expected the 40 characters"),
    ],
)
def test_a_board_that_is_somebody_elses_is_not_taken(
    wish: Wish, error: type[Exception], says: str, tmp_path: Path
) -> None:
    where = places(tmp_path)
    perform(install(where, WISH))
    before = where.config.read_bytes()
    with pytest.raises(error, match=says):
        install(where, wish)
    assert where.config.read_bytes() == before


def test_lines_of_a_meter_that_are_wrong_are_told_and_nothing_is_written(tmp_path: Path) -> None:
    where = places(tmp_path / "home")
    with pytest.raises(SettingsError, match="did you mean source"):
        perform(install(where, Wish("pi", WISH.endpoint, WISH.host_key, 'sorce = "rapl"')))
    assert not where.config.exists()


def test_the_unit_is_whole_and_hardly_exposed(tmp_path: Path, needs_tool: Callable[[str, str], Path]) -> None:
    text = unit_text(SYSTEM)
    assert "@" not in re.sub(r"@(system-service|privileged|resources)", "", text)
    assert f"run --config {SYSTEM.config}" in text
    path = tmp_path / "paceline-agent.service"
    path.write_text(text, encoding="utf-8")
    analyze = needs_tool("systemd-analyze", "systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=true", path], capture_output=True, text=True, timeout=60, check=False
    )
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(score) <= EXPOSURE, done.stdout
    for key in ("WatchdogSec=", "MemoryMax=", "StartLimitBurst=", "Restart=on-failure"):
        assert key in text
    verified = subprocess.run([analyze, "verify", path], capture_output=True, text=True, timeout=60, check=False)
    assert "Unknown key" not in verified.stderr
    assert "Failed to parse" not in verified.stderr


def called(prefix: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the agent on the agent below `prefix`."""
    command = [sys.executable, "-m", "paceline_agent", *argv, "--prefix", str(prefix)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_agent_is_started_stopped_and_its_last_words_are_told(tmp_path: Path) -> None:
    where = places(tmp_path)
    perform(install(where, WISH))
    assert called(tmp_path, "service", "status").returncode == 9
    assert called(tmp_path, "service", "start").returncode == 0
    try:
        assert called(tmp_path, "service", "status").stdout == "running (background)\n"
        first = (where.state / "agent.pid").read_text(encoding="ascii")
        assert called(tmp_path, "service", "start").returncode == 0
        assert (where.state / "agent.pid").read_text(encoding="ascii") != first
        assert "connecting to tcp://127.0.0.1:1" in called(tmp_path, "service", "logs").stdout
    finally:
        assert called(tmp_path, "service", "stop").returncode == 0
    assert not service(where).is_running()
    where.config.write_text("key_fiel = 1\n", encoding="utf-8")
    failed = called(tmp_path, "service", "start")
    assert failed.returncode == 9
    assert "the agent ended with status 3; it says: " in failed.stderr
    assert "key_file is missing" in failed.stderr
    assert "connecting to" not in failed.stderr, "words of an earlier life"


def test_the_commands_say_what_they_would_do_and_what_they_did(tmp_path: Path) -> None:
    home = tmp_path / "home"
    wish = ("--name", "pi", "--endpoint", WISH.endpoint, "--host-key", WISH.host_key, "--meter", METER)
    planned = called(home, "install", *wish, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"write {tmp_path}/home/etc/agent.toml" in planned.stdout
    assert not (tmp_path / "home").exists()
    missing = called(home, "service", "status")
    assert (missing.returncode, "no agent is installed here" in missing.stderr) == (3, True)
    told = json.loads(called(home, "install", *wish, "--json").stdout)
    assert (told["schema"], told["meter"], told["watts"]) == (
        "paceline-install-1",
        "modelled",
        pytest.approx(1.0, abs=0.2),
    )
    assert told["public_key"] == (tmp_path / "home/etc/pi.pub").read_text(encoding="ascii").strip()
    assert called(home, "service", "status").returncode == 9
    assert "remove" in called(home, "uninstall", "--dry-run").stdout
    assert called(home, "uninstall").returncode == 0
    assert not (tmp_path / "home").exists()


def test_a_watchdog_hears_of_a_loop_that_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        watchdog = Watchdog()
        heard = []
        for now_s in range(100, 126, 5):
            watchdog.turn(float(now_s))
            try:
                heard.append((now_s, manager.recv(100)))
            except BlockingIOError:
                continue
        assert heard == [(100, b"WATCHDOG=1"), (110, b"WATCHDOG=1"), (120, b"WATCHDOG=1")]
        monkeypatch.setenv("WATCHDOG_PID", "1")
        Watchdog().turn(1e9)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_an_agent_tells_systemd_that_it_serves_lives_and_ends(tmp_path: Path) -> None:
    where = places(tmp_path)
    perform(install(where, WISH))
    address = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30.0)
        environment = {**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
        agent = subprocess.Popen(
            [sys.executable, "-m", "paceline_agent", "run", "--config", where.config],
            env=environment, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            heard = [manager.recv(100) for _ in range(4)]
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(30.0) == 0
            assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            end_s = time.monotonic() + 10.0
            while (last := manager.recv(100)) != b"STOPPING=1":
                assert last == b"WATCHDOG=1"
                assert time.monotonic() < end_s
        finally:
            agent.kill()
            agent.wait()


def test_no_release_is_taken_for_one_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "0.1.0-abc").mkdir()
    (tmp_path / "0.1.0-abc" / "manifest.json").write_text("{}", encoding="ascii")
    where = places(tmp_path)
    perform(install(where, WISH))
    perform(uninstall(where))
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    shutil.rmtree(tmp_path / "photos")
