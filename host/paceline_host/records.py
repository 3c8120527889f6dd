# SPDX-License-Identifier: Apache-2.0
"""What one line of the journal is. Typed rows only: knows no database. Instants are host seconds since run start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paceline.quick import quicken
from paceline_host.regimes import Slice

Verdict = Literal["accepted", "rejected", "stale", "failed", "lost"]  # only accepted ones are counted
PARTS = ("compute", "wait", "transfer", "wasted", "other")  # the five-way split; they add up to the total

__all__ = [
    "PARTS", "Board", "Contribution", "Energy", "Epoch", "Event", "Mix", "Round", "Run", "Slice", "Step", "Verdict",
    "as_reported",
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a run is; written once, before its first plan, except `ended`."""

    run_id: str
    policy: str
    regime: str
    seed: int
    budget: int  # samples a round
    rounds: int  # asked for
    samples: int  # in the training set: places of one epoch
    batch: int
    task: str
    data_label: str  # where the data came from, as the tables must name it
    energy_required: bool
    boards: int
    fsync: bool = True
    started: str = ""  # wall clock, a label only
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    # What an emulated fleet declares: {"reference_seconds_per_sample", "boards": [fields of BoardProfile]}. Only the
    # report reads it, for the column of the closed form; empty with real boards.
    declared: Mapping[str, Any] = field(default_factory=dict)
    # of regime hfl: {"name", "boards", "budget", "samples", "rule"}
    silos: Sequence[Mapping[str, Any]] = field(default_factory=list)
    data_sha256: str = ""  # of the host's training data; "": they are made up, or the run is of an older version
    mixing: Mapping[str, Any] = field(default_factory=dict)  # of regime async: the fields of `mixing.law.Mixing`
    ended: Mapping[str, Any] | None = None  # {"ok", "reason", "at_s"}; None: running, or killed


@dataclass(frozen=True)
class Board:
    """Who a board is, as it said itself when it became ready."""

    board: int
    name: str
    public_key: str = ""
    energy_source: str | None = None  # "modelled", "ina3221/ch1", ...; None: has no meter
    agent_pid: int | None = None
    trainer_pid: int | None = None
    agent_version: str = ""
    present: bool = True
    idle_uw: int | None = None  # drawn before the first round, a prior for waiting; None: not measured
    samples: int | None = None  # that it holds; None: it was never ready
    data_sha256: str = ""  # of its training data


@dataclass(frozen=True)
class Round:
    """One round. What only its end brings is None until then. Makespan: closed_s - planned_s (DECISIONS 47)."""

    round: int
    planned_s: float  # the plan is committed
    base_sha256: str
    allocate_s: float  # time inside the controller for this plan
    closed_s: float | None = None  # the last contribution was accepted; averaging and evaluation come after it
    model_sha256: str | None = None
    evaluation_s: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    metric: str = ""
    flags: str = ""

    @property
    def makespan_s(self) -> float | None:
        return None if self.closed_s is None else self.closed_s - self.planned_s


@dataclass(frozen=True)
class Contribution:
    """What became of one lease of one slice. Key: round, slice, attempt (DECISIONS 3)."""

    round: int
    slice: int
    attempt: int
    lease: int
    board: int
    verdict: Verdict
    at_s: float  # when the verdict was given
    reason: str = ""
    samples: int = 0
    steps: int = 0
    compute_us: int = 0
    compute_uj: int | None = None  # None: unknown
    compute_bound_uj: int | None = None
    energy_source: str = ""
    energy_flags: int = 0
    overruns: int = 0  # steps that an emulated board ended later than its declared pace
    late_us: int = 0
    update_sha256: str = ""
    update_norm: float | None = None  # per local step
    update_bytes: int = 0
    compute_sampling_uj: int | None = None


def as_reported(rows: Sequence[Contribution]) -> list[Contribution]:
    """Return accepted contributions as policies heard of them: in order of leases, a synchronised rank's round as one.

    Such a rank measures its round as a whole, which stands in its last slice; the others have no time of their own.
    """
    ranks = [c for c in rows if c.compute_us]
    if len(ranks) == len(rows):
        return sorted(rows, key=lambda c: c.lease)
    samples: Counter[tuple[int, int]] = Counter()
    for c in rows:
        samples[c.round, c.board] += c.samples
    return [replace(c, samples=samples[c.round, c.board]) for c in ranks]


@dataclass(frozen=True)
class Step:
    """One committed step of split learning."""

    round: int
    step: int  # from 0
    redraw: int  # how often it was void before
    samples: int
    loss: float  # mean over the pooled batch
    right: int  # of its samples, those that were classified as labelled
    deviation: float | None = None  # L1, of its class shares from the epoch's (0..2)


@dataclass(frozen=True)
class Epoch:
    """What a round of split learning was beside a round."""

    round: int
    steps: int
    voided: int  # steps that were begun and given up, as a board was lost
    left: int  # samples whose boards were gone when it ended
    sent_bytes: int  # tensors, to all boards
    received_bytes: int
    host_s: float  # the host's own computing
    client_sha256: str  # of the client part that it left
    state_sha256: str  # of model and optimisers, as they lie beside the checkpoint


@dataclass(frozen=True)
class Mix:
    """That an accepted contribution was mixed in, under regime async. Rows in order make the same model again."""

    version: int  # of the model with it, from 1
    round: int
    slice: int
    age: int  # updates that were mixed in since its base was handed out
    weight: float  # alpha_t
    closed: int  # rounds that were closed before it


@dataclass(frozen=True)
class Energy:
    """A board's split since its window opened, as of the end of `round`; cumulative per session. None: unknown."""

    round: int
    board: int
    session: str
    compute_uj: int | None
    wait_uj: int | None
    transfer_uj: int | None
    wasted_uj: int | None
    other_uj: int | None
    total_uj: int | None
    span_us: int
    covered_us: int
    bound_uj: int | None
    source: str
    flags: int = 0
    sampling_uj: int | None = None  # 95 % half-width, beside bound_uj and never added to it (DECISIONS 32)
    split_uj: int | None = None  # how much of compute may belong to its neighbours
    wait_us: int = 0

    @property
    def parts_uj(self) -> tuple[int | None, ...]:
        return self.compute_uj, self.wait_uj, self.transfer_uj, self.wasted_uj, self.other_uj


@dataclass(frozen=True)
class Event:
    """Something that happened; `detail` is JSON."""

    at_s: float
    kind: str
    detail: Any = None
    round: int | None = None
    board: int | None = None


quicken((Run, Board, Round, Contribution, Mix, Energy, Event))
