# SPDX-License-Identifier: Apache-2.0
"""The rounds of one run of synchronised ranks. Pure: events in, actions out, time is an argument; knows no tensor.

A round: planned -> each board gets a lease, and is called -> all say where they are -> one opens the group's store ->
all step together -> all are done -> one gives the round's state -> the others close -> journaled. Whoever is lost
before all are done makes the step in flight void: those left are called again, as the next generation of the group,
and what no step has counted is dealt anew (DECISIONS 19). A policy that plans every k steps has a round in stretches:
after each, what is left is dealt anew to the same group, which goes on when the deal is on disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline import allocate
from paceline.errors import CoreError, DamagedError, RemoteProtocolError
from paceline.transfer import Receiver, Sender
from paceline.uneven import FEW, Deal
from paceline.wire import (
    INLINE_BYTES,
    TENSORS_FROM_AGENT,
    Answer,
    Assign,
    Cancel,
    Chunk,
    Commit,
    Credit,
    Delivery,
    Failed,
    Message,
    Ping,
    Pong,
    Result,
    Tensor,
    clip,
)  # fmt: skip
from paceline_host import steps as s
from paceline_host.boards import Lease, part_of
from paceline_host.ddp import paces
from paceline_host.ddp.plan import RoundPlan
from paceline_host.ddp.steps import (
    NEEDS_CONSENT,
    Broken,
    CloseSteps,
    Here,
    KeepState,
    RankFacts,
    RankPart,
    StateKept,
    StateRefused,
    Store,
    Tell,
    Told,
)
from paceline_host.muster import FIRST_LEASE, REFUSALS, Muster
from paceline_host.planner import Planner
from paceline_host.psl.steps import TensorOut
from paceline_host.regimes import Slice
from paceline_host.regimes.pma import Pma

# What the round waits for: a plan on disk, ranks to say where they are, a new deal on disk, the first rank's store, all
# to have stepped, the state, its verification, everybody's account.
PLAN, HERE, DEAL, STORE, STEPS, STATE, KEEPING, ACCOUNTS = (
    "plan", "here", "deal", "store", "steps", "state", "keeping", "accounts"
)  # fmt: skip
IDLE_GENERATIONS = 5  # so many groups in a row that count no step, and the run ends with the reason


@dataclass
class _Member:
    """A board's part in the open round."""

    hold: Lease
    is_called: bool = True  # False: it is called once it has the base
    loads: bool = False  # the base travels with this lease
    trusted: bool = False  # its memory was the base when it got this lease
    here: Here | None = None
    done: bytes | None = None
    commit: Commit | None = None
    due_s: float = float("inf")


class RankMachine(Muster):
    """Runs `facts.rounds` rounds of `ranks.steps` steps; `base_sha256` names the state they begin with."""

    def __init__(
        self, facts: s.RunFacts, ranks: RankFacts, planner: Planner, names: Sequence[str], base_sha256: str,
        now_s: float, reopened: s.Reopened | None = None,
    ) -> None:  # fmt: skip
        super().__init__(facts, names, now_s)
        self.ranks = ranks
        self._planner = planner
        self._base = base_sha256
        self._plan_: RoundPlan | None = None
        self._work: dict[int, _Member] = {}
        self._order: list[int] = []  # boards of the present group by rank
        self.stage = ""
        self.generation = 0
        self._warned = False
        self._broke_s: float | None = None  # when the last group ended before its round
        self._idle = 0  # generations in a row that have counted nothing
        self._voids = self._refusals = 0
        self._group_due_s = float("inf")
        self._stays = False  # the deal that is on its way to the disk is for the group that is there
        self._planned_s: float | None = None  # of this round, once its plan is on disk
        self._holders: set[int] = set()  # boards whose memory is the base
        self._giver: int | None = None
        self._lease_number = 0
        self._attempt = 0
        self._again: tuple[Slice, ...] = ()  # slices of a round that an earlier life has planned
        self._next_index = 0
        self._fresh = False  # the round is to begin with other slices than those that are planned
        if reopened is not None:
            self.round, self.round_seconds = reopened.round, list(reopened.round_seconds)
            self._lease_number, self._attempt = reopened.lives << 32, reopened.lives << 16
            self._counted |= reopened.counted
            if reopened.closed and reopened.round >= facts.rounds:
                self._due = "end"
            elif not reopened.closed:
                self._again, self._next_index = reopened.open_slices, reopened.next_index

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the policy's present estimate of a board."""
        return self._planner.seconds_per_sample(board)

    @property
    def first_step(self) -> int:
        """Steps of the round that are counted."""
        return self._plan_.first if self._plan_ is not None else 0

    # What the muster asks -------------------------------------------------------------------------------------------

    def _load_options(self, index: int) -> str:
        return json.dumps({**json.loads(self.facts.options), "split": self.ranks.options})

    def _wakes(self) -> list[float]:
        times = [self._group_due_s] if self.stage == STEPS else []
        for member in self._work.values():
            times += [member.due_s, member.hold.stalls_s]
        return times

    def _begin_run(self, now_s: float) -> None:
        self._plan(now_s)

    def _is_ready(self, index: int, now_s: float) -> None:
        self._holders.discard(index)
        if self.phase == "planning" and self.stage != PLAN:
            self._plan(now_s)
        elif self.phase == "working" and not self._work and self.stage == "":
            self._begin_anew("a board is back", now_s)

    def _is_gone(self, index: int, reason: str, now_s: float) -> None:
        self._holders.discard(index)
        if index in self._work:
            self._drop(index, "lost", reason, now_s)

    def _stop_work(self, reason: str) -> None:
        for index in list(self._work):
            self._cancel(index, reason)
        self._work.clear()

    def _cancel(self, index: int, reason: str) -> None:
        board, member = self.boards[index], self._work[index]
        if board.session is not None:
            self._send(index, Cancel(board.session.nonce, member.hold.number, clip(reason)))
        board.lease = None

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

    def _plan_of(self) -> RoundPlan:
        assert self._plan_ is not None
        return self._plan_

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
        self._giver = next((i for i in present if i in self._holders), present[0])
        self._attempt += 1
        slices = {item.board: item for item in plan.slices}
        for index in present:
            item = slices.get(index, plan.slices[0])
            self._lease(index, item, now_s)
        self._call(now_s)

    def _lease(self, index: int, item: Slice, now_s: float) -> None:
        board, facts = self.boards[index], self.facts
        assert board.session is not None
        self._lease_number += 1
        lease_s = FIRST_LEASE * facts.patience_s
        gives = index == self._giver and index not in self._holders
        base = self._base if gives else ""
        hold = Lease(self._lease_number, item, base, now_s, lease_s, float("inf"))
        member = self._work[index] = _Member(hold, loads=gives, trusted=index in self._holders)
        board.lease, board.since_s, board.share = hold, now_s, self._plan_of().shares.get(index, 0)
        nbytes = facts.model_bytes if gives else 0
        inline = 0 < nbytes <= INLINE_BYTES
        self._send(
            index,
            Assign(
                board.session.nonce, facts.run, item.round, item.index, self._attempt, hold.number, lease_s,
                facts.batch, item.ranges, base, nbytes,
            ),
            (0, nbytes) if inline else None,
        )  # fmt: skip
        if nbytes and not inline:
            hold.sender = Sender(nbytes, board.chunk_bytes, facts.credit_bytes, board.rate_out)
            hold.stalls_s = now_s + facts.patience_s
            member.is_called = False
            self._push(index, now_s)

    def _push(self, index: int, now_s: float) -> None:
        board, member = self.boards[index], self._work[index]
        sender = member.hold.sender
        assert board.session is not None
        assert sender is not None
        for piece in sender.pieces():
            self._send(index, Chunk(board.session.nonce, member.hold.number, piece[0]), piece)
        if sender.done:  # the last pieces are not acknowledged
            member.hold.stalls_s = float("inf")
            if not member.is_called:  # what follows arrives behind them
                member.is_called = True
                self._call_one(index, now_s)

    # A group --------------------------------------------------------------------------------------------------------

    def _call(self, now_s: float) -> None:
        """Form the group anew: everybody stops what it does and says where it is."""
        if not self._work:
            self.stage = ""
            self._alone(now_s)
            return
        if self.stage in (STORE, STEPS) and self._broke_s is None:
            self._broke_s = now_s
        self.generation += 1
        self._idle += 1
        if self._idle > IDLE_GENERATIONS:
            reason = f"{IDLE_GENERATIONS} groups in a row did no step, the last was {self._last_refusal}"
            self._stop(s.Stop(reason), now_s)
            return
        self.stage, self._stays = HERE, False
        for index, member in self._work.items():
            member.here = member.done = None
            if member.is_called:
                self._call_one(index, now_s)

    def _call_one(self, index: int, now_s: float) -> None:
        member = self._work[index]
        self._tell(index, "call", b"L" if member.loads else b"-")
        member.due_s = now_s + 2 * self.facts.patience_s

    def _tell(self, index: int, what: str, data: bytes) -> None:
        board, member = self.boards[index], self._work[index]
        assert board.session is not None
        message = Tensor(board.session.nonce, member.hold.number, 0, self.generation, what, len(data), 0)
        self._out.append(TensorOut(index, message, (0, len(data)), data))

    def _is_here(self, index: int, here: Here, now_s: float) -> None:
        member = self._work[index]
        member.here, member.due_s, member.loads = here, float("inf"), False
        if any(m.here is None for m in self._work.values()):
            return
        for other, m in list(self._work.items()):  # the first that came says what the others must be
            assert m.here is not None
            leader = next(iter(self._work.values())).here
            assert leader is not None
            for key in ("torch", "dtype"):
                if getattr(m.here, key) != getattr(leader, key):
                    first = self.boards[next(iter(self._work))].name
                    text = f"it has {key} {getattr(m.here, key)}, {first} {getattr(leader, key)}; install the same"
                    self._bar(other, text, now_s)
                    return
        far = [m.here.address for m in self._work.values() if m.here and not m.here.address.startswith("127.")]
        if far and len(self._work) > 1 and not self.ranks.options["plain"]:  # each rank would refuse, again and again
            self._stop(s.Stop(NEEDS_CONSENT.format(", ".join(far))), now_s)
            return
        self._form(now_s)

    def _bar(self, index: int, reason: str, now_s: float) -> None:
        self.boards[index].failures = REFUSALS
        self._fail(index, reason, now_s)

    def _form(self, now_s: float) -> None:
        """All are here: count what all of them have done, deal the rest if the group has changed, and go on."""
        plan = self._plan_of()
        heres = {i: m.here for i, m in self._work.items() if m.here is not None}
        holders = {i: here.steps for i, here in heres.items() if here.state or self._work[i].trusted}
        if not holders:
            self._begin_anew("who held the state is lost", now_s)
            return
        done = min(holders.values())
        leader = min(i for i, steps in holders.items() if steps == done)
        members = sorted(self._work)
        if done > plan.first or set(plan.shares) != set(members) or self._fresh:
            if done > plan.first:
                self._idle = 0
            fresh = plan.deal_anew(done, self._order, self._divide)
            self._order = [leader, *(i for i in members if i != leader)]
            self._fresh = False
            self._deal(fresh)
            return
        self._order = [leader, *(i for i in members if i != leader)]
        self._rendezvous(now_s)

    def _deal(self, fresh: Sequence[Slice]) -> None:
        self.stage = DEAL
        shares = self._plan_of().shares
        for index in self._work:
            self.boards[index].share = shares.get(index, 0)
        self._out.append(s.StoreSlices(tuple(fresh), first=False))

    def _divide(self, samples: int, least: int) -> list[tuple[int, int]]:
        """Return (board, share): the faster ones take more of what is dealt anew."""
        boards = sorted(self._work)
        costs = [self._planner.seconds_per_sample(i) for i in boards]
        known = sorted(c for c in costs if c is not None)
        typical = known[len(known) // 2] if known else 1.0
        shares = allocate([c if c is not None else typical for c in costs], samples, minimum=least)
        return list(zip(boards, shares, strict=True))

    def _rendezvous(self, now_s: float) -> None:
        """Let the first rank open the store; where all steps are done there is nothing to meet for."""
        if not self._plan_of().steps:
            self._ask_state(now_s)
            return
        self.stage = STORE
        self._schedule(self._order[0], "", 0)
        self._work[self._order[0]].due_s = now_s + 2 * self.facts.patience_s

    def _schedule(self, index: int, address: str, port: int) -> None:
        plan, member = self._plan_of(), self._work[index]
        shares = plan.shares
        assert member.here is not None
        others = [m.here.address for i, m in self._work.items() if i != index and m.here is not None]
        toward = next((a for a in others if not a.startswith("127.")), "")
        told = {
            "rank": self._order.index(index), "names": [self.boards[i].name for i in self._order], "address": address,
            "port": port, "toward": toward, "first": plan.first, "steps": plan.steps, "place": plan.place,
            "shares": [shares.get(i, 0) for i in self._order],
            "check": (member.trusted or member.here.state) and member.here.steps == plan.first,
            "stretch": self._stretch, "stays": self._stays,
        }  # fmt: skip
        self._tell(index, "schedule", json.dumps(told).encode())

    def _is_open(self, index: int, store: Store, now_s: float) -> None:
        self.stage = STEPS
        if self._broke_s is not None:
            text = f"round {self.round}, step {self._plan_of().first}: again a group, of {len(self._order)} ranks"
            self._out.append(s.Note("formed", f"{text}, after {now_s - self._broke_s:.2f} s", loud=False))
            self._broke_s = None
        self._work[index].due_s = float("inf")
        for other in self._order[1:]:
            self._schedule(other, store.address, store.port)
        self._group_due_s = now_s + 3 * self.facts.patience_s

    @property
    def _stretch(self) -> int:
        """Open steps that are done before the next plan, or before the round's end."""
        return min(self._plan_of().steps, self._planner.every or self.ranks.steps)

    def _is_done(self, index: int, data: bytes, now_s: float) -> None:
        self._work[index].done = data
        self._group_due_s = now_s + 3 * self.facts.patience_s
        if all(member.done is not None for member in self._work.values()):
            self._stretch_is_done(now_s)

    def _stretch_is_done(self, now_s: float) -> None:
        plan, stretch = self._plan_of(), self._stretch
        if self._planner.every and not self._learn(stretch, now_s):
            return
        if stretch == plan.steps:
            self._ask_state(now_s)
            return
        self._idle, self._stays = 0, True
        self._deal(plan.deal_anew(plan.first + stretch, self._order, self._divide))

    def _learn(self, stretch: int, now_s: float) -> bool:
        """Tell the policy what the last steps took, and the journal; False: a rank's figures are none, it is lost."""
        plan, found = self._plan_of(), dict[int, tuple[float, int]]()
        shares = [plan.shares.get(board, 0) for board in self._order]
        deal = Deal(shares, plan.steps, self.ranks.minimum)
        for rank, index in enumerate(self._order):
            samples = sum(deal.counts(step, rank)[0] for step in range(stretch))
            try:
                seconds = paces.of_last(self._work[index].done or b"", stretch)
            except DamagedError as error:
                self._fail(index, str(error), now_s)
                return False
            if seconds > 0 and samples:
                found[index] = seconds, samples
        for index, (seconds, samples) in sorted(found.items()):
            self._planner.observe_steps(index, seconds, samples)
        if found:
            self._out.append(s.Note(paces.KIND, paces.text(found), loud=False, round=self.round))
        return True

    def _go_on(self, now_s: float) -> None:
        """The group has its new shares on disk, and steps on."""
        self.stage = STEPS
        for index in self._order:
            self._work[index].done = None
            self._schedule(index, "", 0)
        self._group_due_s = now_s + 3 * self.facts.patience_s

    def _is_broken(self, index: int, broken: Broken, now_s: float) -> None:
        name, reason = self.boards[index].name, broken.reason
        if broken.kind == "late":  # gloo does not say which
            reason += "; where a step takes so long, raise run.patience_s or run.steps"
        self._last_refusal = f"{name}: {reason}"
        self._voids += 1
        self._out.append(s.Note("broken", f"round {self.round}: {name}: {reason}", index))
        guilty = {self._order[rank] for rank in broken.blamed if 0 <= rank < len(self._order)} & set(self._work)
        if broken.kind in ("unreachable", "different", "store", "interface") and len(guilty) < len(self._work):
            for board in guilty:
                self._fail(board, reason, now_s, call=False)
        if self.stage in (STEPS, STORE):
            self._call(now_s)

    # The end of a round ---------------------------------------------------------------------------------------------

    def _ask_state(self, now_s: float) -> None:
        """All steps are done on every rank that is left: one of them gives the state."""
        self.stage, self._idle = STATE, 0
        self._group_due_s = float("inf")
        leader = next(i for i in self._order if i in self._work)
        self._giver = leader
        self._tell(leader, "give", b"-")
        self._work[leader].due_s = now_s + 2 * self.facts.patience_s

    def _result(self, index: int, message: Result, now_s: float) -> None:
        member, facts = self._work.get(index), self.facts
        is_asked = member is not None and member.due_s < float("inf")
        is_turn = index == self._giver if self.stage == STATE else self.stage == ACCOUNTS
        if member is None or not is_asked or not is_turn:
            raise RemoteProtocolError("result that was not asked for")
        item = member.hold.slice
        size = facts.model_bytes if self.stage == STATE else 0
        expected = (facts.run, item.round, item.index, self._attempt, size)
        stated = (message.run, message.round, message.slice, message.attempt, message.update_bytes)
        if stated != expected:
            self._fail(index, f"its result {stated} does not match the assignment {expected}", now_s)
            return
        member.hold.result, member.due_s = message, now_s + facts.patience_s
        if size:
            board = self.boards[index]
            member.hold.receiver = Receiver(size, facts.credit_bytes, board.chunk_bytes, board.rate_in, 0)

    def _chunk(self, index: int, message: Chunk, nbytes: int, now_s: float) -> None:
        member = self._work.get(index)
        if member is None or member.hold.receiver is None or member.hold.result is None:
            raise RemoteProtocolError("chunk without an announced result")
        receiver = member.hold.receiver
        receiver.take(message.offset, nbytes, now_s)
        if receiver.moved():
            member.due_s = now_s + self.facts.patience_s
        self._out.append(s.WriteUpload(index, part_of(member.hold.result), message.offset))
        if (upto := receiver.grant()) is not None:
            self._send(index, Credit(message.session, member.hold.number, receiver.have, upto))

    def _commit(self, index: int, message: Commit, now_s: float) -> None:
        member = self._work.get(index)
        if member is None or member.hold.result is None:
            raise RemoteProtocolError("commit without a result")
        receiver = member.hold.receiver
        if receiver is not None and not receiver.done:
            self._fail(index, "commit before the whole state was here", now_s)
            return
        member.commit, member.due_s = message, float("inf")
        if receiver is not None and self.stage == STATE:
            self.stage = KEEPING
            self._out.append(KeepState(index, member.hold.number, self.ranks.steps, member.hold.result))
        elif self.stage == ACCOUNTS:
            self._close_if_complete(now_s)

    def _kept(self, event: StateKept, now_s: float) -> None:
        if self.phase != "working" or self.stage != KEEPING:
            return
        self.stage = ACCOUNTS
        for index, member in self._work.items():
            if member.commit is None:
                self._tell(index, "close", b"-")
                member.due_s = now_s + 2 * self.facts.patience_s
        self._close_if_complete(now_s)

    def _state_refused(self, event: StateRefused, now_s: float) -> None:
        if self.phase != "working" or self.stage != KEEPING:
            return
        self._refusals += 1
        self._last_refusal = f"{self.boards[event.board].name}: {event.reason}"
        self._out.append(s.Note("rejected", f"round {self.round} is void: {self._last_refusal}", event.board))
        if self._refusals >= REFUSALS:
            hint = "has training diverged? a smaller learning_rate may help"
            self._stop(s.Stop(f"round {self.round} was void {REFUSALS} times: {event.reason}; {hint}"), now_s)
            return
        self._begin_anew("its state was refused", now_s)

    def _close_if_complete(self, now_s: float) -> None:
        if self.stage != ACCOUNTS or any(member.commit is None for member in self._work.values()):
            return
        plan = self._plan_of()
        self.phase, self.stage = "closing", ""
        assert self._planned_s is not None
        self.round_seconds.append(now_s - self._planned_s)
        parts = [RankPart(item.board, item, 0, steps) for item, steps in plan.counted]
        for item in plan.slices:
            member = self._work.get(item.board)
            if member is None:  # it was lost after the last step
                parts.append(RankPart(item.board, item, 0, plan.steps))
            else:
                parts.append(
                    RankPart(item.board, item, member.hold.number, plan.steps, member.hold.result, member.commit)
                )
        if not plan.slices:  # all was counted before the last group
            parts = self._accounted(parts)
        figures = {i: member.done for i, member in self._work.items() if member.done is not None}
        self._observe(parts)
        self._tell_round_closed()
        self._out.append(CloseSteps(self.round, self._attempt, tuple(parts), figures, self.ranks.steps, self._voids))

    def _accounted(self, parts: list[RankPart]) -> list[RankPart]:
        """Give each board's account to its last part."""
        last = {part.board: i for i, part in enumerate(parts)}
        for index, member in self._work.items():
            if index in last:
                i = last[index]
                parts[i] = replace(parts[i], lease=member.hold.number, result=member.hold.result, commit=member.commit)
        return parts

    def _observe(self, parts: Sequence[RankPart]) -> None:
        for part in parts:
            if part.result is None or part.commit is None or not part.result.compute_us:
                continue
            samples = sum(other.slice.samples for other in parts if other.board == part.board)
            board = self.boards[part.board]
            board.done = samples
            energy_j = None if part.commit.compute_uj is None else part.commit.compute_uj * 1e-6
            self._planner.observe(part.board, part.result.compute_us * 1e-6, energy_j, samples)
            board.energy_per_sample_j = None if energy_j is None else energy_j / samples
            board.failures = 0

    def _round_done(self, event: s.RoundDone, now_s: float) -> None:
        if self.phase != "closing":
            return
        self._settle(event.model_sha256, event.model_sha256, now_s)
        if event.round >= self.facts.rounds:
            self._end("finished", now_s)
        else:
            self._plan(now_s)

    def _settle(self, left_sha256: str, base_sha256: str, now_s: float) -> None:
        """The round is on disk, and left this state with its ranks; the next one begins with the base."""
        self._base = base_sha256
        self._holders = set()
        for index, member in self._work.items():
            board, result = self.boards[index], member.hold.result
            self._counted.add((member.hold.slice.round, member.hold.slice.index))
            if result is not None and result.update_sha256 == left_sha256 and board.usable:
                if left_sha256 == base_sha256:
                    self._holders.add(index)
            elif result is not None and not self.ranks.own_buffers:
                text = f"its state after round {self.round} is {result.update_sha256[:12]}, expected {left_sha256[:12]}"
                self._out.append(s.Note("drift", f"{board.name}: {text}", index))
            if board.session is not None and board.session.lease == member.hold.number:
                self._hold(index, Answer(board.session.nonce, member.hold.number, "accepted", "", 0))
            board.lease, board.since_s = None, now_s
        self._work, self._order = {}, []

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
        self._holders.clear()  # their memory has gone on
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
        self._holders.discard(index)
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
                what = {HERE: "sign of where it is", STORE: "store", STATE: "state", ACCOUNTS: "account"}
                self._fail(index, f"no {what.get(self.stage, 'answer')} came in time", now_s)
        if self.stage == STEPS and now_s >= self._group_due_s:
            self._last_refusal = f"no rank made progress for {3 * self.facts.patience_s:g} s"
            self._out.append(s.Note("broken", f"round {self.round}: {self._last_refusal}"))
            self._voids += 1
            self._call(now_s)

    def _ping(self, index: int, message: Ping, now_s: float) -> None:
        board, member = self.boards[index], self._work.get(index)
        left_s = 0.0
        if member is not None and message.lease == member.hold.number:
            left_s = FIRST_LEASE * self.facts.patience_s
            if message.samples > member.hold.samples:
                member.hold.samples = message.samples
                self._group_due_s = now_s + 3 * self.facts.patience_s
        if board.session is not None:
            self._send(index, Pong(board.session.nonce, message.lease, left_s))

    def _credit(self, index: int, message: Credit, now_s: float) -> None:
        member = self._work.get(index)
        if member is None or member.hold.sender is None:
            raise RemoteProtocolError("credit without a transfer")
        sender = member.hold.sender
        sender.granted(message.have, message.upto, now_s)
        if sender.moved():
            member.hold.stalls_s = now_s + self.facts.patience_s
        self._push(index, now_s)

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
        **Muster._MESSAGES, Ping: _ping, Credit: _credit, Result: _result, Delivery: _result, Commit: _commit,
        Failed: _work_failed,
    }  # fmt: skip
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        **Muster._HANDLERS, s.Said: _said, s.SlicesStored: _stored, Told: _told, StateKept: _kept,
        StateRefused: _state_refused, s.RoundDone: _round_done,
    }  # fmt: skip
