# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the tests of paceline.torch; each case runs in processes of its own (tests/ranks.py)."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from paceline.errors import CoreError
from paceline.torch import RoundReporter, SampleMean, UnevenBatchSampler, collate_with_empty, scale_loss


def data(samples: int = 40) -> TensorDataset:
    source = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 6, dtype=torch.float64, generator=source)
    return TensorDataset(x, x[:, :1] * 3 + torch.randn(samples, 1, dtype=torch.float64, generator=source))


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def gradients(module: nn.Module) -> list[float]:
    return [float(value) for p in module.parameters() if p.grad is not None for value in p.grad.flatten()]


def one_step(rank: int, world: int, batches: list[int], how: str, buckets: float = 25.0) -> Any:
    """Return the gradients of one step in which rank r takes batches[r] samples, and those of one process alone."""
    x, y = data()[: sum(batches)]
    begin = sum(batches[:rank])
    part = slice(begin, begin + batches[rank])
    alone = network()
    mse_loss(alone(x), y).backward()  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(network(), bucket_cap_mb=buckets)
    mean = SampleMean()
    if how in ("hook", "both"):
        mean.attach(model)
        mean.counts = batches[rank], sum(batches)
    loss = mse_loss(model(x[part]), y[part]) if batches[rank] or how != "mean of means" else model(x[part]).sum() * 0
    if how in ("loss", "both"):
        loss = scale_loss(loss, batches[rank], sum(batches))
    loss.backward()
    return {"ours": gradients(model.module), "alone": gradients(alone), "loss": loss.item()}


def hook_without_counts(rank: int, world: int) -> Any:
    model = DistributedDataParallel(network())
    SampleMean().attach(model)
    model(data()[:4][0]).sum().backward()


def scaled_then_hook(rank: int, world: int) -> Any:
    """Two models, one for each way, in turn: neither mistakes the other's marks for its own."""
    x, y = data()[:8]
    one, other = DistributedDataParallel(network()), DistributedDataParallel(network())
    mean = SampleMean()
    mean.attach(other)
    for _ in range(3):
        scale_loss(mse_loss(one(x), y), 8, 8 * world).backward()  # type: ignore[no-untyped-call]
        mean.counts = 8, 8 * world
        mse_loss(other(x), y).backward()  # type: ignore[no-untyped-call]
    return True


def train(
    rank: int, world: int, shares: list[int] | None, how: str, minimum: int = 1, rounds: int = 2, clip: float = 0.0
) -> Any:
    """Train with SGD and momentum; return the loss of each step over the union batch, and the samples of each step."""
    dataset = data()
    model = DistributedDataParallel(network())
    sampler = UnevenBatchSampler(len(dataset), batch=12, shares=shares, minimum=minimum, seed=9)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_with_empty(dataset))
    mean = SampleMean()
    if how == "hook":
        mean.attach(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, taken = [], []
    for epoch in range(rounds):
        sampler.set_epoch(epoch)
        taken += [list(batch) for batch in sampler]
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            own, total = sampler.counts(step)
            assert len(x) == own
            optimiser.zero_grad()
            output = model(x)
            loss = mse_loss(output, y)
            total_loss = mse_loss(output, y, reduction="sum").detach() / total
            dist.all_reduce(total_loss)
            losses.append(float(total_loss))
            mean.counts = own, total
            (scale_loss(loss, own, total) if how == "loss" else loss).backward()  # type: ignore[no-untyped-call]
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
    return {"losses": losses, "taken": taken, "weights": [float(v) for p in model.parameters() for v in p.flatten()]}


class Slow(nn.Module):
    """A network that takes so many seconds a sample, half of it in forward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner = network()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds * len(x))
        y: torch.Tensor = self.inner(x)
        return y


def adapt(rank: int, world: int, paces_s: list[float], rounds: int) -> Any:
    """Let the reporter set the shares of ranks of different pace."""
    dataset = data(120)
    model = DistributedDataParallel(Slow(paces_s[rank]))
    sampler = UnevenBatchSampler(len(dataset), batch=60)
    reporter = RoundReporter(model, sampler)
    loader = DataLoader(dataset, batch_sampler=sampler)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    told = []
    for epoch in range(rounds):
        sampler.set_epoch(epoch)
        for x, y in reporter.steps(loader):
            optimiser.zero_grad()
            mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        shares = reporter.end_round()
        figures = reporter.figures
        assert figures is not None
        told.append(
            {
                "shares": shares,
                "cv": figures.forward.step_cv,
                "exposed": figures.exposed_s,
                "ratio": figures.compute.ratio,
            }
        )
        sampler.set_shares(shares)
    return told


def looks(rank: int, world: int) -> Any:
    """Train a round in which two forwards make a loss, and a third one looks at what the step has made of the model."""
    dataset = data(16)
    model = DistributedDataParallel(Slow(0.01))
    sampler = UnevenBatchSampler(len(dataset), batch=16)
    reporter = RoundReporter(model, sampler)
    for x, y in reporter.steps(DataLoader(dataset, batch_sampler=sampler)):
        (mse_loss(model(x), y) + mse_loss(model(x), y)).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            model.module(x)
    shares, figures = reporter.end_round(), reporter.figures
    assert figures is not None
    return {"shares": shares, "forward": figures.forward.slowest_s, "compute": figures.compute.slowest_s}


def rounds_of(rank: int, world: int, steps: list[int]) -> Any:
    """End rounds of so many steps each (an epoch has four); return what each was, with the samples that were seen."""
    dataset = data(64)
    model = DistributedDataParallel(network())
    sampler = UnevenBatchSampler(len(dataset), batch=16, shares=[9, 55])
    reporter = RoundReporter(model, sampler)
    told: list[Any] = []
    for wanted in steps:
        sampler.set_epoch(0)
        seen, left = 0, wanted
        while left:
            for x, y in reporter.steps(DataLoader(dataset, batch_sampler=sampler)):
                mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
                seen, left = seen + len(x), left - 1
                if not left:
                    break
        try:
            reporter.end_round()
            assert reporter.figures is not None
            told.append([seen, reporter.figures.samples[rank]])
        except CoreError as error:
            told.append(str(error))
    return told


class Broken:
    """A controller of somebody's own."""

    def __init__(self, shares: list[int]) -> None:
        self.shares = shares

    def observe(self, i: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Take note of nothing."""

    def allocate(self) -> list[int]:
        if not self.shares:
            raise ZeroDivisionError("my mistake")
        return self.shares


def broken(rank: int, world: int, shares: list[int]) -> Any:
    """End a round with a controller that raises, or gives these shares."""
    dataset = data(16)
    model = DistributedDataParallel(network())
    sampler = UnevenBatchSampler(len(dataset), batch=16)
    reporter = RoundReporter(model, sampler, Broken(shares))
    for x, y in reporter.steps(DataLoader(dataset, batch_sampler=sampler)):
        mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    return reporter.end_round()


class Noted(Broken):
    """One that remembers."""

    joules: dict[int, float | None]

    def observe(self, i: int, seconds: float, energy_j: float | None, samples: int) -> None:
        self.joules[i] = energy_j


def metered(rank: int, world: int, said: list[str | float | None]) -> Any:
    """End a round with meters that say this, rank by rank; a text is raised. Return what rank 0's controller heard."""

    def joules() -> float | None:
        value = said[rank]
        if isinstance(value, str):
            raise OSError(value)
        return value

    dataset = data(16)
    model = DistributedDataParallel(network())
    sampler = UnevenBatchSampler(len(dataset), batch=16)
    controller = Noted([8, 8])
    controller.joules = {}
    reporter = RoundReporter(model, sampler, controller, joules=joules)
    for x, y in reporter.steps(DataLoader(dataset, batch_sampler=sampler)):
        mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shares = reporter.end_round()
    return {"shares": shares, "heard": list(controller.joules.items()), "told": [str(one.message) for one in told]}
