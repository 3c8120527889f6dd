# SPDX-License-Identifier: Apache-2.0
"""The last finished result on a board's disk, so that it outlives the agent: a small record beside the update file.

Nothing is synced: the record names the hash of the update, so whatever a power cut or a later slice has left of either
is found out, and then there is no result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paceline.errors import SettingsError
from paceline.machine import Kept
from paceline.settings import load_table

RECORD = "result.json"
BLOCK_BYTES = 1 << 20


def save(state_dir: Path, kept: Kept, say: Callable[[str], None]) -> None:
    """Write the record. A full disk costs what a restart would have saved, and no more."""
    known = {key: value for key, value in dataclasses.asdict(kept).items() if value is not None}
    if kept.energy is not None:
        known["energy"] = {key: value for key, value in known["energy"].items() if value is not None}
    try:
        (state_dir / RECORD).write_text(json.dumps(known), encoding="utf-8")
    except OSError as error:
        say(f"{state_dir / RECORD}: {error.strerror}; a result that is not delivered would be computed again")


def load(state_dir: Path, update_path: Path) -> Kept | None:
    """Return the result that an earlier life of this agent left, if its update is whole."""
    with suppress(OSError, ValueError, SettingsError):
        kept = load_table(json.loads((state_dir / RECORD).read_text(encoding="utf-8")), Kept, where=RECORD)
        if update_path.stat().st_size == kept.update_bytes and _sha256(update_path) == kept.update_sha256:
            return kept
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
