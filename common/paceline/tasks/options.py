# SPDX-License-Identifier: Apache-2.0
"""What each task can be told in [task]: keys, units, defaults. Apart from the tasks, so that an experiment file can be
judged without numpy and torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.settings import Bounds

Width = Annotated[int, Bounds(ge=1, le=8192)]


@dataclass(frozen=True)
class MnistOptions:
    """Options of [task] name = "mnist"."""

    model: Literal["mlp"] = "mlp"
    hidden: Annotated[tuple[Width, ...], Bounds(ge=1, le=8)] = (64,)  # hidden layers, ReLU between
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.05
    momentum: Annotated[float, Bounds(ge=0, lt=1)] = 0.5  # sgd only; forgotten at each round, so little of it helps
    batch: Annotated[int, Bounds(ge=1, le=65_536)] = 8  # samples of one optimiser step
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.0025  # declared, at speed 1.0


@dataclass(frozen=True)
class LinearOptions:
    """Options of [task] name = "linear"."""

    samples: Annotated[int, Bounds(ge=1, lt=1 << 32)] = 60_000
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.1
    batch: Annotated[int, Bounds(ge=1, le=65_536)] = 32  # samples of one optimiser step
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.001  # declared, at speed 1.0


OPTIONS: dict[str, type[MnistOptions] | type[LinearOptions]] = {"mnist": MnistOptions, "linear": LinearOptions}
