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
SOURCES["serial"] = "paceline_agent.meters.serial_meter:SerialMeter"
POWERCAP = "/sys/class/powercap"


class MeterError(PacelineError):
    """A sensor could not be read, or is not what it should be."""

    exit_code = 7


@dataclass(frozen=True)
class MeterSettings:
    """Table [meter] of agent.toml. Without it the board's energy is unknown."""

    source: Literal["none", "modelled", "rapl", "serial"] = "none"
    period_ms: Annotated[int, Bounds(ge=10, le=60_000)] = 100  # ten readings a second see a round, not a step
    idle_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None  # declared; `modelled` needs both
    active_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None
    rapl_root: str = POWERCAP  # where the kernel shows its powercap zones
    port: str = ""  # of a serial meter: /dev/serial/by-id/..., /dev/ttyACM0, socket://HOST:PORT, rfc2217://HOST:PORT
    baud: Annotated[int, Bounds(ge=300, le=12_000_000)] = 115_200
    format: Literal["frames", "json", "csv"] = "frames"  # docs/PROTOCOL.md, section 9
    channels: tuple[
        str, ...
    ] = ()  # frames: names to sum, those the meter counts by default; lines: what stands in them
    delay_ms: Annotated[float, Bounds(ge=0, le=1000)] = 5.0  # from reading to arrival, the least that ever occurs

    def __post_init__(self) -> None:
        declared = (self.idle_w, self.active_w)
        if self.source == "modelled" and None in declared:
            raise ValueError('meter.source = "modelled" needs idle_w and active_w, the watts that the board declares')
        if self.source != "modelled" and declared != (None, None):
            raise ValueError('meter.idle_w and meter.active_w belong to source = "modelled"; set it, or remove them')
        if self.source != "rapl" and self.rapl_root != POWERCAP:
            raise ValueError('meter.rapl_root belongs to source = "rapl"; set it, or remove it')
        if self.source != "serial" and (self.port, self.baud, self.format, self.channels, self.delay_ms) != (
            ("", 115_200, "frames", (), 5.0)
        ):
            raise ValueError(
                'meter.port, baud, format, channels and delay_ms belong to source = "serial"; set it, or remove them'
            )
        if self.source == "serial":
            if not self.port:
                raise ValueError('meter.source = "serial" needs port, best the /dev/serial/by-id/... of the meter')
            if self.format != "frames":
                from paceline_agent.meters.serial_lines import check_channels

                check_channels(self.format, self.channels)


@dataclass(frozen=True, slots=True)
class Reading:
    """Mean power over [t0_us, t1_us] (t0_us < t1_us), or at an instant (t0_us == t1_us); error_uw: instrument bound."""

    t0_us: int
    t1_us: int
    power_uw: int
    error_uw: int = 0
    edge_uj: int = 0  # what a window's edge may put on the wrong side, where instants are not sure


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
