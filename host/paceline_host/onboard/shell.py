# SPDX-License-Identifier: Apache-2.0
"""Commands on a board over the user's own OpenSSH. Never asks for anything: whatever would be a question is an error.

An error says what went wrong and what to do, in one sentence, with the exit status of its kind.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from paceline.errors import EXITS, PacelineError
from paceline.talk import printable

OURS = "paceline-agent: "  # what its sentences begin with
CONNECT_S = 10
SILENT_S = 15  # each, and four of them: a board that is gone is noticed within a minute
CONNECTION, KEYS, FAILED = 4, 5, 9
# What ssh says -> (exit status, what it means and what to do). The first that is found counts.
SAID: tuple[tuple[str, int, str], ...] = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", KEYS,
     "its ssh host key is not the one in known_hosts: if it was set up anew, `ssh-keygen -R HOST`, then log in once"),
    ("Host key verification failed", KEYS,
     "its ssh host key is not known yet: log in once with `ssh {address}`, compare the fingerprint, then try again"),
    ("Permission denied", KEYS,
     "it takes no key that this ssh offers: `ssh-copy-id {address}`, or name one with --identity; is the user right?"),
    ("Too many authentication failures", KEYS, "too many keys were offered: name the right one with --identity"),
    ("Could not resolve hostname", CONNECTION, "no such name is known: use its address, or correct ~/.ssh/config"),
    ("Connection refused", CONNECTION, "nothing listens on that port: is sshd running there? another port: --port"),
    ("timed out", CONNECTION, "no answer: is it switched on, and in this network?"),
    ("No route to host", CONNECTION, "no way there: is it switched on, and in this network?"),
    ("Network is unreachable", CONNECTION, "no way there from this machine"),
    ("Bad configuration option", 2, "ssh does not know an --ssh-option: `man ssh_config` lists them"),
)  # fmt: skip


class BoardError(PacelineError):
    """Something about one board; the others go on."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Shell:
    """A board's shell. `address`: as ssh takes it; `options`: further arguments of ssh, before all others."""

    address: str
    options: tuple[str, ...] = ()

    def run(self, script: str, *arguments: str, file: Path | None = None, timeout_s: float = 120.0) -> str:
        """Run a script of sh there, with `file` as its input; return what it printed. Raises BoardError."""
        command = [
            "ssh", *self.options, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}",
            "-o", f"ServerAliveInterval={SILENT_S}", "-o", "ServerAliveCountMax=4", "--", self.address,
            shlex.join(["sh", "-c", script, "sh", *arguments]),
        ]  # fmt: skip
        try:
            with (file or Path(os.devnull)).open("rb") as given:
                done = subprocess.run(
                    command, stdin=given, capture_output=True, timeout=timeout_s, check=False,
                    env={**os.environ, "LC_ALL": "C"},
                )  # fmt: skip
        except FileNotFoundError:
            raise BoardError(FAILED, "there is no ssh on this machine: apt-get install openssh-client") from None
        except subprocess.TimeoutExpired:
            raise BoardError(
                CONNECTION, f"it has not finished within {timeout_s:g} s: is it hanging? look there"
            ) from None
        words = done.stderr.decode(errors="replace")
        if done.returncode == 255:
            raise self._unreachable(words)
        return answered(done.returncode, done.stdout, done.stderr)

    def _unreachable(self, words: str) -> BoardError:
        for said, status, meaning in SAID:
            if said in words:
                return BoardError(status, meaning.format(address=self.address))
        return BoardError(CONNECTION, f"ssh: {_last(words, 255)}")


def answered(status: int, out: bytes, err: bytes) -> str:
    """Return what a script there has printed. Raises BoardError with its last words where it has failed."""
    if status:
        is_ours = status in EXITS and status > 1  # 1 is many programs' word for anything
        raise BoardError(status if is_ours else FAILED, _last(err.decode(errors="replace"), status))
    return out.decode(errors="replace")


def _last(words: str, status: int) -> str:
    """Return the last thing that a program said, without its name; the agent may have said several in a row."""
    lines = [printable(line) for line in words.splitlines() if line.strip()]
    if not lines:
        return f"it ended with status {status}"
    mine = [line.removeprefix(OURS) for line in takewhile(lambda line: line.startswith(OURS), reversed(lines))]
    return "; ".join(reversed(mine)) or re.sub(r"^(install|sh|ssh): ", "", lines[-1])
