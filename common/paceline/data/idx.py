# SPDX-License-Identifier: Apache-2.0
"""IDX files (the format of MNIST): path -> shape and bytes, checked. Knows no data set and no network; numpy is not
needed.

An IDX file is 0, 0, type, dimensions (one byte each), each dimension as a big-endian 32-bit number, then the items row
major, big-endian. Types read here are unsigned bytes, shorts (16 bits) and floats (32 bits). A raw file is mapped, not
read; a gzip one (told by its first bytes, never by its name) is unpacked into memory.
"""

from __future__ import annotations

import gzip
import math
import mmap
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline import foreign
from paceline.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE, SHORT, FLOAT = 0x08, 0x0B, 0x0D
DTYPES = {UNSIGNED_BYTE: "u1", SHORT: ">i2", FLOAT: ">f4"}  # numpy's names; the last character is the size in bytes
_PLURALS = {UNSIGNED_BYTE: "unsigned bytes", SHORT: "shorts", FLOAT: "floats"}
MAX_ITEMS = 1 << 31  # a header that claims more is damage, not a data set for a board
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Idx:
    """The content of one file: product(shape) items."""

    shape: tuple[int, ...]
    items: memoryview
    content: memoryview  # the whole file, unpacked: what a sha256 is taken of


def item_bytes(item_type: int) -> int:
    """Return the size of an item."""
    return int(DTYPES[item_type][-1])


def read_idx(path: Path, dimensions: int, item_type: int = UNSIGNED_BYTE) -> Idx:
    """Return the content of an IDX file of such items with this many dimensions.

    Raises DataError: missing, empty, not IDX, another type or number of dimensions, truncated, or with bytes behind
    the end.
    """
    content = _content(path)
    header = 4 + 4 * dimensions
    magic = bytes(content[:4])
    if len(magic) == 4 and magic != bytes((0, 0, item_type, dimensions)):
        raise DataError(
            f"{path} is not an IDX file of {_PLURALS[item_type]} with {dimensions} dimension(s): "
            f"it begins with {magic.hex(' ')}, expected 00 00 {item_type:02x} {dimensions:02x}; "
            "check that images and labels are not swapped"
        )
    if len(content) < header:
        raise DataError(
            f"{path} is truncated: {len(content)} bytes, the header alone needs {header}; fetch or copy it again"
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    items = math.prod(shape)
    if not 0 < items <= MAX_ITEMS:
        raise DataError(
            f"{path} claims {' x '.join(map(str, shape))} items, which is no data set; fetch or copy it again"
        )
    found, promised = len(content) - header, items * item_bytes(item_type)
    if found != promised:
        fault = "is truncated" if found < promised else "is too long"
        raise DataError(
            f"{path} {fault}: its header promises {promised} bytes of items, it holds {found}; fetch or copy it again"
        )
    return Idx(shape, content[header:], content)


def write_idx(path: Path, shape: tuple[int, ...], items: bytes, item_type: int = UNSIGNED_BYTE) -> None:
    """Write an IDX file; the items are big-endian already."""
    path.write_bytes(idx_head(shape, item_type) + items)


def idx_head(shape: tuple[int, ...], item_type: int = UNSIGNED_BYTE) -> bytes:
    """Return what an IDX file begins with."""
    return struct.pack(f">4B{len(shape)}I", 0, 0, item_type, len(shape), *shape)


def _unpacked(file: IO[bytes]) -> bytearray:
    """Return what a gzip file holds, up to MAX_ITEMS; piece by piece, for one read of so many takes that memory."""
    content = bytearray()
    with gzip.GzipFile(fileobj=file) as packed:
        while len(content) < MAX_ITEMS and (piece := packed.read(PIECE_BYTES)):
            content += piece
    return content


def _content(path: Path) -> memoryview:
    try:
        with foreign.opened(path) as file:
            if file.read(2) == GZIP_MAGIC:
                file.seek(0)
                return memoryview(_unpacked(file)).toreadonly()
            file.seek(0, 2)
            if file.tell() == 0:
                raise DataError(f"{path} is empty; fetch or copy it again")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; run `paceline data fetch` or give a folder with the four IDX files"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); fetch or copy it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
