# SPDX-License-Identifier: Apache-2.0
"""`paceline doctor`: what of this host is as it must be, row by row, with what to do where it is not.

Looks only: nothing is written. torch and numpy are tried in a child, which may die of it. The rows are those of
`paceline-agent doctor`.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from paceline.checkup import BUILT_YEAR, Row
from paceline.errors import KeyFileError, LinkError, PacelineError, SettingsError, StorageError
from paceline.keys import fingerprint
from paceline.version import VERSION
from paceline_host.clocks import clock_fault
from paceline_host.host_config import HostConfig, load_host, load_operator
from paceline_host.link import OWN_DESCRIPTORS, public_of
from paceline_host.runs import list_runs

DISK_BAD, DISK_LOW = 64 << 20, 1 << 30  # free bytes: not even a small run; a run of a model of some 100 MB
CHILD_S = 120.0
# Whose locks and syncs are not those of a disk; 9p and fuse.* as well.
FAR = ("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "fuse")
STEP = "import {0}; assert float(({0}.ones((8, 8)) @ {0}.ones((8, 8))).sum()) == 512; print({0}.__version__)"


def examine(config_file: Path | None, where: str | None) -> Iterator[Row]:
    """Yield the rows, quick ones first. None: there is no host.toml, so what it names is left out.

    where: the operator.toml of the daemon; None: the one beside host.toml, else the usual one.
    """
    yield Row("python", "ok", f"{platform.python_version()} on {platform.machine()}, paceline {VERSION}")
    yield _clock()
    config: HostConfig | None = None
    if config_file is not None:
        try:
            config = load_host(config_file)
            yield Row("config", "ok", f"{config_file} can be read")
        except SettingsError as error:
            text = "; ".join(error.errors)
            yield Row("config", "bad", text, "correct it; `paceline config show` tells the same", error.exit_code)
    boards = 0
    if config is not None:
        boards, rows = _keys(config)
        yield from rows
    yield _descriptors(boards)
    if config is not None:
        yield from _runs(Path(config.runs_dir))
    yield from _daemon(config, config_file, where)
    yield from (_library(name) for name in ("numpy", "torch"))


def _clock() -> Row:
    year = time.gmtime().tm_year
    if year < BUILT_YEAR:
        fix = "set it, or let it be set: timedatectl set-ntp true (journals are dated wrong meanwhile)"
        return Row("clock", "warn", f"this machine believes to be in {year}", fix)
    return Row("clock", "ok", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))


def _keys(config: HostConfig) -> tuple[int, list[Row]]:
    """Return how many boards may come, and what there is to say of all keys."""
    rows: list[Row] = []
    code = KeyFileError.exit_code
    try:
        pair = config.read_keys()
        if public_of(pair.secret) != pair.public:
            text = f"{config.keys}/host.pub does not belong to host.key"
            rows.append(Row("key", "bad", text, "restore both from one copy; boards pin host.pub", code))
        else:
            rows.append(Row("key", "ok", f"fingerprint {fingerprint(pair.public)}"))
    except KeyFileError as error:
        rows.append(Row("key", "bad", str(error), "see there", code))
    faults: list[str] = []
    try:
        boards, operators = config.read_peers(faults)
    except KeyFileError as error:
        return 0, [*rows, Row("peers", "bad", str(error), "see there", code)]
    rows += [Row("peers", "warn", fault, "until then it is left out") for fault in faults]
    both = set(boards.values()) & set(operators.values())
    if both:
        rows.append(Row("peers", "bad", "a board and an operator have one key", "make each its own", code))
    elif not boards or not operators:
        fix = f"put NAME.pub files into {config.keys}/boards and {config.keys}/operators; see `paceline host --help`"
        rows.append(Row("peers", "warn", f"{len(boards)} boards, {len(operators)} operators", fix))
    else:
        rows.append(Row("peers", "ok", f"{len(boards)} boards, {len(operators)} operators"))
    return len(boards), rows


def _descriptors(boards: int) -> Row:
    """Tell whether there are enough for all boards; the host itself raises the soft limit as far as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = 2 * boards + 2 * OWN_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        fix = f"raise it to {needed} or more: LimitNOFILE in the unit, or /etc/security/limits.conf"
        return Row("descriptors", "bad", f"{hard} files may be open, {boards} boards need {needed}", fix, 10)
    return Row("descriptors", "ok", f"{'any number of' if hard == resource.RLIM_INFINITY else hard} files may be open")


def _runs(runs_dir: Path) -> Iterator[Row]:
    there = next(path for path in (runs_dir, *runs_dir.parents) if path.exists())
    code = StorageError.exit_code
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        fix = f"run this as the host's user, or hand it over: chown -R USER {there}"
        yield Row("disk", "bad", f"{there} cannot be written by this user", fix, code)
    elif free < DISK_LOW:
        is_bad = free < DISK_BAD
        fix = "free some, or let runs_dir name another disk; a run without room is paused or ends"
        yield Row("disk", "bad" if is_bad else "warn", f"{free / 1e6:.0f} MB free in {runs_dir}", fix, code * is_bad)
    else:
        yield Row("disk", "ok", f"{free / 1e9:.1f} GB free in {runs_dir}")
    kind = file_system(there)
    if kind.partition(".")[0] in FAR:
        fix = "let runs_dir name a local disk: SQLite's journals do not work over a network"
        yield Row("file system", "bad", f"{runs_dir} is on {kind}", fix, code)
    else:
        yield Row("file system", "ok", kind)
    rows = list_runs(runs_dir)
    for row in rows:
        if row["state"] == "damaged":
            fix = f"restore {row['folder']} from a copy, or remove it"
            yield Row("journal", "warn", f"{row['run']} cannot be read", fix)
    states = [row["state"] for row in rows]
    told = ", ".join(f"{states.count(state)} {state}" for state in sorted({str(s) for s in states})) or "none yet"
    left = next((str(Path(str(row["folder"])).parent) for row in rows if row["state"] == "unfinished"), "")
    yield Row("runs", "warn" if left else "ok", told, f"go on with one: paceline resume {left}" if left else "")


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of file system that holds a path, as the kernel calls it."""
    found, kind = "", "unknown"
    whole = str(path.resolve())
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, name, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            if len(place) >= len(found) and (whole == place or whole.startswith(place.rstrip("/") + "/")):
                found, kind = place, name
    return kind


def _daemon(config: HostConfig | None, config_file: Path | None, where: str | None) -> Iterator[Row]:
    """Ask the daemon, as its operator; where none answers, whether one could be started."""
    beside = str(config_file.resolve().parent) if config_file is not None else None
    try:
        operator = load_operator(where or beside)
    except SettingsError as error:
        if where is not None:
            yield Row("daemon", "bad", error.errors[0], "see there", error.exit_code)
        else:
            yield from _port(config)
        return
    from paceline_host.operator_calls import connected

    try:
        with connected(operator) as host:
            status = host.status()
    except LinkError as error:
        if "nothing listens" in str(error) and where is None:
            yield from _port(config)
        else:
            yield Row("daemon", "bad", str(error), "see there", error.exit_code)
        return
    except PacelineError as error:
        yield Row("daemon", "bad", str(error), "see there", error.exit_code)
        return
    version, boards = status["host"]["version"], status["boards"]
    here = [board for board in boards if board["state"] == "connected"]
    yield Row("daemon", "ok", f"it answers at {operator.endpoint}; {len(here)} of {len(boards)} boards are connected")
    if version != VERSION:
        yield Row("version", "warn", f"the daemon is paceline {version}, this is {VERSION}", "start the daemon again")
    for board in here:
        if board.get("version", version) != version:
            fix = f"install {version} on it; it works meanwhile, as their protocols fit"
            yield Row("version", "warn", f"{board['name']} runs paceline {board['version']}, the host {version}", fix)
        if fault := clock_fault(board.get("clock_off_s")):
            fix = "set the one that is wrong: timedatectl set-ntp true (its log is dated wrong, nothing else)"
            yield Row("clock", "warn", f"{board['name']}: {fault}", fix)
    for stranger in status["pending"]:
        fix = f"if it is your board's, copy its NAME.pub to {status['host']['boards']}"
        yield Row("pending", "warn", f"unknown key {stranger['fingerprint']} from {stranger['address']}", fix)


def _port(config: HostConfig | None) -> Iterator[Row]:
    """Tell whether a daemon could listen where its file says."""
    yield Row("daemon", "warn", "none answers", "start one: paceline host --config host.toml")
    listen = config.listen if config is not None else ""
    address, _, port = listen.removeprefix("tcp://").rpartition(":")
    if not listen.startswith("tcp://") or not port.isdecimal():
        return
    family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as libzmq does
        try:
            probe.bind(("" if address == "*" else address.strip("[]"), int(port)))
        except OSError as error:
            fix = f"end what listens there (ss -ltnp 'sport = :{port}'), or choose another port in host.toml"
            yield Row("port", "bad", f"cannot listen on {listen}: {error.strerror}", fix, LinkError.exit_code)
        else:
            yield Row("port", "ok", f"{listen} is free")


def _library(name: str, python: str = sys.executable) -> Row:
    """Try a library in a child of its own."""
    fix = f"install it into this environment: {python} -m pip install {name}"
    try:
        command = [python, "-c", STEP.format(name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        return Row(name, "bad", f"it could not be loaded within {CHILD_S:g} s", fix, 3)
    if done.returncode == 0:
        return Row(name, "ok", done.stdout.strip())
    last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    return Row(name, "bad", last, fix, 3)
