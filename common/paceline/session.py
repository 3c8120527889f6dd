# SPDX-License-Identifier: Apache-2.0
"""One session between a host and an agent, seen from either end. Pure: header bytes in, messages out, time is an
argument.

The order of messages is one table; a missing entry is a protocol error, so illegal moves need no code. A message under
a lease that is not the present one is stale whatever the state: ends cross on the wire, and fencing sorts it out.
"""

from __future__ import annotations

import enum

from paceline import wire
from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline.wire import (
    Answer,
    Assign,
    Begin,
    Bye,
    Cancel,
    Chunk,
    Commit,
    Credit,
    Delivery,
    End,
    Energy,
    Failed,
    Hello,
    Load,
    Message,
    Ping,
    Pong,
    Ready,
    Reject,
    Result,
    RoundClosed,
    Taken,
    Tensor,
    Welcome,
)  # fmt: skip


class State(enum.Enum):
    """Where a session stands; both ends share it, apart from messages in flight."""

    GREETING = "greeting"
    IDLE = "idle"
    LOADING = "loading"
    READY = "ready"
    ASSIGNED = "assigned"
    WORKING = "working"
    UPLOADING = "uploading"
    JUDGING = "judging"
    CLOSED = "closed"

    __hash__ = object.__hash__  # each is one object; enum's own is a function in Python, and a table is looked up by it


_S = State
_ALWAYS: dict[type[Message], State | None] = {
    Ping: None, Pong: None, Energy: None, Begin: None, RoundClosed: None, End: None, Bye: _S.CLOSED, Reject: _S.CLOSED,
}  # fmt: skip

# A lease ends early by FAILED or CANCEL, and by the next ASSIGN: where the board had failed and taken new work before
# the host heard of either, the host has let go of the first lease and its newest word holds.
_ENDINGS: dict[type[Message], State | None] = {
    Failed: _S.READY, Cancel: _S.READY, Assign: _S.ASSIGNED, **_ALWAYS,
}  # fmt: skip

NEXT: dict[State, dict[type[Message], State | None]] = {  # None: the state stays
    _S.GREETING: {Hello: None, Welcome: _S.IDLE, Reject: _S.CLOSED, Bye: _S.CLOSED},
    _S.IDLE: {Load: _S.LOADING, **_ALWAYS},
    _S.LOADING: {Ready: _S.READY, Failed: None, Load: None, **_ALWAYS},
    _S.READY: {Assign: _S.ASSIGNED, Load: _S.LOADING, Failed: _S.LOADING, Ready: None, **_ALWAYS},
    _S.ASSIGNED: {
        Taken: _S.WORKING, Result: _S.UPLOADING, Delivery: _S.JUDGING, Chunk: None, Tensor: None, **_ENDINGS
    },
    _S.WORKING: {
        Chunk: None, Credit: None, Tensor: None, Result: _S.UPLOADING, Delivery: _S.JUDGING, **_ENDINGS
    },
    _S.UPLOADING: {Chunk: None, Credit: None, Commit: _S.JUDGING, **_ENDINGS},
    _S.JUDGING: {Answer: _S.READY, Chunk: None, Credit: None, **_ENDINGS},
    _S.CLOSED: {},
}  # fmt: skip

_LEASED = (Taken, Result, Chunk, Tensor, Credit, Commit, Cancel, Answer, Failed)


LIFE_BITS = 32  # the upper bits of a nonce are drawn by each life of an agent, the lower ones count its sessions


def is_older(nonce: int, other: int) -> bool:
    """Tell whether a session is an earlier one of the same life of an agent."""
    return nonce >> LIFE_BITS == other >> LIFE_BITS and nonce < other


class StaleLease(RemoteProtocolError):
    """A message under a lease that is not the present one; it is dropped and counted, the session goes on."""

    def __init__(self, message: Message) -> None:
        super().__init__(f"{message.kind} under a lease that is not the present one")
        self.message = message


class Fenced(RemoteProtocolError):
    """A message of another session: an older life of the same board, or a second board with the same key."""


class Session:
    """State, lease and liveness of one session. When `receive` or `send` raise, state and lease are as before."""

    def __init__(self, nonce: int, is_host: bool, patience_s: float, now_s: float) -> None:
        self.nonce = nonce
        self.state = State.GREETING
        self.lease = 0
        self.patience_s = patience_s
        self.heard_s = now_s
        self.said_s = now_s
        self._incoming = wire.FROM_AGENT if is_host else wire.FROM_HOST
        self._outgoing = wire.FROM_HOST if is_host else wire.FROM_AGENT

    def receive(self, header: bytes | memoryview, now_s: float) -> Message:
        """Return the message of a header; any that decodes and is of this session counts as a sign of life.

        Raises RemoteProtocolError, of which StaleLease and Fenced are told apart.
        """
        message = wire.decode(header, self._incoming)
        self.accept(message, now_s)
        return message

    def accept(self, message: Message, now_s: float) -> None:
        """Take a message that was decoded already. Raises as `receive`."""
        if message.session != self.nonce:
            raise Fenced(f"{message.kind} of session {message.session:x}, the present one is {self.nonce:x}")
        self.heard_s = now_s
        self._move(message, RemoteProtocolError)

    def send(self, message: Message, now_s: float) -> bytes:
        """Return the header of a message. Raises LocalProtocolError when the state or a field does not allow it."""
        if not isinstance(message, self._outgoing) or message.session != self.nonce:
            raise LocalProtocolError(f"{message.kind} of session {message.session:x} is not this end's to send")
        header = wire.encode(message)
        self._move(message, LocalProtocolError)
        self.said_s = now_s
        return header

    def silent(self, now_s: float) -> bool:
        """Nothing was heard for as long as patience goes."""
        return now_s >= self.silent_at_s

    @property
    def silent_at_s(self) -> float:
        """When the peer counts as silent, unless it is heard before."""
        return self.heard_s + self.patience_s

    def _move(self, message: Message, error: type[Exception]) -> None:
        lease = getattr(message, "lease", 0)
        if isinstance(message, _LEASED) and lease != self.lease and not (isinstance(message, Failed) and lease == 0):
            if error is RemoteProtocolError:
                raise StaleLease(message)
            raise error(f"{message.kind} under lease {lease}, the present one is {self.lease}")
        table = NEXT[self.state]
        if type(message) not in table:
            raise error(f"{message.kind} does not belong in state {self.state.value}")
        self.state = self._landing(message, table[type(message)])
        if isinstance(message, Assign):
            self.lease = message.lease
        elif self.state not in _HOLDS_LEASE:
            self.lease = 0

    def _landing(self, message: Message, landing: State | None) -> State:
        if isinstance(message, Failed) and message.lease == 0 and self.state not in (State.IDLE, State.CLOSED):
            return State.LOADING  # the trainer itself is gone; READY comes again when a new one has loaded
        return self.state if landing is None else landing


_HOLDS_LEASE = (State.ASSIGNED, State.WORKING, State.UPLOADING, State.JUDGING)
