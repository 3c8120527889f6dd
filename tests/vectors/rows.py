# SPDX-License-Identifier: Apache-2.0
"""Tables of numbers that C includes and Python reads: rows of nested braces, doubles as their bits. Knows no meaning.

Each make_*.py beside this file is run as `python -m tests.vectors.make_X [FOLDER]` from the root and writes its tables
there (default: here). They import nothing of paceline: what they hold was worked out without it.
"""

from __future__ import annotations

import ast
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def bits(x: float) -> int:
    """Return the 64 bits of a double."""
    return int.from_bytes(struct.pack("<d", x), "little")


def from_bits(word: int) -> float:
    """Return the double of 64 bits."""
    return float(struct.unpack("<d", word.to_bytes(8, "little"))[0])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"0x{bits(value):016X}"
    if isinstance(value, int):
        return f"0x{value:X}" if value > 0x7FFFFFFF else str(int(value))
    return "{ " + ", ".join(_text(item) for item in value) + " }"


def write(name: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    """Write the table NAME.inc into the folder of the command line."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    maker = Path(sys.argv[0]).stem
    head = ["/* SPDX-License-Identifier: Apache-2.0 */", f"/* Written by tests/vectors/{maker}.py. {columns} */"]
    (folder / f"{name}.inc").write_text("\n".join([*head, *(f"{_text(row)}," for row in rows), ""]), encoding="utf-8")


def read(name: str) -> list[Any]:
    """Return the rows of the table NAME.inc as nested lists of integers."""
    lines = (HERE / f"{name}.inc").read_text(encoding="utf-8").splitlines()
    return [ast.literal_eval(line.rstrip(",").replace("{", "[").replace("}", "]")) for line in lines if line[:1] == "{"]
