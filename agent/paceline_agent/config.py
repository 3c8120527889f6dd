# SPDX-License-Identifier: Apache-2.0
"""agent.toml as one frozen dataclass: all keys, their units, defaults and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from paceline.errors import SettingsError
from paceline.keys import KeyPair, is_public, read_pair, read_public
from paceline.settings import Bounds, Check, read
from paceline.sheet import Sheet
from paceline_agent.meters import MeterSettings
from paceline_agent.pace import Pace
from paceline_agent.quota import QuotaSettings


def _endpoint(text: str) -> None:
    if not text.startswith(("tcp://", "ipc://")):
        raise ValueError(f"expected tcp://ADDRESS:PORT, got {text!r}")


@dataclass(frozen=True)
class HostSettings:
    """Where the host is, and which key it must prove to hold."""

    endpoint: Annotated[str, Check(_endpoint)]  # tcp://ADDRESS:PORT
    public_key: str  # 40 characters, or the path of a .pub file


@dataclass(frozen=True)
class TrainerSettings:
    """How the trainer child comes to life. `server`: socket of a preloaded trainer server (emulated fleets only)."""

    server: str = ""


SCAN = "; `paceline-agent meter scan` shows what is here, with the lines to write"


@dataclass(frozen=True)
class AgentConfig:
    """One board."""

    host: HostSettings
    key_file: str  # this board's secret key, NAME.key with NAME.pub beside it
    state_dir: str  # model, update and machine id; a folder of this agent alone
    data_dir: str = ""  # folder of data sets; empty: the cache of `paceline data fetch`
    meter: MeterSettings = field(default_factory=MeterSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    emulation: Pace | None = None  # declared pace of an emulated board
    quota: QuotaSettings | None = None  # a share of a processor for the trainer: real scarcity instead
    chunk_max_bytes: Annotated[int, Bounds(ge=1 << 15, le=1 << 20)] = 1 << 20
    threads: Annotated[int, Bounds(ge=1, le=256)] = 1  # of the trainer
    end_with_stdin: bool = False  # end when stdin closes: an emulated board dies with its parent

    def __post_init__(self) -> None:
        if self.emulation is not None and self.quota is not None:
            raise ValueError("[emulation] declares a pace that a [quota] would not let the trainer hold; remove one")

    def keys(self, base: Path) -> tuple[KeyPair, str]:
        """Return this board's pair and the host's public key; relative paths start at `base`."""
        host_key = self.host.public_key
        if not is_public(host_key):
            host_key = read_public(base / host_key)
        return read_pair(base / self.key_file), host_key


def load_config(path: Path) -> AgentConfig:
    """Read agent.toml. Raises SettingsError with one sentence for each fault."""
    return load_with_sheet(path)[0]


def load_with_sheet(path: Path) -> tuple[AgentConfig, Sheet]:
    """Read agent.toml as `load_config` does; return it with the sheet that knows where each key stands."""
    sheet = Sheet.read(path, path.name)
    config, faults = read(sheet, AgentConfig)
    if config is None:
        raise SettingsError([f"{fault}{SCAN}" if "meter.source: expected" in fault else fault for fault in faults])
    return replace(config, meter=_placed(config.meter, path.parent.absolute())), sheet


def _placed(meter: MeterSettings, base: Path) -> MeterSettings:
    """Return the settings with paths that start at `base` where they are relative."""
    found: dict[str, str] = {
        key: str(base / getattr(meter, key)) for key in ("rapl_root", "sysfs_root", "trace") if getattr(meter, key)
    }
    if meter.port and "://" not in meter.port:
        found["port"] = str(base / meter.port)
    if isinstance(meter.bus, str) and not meter.bus.isdecimal():
        found["bus"] = str(base / meter.bus)
    return replace(meter, **found)  # type: ignore[arg-type]  # fields by name
