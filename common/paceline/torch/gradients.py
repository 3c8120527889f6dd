# SPDX-License-Identifier: Apache-2.0
"""The gradient of the mean over all ranks' samples, whatever the batch sizes (DECISIONS 20). Use one of two:

`scale_loss` under DistributedDataParallel's own averaging, or the communication hook `SampleMean`, which leaves the
loss as it is. Both at once would scale twice; that is found in the first backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import CoreError

TWICE = "the loss was scaled by scale_loss and the gradients are by SampleMean; use one of them"
_ADDED = dist.AllreduceOptions()  # its default is the sum
_scaled = False  # the backward pass that is under way began at a loss that was scaled


class _Scaled(torch.autograd.Function):
    """Times a factor; its backward leaves a mark that the hook, which runs in the same pass, can see."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return loss * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        global _scaled
        _scaled = True
        torch.autograd.Variable._execution_engine.queue_callback(_forget)
        return gradient * ctx.factor, None


def _forget() -> None:
    global _scaled
    _scaled = False


def scale_loss(loss: torch.Tensor, own: int, total: int, world: int | None = None) -> torch.Tensor:
    """Return a mean-reduced loss over `own` samples as one whose averaged gradients are those of the mean over `total`.

    `world`: ranks; None: of the default group. No samples: the loss is 0 and so are its gradients.
    """
    if world is None:
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    factor = weight(own, total, world)
    if own == 0:
        loss = torch.nan_to_num(loss)  # the mean over nothing is no number, and 0 times it neither
    scaled: torch.Tensor = _Scaled.apply(loss, factor)  # type: ignore[no-untyped-call]
    return scaled


def weight(own: int, total: int, world: int) -> float:
    """Return what a mean over `own` samples counts, where ranks are averaged, in the mean over `total`."""
    _check(own, total)
    return world * own / total


class SampleMean:
    """Communication hook: sums b_i / B times each rank's gradients. Before each backward pass, say `counts`."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.counts: tuple[int, int] | None = None  # of the step to come: samples of this rank, of all
        self.local_s = 0.0  # when the last local gradient of the step was there (monotonic)
        self.synced_s = 0.0  # when the last sum of the step was there
        self.before_sync: Callable[[], bool] = lambda: True  # called as the last gradient is there; False: no exchange

    def attach(self, model: DistributedDataParallel) -> None:
        """Let a model's gradients pass here."""
        model.register_comm_hook(self, _reduce)

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if _scaled:
            _forget()
            raise CoreError(TWICE)
        if self.counts is None:
            raise CoreError("SampleMean: the batch sizes of this step are not known; set `counts` before each backward")
        own, total = self.counts
        _check(own, total)
        buffer: torch.Tensor = bucket.buffer()
        if own:
            buffer.mul_(own / total)
        else:
            buffer.zero_()
        last = bucket.is_last()
        wanted = self.before_sync() if last else True
        if last:
            self.counts = None
            self.local_s = time.monotonic()
        if not wanted:
            self.synced_s = self.local_s
            return _completed(buffer)
        work = _sum(buffer, self._group)
        if not last:
            summed: torch.futures.Future[torch.Tensor] = work.get_future().then(_the_one)
            return summed
        # Nothing is left to be computed meanwhile, and a callback, which gloo's thread would run, costs more than this.
        work.wait()
        self.synced_s = time.monotonic()
        return _completed(buffer)


def _sum(buffer: torch.Tensor, group: dist.ProcessGroup | None) -> Any:
    """Begin to add up a buffer of all ranks; dist.all_reduce would check and log first, a third of the hook's time."""
    world = dist.group.WORLD if group is None else group
    assert world is not None
    return world.allreduce([buffer], _ADDED)


def _the_one(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    (summed,) = future.value()
    return summed


def _completed(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


def _reduce(state: SampleMean, bucket: Any) -> Any:
    return state._reduce(bucket)


# torch compares annotations with its own classes, and ours are texts until somebody asks for more.
_reduce.__annotations__ = {"bucket": vars(dist)["GradBucket"], "return": torch.futures.Future[torch.Tensor]}


def _check(own: int, total: int) -> None:
    if not 0 <= own <= total or total < 1:
        raise CoreError(f"{own} of {total} samples in a step; expected 0 to all of them, and one at least in all")
