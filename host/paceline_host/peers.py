# SPDX-License-Identifier: Apache-2.0
"""The sessions of all boards. Pure: frames in, messages and answers out; knows no run, socket or clock.

Sessions outlive runs. The newest life of a board wins: whoever speaks for an older one is told FENCED and changes
nothing. A session goes on over another connection only where what was under way can't matter: by naming its lease a
board shows that it has heard all that came before that; else it greets anew, for what is lost is told by nobody.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from paceline import wire
from paceline.errors import RemoteProtocolError
from paceline.quick import quicken
from paceline.session import Fenced, Session, StaleLease, State, is_older
from paceline.version import VERSION
from paceline.wire import Answer, Bye, Commit, Delivery, Hello, Message, Reject, Welcome

LEFT = 8  # connections that a session has left are known for so long: what comes over them comes too late


@dataclass(frozen=True)
class Terms:
    """What every session uses. `host_epoch` grows with each start of the host."""

    host_epoch: int
    chunk_bytes: int
    credit_bytes: int
    heartbeat_s: float
    patience_s: float


@dataclass(frozen=True)
class Heard:
    """Outcome of one arrival: a message for the run (or None), an answer for the sender, and what happened to the
    session.
    """

    message: Message | None = None
    answer: bytes | None = None
    opened: bool = False
    closed: str = ""
    warning: str = ""
    current: bool = True  # False: the sender is not the board's present session


quicken((Heard,))


@dataclass
class Peer:
    """A board that has said hello."""

    session: Session
    hello: Hello
    route: Hashable  # its connection
    left: deque[Hashable] = field(default_factory=lambda: deque(maxlen=LEFT))  # those that it has left


class Peers:
    """Sessions by board name; `dropped` counts what was refused, by reason."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._peers: dict[str, Peer] = {}
        self.dropped: Counter[str] = Counter()

    def hear(self, board: str, header: bytes | memoryview, now_s: float, route: Hashable = None) -> Heard:
        """Take an authenticated board's header, which came over the connection `route`.

        Never raises: bad ones are dropped and counted.
        """
        try:
            message = wire.decode(header, wire.FROM_AGENT)
        except RemoteProtocolError as error:
            self.dropped["malformed"] += 1
            return Heard(warning=f"{board} sent a malformed message, dropped: {error}", current=False)
        if isinstance(message, Hello):
            return self._hello(board, message, now_s, route)
        peer = self._peers.get(board)
        if peer is None:
            self.dropped["no-session"] += 1
            return Heard(answer=_reject(message, "session", "say hello first"), current=True)
        if is_older(peer.session.nonce, message.session):  # its own hello came late, over a connection that it has left
            return Heard(answer=_reject(message, "session", "say hello first"), current=False)
        if message.session == peer.session.nonce and route != peer.route:
            if route in peer.left:
                self.dropped["late"] += 1
                return Heard(current=False)
            if getattr(message, "lease", 0) != peer.session.lease or not peer.session.lease:
                del self._peers[board]
                self.dropped["new-connection"] += 1
                text = "the connection is another one, and what was under way may be lost; say hello"
                return Heard(answer=_reject(message, "session", text), closed="its connection was made anew")
            peer.left.append(peer.route)
            peer.route = route
        try:
            peer.session.accept(message, now_s)
        except StaleLease as error:
            self.dropped["stale-lease"] += 1
            energy = wire.energy_of(message) if isinstance(message, Delivery) else None  # it is of no lease
            return Heard(message=energy, answer=_stale(error.message))
        except Fenced:
            self.dropped["fenced"] += 1
            text = f"a newer session of {board} has taken over; two agents with one key? give each board its own"
            return Heard(answer=_reject(message, "fenced", text), current=False)
        except RemoteProtocolError as error:
            self.dropped["out-of-phase"] += 1
            return Heard(warning=f"{board} broke the protocol, message dropped: {error}")
        if isinstance(message, Bye):
            del self._peers[board]
            return Heard(closed=f"said goodbye: {message.reason}")
        return Heard(message=message)

    def encode(self, board: str, message: Message, now_s: float) -> bytes:
        """Return the header of a message to a board. Raises LocalProtocolError when the session does not allow it."""
        return self._peers[board].session.send(message, now_s)

    def nonce(self, board: str) -> int:
        """Return the nonce of a board's present session."""
        return self._peers[board].session.nonce

    def session(self, board: str) -> Session | None:
        """Return a board's present session."""
        peer = self._peers.get(board)
        return peer.session if peer else None

    def hello(self, board: str) -> Hello:
        """Return what a board said of itself."""
        return self._peers[board].hello

    def connected(self) -> list[str]:
        """Return the boards that have a session; one that was refused has none, and is known until it is silent."""
        return [board for board, peer in self._peers.items() if peer.session.state is not State.CLOSED]

    def silent(self, now_s: float) -> list[str]:
        """Return the boards that were not heard for as long as patience goes; their sessions end here."""
        gone = [board for board, peer in self._peers.items() if peer.session.silent(now_s)]
        for board in gone:
            del self._peers[board]
        return gone

    def forget(self, board: str) -> bool:
        """End a board's session, for instance because its process is known to be dead."""
        return self._peers.pop(board, None) is not None

    def next_silence_s(self) -> float:
        """Return when the next board would count as silent."""
        return min((p.session.silent_at_s for p in self._peers.values()), default=float("inf"))

    def _hello(self, board: str, hello: Hello, now_s: float, route: Hashable) -> Heard:
        if hello.proto_max < wire.OLDEST or hello.proto_min > wire.PROTOCOL:
            self.dropped["version"] += 1
            theirs, instead = hello.proto_max, ""
            if hello.proto_min > wire.PROTOCOL:
                theirs, instead = hello.proto_min, "upgrade the host, or "
            text = (
                f"agent {hello.agent_version} speaks protocol {theirs}, this host (paceline {VERSION}) {wire.OLDEST} "
                f"and {wire.PROTOCOL}; {instead}put its version on the board, on the host: "
                f"paceline boards install {board}"
            )
            return Heard(answer=_reject(hello, "version", text), warning=f"{board}: {text}", current=False)
        old = self._peers.get(board)
        if old is not None and old.session.nonce == hello.session:
            return Heard()  # a repeat; the answer is on its way
        if old is not None and is_older(hello.session, old.session.nonce):
            self.dropped["late"] += 1
            return Heard(current=False)
        warning = ""
        if old is not None and old.hello.machine != hello.machine:
            warning = f"{board}: another machine says hello with the same key; cloned board? the newest session wins"
        terms = self.terms
        session = Session(hello.session, is_host=True, patience_s=terms.patience_s, now_s=now_s)
        session.accept(hello, now_s)
        self._peers[board] = Peer(session, hello, route)
        welcome = Welcome(
            hello.session, min(wire.PROTOCOL, hello.proto_max), terms.host_epoch,
            min(terms.chunk_bytes, hello.chunk_max), terms.credit_bytes, terms.heartbeat_s, terms.patience_s,
        )  # fmt: skip
        answer = session.send(welcome, now_s)
        return Heard(answer=answer, opened=True, closed="a new session replaced it" if old else "", warning=warning)


def _reject(message: Message, code: str, text: str) -> bytes:
    return wire.encode(Reject(message.session, code, wire.clip(text)))


def _stale(message: Message) -> bytes | None:
    """A stale result is answered, so that the board can let it go; anything else stale needs no answer."""
    if isinstance(message, (Commit, Delivery)):
        return wire.encode(Answer(message.session, message.lease, "stale", "this lease has ended", 0))
    return None
