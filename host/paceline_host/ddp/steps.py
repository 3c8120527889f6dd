# SPDX-License-Identifier: Apache-2.0
"""What can happen to a run of synchronised ranks and what can be done, beside what every run knows. Data only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.wire import MAX_INT, TEXT_BYTES, Commit, Result, Tensor, clip
from paceline_host.regimes import Slice

NEEDS_CONSENT = (
    "collectives would travel in plain text over {}; set run.allow_plain_collectives = true on a network that you trust"
)

WAITED = "waited"  # of the journal's events: the board for whose part of a step the others waited in vain


@dataclass(frozen=True)
class RankFacts:
    """What a round is made of, beside its budget."""

    steps: int
    minimum: int  # samples of each rank in each step
    options: Mapping[str, object]  # of the boards' workers
    own_buffers: bool = False  # ranks end a round with buffers of their own (BatchNorm), so states differ


# Events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What a rank said, in whole."""

    board: int
    message: Tensor
    data: bytes


@dataclass(frozen=True)
class StateKept:
    """The round's state is verified and in the store's hands."""

    board: int
    lease: int
    sha256: str


@dataclass(frozen=True)
class StateRefused:
    """The round's state is none to go on with; the round is void."""

    board: int
    lease: int
    reason: str


# Actions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """Answer with Told: the event's payload is what the rank said."""

    board: int
    message: Tensor


@dataclass(frozen=True)
class KeepState:
    """Verify a board's upload and keep it, then answer StateKept or StateRefused."""

    board: int
    lease: int
    steps: int
    result: Result


@dataclass(frozen=True)
class RankPart:
    """What a board has given to a round: to this slice, under this lease. No `result`: it could not say itself."""

    board: int
    slice: Slice
    lease: int
    steps: int
    result: Result | None = None
    commit: Commit | None = None


@dataclass(frozen=True)
class CloseSteps:
    """Journal who gave what, checkpoint, evaluate; then answer RoundDone with the hash of the state."""

    round: int
    attempt: int
    parts: Sequence[RankPart]
    figures: Mapping[int, bytes]  # by board: drift, steps and the microseconds of each step, as the rank packed them
    steps: int
    voided: int


# What ranks say: JSON of a peer, so each value is checked -------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """Where a rank is."""

    steps: int
    state: bool
    torch: str
    dtype: str
    address: str
    apart_s: float | None = None  # from the last exchange until it entered the one that broke; None: it has not

    @classmethod
    def read(cls, data: bytes) -> Here:
        """Raises ValueError for anything else."""
        found = _words(data)
        torch, dtype, address = (_text(found, name) for name in ("torch", "dtype", "address"))
        apart_s = found.get("apart_s")
        if apart_s is not None and not (type(apart_s) is float and 0 <= apart_s < MAX_INT):
            raise ValueError(f"apart_s is {apart_s!r:.40}")
        return cls(_count(found, "steps", MAX_INT), found.get("state") is True, torch, dtype, address, apart_s)


@dataclass(frozen=True)
class Store:
    """Where the first rank has opened the group's store."""

    address: str
    port: int

    @classmethod
    def read(cls, data: bytes) -> Store:
        """Raises ValueError for anything else."""
        found = _words(data)
        return cls(_text(found, "address"), _count(found, "port", 65_535))


@dataclass(frozen=True)
class Broken:
    """Why a rank has left its group. `blamed`: whose fault it is, where that is known."""

    kind: str
    reason: str
    blamed: tuple[int, ...]

    @classmethod
    def read(cls, data: bytes) -> Broken:
        """Raises ValueError for anything else."""
        found = _words(data)
        blamed = found.get("blamed")
        if not isinstance(blamed, list) or any(type(rank) is not int for rank in blamed):
            raise ValueError(f"blamed is {blamed!r:.40}")
        return cls(_text(found, "kind"), _text(found, "reason"), tuple(blamed))


def _words(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _count(found: Mapping[str, Any], name: str, most: int) -> int:
    value = found.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def _text(found: Mapping[str, Any], name: str) -> str:
    """Return a text, cut to what travels on to others."""
    value = found.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.40}")
    return clip(value, TEXT_BYTES)
