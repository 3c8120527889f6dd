# SPDX-License-Identifier: Apache-2.0
"""FedAsync's mixing (arXiv 1903.03934): how much of an update counts, by its age. Pure numbers; knows no model.

x_t = (1 - alpha_t) x_(t-1) + alpha_t x_new with alpha_t = alpha * s(age); age is how many updates were mixed in since
the model was handed out from which x_new was trained. Boards minimise f(x) + rho/2 |x - x_handed_out|^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from paceline.errors import SettingsError
from paceline.settings import Bounds

KINDS = {"fedasync": "constant", "fedasync-poly": "polynomial", "fedasync-hinge": "hinge"}  # policy -> s
STEEPNESS = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}  # a, as published
PARTS = 4  # slices that a board's equal share of a round is cut into, where nothing else is said


@dataclass(frozen=True)
class MixingSettings:
    """Regime async. The defaults are those that the paper has for images."""

    alpha: Annotated[float, Bounds(gt=0, le=1)] = 0.6  # weight of an update of age 0
    rho: Annotated[float, Bounds(ge=0, le=1000)] = 0.005  # how strongly a board is held to the model that it was given
    a: Annotated[float, Bounds(ge=0, le=1e6)] = 0.0  # steepness; 0: as published, 0.5 for -poly and 10 for -hinge
    b: Annotated[float, Bounds(ge=0, le=1e6)] = 4.0  # age up to which -hinge takes nothing away
    slice: Annotated[int, Bounds(ge=0, le=1 << 31)] = 0  # samples; 0: a quarter of an equal share of run.budget


@dataclass(frozen=True)
class Mixing:
    """One run's rule, as its journal keeps it."""

    kind: str
    alpha: float
    a: float
    b: float
    rho: float
    slice: int  # samples

    @classmethod
    def of(cls, policy: str, settings: MixingSettings, budget: int, boards: int) -> Mixing:
        """Return the rule of a policy over a fleet. Raises SettingsError."""
        if settings.slice > budget:
            raise SettingsError([f"mixing.slice = {settings.slice} is above run.budget = {budget}; lower it"])
        kind = KINDS[policy]
        size = settings.slice or max(1, budget // (PARTS * boards))
        return cls(kind, settings.alpha, settings.a or STEEPNESS[kind], settings.b, settings.rho, size)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Mixing:
        """Return a rule from a journal."""
        return cls(**row)

    def row(self) -> dict[str, Any]:
        """Return it for a journal."""
        return asdict(self)

    def weight(self, age: int) -> float:
        """Return alpha_t of an update."""
        return self.alpha * self.factor(age)

    def factor(self, age: int) -> float:
        """Return s(age): 1 for age 0, and never more for a greater age."""
        if self.kind == "polynomial":
            return float((age + 1.0) ** -self.a)
        if self.kind == "hinge" and age > self.b:
            return 1.0 / (self.a * (age - self.b) + 1.0)
        return 1.0
