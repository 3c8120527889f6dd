# SPDX-License-Identifier: Apache-2.0
"""The number of a host's life: grows with each start, whatever its clock says. Boards obey the highest they have seen.

A host without a battery-backed clock may believe that it is 1970 when it starts; boards that have met its last life
would not obey it then. So the last number is kept with its runs.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from paceline.errors import StorageError

FILE = ".host.epoch"
MOST = 1 << 62


def next_epoch(runs_dir: Path) -> int:
    """Return a number above all that hosts with these runs have used, and keep it. Raises StorageError."""
    path = runs_dir / FILE
    last = 0
    with suppress(OSError, ValueError):
        last = int(path.read_text(encoding="ascii"))
    epoch = max(time.time_ns() // 1_000_000, last + 1 if 0 <= last < MOST else 0)
    fresh = runs_dir / f"{FILE}.new"
    try:
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; a host keeps the number of its life there"
        ) from None
    return epoch
