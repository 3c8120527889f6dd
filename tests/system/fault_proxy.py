# SPDX-License-Identifier: Apache-2.0
"""A bad network between real programs: TCP connections are passed on, and a test says how badly. Knows no protocol.

What is held back is kept and comes when the network is healed, as TCP would send it again; nothing is changed in a
connection that lives. A thread for each direction of each connection.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

UP, DOWN = "up", "down"  # to the target, from it
AT_ONCE = 1 << 16  # bytes of one read
JOIN_S = 10.0


@dataclass(frozen=True)
class Weather:
    """What is done to all bytes. The default is nothing."""

    latency_s: float = 0.0  # each read is passed on so much later, and the next one read after that
    bytes_per_s: float = float("inf")  # of each connection and direction
    slice_bytes: int = AT_ONCE  # at most so many are passed on at once
    held: frozenset[str] = frozenset()  # directions in which nothing passes


class FaultProxy:
    """Listens at `endpoint` and connects to `target` ("tcp://ADDRESS:PORT") for each connection."""

    def __init__(self, target: str) -> None:
        address, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = address, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0  # so far
        self.passed: Counter[str] = Counter()  # bytes, by direction
        self._change = threading.Condition()
        self._weather = Weather()
        self._pairs: list[_Pair] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._start(self._accept)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread that accepts
        self._listener.close()
        self.set(Weather())
        self.cut()
        for thread in self._threads:
            thread.join(JOIN_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def set(self, weather: Weather) -> None:
        """Let it be so from now on. `Weather()` heals."""
        with self._change:
            self._weather = weather
            self._change.notify_all()

    def cut(self) -> int:
        """End all connections in order; return how many."""
        return self._end_all(linger=False)

    def reset(self) -> int:
        """End all connections by RST, what is under way is lost; return how many."""
        return self._end_all(linger=True)

    def _end_all(self, *, linger: bool) -> int:
        with self._change:
            pairs, self._pairs = self._pairs, []
            ended = sum(pair.end(linger) for pair in pairs)
            self._change.notify_all()
        return ended

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # nobody listens there now
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # slices are to stay slices
            pair = _Pair(near, far)
            with self._change:
                self.connections += 1
                self._pairs.append(pair)
            self._start(self._pump, pair, near, far, UP)
            self._start(self._pump, pair, far, near, DOWN)

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError):
            while data := source.recv(self._wait(pair, way).slice_bytes):
                weather = self._wait(pair, way)
                pair.over.wait(weather.latency_s + len(data) / weather.bytes_per_s)
                self._wait(pair, way)
                sink.sendall(data)
                self.passed[way] += len(data)
        pair.end(linger=False)

    def _wait(self, pair: _Pair, way: str) -> Weather:
        with self._change:
            self._change.wait_for(lambda: way not in self._weather.held or pair.over.is_set())
            return self._weather


@dataclass(eq=False)
class _Pair:
    """A connection's two sockets. Closing one that another thread reads wakes nobody: they are shut down first."""

    near: socket.socket
    far: socket.socket
    over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, linger: bool) -> bool:
        """End both; tell whether they had not ended yet."""
        with self._lock:
            if self.over.is_set():
                return False
            self.over.set()
        for one in (self.near, self.far):
            if linger:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):  # the peer may have ended it
                one.shutdown(socket.SHUT_RD if linger else socket.SHUT_RDWR)
            one.close()  # the last close says the rest: RST, with `linger`
        return True
