# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses that are made and checked fast. Knows nothing of what they hold.

The `__init__` of a frozen dataclass goes through `object.__setattr__` for each field, past its own guard, at several
times the price of a plain one; where a program makes dozens of small ones to pass a message on, that was a sixth of
its time. The guard is what types check anyway: mypy still sees a frozen class. Likewise a call for each field that is
checked was half of what a message costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping


def quicken(classes: Iterable[type]) -> None:
    """Give frozen dataclasses the `__init__` of plain ones, and with it plain attributes. None has `__post_init__`."""
    for cls in classes:
        fields = [(f.name, f.type, _like(f)) for f in dataclasses.fields(cls)]
        plain = vars(dataclasses.make_dataclass(cls.__name__, fields, eq=False, repr=False))
        cls.__init__ = plain["__init__"]  # type: ignore[misc]
        cls.__setattr__ = object.__setattr__  # type: ignore[method-assign, assignment]
        cls.__delattr__ = object.__delattr__  # type: ignore[method-assign, assignment]


def together(contracts: Mapping[str, str], names: Mapping[str, object]) -> Callable[..., bool]:
    """Return a function of these fields, in order, that tells whether all contracts hold.

    A contract is an expression of its field and of `names`; all are the program's own text.
    """
    check: Callable[..., bool] = eval(f"lambda {', '.join(contracts)}: {' and '.join(contracts.values())}", {**names})
    return check


def _like(known: dataclasses.Field[object]) -> object:
    if known.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=known.default_factory)
    return dataclasses.field() if known.default is dataclasses.MISSING else dataclasses.field(default=known.default)
