# SPDX-License-Identifier: Apache-2.0
"""What can happen to an agent and what it can do about it: the vocabulary of the agent machine. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from paceline.quick import quicken
from paceline.wire import Assign, Energy, Load, Range

# Events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A message of the host, with the payload's length (the driver holds the bytes until the actions are done)."""

    header: bytes | memoryview
    payload_bytes: int


@dataclass(frozen=True)
class TrainerReady:
    """The trainer holds model and data."""

    manifest_sha256: str
    model_bytes: int
    samples: int
    data_label: str
    pid: int
    inbox_bytes: int = 0  # room for the tensors of split learning, 0 under other regimes
    idle_uw: int | None = None  # drawn before the first round; None: not measured
    data_sha256: str = ""  # of the training data; "": the task makes them up
    library: str = ""  # that trains: "torch 2.13.0", "numpy 2.2.4"; "": the task needs none


@dataclass(frozen=True)
class TrainerGone:
    """The trainer's process ended, or could not be started."""

    detail: str


@dataclass(frozen=True)
class BaseReady:
    """The base model is in place; `matches`: its hash is the one that ASSIGN named."""

    lease: int
    matches: bool


@dataclass(frozen=True)
class WorkEdge:
    """The trainer began or ended computing, by its own monotonic clock. `waits`: from here on it waits for others."""

    lease: int
    begin: bool
    t_us: int
    waits: bool = False


@dataclass(frozen=True)
class WorkProgress:
    """Samples done so far under a lease."""

    lease: int
    samples: int


@dataclass(frozen=True)
class WorkTensor:
    """The trainer put a tensor of `size` bytes out; the driver holds them."""

    lease: int
    step: int
    redraw: int
    what: str
    size: int


@dataclass(frozen=True)
class WorkDone:
    """The update is complete."""

    lease: int
    samples: int
    steps: int
    compute_us: int
    overruns: int
    late_us: int
    update_bytes: int
    update_sha256: str


@dataclass(frozen=True)
class WorkFailed:
    """The trainer gave up on a lease (0: on loading) and lives on."""

    lease: int
    reason: str
    detail: str


@dataclass(frozen=True)
class Measured:
    """Energy of a lease's compute window; None is unknown."""

    lease: int
    energy_uj: int | None = None
    bound_uj: int | None = None
    source: str = ""
    flags: int = 0
    sampling_uj: int | None = None


@dataclass(frozen=True)
class Kept:
    """A finished result that no host has answered yet; its bytes are the update that the driver holds.

    `lease` is the one it was computed under; energy None: not measured yet.
    """

    run: str
    round: int
    slice: int
    attempt: int
    lease: int
    ranges: tuple[Range, ...]
    base_sha256: str
    samples: int
    steps: int
    compute_us: int
    overruns: int
    late_us: int
    update_bytes: int
    update_sha256: str
    energy: Measured | None = None

    def answers(self, assign: Assign) -> bool:
        """Tell whether an assignment asks for just this."""
        return (self.run, self.round, self.slice, self.attempt, self.ranges, self.base_sha256) == (
            assign.run, assign.round, assign.slice, assign.attempt, assign.ranges, assign.base_sha256
        )  # fmt: skip


@dataclass(frozen=True)
class SplitMeasured:
    """The cumulative split as of the end of a round, ready to travel (session and window are filled in here)."""

    energy: Energy


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Received | TrainerReady | TrainerGone | BaseReady | WorkEdge | WorkProgress | WorkTensor | WorkDone | WorkFailed
    | Measured | SplitMeasured | Tick
)  # fmt: skip

# Actions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send a header; `piece` names the bytes of the update that go with it."""

    header: bytes
    piece: tuple[int, int] | None = None


@dataclass(frozen=True)
class StartTrainer:
    """Have a trainer loaded with this (a living one may serve again); answer with TrainerReady or TrainerGone."""

    load: Load


@dataclass(frozen=True)
class StoreBase:
    """Put the event's payload at `offset` of the base model; `sha256` given: it was the last, answer BaseReady."""

    lease: int
    offset: int
    sha256: str | None


@dataclass(frozen=True)
class StartWork:
    """Let the trainer work."""

    lease: int
    round: int
    ranges: tuple[Range, ...]
    batch: int


@dataclass(frozen=True)
class StoreTensor:
    """Put the event's payload at `offset` of the tensor that comes in; `whole`: it was the last, tell the trainer."""

    lease: int
    step: int
    redraw: int
    what: str
    size: int
    offset: int
    whole: bool


@dataclass(frozen=True)
class StopWork:
    """Let the trainer forget a lease."""

    lease: int


@dataclass(frozen=True)
class KillTrainer:
    """End a trainer that hangs; TrainerGone is to follow."""

    reason: str


@dataclass(frozen=True)
class Keep:
    """Remember a finished result beyond the end of this process."""

    kept: Kept


@dataclass(frozen=True)
class OpenWindow:
    """Open the energy window of a run."""

    run: str


@dataclass(frozen=True)
class Mark:
    """From `t_us` on (None: now) time is spent on `category`, computing for `lease`."""

    category: str
    t_us: int | None = None
    lease: int = 0


@dataclass(frozen=True)
class Void:
    """What was computed under this lease is wasted."""

    lease: int


@dataclass(frozen=True)
class Measure:
    """Answer with Measured for the compute window of a lease."""

    lease: int


@dataclass(frozen=True)
class MeasureSplit:
    """Answer with SplitMeasured, as of `t_us` (None: now)."""

    run: str
    round: int
    t_us: int | None = None


@dataclass(frozen=True)
class Reconnect:
    """Throw the connection away, call `restart` once there is a new one."""

    reason: str


@dataclass(frozen=True)
class Exit:
    """The agent cannot go on: code as in the list of refusals (`fenced`, `version`, ...)."""

    code: str
    text: str


Action = (
    Send | StartTrainer | StoreBase | StoreTensor | StartWork | StopWork | KillTrainer | Keep | OpenWindow | Mark | Void
    | Measure | MeasureSplit | Reconnect | Exit
)  # fmt: skip

quicken((Kept, *get_args(Event), *get_args(Action)))
