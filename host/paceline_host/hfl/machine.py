# SPDX-License-Identifier: Apache-2.0
"""The rounds of one run of silos: each silo steps by itself, their models meet at the round's end. Pure.

Events go to the machine of the silo that they concern (SiloRanks); what it says goes on, but for what concerns all: the
plans of a round are one commit, the round is closed when the last silo is, and a silo that has lost all its boards lets
its budget lapse for the round (DECISIONS 12). Nothing is moved from one silo to another.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.wire import Failed
from paceline_host import steps as s
from paceline_host.boards import GroupWait
from paceline_host.ddp import paces
from paceline_host.ddp.steps import CloseSteps, RankFacts, StateKept, StateRefused, Told
from paceline_host.hfl.ranks import CLOSED, LAPSED, SiloRanks
from paceline_host.hfl.silos import SLICES, Silo, SiloSlice
from paceline_host.hfl.steps import BeginRound, BoardReady, CloseSilos, Halt, Lapse, Settle, SiloClosed
from paceline_host.muster import Muster
from paceline_host.planner import Planner
from paceline_host.regimes import Slice

NOBODY = "none of its boards was here when the round was planned"


class SiloMachine(Muster):
    """Runs `facts.rounds` rounds over `silos`; `rules`: what LOAD tells the boards of each of its samples."""

    def __init__(
        self, facts: s.RunFacts, ranks: RankFacts, silos: Sequence[Silo], rules: Sequence[Mapping[str, object]],
        planner: Planner, names: Sequence[str], base_sha256: str, now_s: float, reopened: s.Reopened | None = None,
        contents: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`contents`: by board, the digest of its data when the run began; "" or none: not known."""
        super().__init__(facts, names, now_s)
        self._planner, self._rules, self._ranks = planner, rules, ranks
        self._of = {board: silo.number for silo in silos for board in silo.boards}
        self._contents = {self._of[board]: sha256 for board, sha256 in enumerate(contents) if sha256}
        self.silos = [
            SiloRanks(silo, facts, ranks, planner, self.boards, base_sha256, now_s, reopened) for silo in silos
        ]
        self._closed: dict[int, tuple[CloseSteps, float]] = {}  # by silo, and when
        self._lapsed: dict[int, str] = {}  # by silo: why
        self._left = 0  # samples of lapsed silos that were planned
        self._plans: list[Slice] = []  # of the round that is being planned
        self._storing: deque[int | None] = deque()  # whose slices are on their way to the disk; None: a round's plan
        self._planned_s = 0.0
        self._opened: frozenset[int] = frozenset()  # silos with slices in a round that an earlier life has planned
        if reopened is not None:
            self.round, self.round_seconds = reopened.round, list(reopened.round_seconds)
            self._counted |= reopened.counted
            if reopened.closed and reopened.round >= facts.rounds:
                self._due = "end"
            elif not reopened.closed:
                self._opened = frozenset(self._of[item.board] for item in reopened.open_slices)

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the policy's present estimate of a board."""
        return self._planner.seconds_per_sample(board)

    def waiting_groups(self) -> list[GroupWait]:
        """Return the silos that have closed the round, and those that have not."""
        open_ = [ranks for ranks in self.silos if ranks.phase not in (CLOSED, LAPSED)]
        if self.phase != "working" or not open_:
            return []
        names = tuple(f"silo {ranks.silo.name}" for ranks in open_)
        until_s = max(ranks.due_s for ranks in open_)
        return [
            GroupWait(f"silo {self.silos[n].silo.name}", self.silos[n].silo.boards, names, at_s, until_s)
            for n, (_, at_s) in sorted(self._closed.items())
        ]

    # What the muster asks -------------------------------------------------------------------------------------------

    def _load_options(self, index: int) -> str:
        options = {**self._ranks.options, "silo": self._rules[self._of[index]]}
        return json.dumps({**json.loads(self.facts.options), "split": options})

    def _data_fault(self, index: int, samples: int) -> str:
        silo = self.silos[self._of[index]].silo
        if samples == silo.samples:
            return ""
        return f"it finds {samples} samples of silo {silo.name}, the experiment says {silo.samples}; give it those data"

    def _content_fault(self, index: int, sha256: str) -> str:
        number = self._of[index]
        if self._rules[number].get("kind") != "own":
            return super()._content_fault(index, sha256)
        known = self._contents.setdefault(number, sha256)
        if known == sha256:
            return ""
        return (
            f"its data are as many as silo {self.silos[number].silo.name} has, but other ones ({sha256[:12]}, there "
            f"{known[:12]}); give all boards of a silo the same data, and leave them what they are while a run lasts"
        )

    def _is_counted(self, kept: tuple[int, int]) -> bool:
        return kept in self._counted or any(ranks.is_counted(kept) for ranks in self.silos)

    def _wakes(self) -> list[float]:
        return [at_s for ranks in self.silos for at_s in ranks.wakes()]

    def _begin_run(self, now_s: float) -> None:
        self._plan(now_s)

    def _is_ready(self, index: int, now_s: float) -> None:
        if self.phase == "planning" and not self._storing:
            self._plan(now_s)
        else:
            self._let(self._of[index], BoardReady(index), now_s)

    def _is_gone(self, index: int, reason: str, now_s: float) -> None:
        self._let(self._of[index], s.Gone(index, reason), now_s)

    def _stop_work(self, reason: str) -> None:
        for number in range(len(self.silos)):
            self._let(number, s.Stop(reason), self._now_s)

    def _time_passed(self, now_s: float) -> None:
        for number in range(len(self.silos)):
            self._let(number, s.Tick(), now_s)

    # Silos ----------------------------------------------------------------------------------------------------------

    def _let(self, number: int, event: Any, now_s: float) -> None:
        """Let a silo's machine take an event, and do what it says."""
        ranks = self.silos[number]
        for action in ranks.step(event, now_s):
            self._take(ranks, action, now_s)
        self._last_refusal = ranks.last_refusal or self._last_refusal
        self._close_if_complete(now_s)

    def _take(self, ranks: SiloRanks, action: Any, now_s: float) -> None:
        silo = ranks.silo
        match action:
            case s.StoreSlices(slices, first):
                assert all(isinstance(item, SiloSlice) and item.silo is silo for item in slices)
                if first:
                    self._plans += slices
                else:
                    self._storing.append(silo.number)
                    self._out.append(action)
            case CloseSteps():
                self._closed[silo.number] = action, now_s
            case Lapse(reason):
                self._lapse(ranks, reason, planned=True)
            case Halt(reason):
                self._stop(s.Stop(f"silo {silo.name}: {reason}"), now_s)
            case s.Note(kind=kind, detail=text, board=None) if kind != paces.KIND:
                self._out.append(replace(action, detail=f"silo {silo.name}: {text}"))
            case _:
                self._out.append(action)

    def _lapse(self, ranks: SiloRanks, reason: str, *, planned: bool) -> None:
        silo, ranks.phase = ranks.silo, LAPSED
        self._lapsed[silo.number] = reason
        self._left += silo.budget if planned else 0
        for index in silo.boards:
            self.boards[index].share = self.boards[index].done = 0
        text = f"silo {silo.name}: its {silo.budget} samples lapse in round {self.round}: {reason}"
        self._out.append(s.Note("lapse", text, round=self.round))

    # A round --------------------------------------------------------------------------------------------------------

    def _plan(self, now_s: float) -> None:
        opened = self._opened
        here = [r.silo.number for r in self.silos if r.present and (not opened or r.silo.number in opened)]
        self.phase = "planning"
        if not here:
            self._alone(now_s)
            return
        self._alone_s, self._opened = None, frozenset()
        self.round += not opened
        self._closed, self._lapsed, self._left, self._plans = {}, {}, 0, []
        shares = None if opened else self._shares([board for n in here for board in self.silos[n].present])
        self._storing.append(None)
        for ranks in self.silos:
            if ranks.silo.number in here:
                self._let(ranks.silo.number, BeginRound(self.round, shares), now_s)
            else:
                self._lapse(ranks, NOBODY, planned=ranks.silo.number in opened)
        if opened:
            self._plan_stored((), now_s)
        else:
            self._out.append(s.StoreSlices(tuple(self._plans), first=True))

    def _shares(self, present: Sequence[int]) -> dict[int, int]:
        return dict(zip(present, self._planner.plan(present), strict=True))

    def _stored(self, event: s.SlicesStored, now_s: float) -> None:
        if self.phase in ("ending", "finished"):
            return
        if self._storing[0] is None:
            self._plan_stored(event.slices, now_s)
        else:
            self._let(self._storing.popleft() or 0, event, now_s)

    def _plan_stored(self, slices: Sequence[Slice], now_s: float) -> None:
        self._storing.popleft()
        self.phase, self._planned_s = "working", now_s
        for number in range(len(self.silos)):
            if own := tuple(item for item in slices if item.index // SLICES == number):
                self._let(number, s.SlicesStored(own), now_s)
        self._close_if_complete(now_s)

    def _close_if_complete(self, now_s: float) -> None:
        """Close the round when the last silo has: what it left is averaged over those that did not lapse."""
        if self.phase != "working" or any(ranks.phase not in (CLOSED, LAPSED) for ranks in self.silos):
            return
        if not self._closed:
            reasons = "; ".join(f"{self.silos[n].silo.name}: {why}" for n, why in sorted(self._lapsed.items()))
            self._stop(s.Stop(f"no silo has a board left ({reasons})"), now_s)
            return
        self.phase = "closing"
        self.round_seconds.append(now_s - self._planned_s)
        self._tell_round_closed()
        closed = [SiloClosed(n, steps, now_s - at_s) for n, (steps, at_s) in sorted(self._closed.items())]
        self._out.append(CloseSilos(self.round, tuple(closed), dict(self._lapsed), self._left))

    def _round_done(self, event: s.RoundDone, now_s: float) -> None:
        if self.phase != "closing":
            return
        for number in range(len(self.silos)):
            self._let(number, Settle(event.round, event.model_sha256), now_s)
        if self._goes_on(event.round, now_s):
            self._plan(now_s)

    # What boards and the store say ----------------------------------------------------------------------------------

    def _said(self, event: s.Said, now_s: float) -> None:
        if type(event.message) in Muster._MESSAGES:
            super()._said(event, now_s)
        elif self.phase != "ending" or not isinstance(event.message, Failed):
            self._let(self._of[event.board], event, now_s)
            self._start_if_complete(now_s)

    def _concerns_a_board(self, event: Told | StateKept | StateRefused, now_s: float) -> None:
        self._let(self._of[event.board], event, now_s)

    _HANDLERS: dict[type[object], Callable[..., None]] = {
        **Muster._HANDLERS, s.Said: _said, s.SlicesStored: _stored, s.RoundDone: _round_done,
        Told: _concerns_a_board, StateKept: _concerns_a_board, StateRefused: _concerns_a_board,
    }  # fmt: skip
