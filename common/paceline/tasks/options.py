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

    model: Literal["mlp", "cnn"] = "mlp"
    hidden: Annotated[tuple[Width, ...], Bounds(ge=1, le=8)] = (64,)  # hidden layers, ReLU between
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.05
    momentum: Annotated[float, Bounds(ge=0, lt=1)] = 0.5  # sgd only; forgotten at each round, so little of it helps
    batch: Annotated[int, Bounds(ge=1, le=65_536)] = 8  # samples of one optimiser step
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.0025  # declared, at speed 1.0
    cut: str = ""  # the last part of the model that stays at the clients (split learning); "": not cut
    norm: Literal["auto", "none", "batch", "group"] = "auto"  # auto: batch in ResNets, none elsewhere
    augment: bool = False  # crop out of an edge of one pixel, flip; keyed by (seed, epoch, sample)
    train_samples: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0  # the first so many of the set; 0: all
    test_samples: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0
    precision: Literal["float32", "float64"] = "float32"  # float64: to compare with, slow


@dataclass(frozen=True)
class FashionOptions(MnistOptions):
    """Options of [task] name = "fashion-mnist"."""

    model: Literal["mlp", "cnn"] = "cnn"


@dataclass(frozen=True)
class CifarOptions(MnistOptions):
    """Options of [task] name = "cifar10" and "cifar100"; the paper's are resnet18 and 34, cut = "layer1", batch 128."""

    model: Literal["mlp", "cnn", "resnet18", "resnet34"] = "cnn"  # type: ignore[assignment]  # wider than in MNIST's
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.01
    momentum: Annotated[float, Bounds(ge=0, lt=1)] = 0.0
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.02  # declared, of the cnn at speed 1.0


@dataclass(frozen=True)
class LinearOptions:
    """Options of [task] name = "linear"."""

    samples: Annotated[int, Bounds(ge=1, lt=1 << 32)] = 60_000
    ballast: Annotated[int, Bounds(ge=0, le=1 << 28)] = 0  # floats that travel with the model and are not trained
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.1
    batch: Annotated[int, Bounds(ge=1, le=65_536)] = 32  # samples of one optimiser step
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.001  # declared, at speed 1.0


@dataclass(frozen=True)
class Era5Options:
    """Options of [task] name = "era5": from the hours of a window to the temperature some hours after it."""

    model: Literal["mlp", "gru"] = "mlp"
    window: Annotated[int, Bounds(ge=1, le=720)] = 24  # hours that the model sees
    ahead: Annotated[int, Bounds(ge=1, le=720)] = 6  # hours from the last of them to the one to foretell
    hidden: Annotated[tuple[Width, ...], Bounds(ge=1, le=8)] = (64, 32)  # mlp: layers; gru: the first is its width
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.001
    momentum: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # sgd only
    batch: Annotated[int, Bounds(ge=1, le=65_536)] = 32  # samples of one optimiser step
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.0005  # declared, at speed 1.0
    train_hours: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0  # the first so many of the set; 0: all
    test_hours: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0
    precision: Literal["float32", "float64"] = "float32"  # float64: to compare with, slow


@dataclass(frozen=True)
class ImdbOptions:
    """Options of [task] name = "imdb": is a review good or bad?"""

    model: Literal["bag", "gru"] = "bag"  # bag: the mean of the words' vectors, in no order; gru: word by word, slow
    vocabulary: Annotated[int, Bounds(ge=1, le=20_000)] = 10_000  # the most frequent words; others are one word
    words: Annotated[int, Bounds(ge=1, le=400)] = 400  # of a review, its first ones
    width: Annotated[int, Bounds(ge=1, le=1024)] = 32  # numbers that stand for a word
    hidden: Width = 32  # gru only
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: Annotated[float, Bounds(ge=0, le=100)] = 0.003
    momentum: Annotated[float, Bounds(ge=0, lt=1)] = 0.0  # sgd only
    batch: Annotated[int, Bounds(ge=1, le=65_536)] = 32  # samples of one optimiser step
    reference_seconds_per_sample: Annotated[float, Bounds(gt=0, le=1000)] = 0.004  # declared, at speed 1.0
    train_samples: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0  # the first so many of the set; 0: all
    test_samples: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0
    precision: Literal["float32", "float64"] = "float32"  # float64: to compare with, slow


Options = MnistOptions | LinearOptions | Era5Options | ImdbOptions

OPTIONS: dict[str, type[Options]] = {
    "mnist": MnistOptions,
    "linear": LinearOptions,
    "fashion-mnist": FashionOptions,
    "cifar10": CifarOptions,
    "cifar100": CifarOptions,
    "era5": Era5Options,
    "imdb": ImdbOptions,
}
