# SPDX-License-Identifier: Apache-2.0
"""One buffer from one process to another, by raw TCP or by chunks under credit: the two halves of a benchmark.

`paceline bench transfer` and `bench link` run one half in the host's process and one in an agent's. The chunks go the
way of a round's model and update (headers, `Sender`, `Receiver`, the link's own send and receive), without sessions,
machines or hashes. Small questions go there and back.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.errors import LinkError
from paceline.transfer import Receiver, Sender
from paceline.wire import CHUNK_START, Chunk, Credit, decode, encode

NBYTES = 45_000_000  # a model of 11 million float32
CHUNK_BYTES = 1 << 19  # a run's default
CREDIT_BYTES = CHUNK_START
DEADLINE_S = 60.0
KINDS = ("raw TCP", "plain ZeroMQ", "link with CURVE")
NONCE = 1
SMALL = bytes(64)  # a question, and its answer
ASKS = 200  # of them in a trial


class Piece(Protocol):
    """What a link's `receive` yields."""

    @property
    def header(self) -> memoryview: ...
    @property
    def payload(self) -> memoryview: ...


class Link(Protocol):
    """A link with one peer."""

    def poll(self, timeout_s: float) -> object: ...
    def receive(self) -> Iterable[Piece]: ...
    def send(self, header: bytes, payload: memoryview | bytes = b"") -> bool: ...


@dataclass(frozen=True)
class Trial:
    """What both halves do next: send `size` bytes to the agent and back again, or only to it, or ask it ASKS times."""

    what: Literal["both ways", "to agent", "ask"]
    kind: int  # in KINDS
    apart: bool = False  # each half keeps to a processor of its own
    size: int = NBYTES


def trials(repeats: int) -> Iterator[Trial]:
    """Yield the trials of `bench transfer`, in turns.

    The kernel likes to wake a reader on its writer's processor, and then encryption waits for decryption, which on two
    machines never do. On a machine with one processor nobody is apart.
    """
    places = (False, True) if len(os.sched_getaffinity(0)) > 1 else (False,)
    for _ in range(repeats):
        yield from (Trial("both ways", kind, apart) for apart in places for kind in range(len(KINDS)))


class Place:
    """Where this process may run; `half` 0 or 1 of the benchmark."""

    def __init__(self, half: int) -> None:
        self._all = os.sched_getaffinity(0)
        self._own = {sorted(self._all)[half % len(self._all)]}

    def keep(self, apart: bool) -> None:
        """Let all threads keep to the half's own processor, or run where the kernel puts them."""
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread), self._own if apart else self._all)


def send_by(link: Link | None, control: socket.socket, lease: int, data: memoryview) -> float:
    """Send once the other half is ready; return the seconds until it had everything. `control` joins both by TCP."""
    _hear(control)
    began_s = time.perf_counter()
    if link is None:
        control.sendall(data)
    else:
        _push(link, lease, data)
    _hear(control)
    return time.perf_counter() - began_s


def take_by(link: Link | None, control: socket.socket, lease: int, into: memoryview) -> float:
    """The other half of `send_by`; return the seconds from saying ready to having everything."""
    began_s = time.perf_counter()
    control.sendall(b"r")
    if link is None:
        have = 0
        while have < len(into):
            have += _some(control.recv_into(into[have:]))
    else:
        _take(link, lease, into)
    took_s = time.perf_counter() - began_s
    control.sendall(b"d")
    return took_s


def ask_by(link: Link | None, control: socket.socket, lease: int) -> float:
    """Ask once the other half is ready; return the seconds until an answer has come, a mean."""
    _hear(control)
    began_s = time.perf_counter()
    for number in range(ASKS):
        _say(link, control, lease, number)
        _await(link, control, lease, number)
    return (time.perf_counter() - began_s) / ASKS


def answer_by(link: Link | None, control: socket.socket, lease: int) -> None:
    """The other half of `ask_by`."""
    control.sendall(b"r")
    for number in range(ASKS):
        _await(link, control, lease, number)
        _say(link, control, lease, number)


def _say(link: Link | None, control: socket.socket, lease: int, number: int) -> None:
    if link is None:
        control.sendall(SMALL)
    elif not link.send(encode(Chunk(NONCE, lease, number)), SMALL):
        raise LinkError("the link would not take a small message")


def _await(link: Link | None, control: socket.socket, lease: int, number: int) -> None:
    left, end_s = len(SMALL), time.monotonic() + DEADLINE_S
    while link is None and left:
        left -= _some(len(control.recv(left)))
    while link is not None and left:
        _wait(link, end_s)
        for arrival in link.receive():
            message = decode(arrival.header, (Chunk, Credit))
            if isinstance(message, Chunk) and (message.lease, message.offset) == (lease, number):
                left -= len(arrival.payload)


def _push(link: Link, lease: int, data: memoryview) -> None:
    sender = Sender(len(data), CHUNK_BYTES, CREDIT_BYTES)
    end_s = time.monotonic() + DEADLINE_S
    while True:
        for begin, end in sender.pieces():
            if not link.send(encode(Chunk(NONCE, lease, begin)), data[begin:end]):
                raise LinkError("the link would not take what credit allows")
        if sender.done:
            return
        _wait(link, end_s)
        for arrival in link.receive():
            message = decode(arrival.header, (Credit,))
            if isinstance(message, Credit) and message.lease == lease:
                sender.granted(message.have, message.upto, time.monotonic())


def _take(link: Link, lease: int, into: memoryview) -> None:
    receiver = Receiver(len(into), CREDIT_BYTES, CHUNK_BYTES)
    end_s = time.monotonic() + DEADLINE_S
    while not receiver.done:
        _wait(link, end_s)
        for arrival in link.receive():
            message = decode(arrival.header, (Chunk, Credit))
            if not isinstance(message, Chunk):  # the last acknowledgement of the trial before
                continue
            receiver.take(message.offset, len(arrival.payload), time.monotonic())
            into[message.offset : message.offset + len(arrival.payload)] = arrival.payload
            upto = receiver.grant()
            if upto is not None:
                link.send(encode(Credit(NONCE, lease, receiver.have, upto)))


def _wait(link: Link, end_s: float) -> None:
    if time.monotonic() > end_s:
        raise LinkError(f"the transfer did not end within {DEADLINE_S:g} s")
    link.poll(1.0)


def _hear(control: socket.socket) -> None:
    _some(len(control.recv(1)))


def _some(nbytes: int) -> int:
    if nbytes == 0:
        raise LinkError("the other half of the benchmark is gone")
    return nbytes
