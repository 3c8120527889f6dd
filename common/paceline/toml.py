# SPDX-License-Identifier: Apache-2.0
"""What tomllib leaves out: writing TOML, and the line on which a key stands. Knows no schema."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

Keys = tuple[str | int, ...]  # where a value stands: names of tables and keys, and places in arrays of tables


def write(table: object) -> str:
    """Return a mapping or a dataclass as TOML text. None is written by leaving the key out."""
    return "\n".join(_table_lines((), table)).lstrip("\n") + "\n"


def inline(value: object) -> str:
    """Return a value as TOML writes it on one line."""
    if _is_table(value):
        return "{" + ", ".join(f"{key_text(key)} = {inline(each)}" for key, each in _entries(value)) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(inline(each) for each in value) + "]"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # nan and inf are TOML too
    raise TypeError(f"settings cannot write {type(value).__name__}")


def key_text(key: str) -> str:
    """Return a key as TOML writes it: bare where that is allowed."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else inline(key)


def lines_of(text: str) -> dict[Keys, int]:
    """Return the line of each key, as far as a glance tells: keys at the beginning of a line, under their header."""
    table: Keys = ()
    found: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[(\[?)\s*([^\[\]]+?)\s*\]", line):
            table = _placed(_split(header[2]), counts)
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif key := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line):
            found.setdefault((*table, *_split(key[1])), number)
    return found


def _split(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(r""""[^"]*"|'[^']*'|[^\s.]+""", dotted)]


def _placed(names: list[str], counts: Mapping[Keys, int]) -> Keys:
    """Return the keys of a header, with the place in each array of tables above it."""
    keys: Keys = ()
    for name in names[:-1]:
        keys = (*keys, name)
        keys = (*keys, counts[keys]) if keys in counts else keys
    return (*keys, names[-1])


def _table_lines(keys: tuple[str, ...], value: object) -> Iterator[str]:
    """Yield the lines of one table: its plain keys first, since whatever follows a header belongs to that header."""
    entries = _entries(value)
    for key, each in entries:
        if not _is_table(each) and not _is_tables(each):
            yield f"{key_text(key)} = {inline(each)}"
    for key, each in entries:
        name = ".".join(key_text(part) for part in (*keys, key))
        if _is_table(each):
            yield from ("", f"[{name}]", *_table_lines((*keys, key), each))
        elif _is_tables(each):
            for row in each:  # type: ignore[attr-defined]  # a tuple of tables
                yield from ("", f"[[{name}]]", *_table_lines((*keys, key), row))


def _entries(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(str(key), each) for key, each in value.items() if each is not None]
    fields = dataclasses.fields(value)  # type: ignore[arg-type]  # tables are mappings or dataclasses
    pairs = [(field.name, getattr(value, field.name)) for field in fields if field.init]
    return [(name, each) for name, each in pairs if each is not None]


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _is_tables(value: object) -> bool:
    return isinstance(value, tuple | list) and bool(value) and all(_is_table(each) for each in value)
