# SPDX-License-Identifier: Apache-2.0
"""For one test: boards of split learning that are lost in a phase of a step.

PACELINE_PLANT is a folder. In the epoch of its number each of FAULTS comes about once, on the boards in turn, in the
board's step 2 (the account: at the epoch's end): it writes a file of that name, and the trainer dies, or stands still,
or finds that its agent breaks the protocol.
"""

import os
import signal
from pathlib import Path
from typing import Any

from paceline.errors import RemoteProtocolError

FAULTS = (
    "before-forward", "after-forward", "after-smashed", "in-backward", "after-update", "account",
    "still-before-forward", "still-after-smashed", "broken-before-forward",
)  # fmt: skip
CLIENTS_A_BOARD = 2
STEP = 2
TARGET = "paceline_agent.workers.psl"


def plant(module: Any) -> None:
    """See sitecustomize."""
    worker = module.PslWorker
    folder = Path(os.environ["PACELINE_PLANT"])
    work, forward, backward = worker.work, worker._forward, worker._backward
    epoch, steps = 0, 0

    def befall(self: Any, phase: str) -> None:
        if epoch >= len(FAULTS) or self._clients[0] != epoch % 3 * CLIENTS_A_BOARD:
            return
        mark = folder / FAULTS[epoch]
        planned = mark.name.removeprefix("still-").removeprefix("broken-")
        if planned != phase or mark.exists() or (steps != STEP and phase != "account"):
            return
        mark.touch()
        if mark.name.startswith("broken-"):
            raise RemoteProtocolError("as planted")
        os.kill(os.getpid(), signal.SIGSTOP if mark.name.startswith("still-") else signal.SIGKILL)

    def work_here(self: Any, given: Any, *more: Any) -> Any:
        nonlocal epoch, steps
        epoch, steps = given.ranges[0][0], 0
        computed_forward, computed_backward = self._client.forward, self._client.backward

        def forward_here(*arguments: Any) -> Any:
            out = computed_forward(*arguments)
            befall(self, "after-forward")
            return out

        def backward_here(*arguments: Any) -> Any:
            out = computed_backward(*arguments)
            befall(self, "in-backward")
            return out

        self._client.forward, self._client.backward = forward_here, backward_here
        try:
            left = work(self, given, *more)
        finally:
            self._client.forward, self._client.backward = computed_forward, computed_backward
        befall(self, "account")
        return left

    def forward_step(self: Any, *arguments: Any) -> None:
        nonlocal steps
        steps += 1
        befall(self, "before-forward")
        forward(self, *arguments)
        befall(self, "after-smashed")

    def backward_step(self: Any, *arguments: Any) -> None:
        backward(self, *arguments)
        befall(self, "after-update")

    worker.work, worker._forward, worker._backward = work_here, forward_step, backward_step
