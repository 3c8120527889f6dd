# SPDX-License-Identifier: Apache-2.0
"""Sources of joules by name. A source turns its sensor into readings; integrating them is done elsewhere.

Unknown is unknown: a source that cannot read raises MeterError, and then nothing is added; it never answers 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, cast

from paceline.errors import PacelineError
from paceline.settings import Bounds

SOURCES = {"modelled": "paceline_agent.meters.modelled:Modelled"}


class MeterError(PacelineError):
    """A sensor could not be read, or is not what it should be."""

    exit_code = 7


@dataclass(frozen=True)
class MeterSettings:
    """Table [meter] of agent.toml. Without it the board's energy is unknown."""

    source: Literal["none", "modelled"] = "none"
    period_ms: Annotated[int, Bounds(ge=10, le=60_000)] = 100  # ten readings a second see a round, not a step
    idle_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None  # declared; `modelled` needs both
    active_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None

    def __post_init__(self) -> None:
        declared = (self.idle_w, self.active_w)
        if self.source == "modelled" and None in declared:
            raise ValueError('meter.source = "modelled" needs idle_w and active_w, the watts that the board declares')
        if self.source == "none" and declared != (None, None):
            raise ValueError('meter.idle_w and meter.active_w belong to source = "modelled"; set it, or remove them')


@dataclass(frozen=True, slots=True)
class Reading:
    """Mean power over [t0_us, t1_us] (t0_us < t1_us), or at an instant (t0_us == t1_us); error_uw: instrument bound."""

    t0_us: int
    t1_us: int
    power_uw: int
    error_uw: int = 0


class Meter(Protocol):
    """One source. `read` is called from the meter's thread, `activity` from the agent's."""

    source: str  # label of every joule that comes from here: "modelled", "ina3221/ch1"

    def read(self, now_us: int) -> Sequence[Reading]:
        """Return the readings since the last call, oldest first. Raises MeterError or OSError."""
        ...

    def activity(self, t_us: int, active: bool) -> None:
        """Learn that computing began or ended; only a model of power has use for it."""
        ...

    def close(self) -> None:
        """Give the sensor back."""
        ...


def open_meter(settings: MeterSettings, now_us: int) -> Meter | None:
    """Return the source that agent.toml names, None for "none". Raises MeterError."""
    if settings.source == "none":
        return None
    module, attribute = SOURCES[settings.source].split(":")
    return cast(Meter, getattr(importlib.import_module(module), attribute)(settings, now_us))
