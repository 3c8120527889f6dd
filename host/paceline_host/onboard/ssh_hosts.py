# SPDX-License-Identifier: Apache-2.0
"""The hosts of the user's ssh config. ssh itself says which files that is, with Include, and what a name means."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline import foreign
from paceline.errors import RunError

ASK_S = 20.0
PROBE = "paceline-asks-for-its-files"  # a name that no Host line means


@dataclass(frozen=True)
class SshHost:
    """A name that `ssh NAME` takes, and what ssh makes of it."""

    name: str
    address: str
    user: str
    port: int


def ssh_hosts(config: Path | None = None) -> list[SshHost]:
    """Return the hosts that the config names, without patterns. `config`: instead of the usual one. Raises RunError."""
    options = ["-F", str(config)] if config is not None else []
    said = _ask("-v", *options, PROBE).stderr
    files = re.findall(r"Reading configuration data (.+?)\r?$", said, re.MULTILINE)
    names = dict.fromkeys(name for file in dict.fromkeys(files) for name in _names(Path(file)))
    return [_meant(name, options) for name in names]


def _names(file: Path) -> Iterator[str]:
    try:
        lines = foreign.read_text(file, errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        match = re.match(r"\s*host(?:\s*=\s*|\s+)(.+)", line, re.IGNORECASE)
        if match is None:
            continue
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError:  # ssh would not take the line either
            continue
        yield from (word for word in words if re.fullmatch(r"[\w.:][\w.:%-]*", word))  # no pattern


def _meant(name: str, options: list[str]) -> SshHost:
    told = dict(line.partition(" ")[::2] for line in _ask(*options, name).stdout.splitlines())
    return SshHost(name, told.get("hostname", name), told.get("user", ""), int(told.get("port", "22")))


def _ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            ["ssh", "-G", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=ASK_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise RunError("there is no ssh on this machine: apt-get install openssh-client") from None
    except subprocess.TimeoutExpired:
        raise RunError(
            f"ssh has not told its settings within {ASK_S:g} s: does a Match exec in its config hang?"
        ) from None
    if done.returncode:
        last = ([line for line in done.stderr.splitlines() if not line.startswith("debug")] or ["nothing"])[-1]
        raise RunError(f"ssh cannot use its config; it says: {last.strip()}")
    return done
