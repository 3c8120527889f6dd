# SPDX-License-Identifier: Apache-2.0
"""For one test: a rank that stands still in the middle of its second step, until somebody wakes it.

PACELINE_PLANT is a file, to which the last of three ranks writes its number of process first.
"""

import os
import signal
from pathlib import Path
from typing import Any

TARGET = "paceline_agent.workers.group"


def plant(module: Any) -> None:
    """See sitecustomize."""
    mark = Path(os.environ["PACELINE_PLANT"])
    forward, steps = module.Group._forward, 0

    def still_forward(self: Any, x: Any) -> Any:
        nonlocal steps
        output = forward(self, x)
        steps += 1
        if steps == 2 and self._rank == 2 and not mark.exists():
            mark.with_suffix(".new").write_text(str(os.getpid()), "utf-8")
            mark.with_suffix(".new").rename(mark)
            os.kill(os.getpid(), signal.SIGSTOP)
        return output

    module.Group._forward = still_forward
