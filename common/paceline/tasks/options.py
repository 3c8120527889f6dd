# SPDX-License-Identifier: Apache-2.0
"""A task's options: mapping -> frozen dataclass, every fault named at once. Knows no file; tasks come off a wire as well."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """What a value must satisfy beyond its type; `text` completes "expected"."""

    text: str
    holds: Callable[[Any], bool]


def between(low: float, high: float) -> Rule:
    return Rule(f"{low:g} to {high:g}", lambda value: low <= value <= high)


def one_of(*choices: str) -> Rule:
    return Rule(" or ".join(f'"{choice}"' for choice in choices), lambda value: value in choices)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ', did you mean "x"?' or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f', did you mean "{near[0]}"?' if near else ""


def read_options(cls: type[T], options: Mapping[str, object], rules: Mapping[str, Rule], where: str) -> T:
    """Return `cls` filled from options; what is not given keeps its default.

    Fields are str, int, float or tuple[int, ...]. Raises SettingsError with one sentence for each fault.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # cls is a dataclass
    values: dict[str, Any] = {}
    errors: list[str] = []
    for name, given in options.items():
        if name not in fields:
            errors.append(f"{where}.{name} does not exist{did_you_mean(name, fields)} (known: {', '.join(sorted(fields))})")
            continue
        value, kind = _typed(given, hints[name])
        rule = rules.get(name)
        if value is None:
            errors.append(f"{where}.{name}: expected {kind}, got {given!r}")
        elif rule is not None and not rule.holds(value):
            errors.append(f"{where}.{name}: expected {rule.text}, got {given!r}")
        values[name] = value
    if errors:
        raise SettingsError(errors)
    return cls(**values)


def _typed(value: object, hint: Any) -> tuple[Any, str]:
    """Return (value in the field's type or None, the words for that type)."""
    if hint is float:
        number = type(value) in (int, float) and value == value
        return (float(value) if number else None, "a number")  # type: ignore[arg-type]  # number says so
    if hint is int:
        return (value if type(value) is int else None, "a whole number")
    if hint is str:
        return (value if type(value) is str else None, "a text")
    whole = isinstance(value, list | tuple) and all(type(item) is int for item in value)
    return (tuple(value) if whole else None, "a list of whole numbers")  # type: ignore[arg-type]
