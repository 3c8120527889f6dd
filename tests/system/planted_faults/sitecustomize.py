# SPDX-License-Identifier: Apache-2.0
"""For one test: ranks that die or diverge in the middle of a step, in each process that has this folder in its path.

PACELINE_PLANT is a folder. In each group of three the next of PHASES that no file there names comes about, in the
second step: rank 1 or rank 2, in turn, writes that file and is killed in that phase, or loses its loss.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

PHASES = ("forward", "backward", "all-reduce", "nan")


class _Plant:
    """Changes paceline_agent.workers.group as soon as it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "paceline_agent.workers.group":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            plain(module)
            wrap = module.Group.wrap

            def wrap_and_plant(self: Any, network: Any, *loss: Any) -> None:
                wrap(self, network, *loss)
                if len(self._names) == 3:
                    _plant(self._rank, network, module.dist)

            module.Group.wrap = wrap_and_plant

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _plant(rank: int, network: Any, dist: Any) -> None:
    folder = Path(os.environ["PACELINE_PLANT"])
    left = [name for name in PHASES if not (folder / name).exists()]
    if not left or rank != 1 + PHASES.index(left[0]) % 2:
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

    exchange = dist.all_reduce

    def all_reduce(*arguments: Any, **more: Any) -> Any:
        work = exchange(*arguments, **more)  # it is under way: the others have this rank's part, or a part of it
        if is_time("all-reduce"):
            _die()
        return work

    network.register_forward_hook(after_forward)
    next(network.parameters()).register_hook(in_backward)
    dist.all_reduce = all_reduce


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


sys.meta_path.insert(0, _Plant())
