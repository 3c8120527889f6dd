# SPDX-License-Identifier: Apache-2.0
"""Roles on one ROUTER, over real sockets: who holds which key is who, whatever he says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from paceline import wire
from paceline.errors import KeyFileError, LinkError, RunError
from paceline.keys import KeyPair, fingerprint
from paceline.talk import Talk
from paceline.wire import Hello, Welcome
from paceline_agent.link import AgentLink
from paceline_host import operator_link
from paceline_host import operator_wire as w
from paceline_host.link import Arrival, HostLink, new_pair
from paceline_host.operator_calls import Operator
from paceline_host.operator_link import OperatorLink
from paceline_host.peers import Peers, Terms
from paceline_host.server import Server

DEADLINE_S = 20.0
HELLO = wire.encode(Hello(7, wire.PROTOCOL, wire.PROTOCOL, "x", "m", 1 << 20, 1, "", 0, 0))


class Host:
    """A served link with one board `pi` and one operator `ann`; what operators said, and what the host said."""

    def __init__(self) -> None:
        self.keys, self.pi, self.ann = new_pair(), new_pair(), new_pair()
        self.said: list[str] = []
        talk = Talk("paceline")
        talk.lines_to(self.said.append)
        self.asked: list[tuple[str, bytes, bytes]] = []
        operators = {"ann": self.ann.public}
        self.link = HostLink("tcp://127.0.0.1:*", self.keys, {"pi": self.pi.public}, self.said.append, operators)
        self.peers = Peers(Terms(1, 1 << 18, 1 << 20, 2.0, 30.0))
        self.server = Server(self.link, self.peers, None, talk)
        self.server.on_operator = lambda a: self.asked.append((a.operator, bytes(a.header), bytes(a.payload)))
        self.server.start()
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.server.close()
            self.link.close()

    def agent(self, keys: KeyPair) -> AgentLink:
        return AgentLink(self.link.endpoint, keys, self.keys.public)

    def operator(self, keys: KeyPair) -> OperatorLink:
        return OperatorLink(self.link.endpoint, self.keys.public, keys)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def until(what: str, probe: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not probe():
        assert time.monotonic() < end_s, what
        time.sleep(0.005)


def test_an_operator_reaches_the_desk_and_no_board_does(host: Host) -> None:
    header, payload = w.encode(w.Submit(3, 1, "demo", document={"experiment": "[run]"}))
    with contextlib.closing(host.operator(host.ann)) as ann, contextlib.closing(host.agent(host.pi)) as pi:
        ann.send(header, payload)
        until("the operator to be heard", lambda: ("ann", header, payload) in host.asked)
        until("the board to send", lambda: pi.poll(0.01) is not None and pi.send(header, payload))
        until("the board's message to be judged", lambda: any("pi sent a malformed" in line for line in host.said))
    assert [operator for operator, _, _ in host.asked] == ["ann"]


def test_an_operator_who_greets_as_a_board_becomes_none(host: Host) -> None:
    with contextlib.closing(host.operator(host.ann)) as ann, contextlib.closing(host.agent(host.pi)) as pi:
        ann.send(HELLO, b"")
        until("the operator to be heard", lambda: host.asked)
        until("the board to send", lambda: pi.poll(0.01) is not None and pi.send(HELLO))
        until("the board to be greeted", lambda: host.server.ask(lambda: host.peers.connected()) == ["pi"])
        pi.poll(1.0)
        assert [type(wire.decode(a.header, wire.FROM_HOST)) for a in pi.receive()] == [Welcome]
        assert ann.receive(0.0) is None
    assert host.asked == [("ann", HELLO, b"")]
    assert set(host.server.presence) == {"pi"}


def test_one_key_is_no_board_and_operator_at_once(host: Host) -> None:
    with pytest.raises(KeyFileError, match="board pi and operator pi have the same public key"):
        host.link.admit({"pi": host.pi.public}, {"pi": host.pi.public})
    with contextlib.closing(host.operator(host.ann)):
        pass  # nothing has changed


def test_a_key_that_is_admitted_later_gets_in_and_one_that_is_withdrawn_is_cut_off(host: Host) -> None:
    late, ann, pi = new_pair(), host.ann.public, host.pi.public
    with contextlib.closing(host.agent(late)) as refused:
        until("the refusal", lambda: refused.poll(0.01) is not None and refused.refused)
    (stranger,) = host.link.strangers()
    assert (stranger.key, stranger.address, stranger.times) == (late.public, "127.0.0.1", 1)
    assert any(fingerprint(late.public) in line for line in host.said)

    host.server.ask(lambda: host.link.admit({"pi": pi, "late": late.public}, {"ann": ann}))
    assert host.link.strangers() == []
    with contextlib.closing(host.agent(late)) as agent:
        until("its hello to leave", lambda: agent.poll(0.01) is not None and agent.send(HELLO))
        until("its session", lambda: host.server.ask(lambda: host.peers.session("late")))
        agent.poll(1.0)
        assert [type(wire.decode(a.header, wire.FROM_HOST)) for a in agent.receive()] == [Welcome]

        def withdraw() -> None:
            host.link.admit({"pi": pi}, {"ann": ann})
            host.server.expel("late", "key", "its key was withdrawn")

        host.server.call(withdraw)
        agent.poll(DEADLINE_S)
        (end,) = [wire.decode(a.header, wire.FROM_HOST) for a in agent.receive()]
        assert (end.kind, getattr(end, "code", "")) == ("reject", "key")
        dropped = host.link.dropped_frames
        until("another hello to leave", lambda: agent.poll(0.01) is not None and agent.send(HELLO))
        until("it to be dropped", lambda: host.link.dropped_frames > dropped)
    assert host.server.ask(lambda: host.peers.session("late")) is None
    assert host.server.presence["late"].why == "its key was withdrawn"


def test_an_operator_whose_key_was_withdrawn_is_no_longer_heard(host: Host) -> None:
    header, payload = w.encode(w.Status(1, 1))
    with contextlib.closing(host.operator(host.ann)) as ann:
        ann.send(header, payload)
        until("the operator to be heard", lambda: len(host.asked) == 1)
        host.server.ask(lambda: host.link.admit({"pi": host.pi.public}, {}))
        ann.send(header, payload)
        until("the next message to be dropped", lambda: host.link.dropped_frames == 1)
    assert len(host.asked) == 1
    with pytest.raises(KeyFileError, match="refused this operator's key"):
        host.operator(host.ann)


def test_an_operator_whom_the_host_does_not_know_is_told_so(host: Host) -> None:
    with pytest.raises(KeyFileError, match="refused this operator's key, fingerprint"):
        host.operator(new_pair())


def test_an_operator_who_pins_another_host_is_told_so(host: Host) -> None:
    with pytest.raises(KeyFileError, match="not the one whose key is pinned here"):
        OperatorLink(host.link.endpoint, new_pair().public, host.ann)


def test_where_nobody_listens_the_operator_hears_it_at_once() -> None:
    with pytest.raises(LinkError, match=r"nothing listens at tcp://127\.0\.0\.1:1"):
        OperatorLink("tcp://127.0.0.1:1", new_pair().public, new_pair())


def test_the_end_of_the_host_ends_an_operators_wait(host: Host) -> None:
    with contextlib.closing(host.operator(host.ann)) as ann:
        threading.Thread(target=host.close).start()
        with pytest.raises(LinkError, match="has ended the connection"):
            ann.receive(DEADLINE_S)


def test_a_host_that_says_nothing_ends_an_operators_wait(host: Host) -> None:
    with contextlib.closing(host.operator(host.ann)) as link:
        ann = Operator(link, host.link.endpoint, answer_s=0.2)
        with pytest.raises(LinkError, match=r"has not answered for 0\.2 s"):
            ann.status()

        def report_once(arrival: Arrival) -> None:
            message = w.decode(arrival.header, arrival.payload, w.FROM_OPERATOR)
            if isinstance(message, w.Watch):
                host.link.send_to(arrival.route, *w.encode(w.News(message.request, "demo-001")))

        host.server.on_operator = report_once
        watch = ann.watch("")
        assert next(watch).ticket == "demo-001"
        with pytest.raises(LinkError, match=r"has not answered for 0\.2 s"):
            next(watch)


def test_a_question_to_a_loop_that_has_ended_is_no_wait_for_ever(host: Host) -> None:
    host.server.close()
    with pytest.raises(RunError, match=r"has not answered for 0\.1 s"):
        host.server.ask(lambda: 1, wait_s=0.1)


def test_a_host_that_stands_still_is_not_called_one_with_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_link, "HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel takes the connection, and nobody greets
        endpoint = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(LinkError, match="has not answered for"):
            OperatorLink(endpoint, new_pair().public, new_pair())
