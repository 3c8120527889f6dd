# SPDX-License-Identifier: Apache-2.0
"""Updates as they come in, in mapped files: bytes that have arrived outlive the host, and are not sent twice.

A board holds one lease, so it has one upload. Nothing is synced: the update's hash is checked when all of it is there,
and what a power cut took is then found out. Small updates come in one message and never lie here.
"""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import StorageError
from paceline.wire import INLINE_BYTES
from paceline_host.steps import Part

Buffer = bytearray | memoryview
_HEAD = struct.Struct("<8s64sQQQQ")  # magic, hash, round, slice, size, have
_MAGIC = b"pl-part1"
_PAGE = mmap.ALLOCATIONGRANULARITY  # the update begins at the second one


@dataclass
class _File:
    part: Part
    path: Path
    whole: mmap.mmap

    def note(self, have: int) -> None:
        p = self.part
        _HEAD.pack_into(self.whole, 0, _MAGIC, p.update_sha256.encode("ascii"), p.round, p.slice, p.size, have)


class Uploads:
    """The uploads of a run, by board. `left` holds what an earlier life of the host has left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}
        self._small: dict[int, bytearray] = {}
        for path in sorted(folder.glob("*.part")):
            self._find(path)
        self.left = {board: file.part for board, file in self._files.items()}

    def write(self, board: int, part: Part, offset: int, payload: memoryview) -> None:
        """Put a piece at its place; at offset 0 a new upload begins. Raises StorageError when there is no room."""
        if part.size <= INLINE_BYTES:
            self._small[board] = bytearray(payload)
            return
        if offset == 0:
            self._forget(board)
            self._files[board] = self._begin(board, part)
        file = self._files[board]
        target = memoryview(file.whole)[_PAGE + offset : _PAGE + offset + len(payload)]
        target[:] = payload
        file.note(offset + len(payload))

    def take(self, board: int) -> Buffer:
        """Return a whole update; it is forgotten here."""
        small = self._small.pop(board, None)
        if small is not None:
            return small
        file = self._files.pop(board)
        with suppress(OSError):
            file.path.unlink()  # the mapping stays for as long as somebody reads it
        return memoryview(file.whole)[_PAGE:]

    def clear(self) -> None:
        """Remove everything: the run is finished, and nobody will ask for it any more."""
        for board in list(self._files):
            self._forget(board)
        with suppress(OSError):
            self._folder.rmdir()

    def _forget(self, board: int) -> None:
        file = self._files.pop(board, None)
        if file is not None:
            with suppress(OSError):
                file.path.unlink()
            with suppress(BufferError):
                file.whole.close()

    def _begin(self, board: int, part: Part) -> _File:
        path = self._folder / f"{board}.part"
        try:
            self._folder.mkdir(exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(handle, 0, _PAGE + part.size)  # a full disk is found here, not as a bus error later
                whole = mmap.mmap(handle, _PAGE + part.size)
            finally:
                os.close(handle)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise StorageError(f"{path}: no room for an update of {part.size} bytes: {error.strerror}") from None
        file = _File(part, path, whole)
        file.note(0)
        return file

    def _find(self, path: Path) -> None:
        """Take up a file of an earlier life; what is not one is removed."""
        try:
            with path.open("r+b") as raw:
                whole = mmap.mmap(raw.fileno(), 0)
            magic, digest, round_, slice_, size, have = _HEAD.unpack_from(whole)
            if magic == _MAGIC and path.stem.isdecimal() and len(whole) == _PAGE + size and have <= size:
                part = Part(round_, slice_, digest.decode("ascii"), size, have)
                self._files[int(path.stem)] = _File(part, path, whole)
                return
            whole.close()
        except (OSError, ValueError, struct.error):
            pass
        with suppress(OSError):
            path.unlink()
