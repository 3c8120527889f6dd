# SPDX-License-Identifier: Apache-2.0
"""`paceline-agent doctor`: what of this board is as it must be, row by row, with what to do where it is not.

Looks only: nothing is written, and no session is opened. torch and numpy are tried in a child, which may die of it.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.checkup import BUILT_YEAR, Row
from paceline.errors import KeyFileError, LinkError, PacelineError, SettingsError, StorageError
from paceline.keys import fingerprint
from paceline_agent.config import AgentConfig, load_config
from paceline_agent.meters import MeterError, open_source
from paceline_agent.meters.findings import Where, scan
from paceline_agent.rights import become_owner

DISK_BAD, DISK_LOW = 64 << 20, 1 << 30  # free bytes: not even a small model's two files; a model of a few 100 MB
CHILD_S = 300.0  # torch takes half a minute on a slow board, and more from a tired card
HOST_S = 10.0  # to a host that is there: a handshake takes milliseconds, a far or busy one a second
HOT_C = 80.0  # a Raspberry Pi begins to slow down here
# Raspberry Pi firmware, `vcgencmd get_throttled`: bit -> (what is so now, what to do); 16 higher: it was so since boot.
THROTTLED = {
    0: ("under-voltage", "use a stronger power supply or a shorter cable"),
    1: ("the clock is capped", "cool the board"),
    2: ("throttled", "cool the board, or use a stronger power supply"),
    3: ("at the soft temperature limit", "cool the board"),
}
STEP = {
    name: f"import {name}; a = {name}.ones((8, 8)); assert float((a @ a).sum()) == 512; print({name}.__version__)"
    for name in ("numpy", "torch")
}
WITHOUT = {
    "numpy": "tasks on pictures cannot be trained here: apt-get install python3-numpy",
    "torch": "without it numpy trains MLPs on images, and nothing else: apt-get install python3-torch, if it exists",
}


@dataclass(frozen=True)
class Roots:
    """Where to look; other than `/` in tests."""

    sys: Path = Path("/sys")
    dev: Path = Path("/dev")


def examine(config_file: Path | None, roots: Roots | None = None, *, become: bool = False) -> Iterator[Row]:
    """Yield the rows, quick ones first. None: there is no agent.toml yet, so what it names is left out.

    become: as root, take on the rights of the agent first: what root may read the agent may not.
    """
    roots = roots or Roots()
    yield Row("python", "ok", f"{platform.python_version()} on {platform.machine()}")
    yield _clock()
    config: AgentConfig | None = None
    if config_file is not None:
        try:
            config = load_config(config_file)
            yield Row("config", "ok", f"{config_file} can be read")
        except SettingsError as error:
            text = "; ".join(error.errors)
            yield Row("config", "bad", text, "correct it; `paceline-agent config show` tells the same", error.exit_code)
    base = config_file.resolve().parent if config_file is not None else Path()
    if config is not None and become and (user := become_owner(base / config.key_file)):
        yield Row("user", "ok", f"the rest is seen with the rights of {user}")
    if config is not None:
        yield _disk(base / config.state_dir)
    yield from _meter(config, roots)
    yield from _heat(roots.sys)
    yield from _firmware()
    if config is not None:
        yield from _host(config, base)
    yield from (_library(name) for name in STEP)


def _clock() -> Row:
    year = time.gmtime().tm_year
    if year < BUILT_YEAR:
        fix = "set it, or let it be set: timedatectl set-ntp true (logs are dated wrong meanwhile)"
        return Row("clock", "warn", f"this board believes to be in {year}", fix)
    return Row("clock", "ok", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))


def _disk(state_dir: Path) -> Row:
    there = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    free = shutil.disk_usage(there).free
    shown = f"{free / 1e6:.0f} MB free for {state_dir}"
    if not os.access(there, os.W_OK):
        fix = f"run this as the agent's user, or hand it over: chown -R USER {there}"
        return Row("disk", "bad", f"{there} cannot be written by this user", fix, StorageError.exit_code)
    if free < DISK_LOW:
        is_bad = free < DISK_BAD
        fix = "free some: model and update lie there twice; or let state_dir name another disk"
        return Row("disk", "bad" if is_bad else "warn", shown, fix, StorageError.exit_code * is_bad)
    return Row("disk", "ok", shown)


def _meter(config: AgentConfig | None, roots: Roots) -> Iterator[Row]:
    """Tell of the configured meter; without one, of all that could be one and why it is not."""
    if config is not None and config.meter.source != "none":
        try:
            source = open_source(config.meter, time.monotonic_ns() // 1000)
        except MeterError as error:
            fix = error.todo or "`paceline-agent meter scan` shows what can be used"
            yield Row("meter", "bad", f"{config.meter.source}: {error.why}", fix, error.exit_code)
            return
        assert source is not None
        about = f"{source.source} can be read"
        source.close()
        yield Row("meter", "ok", about)
        return
    found = scan(Where(roots.sys, roots.dev))
    usable = [each for each in found if each.usable and each.kind in ("meter", "rail")]
    if usable:
        fix = "" if config is None else "write its lines into agent.toml: `paceline-agent meter scan` prints them"
        yield Row("meter", "warn" if fix else "ok", f"{usable[0].source} {usable[0].name} can be used", fix)
        return
    fix = "its joules stay unknown; firmware_notes/i2c_sensors.md tells how to wire a sensor"
    yield Row("meter", "warn", "no meter can be used", fix)
    for each in found:
        if not each.usable and each.todo:
            yield Row(each.source, "warn", each.about, each.todo)


def _heat(root: Path) -> Iterator[Row]:
    """Tell of temperature and of clocks that are held down."""
    zones = {path.parent.name: _number(path) for path in sorted((root / "class/thermal").glob("thermal_zone*/temp"))}
    hot = {name: milli / 1000 for name, milli in zones.items() if milli is not None and 0 < milli < 200_000}
    if hot:
        name, worst = max(hot.items(), key=lambda each: each[1])
        fix = "cool it: a hot board slows down, and is dealt less" if worst >= HOT_C else ""
        yield Row("temperature", "warn" if fix else "ok", f"{worst:.0f} C in {name}", fix)
    capped = []
    for folder in sorted((root / "devices/system/cpu").glob("cpu[0-9]*/cpufreq")):
        most, able = _number(folder / "scaling_max_freq"), _number(folder / "cpuinfo_max_freq")
        if most is not None and able is not None and most < able:
            capped.append(f"{folder.parent.name} at {most / 1e6:g} of {able / 1e6:g} GHz")
    if capped:
        yield Row("clock rate", "warn", f"held down: {capped[0]}", "raise scaling_max_freq, unless you want it so")
    low = [path for path in (root / "class/hwmon").glob("hwmon*/in*_lcrit_alarm") if _number(path)]
    if low:
        yield Row("supply", "warn", f"under-voltage says {low[0].parent.name}", THROTTLED[0][1])


def _firmware() -> Iterator[Row]:
    """Ask a Raspberry Pi's firmware."""
    program = shutil.which("vcgencmd")
    if program is None:
        return
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run([program, "get_throttled"], capture_output=True, text=True, timeout=10, check=True)
        yield from throttling(int(done.stdout.strip().rpartition("=")[2], 0))


def throttling(bits: int) -> Iterator[Row]:
    """Yield what the word of `vcgencmd get_throttled` says."""
    said = False
    for bit, (about, fix) in THROTTLED.items():
        for shift, when in ((0, "now"), (16, "since it was started")):
            if bits >> (bit + shift) & 1:
                said = True
                yield Row("throttling", "warn", f"{about}, {when}", fix)
                break
    if not said:
        yield Row("throttling", "ok", "not since it was started")


def _host(config: AgentConfig, base: Path) -> Iterator[Row]:
    """Tell of this board's keys, and whether the host is there and knows them."""
    from paceline_agent.link import AgentLink

    try:
        keys, host_key = config.keys(base)
    except KeyFileError as error:
        yield Row("key", "bad", str(error), "see there", error.exit_code)
        return
    yield Row("key", "ok", f"fingerprint {fingerprint(keys.public)}")
    endpoint = config.host.endpoint
    try:
        link = AgentLink(endpoint, keys, host_key)
    except PacelineError as error:
        yield Row("host", "bad", str(error), "correct host.endpoint in agent.toml", error.exit_code)
        return
    try:
        end_s = time.monotonic() + HOST_S
        while not (link.proven or link.refused or link.wrong_key) and time.monotonic() < end_s:
            link.poll(0.1)
        if link.proven:
            yield Row("host", "ok", f"{endpoint} is there and takes this board's key")
        elif link.refused or link.wrong_key:
            fix = (
                "put it there, then start the agent again" if link.refused else "correct host.public_key in agent.toml"
            )
            yield Row("host", "bad", link.trouble, fix, KeyFileError.exit_code)
        else:
            fix = "start it, or correct host.endpoint; an agent that runs goes on trying"
            yield Row("host", "bad", f"{endpoint}: {link.trouble}", fix, LinkError.exit_code)
    finally:
        link.close()


def _library(name: str, python: str = sys.executable) -> Row:
    """Try a library in a child of its own."""
    try:
        done = subprocess.run(
            [python, "-c", STEP[name]], capture_output=True, text=True, timeout=CHILD_S, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        return Row(name, "bad", f"it could not be loaded within {CHILD_S:g} s", "use a faster card", 3)
    if done.returncode == 0:
        return Row(name, "ok", done.stdout.strip())
    if done.returncode == -signal.SIGILL:
        fix = (
            f"it is built for processors that can more than this one: install Debian's (apt-get install python3-{name})"
        )
        return Row(name, "bad", "illegal instruction", fix, 3)
    if done.returncode < 0:
        what = signal.Signals(-done.returncode).name
        return Row(name, "bad", f"loading it ended with {what}", "free some memory, or add swap; then try again", 3)
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    if "ModuleNotFoundError" in last:
        return Row(name, "warn", "not installed", WITHOUT[name])
    return Row(name, "bad", last, f"install {name} anew, in a version for this board", 3)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
