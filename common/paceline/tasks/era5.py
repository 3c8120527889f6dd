# SPDX-License-Identifier: Apache-2.0
"""Regression on hourly weather at a point: from a window of hours to the temperature some hours later. Knows torch,
data and optimiser; no board, round or link.

A sample is a window without a gap. What the model sees of an hour is the data's columns, each of mean 0 and deviation 1
over the training hours, and sine and cosine of the hour in the day and in the year. The target is the temperature at
2 m, on the same scale; quality is told in kelvin, beside that of persistence (no change until then).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import mse_loss

from paceline.data import Part, open_dataset
from paceline.errors import DataError
from paceline.tasks import Buffer, Evaluation, Indices, networks, read_options
from paceline.tasks.options import Era5Options
from paceline.tasks.whole import Whole

EVALUATION_BATCH = 2000
DAY_H, YEAR_H = 24.0, 24.0 * 365.2425
TARGET = 0  # the column of the temperature, behind that of the hour


class Era5(Whole):
    """The task; see paceline.tasks.Task."""

    def __init__(self, options: Mapping[str, object], seed: int, data_dir: Path | None) -> None:
        self.options = options_ = read_options(options, Era5Options)
        data = open_dataset("era5", data_dir).head(options_.train_hours, options_.test_hours)
        self._part = data.train
        values = data.train.images()[:, 1:].astype(np.float64)
        self._mean, spread = values.mean(axis=0), values.std(axis=0)
        self._spread = np.where(spread > 1e-9 * np.abs(self._mean), spread, 1.0)  # a constant column becomes zeros
        self._train, self._test = (self._windows(part) for part in (data.train, data.test))
        super().__init__(options_, seed, len(self._train), data.label)

    def _windows(self, part: Part) -> Windows:
        rows = part.images()
        hours, values = rows[:, 0].astype(np.float64), rows[:, 1:].astype(np.float64)
        turns = [2.0 * math.pi * hours / period for period in (DAY_H, YEAR_H)]
        clock = np.stack([wave(turn) for turn in turns for wave in (np.sin, np.cos)], axis=1)
        features = np.concatenate([(values - self._mean) / self._spread, clock], axis=1)
        return Windows(features.astype(self.options.precision), hours, self.options.window, self.options.ahead)

    @cached_property
    def data_sha256(self) -> str:
        """See paceline.tasks.data_sha256."""
        return self._part.sha256()

    def labels(self) -> NDArray[np.uint8]:
        """Return the month, 0 to 11, of each sample's target."""
        return self._part.labels()[self._train.targets]

    def module(self) -> nn.Module:
        options, shape = self.options, (self.options.window, self._train.features.shape[1])
        if options.model == "gru":
            return LastState(shape[1], options.hidden[0])
        return nn.Sequential(OrderedDict(networks.mlp(shape, 1, options.hidden)))

    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._train.tensors(np.asarray(indices, dtype=np.int64))

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(output.squeeze(1), y)

    def evaluate(self, model: Buffer) -> Evaluation:
        module, count = self.trained(model), len(self._test)
        squares = 0.0
        with torch.no_grad():
            for begin in range(0, count, EVALUATION_BATCH):
                x, y = self._test.tensors(np.arange(begin, min(begin + EVALUATION_BATCH, count)))
                squares += float(mse_loss(module(x).squeeze(1), y, reduction="sum"))
        kelvin = float(self._spread[TARGET])
        persistence = kelvin * self._test.persistence
        return Evaluation(count, kelvin * math.sqrt(squares / count), None, f"rmse in K, persistence {persistence:.2f}")


class Windows:
    """The samples of a stretch of hours: each start from which `window` hours and `ahead` more follow without a gap."""

    def __init__(self, features: NDArray[np.floating], hours: NDArray[np.float64], window: int, ahead: int) -> None:
        reach = window - 1 + ahead
        if len(hours) <= reach:
            raise DataError(f"{len(hours)} hours hold no window of {window} hours and {ahead} more; take shorter ones")
        self.features = features  # (hours, features)
        self.starts = np.flatnonzero(hours[reach:] - hours[:-reach] == reach)
        if not len(self.starts):
            raise DataError(f"no window of {window} hours and {ahead} more is without a gap; expected hourly rows")
        self.targets = self.starts + reach
        self._window = np.arange(window)

    def __len__(self) -> int:
        return len(self.starts)

    def tensors(self, which: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return windows (batch, window, features) and targets (batch)."""
        x = self.features[self.starts[which, None] + self._window]
        return torch.from_numpy(x), torch.from_numpy(self.features[self.targets[which], TARGET])

    @property
    def persistence(self) -> float:
        """Root mean square of what the temperature changes from a window's last hour to its target."""
        last = self.starts + self._window[-1]
        change = self.features[self.targets, TARGET].astype(np.float64) - self.features[last, TARGET]
        return float(np.sqrt(np.mean(change * change)))


class LastState(nn.Module):
    """A GRU over the hours; its last state gives the answer."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(x)  # (batch, window, width)
        out: torch.Tensor = self.head(states[:, -1])
        return out
