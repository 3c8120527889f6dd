# SPDX-License-Identifier: Apache-2.0
"""What a policy had to assume or to give up: which notes say the same, and each said once for a whole run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

POLICY = "policy"  # kind of the event of a run's journal that holds one


def kind_of(note: str) -> str:
    """Return what is the same in each round; what follows are the figures of this one."""
    return note.partition(";")[0]


def once(said: Iterable[tuple[int | None, str]]) -> tuple[str, ...]:
    """Return each kind of note as it was said first, with its round."""
    first: dict[str, str] = {}
    for round_, note in said:
        first.setdefault(kind_of(note), f"first in round {round_}: {note}")
    return tuple(first.values())
