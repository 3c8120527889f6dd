# SPDX-License-Identifier: Apache-2.0
"""For one test: ranks that die or diverge in the middle of a step.

PACELINE_PLANT is a folder. In each group of three the next of PHASES that no file there names comes about, in the
second step: a rank writes that file and is killed in that phase, or loses its loss. "between": as the step begins,
when the others exchange what DDP has learned from the first one.
"""

import os
import signal
from pathlib import Path
from typing import Any

PHASES = {"forward": 1, "backward": 2, "all-reduce": 1, "nan": 2, "between": 0}  # who; three failures bar a board


TARGET = "paceline_agent.workers.group"


def plant(module: Any) -> None:
    """See sitecustomize."""
    wrap = module.Group.wrap

    def wrap_and_plant(self: Any, network: Any, *loss: Any) -> None:
        wrap(self, network, *loss)
        if len(self._names) == 3:
            _plant(self, network)

    module.Group.wrap = wrap_and_plant


def _plant(group: Any, network: Any) -> None:
    folder = Path(os.environ["PACELINE_PLANT"])
    left = [name for name in PHASES if not (folder / name).exists()]
    if not left or group._rank != PHASES[left[0]]:
        return
    mark, steps = folder / left[0], 0

    def is_time(phase: str) -> bool:
        if steps != 2 or phase != mark.name or mark.exists():
            return False
        mark.touch()
        return True

    def after_forward(module: Any, inputs: Any, output: Any) -> Any:
        nonlocal steps
        steps += 1
        if is_time("forward"):
            _die()
        return output * float("nan") if is_time("nan") else output

    def in_backward(gradient: Any) -> None:
        if is_time("backward"):
            _die()

    def all_reduce(state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(len(group._names))
        work = group._world.allreduce([buffer])  # it is under way: the others have this rank's part, or a part of it
        if is_time("all-reduce"):
            _die()
        return work.get_future().then(lambda future: future.value()[0])

    step, begun = group.step, 0

    def begin_step(*arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 2 and mark.name == "between" and not mark.exists():
            mark.touch()
            _die()
        return step(*arguments)

    group.step = begin_step
    network.register_forward_hook(after_forward)
    next(network.parameters()).register_hook(in_backward)
    if mark.name == "all-reduce":
        all_reduce.__annotations__.clear()  # torch would compare them with its own classes
        group._model.register_comm_hook(None, all_reduce)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
