# SPDX-License-Identifier: Apache-2.0
"""Multi-layer perceptrons on images by numpy alone, for boards without torch: layout, first weights and steps are those
of the torch tasks of the same names (DECISIONS 46). No board, round or link.

Sums run in another order than torch's, so weights are equal but for rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.data import open_dataset
from paceline.errors import SettingsError
from paceline.tasks import Buffer, Evaluation, Indices, parts, read_options
from paceline.tasks.options import OPTIONS, MnistOptions
from paceline.tasks.scales import SCALES
from paceline.tensors import Manifest

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam
EVALUATION_BATCH = 500
Floats = NDArray[np.floating]


def make(name: str, options: Mapping[str, object], seed: int, data_dir: Path | None) -> PlainImages:
    """Return a task, a Task. Raises SettingsError for one that numpy does not train."""
    read = read_options(options, OPTIONS[name])
    if not isinstance(read, MnistOptions):
        what = "its model is no multi-layer perceptron on images"
    elif read.model != "mlp" or read.augment:
        what = "it augments images" if read.augment else f'its model is "{read.model}"'
    else:
        return PlainImages(name, read, seed, data_dir)
    raise SettingsError(
        [
            f"task.name: this board has no torch that works, and {name} needs it here: {what}, and numpy trains "
            'model = "mlp" alone; install torch there (`paceline-agent doctor` tells what is wrong), or leave it out'
        ]
    )


class PlainImages:
    """The task; see paceline.tasks.Task."""

    def __init__(self, name: str, options: MnistOptions, seed: int, data_dir: Path | None) -> None:
        self.options, self.seed = options, seed
        data = open_dataset(name, data_dir).head(options.train_samples, options.test_samples)
        self._train, self._test, self.data_label = data.train, data.test, data.label
        self.samples = data.train.samples
        self.reference_seconds_per_sample = options.reference_seconds_per_sample
        self.dtype = np.dtype(options.precision)
        channels = data.train.shape[0] if len(data.train.shape) == 3 else 1
        self._mean, self._std = (np.array(each, self.dtype).reshape(channels, 1) for each in SCALES[name])
        widths = itertools.pairwise((data.train.pixels, *options.hidden, data.classes))
        self.manifest = Manifest.build(
            entry
            for layer, (inputs, outputs) in enumerate(widths)
            for entry in (
                (f"layer{layer}.weight", options.precision, (outputs, inputs), "parameter"),
                (f"layer{layer}.bias", options.precision, (outputs,), "parameter"),
            )
        )

    @cached_property
    def data_sha256(self) -> str:
        return self._train.sha256()

    def initial(self) -> bytes:
        """Uniform in +-1/sqrt(inputs), from torch's generator: a Mersenne twister, 24 or 53 bits a number."""
        model = Model(self.manifest, self.dtype)
        source = np.random.RandomState(self.seed & 0xFFFFFFFF)
        for weight, bias in model.layers:
            bound = self.dtype.type(1.0 / math.sqrt(weight.shape[1]))
            for part in (weight, bias):
                part[...] = _uniform(source, part.size, self.dtype).reshape(part.shape) * (bound + bound) - bound
        return model.flat.tobytes()

    def evaluate(self, model: Buffer) -> Evaluation:
        net = Model(self.manifest, self.dtype)
        net.flat[:] = np.frombuffer(model, self.dtype)
        images, labels = self._test.images(), self._test.labels()
        loss, right = 0.0, 0
        for begin in range(0, len(labels), EVALUATION_BATCH):
            part = slice(begin, begin + EVALUATION_BATCH)
            logits, truth = net.forward(self.normalised(images[part]))[-1], labels[part]
            likely = _log_softmax(logits)
            loss -= float(likely[np.arange(len(truth)), truth].sum())
            right += int((logits.argmax(1) == truth).sum())
        return Evaluation(len(labels), loss / len(labels), right / len(labels), "cross-entropy")

    def batch(self, which: NDArray[np.integer]) -> tuple[Floats, NDArray[np.uint8]]:
        """Return inputs (batch, pixels) and labels of training samples."""
        return self.normalised(self._train.images()[which]), self._train.labels()[which]

    def normalised(self, images: NDArray[np.uint8]) -> Floats:
        """Return pixels 0..255 as floats of about zero mean and unit variance."""
        pixels = images.reshape(len(images), len(self._mean), -1).astype(self.dtype)
        return ((pixels - self._mean) / self._std).reshape(len(images), -1)

    def learner(self) -> PlainLearner:
        return PlainLearner(self)


class Model:
    """The network: one flat vector in the manifest's layout, its gaps zero, and its views as layers."""

    def __init__(self, manifest: Manifest, dtype: np.dtype[np.floating]) -> None:
        self.flat = np.zeros(manifest.nbytes // dtype.itemsize, dtype)
        views = []
        for spec in manifest.tensors:
            begin = spec.offset // dtype.itemsize
            views.append(self.flat[begin : begin + spec.items].reshape(spec.shape))
        self.layers = list(zip(views[0::2], views[1::2], strict=True))  # (weight, bias)

    def forward(self, x: Floats) -> list[Floats]:
        """Return the input and what comes out of each layer."""
        out = [x]
        for weight, bias in self.layers[:-1]:
            out.append(np.maximum(out[-1] @ weight.T + bias, 0))
        weight, bias = self.layers[-1]
        return [*out, out[-1] @ weight.T + bias]

    def backward(self, outputs: list[Floats], slope: Floats, gradient: Model) -> None:
        """Add to the gradient; `slope` is that of the loss at the last output."""
        for i, (weight, bias) in reversed([*enumerate(gradient.layers)]):
            weight += slope.T @ outputs[i]
            bias += slope.sum(axis=0)
            if i:
                slope = (slope @ self.layers[i][0]) * (outputs[i] > 0)


class PlainLearner:
    """A model in training; see paceline.tasks.Learner."""

    def __init__(self, task: PlainImages) -> None:
        self._task, self._options = task, task.options
        self._model, self._gradient = Model(task.manifest, task.dtype), Model(task.manifest, task.dtype)
        self._momentum = np.zeros_like(self._model.flat)  # sgd: velocity; adam: first moment
        self._square = np.zeros_like(self._model.flat)  # adam: second moment
        self._steps = 0
        self.at_once = 0

    def load(self, model: Buffer, rho: float = 0.0) -> None:
        self._model.flat[:] = np.frombuffer(model, self._model.flat.dtype)
        self._rho, self._origin = rho, self._model.flat.copy() if rho else None
        self._momentum[:] = self._square[:] = 0.0
        self._steps = 0

    def step(self, indices: Indices) -> None:
        self._gradient.flat[:] = 0.0
        for part, share in parts(np.asarray(indices, dtype=np.int64), self.at_once):
            x, labels = self._task.batch(part)
            outputs = self._model.forward(x)
            slope = np.exp(_log_softmax(outputs[-1]))
            slope[np.arange(len(labels)), labels] -= 1.0
            slope *= share / len(labels)  # of the mean over the samples
            self._model.backward(outputs, slope, self._gradient)
        if self._origin is not None:
            self._gradient.flat += self._rho * (self._model.flat - self._origin)
        self._steps += 1
        self._sgd() if self._options.optimizer == "sgd" else self._adam()

    def dump(self, out: bytearray | memoryview) -> None:
        memoryview(out)[:] = self._model.flat.view(np.uint8)  # type: ignore[call-overload]  # arrays are buffers

    def _sgd(self) -> None:
        self._momentum *= self._options.momentum
        self._momentum += self._gradient.flat
        self._model.flat -= self._options.learning_rate * self._momentum

    def _adam(self) -> None:
        gradient = self._gradient.flat
        self._momentum += (1.0 - BETA1) * (gradient - self._momentum)
        self._square *= BETA2
        self._square += (1.0 - BETA2) * (gradient * gradient)
        spread = np.sqrt(self._square) / math.sqrt(1.0 - BETA2**self._steps) + EPSILON
        self._model.flat -= self._options.learning_rate / (1.0 - BETA1**self._steps) * self._momentum / spread


def _log_softmax(logits: Floats) -> Floats:
    below = logits - logits.max(axis=1, keepdims=True)
    likely: Floats = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    return likely


def _uniform(source: np.random.RandomState, count: int, dtype: np.dtype[np.floating]) -> Floats:
    """Return numbers in [0, 1) as torch makes them of the generator's 32-bit words."""
    if dtype == np.float32:
        return ((np.frombuffer(source.bytes(4 * count), "<u4") & 0xFFFFFF) * 2.0**-24).astype(dtype)
    words = np.frombuffer(source.bytes(8 * count), "<u4").astype(np.uint64)
    return (((words[0::2] << np.uint64(32)) | words[1::2]) & np.uint64((1 << 53) - 1)) * 2.0**-53
