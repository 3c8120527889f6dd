# SPDX-License-Identifier: Apache-2.0
"""The boards' end of the link for many boards in one process: a DEALER for each, with keys of its own, on one context.

For benchmarks and tests alone. Unlike an agent's, these sockets let a message wait for its connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq

from paceline.keys import KeyPair
from paceline_host.link import NOW, NOW_AND_MORE, Socket, plain_dealer

NOTHING = memoryview(b"")


class Dealers:
    """Sockets 0, 1, ... to `endpoint`, one for each of `keys`. `leash`: a descriptor whose end ends the process."""

    def __init__(self, endpoint: str, host_key: str, keys: Sequence[KeyPair], leash: int) -> None:
        self._leash = leash
        self.cut = False  # the leash is
        self.sent, self.received = [0, 0, 0], [0, 0, 0]  # messages, bytes of headers, bytes of payloads
        self._context = zmq.Context()
        self._context.linger = 0
        self._context.max_sockets = len(keys) + 8
        self._poller = zmq.Poller()
        self._poller.register(leash, zmq.POLLIN)
        self._sockets = [plain_dealer(self._context, host_key, pair) for pair in keys]
        self._numbers: dict[Socket, int] = {}
        for number, socket in enumerate(self._sockets):
            self._numbers[socket] = number
            self._poller.register(socket, zmq.POLLIN)
            socket.connect(endpoint)

    def poll(self, timeout_s: float) -> list[int]:
        """Wait until a message, the leash's end or the timeout; return the readable sockets' numbers."""
        ready = []
        for source, _ in self._poller.poll(max(0, int(timeout_s * 1000 + 0.999))):
            if source == self._leash:
                self.cut = True
            else:
                ready.append(self._numbers[source])
        return ready

    def receive(self, number: int) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (header, payload) of what has arrived at a socket."""
        socket = self._sockets[number]
        while not socket.closed:
            try:
                header = socket.recv(NOW)
            except zmq.Again:
                return
            payload = socket.recv(NOW, copy=False).buffer if socket.getsockopt(zmq.RCVMORE) else NOTHING
            _count(self.received, header, payload)
            yield header, payload

    def send(self, number: int, header: bytes, payload: memoryview | bytes) -> None:
        """Send from a socket; what finds no connection waits for it."""
        _count(self.sent, header, payload)
        if len(payload):
            self._sockets[number].send(header, NOW_AND_MORE)
            self._sockets[number].send(payload, NOW)
        else:
            self._sockets[number].send(header, NOW)

    def shut(self, number: int) -> None:
        """Close a socket for good."""
        socket = self._sockets[number]
        if not socket.closed:
            self._poller.unregister(socket)
            socket.close(linger=0)

    def close(self) -> None:
        """Close all."""
        for number in range(len(self._sockets)):
            self.shut(number)
        self._context.term()


def _count(total: list[int], header: bytes, payload: memoryview | bytes) -> None:
    total[0] += 1
    total[1] += len(header)
    total[2] += len(payload)
