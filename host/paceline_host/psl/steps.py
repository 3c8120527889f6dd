# SPDX-License-Identifier: Apache-2.0
"""What can happen to a run of split learning and what can be done about it, beside what every run knows. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paceline.wire import Commit, Result, Tensor
from paceline_host.regimes import Slice


@dataclass(frozen=True)
class SplitFacts:
    """Who holds which clients, and how large tensors are. Clients are numbered; a board holds consecutive ones."""

    method: str
    sizes: tuple[int, ...]  # samples of each client
    holds: tuple[range, ...]  # clients of each board
    part_bytes: int  # the client part of the model, and its gradient
    upload_bytes: Callable[[int], int]  # of so many samples
    gradient_bytes: Callable[[int], int]
    common: Mapping[str, object]  # options of the worker that are the same for all boards
    largest: tuple[int, ...]  # samples that one step asks of each board at most
    own: bool = False  # each board is a client with data of its own: sizes are 0 until it tells
    data_sha256: tuple[str, ...] = ()  # of their own data, of a run that is taken up; "": of a board that never told

    def clients(self, board: int) -> range:
        """Return the clients that a board holds."""
        return self.holds[board]

    def options(self, board: int) -> dict[str, object]:
        """Return what LOAD tells this board's worker."""
        held = self.holds[board]
        return {**self.common, "first": held.start, "count": len(held), "largest": self.largest[board]}


# Events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepComputed:
    """The loss of a step is known, and each board's gradient is there to be sent."""

    step: int
    redraw: int


@dataclass(frozen=True)
class StepRefused:
    """What a board sent is no part of a step; the step is void."""

    step: int
    redraw: int
    board: int
    reason: str


@dataclass(frozen=True)
class StepCommitted:
    """Both optimisers have stepped; the next client part is there to be sent."""

    step: int
    redraw: int


@dataclass(frozen=True)
class EpochClosed:
    """The epoch's model is on disk, evaluated and journaled."""

    round: int


# Actions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorOut:
    """Send a piece of `data`, or, without it, of the client part or of the board's gradient, as the message says."""

    board: int
    message: Tensor
    piece: tuple[int, int]
    data: bytes | None = None


@dataclass(frozen=True)
class WriteTensor:
    """Put the event's payload at `offset` of the board's tensor of `size` bytes."""

    board: int
    offset: int
    size: int


@dataclass(frozen=True)
class ComputeStep:
    """Do one forward and one loss over all that came in, (board, samples) each; answer StepComputed or StepRefused."""

    round: int
    step: int
    redraw: int
    boards: Sequence[tuple[int, int]]

    @property
    def who(self) -> frozenset[int]:
        """The boards alone."""
        return frozenset(board for board, _ in self.boards)


@dataclass(frozen=True)
class CommitStep:
    """Sum the updates of these boards, in their order, and let both optimisers step; answer StepCommitted."""

    round: int
    step: int
    redraw: int
    boards: Sequence[int]

    @property
    def who(self) -> frozenset[int]:
        """The boards."""
        return frozenset(self.boards)


@dataclass(frozen=True)
class VoidStep:
    """Forget what was computed of a step."""

    round: int
    step: int
    redraw: int


@dataclass(frozen=True)
class StorePart:
    """Journal, when the epoch closes, what a board has given to it; then answer ResultStored.

    No `result`: it could not say itself.
    """

    board: int
    slice: Slice
    lease: int
    samples: int
    steps: int
    result: Result | None
    commit: Commit | None


@dataclass(frozen=True)
class CloseEpoch:
    """Checkpoint, evaluate, journal; then answer EpochClosed. `left` samples had no board when the epoch ended."""

    round: int
    steps: int
    left: int
    sent_bytes: int
    received_bytes: int


@runtime_checkable
class SplitSide(Protocol):
    """The store of such a run, as the driver sees it."""

    def outgoing(self, board: int, what: str) -> bytes:
        """Return the client part ("model"), or a board's "gradient"."""
        ...
