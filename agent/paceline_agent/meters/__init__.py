# SPDX-License-Identifier: Apache-2.0
"""Sources of joules by name. A source turns its sensor into readings; integrating them is done elsewhere.

Unknown is unknown: a source that cannot read raises MeterError, and then nothing is added; it never answers 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

from paceline.errors import PacelineError
from paceline.settings import Bounds

if TYPE_CHECKING:
    from paceline_agent.sampled import SampledMeter

SOURCES = {
    "modelled": "paceline_agent.meters.modelled:Modelled",
    "rapl": "paceline_agent.meters.rapl:Rapl",
    "ina219": "paceline_agent.meters.ina219:Ina219",
    "ina3221": "paceline_agent.meters.ina3221:Ina3221",
    "hwmon": "paceline_agent.meters.hwmon:Hwmon",
    "power_supply": "paceline_agent.meters.power_supply:PowerSupply",
    "serial": "paceline_agent.meters.serial_meter:SerialMeter",
    "replay": "paceline_agent.meters.replay:Replay",
}
SYSFS = "/sys"
POWERCAP = "/sys/class/powercap"
POWER_MAX_UW = 100_000_000_000  # 100 kW, above which the integrator believes no reading


class MeterError(PacelineError):
    """A sensor could not be read, or is not what it should be."""

    exit_code = 7

    def __init__(self, why: str, todo: str = "") -> None:
        super().__init__(f"{why}; {todo}" if todo else why)
        self.why, self.todo = why, todo


Domain = Literal["package", "dram", "psys", "core", "uncore"]  # kinds of counters of a processor


@dataclass(frozen=True)
class RailSettings:
    """Array of tables [[meter.rails]]: a shunt, and what measures it."""

    name: str = ""  # part of the label of its joules; empty: where it is, "0x40" or "ch1"
    address: Annotated[int, Bounds(ge=0x40, le=0x4F)] | None = None  # ina219: its own chip; empty: meter.address
    channel: Annotated[int, Bounds(ge=1, le=3)] | None = None  # ina3221
    shunt_ohm: Annotated[float, Bounds(ge=1e-4, le=100)] | None = None  # empty: meter.shunt_ohm
    counted: bool = True  # false: shown, but a part of another rail, so never added


@dataclass(frozen=True)
class MeterSettings:
    """Table [meter] of agent.toml. Without it the board's energy is unknown."""

    source: Literal[
        "none", "modelled", "rapl", "ina219", "ina3221", "hwmon", "power_supply", "serial", "replay"
    ] = "none"  # fmt: skip
    period_ms: Annotated[int, Bounds(ge=10, le=60_000)] | None = None  # empty: chosen for the source and its costs
    # Seconds before the first round in which watts are measured while nothing is done; empty: 30, 0 without a sensor.
    idle_s: Annotated[float, Bounds(ge=0, le=600)] | None = None
    idle_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None  # declared; `modelled` needs both
    active_w: Annotated[float, Bounds(ge=0, le=1e5)] | None = None
    rapl_root: str = POWERCAP  # where the kernel shows its powercap zones, when that is not below sysfs_root
    domains: tuple[Domain, ...] = ()  # rapl; none named: all packages, or psys where there are none
    labels: tuple[str, ...] = ()  # hwmon: rails to add up; none named: the board's input, where that can be told
    sysfs_root: str = SYSFS  # for tests and containers
    trace: str = ""  # replay: a file that `paceline-agent meter record` made
    port: str = ""  # of a serial meter: /dev/serial/by-id/..., /dev/ttyACM0, socket://HOST:PORT, rfc2217://HOST:PORT
    baud: Annotated[int, Bounds(ge=300, le=12_000_000)] = 115_200
    format: Literal["frames", "json", "csv"] = "frames"  # docs/PROTOCOL.md, section 9
    channels: tuple[str, ...] = ()  # frames: names to sum, else those the meter counts; lines: what stands in them
    delay_ms: Annotated[float, Bounds(ge=0, le=1000)] = 5.0  # from reading to arrival, the least that ever occurs
    # ina219, ina3221
    bus: int | str = 1  # number of /dev/i2c-N, or a path; 1 is on the pin header of a Raspberry Pi
    address: Annotated[int, Bounds(ge=0x40, le=0x4F)] = 0x40
    shunt_ohm: Annotated[float, Bounds(ge=1e-4, le=100)] | None = None  # R100 on the resistor is 0.1
    shunt_tolerance_percent: Annotated[float, Bounds(ge=0, le=20)] = 1.0  # the resistor's; part of the bound; hwmon too
    range_mv: Literal[40, 80, 160, 320] = 320  # ina219: shunt voltage at full scale
    average: int | None = None  # samples a reading: ina219 128 of up to 128, ina3221 1 of up to 1024
    shortest_round_s: Annotated[float, Bounds(gt=0, le=1e6)] | None = None  # to judge an ina3221's average above 1
    rails: tuple[RailSettings, ...] = ()  # empty: one, at `address`, for ina3221 channel 1

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
        _check_chips(self)


CHIPS = {"ina219": (1, 2, 4, 8, 16, 32, 64, 128), "ina3221": (1, 4, 16, 64, 128, 256, 512, 1024)}  # and their averages


def _check_chips(settings: MeterSettings) -> None:
    """Refuse keys of ina219 and ina3221 that contradict each other, or stand beside another source."""
    plain = MeterSettings.__dataclass_fields__
    mine = (
        "bus",
        "address",
        "shunt_ohm",
        "shunt_tolerance_percent",
        "range_mv",
        "average",
        "shortest_round_s",
        "rails",
    )
    if settings.source not in CHIPS:
        others = [key for key in mine if settings.source != "hwmon" or key != "shunt_tolerance_percent"]
        if named := [key for key in others if getattr(settings, key) != plain[key].default]:
            raise ValueError(f'meter.{named[0]} belongs to source = "ina219" or "ina3221"; set one, or remove it')
        return
    rails = settings.rails or (RailSettings(),)
    if any(rail.shunt_ohm is None for rail in rails) and settings.shunt_ohm is None:
        raise ValueError("meter.shunt_ohm is missing: the resistor's ohms, printed on it (R100 is 0.1, R010 is 0.01)")
    if settings.average is not None and settings.average not in (averages := CHIPS[settings.source]):
        raise ValueError(
            f"meter.average is {settings.average}; an {settings.source} can do {', '.join(map(str, averages))}"
        )
    if not any(rail.counted for rail in rails):
        raise ValueError("meter.rails: no rail is counted, so there would be no joules; leave counted out of one")
    places: list[object] = []
    for rail in rails:
        if settings.source == "ina219" and rail.channel is not None:
            raise ValueError("meter.rails.channel belongs to an ina3221; an ina219 has an address for each rail")
        if settings.source == "ina3221" and rail.address is not None:
            raise ValueError("meter.rails.address belongs to an ina219; the rails of an ina3221 are channels 1 to 3")
        if settings.source == "ina219":
            places.append(settings.address if rail.address is None else rail.address)
        elif rail.channel is not None or len(rails) == 1:
            places.append(rail.channel or 1)
        else:
            raise ValueError("meter.rails: each rail of an ina3221 needs its channel, 1 to 3")
    if len(set(places)) < len(places):
        raise ValueError("meter.rails: two rails are in the same place; each needs an address or channel of its own")
    names = [rail.name for rail in rails if rail.name]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"meter.rails: two rails have the name {twice!r}, so nobody could tell them apart; change one")
    if settings.source == "ina3221" and settings.range_mv != plain["range_mv"].default:
        raise ValueError('meter.range_mv belongs to source = "ina219"; an ina3221 has one range; remove it')
    if settings.source == "ina3221" and not 0x40 <= settings.address <= 0x43:
        raise ValueError(f"meter.address is 0x{settings.address:02x}; an ina3221 answers to 0x40, 0x41, 0x42 or 0x43")


@dataclass(frozen=True, slots=True)
class Reading:
    """Mean power over [t0_us, t1_us] (t0_us < t1_us), or at an instant (t0_us == t1_us); error_uw: instrument bound."""

    t0_us: int
    t1_us: int
    power_uw: int
    error_uw: int = 0
    flags: tuple[str, ...] = ()  # of "saturated", "overflow", "negative", "reset": what else is to be said of it
    edge_uj: int = 0  # what a window's edge may put on the wrong side, where instants are not sure


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
    """One source. `read` is called from the meter's thread, `activity` from the agent's.

    One that also has `due_us` is read then instead of after a whole period, if that is sooner. `rhythm` (of
    paceline_agent.cadence) says what it can do; `follow(period_us)` is told of another period by the meter's thread;
    `said()` returns what the device wants a person to read.
    """

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
    if settings.source in ("hwmon", "power_supply", "rapl"):
        check_root(Path(settings.sysfs_root))
    module, attribute = SOURCES[settings.source].split(":")
    return cast(Meter, getattr(importlib.import_module(module), attribute)(settings, now_us))


def check_root(sysfs_root: Path) -> None:
    """Raise MeterError when there is no such folder: what is not in it would be missed for another reason."""
    if not sysfs_root.is_dir():
        raise MeterError(f"sysfs_root = {str(sysfs_root)!r} is no folder here", f"the kernel's own tree is {SYSFS}")


def open_meter(settings: MeterSettings | str = "auto", **keys: object) -> SampledMeter:
    """Return a meter that reads by itself and measures windows; `with` closes it. Raises MeterError, SettingsError.

    "auto": the source that sees most of this board. `keys`: further keys of [meter], as in open_meter("hwmon",
    labels=["VDD_IN"]).
    """
    from paceline_agent.sampled import opened

    return opened(settings, keys)
