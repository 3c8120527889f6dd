# SPDX-License-Identifier: Apache-2.0
"""One silo's rounds: a machine of ranks whose boards come and go, and whose rounds begin and end, as it is told. Pure.

What happens inside a round (groups, lost ranks, deals, the state that a leader gives) is RankMachine's. What differs:
the boards and their sessions are the silos' machine's, a round is over for all silos together, and a silo that nobody
comes back to gives its round up instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline_host import steps as s
from paceline_host.boards import Board
from paceline_host.ddp.machine import RankMachine
from paceline_host.ddp.steps import RankFacts, StateKept, StateRefused, Told
from paceline_host.hfl.silos import SLICES, Silo, SiloSlice
from paceline_host.hfl.steps import BeginRound, BoardReady, Halt, Lapse, Settle
from paceline_host.planner import Planner

IDLE, CLOSED, LAPSED = "idle", "closing", "lapsed"  # beside the phases "planning" and "working" of every machine


class SiloRanks(RankMachine):
    """`boards` are all of the run, shared with the silos' machine; those of other silos do not exist for this one."""

    def __init__(
        self, silo: Silo, facts: s.RunFacts, ranks: RankFacts, planner: Planner, boards: Sequence[Board],
        base_sha256: str, now_s: float, reopened: s.Reopened | None,
    ) -> None:  # fmt: skip
        own = replace(facts, budget=silo.budget, samples=silo.samples)
        names = [board.name for board in boards]
        super().__init__(own, ranks, planner, names, base_sha256, now_s, _of_silo(reopened, silo))
        self.silo = silo
        for index in silo.boards:
            self.boards[index] = boards[index]
        for index in set(range(len(boards))) - set(silo.boards):
            self.boards[index].barred = True
        self.phase = IDLE
        self.state_sha256 = ""  # that it left in the round
        self._lease_number += silo.number << 24
        self._shares: Mapping[int, int] = {}

    @property
    def present(self) -> list[int]:
        """Boards that may be given work."""
        return [index for index in self.silo.boards if self.boards[index].usable]

    @property
    def last_refusal(self) -> str:
        """What was said last of a board that it lost; "": none was lost."""
        return self._last_refusal

    @property
    def due_s(self) -> float:
        """When its group is given up unless a rank makes progress before; without a group: never."""
        return self._group_due_s

    def is_counted(self, kept: tuple[int, int]) -> bool:
        """Tell whether (round, slice) is on disk."""
        return self._is_counted(kept)

    def wakes(self) -> list[float]:
        """Return its own deadlines."""
        return [*self._wakes(), *([self._alone_s] if self._alone_s is not None else [])]

    # What it is told ------------------------------------------------------------------------------------------------

    def _begin_round(self, event: BeginRound, now_s: float) -> None:
        self.round = event.round if event.shares is None else event.round - 1
        if event.shares is not None:
            self._again = ()
        self._shares = event.shares or {}
        self._alone_s, self.state_sha256 = None, ""
        self._plan(now_s)

    def _slices(self, present: Sequence[int]) -> Sequence[SiloSlice]:
        return self.silo.slices(self.round, [(index, self._shares[index]) for index in present])

    def _board_ready(self, event: BoardReady, now_s: float) -> None:
        self._is_ready(event.board, now_s)

    def _board_gone(self, event: s.Gone, now_s: float) -> None:
        self._last_refusal = f"{self.boards[event.board].name}: {event.reason}"
        self._is_gone(event.board, event.reason, now_s)
        if self._alone_s is not None:
            self._alone(now_s)  # perhaps nobody is left who could come back

    def _cancelled(self, event: s.Stop, now_s: float) -> None:
        self._stop_work(event.reason)
        self.phase, self.stage, self._alone_s = IDLE, "", None

    def _time(self, event: s.Tick, now_s: float) -> None:
        self._time_passed(now_s)
        if self._alone_s is not None and now_s >= self._alone_s and not self.stage and not self._waits_on(now_s):
            self._give_up()

    def _kept(self, event: StateKept, now_s: float) -> None:
        self.state_sha256 = event.sha256
        super()._kept(event, now_s)

    def _settled(self, event: Settle, now_s: float) -> None:
        self._settle(self.state_sha256, event.base_sha256, now_s)
        self.phase = IDLE

    # What it does not decide ----------------------------------------------------------------------------------------

    def _alone(self, now_s: float) -> None:
        if all(board.hopeless for board in self.boards):
            self._give_up()
        elif self._alone_s is None:
            self._wait_alone(now_s)
            text = f"no board is left; waiting {self.facts.patience_s:g} s for one to come back"
            self._out.append(s.Note("alone", text))

    def _give_up(self) -> None:
        self.phase, self.stage, self._alone_s = LAPSED, "", None
        self._out.append(Lapse(f"no board is left, the last was {self._last_refusal}"))

    def _stop(self, event: s.Stop, now_s: float) -> None:
        self._out.append(Halt(event.reason))

    def _tell_round_closed(self) -> None:
        """A round is closed, and waiting ends, when all silos are done."""

    _HANDLERS: dict[type[object], Callable[..., None]] = {
        BeginRound: _begin_round, BoardReady: _board_ready, s.Gone: _board_gone, s.Stop: _cancelled, s.Tick: _time,
        Settle: _settled, StateKept: _kept,
        **{kind: RankMachine._HANDLERS[kind] for kind in (s.Said, s.SlicesStored, Told, StateRefused)},
    }  # fmt: skip


def _of_silo(reopened: s.Reopened | None, silo: Silo) -> s.Reopened | None:
    """Return where one silo of a run stands that is taken up."""
    if reopened is None:
        return None
    own: tuple[Any, ...] = tuple(silo.own(item) for item in reopened.open_slices if item.board in silo.boards)
    return replace(
        reopened, closed=not own, open_slices=own, next_index=silo.number * SLICES + reopened.next_index,
        round_seconds=(),
    )  # fmt: skip
