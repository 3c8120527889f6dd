# SPDX-License-Identifier: Apache-2.0
"""The host's end of the link: one ROUTER, its ZAP handler, its monitor. Of the host's modules only this one,
operator_link and the benchmarks' swarm_link know zmq.

Frames in, frames out; a peer is the board or the operator that its authenticated key belongs to, never what it says it
is. The presets and the reason of each option: docs/PROTOCOL.md. One thread, the one that made it, may use a HostLink.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import zmq
import zmq.utils.z85

from paceline.errors import KeyFileError, LinkError
from paceline.keys import KeyPair, fingerprint
from paceline.quick import quicken
from paceline.wire import MAX_FRAME

ZAP_DOMAIN = b"agents"
COPY_BELOW = 1 << 18  # smaller frames are cheaper copied than shared with libzmq
SELF_TEST_S = 5.0
KEEP_BYTES = 8 << 20
# Plain integers, and EVENTS asked before a receive: flags of an enum are joined, and Again is raised, at a price.
NOW, NOW_AND_MORE, READABLE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE), int(zmq.POLLIN)
Socket = zmq.Socket[bytes]
NOTHING = memoryview(b"")  # the payload of most messages
STRANGERS = 100  # unknown keys that are remembered
GOODBYE_MS = 300
DESCRIPTORS = 1 << 16
FULL_S = 60.0  # between two words about it
OWN_DESCRIPTORS = 96  # libraries, journal, checkpoints, trainers of an emulated fleet
_REFUSALS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
}


@dataclass(frozen=True)
class Arrival:
    """One message from a board: header and payload are views on memory that zmq owns until they are dropped.

    `operator`: it comes from an operator of that name instead, and `board` is empty.
    """

    board: str
    route: bytes
    header: memoryview
    payload: memoryview
    operator: str = ""


quicken((Arrival,))


@dataclass(frozen=True)
class Stranger:
    """A key that nobody knows and that has knocked. Instants are monotonic."""

    key: str
    address: str
    first_s: float
    last_s: float
    times: int


def new_pair() -> KeyPair:
    """Return a fresh CURVE pair. Raises KeyFileError when libzmq was built without CURVE."""
    if not zmq.has("curve"):
        raise KeyFileError("this libzmq has no CURVE, and paceline never talks in the clear; install pyzmq's wheel")
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def public_of(secret: str) -> str:
    """Return the public half that belongs to a secret; empty: it is no key."""
    try:
        return zmq.curve_public(secret.encode("ascii")).decode("ascii")
    except (ValueError, zmq.ZMQError):
        return ""


class HostLink:
    """Binds `endpoint` and talks to `boards` and `operators` (name -> public key each) and to nobody else.

    Raises KeyFileError when a board and an operator have one key, LinkError when it cannot listen.
    """

    def __init__(
        self, endpoint: str, keys: KeyPair, boards: Mapping[str, str], say: Callable[[str], None],
        operators: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.told: deque[str] = deque(maxlen=64)  # of what it has said: whom it has refused, and why
        self._words = say
        self._routes: dict[str, bytes] = {}
        self.dropped_frames = 0
        self._is_readable = False
        peers = _peers_by_key(boards, operators or {})
        _keep_buffers()
        self._most = _room_for_connections()
        self._context = zmq.Context()
        self._context.linger = 0
        self._zap = _Zap(self._context, peers, self._say, lives_on=operators is not None)
        with ExitStack() as life:  # ends in reverse: our sockets, the context, by that the ZAP thread and its socket
            life.callback(self._zap.join)
            life.callback(self._context.term)
            self._zap.start()
            self._socket = self._new_socket(keys)
            life.callback(self._socket.close, linger=GOODBYE_MS)
            self._watch = self._socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_ACCEPT_FAILED
                | zmq.EVENT_ACCEPTED
                | zmq.EVENT_DISCONNECTED
            )
            life.callback(self._watch.close, linger=0)
            life.callback(self._watch_no_more)
            self._last_complaint_s = -60.0
            self._is_starved = False  # there were no descriptors for a connection
            self._left = 0  # connections that have ended
            self._connections: set[int] = set()  # their descriptors, those of strangers with them
            self._last_full_s = -FULL_S
            try:
                self._socket.bind(endpoint)
            except zmq.ZMQError as error:
                raise LinkError(
                    f"cannot listen on {endpoint}: {error.strerror}; choose another address or port"
                ) from None
            bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
            assert isinstance(bound, bytes)
            self.endpoint = bound.rstrip(b"\0").decode("ascii")
            self._self_test(keys)
            self._wake_read, self._wake_write = os.pipe()
            for descriptor in (self._wake_read, self._wake_write):
                life.callback(os.close, descriptor)
                os.set_blocking(descriptor, False)
            self._poller = zmq.Poller()
            for source in (self._socket, self._watch, self._wake_read):
                self._poller.register(source, zmq.POLLIN)
            self._life = life.pop_all()

    def wake(self) -> None:
        """End a `poll` early; the one method that any thread may call."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"w")

    def poll(self, timeout_s: float) -> None:
        """Wait until a message, a wake-up or the timeout."""
        for source, _ in self._poller.poll(max(0, int(timeout_s * 1000 + 0.999))):
            if source is self._socket:
                self._is_readable = True
            elif source == self._wake_read:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            elif source is self._watch:
                self._complain()

    def receive(self, limit: int = 256) -> Iterator[Arrival]:
        """Yield what has arrived, at most `limit` messages, without waiting."""
        for _ in range(limit):
            if not self._is_readable and not self._events() & READABLE:
                return
            self._is_readable = False  # as far as is known, after the message that `poll` has seen
            try:
                route = self._socket.recv(NOW)
            except zmq.Again:  # its connection has ended since
                return
            header = last = self._socket.recv(NOW, copy=False)
            frames = 1
            while last.more:  # an endless multipart is drained, not kept
                last = self._socket.recv(NOW, copy=False)
                frames += 1
            peer = self._peer_of(header)
            if frames > 2 or peer is None:
                self.dropped_frames += 1
                continue
            payload = last.buffer if frames == 2 else NOTHING
            yield Arrival(peer.board, route, header.buffer, payload, peer.operator)

    def admit(self, boards: Mapping[str, str], operators: Mapping[str, str]) -> None:
        """From now on these are let in, and heard, and no others. Raises KeyFileError and changes nothing."""
        self._zap.peers = _peers_by_key(boards, operators)

    def strangers(self) -> list[Stranger]:
        """Return the keys that have knocked and are unknown, the latest first; any thread may call."""
        found = [each for each in self._zap.strangers.copy().values() if each.key not in self._zap.peers]
        return sorted(found, key=lambda stranger: -stranger.last_s)

    def adopt(self, board: str, route: bytes) -> None:
        """From now on a board is reached by this route: its present session was heard there."""
        self._routes[board] = route

    def send(self, board: str, header: bytes, payload: memoryview | bytes = b"") -> bool:
        """Send to a board without waiting; False: it is not connected, or its pipe is full."""
        route = self._routes.get(board)
        return route is not None and self.send_to(route, header, payload)

    def send_to(self, route: bytes, header: bytes, payload: memoryview | bytes = b"") -> bool:
        """Send along a route, without waiting; False as in `send`."""
        try:
            self._socket.send(route, NOW_AND_MORE)
            if len(payload):
                self._socket.send(header, NOW_AND_MORE)
                self._socket.send(payload, NOW, copy=len(payload) < COPY_BELOW)
            else:
                self._socket.send(header, NOW)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def part(self, peers: int, within_s: float) -> None:
        """Let so many peers that were told goodbye hang up first; whatever else they say is read and dropped.

        A connection that is closed with bytes unread is reset, and a reset takes the goodbye away from a peer that has
        not read it yet.
        """
        left, end_s = self._left, time.monotonic() + within_s
        while self._left < left + peers and (rest_s := end_s - time.monotonic()) > 0:
            self.poll(rest_s)
            for _ in self.receive():
                pass

    def close(self) -> None:
        """Close all sockets; goodbyes that were sent before get GOODBYE_MS to leave."""
        self._life.close()

    def _say(self, text: str) -> None:
        """Say why somebody is not let in; the ZAP handler's thread calls this, too."""
        self.told.append(text)
        self._words(text)

    def _events(self) -> int:
        events = self._socket.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return events

    def _watch_no_more(self) -> None:
        """End the monitor. Without descriptors libzmq's thread reports failed connections without end, and stands in a
        full pipe when nobody reads, with the lock that this end needs: so it first listens no more, and all is read.
        """
        if self._is_starved:
            self._socket.unbind(self.endpoint)
            end_s = time.monotonic() + 1.0
            while self._watch.poll(50) and time.monotonic() < end_s:
                self._watch.recv_multipart()
        self._socket.disable_monitor()

    def _new_socket(self, keys: KeyPair) -> Socket:
        return _router(self._context, keys)

    def _peer_of(self, frame: zmq.Frame) -> Peer | None:
        return self._zap.peer_of(frame.get("User-Id"))

    def _complain(self) -> None:
        with suppress(zmq.Again):
            while True:
                event, value = struct.unpack_from("=Hi", self._watch.recv_multipart(zmq.DONTWAIT)[0])
                if event == zmq.EVENT_ACCEPTED:
                    self._connections.add(value)
                    self._keep_room(value)
                    continue
                if event == zmq.EVENT_DISCONNECTED:
                    self._left += 1
                    self._connections.discard(value)
                    continue
                self._is_starved |= event == zmq.EVENT_ACCEPT_FAILED
                if time.monotonic() - self._last_complaint_s < 5.0:
                    continue
                self._last_complaint_s = time.monotonic()
                if event == zmq.EVENT_ACCEPT_FAILED:
                    self._say("cannot accept more connections: out of file descriptors? raise LimitNOFILE / ulimit -n")
                else:
                    self._say(
                        "a connection failed the CURVE handshake: that peer pins another host key or is no agent, "
                        "or one of the two machines stood still"
                    )

    def _keep_room(self, descriptor: int) -> None:
        """Cut off a connection that is one too many: a flood of strangers takes descriptors that the run's own files
        need. Theirs end by `handshake_ivl`; who is connected notices nothing, who wants to connect tries again.

        By the descriptor that libzmq has told; to unbind would end the connections of all. Where it is closed already,
        and used anew, that is an error here or a board that connects again.
        """
        if len(self._connections) <= self._most:
            return
        with suppress(OSError):
            stranger = socket.socket(fileno=descriptor)
            try:
                stranger.shutdown(socket.SHUT_RDWR)
            finally:
                stranger.detach()  # its end is libzmq's to see to
        if time.monotonic() - self._last_full_s >= FULL_S:
            self._last_full_s = time.monotonic()
            self._say(
                f"{self._most} connections, no more are let in: the other descriptors are for the run's own files; "
                "is somebody knocking without end? see LimitNOFILE / ulimit -n"
            )

    def _self_test(self, keys: KeyPair) -> None:
        """Prove that a key nobody knows is refused; without ZAP a CURVE server accepts any."""
        stranger = plain_dealer(self._context, keys.public, new_pair())
        watch = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _or(_REFUSALS))
        try:
            self._zap.quiet = True
            stranger.connect(self.endpoint.replace("0.0.0.0", "127.0.0.1"))
            if not watch.poll(int(SELF_TEST_S * 1000)):
                raise LinkError(f"self-test: {self.endpoint} does not answer on this machine")
            if _event(watch.recv_multipart()) not in _REFUSALS:
                raise LinkError("self-test: an unknown key was accepted; refusing to start")
        finally:
            stranger.disable_monitor()
            watch.close(linger=0)
            stranger.close(linger=0)
            self._zap.quiet = False


@dataclass(frozen=True)
class Peer:
    """Whose key it is: one of the two names is empty."""

    board: str = ""
    operator: str = ""


def _peers_by_key(boards: Mapping[str, str], operators: Mapping[str, str]) -> dict[str, Peer]:
    peers = {key: Peer(board=name) for name, key in boards.items()}
    for name, key in operators.items():
        if key in peers:
            raise KeyFileError(f"board {peers[key].board} and operator {name} have the same public key; make two")
        peers[key] = Peer(operator=name)
    return peers


def _or(flags: set[zmq.Event]) -> int:
    total = 0
    for flag in flags:
        total |= flag
    return total


def _router(context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair | None) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    socket.router_mandatory = 1
    socket.router_handover = 1
    socket.maxmsgsize = MAX_FRAME
    socket.sndhwm = socket.rcvhwm = 1000
    socket.heartbeat_ivl, socket.heartbeat_timeout = 10_000, 30_000  # on the binding side only: see PROTOCOL.md
    socket.handshake_ivl = 10_000
    socket.backlog = 1024
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 60
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 10, 3
    if keys is not None:  # only the benchmark's comparison is without
        socket.curve_server = 1
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return socket


def plain_dealer(context: zmq.Context[zmq.Socket[bytes]], server: str, keys: KeyPair) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = server.encode()
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    return socket


class _Zap:
    """The ZAP handler of a context: refuses every key it was not told. A thread of its own, so no load delays a
    handshake.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], peers: Mapping[str, Peer], say: Callable[[str], None],
        *, lives_on: bool,
    ) -> None:  # fmt: skip
        self.peers = peers  # replaced as a whole, never changed: this thread reads it at any time
        self.strangers: dict[str, Stranger] = {}
        self._say = say
        self._then = "" if lives_on else " and start again"
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._thread = threading.Thread(target=self._serve, name="zap", daemon=True)
        self._complained_s: dict[str, float] = {}
        self.quiet = False

    def start(self) -> None:
        """Bind first, so that no handshake can come before."""
        self._socket.bind("inproc://zeromq.zap.01")
        self._thread.start()

    def join(self) -> None:
        """Wait for the end that the context's end brings."""
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def peer_of(self, user_id: object) -> Peer | None:
        """Return whose a frame's authenticated key is; None: nobody's, or nobody's any more."""
        return self.peers.get(user_id if isinstance(user_id, str) else "")

    def _serve(self) -> None:
        while True:
            try:
                frames = self._socket.recv_multipart()
                self._socket.send_multipart(self._answer(frames))
            except (zmq.ContextTerminated, zmq.ZMQError):
                self._socket.close(linger=0)
                return

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        request = frames[1] if len(frames) > 1 else b""
        refused = [b"1.0", request, b"400", b"unknown key", b"", b""]
        try:
            _, _, domain, address, _, mechanism, credential = frames
            key = zmq.utils.z85.encode(credential).decode("ascii")
            if domain == ZAP_DOMAIN and mechanism == b"CURVE" and key in self.peers:
                return [b"1.0", request, b"200", b"OK", key.encode(), b""]
            self._remember(key, address.decode("ascii", "replace"))
            self._complain(key, address.decode("ascii", "replace"))
        except Exception:  # whatever a stranger sends, the handler must live: refuse
            return refused
        return refused

    def _remember(self, key: str, address: str) -> None:
        if self.quiet:
            return
        now_s = time.monotonic()
        before = self.strangers.pop(key, Stranger(key, address, now_s, now_s, 0))
        self.strangers[key] = Stranger(key, address, before.first_s, now_s, before.times + 1)
        if len(self.strangers) > STRANGERS:  # the one that has been quiet for longest stands first
            del self.strangers[next(iter(self.strangers))]

    def _complain(self, key: str, address: str) -> None:
        now_s = time.monotonic()
        if self.quiet or now_s - self._complained_s.get(key, -60.0) < 30.0 or len(self._complained_s) > 1000:
            return
        self._complained_s[key] = now_s
        self._say(
            f"refused an unknown key from {address}, fingerprint {fingerprint(key)}; if it is one of your boards, "
            f"put its .pub file, holding {key}, into the boards' key folder{self._then}"
        )


def _keep_buffers() -> None:
    """Let glibc keep what libzmq frees: a large block that comes and goes, never touched, raises the size from which on
    each buffer is mapped anew and paid for page by page. A fifth of a transfer's time; other C libraries do not care.
    """
    bytes(KEEP_BYTES)


def _room_for_connections() -> int:
    """Let this process have as many descriptors as the system allows; return how many of them connections may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    limit = DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(limit // 4, limit - max(OWN_DESCRIPTORS, limit // 8))


def _event(frames: list[bytes]) -> int:
    """Return the kind of a monitor's event. By hand, as on the agent: pyzmq's own parser imports asyncio."""
    return int(struct.unpack_from("=H", frames[0])[0])
