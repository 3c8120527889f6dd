# SPDX-License-Identifier: Apache-2.0
"""A parsed TOML file that can tell where each of its keys comes from: a line, a --set, or nowhere. Knows no schema."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import foreign, toml
from paceline.errors import SettingsError
from paceline.toml import Keys

SHOWN = 120  # characters of a line that is told


class Sheet:
    """`table` is what was parsed; `name` is what the user calls the file."""

    def __init__(self, name: str, table: dict[str, Any], lines: Mapping[Keys, int] | None = None) -> None:
        self.name = name
        self.table = table
        self._lines = lines or {}
        self._overrides: dict[Keys, str] = {}

    @classmethod
    def read(cls, source: Path | str, name: str | None = None) -> Sheet:
        """Return a file (Path) or a text (str) parsed. Raises SettingsError when it is no TOML."""
        name = name or (str(source) if isinstance(source, Path) else "settings")
        text = _text_of(source, name) if isinstance(source, Path) else source
        try:
            table = toml.parse(text)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError([_syntax_fault(name, text, str(error))]) from None
        return cls(name, table, toml.lines_of(text))

    def override(self, text: str) -> None:
        """Take "TABLE.KEY=VALUE" over what the file says. Raises SettingsError."""
        path, equals, value = text.partition("=")
        name, dot, key = (part.strip() for part in path.partition("."))
        try:
            parsed = toml.parse(f"value = {value.strip()}") if equals and dot and key else {}
        except tomllib.TOMLDecodeError:
            parsed = {}
        if list(parsed) != ["value"]:
            raise SettingsError(
                [
                    f"--set {text}: expected TABLE.KEY=VALUE with a TOML value, for instance run.rounds=2 or "
                    "'run.policies=[\"time\"]'"
                ]
            )
        table = self.table.setdefault(name, {})
        if isinstance(table, dict):  # else the file itself is wrong there, and is told so
            table[key] = parsed["value"]
            self._lines = {keys: line for keys, line in self._lines.items() if keys[:2] != (name, key)}
            self._overrides[name, key] = text

    def at(self, keys: Keys) -> object:
        """Return the value at these keys; None when there is none."""
        value: object = self.table
        for key in keys:
            place = isinstance(key, int) and isinstance(value, list) and key < len(value)
            if not place and not (isinstance(value, dict) and key in value):
                return None
            value = value[key]  # type: ignore[index]  # looked at above
        return value

    def place(self, keys: Keys) -> str:
        """Return where a key stands, or what holds it, as the beginning of an error."""
        for depth in range(len(keys), 0, -1):
            if text := self._overrides.get(keys[:depth]):
                return f"--set {text}"
            if line := self._lines.get(keys[:depth]):
                return f"{self.name}, line {line}"
        return self.name

    def origin(self, keys: Keys) -> str:
        """Return where the value of a key comes from: "demo.toml:12", "--set" or "default"."""
        if self.at(keys) is None:
            return "default"
        for depth in range(len(keys), 0, -1):
            if keys[:depth] in self._overrides:
                return "--set"
            if line := self._lines.get(keys[:depth]):
                return f"{self.name}:{line}"
        return self.name


def _text_of(path: Path, name: str) -> str:
    try:
        return foreign.read_text(path)
    except UnicodeDecodeError as error:
        raise SettingsError([f"{name}: byte {error.start} is not UTF-8, as TOML must be; save it in UTF-8"]) from None
    except OSError as error:
        raise SettingsError([f"{path}: cannot read it: {error.strerror or error}"]) from None


def _syntax_fault(name: str, text: str, message: str) -> str:
    found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    line, column = (
        (int(found[1]), int(found[2])) if found else (text.count("\n") + 1, len(text.rsplit("\n", 1)[-1]) + 1)
    )
    what = re.sub(r" \(at .*\)$", "", message)
    lines = text.split("\n")
    shown = _cut(lines[line - 1].strip(), column) if line <= len(lines) else ""
    return f"{name}, line {line}, column {column}: not valid TOML: {what}; the line is: {shown or '(empty)'}"


def _cut(line: str, column: int) -> str:
    """Return what of a line a terminal can show: it up to the fault's place, or around that, nothing unprintable."""
    begin = max(0, min(column - SHOWN // 2, len(line) - SHOWN))
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line[begin : begin + SHOWN])
    return ("..." if begin else "") + text + ("..." if begin + SHOWN < len(line) else "")
