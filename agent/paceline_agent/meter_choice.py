# SPDX-License-Identifier: Apache-2.0
"""Options of `paceline-agent meter` -> the settings of the sensors that they mean, or what is wrong with them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from paceline.commandline import UsageError
from paceline.errors import SettingsError
from paceline.settings import load_table
from paceline_agent.meters import MeterError, MeterSettings
from paceline_agent.sampled import chosen

UNTOLD = {  # sources that need more than options say
    "ina219": "shunt_ohm", "ina3221": "shunt_ohm", "modelled": "idle_w and active_w", "replay": "trace",
    "serial": "port",
}  # fmt: skip


def first(arguments: argparse.Namespace) -> MeterSettings:
    """Return the settings that the command line, or the agent.toml it names, asks for. Raises PacelineError."""
    keys = _keys(arguments)
    if arguments.config is not None:
        return _of_file(arguments, keys)
    if arguments.rail and arguments.source not in ("auto", "hwmon"):
        raise UsageError(f"paceline-agent meter: error: --rail is for --source hwmon, not for {arguments.source}")
    if arguments.rail:
        return _named("--source", "hwmon", keys | {"labels": arguments.rail})
    return _named("--source", arguments.source, keys)


def _of_file(arguments: argparse.Namespace, keys: dict[str, object]) -> MeterSettings:
    """Return [meter] of an agent.toml; what an option says beside it wins."""
    from paceline_agent.config import load_config

    settings = load_config(arguments.config).meter
    if settings.source == "none":
        raise MeterError(
            f"{arguments.config} names no [meter] source, so there is nothing to read",
            "name one there, or leave --config out to have one found",
        )
    if arguments.period_ms is not None:
        load_table({"period_ms": arguments.period_ms}, MeterSettings, where="--period-ms")
    if arguments.rail:
        keys["labels"] = tuple(arguments.rail)
    try:
        return replace(settings, **keys)  # type: ignore[arg-type]  # fields by name
    except ValueError as error:
        raise SettingsError([f"{arguments.config} with the options beside it: {error}"]) from None


def second(arguments: argparse.Namespace) -> MeterSettings | None:
    """Return the settings of the sensor that a selftest compares with; None: it is a known load."""
    if arguments.against:
        rails = {"labels": arguments.against_rail} if arguments.against_rail else {}
        return _named("--against", arguments.against, _keys(arguments) | rails)
    if arguments.against_rail:
        raise UsageError("paceline-agent meter selftest: error: --against-rail needs --against")
    return None


def _named(option: str, source: str, keys: Mapping[str, object]) -> MeterSettings:
    """Return the settings of a source that an option names."""
    if source in UNTOLD:
        other = "" if option == "--source" else ", the other sensor with --against"
        raise UsageError(
            f"paceline-agent meter: error: {option} {source}: no option tells its {UNTOLD[source]}; write [meter] into"
            f" an agent.toml and name that with --config{other}"
        )
    return chosen(source, keys, where=f"{option} {source}")


def _keys(arguments: argparse.Namespace) -> dict[str, object]:
    keys: dict[str, object] = {}
    if arguments.sysfs_root is not None:
        keys["sysfs_root"] = str(arguments.sysfs_root)
    if arguments.period_ms is not None:
        keys["period_ms"] = arguments.period_ms
    if arguments.i2c_bus:
        keys["bus"] = int(arguments.i2c_bus) if arguments.i2c_bus.isdecimal() else arguments.i2c_bus
    return keys
