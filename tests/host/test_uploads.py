# SPDX-License-Identifier: Apache-2.0
"""Updates as they come in: what has arrived outlives the host, what is not ours or not whole is not taken up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.errors import StorageError
from paceline.wire import INLINE_BYTES
from paceline_host.steps import Part
from paceline_host.uploads import Uploads

SIZE = 3 * INLINE_BYTES + 7
DATA = os.urandom(SIZE)
PART = Part(4, 2, "ab" * 32, SIZE)


def send(uploads: Uploads, begin: int, end: int, board: int = 1, part: Part = PART) -> None:
    """Let some of an update come in."""
    step = INLINE_BYTES
    for offset in range(begin, end, step):
        uploads.write(board, part, offset, memoryview(DATA)[offset : min(offset + step, end)])


def test_a_large_update_comes_back_as_it_came_and_leaves_nothing(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "u")
    send(uploads, 0, SIZE)
    first = uploads.take(1)
    assert bytes(first) == DATA
    assert list((tmp_path / "u").iterdir()) == []
    send(uploads, 0, INLINE_BYTES)  # the next one of the same board does not touch what somebody still reads
    assert bytes(first) == DATA
    uploads.clear()
    assert not (tmp_path / "u").exists()


def test_a_small_update_touches_no_disk(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "u")
    uploads.write(0, Part(1, 0, "cd" * 32, 40), 0, memoryview(DATA)[:40])
    assert not (tmp_path / "u").exists()
    assert bytes(uploads.take(0)) == DATA[:40]


def test_another_life_of_the_host_finds_what_had_come_in(tmp_path: Path) -> None:
    send(Uploads(tmp_path), 0, 2 * INLINE_BYTES)
    again = Uploads(tmp_path)
    assert again.left == {1: Part(4, 2, "ab" * 32, SIZE, 2 * INLINE_BYTES)}
    send(again, 2 * INLINE_BYTES, SIZE)
    assert bytes(again.take(1)) == DATA


def test_an_upload_that_begins_anew_replaces_the_old_one(tmp_path: Path) -> None:
    send(Uploads(tmp_path), 0, 2 * INLINE_BYTES)
    again = Uploads(tmp_path)
    other = Part(5, 0, "ef" * 32, SIZE)
    send(again, 0, INLINE_BYTES, part=other)
    assert Uploads(tmp_path).left == {1: Part(5, 0, "ef" * 32, SIZE, INLINE_BYTES)}


@pytest.mark.parametrize("spoil", ["magic", "short", "empty", "name", "have"])
def test_what_is_no_upload_is_removed(tmp_path: Path, spoil: str) -> None:
    send(Uploads(tmp_path), 0, INLINE_BYTES)
    path = tmp_path / "1.part"
    if spoil == "magic":
        path.write_bytes(b"x" + path.read_bytes()[1:])
    elif spoil == "short":
        os.truncate(path, 5000)
    elif spoil == "empty":
        os.truncate(path, 0)
    elif spoil == "name":
        path.rename(tmp_path / "x.part")
    else:
        content = bytearray(path.read_bytes())
        content[96:104] = (SIZE + 1).to_bytes(8, "little")
        path.write_bytes(content)
    assert Uploads(tmp_path).left == {}
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "u").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(StorageError, match="no room for an update of"):
        send(Uploads(tmp_path / "u"), 0, SIZE)
