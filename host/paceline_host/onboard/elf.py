# SPDX-License-Identifier: Apache-2.0
"""What a shared library says of itself: for which processor it is, which libraries and versions of glibc it needs.

Reads the tables that the loader of the board will read, so that a wheel's name promises what is in it. Little-endian
files of 32 and 64 bits, as all boards have them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from paceline.errors import StorageError

MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 40: "armv7l"}  # e_machine -> as `uname -m` says it
HARD_FLOAT = {"armv7l": 0x400, "riscv64": 0x4}  # bits of e_flags: doubles travel in registers, as in Debian's ports
_DYNAMIC, _VERSIONS = 6, 0x6FFFFFFE  # kinds of sections
_NEEDED = 1  # kind of entry in the dynamic section


@dataclass(frozen=True)
class Library:
    """A shared library. `glibc`: the newest version of which it uses a symbol, (0, 0) none."""

    arch: str
    needs: tuple[str, ...]
    glibc: tuple[int, int]


@dataclass(frozen=True)
class _Section:
    kind: int
    begin: int
    size: int
    link: int  # number of the section with its strings
    count: int


def read(data: bytes) -> Library:
    """Return what a library says. Raises StorageError for what is none, or is for boards of no known kind."""
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise StorageError(f"this is no library for a Linux board: {error}") from None


def _read(data: bytes) -> Library:
    if data[:4] != b"\x7fELF" or data[4] not in (1, 2) or data[5] != 1:
        raise ValueError("it is no little-endian ELF file")
    wide = data[4] == 2
    kind, machine = struct.unpack_from("<HH", data, 16)
    arch = MACHINES.get(machine, "")
    at, flags = struct.unpack_from("<QI" if wide else "<II", data, 40 if wide else 32)
    if kind != 3 or not arch or flags & HARD_FLOAT.get(arch, 0) != HARD_FLOAT.get(arch, 0):
        raise ValueError(f"machine {machine}, type {kind}, flags {flags:#x}")
    size, count = struct.unpack_from("<HH", data, 58 if wide else 46)
    sections = [_section(data, at + i * size, wide) for i in range(count)]
    needs, newest = [], (0, 0)
    for section in sections:
        if section.kind == _DYNAMIC:
            strings, step = sections[section.link], 16 if wide else 8
            for place in range(section.begin, section.begin + section.size, step):
                tag, value = struct.unpack_from("<qQ" if wide else "<iI", data, place)
                if tag == _NEEDED:
                    needs.append(_string(data, strings, value))
        if section.kind == _VERSIONS:
            for name in _versions(data, section, sections[section.link]):
                found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name)
                newest = max(newest, (int(found[1]), int(found[2]))) if found else newest
    return Library(arch, tuple(needs), newest)


def _section(data: bytes, at: int, wide: bool) -> _Section:
    fields = struct.unpack_from("<IIQQQQIIQQ" if wide else "<10I", data, at)
    return _Section(fields[1], fields[4], fields[5], fields[6], fields[7])


def _versions(data: bytes, section: _Section, strings: _Section) -> list[str]:
    """Return the names of all versions that are needed of any library (`info` counts the libraries)."""
    names, at = [], section.begin
    for _ in range(section.count):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            names.append(_string(data, strings, name))
            entry += step
        at += following
    return names


def _string(data: bytes, strings: _Section, at: int) -> str:
    begin = strings.begin + at
    return data[begin : data.index(b"\0", begin)].decode("ascii")
