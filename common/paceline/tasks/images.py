# SPDX-License-Identifier: Apache-2.0
"""Image classification on MNIST, Fashion-MNIST and CIFAR, with models that can be cut. Knows torch, data and optimiser;
no board, round or link.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from paceline.data import open_dataset
from paceline.errors import SettingsError
from paceline.tasks import Buffer, Evaluation, Indices, Task, networks, read_options
from paceline.tasks.augment import augmented
from paceline.tasks.flat import DTYPES, Flat, Optimiser, entries_of, manifest_of
from paceline.tasks.mnist import Mnist
from paceline.tasks.options import CifarOptions, FashionOptions, MnistOptions
from paceline.tasks.scales import SCALES
from paceline.tasks.whole import WholeLearner
from paceline.tensors import Manifest

EVALUATION_BATCH = 500


def mnist(options: Mapping[str, object], seed: int, data_dir: Path | None) -> Task:
    """Return the task "mnist": the plain MLP in its own fast form, or what can be cut."""
    read = read_options(options, MnistOptions)
    plain = replace(MnistOptions(), **{key: getattr(read, key) for key in _OF_THE_FAST_FORM})
    return Mnist(options, seed, data_dir) if read == plain else Images("mnist", read, seed, data_dir)


_OF_THE_FAST_FORM = ("hidden", "optimizer", "learning_rate", "momentum", "batch", "reference_seconds_per_sample")


def fashion_mnist(options: Mapping[str, object], seed: int, data_dir: Path | None) -> Task:
    """Return the task "fashion-mnist"."""
    return Images("fashion-mnist", read_options(options, FashionOptions), seed, data_dir)


def cifar10(options: Mapping[str, object], seed: int, data_dir: Path | None) -> Task:
    """Return the task "cifar10"."""
    return Images("cifar10", read_options(options, CifarOptions), seed, data_dir)


def cifar100(options: Mapping[str, object], seed: int, data_dir: Path | None) -> Task:
    """Return the task "cifar100"."""
    return Images("cifar100", read_options(options, CifarOptions), seed, data_dir)


class Images:
    """The task; see paceline.tasks.Task and SplitTask."""

    loss = staticmethod(cross_entropy)

    def __init__(self, name: str, options: MnistOptions, seed: int, data_dir: Path | None) -> None:
        self.name, self.options, self.seed = name, options, seed
        data = open_dataset(name, data_dir).head(options.train_samples, options.test_samples)
        self.train, self.test, self.data_label = data.train, data.test, data.label
        self.classes = data.classes
        self.samples = self.train.samples
        self.reference_seconds_per_sample = options.reference_seconds_per_sample
        self.shape = data.train.shape if len(data.train.shape) == 3 else (1, *data.train.shape)
        self.precision: str = options.precision
        self.cut = options.cut
        mean, std = (torch.tensor(values, dtype=DTYPES[self.precision]).view(1, -1, 1, 1) for values in SCALES[name])
        self._mean, self._std = mean, std
        halves, self.parts = self._cut_model()
        self.notes = halves.notes
        self.server_manifest = manifest_of(halves.server)
        entries = entries_of(halves.server)
        if self.cut:
            self.client_manifest = manifest_of(halves.client)
            entries = entries_of(halves.client) + entries
            with torch.no_grad():
                sample = torch.zeros(1, *self.shape, dtype=DTYPES[self.precision], device="meta")
                self.smashed_shape = tuple(halves.client(sample).shape[1:])
        self.manifest = Manifest.build(entries)

    def _cut_model(self) -> tuple[networks.Halves, tuple[str, ...]]:
        """Return the model in two halves, of which the first is empty where nothing is cut, and the parts' names.

        They are shapes without memory; `to_empty` gives them some.
        """
        options = self.options
        with torch.device("meta"):
            parts = networks.build(options.model, self.shape, self.classes, options.norm, options.hidden)
            names = tuple(name for name, _ in parts)
            if options.cut:
                halves = networks.split(parts, options.cut)
            else:
                halves = networks.Halves(nn.Sequential(), nn.Sequential(OrderedDict(parts)), ())
            for half in (halves.client, halves.server):
                half.to(DTYPES[self.precision])
        return halves, names

    def halves(self) -> tuple[nn.Sequential, nn.Sequential]:
        made, _ = self._cut_model()
        networks.initialise(nn.Sequential(made.client, made.server).to_empty(device="cpu"), self.seed)
        return made.client, made.server

    def client_half(self) -> nn.Sequential:
        return self._cut_model()[0].client.to_empty(device="cpu")

    def whole(self) -> nn.Sequential:
        """Return the uncut model with the weights of `initial`; layout and names are the manifest's."""
        client, server = self.halves()
        parts = [*client.named_children(), *server.named_children()]
        return nn.Sequential(OrderedDict(parts))

    def initial(self) -> bytes:
        return Flat(self.whole()).to_bytes()

    @cached_property
    def data_sha256(self) -> str:
        return self.train.sha256()

    def labels(self) -> NDArray[np.uint8]:
        return self.train.labels()

    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        which = np.asarray(indices, dtype=np.int64)
        images = self.train.images()[which].reshape(-1, *self.shape)
        if self.options.augment:
            images = augmented(images, which, self.seed, epoch)
        return self._normalised(images), torch.from_numpy(self.train.labels()[which].astype(np.int64))

    def _normalised(self, images: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(images.astype(self.precision)).sub_(self._mean).div_(self._std)

    def optimiser(self, weights: torch.Tensor) -> Optimiser:
        options = self.options
        return Optimiser(options.optimizer, options.learning_rate, options.momentum, weights)

    def evaluate(self, model: Buffer, device: str = "cpu") -> Evaluation:
        flat = Flat(self.whole(), device)
        flat.load(model)
        flat.module.eval()
        images, labels = self.test.images(), self.test.labels()
        loss, right = 0.0, 0
        with torch.no_grad():
            for begin in range(0, len(labels), EVALUATION_BATCH):
                part = slice(begin, begin + EVALUATION_BATCH)
                inputs = self._normalised(images[part].reshape(-1, *self.shape)).to(device)
                logits = flat.module(inputs)  # (batch, classes)
                truth = torch.from_numpy(labels[part].astype(np.int64)).to(device)
                loss += float(cross_entropy(logits, truth, reduction="sum"))
                right += int((logits.argmax(1) == truth).sum())
        return Evaluation(len(labels), loss / len(labels), right / len(labels), "cross-entropy")

    def learner(self) -> ImageLearner:
        return ImageLearner(self)


class ImageLearner(WholeLearner):
    """A whole model in training; see paceline.tasks.Learner."""

    def __init__(self, task: Images) -> None:
        if task.options.augment:
            raise SettingsError(["task.augment: it is keyed by the epoch, which only split learning tells the model"])
        super().__init__(task)
