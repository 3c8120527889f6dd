# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the link: one DEALER and its monitor. The only module of the agent that knows zmq.

No ZMTP heartbeats here (a connecting socket that has them can abort the process), no routing id, no limit on the
receive side (credit bounds it): docs/PROTOCOL.md has the reasons. One thread may use an AgentLink.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import zmq

from paceline.errors import KeyFileError, LinkError
from paceline.keys import KeyPair, fingerprint
from paceline.quick import quicken
from paceline.wire import MAX_FRAME

COPY_BELOW = 1 << 18
NOTHING = memoryview(b"")  # the payload of most messages
KEEP_BYTES = 8 << 20
# Plain integers, and EVENTS asked before a receive: flags of an enum are joined, and Again is raised, at a price.
NOW, NOW_AND_MORE, READABLE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE), int(zmq.POLLIN)
Socket = zmq.Socket[bytes]


@dataclass(frozen=True)
class Arrival:
    """One message from the host; views on memory that zmq owns until they are dropped."""

    header: memoryview
    payload: memoryview


quicken((Arrival,))


def new_pair() -> KeyPair:
    """Return a fresh CURVE pair. Raises KeyFileError when libzmq was built without CURVE."""
    if not zmq.has("curve"):
        raise KeyFileError("this libzmq has no CURVE, and paceline never talks in the clear; install pyzmq's wheel")
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


class AgentLink:
    """Connects to `endpoint`, whose key must be `host_key`. `trouble` says in words why no handshake succeeded yet."""

    def __init__(self, endpoint: str, keys: KeyPair, host_key: str) -> None:
        self._endpoint = endpoint
        self._keys = keys
        self._host_key = host_key
        self.trouble = "the host has not answered the connection attempt"
        self.refused = False  # the host has said that it does not know this key
        self.wrong_key = False  # it is probably not the host whose key is pinned
        self.proven = False  # a handshake has succeeded: whatever fails later, the keys are right
        _keep_buffers()
        self._context = zmq.Context()
        self._context.linger = 0
        self._poller = zmq.Poller()
        try:
            self._open()
        except BaseException:
            self._context.destroy(linger=0)  # else its end would wait for the open sockets for ever
            raise

    def watch(self, descriptor: int) -> None:
        """Let `poll` end when `descriptor` becomes readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor, before it is closed."""
        with suppress(KeyError):
            self._poller.unregister(descriptor)

    def poll(self, timeout_s: float) -> set[int]:
        """Wait for a message, a descriptor or the timeout; return the readable descriptors."""
        ready = set()
        for source, _ in self._poller.poll(max(0, int(timeout_s * 1000 + 0.999))):
            if source is self._socket:
                self._is_readable = True
            elif source is self._watch_socket:
                self._listen()
            elif isinstance(source, int):
                ready.add(source)
        return ready

    def receive(self, limit: int = 64) -> Iterator[Arrival]:
        """Yield what has arrived as of the last `poll`, at most `limit` messages, without waiting."""
        for number in range(limit if self._is_readable else 0):
            if number and not self._events() & READABLE:  # of the first one `poll` has told
                break
            try:
                frames = [self._socket.recv(NOW, copy=False)]
            except zmq.Again:  # the connection has ended since
                break
            while frames[-1].more:
                frames.append(self._socket.recv(NOW, copy=False))
            if len(frames) <= 2:
                yield Arrival(frames[0].buffer, frames[1].buffer if len(frames) == 2 else NOTHING)
        self._is_readable = False

    def send(self, header: bytes, payload: memoryview | bytes = b"") -> bool:
        """Send without waiting; False: not connected, or the pipe is full."""
        try:
            if len(payload):
                self._socket.send(header, NOW_AND_MORE)
                self._socket.send(payload, NOW, copy=len(payload) < COPY_BELOW)
            else:
                self._socket.send(header, NOW)
        except zmq.Again:
            return False
        return True

    def reconnect(self) -> None:
        """Throw the socket away and begin anew: drops whatever is queued, resolves the name again."""
        self._close_socket()
        self._open()

    def close(self, linger_s: float = 0.0) -> None:
        """Close; a goodbye gets `linger_s` to leave."""
        self._close_socket(int(linger_s * 1000))
        self._context.term()

    def _open(self) -> None:
        self._socket = self._new_socket()
        self._is_readable = False
        self._watch_socket = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED
            | zmq.EVENT_CONNECT_RETRIED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._watch_socket, zmq.POLLIN)
        self._shaking = False
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise LinkError(
                f"cannot connect to {self._endpoint}: {error.strerror}; expected tcp://ADDRESS:PORT"
            ) from None

    def _events(self) -> int:
        events = self._socket.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return events

    def _new_socket(self) -> Socket:
        return _dealer(self._context, self._keys, self._host_key)

    def _close_socket(self, linger_ms: int = 0) -> None:
        self._poller.unregister(self._socket)
        self._poller.unregister(self._watch_socket)
        self._socket.disable_monitor()
        self._watch_socket.close(linger=0)
        self._socket.close(linger=linger_ms)

    def _listen(self) -> None:
        """Turn monitor events into `trouble`: libzmq itself retries for ever and says nothing."""
        with suppress(zmq.Again):
            while True:
                kind = _event(self._watch_socket.recv_multipart(zmq.DONTWAIT))
                if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._shaking, self.proven, self.trouble = False, True, ""
                elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._shaking, self.refused = False, True
                    self.trouble = (
                        f"the host refused this board's key, fingerprint {fingerprint(self._keys.public)}; "
                        f"put this board's .pub file, holding {self._keys.public}, into the host's boards' key folder"
                    )
                elif kind == zmq.EVENT_CONNECTED:
                    self._shaking = True
                elif kind == zmq.EVENT_CONNECT_RETRIED and not self._shaking:
                    self.trouble = self.trouble or f"nothing listens at {self._endpoint}"
                elif self._shaking:  # closed in mid-handshake
                    self._shaking, self.wrong_key = False, not self.proven
                    self.trouble = (
                        "the handshake was not finished: the host stands still, or has another key than the one "
                        f"that is pinned here, fingerprint {fingerprint(self._host_key)}"
                    ) if self.proven else (
                        "the host ended the CURVE handshake: host_public_key in agent.toml is probably not that host's "
                        f"key (configured: fingerprint {fingerprint(self._host_key)})"
                    )  # fmt: skip


def _dealer(context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, host_key: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.immediate = 1
    socket.maxmsgsize = MAX_FRAME
    socket.sndhwm = 64
    socket.rcvhwm = 0
    socket.handshake_ivl = 10_000
    socket.connect_timeout = 10_000
    socket.reconnect_ivl = random.randint(500, 1500)
    socket.reconnect_ivl_max = 30_000
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 60
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 10, 3
    socket.tcp_maxrt = 30_000
    socket.curve_serverkey = host_key.encode()
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    return socket


def _keep_buffers() -> None:
    """Let glibc keep what libzmq frees: a large block that comes and goes, never touched, raises the size from which on
    each buffer is mapped anew and paid for page by page. A fifth of a transfer's time; other C libraries do not care.
    """
    bytes(KEEP_BYTES)


def _event(frames: list[bytes]) -> int:
    """Return the kind of a monitor's event. By hand: pyzmq's own parser imports asyncio and ssl, 4 MB on a board."""
    return int(struct.unpack_from("=H", frames[0])[0])
