# SPDX-License-Identifier: Apache-2.0
"""What can be trained: a table of tasks by name. A task knows its data, model and optimiser; it knows no board, round
or link.

Importing this package loads neither numpy nor torch; `make` imports the one module that the task needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from paceline.errors import SettingsError
from paceline.settings import did_you_mean, load_table
from paceline.tensors import Manifest

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview  # a whole model of manifest.nbytes bytes
Indices = Sequence[int] | memoryview  # sample numbers in 0 .. Task.samples-1; a memoryview has format "I"

TASKS: dict[str, str] = {
    "mnist": "paceline.tasks.images:mnist",  # images of digits; as all below but "linear" it needs torch and data
    "linear": "paceline.tasks.linear:Linear",  # ten floats, no torch, no data: for the link, tests and overhead
    "fashion-mnist": "paceline.tasks.images:fashion_mnist",
    "cifar10": "paceline.tasks.images:cifar10",
    "cifar100": "paceline.tasks.images:cifar100",
    "era5": "paceline.tasks.era5:Era5",
    "imdb": "paceline.tasks.imdb:Imdb",
}
BY_NO_LIBRARY = ("linear",)


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on data it was not trained on."""

    samples: int
    loss: float  # mean per sample, or what `metric` says
    accuracy: float | None  # share of 1; None where the task has no such thing
    metric: str  # what `loss` is: "cross-entropy", "mse", "rmse in K, persistence 4.34"


class Learner(Protocol):
    """A model in training on one board."""

    at_once: int  # samples whose gradient is computed at a time; a larger batch is gone through in parts. 0: all

    def load(self, model: Buffer, rho: float = 0.0) -> None:
        """Begin a slice: take these weights and forget all optimiser state (DECISIONS 5).

        `rho`: each step's loss has rho/2 |weights - model|^2 besides, over the parameters.
        """

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


class SplitTask(Task, Protocol):
    """A task whose model is an ordered list of named parts and is cut behind one of them.

    `manifest` is the layout of the client part followed by that of the server part, so a whole model's bytes are the
    two parts' bytes one after the other.
    """

    parts: tuple[str, ...]  # names, in order
    cut: str  # the last part that clients hold
    classes: int  # labels are 0 .. classes-1
    notes: tuple[str, ...]  # what the cut changed in the model, a sentence each
    client_manifest: Manifest  # parameters only
    server_manifest: Manifest
    smashed_shape: tuple[int, ...]  # of one sample's tensor at the cut
    precision: str  # dtype of all parameters

    def halves(self) -> tuple[Any, Any]:
        """Return the client's and the server's torch module, with the weights of `initial`."""

    def client_half(self) -> Any:
        """Return the client's torch module alone, with undefined weights: they come from the host."""

    def evaluate(self, model: Buffer, device: str = "cpu") -> Evaluation:
        """Return the quality of a model on the test data, computed there."""

    def optimiser(self, weights: Any) -> Any:
        """Return the optimiser that the options name, on one flat tensor of parameters."""

    def labels(self) -> Any:
        """Return the labels of all training samples, an array."""

    def batch(self, indices: Indices, epoch: int) -> tuple[Any, Any]:
        """Return inputs and labels of training samples as tensors, augmented as the epoch has it."""


def parts(indices: Any, at_once: int) -> Iterator[tuple[Any, float]]:
    """Yield the samples of a batch, an array, so many at a time, each part with its share of the batch."""
    count = len(indices)
    size = at_once or count
    for begin in range(0, count, size):
        part = indices[begin : begin + size]
        yield part, len(part) / count


def splittable(task: Task) -> SplitTask:
    """Return a task that is cut. Raises SettingsError where it is not, or cannot be."""
    if not hasattr(task, "cut"):
        raise SettingsError(["task.name: this task's model has one part only and cannot be cut for split learning"])
    split_task = cast(SplitTask, task)
    if not split_task.cut:
        valid = ", ".join(split_task.parts[:-1])
        raise SettingsError([f"task.cut is missing: split learning needs the part to cut behind, one of {valid}"])
    return split_task


def data_sha256(task: Task) -> str:
    """Return what names a task's training data by content; "": it makes them up from options and seed, holds none."""
    return str(getattr(task, "data_sha256", ""))


def make(
    name: str, options: Mapping[str, object], seed: int, data_dir: Path | None, *, has_torch: bool = True
) -> Task:  # fmt: skip
    """Return a task. `data_dir` None: the cache that `paceline data fetch` fills; without data: ignored.

    has_torch: it may be imported; else the task's twin in numpy is returned.
    Raises SettingsError for a name or option that does not exist or is out of range, or a task that has no such twin,
    DataError for missing or damaged data.
    """
    target = TASKS.get(name)
    if target is None:
        raise SettingsError([f"task.name: there is no task {name!r}; {did_you_mean(name, list(TASKS))}"])
    if not has_torch and name not in BY_NO_LIBRARY:
        return cast(Task, importlib.import_module("paceline.tasks.plain").make(name, options, seed, data_dir))
    module, attribute = target.split(":")
    factory = getattr(importlib.import_module(module), attribute)
    return cast(Task, factory(options, seed, data_dir))


def read_options(options: Mapping[str, object], cls: type[T]) -> T:
    """Return a task's options dataclass; options come from TOML, from JSON off the wire, or from a Python caller."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    return load_table(plain, cls, where="task")
