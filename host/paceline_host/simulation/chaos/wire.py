# SPDX-License-Identifier: Apache-2.0
"""A board's link with its faults: what ZeroMQ over TCP does to messages, as both ends see it. Knows no message.

A connection keeps order and loses nothing. When it ends, the board's socket makes a new one by itself: what was under
way is lost (to the host it may also come late, over the old connection), what the board says meanwhile waits in its
outbox, and the host's end knows the old connection to be dead, or does not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from paceline_host.simulation.clock import Clock
from paceline_host.simulation.line import LinkModel

Bytes = bytes | memoryview
AGAIN_S = (0.3, 1.5)  # until a socket connects again
LATE_S = 20.0  # so much later may come what was in flight on a connection that has ended
UP, DOWN = "up", "down"


class Wire:
    """One board's link. `heard_by_host` is given the connection's number, too."""

    def __init__(
        self, clock: Clock, chance: Random, model: LinkModel, heard_by_host: Callable[[int, bytes, Bytes], None],
        heard_by_board: Callable[[bytes, Bytes], None],
    ) -> None:  # fmt: skip
        self._clock, self._chance, self._model = clock, chance, model
        self._heard = heard_by_host, heard_by_board
        self.route = 0  # the present connection
        self.slow = 1.0
        self.host_listens = False
        self._is_open = False
        self._opens_s = 0.0
        self._cut_after, self._cut_known = 0, False
        self._outbox: list[tuple[bytes, Bytes]] = []
        self._dead: set[int] = set()  # connections that the host knows to have ended
        self._late: dict[int, float] = {}  # of ended connections whose messages still come: when
        self._free = {UP: 0.0, DOWN: 0.0}
        self._blocked = {UP: 0.0, DOWN: 0.0}

    # Messages -------------------------------------------------------------------------------------------------------

    def say(self, header: bytes, payload: Bytes) -> None:
        """Take a message of the board: it goes as soon as there is a connection."""
        if not self._is_open:
            self._outbox.append((header, payload))
            return
        route = self.route
        self._carry(UP, header, payload, lambda: self._to_host(route, header, payload))

    def tell(self, route: int, header: bytes, payload: Bytes) -> bool:
        """Take a message of the host; False: it knows that there is no such connection."""
        if route in self._dead:
            return False
        if route == self.route and self._is_open:
            self._carry(DOWN, header, payload, lambda: self._to_board(route, header, payload))
        return True

    def is_alive(self, route: int) -> bool:
        """Tell whether the host believes so."""
        return route not in self._dead

    def inject(self, header: bytes, payload: Bytes, delay_s: float) -> None:
        """Let a message reach the host after a while, over whatever is the connection then."""
        self._clock.later(delay_s, lambda: self._heard[0](self.route, header, payload) if self.host_listens else None)

    def _carry(self, way: str, header: bytes, payload: Bytes, arrive: Callable[[], None]) -> None:
        model, now_s = self._model, self._clock.now_s
        free_s = max(now_s, self._free[way]) + (len(header) + len(payload)) * self.slow / model.bytes_per_s
        self._free[way] = free_s = max(free_s, self._blocked[way])  # TCP sends it again once there is a way
        self._clock.at(free_s + model.latency_s, arrive)
        if self._cut_after:
            self._cut_after -= 1
            if not self._cut_after:
                self._clock.later(model.latency_s / 2, lambda: self.cut(known=self._cut_known))

    def _to_host(self, route: int, header: bytes, payload: Bytes) -> None:
        if not self.host_listens:
            return
        if route == self.route:
            self._heard[0](route, header, payload)
        elif route in self._late:
            self._clock.at(self._late[route], lambda: self._heard[0](route, header, payload))

    def _to_board(self, route: int, header: bytes, payload: Bytes) -> None:
        if route == self.route:
            self._heard[1](header, payload)

    # Connections ----------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """The agent throws its socket away and makes another: what waited in its outbox is forgotten."""
        self._outbox.clear()
        self._end(known=True, away_s=0.01)

    def cut(self, *, known: bool, after: int = 0) -> None:
        """The connection ends under both, in the midst of so many messages more; the board's socket connects again."""
        if after:
            self._cut_after, self._cut_known = after, known
        elif self._is_open:
            self._end(known, self._chance.uniform(*AGAIN_S))

    def block(self, ways: tuple[str, ...], seconds: float) -> None:
        """Let nothing pass for a while."""
        for way in ways:
            self._blocked[way] = self._clock.now_s + seconds

    def heal(self) -> None:
        """Let everything pass from now on; what TCP holds back comes when it is sent again, and the rest behind it."""
        self.slow, self._cut_after = 1.0, 0
        self._blocked = {UP: 0.0, DOWN: 0.0}

    def host(self, *, listens: bool) -> None:
        """The host has ended, or is there again."""
        self.host_listens = listens
        if listens:
            self._opens_s = self._clock.now_s + self._chance.uniform(*AGAIN_S)
            self._clock.at(self._opens_s, self._open)
        else:
            self._end(known=True, away_s=0.0)
            self._late.clear()

    def _end(self, known: bool, away_s: float) -> None:
        if known:
            self._dead.add(self.route)
        if self._chance.random() < 0.5:
            self._late[self.route] = self._clock.now_s + self._chance.uniform(0.0, LATE_S)
        self.route += 1
        self._is_open = False
        self._opens_s = self._clock.now_s + away_s
        if self.host_listens:
            self._clock.at(self._opens_s, self._open)

    def _open(self) -> None:
        if self._is_open or not self.host_listens or self._clock.now_s < self._opens_s:
            return
        self._is_open = True
        self._free = {UP: self._clock.now_s, DOWN: self._clock.now_s}
        outbox, self._outbox = self._outbox, []
        for header, payload in outbox:
            self.say(header, payload)
