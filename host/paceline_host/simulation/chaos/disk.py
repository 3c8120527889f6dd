# SPDX-License-Identifier: Apache-2.0
"""The host's disk: real files of the production journal, checkpoints and uploads, and what of them a crash leaves.

While it is in place it stands between the modules that write and the system. A killed process loses nothing that it
wrote. A power cut takes what was not synced: of the spool a tail, of a checkpoint its content or its name, of uploads
anything; the journal's last commit, if it was in mid-write, is cut at any byte (its earlier ones are synced: that is
SQLite's part of the bargain, and is believed).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from paceline_host import checkpoint, epoch, journal, uploads
from paceline_host.psl import store as split

MODELS = "checkpoints"


class HostDied(Exception):
    """The host's process ends here, whatever it was about to do."""


class Doom:
    """Counts the points that a host passes; at one of them it dies."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.power = False
        self.passed = 0

    def point(self) -> None:
        """Here the host may die."""
        self.passed += 1
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.left = None
                raise HostDied


class Disk:
    """Give it a scratch folder. `folder`: the run's, another one in each life."""

    def __init__(self, scratch: Path, doom: Doom, chance: Random) -> None:
        self._scratch, self._doom, self._chance = scratch, doom, chance
        self.life = 0
        self.folder = self._home()
        self.is_full = False
        self.sync_fails = False
        self.wall_ns = 1_800_000_000_000_000_000
        self._synced = 0  # bytes of the spool
        self._fresh: dict[str, str] = {}  # checkpoints whose names are not synced yet: name -> what it was before
        self._kept: set[int] = set()  # checkpoints whose content is synced, by inode
        self._has_models = False  # the name of their folder is synced
        self._commit: tuple[int, int] | None = None  # of a commit in mid-write: length of the WAL before and after

    def _home(self) -> Path:
        return self._scratch / f"life-{self.life}" / "run"

    # What the writers call ------------------------------------------------------------------------------------------

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Stand between the writers and the system."""
        places: list[tuple[Any, str, Any]] = [
            (journal, "os", _Os(self)), (checkpoint, "os", _Os(self)), (uploads, "os", _Os(self)),
            (split, "os", _Os(self)),
            (epoch, "time", _Wall(self)),
        ]  # fmt: skip
        before = [(module, name, getattr(module, name)) for module, name, _ in places]
        for module, name, stand_in in places:
            setattr(module, name, stand_in)
        try:
            yield
        finally:
            for module, name, real in before:
                setattr(module, name, real)

    def room(self) -> None:
        """Raise what a full disk raises."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, handle: int) -> None:
        """A file, or a folder's names."""
        self._doom.point()
        self.room()
        if self.sync_fails:
            self.sync_fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path == self.folder / MODELS:
            self._fresh.clear()
        elif path == self.folder:
            self._has_models |= (path / MODELS).exists()
        elif path == self.folder / journal.SPOOL:
            self._synced = os.fstat(handle).st_size
        else:
            self._kept.add(os.fstat(handle).st_ino)
        self._doom.point()

    def rename(self, old: Path, new: Path) -> None:
        """A checkpoint gets its name."""
        self._doom.point()
        os.rename(old, new)
        self._fresh[new.name] = old.name
        self._doom.point()

    # Commits and crashes --------------------------------------------------------------------------------------------

    @property
    def wal_bytes(self) -> int:
        """Return how long the journal's log is."""
        try:
            return (self.folder / f"{journal.JOURNAL}-wal").stat().st_size
        except OSError:
            return 0

    def committed(self, before: int) -> None:
        """The journal has written a commit: here the host may have died in the midst of it."""
        self._commit = before, self.wal_bytes
        self._doom.point()
        self._commit = None

    def crash(self) -> None:
        """Let the next life find what this one leaves."""
        old, power = self.folder, self._doom.power
        torn = {path.name for path in _models(old) if path.stat().st_ino not in self._kept}
        self.life += 1
        self.folder = self._home()
        if old.parent.exists():
            shutil.copytree(old.parent, self.folder.parent, ignore=shutil.ignore_patterns("*-shm"))
        if self._commit is not None and self._commit[1] > self._commit[0]:
            os.truncate(self.folder / f"{journal.JOURNAL}-wal", self._chance.randrange(*self._commit))
        if power:
            self._lose_power(torn)
        self._commit = None
        self._fresh.clear()
        self._kept = {path.stat().st_ino for path in _models(self.folder)}
        self._has_models = (self.folder / MODELS).exists() and (power or self._has_models)
        self._synced = _size(self.folder / journal.SPOOL)

    def forget(self, life: int) -> None:
        """Remove what an earlier life has left."""
        shutil.rmtree(self._scratch / f"life-{life}", ignore_errors=True)

    def _lose_power(self, torn: set[str]) -> None:
        chance, spool, models = self._chance, self.folder / journal.SPOOL, self.folder / MODELS
        if _size(spool) > self._synced:
            os.truncate(spool, chance.randint(self._synced, _size(spool)))
        if models.exists() and not self._has_models and chance.random() < 0.5:
            shutil.rmtree(models)
        for path in _models(self.folder):
            if path.name in torn:
                os.truncate(path, chance.randint(0, _size(path)))
            if path.name in self._fresh and chance.random() < 0.5:
                path.rename(models / self._fresh[path.name])
        for path in sorted((self.folder / "uploads").glob("*.part")):
            if chance.random() < 0.5:
                with path.open("r+b") as file:
                    file.seek(chance.randrange(_size(path)))
                    file.write(bytes(chance.randrange(1, 5000)))
                os.truncate(path, _size(path) - chance.choice((0, 0, 1)))


class _Os:
    """`os` for a module that writes."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, handle: int) -> None:
        self._disk.sync(handle)

    fdatasync = fsync

    def rename(self, old: Path, new: Path) -> None:
        self._disk.rename(old, new)

    def pwrite(self, handle: int, data: Any, offset: int) -> int:
        self._disk.room()
        return os.pwrite(handle, data, offset)

    def posix_fallocate(self, handle: int, offset: int, length: int) -> None:
        self._disk.room()
        os.posix_fallocate(handle, offset, length)


class _Wall:
    """`time` for the module that numbers the host's lives."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def time_ns(self) -> int:
        return self._disk.wall_ns


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _models(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / MODELS).glob("*") if path.is_file())
