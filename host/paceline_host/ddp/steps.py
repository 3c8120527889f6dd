# SPDX-License-Identifier: Apache-2.0
"""What can happen to a run of synchronised ranks and what can be done, beside what every run knows. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.wire import Commit, Result, Tensor
from paceline_host.regimes import Slice

NEEDS_CONSENT = (
    "collectives would travel in plain text over {}; set run.allow_plain_collectives = true on a network that you trust"
)


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


@dataclass(frozen=True)
class Here:
    """Where a rank is."""

    steps: int
    state: bool
    torch: str
    dtype: str
    address: str

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Here:
        """Raises KeyError, TypeError, ValueError for anything else."""
        return cls(int(found["steps"]), bool(found["state"]), str(found["torch"]), str(found["dtype"]),
                   str(found["address"]))  # fmt: skip
