# SPDX-License-Identifier: Apache-2.0
"""`config show`: effective settings as TOML or JSON, with the place that each value comes from. Knows no schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from paceline import toml
from paceline.sheet import Sheet

Waits = Mapping[str, tuple[float, str]]  # name -> (seconds, meaning)


def as_toml(settings: object, sheet: Sheet, *, origin: bool, waits: Waits, waits_are: str) -> str:
    """Return a TOML file that would give the same settings; what cannot be set stands in comments below."""
    text = toml.write(settings, sheet.origin if origin else None)
    rows = "".join(f"#   {name:14} {seconds:>8g}  {meaning}\n" for name, (seconds, meaning) in waits.items())
    return f"{text}\n# {waits_are}:\n{rows}"


def as_json(settings: object, sheet: Sheet, file: Path, *, origin: bool, waits: Waits) -> str:
    """Return the same as one JSON object."""
    shown: dict[str, object] = {
        "schema": "paceline-config-1",
        "file": str(file),
        "settings": toml.plain(settings),
        "derived": {name: seconds for name, (seconds, _) in waits.items()},
    }
    if origin:
        shown["origins"] = {toml.dotted(keys): sheet.origin(keys) for keys in toml.keys_of(settings)}
    return json.dumps(shown, indent=1)
