# SPDX-License-Identifier: Apache-2.0
"""Is a film review good or bad? Knows torch, the data and its optimiser; no board, round or link."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from paceline.data import Part, open_dataset
from paceline.data.reviews import FIRST, PADDING, UNKNOWN
from paceline.errors import DataError
from paceline.tasks import Buffer, Evaluation, Indices, read_options
from paceline.tasks.options import ImdbOptions
from paceline.tasks.whole import Whole

CLASSES = 2
EVALUATION_BATCH = 500


class Imdb(Whole):
    """The task; see paceline.tasks.Task."""

    def __init__(self, options: Mapping[str, object], seed: int, data_dir: Path | None) -> None:
        self.options = read_options(options, ImdbOptions)
        data = open_dataset("imdb", data_dir).head(self.options.train_samples, self.options.test_samples)
        self._train, self._test = data.train, data.test
        for part in (data.train, data.test):
            if int(part.images().min()) < 0:
                raise DataError(
                    f"{data.label}: a word has a number below 0; make the files anew: `paceline data import`"
                )
        super().__init__(self.options, seed, data.train.samples, data.label)

    @cached_property
    def data_sha256(self) -> str:
        """See paceline.tasks.data_sha256."""
        return self._train.sha256()

    def labels(self) -> NDArray[np.uint8]:
        """Return 0 (bad) or 1 (good) of each training sample."""
        return self._train.labels()

    def module(self) -> nn.Module:
        options = self.options
        rows = FIRST + options.vocabulary
        return Reader(rows, options.width, options.hidden) if options.model == "gru" else Bag(rows, options.width)

    def batch(self, indices: Indices, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._tensors(self._train, np.asarray(indices, dtype=np.int64))

    def _tensors(self, part: Part, which: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return numbers of words (batch, words) and labels."""
        words = part.images()[which, : self.options.words].astype(np.int64)
        words[words >= FIRST + self.options.vocabulary] = UNKNOWN
        return torch.from_numpy(words), torch.from_numpy(part.labels()[which].astype(np.int64))

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, y)

    def evaluate(self, model: Buffer) -> Evaluation:
        module, count = self.trained(model), self._test.samples
        loss, right = 0.0, 0
        with torch.no_grad():
            for begin in range(0, count, EVALUATION_BATCH):
                words, labels = self._tensors(self._test, slice(begin, begin + EVALUATION_BATCH))
                logits = module(words)  # (batch, words) -> (batch, CLASSES)
                loss += float(cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(1) == labels).sum())
        return Evaluation(count, loss / count, right / count, "cross-entropy")


class Bag(nn.Module):
    """The mean of the words' vectors, and a linear layer."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(rows, width, mode="mean", padding_idx=PADDING)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.words(x))
        return out


class Reader(nn.Module):
    """A GRU over the words; the mean of its states at words, not at padding, and a linear layer."""

    def __init__(self, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, width, padding_idx=PADDING)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.words(x))  # (batch, words, hidden)
        there = (x != PADDING).unsqueeze(2).to(states.dtype)
        out: torch.Tensor = self.head((states * there).sum(1) / there.sum(1).clamp_min(1.0))
        return out
