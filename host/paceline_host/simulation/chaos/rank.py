# SPDX-License-Identifier: Apache-2.0
"""A board whose trainer is a rank: what the agent's worker says and does between the host's calls, with steps that are
hashes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

from paceline import machine as m
from paceline.uneven import Deal
from paceline_host.ddp.figures import HEAD
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.group import Group, Net
from paceline_host.simulation.chaos.stepping import SOON_S, TEXT_BYTES, SteppingBoard

ADDRESS = "127.0.0.1"


class ChaosRank(SteppingBoard):
    """Between a schedule and the end of what it asks for, a rank looks at nothing else but once a step."""

    def __init__(self, *of_board: Any) -> None:
        *plain, net = of_board
        super().__init__(*plain)
        self._net: Net = net
        nbytes = len(truth.first_state(self._task))  # type: ignore[arg-type]
        self._base, self._inbox_bytes = bytearray(nbytes), nbytes + TEXT_BYTES
        self.memory = bytes(nbytes)  # of its trainer, whatever lease it has
        self._group: Group | None = None

    # What the trainer does, but for its steps -----------------------------------------------------------------------

    def begins(self) -> None:
        self._steps, self._holds, self._loaded, self._drift = 0, False, False, 0.0
        self._took_us: list[int] = []

    def stops(self) -> None:
        self._leave()

    def takes(self, given: m.StoreTensor, data: bytes) -> None:
        self._redraw = given.redraw
        if given.what == "call":
            self._called(data)
        elif given.what == "schedule":
            self._plan: dict[str, Any] = json.loads(data)
            self._busy = True
            self._take_part()
        elif given.what == "give":
            self.ends_work(self.memory, self.memory, self._steps)
        elif given.what == "close":
            self.ends_work(b"", self.memory, self._steps)

    def lose_peers(self) -> bool:
        if self._group is None or self._group.is_broken:
            return False
        self._group.shatter("collective", "connection reset by peer")
        return True

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave(self._plan["rank"])

    def _called(self, data: bytes) -> None:
        self._leave()
        if not self._loaded and data == b"L":
            self.memory, self._holds = bytes(self._base), True
        self._loaded = True
        self._say("here", steps=self._steps, state=self._holds, torch="2", dtype="float64", address=ADDRESS)

    def _say(self, what: str, **facts: object) -> None:
        self.gives(self._steps, self._redraw, what, json.dumps(facts).encode())

    def _load_rank(self, action: m.StartTrainer) -> None:
        if not self.hangs:
            self.memory = bytes(len(self._base))
        self._load_trainer(action)

    _ACTIONS: dict[type[object], Callable[..., None]] = {**SteppingBoard._ACTIONS, m.StartTrainer: _load_rank}

    # A group --------------------------------------------------------------------------------------------------------

    def _take_part(self) -> None:
        plan, net = self._plan, self._net
        if plan["stays"]:
            self._redeal()
            return
        if plan["rank"] == 0:
            port = net.open(len(plan["names"]))
            self._say("store", address=ADDRESS, port=port)
            if not self.is_working:
                return
        else:
            port = plan["port"]
        self._group = group = net.at(port)
        first = group.members.get(0)
        if plan["rank"] and (first is None or max(first.apart_s, self.apart_s) > self.clock.now_s):
            waits_s = SOON_S if first is None else net.patience_s
            reason = f"cannot reach the store of {plan['names'][0]}"
            self.when(waits_s, lambda: self.hears_broken(group, "unreachable", reason, [plan["rank"]]))
            return
        group.join(plan["rank"], self)

    def adopt(self, group: Group, state: bytes) -> None:
        """See Member."""
        self._in(group, lambda: self._adopt(state))

    def complete(self, group: Group, places: Sequence[int]) -> None:
        """See Member."""
        self._in(group, lambda: self._complete(places))

    def hears_broken(self, group: Group, kind: str, reason: str, blamed: Sequence[int]) -> None:
        """See Member."""
        self._in(group, lambda: self._broken(kind, reason, list(blamed)))

    def _in(self, group: Group, call: Any) -> None:
        work = self._work

        def happen() -> None:
            if self.alive and work == self._work and self._group is group and self._busy:
                call()

        if not self.hangs:
            self._awake(happen)

    def _broken(self, kind: str, reason: str, blamed: list[int]) -> None:
        self._leave()
        self._busy = False
        self._say("broken", kind=kind, reason=reason, blamed=blamed, steps=self._steps)
        self.go_on()

    # Steps ----------------------------------------------------------------------------------------------------------

    def _adopt(self, state: bytes) -> None:
        plan = self._plan
        if plan["rank"] and plan["check"] and state != self.memory:
            self._drift = 1.0
        self.memory, self._holds, self._steps = state, True, plan["first"]
        del self._took_us[3 * self._steps :]
        self._redeal()

    def _redeal(self) -> None:
        plan = self._plan
        self._deal = Deal(plan["shares"], plan["steps"], 1)
        self._step()

    def _step(self) -> None:
        if self._pending:  # the host has something to say
            self._busy = False
            self.go_on()
            return
        plan, group = self._plan, self._group
        assert group is not None
        places = self._deal.places(self._steps - plan["first"], plan["rank"])
        mine = [plan["place"] + place for place in places]
        before_us = self._spent_us

        def ready() -> None:
            self._took_us += [0, self._spent_us - before_us, 0]
            group.arrive(plan["rank"], mine)

        self.compute(len(mine), ready, waits=True)

    def _complete(self, places: Sequence[int]) -> None:
        plan = self._plan
        self.memory = truth.stepped(self.memory, places)
        self._steps += 1
        if self._steps < plan["first"] + plan["stretch"]:
            self._step()
            return
        self._busy = False
        figures = struct.pack(f"<{3 * self._steps}I", *self._took_us[: 3 * self._steps])
        self.gives(self._steps, self._redraw, "done", HEAD.pack(self._drift, self._steps) + figures)
        self.go_on()
