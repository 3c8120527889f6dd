# SPDX-License-Identifier: Apache-2.0
"""A multi-layer perceptron on images of digits. Knows torch, the data and its optimiser; no board, round or link.

All parameters are views into one flat tensor, laid out by the manifest, and so are their gradients: loading and
dumping a model are one copy each, an optimiser step is a few operations on one vector, and the gaps stay zero.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy, linear

from paceline.data import Dataset, open_dataset
from paceline.tasks import Buffer, Evaluation, Indices, networks, parts, read_options
from paceline.tasks.options import MnistOptions
from paceline.tasks.scales import PIXEL_MEAN, PIXEL_STD
from paceline.tensors import Manifest, Role

CLASSES = 10
EVALUATION_BATCH = 1000  # 3 MB of floats: stays near the cache, and 10,000 images take ten passes
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam


class Mnist:
    """The task; see paceline.tasks.Task, and paceline.tasks.whole for what steps of a group need."""

    loss = staticmethod(cross_entropy)

    def __init__(self, options: Mapping[str, object], seed: int, data_dir: Path | None) -> None:
        self.options = read_options(options, MnistOptions)
        self.data: Dataset = open_dataset("mnist", data_dir)
        self.seed = seed
        self.samples = self.data.train.samples
        self.data_label = self.data.label
        self.reference_seconds_per_sample = self.options.reference_seconds_per_sample
        self.widths = (self.data.train.pixels, *self.options.hidden, CLASSES)
        self.manifest = Manifest.build(self._entries())

    def _entries(self) -> list[tuple[str, str, tuple[int, ...], Role]]:
        entries: list[tuple[str, str, tuple[int, ...], Role]] = []
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(self.widths)):
            entries.append((f"layer{layer}.weight", "float32", (outputs, inputs), "parameter"))
            entries.append((f"layer{layer}.bias", "float32", (outputs,), "parameter"))
        return entries

    def labels(self) -> NDArray[np.uint8]:
        """Return the labels of all training samples."""
        return self.data.train.labels()

    @cached_property
    def data_sha256(self) -> str:
        """See paceline.tasks.data_sha256."""
        return self.data.train.sha256()

    def initial(self) -> bytes:
        """Weights and biases uniform in +-1/sqrt(inputs), each layer's draws following the one before."""
        model = Model(self)
        source = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for weight, bias in model.layers:
                bound = 1.0 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound, generator=source)
                bias.uniform_(-bound, bound, generator=source)
        return bytes(model.bytes)

    def evaluate(self, model: Buffer) -> Evaluation:
        net = Model(self)
        net.bytes[:] = model
        images, labels = self.data.test.images(), self.data.test.labels()
        loss, right = 0.0, 0
        with torch.no_grad():
            for begin in range(0, len(labels), EVALUATION_BATCH):
                part = slice(begin, begin + EVALUATION_BATCH)
                logits = net.forward(normalised(images[part]))  # (batch, pixels) -> (batch, CLASSES)
                truth = torch.from_numpy(labels[part].astype(np.int64))
                loss += float(cross_entropy(logits, truth, reduction="sum"))
                right += int((logits.argmax(1) == truth).sum())
        return Evaluation(len(labels), loss / len(labels), right / len(labels), "cross-entropy")

    def whole(self) -> nn.Module:
        """Return the model as a module of the manifest's layout, with weights of no meaning."""
        return nn.Sequential(OrderedDict(networks.mlp((1, 1, self.widths[0]), CLASSES, self.options.hidden)))

    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of training samples."""
        which = np.asarray(indices, dtype=np.int64)
        train = self.data.train
        return normalised(train.images()[which]), torch.from_numpy(train.labels()[which].astype(np.int64))

    def learner(self) -> MnistLearner:
        return MnistLearner(self)


class Model:
    """The network: one flat vector, its views as layers, and `bytes`, the same memory in the manifest's layout."""

    def __init__(self, task: Mnist) -> None:
        self.flat = torch.zeros(task.manifest.nbytes // 4)
        self.bytes = memoryview(cast(bytearray, self.flat.numpy())).cast(
            "B"
        )  # numpy arrays are buffers, its stubs say not
        parts = [_part(self.flat, spec.offset, spec.shape) for spec in task.manifest.tensors]
        self.layers = list(zip(parts[0::2], parts[1::2], strict=True))  # (weight, bias)
        self.parameters = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, bias in self.layers[:-1]:
            x = linear(x, weight, bias).relu_()
        return linear(x, *self.layers[-1])


class MnistLearner:
    """A model in training; see paceline.tasks.Learner."""

    def __init__(self, task: Mnist) -> None:
        self._options = task.options
        self._images, self._labels = task.data.train.images(), task.data.train.labels()
        self._model = Model(task)
        self._gradient = torch.zeros_like(self._model.flat)
        for parameter, spec in zip(self._model.parameters, task.manifest.tensors, strict=True):
            parameter.requires_grad_(True)
            parameter.grad = _part(self._gradient, spec.offset, spec.shape)  # backward() adds into the flat gradient
        self._momentum = torch.zeros_like(self._model.flat)  # sgd: velocity; adam: first moment
        self._square = torch.zeros_like(self._model.flat)  # adam: second moment
        self._steps = 0
        self.at_once = 0

    def load(self, model: Buffer, rho: float = 0.0) -> None:
        self._model.bytes[:] = model
        self._rho, self._origin = rho, self._model.flat.clone() if rho else None
        self._momentum.zero_()
        self._square.zero_()
        self._steps = 0

    def step(self, indices: Indices) -> None:
        self._gradient.zero_()
        for part, share in parts(np.asarray(indices), self.at_once):
            images = normalised(self._images[part])  # (batch, pixels)
            labels = torch.from_numpy(self._labels[part].astype(np.int64))
            loss = cross_entropy(self._model.forward(images), labels) * share  # mean over the samples
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
        self._steps += 1
        with torch.no_grad():
            if self._origin is not None:
                self._gradient.add_(self._model.flat - self._origin, alpha=self._rho)
            self._sgd() if self._options.optimizer == "sgd" else self._adam()

    def dump(self, out: bytearray | memoryview) -> None:
        out[:] = self._model.bytes

    def _sgd(self) -> None:
        self._momentum.mul_(self._options.momentum).add_(self._gradient)
        self._model.flat.add_(self._momentum, alpha=-self._options.learning_rate)

    def _adam(self) -> None:
        self._momentum.lerp_(self._gradient, 1.0 - BETA1)
        self._square.mul_(BETA2).addcmul_(self._gradient, self._gradient, value=1.0 - BETA2)
        scale = self._options.learning_rate / (1.0 - BETA1**self._steps)
        spread = self._square.sqrt().div_(math.sqrt(1.0 - BETA2**self._steps)).add_(EPSILON)
        self._model.flat.addcdiv_(self._momentum, spread, value=-scale)


def normalised(images: NDArray[np.uint8]) -> torch.Tensor:
    """Return pixels 0..255 as floats of about zero mean and unit variance."""
    return torch.from_numpy(images.astype(np.float32)).sub_(PIXEL_MEAN).div_(PIXEL_STD)


def _part(flat: torch.Tensor, offset: int, shape: tuple[int, ...]) -> torch.Tensor:
    begin = offset // 4
    return flat[begin : begin + math.prod(shape)].view(shape)
