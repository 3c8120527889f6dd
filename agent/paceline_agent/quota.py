# SPDX-License-Identifier: Apache-2.0
"""Real scarcity: the trainer, never the agent, in a control group that the kernel gives a share of a processor.

A child of the agent's own control group, with CFS bandwidth: cgroup v1 (`cpu.cfs_quota_us`) where the controller is
there, v2 (`cpu.max`) otherwise. The trainer is moved in once it has imported and loaded, and the group goes at the end.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Annotated

from paceline.errors import SettingsError
from paceline.settings import Bounds

PERIOD_US = 100_000  # the kernel's default; shorter ones lose more to switching
END_S = 2.0  # a process that was killed may take so long to leave


@dataclass(frozen=True)
class QuotaSettings:
    """Table [quota] of agent.toml. Without it the trainer takes what it gets."""

    cpu_percent: Annotated[float, Bounds(ge=1, le=10_000)]  # of one processor: 25.0 is a quarter, 200.0 two of them


class Quota:
    """Context manager: the group exists inside it. Raises SettingsError where the system does not let us."""

    def __init__(self, settings: QuotaSettings, proc: Path = Path("/proc/self")) -> None:
        self._settings = settings
        self._proc = proc
        self.group: Path | None = None
        self._leaf: Path | None = None  # v2: where the agent itself has gone

    def __enter__(self) -> Quota:
        try:
            self._home, version = own_group(self._proc)
            if version == 2:
                self._delegate()
            self.group = self._home / f"paceline-trainer-{os.getpid()}"
            self.group.mkdir(exist_ok=True)  # there: left by an agent that was killed and had our process id
            self._limit(self.group, version)
        except OSError as error:
            self.__exit__(None, None, None)
            where = f"{error.filename}: " if error.filename else ""
            raise SettingsError(
                [
                    f"quota.cpu_percent = {self._settings.cpu_percent:g}: the trainer cannot be limited: {where}"
                    f"{error.strerror}; expected a control group with the cpu controller that user {os.geteuid()} may "
                    "write: start the agent as a service with Delegate=cpu, or as root, or remove [quota]"
                ]
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.group is not None:
            _remove(self.group, self._home)
        if self._leaf is not None:
            with suppress(OSError):
                _write(self._home / "cgroup.subtree_control", "-cpu")
            _remove(self._leaf, self._home)

    def admit(self, pid: int) -> None:
        """Limit a process and all its threads from now on; once or many times. Raises OSError when that fails."""
        assert self.group is not None
        with suppress(ProcessLookupError):  # its end is told elsewhere
            _write(self.group / "cgroup.procs", str(pid))

    def _limit(self, group: Path, version: int) -> None:
        quota_us = round(self._settings.cpu_percent / 100 * PERIOD_US)
        if version == 1:
            _write(group / "cpu.cfs_period_us", str(PERIOD_US))
            _write(group / "cpu.cfs_quota_us", str(quota_us))
        else:
            _write(group / "cpu.max", f"{quota_us} {PERIOD_US}")

    def _delegate(self) -> None:
        """Let children of our v2 group have the cpu controller; the kernel wants no process in it then, so we leave."""
        control = self._home / "cgroup.subtree_control"
        if "cpu" in control.read_text(encoding="ascii").split():
            return
        try:
            _write(control, "+cpu")
        except OSError:
            leaf = self._home / f"paceline-agent-{os.getpid()}"
            leaf.mkdir()
            self._leaf = leaf
            _write(leaf / "cgroup.procs", str(os.getpid()))
            _write(control, "+cpu")


def own_group(proc: Path) -> tuple[Path, int]:
    """Return the folder of a process's control group that has the cpu controller, and its version. Raises OSError."""
    groups = {}
    for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    mounts = [_mount(line) for line in (proc / "mountinfo").read_text(encoding="utf-8").splitlines()]
    for kind, root, point, options in mounts:
        if kind == "cgroup" and "cpu" in options and "cpu" in groups:
            return _below(point, root, groups["cpu"]), 1
    for kind, root, point, _ in mounts:
        if kind == "cgroup2" and "" in groups:
            home = _below(point, root, groups[""])
            if "cpu" in (home / "cgroup.controllers").read_text(encoding="ascii").split():
                return home, 2
    raise OSError(None, "no cpu controller is mounted or delegated here")


def _mount(line: str) -> tuple[str, str, str, list[str]]:
    """Return (kind, root, mount point, options) of a line of mountinfo, which writes odd characters in octal."""
    before, after = (part.split() for part in line.split(" - ", 1))
    root, point = (re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text) for text in before[3:5])
    return after[0], root, point, after[-1].split(",")


def _below(point: str, root: str, path: str) -> Path:
    """Return where a group's path appears under a mount that shows the hierarchy from `root` on."""
    inside = PurePosixPath(path)
    return Path(point) / (inside.relative_to(root) if inside.is_relative_to(root) else ".")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None  # a failed write names no file


def _remove(group: Path, home: Path) -> None:
    """Remove a group; who is still in it goes home."""
    end_s = time.monotonic() + END_S
    while True:
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
                _write(home / "cgroup.procs", pid)
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > end_s:
                return
            time.sleep(0.01)
        else:
            return
