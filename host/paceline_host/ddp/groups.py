# SPDX-License-Identifier: Apache-2.0
"""The groups of one round of ranks: called, dealt their samples, formed, stepping, broken, called again. Pure.

The next generation of a group counts what all of its ranks have done, and what no step has counted is dealt anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from paceline import allocate
from paceline.errors import DamagedError
from paceline.uneven import Deal
from paceline_host import steps as s
from paceline_host.boards import GroupWait
from paceline_host.ddp import paces
from paceline_host.ddp.leases import DEAL, HERE, STEPS, STORE, RankLeases
from paceline_host.ddp.steps import (
    NEEDS_CONSENT,
    WAITED,
    Broken,
    Here,
    Store,
)
from paceline_host.muster import REFUSALS
from paceline_host.regimes import Slice

IDLE_GENERATIONS = 5  # so many groups in a row that count no step, and the run ends with the reason


class RankGroups(RankLeases):
    """See RankMachine."""

    # For the subclass -----------------------------------------------------------------------------------------------

    def _begin_anew(self, why: str, now_s: float) -> None:
        """Nothing of the open round counts."""
        raise NotImplementedError

    def _ask_state(self, now_s: float) -> None:
        """All steps are done."""
        raise NotImplementedError

    def _fail(self, index: int, reason: str, now_s: float, *, call: bool = True) -> None:
        """A board broke its part."""
        raise NotImplementedError

    # Called ---------------------------------------------------------------------------------------------------------

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
        self.stage, self._stays, self._called_s = HERE, False, now_s
        for index, member in self._work.items():
            member.here = member.done = None
            if member.is_called:
                self._call_one(index, now_s)

    def _call_one(self, index: int, now_s: float) -> None:
        member = self._work[index]
        self._tell(index, "call", b"L" if member.loads else b"-")
        member.due_s = now_s + 2 * self.facts.patience_s

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
        self._name_slow()
        far = [m.here.address for m in self._work.values() if m.here and not m.here.address.startswith("127.")]
        if far and len(self._work) > 1 and not self.ranks.options["plain"]:  # each rank would refuse, again and again
            self._stop(s.Stop(NEEDS_CONSENT.format(", ".join(dict.fromkeys(far)))), now_s)
            return
        self._form(now_s)

    def _bar(self, index: int, reason: str, now_s: float) -> None:
        self.boards[index].failures = REFUSALS
        self._fail(index, reason, now_s)

    # Who was waited for ---------------------------------------------------------------------------------------------

    def _name_slow(self) -> None:
        """All say where they are: tell for whom those waited in vain who had entered the exchange."""
        apart = {i: m.here.apart_s for i, m in self._work.items() if m.here is not None}
        slow = [i for i, apart_s in apart.items() if apart_s is None or apart_s >= self.facts.patience_s]
        if self._late and len(slow) < len(apart):
            for index in slow:
                apart_s = apart[index]
                took = "was not done with it" if apart_s is None else f"needed {apart_s:.3g} s for it"
                self._was_waited_for(index, took)
        self._late = False

    def _was_waited_for(self, index: int, why: str) -> None:
        self._slow = self.boards[index].name
        step = max([self.first_step, *(m.here.steps for m in self._work.values() if m.here is not None)])
        text = f"the others waited {self.facts.patience_s:g} s for {self._slow}'s part of step {step}"
        self._out.append(s.Note(WAITED, f"round {self.round}: {text}: it {why}", index, round=self.round))

    def waiting_groups(self) -> list[GroupWait]:
        """Return the ranks that have said where they are, and those that are still to do so: they may be in a step."""
        missing = [i for i, m in self._work.items() if m.here is None]
        here = tuple(i for i, m in self._work.items() if m.here is not None)
        if self.stage != HERE or not here or not missing:
            return []
        names = tuple(self.boards[i].name for i in missing)
        until_s = max(self._work[i].due_s for i in missing)
        return [GroupWait("the group", here, names, self._called_s, until_s)]

    # Formed ---------------------------------------------------------------------------------------------------------

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
            "check": (member.near or member.here.state) and member.here.steps == plan.first,
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

    # Stepping -------------------------------------------------------------------------------------------------------

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
        if broken.kind == "late":  # gloo does not say which, see `_name_slow`
            self._late = True
            reason += f"; the last time it was {self._slow}" if self._slow else ""
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
