# SPDX-License-Identifier: Apache-2.0
"""What a meter has last seen on one rail, for people to look at. A source that has more to show than its sum has a
`seen_rails` method; joules are never made of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Rail:
    """Signed values; None: not measured."""

    name: str
    voltage_uv: int | None = None
    current_ua: int | None = None
    power_uw: int | None = None
    energy_uj: int | None = None  # count of a joule counter


@runtime_checkable
class ShowsRails(Protocol):
    """A meter that shows its rails."""

    def seen_rails(self) -> Sequence[Rail]:
        """Return what the last good read has seen."""
        ...
