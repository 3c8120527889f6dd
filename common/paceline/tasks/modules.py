# SPDX-License-Identifier: Apache-2.0
"""A task as a torch module in flat memory with its optimiser, for training that is synchronised at each step.

Its state is what such training goes on from: model, optimiser memory and number of steps, as bytes in one layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from paceline.errors import CoreError, SettingsError
from paceline.tasks import Buffer, Indices, Task
from paceline.tasks.flat import Flat, Optimiser, as_tensor
from paceline.tasks.states import STEPS, memory_of
from paceline.tasks.whole import WholeTask


class Trainable:
    """`flat` is the model, `optimiser` moves it; `state` and `load_state` are both."""

    def __init__(self, task: Task, device: str = "cpu") -> None:
        """Raises SettingsError for a task whose model is no torch module."""
        if not hasattr(task, "whole"):
            raise SettingsError(
                ["task.name: its model is no torch module; regime ddp needs one, for instance mnist or cifar10"]
            )
        self._task = cast(WholeTask, task)
        self.flat = Flat(self._task.whole(), device)
        if self.flat.manifest.nbytes != task.manifest.nbytes:
            raise CoreError(f"the module has {self.flat.manifest.nbytes} bytes, the task {task.manifest.nbytes}")
        options: Any = task.options  # type: ignore[attr-defined]
        self.precision: str = getattr(options, "precision", "float32")
        self.optimiser = Optimiser(options.optimizer, options.learning_rate, options.momentum, self.flat.weights)
        self.has_batch_norm = len(self.flat.buffers) > 0
        self.model_bytes = self.flat.manifest.nbytes
        self._memory = self.optimiser.memory.view(torch.uint8).flatten()
        self.state_bytes = self.model_bytes + len(self._memory) + STEPS.size

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the task's loss, its mean over these samples."""
        return self._task.loss(output, y)

    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of training samples; augmentation is keyed by the epoch and the sample."""
        x, y = self._task.batch(indices, epoch)
        return x.to(self.flat.weights.device), y.to(self.flat.weights.device)

    def state(self) -> bytearray:
        """Return model, optimiser memory and steps."""
        out = bytearray(self.state_bytes)
        view = memoryview(out)
        self.flat.dump(view[: self.model_bytes])
        view[self.model_bytes : -STEPS.size] = memoryview(self._memory.cpu().numpy())  # type: ignore[arg-type]
        STEPS.pack_into(out, self.state_bytes - STEPS.size, self.optimiser.steps)
        return out

    def load_state(self, state: Buffer) -> None:
        """Go on from a state."""
        view = memoryview(state).cast("B")
        if len(view) != self.state_bytes:
            raise CoreError(f"a state of {len(view)} bytes came; expected {self.state_bytes}")
        self.flat.load(view[: self.model_bytes])
        if len(self._memory):
            self._memory.copy_(as_tensor(memory_of(view, self.model_bytes)))
        (self.optimiser.steps,) = STEPS.unpack_from(view, self.state_bytes - STEPS.size)

    def initial_state(self) -> bytearray:
        """Return the state before training."""
        self.flat.load(self._task.initial())
        self.optimiser.reset()
        return self.state()


def way_of(trainable: Trainable, batches: Sequence[Indices], moved: Buffer) -> tuple[float, float]:
    """Compare how far a model moved from the initial one with the steps of one process on these batches.

    Returns the largest difference of a component, and the largest component.
    """
    flat = trainable.flat
    flat.load(moved)
    theirs = flat.weights.clone()
    trainable.initial_state()
    first = flat.weights.clone()
    for indices in batches:
        x, y = trainable.batch(indices, 0)
        flat.gradient.zero_()
        loss = trainable.loss(flat.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
        trainable.optimiser.step(flat.gradient)
    return float((theirs - flat.weights).abs().max()), float((first - flat.weights).abs().max())
