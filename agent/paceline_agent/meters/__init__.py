# SPDX-License-Identifier: Apache-2.0
"""Sources of joules by name. A source turns its sensor into readings; integrating them is done elsewhere.

Unknown is unknown: a source that cannot read raises MeterError, and then nothing is added; it never answers 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

from paceline.errors import PacelineError
from paceline.settings import Bounds

if TYPE_CHECKING:
    from paceline_agent.sampled import SampledMeter

SOURCES = {
    "modelled": "paceline_agent.meters.modelled:Modelled",
    "rapl": "paceline_agent.meters.rapl:Rapl",
    "hwmon": "paceline_agent.meters.hwmon:Hwmon",
    "power_supply": "paceline_agent.meters.power_supply:PowerSupply",
    "replay": "paceline_agent.meters.replay:Replay",
}
SYSFS = "/sys"
POWERCAP = "/sys/class/powercap"


class MeterError(PacelineError):
    """A sensor could not be read, or is not what it should be."""

    exit_code = 7

    def __init__(self, why: str, todo: str = "") -> None:
        super().__init__(f"{why}; {todo}" if todo else why)
        self.why, self.todo = why, todo


Domain = Literal["package", "dram", "psys", "core", "uncore"]  # kinds of counters of a processor


@dataclass(frozen=True)
class MeterSettings:
    """Table [meter] of agent.toml. Without it the board's energy is unknown."""

    source: Literal["none", "modelled", "rapl", "hwmon", "power_supply", "replay"] = "none"
    period_ms: Annotated[int, Bounds(ge=10, le=60_000)] = 100  # ten readings a second see a round, not a step
    idle_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None  # declared; `modelled` needs both
    active_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None
    rapl_root: str = POWERCAP  # where the kernel shows its powercap zones, when that is not below sysfs_root
    domains: tuple[Domain, ...] = ()  # rapl; none named: all packages, or psys where there are none
    labels: tuple[str, ...] = ()  # hwmon: rails to add up; none named: the board's input, where that can be told
    sysfs_root: str = SYSFS  # for tests and containers
    trace: str = ""  # replay: a file that `paceline-agent meter record` made

    def __post_init__(self) -> None:
        declared = (self.idle_w, self.active_w)
        if self.source == "modelled" and None in declared:
            raise ValueError('meter.source = "modelled" needs idle_w and active_w, the watts that the board declares')
        if self.source != "modelled" and declared != (None, None):
            raise ValueError('meter.idle_w and meter.active_w belong to source = "modelled"; set it, or remove them')
        if self.source != "rapl" and self.rapl_root != POWERCAP:
            raise ValueError('meter.rapl_root belongs to source = "rapl"; set it, or remove it')
        for key, source in (("domains", "rapl"), ("labels", "hwmon"), ("trace", "replay")):
            if getattr(self, key) and self.source != source:
                raise ValueError(f'meter.{key} belongs to source = "{source}"; set it, or remove it')
        if self.source == "replay" and not self.trace:
            raise ValueError('meter.source = "replay" needs trace, a file that `paceline-agent meter record` made')


@dataclass(frozen=True, slots=True)
class Reading:
    """Mean power over [t0_us, t1_us] (t0_us < t1_us), or at an instant (t0_us == t1_us); error_uw: instrument bound."""

    t0_us: int
    t1_us: int
    power_uw: int
    error_uw: int = 0
    flags: tuple[str, ...] = ()  # what is to be known of it: "negative", "derived_total"


@dataclass(frozen=True, slots=True)
class Count:
    """What a joule counter shows at an instant. A count below the last one: it began anew, the step is unknown."""

    t_us: int
    count_uj: int  # wraps are the source's affair
    error_uj: int = 0  # how far the count may be from the truth at t_us
    flags: tuple[str, ...] = ()


INSTANT = {"modelled"}  # sources that no sensor can hold up
SCATTERED = {"hwmon", "power_supply"}  # of instants: read at a random one of each period, or bursts in step alias


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


def open_source(settings: MeterSettings, now_us: int) -> Meter | None:
    """Return the source that agent.toml names, None for "none"; reading it is the caller's. Raises MeterError."""
    if settings.source == "none":
        return None
    module, attribute = SOURCES[settings.source].split(":")
    return cast(Meter, getattr(importlib.import_module(module), attribute)(settings, now_us))


def open_meter(settings: MeterSettings | str = "auto", **keys: object) -> SampledMeter:
    """Return a meter that reads by itself and measures windows; `with` closes it. Raises MeterError, SettingsError.

    "auto": the source that sees most of this board. `keys`: further keys of [meter], as in open_meter("hwmon",
    labels=["VDD_IN"]).
    """
    from paceline_agent.sampled import opened

    return opened(settings, keys)
