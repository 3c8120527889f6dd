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

SOURCES = {"modelled": "paceline_agent.meters.modelled:Modelled", "rapl": "paceline_agent.meters.rapl:Rapl"}
POWERCAP = "/sys/class/powercap"


class MeterError(PacelineError):
    """A sensor could not be read, or is not what it should be."""

    exit_code = 7


@dataclass(frozen=True)
class MeterSettings:
    """Table [meter] of agent.toml. Without it the board's energy is unknown."""

    source: Literal["none", "modelled", "rapl"] = "none"
    period_ms: Annotated[int, Bounds(ge=10, le=60_000)] = 100  # ten readings a second see a round, not a step
    idle_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None  # declared; `modelled` needs both
    active_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None
    rapl_root: str = POWERCAP  # where the kernel shows its powercap zones

    def __post_init__(self) -> None:
        declared = (self.idle_w, self.active_w)
        if self.source == "modelled" and None in declared:
            raise ValueError('meter.source = "modelled" needs idle_w and active_w, the watts that the board declares')
        if self.source != "modelled" and declared != (None, None):
            raise ValueError('meter.idle_w and meter.active_w belong to source = "modelled"; set it, or remove them')
        if self.source != "rapl" and self.rapl_root != POWERCAP:
            raise ValueError('meter.rapl_root belongs to source = "rapl"; set it, or remove it')


@dataclass(frozen=True, slots=True)
class Reading:
    """Mean power over [t0_us, t1_us] (t0_us < t1_us), or at an instant (t0_us == t1_us); error_uw: instrument bound."""

    t0_us: int
    t1_us: int
    power_uw: int
    error_uw: int = 0


@dataclass(frozen=True, slots=True)
class Count:
    """What a joule counter shows at an instant. A count below the last one: it began anew, the step is unknown."""

    t_us: int
    count_uj: int  # wraps are the source's affair
    error_uj: int = 0  # how far the count may be from the truth at t_us


INSTANT = {"modelled"}  # sources that no sensor can hold up


class Meter(Protocol):
    """One source. `read` is called from the meter's thread, `activity` from the agent's."""

    source: str  # label of every joule that comes from here: "modelled", "ina3221/ch1"

    def read(self, now_us: int) -> Sequence[Reading | Count]:
        """Return the readings since the last call, oldest first, all of one kind. Raises MeterError or OSError."""
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
