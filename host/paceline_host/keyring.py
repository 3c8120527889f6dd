# SPDX-License-Identifier: Apache-2.0
"""Who may talk to a daemon: the key folders as they are on disk now, and what has changed in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from paceline_host.host_config import HostConfig


@dataclass(frozen=True)
class Admitted:
    """Boards and operators, name -> public key each."""

    boards: dict[str, str]
    operators: dict[str, str]


@dataclass
class Keyring:
    """`peers` are those who are let in; `look` reads the folders again when a file has changed; `faults` are the files
    that hold no key of their own, which keep nobody else out.
    """

    config: HostConfig
    peers: Admitted = field(init=False)
    faults: list[str] = field(init=False)

    def __post_init__(self) -> None:
        """Read them. Raises KeyFileError."""
        self._seen = self._files()
        self.peers = self._read()

    def look(self) -> Admitted | None:
        """Return who is to be let in now; None: nothing has changed. Raises KeyFileError once for a lost folder."""
        seen = self._files()
        if seen == self._seen:
            return None
        self._seen = seen
        return self._read()

    def rejected(self) -> set[str]:
        """Return the fingerprints of keys that were looked at and are not wanted: they are not asked about again."""
        return {path.stem for path in (Path(self.config.keys) / "rejected").glob("*.pub")}

    def _read(self) -> Admitted:
        self.faults = []
        return Admitted(*self.config.read_peers(self.faults))

    def _files(self) -> list[tuple[str, int, int]]:
        """Return what changes when a key file does."""
        found = []
        for role in ("boards", "operators"):
            for path in sorted((Path(self.config.keys) / role).glob("*.pub")):
                try:
                    facts = path.stat()
                except OSError:  # removed in this instant
                    continue
                found.append((str(path), facts.st_mtime_ns, facts.st_size))
        return found


def changed(before: dict[str, str], now: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return who has come and who has left; a name with another key has done both."""
    come = [name for name, key in now.items() if before.get(name) != key]
    left = [name for name, key in before.items() if now.get(name) != key]
    return come, left
