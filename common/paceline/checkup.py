# SPDX-License-Identifier: Apache-2.0
"""What both doctors say: rows of what was looked at, in words or as JSON, and the exit status that they come to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

SCHEMA = "paceline-doctor-1"
BUILT_YEAR = 2026  # no clock may be before this software
NAME_WIDTH, STATE_WIDTH = 12, 5


@dataclass(frozen=True)
class Row:
    """One thing that was looked at. `exit_code`: what a bad one means."""

    name: str
    state: Literal["ok", "warn", "bad"]
    about: str
    fix: str = ""
    exit_code: int = 0


def tell(rows: Iterable[Row], *, as_json: bool) -> int:
    """Print rows as they come, or all of them as JSON; return the status of the first bad one, 0 if there is none."""
    seen = []
    for row in rows:
        seen.append(row)
        if not as_json:
            print(f"{row.state:{STATE_WIDTH}} {row.name:{NAME_WIDTH}} {row.about}", flush=True)
            if row.fix:
                print(f"{'':{STATE_WIDTH + NAME_WIDTH + 2}}{row.fix}")
    status = next((row.exit_code for row in seen if row.state == "bad"), 0)
    if as_json:
        plain = [{key: value for key, value in asdict(row).items() if key != "exit_code"} for row in seen]
        print(json.dumps({"schema": SCHEMA, "ok": not status, "rows": plain}, indent=1))
    return status
