# SPDX-License-Identifier: Apache-2.0
"""The rounds of one run of synchronised ranks. Pure: events in, actions out, time is an argument; knows no tensor.

A round: planned -> each board gets a lease, and is called -> all say where they are -> one opens the group's store ->
all step together -> all are done -> one gives the round's state -> the others close -> journaled. Whoever is lost
before all are done makes the step in flight void: those left are called again, as the next generation of the group,
and what no step has counted is dealt anew (DECISIONS 19). A policy that plans every k steps has a round in stretches:
after each, what is left is dealt anew to the same group, which goes on when the deal is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline import allocate
from paceline.errors import CoreError, RemoteProtocolError
from paceline.uneven import FEW
from paceline.wire import (
    INLINE_BYTES,
    TENSORS_FROM_AGENT,
    Chunk,
    Commit,
    Credit,
    Delivery,
    Failed,
    Message,
    Ping,
    Result,
    Tensor,
)  # fmt: skip
from paceline_host import steps as s
from paceline_host.ddp.closing import RankClosing
from paceline_host.ddp.leases import ACCOUNTS, DEAL, HERE, KEEPING, PLAN, STATE, STEPS, STORE
from paceline_host.ddp.plan import RoundPlan
from paceline_host.ddp.steps import (
    Broken,
    Here,
    StateKept,
    StateRefused,
    Store,
    Tell,
    Told,
)
from paceline_host.muster import Muster
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import Pma


class RankMachine(RankClosing):
    """Runs `facts.rounds` rounds of `ranks.steps` steps; `base_sha256` names the state they begin with."""

    # What the muster asks -------------------------------------------------------------------------------------------

    def _wakes(self) -> list[float]:
        times = [self._group_due_s] if self.stage == STEPS else []
        for member in self._work.values():
            times += [member.due_s, member.hold.stalls_s]
        return times

    def _begin_run(self, now_s: float) -> None:
        self._plan(now_s)

    def _is_ready(self, index: int, now_s: float) -> None:
        self._states.pop(index, None)
        if self.phase == "planning" and self.stage != PLAN:
            self._plan(now_s)
        elif self.phase == "working" and not self._work and self.stage == "":
            self._begin_anew("a board is back", now_s)

    def _is_gone(self, index: int, reason: str, now_s: float) -> None:
        self._states.pop(index, None)
        if index in self._work:
            self._drop(index, "lost", reason, now_s)

    # A round --------------------------------------------------------------------------------------------------------

    def _plan(self, now_s: float) -> None:
        present = [i for i, board in enumerate(self.boards) if board.usable]
        if not present:
            self.phase, self.stage = "planning", ""
            self._alone(now_s)
            return
        self._alone_s = None
        again, self._again = self._again, ()
        if not again:
            self.round += 1
            self._counted = {key for key in self._counted if key[0] >= self.round - 1}
            slices = self._slices(present)
            self._next_index = slices[-1].index + 1
        else:
            slices = again
        place = (self.round - 1) * self.facts.budget
        self._plan_ = RoundPlan(slices, place, self.ranks.steps, self.ranks.minimum, self._next_index)
        self._fresh = {item.board for item in slices} != set(present)
        self._work, self._order, self._idle, self._voids, self._refusals = {}, [], 0, 0, 0
        self._planned_s = None
        for board in self.boards:
            board.share = board.done = 0
        self.phase, self.stage = "planning", PLAN
        if again:
            self._stored(s.SlicesStored(tuple(slices)), now_s)
        else:
            self._out.append(s.StoreSlices(tuple(slices), first=True))

    def _slices(self, present: Sequence[int]) -> Sequence[Slice]:
        """Return the slices of a round that begins."""
        shares = list(zip(present, self._planner.plan(present), strict=True))
        return Pma(self.facts.samples, self.facts.budget).plan(self.round, shares)

    def _stored(self, event: s.SlicesStored, now_s: float) -> None:
        written = {item.index for item in event.slices}
        if any(item.index not in written for item in self._plan_of().slices):
            return  # all ranks were lost while a deal was on its way to the disk, and the round began anew
        if self.phase == "planning" and self.stage == PLAN:
            self.phase = "working"
            if self._planned_s is None:
                self._planned_s = now_s
            for index, board in enumerate(self.boards):
                if board.usable:
                    self._begin(index)
            self._warn_of_few()
            self._gather(now_s)
        elif self.phase == "working" and self.stage == DEAL:
            if self._stays and set(self._order) == set(self._work):
                self._go_on(now_s)
            elif not self._stays and set(self._plan_of().shares) <= set(self._work):
                self._rendezvous(now_s)
            else:
                self._call(now_s)

    def _warn_of_few(self) -> None:
        """Whole samples cost time where a rank gets few of them in a step (DECISIONS 18)."""
        shares = self._plan_of().shares
        few = min(shares, key=lambda board: shares[board])
        if shares[few] < FEW * self.ranks.steps and not self._warned:
            self._warned = True
            text = f"{self.boards[few].name} gets {shares[few] / self.ranks.steps:.1f} samples a step"
            why = "below 5, rounding to whole samples costs 7 % and more; fewer run.steps would help"
            self._out.append(s.Note("few", f"{text}: {why}"))

    def _gather(self, now_s: float) -> None:
        """Give a lease to each board that is here, and call them all."""
        plan = self._plan_of()
        present = [i for i, board in enumerate(self.boards) if board.usable]
        if not present:
            self.stage = ""
            self._alone(now_s)
            return
        self._alone_s = None
        self._giver = next((i for i in present if self._has_base(i)), present[0])
        self._attempt += 1
        slices = {item.board: item for item in plan.slices}
        for index in present:
            item = slices.get(index, plan.slices[0])
            self._lease(index, item, now_s)
        self._call(now_s)

    def _round_done(self, event: s.RoundDone, now_s: float) -> None:
        if self.phase != "closing":
            return
        self._settle(event.model_sha256, event.model_sha256, now_s)
        if self._goes_on(event.round, now_s):
            self._plan(now_s)

    # Lost ranks -----------------------------------------------------------------------------------------------------

    def _begin_anew(self, why: str, now_s: float) -> None:
        """Nothing of the open round counts: all of it again, from the base."""
        plan = self._plan_of()
        self._voids += 1
        self._out.append(s.Note("void", f"round {self.round} begins anew: {why}", loud=True))
        for index in list(self._work):
            self._cancel(index, why)
        self._work, self._order = {}, []
        present = [i for i, board in enumerate(self.boards) if board.usable]
        if not present:
            self.stage = ""
            self._alone(now_s)
            return
        self._states.clear()  # their memory has gone on
        self._gather_again(plan, now_s)

    def _gather_again(self, plan: RoundPlan, now_s: float) -> None:
        present = [i for i, board in enumerate(self.boards) if board.usable]
        costs = [self._planner.seconds_per_sample(i) for i in present]
        known = sorted(c for c in costs if c is not None)
        typical = known[len(known) // 2] if known else 1.0

        def divide(samples: int, least: int) -> list[tuple[int, int]]:
            shares = allocate([c if c is not None else typical for c in costs], samples, minimum=least)
            return list(zip(present, shares, strict=True))

        fresh = plan.begin_anew(divide)
        self._fresh = False
        self.phase, self.stage = "planning", PLAN
        self._out.append(s.StoreSlices(tuple(fresh), first=False))

    def _drop(self, index: int, verdict: s.Loss, reason: str, now_s: float, *, call: bool = True) -> None:
        """A board's lease is over; before all steps are done, the group forms anew without it."""
        member = self._work.pop(index)
        self.boards[index].lease = None
        if self.phase != "working":
            return
        self._out.append(s.StoreLoss(index, member.hold.slice, member.hold.number, verdict, reason))
        if self.stage in (KEEPING, ACCOUNTS):
            if self._work or self.stage == ACCOUNTS:
                self._close_if_complete(now_s)
            return
        if not self._work:
            self.stage, self._order = "", []
            self._alone(now_s)
            return
        if self.stage == STATE:
            if index == self._giver:
                self._ask_state(now_s)
            return
        at_the_end = self._stretch == self._plan_of().steps
        if self.stage == STEPS and at_the_end and all(m.done is not None for m in self._work.values()):
            self._ask_state(now_s)
            return
        if self.stage == DEAL:
            return  # once the deal is on disk, those who are left are called
        if call:
            self._voids += 1
            self._call(now_s)

    def _fail(self, index: int, reason: str, now_s: float, *, call: bool = True) -> None:
        """A board broke its part: it loses its lease and is back in the next round, unless it was too often."""
        board = self.boards[index]
        if index not in self._work:
            return
        self._out.append(s.Note("rejected", f"{board.name}: {reason}", index))
        self._cancel(index, reason)
        board.failures += 1
        self._bar_if_hopeless(index, reason)
        self._drop(index, "failed", reason, now_s, call=call)
        self._try_again_alone(now_s)

    def _try_again_alone(self, now_s: float) -> None:
        """Nobody is in the round, yet boards are here that may be."""
        is_open = self.phase == "working" and not self._work and self.stage == ""
        if is_open and any(board.usable for board in self.boards):
            self._alone_s = None
            self._begin_anew(self._last_refusal, now_s)

    def _work_failed(self, index: int, message: Failed, now_s: float) -> None:
        board = self.boards[index]
        if self.phase == "ending":
            return
        reason = f"{message.reason}: {message.detail}"
        self._out.append(s.Note("failed", f"{board.name}: {reason}", index))
        board.failures += 1
        self._bar_if_hopeless(index, reason)
        self._states.pop(index, None)
        if message.lease == 0:
            board.ready = None
        if index in self._work:
            self._drop(index, "failed", reason, now_s)
            self._try_again_alone(now_s)
        self._start_if_complete(now_s)

    # Time, and what boards say --------------------------------------------------------------------------------------

    def _time_passed(self, now_s: float) -> None:
        for index, member in sorted(self._work.items()):
            if self._work.get(index) is not member:
                continue
            if now_s >= member.hold.stalls_s:
                self._fail(index, member.hold.fault(self.facts.patience_s), now_s)
            elif now_s >= member.due_s:
                if self.stage == HERE and self._late:
                    self._was_waited_for(index, "does not say where it is either")
                what = {HERE: "sign of where it is", STORE: "store", STATE: "state", ACCOUNTS: "account"}
                self._fail(index, f"no {what.get(self.stage, 'answer')} came in time", now_s)
        if self.stage == STEPS and now_s >= self._group_due_s:
            self._last_refusal = f"no rank made progress for {3 * self.facts.patience_s:g} s"
            self._out.append(s.Note("broken", f"round {self.round}: {self._last_refusal}"))
            self._late = True
            self._voids += 1
            self._call(now_s)

    def _said(self, event: s.Said, now_s: float) -> None:
        message, nbytes = event.message, event.payload_bytes
        if isinstance(message, Chunk):
            self._chunk(event.board, message, nbytes, now_s)
            return
        if isinstance(message, Tensor):
            self._say_tensor(event.board, message, nbytes)
            return
        whole = self.facts.model_bytes if isinstance(message, Result) and self.facts.model_bytes <= INLINE_BYTES else 0
        if nbytes not in (0, whole):
            raise RemoteProtocolError(f"{message.kind} with a payload of {nbytes} bytes")
        self._MESSAGES.get(type(message), Muster._nothing)(self, event.board, message, now_s)
        member = self._work.get(event.board)
        if member is None or member.hold.result is not message:
            return
        if nbytes and member.hold.receiver is not None:
            self._chunk(event.board, Chunk(message.session, member.hold.number, 0), nbytes, now_s)
        if isinstance(message, Delivery):
            m = message
            joules = Commit(m.session, m.lease, m.compute_uj, m.bound_uj, m.energy_source, m.energy_flags)
            self._commit(event.board, joules, now_s)

    def _say_tensor(self, index: int, message: Tensor, nbytes: int) -> None:
        member = self._work.get(index)
        if member is None or message.lease != member.hold.number:
            raise RemoteProtocolError("tensor without a lease")
        if message.what not in TENSORS_FROM_AGENT or message.offset or nbytes != message.size:
            raise RemoteProtocolError(f"tensor {message.what!r:.20}: {nbytes} of {message.size} bytes")
        if message.redraw == self.generation:  # else it is of a group that is no more
            self._out.append(Tell(index, message))

    def _told(self, event: Told, now_s: float) -> None:
        index, message = event.board, event.message
        member = self._work.get(index)
        if member is None or message.lease != member.hold.number or message.redraw != self.generation:
            return
        what = message.what
        if what == "done" and self.stage in (STEPS, STORE) and member.done is None:
            self._is_done(index, event.data, now_s)
            return
        try:
            if what == "here" and self.stage == HERE and member.here is None:
                self._is_here(index, Here.read(event.data), now_s)
            elif what == "store" and self.stage == STORE and index == self._order[0]:
                self._is_open(index, Store.read(event.data), now_s)
            elif what == "broken" and self.stage in (STEPS, STORE):
                self._is_broken(index, Broken.read(event.data), now_s)
        except (ValueError, CoreError) as error:
            self._fail(index, f"its {what} is none: {error}", now_s)

    _MESSAGES: dict[type[Message], Callable[..., None]] = {
        **Muster._MESSAGES, Ping: RankClosing._ping, Credit: RankClosing._credit, Result: RankClosing._result,
        Delivery: RankClosing._result, Commit: RankClosing._commit, Failed: _work_failed,
    }  # fmt: skip
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        **Muster._HANDLERS, s.Said: _said, s.SlicesStored: _stored, Told: _told, StateKept: RankClosing._kept,
        StateRefused: RankClosing._state_refused, s.RoundDone: _round_done,
    }  # fmt: skip
