# SPDX-License-Identifier: Apache-2.0
"""What can be trained: a table of tasks by name. A task knows its data, model and optimiser; it knows no board, round
or link.

Importing this package loads neither numpy nor torch; `make` imports the one module that the task needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

from paceline.errors import SettingsError
from paceline.settings import did_you_mean, load_table
from paceline.tensors import Manifest

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview  # a whole model of manifest.nbytes bytes
Indices = Sequence[int] | memoryview  # sample numbers in 0 .. Task.samples-1; a memoryview has format "I"

TASKS: dict[str, str] = {
    "mnist": "paceline.tasks.mnist:Mnist",  # MLP on images of digits; needs torch and data
    "linear": "paceline.tasks.linear:Linear",  # ten floats, no torch, no data: for the link, tests and overhead
}


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on data it was not trained on."""

    samples: int
    loss: float  # mean per sample
    accuracy: float | None  # share of 1; None where the task has no such thing
    metric: str  # what `loss` is: "cross-entropy", "mse"


class Learner(Protocol):
    """A model in training on one board."""

    def load(self, model: Buffer) -> None:
        """Begin a slice: take these weights and forget all optimiser state (DECISIONS 5)."""

    def step(self, indices: Indices) -> None:
        """Do one optimiser step on the mean loss of these samples."""

    def dump(self, out: bytearray | memoryview) -> None:
        """Write the weights into `out`, which has manifest.nbytes bytes."""


class Task(Protocol):
    """One thing to train, made from (name, options, seed, data); the same everywhere for the same four."""

    samples: int  # training samples
    manifest: Manifest
    reference_seconds_per_sample: float  # declared: what a board of speed 1.0 needs (DECISIONS 52)
    data_label: str  # what stands in every table: which data these are

    def initial(self) -> bytes:
        """Return the weights before training; depends on the options and the seed alone."""

    def evaluate(self, model: Buffer) -> Evaluation:
        """Return the quality of a model on the test data."""

    def learner(self) -> Learner:
        """Return a new learner; several may live side by side."""


def make(name: str, options: Mapping[str, object], seed: int, data_dir: Path | None) -> Task:
    """Return a task. `data_dir` None: the cache that `paceline data fetch` fills; without data: ignored.

    Raises SettingsError for a name or option that does not exist or is out of range, DataError for missing or damaged
    data.
    """
    target = TASKS.get(name)
    if target is None:
        raise SettingsError([f"task.name: there is no task {name!r}; {did_you_mean(name, list(TASKS))}"])
    module, attribute = target.split(":")
    factory = getattr(importlib.import_module(module), attribute)
    return cast(Task, factory(options, seed, data_dir))


def read_options(options: Mapping[str, object], cls: type[T]) -> T:
    """Return a task's options dataclass; options come from TOML, from JSON off the wire, or from a Python caller."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    return load_table(plain, cls, where="task")
