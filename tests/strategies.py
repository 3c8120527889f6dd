# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for messages inside the wire's contract."""

from __future__ import annotations

import dataclasses
import typing

from hypothesis import strategies as st

from paceline import wire

INTEGERS = st.integers(0, wire.MAX_INT)


def _texts(limit_bytes: int) -> st.SearchStrategy[str]:
    text = st.text(max_size=limit_bytes)  # Hypothesis makes no surrogates unless asked
    return text.filter(lambda t: len(t.encode()) <= limit_bytes)


def _ranges() -> st.SearchStrategy[tuple[wire.Range, ...]]:
    one = st.tuples(INTEGERS, st.integers(0, wire.MAX_INT - 1), INTEGERS).filter(lambda r: r[1] < r[2])
    return st.lists(one, max_size=4).map(tuple)


def _splits() -> st.SearchStrategy[wire.Split]:
    hints = typing.get_type_hints(wire.Energy)
    one = {name: INTEGERS if hints[name] is int else st.none() | INTEGERS for name in wire.SPLIT}
    return st.tuples(*{**one, "window": st.integers(1, (1 << 64) - 1)}.values())


def _values(name: str, hint: object) -> st.SearchStrategy[object]:
    if name in ("session", "window"):
        return st.integers(1, (1 << 64) - 1)
    if hint is str:
        return _texts(wire.OPTIONS_BYTES if name == "options" else 60)
    table: dict[object, st.SearchStrategy[object]] = {
        int: INTEGERS,
        float: st.floats(0, allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        int | None: st.none() | INTEGERS,
        tuple[wire.Range, ...]: _ranges(),
        wire.Split | None: st.none() | _splits(),
    }
    return table[hint]


def messages(cls: type[wire.Message]) -> st.SearchStrategy[wire.Message]:
    """Return a strategy for messages of one kind, inside the contract."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: _values(f.name, hints[f.name]) for f in dataclasses.fields(cls)})
