# SPDX-License-Identifier: Apache-2.0
"""A task as one torch module, one loss and batches of tensors, and what follows from these. Knows no data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import nn

from paceline.errors import SettingsError
from paceline.tasks import Buffer, Evaluation, Indices, Task, networks, parts
from paceline.tasks.flat import DTYPES, Flat, Optimiser, manifest_of
from paceline.tasks.options import Era5Options, ImdbOptions


class WholeTask(Task, Protocol):
    """What training that is synchronised at each step needs beside a Task."""

    def whole(self) -> nn.Module:
        """Return the model; layout and names are the manifest's."""

    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of training samples."""

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over the samples."""


class Whole(ABC):
    """A task that gives data, module and loss; see paceline.tasks.Task."""

    def __init__(self, options: Era5Options | ImdbOptions, seed: int, samples: int, data_label: str) -> None:
        self._seed, self.samples, self.data_label = seed, samples, data_label
        self.precision: str = options.precision
        self.reference_seconds_per_sample = options.reference_seconds_per_sample
        self._descent = options.optimizer, options.learning_rate, options.momentum
        self.manifest = manifest_of(self._shape())

    @abstractmethod
    def module(self) -> nn.Module:
        """Return the model, with any weights."""

    @abstractmethod
    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of training samples."""

    @abstractmethod
    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over the samples."""

    @abstractmethod
    def evaluate(self, model: Buffer) -> Evaluation:
        """Return the quality of a model on the test data."""

    def _shape(self) -> nn.Module:
        with torch.device("meta"):
            return self.module().to(DTYPES[self.precision])

    def whole(self) -> nn.Module:
        """Return the model with the weights of `initial`."""
        module = self._shape().to_empty(device="cpu")
        networks.initialise(module, self._seed)
        return module

    @cached_property
    def _tested(self) -> Flat:
        return Flat(self._shape().to_empty(device="cpu"))

    def trained(self, model: Buffer) -> nn.Module:
        """Return the module with these weights, to be evaluated; there is one only."""
        self._tested.load(model)
        return self._tested.module.eval()

    def initial(self) -> bytes:
        return Flat(self.whole()).to_bytes()

    def optimiser(self, weights: torch.Tensor) -> Optimiser:
        return Optimiser(*self._descent, weights)

    def learner(self) -> WholeLearner:
        return WholeLearner(self)


class Descends(Protocol):
    """What a learner needs of its task."""

    def whole(self) -> nn.Module: ...
    def optimiser(self, weights: torch.Tensor) -> Optimiser: ...
    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]: ...
    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...


class WholeLearner:
    """A whole model in training; see paceline.tasks.Learner."""

    def __init__(self, task: Descends) -> None:
        self._task = task
        self._flat = Flat(task.whole())
        self._optimiser = task.optimiser(self._flat.weights)
        self.at_once = 0

    def load(self, model: Buffer, rho: float = 0.0) -> None:
        self._flat.load(model)
        self._optimiser.reset()
        self._rho, self._origin = rho, self._flat.weights.detach().clone() if rho else None

    def step(self, indices: Indices) -> None:
        if 0 < self.at_once < len(indices) and len(self._flat.buffers):
            text = "does not fit into the memory, and BatchNorm needs all of it at once"
            raise SettingsError([f'task.batch: {len(indices)} {text}; take fewer, or norm = "group"'])
        self._flat.gradient.zero_()
        for part, share in parts(np.asarray(indices), self.at_once):
            inputs, targets = self._task.batch(part, 0)
            loss = self._task.loss(self._flat.module(inputs), targets) * share  # mean over the samples
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
        if self._origin is not None:
            self._flat.gradient.add_(self._flat.weights.detach() - self._origin, alpha=self._rho)
        self._optimiser.step(self._flat.gradient)

    def dump(self, out: bytearray | memoryview) -> None:
        self._flat.dump(out)
