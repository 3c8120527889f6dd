# SPDX-License-Identifier: Apache-2.0
"""What the silos' machine and the machines of its silos tell each other, and what it tells the store. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline_host.ddp.steps import CloseSteps

# To a silo ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BeginRound:
    """A round begins for the silo; `shares`: of the boards that are here, by number. None: its slices are planned."""

    round: int
    shares: Mapping[int, int] | None


@dataclass(frozen=True)
class BoardReady:
    """A board of the silo became usable."""

    board: int


@dataclass(frozen=True)
class Settle:
    """The round is on disk. `base_sha256`: the state with which the next one begins."""

    round: int
    base_sha256: str


# From a silo --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lapse:
    """Nobody of the silo is left in this round, and nobody comes back in time."""

    reason: str


@dataclass(frozen=True)
class Halt:
    """The run cannot go on."""

    reason: str


# To the store -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiloClosed:
    """What a silo has given to a round. `waited_s`: for the last of the others."""

    silo: int
    steps: CloseSteps
    waited_s: float


@dataclass(frozen=True)
class CloseSilos:
    """Average the silos' models, journal, checkpoint, evaluate; then answer RoundDone with the hash of the state."""

    round: int
    closed: Sequence[SiloClosed]  # by silo
    lapsed: Mapping[int, str]  # silos whose budget lapses, and why
    left: int  # samples that were planned for those of them that were begun
