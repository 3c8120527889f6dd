# SPDX-License-Identifier: Apache-2.0
"""The last finished result on a board's disk, so that it outlives the agent: a small record beside the update file.

Nothing is synced: the record names the hash of the update, so whatever a power cut or a later slice has left of either
is found out, and then there is no result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paceline.errors import SettingsError
from paceline.machine import Kept
from paceline.settings import load_table

RECORD = "result.json"
BLOCK_BYTES = 1 << 20


class Shelf:
    """The record in `state_dir`, written over in place: to cut a file short costs a millisecond on some disks."""

    def __init__(self, state_dir: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = state_dir / RECORD, say
        self._handle: int | None = None
        self._length = 0

    def save(self, kept: Kept) -> None:
        """Write the record. A full disk costs what a restart would have saved, and no more."""
        known = {key: value for key, value in vars(kept).items() if value is not None}
        if kept.energy is not None:
            known["energy"] = {key: value for key, value in vars(kept.energy).items() if value is not None}
        text = json.dumps(known).encode()
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._length = os.fstat(self._handle).st_size
            os.pwrite(self._handle, text.ljust(self._length), 0)
            self._length = max(self._length, len(text))
        except OSError as error:
            self._say(f"{self._path}: {error.strerror}; a result that is not delivered would be computed again")

    def load(self, update_path: Path) -> Kept | None:
        """Return the result that an earlier life of this agent left, if its update is whole."""
        with suppress(
            OSError, ValueError, TypeError, RecursionError, SettingsError
        ):  # no JSON, no object, or no result
            kept = load_table(json.loads(self._path.read_text(encoding="utf-8")), Kept, where=RECORD)
            if update_path.stat().st_size == kept.update_bytes and _sha256(update_path) == kept.update_sha256:
                return kept
        return None

    def close(self) -> None:
        """Let go of the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
