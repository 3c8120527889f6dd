# SPDX-License-Identifier: Apache-2.0
"""A board with faults whose trainer works in steps: it is sent tensors by the host, and gives some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline import machine as m
from paceline_host.simulation.chaos.board import ChaosBoard

SOON_S = 0.001  # between what a trainer is told and what it says, computing apart
TEXT_BYTES = 1 << 16  # of what the host says


class SteppingBoard(ChaosBoard):
    """A subclass says what its trainer does: `begins`, `takes`, `stops`."""

    def __init__(self, *of_board: Any) -> None:
        super().__init__(*of_board)
        self._spent_us = self._spent = 0  # microseconds and samples computed under the lease
        self._busy = False  # it looks at nothing else
        self._pending: list[tuple[m.StoreTensor, bytes]] = []  # what it is still to look at

    def begins(self) -> None:
        """Work under a lease begins; the model that came with it is in `_base`."""
        raise NotImplementedError

    def takes(self, given: m.StoreTensor, data: bytes) -> None:
        """The trainer looks at a tensor that it was given."""
        raise NotImplementedError

    def stops(self) -> None:
        """The trainer has let go of its work, or is no more."""

    # What its trainer does ------------------------------------------------------------------------------------------

    def when(self, delay_s: float, call: Callable[[], None]) -> None:
        """Let the trainer do something after a while, if it still works on the same, is alive and awake."""
        work = self._work
        self.clock.later(delay_s, lambda: self._awake(lambda: call() if self.alive and work == self._work else None))

    def go_on(self) -> None:
        """Look at what is there, until something keeps the trainer busy."""
        while self._pending and not self._busy and self.is_working:
            self.takes(*self._pending.pop(0))

    def compute(self, samples: int, then: Callable[[], None], *, waits: bool, share: float = 1.0) -> None:
        """Compute a part of what samples take; `waits`: for others, then."""
        begin_us, lease = self._now_us(), self.is_working
        self.step(m.WorkEdge(lease, True, begin_us))

        def is_done() -> None:
            self._spent_us += self._now_us() - begin_us
            self._spent += samples if waits else 0
            self.step(m.WorkEdge(lease, False, self._now_us(), waits))
            self.step(m.WorkProgress(lease, self._spent))
            then()

        self.when(self.model.seconds(self._round, samples) * share if samples else SOON_S, is_done)

    def gives(self, step: int, redraw: int, what: str, data: bytes) -> None:
        """Put a tensor out."""
        self._update, self.gave_s = data, self.clock.now_s
        self.step(m.WorkTensor(self.is_working, step, redraw, what, len(data)))

    def ends_work(self, update: bytes, result: bytes, steps: int) -> None:
        """The trainer is done with its lease: it gives `update`, and a hash of `result`."""
        lease, self.is_working, self._update = self.is_working, 0, update
        self.stops()
        self._says_done(lease, self._spent, max(1, steps), self._spent_us + 1, result)

    # Actions --------------------------------------------------------------------------------------------------------

    def _begin_steps(self, action: m.StartWork) -> None:
        if self.hangs or not self._has_trainer:  # its agent is about to hear of that
            return
        self._end_work()
        self.account.settle(self._now_us())
        self._round, self._ranges, self.is_working = action.round, action.ranges, action.lease
        self._spent_us = self._spent = 0
        self._busy, self._pending = False, []
        self.begins()

    def _end_work(self) -> None:
        super()._end_work()
        self.stops()

    def _take_tensor(self, action: m.StoreTensor) -> None:
        if action.offset == 0:
            self._tensor = bytearray(action.size)
        self._tensor[action.offset : action.offset + len(self._payload)] = self._payload
        if action.whole and action.lease == self.is_working:
            data = bytes(self._tensor)
            self.when(SOON_S, lambda: self._given(action, data))

    def _given(self, action: m.StoreTensor, data: bytes) -> None:
        self._pending.append((action, data))
        self.go_on()

    _ACTIONS: dict[type[object], Callable[..., None]] = {
        **ChaosBoard._ACTIONS, m.StartWork: _begin_steps, m.StoreTensor: _take_tensor,
    }  # fmt: skip
