# SPDX-License-Identifier: Apache-2.0
"""The run of regime async. Pure: as the round machine, but slices are taken from one queue, and nobody waits.

The stream of samples is cut into slices of one size, which boards take in order, each when it has delivered the one
before. A round is `budget` places of the stream: its slices may be in work while those of the round before are; it is
closed, in order, when all of them are accepted. A lost slice goes to the next board that asks. Each lease carries the
model that it was granted with, because the newest one is another soon.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence

from paceline.wire import Commit, RoundClosed
from paceline_host import steps as s
from paceline_host.machine import RoundMachine
from paceline_host.mixing.law import Mixing
from paceline_host.mixing.steps import Mixed, Standing
from paceline_host.planner import Planner
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import Pma, ranges_of


class MixingMachine(RoundMachine):
    """Runs `facts.rounds * facts.budget` samples over boards named `names`, starting from `model`."""

    def __init__(
        self, facts: s.RunFacts, mixing: Mixing, planner: Planner, names: Sequence[str], model: bytes,
        model_sha256: str, now_s: float, reopened: s.Reopened | None = None, standing: Standing | None = None,
    ) -> None:  # fmt: skip
        """`planner`: for what it knows of boards' pace; it plans nothing."""
        standing = standing or Standing()
        self._mixing = mixing
        self._dealt, self._closed = standing.dealt, standing.closed
        self._parts = {r: Counter(standing.counted.get(r, {})) for r in range(1, facts.rounds + 1)}  # boards' samples
        self._returned: deque[Slice] = deque()  # of boards that were lost; they are dealt before any other
        self._untold: set[int] = set()  # boards that work, and do not know yet that a round was closed
        self._opened_s = now_s  # the round before was closed
        super().__init__(facts, Pma(facts.samples, facts.budget), planner, names, model_sha256, now_s, reopened)
        self._model, self._version = model, standing.version

    def _take_up(self, reopened: s.Reopened) -> None:
        super()._take_up(reopened)
        if not reopened.closed:
            self.phase, self._due = "starting", "close" if self._is_complete() else ""
        self._opened_s -= reopened.elapsed_s

    def _load_options(self, index: int) -> str:
        return json.dumps({**json.loads(self.facts.options), "split": {"rho": self._mixing.rho}})

    # Slices ---------------------------------------------------------------------------------------------------------

    def _begin_run(self, now_s: float) -> None:
        self.phase, self._started = "working", True
        if self._reopened is None:
            self._opened_s = now_s
        else:
            self._opened_s = now_s - self._reopened.elapsed_s
            self._next_index = self._reopened.next_index
            self._open = {item.index: item for item in self._reopened.open_slices}
        for index, board in enumerate(self.boards):
            if board.usable:
                self._begin(index)
        for item in list(self._open.values()):
            if self._reopened is None or item.index in self._reopened.lost or not self.boards[item.board].usable:
                self._redeal(item, now_s)
            else:
                self.boards[item.board].queue.append(item)
        for index in range(len(self.boards)):
            self._assign(index, now_s)
            self._deal(index)

    def _is_ready(self, index: int, now_s: float) -> None:
        self._alone_s = None
        self._assign(index, now_s)  # what it held when it connected anew
        self._deal(index)

    def _deal(self, index: int) -> None:
        """Let a board have a slice, unless it has one that is not being judged."""
        judged = {lease.slice.index for _, lease in self._judging.values()}
        if not self.boards[index].usable or any(o.board == index and i not in judged for i, o in self._open.items()):
            return
        item = self._next(index)
        if item is None:
            return
        self._next_index += 1
        self._open[item.index] = item
        fresh = item.redealt_from is None
        first = fresh and self._dealt % self.facts.budget == 0
        self._dealt += item.samples if fresh else 0
        self.round = max(self.round, item.round)
        self._out.append(s.StoreSlices((item,), first=first))

    def _next(self, index: int) -> Slice | None:
        if self._returned:
            lost = self._returned.popleft()
            return lost.dealt(self._next_index, index, lost.ranges)
        begin, budget = self._dealt, self.facts.budget
        number = begin // budget + 1
        if number > self._last_round:
            return None
        end = min(begin + self._mixing.slice, number * budget)
        return Slice(number, self._next_index, index, ranges_of(begin, end, self.facts.samples))

    def _redeal(self, item: Slice, now_s: float, without: int | None = None) -> None:
        del self._open[item.index]
        self._returned.append(item)
        usable = [index for index, board in enumerate(self.boards) if board.usable]
        if not usable:
            self._alone(now_s)
        for index in sorted(usable, key=lambda index: index == without):  # whoever failed comes last
            self._deal(index)

    def _commit(self, index: int, message: Commit, now_s: float) -> None:
        super()._commit(index, message, now_s)
        lease = self.boards[index].lease
        if lease is not None and lease.number in self._judging:
            self._deal(index)  # so that one commit of the store is enough

    def _mixed(self, event: Mixed, now_s: float) -> None:
        item = self._judging[event.lease][1].slice
        self._version, self._model, self._base = event.version, event.model, event.model_sha256
        self._parts[item.round][event.board] += item.samples
        self._accepted(s.ResultStored(event.board, event.lease), now_s)
        if self.phase == "working":
            if event.board in self._untold:
                self._tell_closed(event.board)
            self._deal(event.board)  # where its next slice went to another while it was judged

    # Rounds ---------------------------------------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        return self._closed < self.facts.rounds and self._parts[self._closed + 1].total() == self.facts.budget

    def _close_if_complete(self, now_s: float) -> None:
        while self.phase in ("working", "starting") and self._is_complete():
            self._closed += 1
            self.round_seconds.append(now_s - self._opened_s)
            self._opened_s = now_s
            self._tell_round_closed()
            self._out.append(s.FinishRound(self._closed))
            for board in self.boards:  # what people are shown begins anew
                board.share, board.done = board.lease.slice.samples if board.lease is not None else 0, 0
            self._counted = {key for key in self._counted if key[0] >= self._closed}

    def _round_done(self, event: s.RoundDone, now_s: float) -> None:
        if self.phase in ("working", "starting"):
            self._goes_on(event.round, now_s)

    def _finish_what_is_due(self, now_s: float) -> None:
        if self._due == "close":
            self._due = ""
            self._close_if_complete(now_s)
        else:
            super()._finish_what_is_due(now_s)

    def _tell_round_closed(self) -> None:
        """Ask for joules; of a board that works when it has delivered, since the question ends its computing."""
        parts = self._parts.pop(self._closed)
        self._keep_counted([parts[index] for index in range(len(self.boards))])
        for index, board in enumerate(self.boards):
            if board.session is not None and board.begun:
                if board.lease is None:
                    self._tell_closed(index)
                else:
                    self._untold.add(index)

    def _tell_closed(self, index: int) -> None:
        board = self.boards[index]
        if board.lease is None and board.session is not None:
            self._untold.discard(index)
            board.energies_owed += 1
            self._hold(index, RoundClosed(board.session.nonce, self.facts.run, self._closed, 0))

    _MESSAGES = {**RoundMachine._MESSAGES, Commit: _commit}
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        **RoundMachine._HANDLERS, Mixed: _mixed, s.RoundDone: _round_done,
    }  # fmt: skip
