# SPDX-License-Identifier: Apache-2.0
"""What a rank measures for `paceline bench ddp`: steps with our hook beside plain ones, groups that form. A program.

    python -m paceline_agent.workers.group_cost RANK WORLD TURNS

Rank 0 writes its store's port for each group that forms, and last its figures, in microseconds, as JSON lines; the
others read ports.
In each turn one step goes through DistributedDataParallel as it is, one as ranks of a run go (`Group.step`), and one as
a script does that has attached `SampleMean`; so whatever else the machine does meanwhile is done to all. With TURNS 0
groups form, and after each the last rank is gone in a step.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator

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
WAYS = "plain", "rank", "hook"
Times = tuple[float, float]  # seconds, seconds of processors


def main(rank: int, world: int, turns: int) -> None:
    """Measure; rank 0 prints."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    x, y = torch.randn(BATCH, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (BATCH,))
    if turns:
        module = network()
        group = formed(rank, world, module)
        taken = list(steps(group, module, x, y, turns, world))
        found = {
            name + unit: [times[which][i] for times in taken]
            for which, name in enumerate(WAYS)
            for i, unit in enumerate(("", "_cpu"))
        }
        group.close()
    else:
        found = dict(zip(("form", "again"), groups(rank, world, x, y), strict=True))
    if rank == 0:
        for name, values in found.items():  # each less than a pipe holds: without a buffer, more may be cut
            print(json.dumps({name: [round(1e6 * seconds) for seconds in values]}), flush=True)


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


def steps(
    group: Group, module: nn.Module, x: torch.Tensor, y: torch.Tensor, turns: int, world: int
) -> Iterator[list[Times]]:
    """Yield the times of a step in each of WAYS."""
    plain, hooked = (DistributedDataParallel(network(), broadcast_buffers=False) for _ in range(2))
    mean = SampleMean()
    mean.attach(hooked)

    def with_hook() -> None:
        mean.counts = BATCH, BATCH * world
        cross_entropy(hooked(x), y).backward()  # type: ignore[no-untyped-call]

    ways: list[tuple[nn.Module, Callable[[], object]]] = [
        (plain, lambda: cross_entropy(plain(x), y).backward()),  # type: ignore[no-untyped-call]
        (module, lambda: step(group, x, y, world)),
        (hooked, with_hook),
    ]
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.01) for model, _ in ways]

    def one(which: int) -> Times:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        optimisers[which].zero_grad()
        ways[which][1]()
        optimisers[which].step()
        return time.perf_counter() - began_s, time.process_time() - cpu_s

    for turn in range(turns):
        times = {which % len(ways): one(which % len(ways)) for which in range(turn, turn + len(ways))}
        yield [times[which] for which in range(len(ways))]  # none is always the one that finds another's caches


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
