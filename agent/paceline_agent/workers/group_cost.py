# SPDX-License-Identifier: Apache-2.0
"""What a rank measures for `paceline bench ddp`: steps with our hook beside plain ones, groups that form. A program.

    python -m paceline_agent.workers.group_cost RANK WORLD TURNS

Rank 0 writes its store's port for each group that forms, and last its figures, in microseconds, as JSON lines; the
others read ports.
In each turn one step goes through DistributedDataParallel as it is, and one through `SampleMean`, so whatever else
the machine does meanwhile is done to both. With TURNS 0 groups form, and after each the last rank is gone in a step.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator

import torch
import torch._dynamo  # which the first group would load: local fleets have it loaded before, too
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.torch.gradients import SampleMean
from paceline_agent.workers.group import Broken, Group

HERE = "127.0.0.1"
PATIENCE_S = 20.0
BATCH = 32  # samples of a rank in a step, as eleven ranks have in experiments/ddp.toml
WIDTHS = 784, 64, 10  # the demo's network
SERIES = ("plain", 0, 0), ("hook", 1, 0), ("plain_cpu", 0, 1), ("hook_cpu", 1, 1)  # which step, which of its times
Times = tuple[float, float]  # seconds, seconds of processors


def main(rank: int, world: int, turns: int) -> None:
    """Measure; rank 0 prints."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    x, y = torch.randn(BATCH, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (BATCH,))
    if turns:
        module = network()
        group = formed(rank, world, module)
        pairs = list(steps(x, y, turns, world))
        found = {name: [pair[which][i] for pair in pairs] for name, which, i in SERIES}
        group.close()
    else:
        found = dict(zip(("form", "again"), groups(rank, world, x, y), strict=True))
    if rank == 0:
        whole = {name: [round(1e6 * seconds) for seconds in values] for name, values in found.items()}
        print(json.dumps(whole), flush=True)  # less than a pipe holds: without a buffer, more may be cut


def network() -> nn.Sequential:
    """Return the demo's network, the same on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.ReLU(), nn.Linear(*WIDTHS[1:]))


def formed(rank: int, world: int, module: nn.Module) -> Group:
    """Form a group as ranks of a run do."""
    group = Group(rank, [f"rank-{i}" for i in range(world)], HERE, PATIENCE_S)
    if rank == 0:
        print(group.open(), flush=True)
    else:
        group.find(HERE, int(sys.stdin.readline()))
    group.meet({"torch": torch.__version__})
    group.share(bytes(4 * sum(p.numel() for p in module.parameters())))
    group.wrap(module)
    return group


def steps(x: torch.Tensor, y: torch.Tensor, turns: int, world: int) -> Iterator[tuple[Times, Times]]:
    """Yield the times of a plain step and of one with the hook."""
    plain, ours = (DistributedDataParallel(network(), broadcast_buffers=False) for _ in range(2))
    mean = SampleMean()
    mean.attach(ours)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (plain, ours)]

    def one(which: int) -> Times:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        mean.counts = BATCH, BATCH * world
        optimisers[which].zero_grad()
        cross_entropy((plain, ours)[which](x), y).backward()  # type: ignore[no-untyped-call]
        optimisers[which].step()
        return time.perf_counter() - began_s, time.process_time() - cpu_s

    for turn in range(turns):
        first = turn % 2  # neither is always the one that finds the other's caches
        times = one(first), one(1 - first)
        yield times[first], times[1 - first]


def groups(rank: int, world: int, x: torch.Tensor, y: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return the seconds in which groups formed, and in which those that were left of one did a step as another."""
    form_s: list[float] = []
    again_s: list[float] = []
    lost_s = 0.0
    while world > 1:
        module, began_s = network(), time.perf_counter()
        group = formed(rank, world, module)
        form_s.append(time.perf_counter() - began_s)
        step(group, x, y, world)
        if lost_s:
            again_s.append(time.perf_counter() - lost_s)
        step(group, x, y, world)  # by now DDP has its buckets: who is lost before that is missed for a patience
        world -= 1
        if rank == world:
            os._exit(0)  # without a word, as a rank that is killed
        lost_s = time.perf_counter()
        try:
            while True:  # it may have had its part of a step out before it was gone
                step(group, x, y, world + 1)
        except Broken:
            pass
        group.close()
    return form_s, again_s


def step(group: Group, x: torch.Tensor, y: torch.Tensor, world: int) -> None:
    """Let one step's gradients through a group."""
    group.step(x, y, len(x), len(x) * world, lambda: None, lambda: None)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
