# SPDX-License-Identifier: Apache-2.0
"""What the round machine knows of each board and of its lease. Data only: decides nothing, knows no socket or clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.session import Session
from paceline.transfer import Rate, Receiver, Sender
from paceline.wire import CHUNK_CEILING, Answer, Commit, Energy, Ready, Result, RoundClosed
from paceline_host.regimes import Slice
from paceline_host.steps import Part


@dataclass
class Lease:
    """One board's hold on one slice, first for `seconds`; progress moves `end_s`."""

    number: int
    slice: Slice
    base: str
    granted_s: float
    seconds: float
    end_s: float
    sender: Sender | None = None
    receiver: Receiver | None = None
    result: Result | None = None
    commit: Commit | None = None
    samples: int = 0
    stalls_s: float = float("inf")  # when the transfer in hand counts as stalled
    model: bytes | None = None  # the base's bytes; None: the store has no other model while it is needed
    version: int = 0  # of that model, where there are several in a round

    @property
    def due_s(self) -> float:
        """When the lease ends unless something moves."""
        return min(self.end_s, self.stalls_s)

    def fault(self, patience_s: float) -> str:
        """Say what did not happen before `due_s`."""
        if self.end_s <= self.stalls_s:
            return f"no progress before its lease of slice {self.slice.index} ended"
        if self.result is None and self.samples >= self.slice.samples:
            return f"its work on slice {self.slice.index} is done, and its result was not announced"
        what, part = ("update", self.receiver) if self.receiver is not None else ("model", self.sender)
        assert part is not None
        return f"no progress of the {what} for {patience_s:g} s: {part.have} of {part.size} bytes moved"


@dataclass
class Board:
    """What the machine knows of a board."""

    name: str
    session: Session | None = None
    agent_pid: int = 0
    agent_version: str = ""
    chunk_bytes: int = CHUNK_CEILING  # of this session: neither side's limit is passed
    rate_in: Rate = field(default_factory=Rate)  # of this session, as is the next
    rate_out: Rate = field(default_factory=Rate)
    ready: Ready | None = None
    lease: Lease | None = None
    queue: deque[Slice] = field(default_factory=deque)
    hold_end_s: float = float("inf")  # until then the queue waits for a board that is coming back
    part: Part | None = None  # what is here of an update that did not come in whole
    base: str = ""  # the model it is known to hold
    share: int = 0  # samples of this round that were leased to it
    done: int = 0  # of them, those accepted
    counted: int | None = None  # of the last round that is over; None: this life of the host has ended none yet
    failures: int = 0
    barred: bool = False
    departed: bool = False  # its process is known to be no more
    begun: bool = False
    windows: dict[int, Energy] = field(default_factory=dict)  # the last word on each; an agent opens one in each life
    power_w: float | None = None  # over the time between the last two words on a window
    energies_owed: int = 0  # ROUND_CLOSED and END that were not answered with ENERGY yet
    held: list[tuple[Answer | RoundClosed, float]] = field(default_factory=list)  # what is still to be said, since when
    energy_per_sample_j: float | None = None
    since_s: float = 0.0

    @property
    def usable(self) -> bool:
        """May be given work."""
        return self.session is not None and self.ready is not None and not self.barred

    @property
    def energy_j(self) -> float | None:
        """What it has drawn in the run so far, as of its last word; None: not known for all of it, or not yet."""
        totals = [energy.total_uj for energy in self.windows.values()]
        known = [total for total in totals if total is not None]
        return sum(known) * 1e-6 if known and len(known) == len(totals) else None

    def account(self, energy: Energy) -> None:
        """Take note of the last word on a window."""
        before = self.windows.get(energy.window)
        self.windows[energy.window] = energy
        self.power_w = mean_w(
            (before.total_uj, before.span_us) if before is not None else (0, 0), (energy.total_uj, energy.span_us)
        )

    @property
    def loads(self) -> bool:
        """Is here, and its trainer loads model and data."""
        return self.session is not None and self.ready is None and not self.barred

    @property
    def hopeless(self) -> bool:
        """Will not be given work again, as far as is known."""
        return self.barred or self.departed


def mean_w(before: tuple[int | None, int], now: tuple[int | None, int]) -> float | None:
    """Return the mean power between two (microjoules, microseconds) of one window; None: unknown."""
    (then_uj, then_us), (now_uj, now_us) = before, now
    if then_uj is None or now_uj is None or now_us <= then_us:
        return None
    return (now_uj - then_uj) / (now_us - then_us)


def part_of(result: Result) -> Part:
    """Return which update a result announces."""
    return Part(result.round, result.slice, result.update_sha256, result.update_bytes)


@dataclass(frozen=True)
class GroupWait:
    """Boards that are done with a round, as a group of the run has one, and the groups that are not."""

    who: str
    boards: tuple[int, ...]
    names: tuple[str, ...]
    since_s: float
    until_s: float  # when the last of the others is given up, unless a rank makes progress before


@dataclass(frozen=True)
class StepWait:
    """Of a step that boards do together: since when each owes something, till its lease ends, or has given it.

    None owes: the host has all, and works on it.
    """

    owed: Mapping[int, float]
    given: Mapping[int, float]
