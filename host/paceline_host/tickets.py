# SPDX-License-Identifier: Apache-2.0
"""What was submitted to a daemon, on disk: ticket.toml in the folder of its runs. So the queue outlives the daemon.

A folder with a ticket is whole from the instant the ticket is in it: experiment.toml is written before.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline import settings
from paceline.errors import PacelineError, StorageError

FILE = "ticket.toml"
State = Literal["queued", "active", "finished", "failed", "stopped"]


@dataclass(frozen=True)
class Ticket:
    """One submitted experiment. `name` is that of its folder, `number` its place in the order of submission."""

    name: str
    number: int
    by: str  # the operator
    submitted: str  # UTC, for people
    state: State = "queued"
    reason: str = ""  # why it failed or was stopped

    @property
    def over(self) -> bool:
        """Nothing will be done about it any more."""
        return self.state not in ("queued", "active")


def save(runs_dir: Path, ticket: Ticket) -> None:
    """Write a ticket, whole or not at all, and to the disk. Raises StorageError."""
    folder = runs_dir / ticket.name
    fresh = folder / f".{FILE}.new"
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(settings.dump(ticket))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / FILE)
        for path in (folder, runs_dir):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        raise StorageError(f"cannot write {folder / FILE}: {error.strerror}") from None


def find(runs_dir: Path, name: str) -> Ticket | None:
    """Return the ticket of that name; None: there is none. Raises PacelineError when it cannot be read."""
    path = runs_dir / name / FILE
    return settings.load(path, Ticket, where=str(path)) if path.exists() else None


def every(runs_dir: Path, say: Callable[[str], None]) -> Iterator[Ticket]:
    """Yield all tickets in the order of submission; says which cannot be read."""
    found = []
    for path in runs_dir.glob(f"*/{FILE}"):
        try:
            ticket = find(runs_dir, path.parent.name)
        except PacelineError as error:
            say(f"{path} is left out: {error}")
            continue
        if ticket is not None and ticket.name == path.parent.name:
            found.append(ticket)
    yield from sorted(found, key=lambda ticket: ticket.number)


@contextmanager
def held(runs_dir: Path) -> Iterator[None]:
    """Hold a folder of runs for this process alone. Raises StorageError."""
    path = runs_dir / ".host.lock"
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"cannot write into {runs_dir}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"another host daemon works in {runs_dir}; give each its own runs_dir") from None
        yield
    finally:
        os.close(handle)
