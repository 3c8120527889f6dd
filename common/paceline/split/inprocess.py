# SPDX-License-Identifier: Apache-2.0
"""Split training of K clients in one process: the same schedules and the same steps as over the link, without one.

For tests and for experiments about learning, not about time: who computes when plays no part here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.batches import Schedule, schedule
from paceline.deviation import EpochLabels, StepDeviation
from paceline.errors import DataError, SettingsError
from paceline.local_draw import LocalDraw
from paceline.split import Upload
from paceline.split.client import SplitClient
from paceline.split.host import SplitHost
from paceline.tasks import Evaluation, SplitTask

GROUP = 0  # the key under which clients compute together


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to."""

    epoch: int
    steps: int
    samples: int
    loss: float  # mean over the samples, each before its step
    batches: tuple[int, ...]  # of each step: what the method made of the batch that was asked for
    deviations: tuple[StepDeviation, ...]  # of each step's labels from all clients' labels
    evaluation: Evaluation | None  # after the epoch; None where none was asked for


def train(
    task: SplitTask,
    clients: Sequence[Sequence[int] | NDArray[np.int64]],
    method: str,
    batch: int,
    epochs: int,
    *,
    seed: int = 1,
    together: bool = True,
    evaluate_every: int = 1,
    wire_dtype: str = "float32",
    device: str = "cpu",
    told: Callable[[Epoch], object] = lambda epoch: None,
    plan: Callable[[str, Sequence[int], int, int, int], Schedule] = schedule,
    weight: Callable[[int], float] = lambda samples: 1.0,
    after_step: Callable[[int, int, SplitHost], object] = lambda epoch, step, host: None,
) -> tuple[list[Epoch], SplitHost]:
    """Train from the task's first weights; return the epochs and the host with the model.

    `clients`: the sample numbers of each. `together`: the clients of a step compute as one, which is much faster and
    the same up to rounding; otherwise each for itself, as over the link. The last epoch is always evaluated unless
    `evaluate_every` is 0. For studies: `plan` makes an epoch's steps of (method, sizes, batch, seed, epoch), `weight`
    is that of a step's gradient by its samples, and `after_step` hears of epoch, step and host. Raises SettingsError,
    CoreError as `schedule` does, DataError for a sample held twice.
    """
    pools = [np.asarray(own, np.int64) for own in clients]
    every = np.concatenate(pools)
    if len(np.unique(every)) != len(every) or every.min() < 0 or every.max() >= task.samples:
        raise DataError(f"the clients' samples must differ and lie in 0 to {task.samples - 1}")
    totals = np.bincount(np.asarray(task.labels())[every], minlength=task.classes).tolist()
    sizes = [len(own) for own in pools]
    if method == "central":
        pools = [every]
    host, client = SplitHost(task, wire_dtype, device), SplitClient(task, wire_dtype, device)
    done = []
    for epoch in range(epochs):
        steps = plan(method, sizes, batch, seed, epoch)
        orders = [own[local_order(seed, k, epoch, len(own))] for k, own in enumerate(pools)]
        used = [0] * len(pools)
        labels, batches, total = EpochLabels(task.classes), [], 0.0
        for number, (ids, counts) in enumerate(steps):
            work = {}
            for k, count in zip(ids, counts, strict=True):
                work[k] = orders[k][used[k] : used[k] + count]
                used[k] += count
            if together:
                work = {GROUP: np.concatenate(list(work.values()))}
            step = _step(host, client, work, epoch, weight(sum(counts)))
            labels.add(step[0])
            batches.append(step[1])
            total += step[1] * step[2]
            after_step(epoch, number, host)
        due = evaluate_every and (epoch == epochs - 1 or (epoch + 1) % evaluate_every == 0)
        judged = task.evaluate(host.model(), device) if due else None
        mean_loss, deviations = total / sum(batches), tuple(labels.deviations(totals))
        done.append(Epoch(epoch, len(batches), sum(batches), mean_loss, tuple(batches), deviations, judged))
        told(done[-1])
    return done, host


def check_device(device: str) -> None:
    """Raise SettingsError where torch cannot compute on a device."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # as torch says that it was built without it
        why = str(error).splitlines()[0]
        raise SettingsError(
            [f'device {device!r} cannot be used here ({why}); take "cpu", or a torch that knows it']
        ) from None


def pass_over(
    task: SplitTask, host: SplitHost, clients: Sequence[Sequence[int] | NDArray[np.int64]], batch: int, *, seed: int,
    epoch: int, wire_dtype: str = "float32", device: str = "cpu",
) -> None:  # fmt: skip
    """Show the model all samples in exact batches without learning from them: BatchNorm's statistics become theirs.

    Only for a plain gradient step: momentum and Adam would move the weights all the same.
    """
    every = np.concatenate([np.asarray(own, np.int64) for own in clients])
    order = every[local_order(seed, 0, epoch, len(every))]
    client = SplitClient(task, wire_dtype, device)
    for begin in range(0, len(order), batch):
        _step(host, client, {GROUP: order[begin : begin + batch]}, epoch, 0.0)


def _step(
    host: SplitHost, client: SplitClient, work: dict[int, NDArray[np.int64]], epoch: int, weight: float
) -> tuple[tuple[int, ...], int, float]:
    """Do one step in the order in which it happens over the link; return labels by class, samples, loss."""
    client.load(host.client_part())
    uploads = [Upload(k, len(own), client.forward(k, own.tolist(), epoch)) for k, own in work.items()]
    step = host.step(uploads)
    host.commit({k: client.backward(k, step.gradients[k]) for k in step.clients}, weight)
    return step.labels, step.samples, step.loss


def local_order(seed: int, client: int, epoch: int, samples: int) -> NDArray[np.uint32]:
    """Return the order in which a client uses its samples in an epoch: its own permutation, of its own stream."""
    return np.array(LocalDraw(samples, seed, epoch, client).draw(samples), np.uint32)
