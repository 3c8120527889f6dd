# SPDX-License-Identifier: Apache-2.0
"""Who is let in, by hand: keys that knocked at the daemon are accepted or rejected, keys that are in are revoked.

The key folders are all there is: boards/NAME.pub is in; rejected/FINGERPRINT.pub is out, and no longer asked about.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.errors import KeyFileError, LinkError, SettingsError
from paceline.keys import check_name, fingerprint, is_public, read_boards, read_public
from paceline.talk import Talk
from paceline_host.host_config import HostConfig, OperatorConfig, load_host, load_operator
from paceline_host.onboard.greeting import comes_to
from paceline_host.onboard.inventory import Inventory
from paceline_host.operator_calls import connected


def pending(arguments: argparse.Namespace, talk: Talk) -> int:
    """List the keys that knocked and are neither let in nor rejected."""
    knocked = _knocked(load_operator(arguments.host))
    if arguments.json:
        print(json.dumps({"schema": "paceline-pending-1", "pending": knocked}, indent=1))
    else:
        for each in knocked:
            ago = f"{each['times']} times, last {each['last_s']:.0f} s ago"
            print(f"{each['fingerprint']}  {each['address']:15}  {ago}  {each['key']}")
    if not knocked:
        talk.info("nobody has knocked; whose key is let in, `paceline boards list` tells")
    return 0


def accept(arguments: argparse.Namespace, talk: Talk) -> int:
    """Let a key in, as a board's name."""
    gate = _Gate(arguments)
    name, key = check_name(arguments.name), gate.key(arguments.key)
    Inventory(gate.keys).enrol(name, key)
    gate.is_heard(name, is_in=True)
    print(fingerprint(key))
    talk.info(f"{name} is let in; its agent, if it was refused, has ended: start it again on the board")
    return 0


def reject(arguments: argparse.Namespace, talk: Talk) -> int:
    """Leave a key out, and ask about it no longer."""
    gate = _Gate(arguments)
    key = gate.key(arguments.key)
    for name, known in read_boards(gate.keys / "boards", []).items():
        if known == key:
            raise KeyFileError(f"this key is let in, as {name}: `paceline boards revoke {name}` withdraws it")
    gate.leave_out(key)
    print(fingerprint(key))
    return 0


def revoke(arguments: argparse.Namespace, talk: Talk) -> int:
    """Withdraw a board's key: a daemon cuts its link at once."""
    gate = _Gate(arguments)
    path = gate.keys / "boards" / f"{check_name(arguments.name)}.pub"
    if not path.exists():
        known = ", ".join(sorted(read_boards(gate.keys / "boards", []))) or "nobody"
        raise KeyFileError(f"{path} does not exist, so {arguments.name} is not let in; let in are {known}")
    with suppress(KeyFileError):  # a file that holds no key is withdrawn all the same
        gate.leave_out(read_public(path))
    path.unlink()
    gate.is_heard(arguments.name, is_in=False)
    talk.info(f"{arguments.name} is let in no longer; its agent is still there, and ends when it next knocks")
    return 0


class _Gate:
    """The key folders of a host, and its daemon where one answers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._operator: OperatorConfig | None = None
        host = HostConfig(keys=str(arguments.keys))
        if arguments.host is not None:
            host = load_host(arguments.host / "host.toml" if arguments.host.is_dir() else arguments.host)
            with suppress(SettingsError, LinkError):  # it does not run, or this user is no operator of it
                self._operator = load_operator(str(arguments.host))
                with connected(self._operator) as daemon:
                    daemon.status()
        self.keys = Path(host.keys)

    def key(self, text: str) -> str:
        """Return the key that is meant: itself, a .pub file's, or by its fingerprint. Raises KeyFileError."""
        if is_public(text):
            return text
        if text.endswith(".pub"):
            return read_public(Path(text))
        for key in self._known():
            if fingerprint(key) == text:
                return key
        where = "" if self._operator is not None else "; name the daemon with --host, or give the key itself"
        raise KeyFileError(f"no key with fingerprint {text!r} has knocked: `paceline boards pending` lists them{where}")

    def leave_out(self, key: str) -> None:
        """Note a key as rejected."""
        folder = self.keys / "rejected"
        folder.mkdir(exist_ok=True)
        (folder / f"{fingerprint(key)}.pub").write_text(f"{key}\n", encoding="ascii")

    def is_heard(self, name: str, *, is_in: bool) -> None:
        """Wait until the daemon, if there is one, has heard of it. Raises LinkError."""
        if self._operator is not None and not comes_to(self._operator, name, lambda state: (state != "") == is_in):
            raise LinkError("the host daemon has not taken notice: does it watch the same keys folder?")

    def _known(self) -> Iterator[str]:
        yield from read_boards(self.keys / "boards", []).values()
        for path in sorted((self.keys / "rejected").glob("*.pub")):
            yield read_public(path)
        if self._operator is not None:
            yield from (str(each["key"]) for each in _knocked(self._operator))


def _knocked(config: OperatorConfig) -> list[dict[str, Any]]:
    with connected(config) as host:
        return list(host.status()["pending"])
