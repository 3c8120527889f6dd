# SPDX-License-Identifier: Apache-2.0
"""What a run of regime async knows beside what every run knows. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.quick import quicken


@dataclass(frozen=True)
class Mixed:
    """A contribution is verified, on disk and in the model, which is `model` now."""

    board: int
    lease: int
    version: int  # how many updates are in it
    model: bytes
    model_sha256: str


@dataclass(frozen=True)
class Standing:
    """Where a run is on the stream of samples; slices are dealt in order and accepted in any."""

    version: int = 0  # updates that are in the model
    dealt: int = 0  # places that were dealt
    closed: int = 0  # rounds
    counted: Mapping[int, Mapping[int, int]] = field(default_factory=dict)  # samples by open round, by board: accepted


quicken((Mixed,))
