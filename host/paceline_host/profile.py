# SPDX-License-Identifier: Apache-2.0
"""A profile: what each board of an emulated fleet declares. TOML -> frozen dataclasses; it starts nothing.

Only the fleet reads this, to write each board's agent.toml; what a running host knows of pace and power are reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paceline.errors import SettingsError
from paceline.settings import Bounds, did_you_mean, load

SHIPPED = Path(__file__).parent / "profiles"
MAX_BOARDS = 256
TOP_SPEED = 1e6


@dataclass(frozen=True)
class BoardProfile:
    """One emulated board: declared pace (DECISIONS 52) and power."""

    name: Annotated[str, Bounds(ge=1, le=64)]
    speed: Annotated[float, Bounds(gt=0, le=1e6)]  # 1.0 needs the task's reference seconds per sample
    idle_w: Annotated[float, Bounds(ge=0, le=1e5)]
    active_w: Annotated[float, Bounds(ge=0, le=1e5)]
    architecture: str = ""
    step_fixed_s: Annotated[float, Bounds(ge=0, le=3600)] = 0.0  # of each optimiser step, whatever its batch
    noise: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # relative standard deviation of a step
    throttle_after_s: Annotated[float, Bounds(ge=0)] = 0.0  # of work in one slice; 0: never
    throttle_factor: Annotated[float, Bounds(ge=1, le=1e3)] = 1.0  # seconds per sample are multiplied by it then

    @property
    def paced(self) -> bool:
        """Keeps a declared pace; at the top speed it runs as fast as it goes, and no closed form holds."""
        return self.speed < TOP_SPEED

    def __post_init__(self) -> None:
        if self.active_w < self.idle_w:
            raise ValueError(f"board {self.name}: active_w {self.active_w:g} is below idle_w {self.idle_w:g}")
        if not all(char.isalnum() or char in "-_" for char in self.name):
            raise ValueError(f"board {self.name!r}: a name has letters, digits, - and _ only; it names a folder")


@dataclass(frozen=True)
class Profile:
    """A fleet."""

    name: str
    boards: Annotated[tuple[BoardProfile, ...], Bounds(ge=1, le=MAX_BOARDS)]

    def __post_init__(self) -> None:
        names = [board.name for board in self.boards]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"board names must differ; more than once: {', '.join(twice)}")


def is_path(name_or_path: str) -> bool:
    """Tell a profile of the user's own from the name of a shipped one."""
    return "/" in name_or_path or name_or_path.endswith(".toml")


def load_profile(name_or_path: str) -> Profile:
    """Return a shipped profile by its name, or one of the user's own by its path (with a / or ending in .toml)."""
    if is_path(name_or_path):
        return load(Path(name_or_path), Profile)
    path = SHIPPED / f"{name_or_path}.toml"
    if not path.is_file():
        known = sorted(each.stem for each in SHIPPED.glob("*.toml"))
        raise SettingsError(
            [f"there is no profile {name_or_path!r}; {did_you_mean(name_or_path, known)}; a path ends in .toml"]
        )
    return load(path, Profile, where=path.name)
