# SPDX-License-Identifier: Apache-2.0
"""Measures a rank's steps under DistributedDataParallel and turns them into the next shares.

Forward, compute (from the first forward's begin until the last local gradient) and exposed synchronisation (from there
until the last sum) are separate; waiting is never taken for work. At a round's end all ranks exchange their reports;
rank 0 asks the controller, which is one in this process, or a host (paceline_host.host_controller).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.controller import Controller
from paceline.errors import CoreError, PacelineError
from paceline.torch.gradients import SampleMean
from paceline.torch.sampler import UnevenBatchSampler
from paceline.uneven import Imbalance, imbalance

Batch = TypeVar("Batch")
FORWARD, COMPUTE, EXPOSED = range(3)
TEXT_BYTES = 4096  # of what rank 0 tells the others


@dataclass(frozen=True)
class RoundFigures:
    """What a round was, over all ranks; the same on each of them. Seconds."""

    forward: Imbalance
    compute: Imbalance
    exposed_s: tuple[float, ...]  # of each rank: waiting for the others and for the network
    samples: tuple[int, ...]


class Shares(Protocol):
    """What is asked for shares: a paceline.Controller, or a host."""

    def observe(self, i: int, seconds: float, energy_j: float | None, samples: int) -> object:
        """Take what rank i took for its samples of the round."""
        ...

    def allocate(self) -> list[int]:
        """Return the next round's shares. Raises PacelineError."""
        ...


class RoundReporter:
    """Attaches `SampleMean` to a model; go through the loader by `steps`, and end each round with `end_round`."""

    def __init__(
        self, model: DistributedDataParallel, sampler: UnevenBatchSampler, controller: Shares | None = None, *,
        w_energy: float = 0.0, joules: Callable[[], float | None] = lambda: None,
        group: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        """`controller`: of rank 0, which alone asks it; None: one for these ranks with `w_energy`. `joules`: since the
        round began, of computing; None, or where it raises anything: unknown.
        """
        self.mean = SampleMean(group)
        self.mean.attach(model)
        self.figures: RoundFigures | None = None
        self.controller = controller or Controller(
            participants=sampler.world, budget=sampler.budget, w_energy=w_energy, minimum=sampler.least_share
        )
        self._sampler, self._joules, self._group = sampler, joules, group
        self._begin_s = self._forward_s = self._forward_from_s = 0.0
        self._given: list[int] = []  # samples of each rank in the step that is under way
        self._rows: list[tuple[float, float, float]] = []
        self._samples = [0] * sampler.world  # in these rows
        model.module.register_forward_pre_hook(self._forward_begins)
        model.module.register_forward_hook(self._forward_ends)

    def _forward_begins(self, module: Any, inputs: Any) -> None:
        self._forward_from_s = time.monotonic()
        if self._is_at_work and not self._begin_s:
            self._begin_s = self._forward_from_s

    def _forward_ends(self, module: Any, inputs: Any, outputs: Any) -> None:
        if self._is_at_work:
            self._forward_s += time.monotonic() - self._forward_from_s

    @property
    def _is_at_work(self) -> bool:
        """The step's gradients are yet to come. A forward after them, to look at results, is none of the step."""
        return self.mean.counts is not None

    def steps(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a round's loader; each is one forward, one backward and one optimiser step.

        All ranks may leave the loop early, or go through several loaders: a round is the steps until `end_round`.
        """
        sampler = self._sampler
        for step, batch in enumerate(loader, start=sampler.first_step):
            self._end_step()
            self.mean.counts = sampler.counts(step)
            self._given = [sampler.counts_of(step, rank) for rank in range(sampler.world)]
            self._begin_s = self._forward_s = 0.0
            yield batch
        self._end_step()

    def _end_step(self) -> None:
        """Take note of the step under way, unless it was left before its gradients were there."""
        mean, given = self.mean, self._given
        if given and mean.counts is None:
            self._rows.append((self._forward_s, mean.local_s - self._begin_s, max(0.0, mean.synced_s - mean.local_s)))
            self._samples = [done + count for done, count in zip(self._samples, given, strict=True)]
        self._given, mean.counts = [], None

    def end_round(self) -> list[int]:
        """Exchange reports, let rank 0's controller learn from them, and return the next shares, the same on all ranks.

        Raises CoreError on all ranks where rank 0 got none; the round's figures are there nevertheless. And where no
        step was done.
        """
        self._end_step()
        sampler, rows, samples = self._sampler, self._rows, self._samples
        if not rows:
            raise CoreError("end_round: no step was done since the round began; go through the loader by `steps`")
        self._rows, self._samples = [], [0] * sampler.world
        own = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 3)
        tables = [torch.empty_like(own) for _ in range(sampler.world)]
        dist.all_gather(tables, own, group=self._group)
        report = torch.tensor([self._own_joules()], dtype=torch.float64)
        reports = [torch.empty_like(report) for _ in range(sampler.world)]
        dist.all_gather(reports, report, group=self._group)
        self.figures = RoundFigures(
            imbalance(_column(tables, FORWARD), samples), imbalance(_column(tables, COMPUTE), samples),
            tuple(float(table[:, EXPOSED].sum()) for table in tables), tuple(samples),
        )  # fmt: skip
        shares, failure = [0] * sampler.world, None
        if sampler.rank == 0:
            try:
                for rank, (table, energy) in enumerate(zip(tables, reports, strict=True)):
                    known = None if torch.isnan(energy).item() else float(energy)
                    if samples[rank]:
                        self.controller.observe(rank, float(table[:, COMPUTE].sum()), known, samples[rank])
                shares = _checked(self.controller.allocate(), sampler.world)
            except Exception as error:  # the others wait for an answer, whatever a controller raises
                failure = error
        return self._spread(shares, failure)

    def _own_joules(self) -> float:
        """Return this rank's joules, no number where they are unknown: the others wait, whatever a meter raises."""
        try:
            joules = self._joules()
            return float("nan") if joules is None else float(joules)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            warnings.warn(f"rank {self._sampler.rank}: its joules of this round are unknown: {said}", stacklevel=3)
            return float("nan")

    def _spread(self, shares: list[int], failure: Exception | None) -> list[int]:
        """Return rank 0's shares; raise what it could not get any for."""
        text = _told(failure).encode()[:TEXT_BYTES]
        row = torch.tensor([len(text), *shares], dtype=torch.int64)
        dist.broadcast(row, src=0, group=self._group)
        if length := int(row[0]):
            data = torch.zeros(length, dtype=torch.uint8)
            if text:
                data[:] = torch.tensor(list(text), dtype=torch.uint8)
            dist.broadcast(data, src=0, group=self._group)
            said = bytes(data.tolist()).decode(errors="replace")
            raise CoreError(f"rank 0 got no shares: {said}") from failure
        return [int(share) for share in row[1:]]


def _checked(shares: list[int], world: int) -> list[int]:
    if len(shares) != world:
        raise CoreError(f"the controller gave {len(shares)} shares; expected one for each of {world} ranks")
    return shares


def _told(failure: Exception | None) -> str:
    if failure is None:
        return ""
    return str(failure) if isinstance(failure, PacelineError) else f"{type(failure).__name__}: {failure}"


def _column(tables: list[torch.Tensor], which: int) -> list[list[float]]:
    """Return steps x ranks of one of the measured times."""
    return [[float(seconds) for seconds in row] for row in torch.stack([t[:, which] for t in tables], dim=1)]
