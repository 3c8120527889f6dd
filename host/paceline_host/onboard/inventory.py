# SPDX-License-Identifier: Apache-2.0
"""The list of boards that `paceline boards` installed: how each is reached and where its agent lives. One JSON file
beside the key folders; who may talk to the host is said by keys/boards/ alone, never here.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline import foreign
from paceline.errors import KeyFileError, StorageError
from paceline.keys import check_name, fingerprint, is_public, read_boards
from paceline.talk import printable

FILE = "boards.json"


@dataclass(frozen=True)
class Place:
    """One board. `prefix`: of its agent; `private`: of one user, so without root and without a unit."""

    address: str
    ssh: tuple[str, ...]
    prefix: str
    private: bool
    python: str
    arch: str
    release: str
    installed: str  # UTC


class Inventory:
    """The boards of a keys folder. Several threads may put and drop."""

    def __init__(self, keys: Path) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        try:
            table = json.loads(foreign.read_text(keys / FILE))["boards"]
            self.boards = {name: Place(**{**row, "ssh": tuple(row["ssh"])}) for name, row in table.items()}
        except FileNotFoundError:
            self.boards = {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{keys / FILE} cannot be used ({error}); correct it, or remove it and install again"
            ) from None

    def put(self, name: str, place: Place) -> None:
        """Note a board. Raises StorageError."""
        with self._lock:
            self.boards[name] = place
            self._save()

    def enrol(self, name: str, public: str) -> None:
        """Let a board's key in. Raises KeyFileError where its name or its key are another board's."""
        folder = self._keys / "boards"
        if not is_public(public):
            raise KeyFileError(f"{name} has sent no key (40 characters of Z85): {printable(public)[:80]!r}")
        with self._lock:
            known = read_boards(folder, [])
            owner = next((other for other, key in known.items() if key == public), name)
            if owner != name:
                raise KeyFileError(
                    f"this board is known as {owner}; use that name, or `paceline boards remove {owner}` first"
                )
            if known.get(name, public) != public:
                raise KeyFileError(
                    f"{folder / name}.pub holds another key: another board has this name, or this one was set up anew;"
                    f" then `paceline boards remove {name} --forget` first"
                )
            if name not in known:
                new = folder / f".{name}.new"
                new.write_text(f"{public}\n", encoding="ascii")
                new.replace(folder / f"{check_name(name)}.pub")
            (self._keys / "rejected" / f"{fingerprint(public)}.pub").unlink(missing_ok=True)

    def drop(self, name: str) -> None:
        """Forget a board and its key. Raises StorageError."""
        with self._lock:
            (self._keys / "boards" / f"{check_name(name)}.pub").unlink(missing_ok=True)
            if self.boards.pop(name, None) is not None:
                self._save()

    def _save(self) -> None:
        table = {name: asdict(place) for name, place in sorted(self.boards.items())}
        new = self._keys / f".{FILE}.new"
        try:
            with new.open("w", encoding="utf-8") as file:
                json.dump({"schema": "paceline-boards-1", "boards": table}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._keys / FILE)
        except OSError as error:
            raise StorageError(f"cannot write {self._keys / FILE}: {error.strerror}") from None
