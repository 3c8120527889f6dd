# SPDX-License-Identifier: Apache-2.0
"""Key files: NAME.key (secret, mode 0600) and NAME.pub. Knows no socket: the pair itself is made by a link module.

Both hold one line, the 40 characters of a CURVE key in Z85. A secret never leaves the machine it was made on; public
keys are pinned on both sides (reference: transport rules, keys). Own writer, because pyzmq's leaves secrets
world-readable.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from paceline import foreign
from paceline.errors import KeyFileError

_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
MOST_BYTES = 256  # of a key file


@dataclass(frozen=True)
class KeyPair:
    """A CURVE pair in Z85."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public}, secret hidden)"


def fingerprint(public: str) -> str:
    """Return 16 hex digits that people compare."""
    return hashlib.sha256(public.encode("ascii")).hexdigest()[:16]


def is_public(text: str) -> bool:
    """Tell whether `text` has the shape of a key."""
    return _Z85.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Return a board's or host's name, which becomes a file's. Raises KeyFileError."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) is None:
        raise KeyFileError(
            f"the name {name!r} cannot be used: expected up to 63 letters, digits, dots, dashes or underscores"
        )
    return name


def write_pair(folder: Path, name: str, pair: KeyPair) -> None:
    """Write NAME.key (0600) and NAME.pub into `folder`; never over existing files.

    Raises KeyFileError when one is there already or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_new(folder / f"{name}.key", pair.secret, 0o600)
        try:
            _write_new(folder / f"{name}.pub", pair.public, 0o644)
        except OSError:
            (folder / f"{name}.key").unlink()
            raise
    except FileExistsError as error:
        raise KeyFileError(f"{error.filename} exists already; remove it yourself if it is to be replaced") from None
    except OSError as error:
        raise KeyFileError(f"cannot write the key pair {name} into {folder}: {error.strerror}") from None


def _write_new(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_public(path: Path) -> str:
    """Return the key in a .pub file."""
    return _read(path)


def read_pair(path: Path) -> KeyPair:
    """Return the pair whose secret is `path` (NAME.key); NAME.pub must lie beside it.

    Raises KeyFileError when a file is missing or malformed, or when others may read the secret.
    """
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise KeyFileError(
            f"key file {path}: {error.strerror}; make one with `paceline keys` or, on a board, `paceline-agent keys`"
        ) from None
    if mode & 0o077:
        raise KeyFileError(f"key file {path} has mode {mode:04o}, others may read it; run: chmod 600 {path}")
    return KeyPair(public=_read(path.with_suffix(".pub")), secret=_read(path))


def read_boards(folder: Path, faults: list[str] | None = None) -> dict[str, str]:
    """Return {board name: public key} of all .pub files in `folder`, sorted by name.

    Raises KeyFileError when the folder cannot be read, when a file is malformed, or when two boards share one key;
    with `faults`, files of the last two kinds are left out, and said there.
    """
    try:
        paths = sorted(folder.glob("*.pub"))
    except OSError as error:
        raise KeyFileError(f"key folder {folder}: {error.strerror}") from None
    if not folder.is_dir():
        raise KeyFileError(f"key folder {folder} does not exist; put each board's .pub file there")
    boards: dict[str, str] = {}
    owners: dict[str, str] = {}
    for path in paths:
        try:
            key = _read(path)
            if key in owners:
                raise KeyFileError(f"boards {owners[key]} and {path.stem} have the same public key; make each its own")
        except KeyFileError as error:
            if faults is None:
                raise
            faults.append(str(error))
            continue
        boards[path.stem] = key
        owners[key] = path.stem
    return boards


def _read(path: Path) -> str:
    try:
        with foreign.opened(path) as file:
            text = file.read(MOST_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a key (40 characters of Z85)"
        raise KeyFileError(f"key file {path}: {reason}") from None
    if not is_public(text):
        raise KeyFileError(f"key file {path}: not a key (40 characters of Z85 expected)")
    return text
