# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks as gloo makes them, and what ends one: a rank that is gone or does not come, a way that is cut.

A rank that waits finds out of either, at once or within the patience; by then some may have come through an exchange
that others have not. Knows ranks by what it calls of them, and no host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from paceline_host.simulation.chaos import truth
from paceline_host.simulation.clock import Clock

SPREAD_S = (0.001, 0.001, 0.001, 1.0)  # within which ranks come through one exchange, most often and at times
BREAK_S = 0.01  # until ranks notice that a connection has ended


class Member(Protocol):
    """A rank, as its group knows it."""

    number: int
    apart_s: float
    memory: bytes

    def adopt(self, group: Group, state: bytes) -> None:
        """The first rank's state has come."""

    def complete(self, group: Group, places: Sequence[int]) -> None:
        """A step's sum has come, over these places."""

    def hears_broken(self, group: Group, kind: str, reason: str, blamed: Sequence[int]) -> None:
        """The group is no more."""


class Net:
    """What connects boards: the ports on which first ranks have opened stores."""

    def __init__(self, clock: Clock, patience_s: float, chance: Random) -> None:
        self.clock, self.patience_s, self.chance = clock, patience_s, chance
        self._groups: list[Group] = []
        self.done: dict[str, list[Counter[int]]] = {}  # by the state that a step left: who took how many samples in it

    def open(self, count: int) -> int:
        """Open a store for so many ranks; return its port."""
        self._groups.append(Group(self, count))
        return len(self._groups)

    def at(self, port: int) -> Group:
        """Return the group behind a port."""
        return self._groups[port - 1]


class Group:
    """`count` ranks that are to come."""

    def __init__(self, net: Net, count: int) -> None:
        self._net, self._count = net, count
        self.members: dict[int, Member] = {}
        self.is_broken = False
        self._arrived: dict[int, Sequence[int]] = {}
        self._waits: dict[int, object] = {}

    def join(self, rank: int, member: Member) -> None:
        """Come to the store; when all are there, the first rank's state goes to all."""
        self.members[rank] = member
        self._wait(rank, "meeting", "not all ranks came to the store")
        if len(self.members) == self._count and not self.is_broken:
            state = self.members[0].memory
            self._exchange(lambda one: one.adopt(self, state))

    def arrive(self, rank: int, places: Sequence[int]) -> None:
        """Have the gradient of these places ready."""
        self._arrived[rank] = places
        self._wait(rank, "late", "waited for another rank's part of the step")
        if len(self._arrived) == self._count and not self.is_broken:
            arrived, self._arrived = self._arrived, {}
            union = [place for part in arrived.values() for place in part]
            who = Counter({self.members[rank].number: len(part) for rank, part in arrived.items()})
            left = truth.sha(truth.stepped(self.members[0].memory, union))
            self._net.done.setdefault(left, []).append(who)
            self._exchange(lambda one: one.complete(self, union))

    def leave(self, rank: int) -> None:
        """Be gone: others find out in their next exchange, or in the one that they are in."""
        if self.members.pop(rank, None) is not None:
            self.shatter("collective", "connection closed by peer")

    def shatter(self, kind: str, reason: str, blamed: Sequence[int] = ()) -> None:
        """Let whoever waits find out that the group is no more."""
        self.is_broken = True
        for rank in list(self._waits):
            self._tell(rank, kind, reason, blamed)

    def _tell(self, rank: int, kind: str, reason: str, blamed: Sequence[int]) -> None:
        del self._waits[rank]
        if (member := self.members.get(rank)) is not None:
            self._net.clock.later(BREAK_S, lambda: member.hears_broken(self, kind, reason, blamed))

    def _wait(self, rank: int, kind: str, reason: str) -> None:
        token = self._waits[rank] = object()

        def late() -> None:
            if self._waits.get(rank) is token:
                missing = [other for other in range(self._count) if other not in self.members]
                self.shatter(kind, reason, missing if kind == "meeting" else ())

        if self.is_broken:
            self._tell(rank, "collective", "connection reset by peer", ())
        else:
            self._net.clock.later(self._net.patience_s, late)

    def _exchange(self, comes: Callable[[Member], None]) -> None:
        """Let all come through, some after others, unless the group ends meanwhile."""
        clock, chance, members = self._net.clock, self._net.chance, sorted(self.members.items())
        apart_s = max(member.apart_s for _, member in members) if len(members) > 1 else 0.0
        spread_s = chance.choice(SPREAD_S)
        for rank, member in members:
            clock.at(max(clock.now_s, apart_s) + spread_s * chance.random(), self._through(rank, member, comes))

    def _through(self, rank: int, member: Member, comes: Callable[[Member], None]) -> Callable[[], None]:
        token = self._waits.get(rank)

        def happen() -> None:
            if token is not None and self._waits.get(rank) is token:
                del self._waits[rank]
                comes(member)

        return happen
