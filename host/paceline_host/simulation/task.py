# SPDX-License-Identifier: Apache-2.0
"""A task of four floats that nobody trains: its updates are as small as can be, and verified like any other's."""

from __future__ import annotations

import struct

from paceline.tasks import Buffer, Evaluation, Learner
from paceline.tensors import Manifest

NAME = "simulated"
STEP = 1.0 / 4096.0  # what a step of training adds to each number: norms per step are alike, as the host expects
_FLOATS = struct.Struct("<4f")


class TrivialTask:
    """See paceline.tasks.Task. `samples` of a data set that does not exist."""

    def __init__(self, samples: int, reference_s: float) -> None:
        self.samples = samples
        self.manifest = Manifest.build([("weight", "float32", (4,), "parameter")])
        self.digest = self.manifest.digest()
        self.reference_seconds_per_sample = reference_s
        self.data_label = "none: simulated"

    def initial(self) -> bytes:
        return _FLOATS.pack(0.0, 0.0, 0.0, 0.0)

    def evaluate(self, model: Buffer) -> Evaluation:
        return Evaluation(0, 0.0, None, "none")

    def trained(self, model: Buffer, steps: int) -> bytes:
        """Return what so many steps make of a model."""
        return _FLOATS.pack(*(number + STEP * steps for number in _FLOATS.unpack(model)))

    def learner(self) -> Learner:
        raise NotImplementedError("nothing is trained in a simulation")
