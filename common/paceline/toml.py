# SPDX-License-Identifier: Apache-2.0
"""What tomllib leaves out: writing TOML, and the line on which a key stands. Knows no schema."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

Keys = tuple[str | int, ...]  # where a value stands: names of tables and keys, and places in arrays of tables
DEPTH = 32  # of tables in tables; no file of ours needs six, and whoever walks through one does it by recursion
LOOKED_AT = 1 << 22  # characters parsed to find lines: a few seconds; what stands behind has none


def parse(text: str) -> dict[str, Any]:
    """Return what tomllib makes of a text. Raises TOMLDecodeError for all that it does not take."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise tomllib.TOMLDecodeError(str(error)) from None
    if not _is_flat(table):
        raise tomllib.TOMLDecodeError(f"tables and arrays are nested more than {DEPTH} deep")
    return table


def _is_flat(value: object, depth: int = DEPTH) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth >= 0 and all(_is_flat(each, depth - 1) for each in inner)


def write(table: object, comment: Callable[[Keys], str] | None = None) -> str:
    """Return a mapping or a dataclass as TOML text, each key with a comment. None is written by leaving the key out."""
    return "\n".join(_table_lines((), (), table, comment)).lstrip("\n") + "\n"


def plain(value: object) -> Any:
    """Return dataclasses as dicts, tuples as lists and paths as strings: what JSON can hold."""
    if _is_table(value):
        return {key: plain(each) for key, each in _entries(value)}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def keys_of(value: object) -> Iterator[Keys]:
    """Yield the keys of all values that are no tables, in the order in which `write` writes them."""
    entries = _entries(value)
    for key, each in entries:
        if not _is_table(each) and not _is_tables(each):
            yield (key,)
    for key, each in entries:
        if _is_table(each):
            yield from ((key, *below) for below in keys_of(each))
        elif _is_tables(each):
            for place, row in enumerate(each):
                yield from ((key, place, *below) for below in keys_of(row))


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


def dotted(keys: Keys) -> str:
    """Return the name of a key as the user would say it; entries of arrays are counted from 1."""
    text = ""
    for key in keys:
        text += f" #{key + 1}" if isinstance(key, int) else ("." if text else "") + key_text(key)
    return text


def lines_of(text: str) -> dict[Keys, int]:
    """Return the line on which each key of a valid TOML text begins; what stands in its value has the same one.

    A statement is the least number of lines that tomllib takes by themselves, so tomllib knows the grammar, not we.
    """
    table: Keys = ()
    found: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}
    for number, statement in _statements(text.replace("\r\n", "\n").split("\n")):
        parsed = parse(statement)
        if not statement.lstrip().startswith("["):
            for keys in _keys_in(parsed):
                found.setdefault((*table, *keys), number)
            continue
        names, content = _header(parsed)
        table = _placed(names, counts)
        found.setdefault(table, number)
        if content:  # of an array of tables
            counts[table] = counts.get(table, -1) + 1
            table = (*table, counts[table])
            found.setdefault(table, number)
    return found


def _statements(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each statement, and the number of its first line."""
    begin, looked_at = 0, 0
    for end, line in enumerate(lines, start=1):
        if end > begin + 1 and not re.search(r"[]}\"']", line):
            continue  # can't be the last of a value of several lines
        statement = "\n".join(lines[begin:end])
        if (looked_at := looked_at + len(statement)) > LOOKED_AT:
            return
        with suppress(tomllib.TOMLDecodeError):
            if parse(statement):
                yield begin + 1, statement
            begin = end


def _header(parsed: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the names of a header, and whether it is one of an array of tables."""
    names: list[str] = []
    inner: Any = parsed
    while isinstance(inner, dict) and inner:
        ((name, inner),) = inner.items()
        names.append(name)
    return names, isinstance(inner, list)


def _keys_in(value: object) -> Iterator[Keys]:
    """Yield the keys of all that is in a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (key,)
        yield from ((key, *below) for below in _keys_in(each))


def _placed(names: list[str], counts: Mapping[Keys, int]) -> Keys:
    """Return the keys of a header, with the place in each array of tables above it."""
    keys: Keys = ()
    for name in names[:-1]:
        keys = (*keys, name)
        keys = (*keys, counts[keys]) if keys in counts else keys
    return (*keys, names[-1])


def _table_lines(
    names: tuple[str, ...], keys: Keys, value: object, comment: Callable[[Keys], str] | None
) -> Iterator[str]:
    """Yield the lines of one table: its plain keys first, since whatever follows a header belongs to that header."""
    entries = _entries(value)
    for key, each in entries:
        if not _is_table(each) and not _is_tables(each):
            yield f"{key_text(key)} = {inline(each)}" + (f"  # {comment((*keys, key))}" if comment else "")
    for key, each in entries:
        name = ".".join(key_text(part) for part in (*names, key))
        if _is_table(each):
            yield from ("", f"[{name}]", *_table_lines((*names, key), (*keys, key), each, comment))
        elif _is_tables(each):
            for place, row in enumerate(each):
                yield from ("", f"[[{name}]]", *_table_lines((*names, key), (*keys, key, place), row, comment))


def _entries(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(str(key), each) for key, each in value.items() if each is not None]
    fields = dataclasses.fields(value)  # type: ignore[arg-type]  # tables are mappings or dataclasses
    pairs = [(field.name, getattr(value, field.name)) for field in fields if field.init]
    return [(name, each) for name, each in pairs if each is not None]


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _is_tables(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, tuple | list) and bool(value) and all(_is_table(each) for each in value)
