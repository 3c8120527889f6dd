# SPDX-License-Identifier: Apache-2.0
"""A frozen dataclass that was quickened is what it was, but for the guard at run time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from paceline.quick import quicken


@dataclass(frozen=True)
class Plain:
    """A base."""

    kind: ClassVar[str] = ""
    a: int


@dataclass(frozen=True)
class Point(Plain):
    """One field is inherited, others have defaults of both kinds."""

    kind = "point"
    b: str = "b"
    c: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Deep(Point):
    """A child of one that is quickened."""

    d: int = 4


def test_fields_defaults_equality_hash_and_text_stay() -> None:
    before = Point(1, "x", [3]), Deep(1, d=7), repr(Point(1)), hash(Plain(1))
    quicken((Plain, Point, Deep))
    assert (Point(1, "x", [3]), Deep(1, d=7), repr(Point(1)), hash(Plain(1))) == before
    assert Point(1, c=[]) == Point(a=1) != Point(2)
    assert Point(1).c is not Point(1).c
    assert dataclasses.replace(Deep(1), b="y") == Deep(1, "y", [], 4)
    assert [f.name for f in dataclasses.fields(Deep)] == ["a", "b", "c", "d"]
    assert vars(Point(1)) == {"a": 1, "b": "b", "c": []}
    assert Point.kind == "point"
    for wrong in ({}, {"a": 1, "z": 2}):
        with pytest.raises(TypeError):
            Plain(**wrong)
