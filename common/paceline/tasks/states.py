# SPDX-License-Identifier: Apache-2.0
"""Layout of the state of synchronised training: model, optimiser memory, number of steps. Loads no torch."""

from __future__ import annotations

import struct

from paceline.tasks import Buffer

STEPS = struct.Struct("<Q")


def memory_of(state: Buffer, model_bytes: int) -> memoryview:
    """Return what a state has of the optimiser's memory."""
    return memoryview(state).cast("B")[model_bytes : -STEPS.size]
