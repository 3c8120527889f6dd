# SPDX-License-Identifier: Apache-2.0
"""Both ends of the link over real sockets on loopback: who gets in, what gets through, and what strangers cannot do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import zmq

from paceline import wire
from paceline.errors import LinkError
from paceline.keys import KeyPair, fingerprint
from paceline.wire import Hello, Message, Ping, Pong, Reject, Welcome
from paceline_agent.link import AgentLink
from paceline_host.link import Arrival, HostLink, new_pair
from paceline_host.peers import Peers, Terms

DEADLINE_S = 20.0
TERMS = Terms(host_epoch=1, chunk_bytes=1 << 18, credit_bytes=1 << 20, heartbeat_s=2.0, patience_s=30.0)


Connect = Callable[..., "AgentEnd"]


@dataclass
class HostEnd:
    """A host's link with the boards `names`, and what it said and heard."""

    names: tuple[str, ...] = ("pi", "other")
    keys: KeyPair = field(default_factory=new_pair)
    said: list[str] = field(default_factory=list)
    heard: list[tuple[str, bytes, int]] = field(default_factory=list)  # (board, header, payload's length)

    def __post_init__(self) -> None:
        self.boards = {name: new_pair() for name in self.names}
        public = {name: pair.public for name, pair in self.boards.items()}
        self.link = HostLink("tcp://127.0.0.1:0", self.keys, public, self.said.append)
        self.on_arrival: Callable[[Arrival], None] = lambda arrival: None

    @property
    def address(self) -> tuple[str, int]:
        """Return where it listens."""
        ip, port = self.link.endpoint.removeprefix("tcp://").split(":")
        return ip, int(port)

    def turn(self) -> None:
        """Take what has arrived."""
        self.link.poll(0.005)
        for arrival in self.link.receive():
            self.link.adopt(arrival.board, arrival.route)
            self.heard.append((arrival.board, bytes(arrival.header), len(arrival.payload)))
            self.on_arrival(arrival)


@dataclass
class AgentEnd:
    """An agent's link and what it heard."""

    link: AgentLink
    heard: list[tuple[bytes, bytes]] = field(default_factory=list)

    def turn(self) -> None:
        """Take what has arrived."""
        self.link.poll(0.005)
        self.heard += [(bytes(a.header), bytes(a.payload)) for a in self.link.receive()]

    def messages(self) -> list[Message]:
        """Return the messages it heard."""
        return [wire.decode(header, wire.FROM_HOST) for header, _ in self.heard]


@pytest.fixture
def host() -> Iterator[HostEnd]:
    end = HostEnd()
    yield end
    end.link.close()


@pytest.fixture
def connect(host: HostEnd) -> Iterator[Connect]:
    """Return a function that connects an agent, by default the board pi with the right keys."""
    with contextlib.ExitStack() as life:

        def make(keys: KeyPair | None = None, host_key: str = "", endpoint: str = "") -> AgentEnd:
            link = AgentLink(endpoint or host.link.endpoint, keys or host.boards["pi"], host_key or host.keys.public)
            life.callback(link.close)
            return AgentEnd(link)

        yield make


@pytest.fixture
def raw(host: HostEnd) -> Iterator[Callable[..., zmq.Socket[bytes]]]:
    """Return a function that makes a DEALER which knows no manners: other frame counts, or no CURVE at all."""
    with contextlib.ExitStack() as life:
        context = life.enter_context(zmq.Context())

        def make(keys: KeyPair | None) -> zmq.Socket[bytes]:
            dealer = life.enter_context(context.socket(zmq.DEALER))
            dealer.linger = 0
            if keys is not None:
                dealer.curve_serverkey = host.keys.public.encode()
                dealer.curve_publickey, dealer.curve_secretkey = keys.public.encode(), keys.secret.encode()
            dealer.connect(host.link.endpoint)
            return dealer

        yield make


def until(condition: Callable[[], object], *ends: HostEnd | AgentEnd) -> None:
    """Let both ends run until something holds; fail when it takes too long."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {DEADLINE_S:g} s"
        for end in ends:
            end.turn()


def deliver(host: HostEnd, agent: AgentEnd, header: bytes, payload: bytes = b"") -> None:
    """Send a message from an agent and wait until the host has it."""
    until(lambda: agent.link.send(header, payload), host, agent)
    until(lambda: ("pi", header, len(payload)) in host.heard, host, agent)


# Who gets in ---------------------------------------------------------------------------------------------------------


def test_a_known_board_is_heard_by_its_keys_name_and_is_answered(host: HostEnd, connect: Connect) -> None:
    pi, other = connect(), connect(host.boards["other"])
    deliver(host, pi, b"from pi", b"x" * 1000)
    until(lambda: other.link.send(b"from other"), host, other)
    until(lambda: len(host.heard) == 2, host, pi, other)
    assert sorted(host.heard) == [("other", b"from other", 0), ("pi", b"from pi", 1000)]
    assert host.link.send("pi", b"to pi", memoryview(b"y" * (1 << 20)))
    assert host.link.send("other", b"to other")
    until(lambda: pi.heard and other.heard, host, pi, other)
    assert pi.heard == [(b"to pi", b"y" * (1 << 20))]
    assert other.heard == [(b"to other", b"")]
    assert pi.link.trouble == ""


def test_an_unknown_key_is_refused_and_both_sides_say_what_to_do(host: HostEnd, connect: Connect) -> None:
    stranger = new_pair()
    agent = connect(stranger)
    until(lambda: "refused this board's key" in agent.link.trouble and host.said, host, agent)
    mark = fingerprint(stranger.public)
    assert f"fingerprint {mark}; put this board's .pub file, holding {stranger.public}," in agent.link.trouble
    assert f"refused an unknown key from 127.0.0.1, fingerprint {mark}; if it is one of your boards" in host.said[0]
    assert stranger.secret not in agent.link.trouble + host.said[0]
    assert not agent.link.send(b"hello")
    assert not host.heard


def test_a_refused_key_that_tries_again_and_again_does_not_flood_the_hosts_log(host: HostEnd, connect: Connect) -> None:
    agent = connect(new_pair())
    for _ in range(5):
        until(lambda: "refused" in agent.link.trouble, host, agent)
        agent.link.trouble = ""
        agent.link.reconnect()
    assert len(host.said) == 1


def test_a_wrong_host_key_is_named_on_both_sides(host: HostEnd, connect: Connect) -> None:
    wrong = new_pair().public
    agent = connect(host_key=wrong)
    until(lambda: "CURVE handshake" in agent.link.trouble and host.said, host, agent)
    assert "host_public_key in agent.toml is probably not that host's key" in agent.link.trouble
    assert fingerprint(wrong) in agent.link.trouble
    assert "failed the CURVE handshake: that peer pins another host key" in host.said[0]
    assert not agent.link.send(b"hello")


def test_after_one_handshake_a_failed_one_is_no_sign_of_a_wrong_key(host: HostEnd, connect: Connect) -> None:
    """A host that stands still, or another program on its port, says nothing of keys that have worked before."""
    agent = connect()
    deliver(host, agent, b"before")
    address = host.address
    host.link.close()
    with socket.create_server(address) as other:
        other.settimeout(DEADLINE_S)
        agent.link.reconnect()
        while "was not finished" not in agent.link.trouble:
            accepted, _ = other.accept()
            accepted.recv(10)
            accepted.close()
            for _ in range(20):
                agent.turn()
    assert not agent.link.wrong_key
    assert "another key than the one that is pinned here, fingerprint" in agent.link.trouble, "it may be, all the same"
    assert not agent.link.refused


def test_a_peer_without_curve_is_not_heard(host: HostEnd, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    dealer = raw(None)
    dealer.send_multipart([b"hello", b""])
    until(lambda: host.said, host)
    assert "failed the CURVE handshake" in host.said[0]
    assert not host.heard


def test_an_agent_whose_host_is_not_there_says_so(connect: Connect) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        agent = connect(endpoint=endpoint)
        agent.link.trouble = ""
        until(lambda: agent.link.trouble, agent)
        assert agent.link.trouble == f"nothing listens at {endpoint}"
        assert not agent.link.send(b"hello")


def test_an_endpoint_that_is_none_is_named() -> None:
    with pytest.raises(LinkError, match=r"cannot connect to pi:1: .*; expected tcp://ADDRESS:PORT"):
        AgentLink("pi:1", new_pair(), new_pair().public)


@pytest.mark.parametrize("attempt", range(5))
def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind(host: HostEnd, attempt: int) -> None:
    before = threading.active_count()
    with pytest.raises(LinkError, match=f"cannot listen on {host.link.endpoint}: .*; choose another address or port"):
        HostLink(host.link.endpoint, new_pair(), {}, host.said.append)
    assert threading.active_count() == before


ZAP_FRAMES = [
    [], [b""], [b"1.0", b"1"], [b"1.0", b"1", b"agents", b"1.2.3.4", b"", b"CURVE"],
    [b"1.0", b"1", b"agents", b"1.2.3.4", b"", b"CURVE", b"short"],
    [b"1.0", b"1", b"agents", b"\xff\xfe", b"", b"CURVE", bytes(32)],
    [b"1.0", b"1", b"agents", b"1.2.3.4", b"", b"NULL", bytes(32)],
    [b"1.0", b"1", b"agents", b"1.2.3.4", b"", b"PLAIN", b"user", b"password"],
    [b"1.0", b"1", b"elsewhere", b"1.2.3.4", b"", b"CURVE", None],
]  # fmt: skip


@pytest.mark.parametrize("frames", ZAP_FRAMES, ids=lambda frames: f"{len(frames)} frames")
def test_whatever_the_zap_handler_is_asked_it_refuses_and_lives(host: HostEnd, frames: list[bytes | None]) -> None:
    known = zmq.utils.z85.decode(host.boards["pi"].public.encode())
    answer = host.link._zap._answer([known if frame is None else frame for frame in frames])
    assert answer[2] == b"400"
    good = [b"1.0", b"9", b"agents", b"1.2.3.4", b"", b"CURVE", known]
    assert host.link._zap._answer(good)[:5] == [b"1.0", b"9", b"200", b"OK", host.boards["pi"].public.encode()]


# What strangers cannot do --------------------------------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)


def send_until_cut(host: HostEnd, opening: bytes, filler: bytes, limit_bytes: int) -> int:
    """Send over plain TCP until the host ends the connection; return how many bytes it let in."""
    sent = 0
    with socket.create_connection(host.address) as stranger:
        stranger.setblocking(False)
        pending = opening
        end_s = time.monotonic() + DEADLINE_S
        while sent < limit_bytes:
            assert time.monotonic() < end_s, "the connection was neither cut nor read"
            host.turn()
            try:
                count = stranger.send(pending)
                pending = pending[count:] or filler
                sent += count
                if stranger.recv(65536) == b"":
                    break
            except BlockingIOError:
                continue
            except OSError:
                break
    return sent


@pytest.mark.parametrize(
    ("what", "opening"),
    [
        ("a web browser", b"GET / HTTP/1.1\r\nHost: pi\r\n\r\n"),
        ("noise", bytes((i * 89 + 31) % 256 for i in range(5000))),
        ("a handshake frame that claims 150 MB", GREETING + b"\x06" + struct.pack(">Q", 150 << 20)),
        ("a message frame before the handshake", GREETING + b"\x02" + struct.pack(">Q", 150 << 20)),
        ("a handshake frame that claims 2^63 bytes", GREETING + b"\x06" + struct.pack(">Q", 1 << 63)),
    ],
)
def test_a_stranger_is_cut_off_before_it_can_fill_memory(
    host: HostEnd, connect: Connect, what: str, opening: bytes
) -> None:
    let_in = send_until_cut(host, opening, b"\0" * 65536, 64 << 20)
    assert let_in < 32 << 20, "what a socket's buffers hold may go, no more"
    deliver(host, connect(), b"a good board goes on")


def test_idle_connections_do_not_keep_a_board_out(host: HostEnd, connect: Connect) -> None:
    with contextlib.ExitStack() as life:
        for _ in range(100):
            life.enter_context(socket.create_connection(host.address))
        deliver(host, connect(), b"hello")


# What a known board cannot do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [3, 4, 5, 300])
def test_a_message_of_another_number_of_frames_is_dropped_and_counted(
    host: HostEnd, raw: Callable[..., zmq.Socket[bytes]], frames: int
) -> None:
    dealer = raw(host.boards["pi"])
    dealer.send_multipart([b"x" * 100] * frames)
    dealer.send_multipart([b"header", b"payload"])
    until(lambda: host.heard, host)
    assert host.heard == [("pi", b"header", 7)]
    assert host.link.dropped_frames == 1


def test_a_frame_above_the_limit_costs_its_sender_the_connection_and_nobody_else_anything(
    host: HostEnd, connect: Connect
) -> None:
    pi, other = connect(), connect(host.boards["other"])
    deliver(host, pi, b"before")
    until(lambda: other.link.send(b"other"), host, other)
    until(lambda: len(host.heard) == 2, host, other)
    assert pi.link.send(b"header", b"x" * (wire.MAX_FRAME + 1))
    assert other.link.send(b"at the same time")
    until(lambda: ("other", b"at the same time", 0) in host.heard, host, pi, other)
    deliver(host, pi, b"after")
    assert all(size <= wire.MAX_FRAME for _, _, size in host.heard)


def test_the_largest_chunk_passes(host: HostEnd, connect: Connect) -> None:
    agent = connect()
    deliver(host, agent, b"h" * wire.HEADER_BYTES, b"x" * wire.CHUNK_CEILING)
    assert host.link.send("pi", b"h" * wire.HEADER_BYTES, b"x" * wire.CHUNK_CEILING)
    until(lambda: agent.heard, host, agent)


def serve(host: HostEnd) -> Peers:
    """Let a host's link answer as the host does, and count what it drops."""
    peers = Peers(TERMS)

    def hear(arrival: Arrival) -> None:
        heard = peers.hear(arrival.board, arrival.header, time.monotonic())
        if heard.answer is not None:
            host.link.send_to(arrival.route, heard.answer)
        if isinstance(heard.message, Ping):
            pong = Pong(heard.message.session, heard.message.samples, 0.0)
            host.link.send_to(arrival.route, peers.encode(arrival.board, pong, time.monotonic()))

    host.on_arrival = hear
    return peers


def hello(nonce: int) -> bytes:
    """Return the header of a HELLO."""
    return wire.encode(Hello(nonce, 2, 2, "0.1.0", f"machine-{nonce}", 1 << 20, nonce, "", 0, 0))


def test_malformed_headers_are_dropped_and_counted_and_the_host_lives_on(host: HostEnd, connect: Connect) -> None:
    peers, agent = serve(host), connect()
    bad = [b"", b"\xc1", b"\x91" * 4000, b"x" * 5000, hello(7)[:-1], hello(7) + b"!"]
    for header in bad:
        until(lambda header=header: agent.link.send(header), host, agent)  # type: ignore[misc]
    until(lambda: peers.dropped["malformed"] == len(bad), host, agent)
    until(lambda: agent.link.send(hello(7)), host, agent)
    until(lambda: agent.heard, host, agent)
    assert agent.messages() == [Welcome(7, 2, 1, 1 << 18, 1 << 20, 2.0, 30.0)]


def test_of_two_live_agents_with_one_key_the_newest_wins_and_no_message_goes_astray(
    host: HostEnd, connect: Connect
) -> None:
    """With routing ids set by the agents, half of these messages would vanish without an error."""
    count = 60
    peers, ends = serve(host), {1: connect(), 2: connect()}
    for nonce, end in ends.items():
        until(lambda end=end, nonce=nonce: end.link.send(hello(nonce)), host, *ends.values())  # type: ignore[misc]
        until(lambda end=end: end.heard, host, *ends.values())  # type: ignore[misc]
    for number in range(1, count + 1):
        for nonce, end in ends.items():
            ping = wire.encode(Ping(nonce, 0, number))
            until(lambda end=end, ping=ping: end.link.send(ping), host, *ends.values())  # type: ignore[misc]
    until(lambda: all(len(end.heard) > count for end in ends.values()), host, *ends.values())
    older, newer = ends[1].messages(), ends[2].messages()
    assert [type(m) for m in older] == [Welcome] + [Reject] * count
    assert newer == [Welcome(2, 2, 1, 1 << 18, 1 << 20, 2.0, 30.0), *(Pong(2, n, 0.0) for n in range(1, count + 1))]
    assert {m.session for m in older} == {1}
    assert {m.code for m in older if isinstance(m, Reject)} == {"fenced"}
    assert (peers.nonce("pi"), peers.dropped["fenced"]) == (2, count)


# What the link does not do -------------------------------------------------------------------------------------------


def test_an_agent_that_does_not_read_for_long_gets_everything_and_lives(host: HostEnd, connect: Connect) -> None:
    """A connecting socket with ZMTP heartbeats and a bounded receive side would abort its process here."""
    agent = connect()
    deliver(host, agent, b"hello")
    piece = memoryview(bytes(1 << 18))
    for number in range(200):
        assert host.link.send("pi", b"%d" % number, piece)
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        host.turn()
    until(lambda: len(agent.heard) == 200, host, agent)
    assert [header for header, _ in agent.heard] == [b"%d" % number for number in range(200)]
    deliver(host, agent, b"still here")


def test_sending_to_a_board_that_is_not_there_says_so_at_once(host: HostEnd, connect: Connect) -> None:
    assert not host.link.send("pi", b"x")
    assert not host.link.send("nobody", b"x")
    assert not host.link.send_to(b"\x00nobody", b"x")
    agent = AgentEnd(AgentLink(host.link.endpoint, host.boards["pi"], host.keys.public))
    deliver(host, agent, b"hello")
    agent.link.close()
    until(lambda: not host.link.send("pi", b"x"), host)
    again = connect()
    deliver(host, again, b"back")
    assert host.link.send("pi", b"welcome back")
    until(lambda: again.heard, host, again)


def test_sending_to_a_board_that_never_reads_fails_instead_of_blocking_or_filling_memory(
    host: HostEnd, raw: Callable[..., zmq.Socket[bytes]]
) -> None:
    dealer = raw(host.boards["pi"])
    dealer.rcvhwm = 1
    dealer.send_multipart([b"hello", b""])
    until(lambda: host.heard, host)
    piece = memoryview(bytes(1 << 16))
    taken = next((n for n in range(100_000) if not host.link.send("pi", b"x", piece)), None)
    assert taken is not None
    assert taken < 5000


def test_a_new_connection_drops_what_the_old_one_had_queued(host: HostEnd, connect: Connect) -> None:
    agent = connect()
    deliver(host, agent, b"first")
    agent.link.reconnect()
    assert host.link.send("pi", b"to the old connection") in (True, False)
    deliver(host, agent, b"second")
    assert host.link.send("pi", b"to the new one")
    until(lambda: agent.heard, host, agent)
    assert agent.heard == [(b"to the new one", b"")]


def test_wake_ends_a_poll_from_any_thread(host: HostEnd) -> None:
    waker = threading.Thread(target=host.link.wake)
    waker.start()
    host.link.poll(60.0)
    waker.join()


def test_closing_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    end = HostEnd()
    assert threading.active_count() > before
    end.link.close()
    assert threading.active_count() == before


# The presets of docs/PROTOCOL.md -------------------------------------------------------------------------------------

HOST_OPTIONS = {
    zmq.MAXMSGSIZE: (1 << 20) + 8192, zmq.SNDHWM: 1000, zmq.RCVHWM: 1000, zmq.HEARTBEAT_IVL: 10_000,
    zmq.HEARTBEAT_TIMEOUT: 30_000, zmq.HANDSHAKE_IVL: 10_000, zmq.BACKLOG: 1024, zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3, zmq.CURVE_SERVER: 1,
    zmq.ZAP_DOMAIN: b"agents", zmq.ZAP_ENFORCE_DOMAIN: 1, zmq.LINGER: 0,
}  # fmt: skip
AGENT_OPTIONS = {
    zmq.MAXMSGSIZE: (1 << 20) + 8192, zmq.SNDHWM: 64, zmq.RCVHWM: 0, zmq.HEARTBEAT_IVL: 0, zmq.IMMEDIATE: 1,
    zmq.HANDSHAKE_IVL: 10_000, zmq.CONNECT_TIMEOUT: 10_000, zmq.RECONNECT_IVL_MAX: 30_000, zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3, zmq.TCP_MAXRT: 30_000,
    zmq.LINGER: 0, zmq.ROUTING_ID: b"",
}  # fmt: skip


def test_sockets_have_the_presets(host: HostEnd, connect: Connect) -> None:
    agent = connect()
    for made, options in ((host.link._socket, HOST_OPTIONS), (agent.link._socket, AGENT_OPTIONS)):
        assert {option: made.getsockopt(option) for option in options} == options
    assert agent.link._socket.getsockopt(zmq.RECONNECT_IVL) in range(500, 1501)
