# SPDX-License-Identifier: Apache-2.0
"""How long messages take between a board and its host: one at a time at a rate, then a latency. Moves no bytes itself,
and loses none: links that break are in `chaos.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline_host.simulation.clock import Call, Clock


@dataclass(frozen=True)
class LinkModel:
    """What one direction of a board's link is like. `weight`: each byte of a model counts as so many."""

    latency_s: float
    bytes_per_s: float
    weight: float = 1.0


class Line:
    """One direction. What is sent later never arrives earlier."""

    def __init__(self, clock: Clock, model: LinkModel) -> None:
        self._clock, self._model = clock, model
        self._free_s = 0.0  # until then it is sending

    def send(self, header_bytes: int, payload_bytes: int, arrive: Call) -> None:
        """Let `arrive` happen when a message of that size has come over."""
        model, now_s = self._model, self._clock.now_s
        nbytes = header_bytes + payload_bytes * model.weight
        self._free_s = (max(now_s, self._free_s)) + nbytes / model.bytes_per_s
        self._clock.at(self._free_s + model.latency_s, arrive)
