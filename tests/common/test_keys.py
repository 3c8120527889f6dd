# SPDX-License-Identifier: Apache-2.0
"""Key files: secrets that nobody else can read, never overwritten, never shown, refused with a sentence when wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from paceline.errors import KeyFileError
from paceline.keys import KeyPair, fingerprint, is_public, read_boards, read_pair, read_public, write_pair

PAIR = KeyPair("abcdefghijklmnopqrstuvwxyz0123456789.-:+", "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=^!/")
OTHER = KeyPair("*?&<>()[]{}@%$#abcdefghijklmnopqrstuvwxy", "*?&<>()[]{}@%$#ABCDEFGHIJKLMNOPQRSTUVWXY")


def test_a_pair_comes_back_and_its_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        write_pair(tmp_path / "new", "board", PAIR)
    finally:
        os.umask(previous)
    secret, public = tmp_path / "new" / "board.key", tmp_path / "new" / "board.pub"
    assert read_pair(secret) == PAIR
    assert read_public(public) == PAIR.public
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert PAIR.secret not in public.read_text(encoding="ascii")


def test_a_secret_is_0600_even_where_the_umask_would_take_the_owners_right(tmp_path: Path) -> None:
    previous = os.umask(0o777)
    try:
        write_pair(tmp_path, "board", PAIR)
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "board.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("there", ["board.key", "board.pub"])
def test_what_exists_is_never_overwritten_and_nothing_half_is_left(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious", encoding="ascii")
    with pytest.raises(KeyFileError, match=f"{there} exists already"):
        write_pair(tmp_path, "board", PAIR)
    assert [p.name for p in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text(encoding="ascii") == "precious"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "board.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="exists already"):
        write_pair(tmp_path, "board", PAIR)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(KeyFileError, match="cannot write the key pair board into"):
        write_pair(tmp_path / "file" / "keys", "board", PAIR)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o644, 0o660, 0o666, 0o777], ids=oct)
def test_a_secret_that_others_may_touch_is_refused_with_the_command(tmp_path: Path, mode: int) -> None:
    write_pair(tmp_path, "board", PAIR)
    (tmp_path / "board.key").chmod(mode)
    with pytest.raises(KeyFileError, match=rf"mode {mode:04o}, others may read it; run: chmod 600 ") as caught:
        read_pair(tmp_path / "board.key")
    assert PAIR.secret not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400], ids=oct)
def test_a_secret_for_its_owner_is_read(tmp_path: Path, mode: int) -> None:
    write_pair(tmp_path, "board", PAIR)
    (tmp_path / "board.key").chmod(mode)
    assert read_pair(tmp_path / "board.key") == PAIR


MALFORMED = {
    "nothing": b"",
    "39 characters": PAIR.public[:39].encode(),
    "41 characters": PAIR.public.encode() + b"a",
    "two keys": PAIR.public.encode() + b"\n" + OTHER.public.encode(),
    "a character outside of Z85": PAIR.public[:39].encode() + b"~",
    "text that is no ASCII": PAIR.public[:38].encode() + "é".encode(),
    "bytes": bytes(range(256)),
    "a megabyte": b"a" * (1 << 20),
}


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.parametrize("which", ["key", "pub"])
def test_a_malformed_file_is_named_and_its_content_is_not_shown(tmp_path: Path, what: str, which: str) -> None:
    write_pair(tmp_path, "board", PAIR)
    path = tmp_path / f"board.{which}"
    path.write_bytes(MALFORMED[what])
    with pytest.raises(KeyFileError, match=f"{path.name}: not a key") as caught:
        read_pair(tmp_path / "board.key")
    assert PAIR.public[:20] not in str(caught.value)


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"board\.key: No such file or directory; make one with `paceline keys`"):
        read_pair(tmp_path / "board.key")
    write_pair(tmp_path, "board", PAIR)
    (tmp_path / "board.pub").unlink()
    with pytest.raises(KeyFileError, match=r"board\.pub: No such file"):
        read_pair(tmp_path / "board.key")


def test_boards_are_read_by_name_in_order_and_other_files_are_let_be(tmp_path: Path) -> None:
    for name, pair in (("pi-2", OTHER), ("pi-1", PAIR)):
        (tmp_path / f"{name}.pub").write_text(f"{pair.public}\n", encoding="ascii")
    (tmp_path / "notes.txt").write_text("hello", encoding="ascii")
    assert list(read_boards(tmp_path).items()) == [("pi-1", PAIR.public), ("pi-2", OTHER.public)]


def test_two_boards_with_one_key_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("pi-1", "pi-2"):
        (tmp_path / f"{name}.pub").write_text(f"{PAIR.public}\n", encoding="ascii")
    with pytest.raises(KeyFileError, match="boards pi-1 and pi-2 have the same public key"):
        read_boards(tmp_path)


def test_a_missing_folder_of_boards_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"does not exist; put each board's \.pub file there"):
        read_boards(tmp_path / "none")


def test_a_pair_never_shows_its_secret() -> None:
    assert PAIR.secret not in f"{PAIR!r} {PAIR!s} {PAIR}"


def test_a_fingerprint_is_short_stable_and_tells_keys_apart() -> None:
    assert len(fingerprint(PAIR.public)) == 16
    assert fingerprint(PAIR.public) == fingerprint(PAIR.public) != fingerprint(OTHER.public)
    assert is_public(PAIR.public)
    assert not is_public(PAIR.public + "\n")
