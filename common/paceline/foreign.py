# SPDX-License-Identifier: Apache-2.0
"""Files that somebody else made: opened only where they are regular, read only up to a limit. Knows no format.

A pipe has no end that its size would tell, nor a device: /dev/zero fills the memory, and a pipe without a writer is
waited for without end. What is refused is an OSError, as all else that can be wrong with a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

PIECE_BYTES = 1 << 20  # room that is taken where no size is known; the limit may be more than there is memory
MOST_TEXT_BYTES = 1 << 22  # of a file that a person wrote or a program's settings; no file of ours has a tenth of it
MOST_RECORD_BYTES = 1 << 28  # of a file that a program wrote line by line; a year of readings a minute has less


def opened(path: Path) -> BinaryIO:
    """Open a file to read it; links are followed. Raises OSError, for all that is no regular file too."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)  # a pipe would wait for a writer
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_bytes(path: Path, most: int) -> bytes:
    """Return all that a file holds. Raises OSError, for more than `most` bytes too."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size  # 0 of what the kernel makes up as it is read
        content = file.read(min(max(size, PIECE_BYTES), most) + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_TEXT_BYTES, errors: str = "strict") -> str:
    """Return a file's text, UTF-8. Raises OSError, UnicodeDecodeError."""
    return read_bytes(path, most).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")
