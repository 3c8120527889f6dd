# SPDX-License-Identifier: Apache-2.0
"""Values out of the kernel's trees: one plain read each, and a sentence for each way in which it can fail.

Knows no chip and no unit. A file that is empty, or no whole number, is no value, and never 0.
"""

from __future__ import annotations

import errno
import grp
import os
import time
from pathlib import Path

from paceline_agent.meters import MeterError

_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ENXIO)
NUMBER_MAX = (1 << 63) - 1
_BYTES = 256  # of any name or number of these trees


class GoneError(MeterError):
    """The file is not there any more: unplugged, unbound or renumbered; it is to be looked for by name."""


class DeniedError(MeterError):
    """The file is there, and this user may not read it."""


def read_text(path: Path) -> str:
    """Return what a file says, without the space around it. Raises MeterError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _BYTES).decode("utf-8", "replace").strip()
        finally:
            os.close(descriptor)
    except PermissionError:
        raise denied(path) from None
    except OSError as error:
        if error.errno in _GONE:
            raise GoneError(f"{path} cannot be read: {error.strerror}; it is tried again") from None
        if error.errno == errno.ENODATA:
            raise MeterError(f"{path} has no value: the channel is switched off (its ..._enable file says 0)") from None
        raise MeterError(f"{path} cannot be read: {error.strerror}; it is tried again") from None


def read_int(path: Path, what: str = "a whole number") -> int:
    """Return the number in a file, signed. Raises MeterError."""
    text = read_text(path)
    try:
        number = int(text)
    except ValueError:
        raise MeterError(f"{path}: expected {what}, got {text!r}") from None
    if not -NUMBER_MAX <= number <= NUMBER_MAX:
        raise MeterError(f"{path}: expected {what} of at most 63 bits, as any driver shows, got {text!r}")
    return number


def label(path: Path) -> str:
    """Return what a file says, "" where there is none."""
    try:
        return read_text(path)
    except MeterError:
        return ""


def children(folder: Path) -> list[Path]:
    """Return the entries of a folder by name, none where it is not there. Raises MeterError."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise MeterError(f"{folder} cannot be listed: {error.strerror}") from None


def timer_us() -> int:
    """Return the clock that times reads: the middle of one is the instant of what it gives."""
    return time.monotonic_ns() // 1000


def own_group() -> str:
    """Return the name of this process's group, which a fix may give a file to."""
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return str(os.getegid())


def denied(path: Path, why: str = "", rule: str = "") -> DeniedError:
    """Return the error that tells who may not read what, and the way out. `rule`: one line for udev."""
    for_good = f"; for good, one line in /etc/udev/rules.d/60-paceline.rules: {rule}" if rule else ""
    return DeniedError(
        f"{path} may not be read by user {os.geteuid()}{why}",
        f"for now `sudo chgrp {own_group()} {path} && sudo chmod 0440 {path}`{for_good}",
    )
