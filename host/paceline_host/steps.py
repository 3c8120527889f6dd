# SPDX-License-Identifier: Apache-2.0
"""What can happen to a run and what can be done about it: the vocabulary of the round machine. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from paceline.quick import quicken
from paceline.session import Session
from paceline.wire import CHUNK_CEILING, Commit, Energy, Message, Ready, Result
from paceline_host.regimes import Slice

Loss = Literal["lost", "failed", "rejected"]


@dataclass(frozen=True)
class RunFacts:
    """What the machine needs to know of a run. `manifest_sha256` and `model_bytes` are the host's own, never a
    board's.
    """

    run: str
    regime: str
    task: str
    options: str
    seed: int
    rounds: int
    budget: int
    samples: int
    batch: int
    manifest_sha256: str
    model_bytes: int
    patience_s: float
    start_s: float
    chunk_bytes: int
    credit_bytes: int
    energy_needed: bool
    idle_baseline: bool = True
    data_sha256: str = ""  # of the host's training data


@dataclass(frozen=True)
class Part:
    """What is here of a board's update."""

    round: int
    slice: int
    update_sha256: str
    size: int
    have: int = 0


@dataclass(frozen=True)
class Reopened:
    """Where a run stood when its host ended: what a machine goes on from. A round is open until its model is on disk.

    `open_slices` are those of that round that are not counted yet; `lost` names (by index) the ones whose lease had
    ended without a result.
    """

    round: int  # the last that was planned, 0 before the first
    closed: bool
    open_slices: tuple[Slice, ...]
    lost: frozenset[int]
    next_index: int
    done: tuple[tuple[int, int], ...]  # (board, samples) counted in the open round
    counted: frozenset[tuple[int, int]]  # (round, slice) that were counted, of the last two rounds at least
    lives: int  # how often the run has been taken up, this time included
    elapsed_s: float  # since the open round was planned, as far as a host lived
    round_seconds: tuple[float, ...]  # makespans of the closed rounds
    parts: Mapping[int, Part] = field(default_factory=dict)  # by board, of updates that had not come in whole


# Events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """A board has a session."""

    board: int
    session: Session
    agent_pid: int = 0
    agent_version: str = ""
    chunk_max: int = CHUNK_CEILING
    kept: tuple[str, int, int] = ("", 0, 0)  # (run, round, slice) of a finished result that it holds


@dataclass(frozen=True)
class Said:
    """A board's message, checked by its session."""

    board: int
    message: Message
    payload_bytes: int


@dataclass(frozen=True)
class Gone:
    """A board's session ended. `for_good`: its process is known to be no more, so nobody waits for it."""

    board: int
    reason: str
    for_good: bool = False


@dataclass(frozen=True)
class SlicesStored:
    """The plan (or the re-dealt slices) is on disk."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class ResultStored:
    """A contribution is verified and on disk."""

    board: int
    lease: int


@dataclass(frozen=True)
class ResultRefused:
    """A contribution failed verification."""

    board: int
    lease: int
    reason: str


@dataclass(frozen=True)
class RoundDone:
    """The round's model is averaged, checkpointed, evaluated and journaled."""

    round: int
    model_sha256: str


@dataclass(frozen=True)
class Stop:
    """End the run now, or `after_round`, when what is under way of the present round is done."""

    reason: str
    after_round: bool = False


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Connected | Said | Gone | SlicesStored | ResultStored | ResultRefused | RoundDone | Stop | Tick

# Actions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send a message; `piece` names the bytes of `model` that go with it. None: of the store's present one."""

    board: int
    message: Message
    piece: tuple[int, int] | None = None
    model: bytes | None = None


@dataclass(frozen=True)
class StoreSlices:
    """Put slices on disk, then answer SlicesStored. `first`: they are the plan of a round."""

    slices: tuple[Slice, ...]
    first: bool


@dataclass(frozen=True)
class WriteUpload:
    """Put the event's payload at `offset` of the board's upload. `part.have`: the bytes before it are there."""

    board: int
    part: Part
    offset: int


@dataclass(frozen=True)
class StoreResult:
    """Verify and journal the board's upload, then answer ResultStored or ResultRefused.

    `last`: nothing else of the round is awaited before the answer. `base`: what it was trained from, which is update
    number `version` of the model; None: the round's base model.
    """

    board: int
    slice: Slice
    result: Result
    commit: Commit
    last: bool = True
    base: bytes | None = None
    version: int = 0


@dataclass(frozen=True)
class StoreLoss:
    """Journal that a lease ended without a counted result; the slice contributes nothing."""

    board: int
    slice: Slice
    lease: int
    verdict: Loss
    reason: str


@dataclass(frozen=True)
class StoreEnergy:
    """Journal a board's cumulative split."""

    board: int
    energy: Energy


@dataclass(frozen=True)
class StoreReady:
    """Journal who a board is."""

    board: int
    ready: Ready
    agent_pid: int
    agent_version: str


@dataclass(frozen=True)
class Note:
    """Journal an event, and say it when `loud`."""

    kind: str
    detail: str
    board: int | None = None
    loud: bool = True
    round: int | None = None


@dataclass(frozen=True)
class FinishRound:
    """Average, checkpoint, evaluate, journal; then answer RoundDone."""

    round: int


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    ok: bool
    reason: str


Action = (
    Send | StoreSlices | WriteUpload | StoreResult | StoreLoss | StoreEnergy | StoreReady | Note | FinishRound | Finish
)  # fmt: skip

quicken((Part, *get_args(Event), *get_args(Action)))
