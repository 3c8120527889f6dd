# SPDX-License-Identifier: Apache-2.0
"""TOML text <-> frozen dataclasses. Knows no program and no default: the dataclass is the schema and holds both.

A nested dataclass is a table, tuple[X, ...] an array (of tables, when X is a dataclass), dict[str, X] a table with free
keys, X | None a key that may be left out; object takes whatever TOML gives. Limits and meaning stand at the field:

    period_s: Annotated[float, Bounds(gt=0, le=10), Doc("seconds between two readings")] = 0.1
    name: Annotated[str, Check(known_board)] = "pi4"  # a function that raises ValueError with a sentence

All faults of a file are found in one go. A __post_init__ that raises ValueError with a sentence adds one fault to them.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline import toml
from paceline.errors import SettingsError
from paceline.sheet import Sheet
from paceline.toml import Keys

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Limits of a number, or of the length of a string or an array."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def admit(self, value: object) -> bool:
        """Return whether a number, or the length of anything else, is within the limits."""
        size = value if isinstance(value, int | float) else len(value)  # type: ignore[arg-type]  # str or tuple
        return (
            (self.gt is None or size > self.gt)
            and (self.ge is None or size >= self.ge)
            and (self.lt is None or size < self.lt)
            and (self.le is None or size <= self.le)
        )

    def __str__(self) -> str:
        limits = ((">", self.gt), (">=", self.ge), ("<", self.lt), ("<=", self.le))
        return " and ".join(
            f"{sign} {limit}" if isinstance(limit, int) else f"{sign} {limit:g}"
            for sign, limit in limits
            if limit is not None
        )


@dataclass(frozen=True)
class Doc:
    """What a key means; told to the user when it is missing."""

    text: str


@dataclass(frozen=True)
class Check:
    """What no bounds can say: `test` raises ValueError, a sentence, when it does not like a value."""

    test: Callable[[Any], object]


def shown(text: str) -> None:
    """Raise ValueError for text that a screen would obey, or not show."""
    if not text.isprintable():
        raise ValueError("expected characters that can be shown, in one line")


def load(source: Path | str, cls: type[T], *, where: str | None = None) -> T:
    """Return the `cls` that a TOML file (Path) or a TOML text (str) describes. Raises SettingsError with all faults."""
    return _sound(read(Sheet.read(source, where), cls))


def load_table(table: Mapping[str, object], cls: type[T], *, where: str) -> T:
    """Return the `cls` that an already parsed table describes. Raises SettingsError with all faults."""
    return _sound(read(Sheet(where, dict(table)), cls))


def read(sheet: Sheet, cls: type[T], keys: Keys = (), *, without: tuple[str, ...] = ()) -> tuple[T | None, list[str]]:
    """Return the `cls` at some keys of a sheet, and all faults; None when there are any. `without`: others' keys."""
    reader = _Reader(sheet)
    table = sheet.at(keys)
    assert isinstance(table, Mapping)
    result = reader.table(cls, {key: value for key, value in table.items() if key not in without}, keys)
    return (result if isinstance(result, cls) and not reader.faults else None), reader.faults


def did_you_mean(wrong: str, known: list[str]) -> str:
    """Return the clause that ends an error about an unknown name."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known) or 'none'}"


def dump(instance: object) -> str:
    """Return TOML text that `load` turns into an equal instance. None is written by leaving the key out."""
    return toml.write(instance)


_FAILED = object()  # stands for a value whose fault has been noted
_SCALARS: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def _sound(found: tuple[T | None, list[str]]) -> T:
    result, faults = found
    if result is None:
        raise SettingsError(faults)
    return result


class _Reader:
    """One pass over a parsed file: values come back checked and converted, faults are gathered."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self.faults: list[str] = []

    def table(self, cls: Any, value: Mapping[str, object], keys: Keys) -> object:
        """Return an instance of a dataclass."""
        hints = _hints(cls)
        faults_before = len(self.faults)
        for key in value:
            if key not in hints:
                self._fault((*keys, key), f"unknown key {toml.dotted((*keys, key))}; {did_you_mean(key, list(hints))}")
        values = {}
        for field in dataclasses.fields(cls):
            if field.name in value:
                values[field.name] = self.value(hints[field.name], value[field.name], (*keys, field.name))
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                self._missing(hints[field.name], (*keys, field.name))
        if len(self.faults) > faults_before:
            return _FAILED
        try:
            return cls(**values)
        except ValueError as error:
            said = str(error)  # which may name the table already
            self._fault(
                keys, said if not keys or said.startswith(f"{toml.dotted(keys)}.") else f"{toml.dotted(keys)}: {said}"
            )
            return _FAILED

    def value(self, hint: Any, value: object, keys: Keys) -> object:
        """Return a value of the hinted type."""
        plain, bounds, _ = _unwrap(hint)
        faults_before = len(self.faults)
        origin, arguments = get_origin(plain), get_args(plain)
        if plain in (object, Any):
            return value
        if origin in (Union, types.UnionType):
            result = self._any_of([each for each in arguments if each is not type(None)], value, keys, hint)
        elif dataclasses.is_dataclass(plain) and isinstance(value, dict):
            result = self.table(plain, value, keys)
        elif origin is tuple and isinstance(value, list):
            result = self._array(arguments, value, keys, hint)
        elif origin in (dict, Mapping) and isinstance(value, dict):
            entries = {key: self.value(arguments[1], each, (*keys, key)) for key, each in value.items()}
            result = _FAILED if any(each is _FAILED for each in entries.values()) else entries
        else:
            result = _scalar(plain, value)
            if result is _FAILED:
                self._wrong(hint, value, keys)
        if result is not _FAILED and bounds is not None and not bounds.admit(result):
            return self._wrong(hint, value, keys)
        if result is not _FAILED and len(self.faults) == faults_before:
            return self._checked(hint, result, keys)
        return result

    def _checked(self, hint: Any, result: object, keys: Keys) -> object:
        for check in _checks(hint):
            try:
                check.test(result)
            except ValueError as error:
                self._fault(keys, f"{toml.dotted(keys)}: {error}")
                return _FAILED
        return result

    def _any_of(self, members: list[Any], value: object, keys: Keys, hint: Any) -> object:
        if len(members) == 1:
            return self.value(members[0], value, keys)
        for member in sorted(members, key=lambda each: each is not type(value)):
            attempt = _Reader(self._sheet)
            result = attempt.value(member, value, keys)
            if not attempt.faults:
                return result
        return self._wrong(hint, value, keys)

    def _array(self, arguments: tuple[Any, ...], value: list[object], keys: Keys, hint: Any) -> object:
        endless = len(arguments) == 2 and arguments[1] is Ellipsis
        if not endless and len(arguments) != len(value):
            return self._wrong(hint, value, keys)
        each_hint = [arguments[0]] * len(value) if endless else list(arguments)
        entries = [self.value(*pair, (*keys, place)) for place, pair in enumerate(zip(each_hint, value, strict=True))]
        return _FAILED if any(each is _FAILED for each in entries) else tuple(entries)

    def _missing(self, hint: Any, keys: Keys) -> None:
        _, _, doc = _unwrap(hint)
        self._fault(
            keys[:-1], f"{toml.dotted(keys)} is missing: expected {_expected(hint)}{f' ({doc})' if doc else ''}"
        )

    def _wrong(self, hint: Any, value: object, keys: Keys) -> object:
        hints_at = ""
        if isinstance(value, str) and (choices := [each for each in _choices(hint) if isinstance(each, str)]):
            close = difflib.get_close_matches(value, choices, n=1, cutoff=0.6)
            hints_at = f"; did you mean {close[0]}?" if close else ""
        self._fault(keys, f"{toml.dotted(keys)}: expected {_expected(hint)}, got {_got(value)}{hints_at}")
        return _FAILED

    def _fault(self, keys: Keys, sentence: str) -> None:
        self.faults.append(f"{self._sheet.place(keys)}: {sentence}")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _unwrap(hint: Any) -> tuple[Any, Bounds | None, str]:
    """Return a hint without Annotated, its bounds and its doc."""
    if get_origin(hint) is not Annotated:
        return hint, None, ""
    plain, *marks = get_args(hint)
    bounds = next((mark for mark in marks if isinstance(mark, Bounds)), None)
    return plain, bounds, next((mark.text for mark in marks if isinstance(mark, Doc)), "")


def _checks(hint: Any) -> list[Check]:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return [mark for mark in marks if isinstance(mark, Check)]


def _scalar(hint: Any, value: object) -> object:
    """Return `value` as the hinted type, or _FAILED. A whole number may stand for a float, nothing else converts."""
    if get_origin(hint) is Literal:
        return value if any(value == each and type(value) is type(each) for each in get_args(hint)) else _FAILED
    if hint is Path:
        return Path(value) if isinstance(value, str) and value else _FAILED
    if hint is float and type(value) in (int, float):
        try:
            number = float(value)  # type: ignore[arg-type]  # an int or a float
        except OverflowError:
            return _FAILED
        return number if math.isfinite(number) else _FAILED
    if hint not in _SCALARS and not dataclasses.is_dataclass(hint) and get_origin(hint) not in (tuple, dict, Mapping):
        raise TypeError(f"settings cannot hold {hint}; see the module's docstring for what they can")
    return value if type(value) is hint else _FAILED


def _choices(hint: Any) -> tuple[object, ...]:
    plain, _, _ = _unwrap(hint)
    if get_origin(plain) in (Union, types.UnionType):
        return tuple(choice for member in get_args(plain) for choice in _choices(member))
    return get_args(plain) if get_origin(plain) is Literal else ()


def _expected(hint: Any) -> str:
    plain, bounds, _ = _unwrap(hint)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in (Union, types.UnionType):
        text = " or ".join(_expected(each) for each in arguments if each is not type(None))
    elif origin is Literal:
        text = f"one of {', '.join(_got(each) for each in arguments)}"
    elif origin is tuple and arguments[-1] is Ellipsis:
        text = f"an array, each entry {_expected(arguments[0])}" + (", length" if bounds else "")
    elif origin is tuple:
        text = f"an array of exactly {len(arguments)}: {', '.join(_expected(each) for each in arguments)}"
    else:
        text = "a path" if plain is Path else _SCALARS.get(plain, "a table")
        text += " of length" if plain is str and bounds else ""
    return f"{text} {bounds}" if bounds else text


def _got(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    try:
        text = toml.inline(value)
    except TypeError:  # a message from a trainer may hold what no file can, at any depth
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
