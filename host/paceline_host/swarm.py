# SPDX-License-Identifier: Apache-2.0
"""Boards that are protocol only, many in one process: `python -m paceline_host.swarm`, told on stdin, lives as long.

Each has the production AgentMachine, the simulator's model of trainer and meter by this machine's clock, and a CURVE
socket of its own. Training and meter take no time, so a host's rounds with them are the host and the link alone.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from contextlib import closing
from dataclasses import dataclass

from paceline import machine as m
from paceline.keys import KeyPair
from paceline.tasks import Buffer, Task, make
from paceline_host.profile import BoardProfile
from paceline_host.simulation.board import SimulatedBoard
from paceline_host.simulation.clock import Call, Clock
from paceline_host.simulation.line import Line
from paceline_host.simulation.models import BoardModel
from paceline_host.simulation.task import STEP
from paceline_host.swarm_link import Dealers

TASK = "linear"
SEED = 1  # of the run; a settings' default
READING_S = 0.005  # joules are known so late, or when those of the next work are
LONGEST_S = 1.0
_FIRST = struct.Struct("<4f")


@dataclass(frozen=True)
class Order:
    """What a swarm is told: a socket for each of `keys`, (public, secret).

    `echo`: bytes of header and payload of the answer to each message, by sockets without a board; None: boards.
    """

    endpoint: str
    host_key: str
    keys: list[tuple[str, str]]
    ballast: int = 0  # floats of the model, beside its ten
    echo: tuple[int, int] | None = None


@dataclass(frozen=True)
class Told:
    """What a swarm tells at its end, as one line of JSON: messages, bytes of headers, bytes of payloads."""

    sent: list[int]
    received: list[int]


class Nudged:
    """A task's model, and no training: each step adds a little to its first floats, so that each round has a model."""

    def __init__(self, task: Task) -> None:
        self.manifest, self.samples, self.data_label = task.manifest, task.samples, task.data_label
        self.digest = task.manifest.digest()

    def trained(self, model: Buffer, steps: int) -> bytes:
        """Return the update."""
        update = bytearray(model)
        _FIRST.pack_into(update, 0, *(number + STEP * steps for number in _FIRST.unpack_from(update)))
        return bytes(update)


class _AtOnce(Line):
    """The real link takes its own time."""

    def __init__(self) -> None:
        """No clock and no model of it."""

    def send(self, header_bytes: int, payload_bytes: int, arrive: Call) -> None:
        arrive()


class _Board(SimulatedBoard):
    """The joules of a round's end travel with the next result, as those of a meter that reads now and then do."""

    _owed: m.MeasureSplit | None = None

    def _owe_split(self, action: m.MeasureSplit) -> None:
        self._settle()
        self._owed = action
        self.clock.later(READING_S, self._settle)

    def _settle(self) -> None:
        owed, self._owed = self._owed, None
        if owed is not None and self.alive:
            self._measure_split(owed)

    def _measure_later(self, action: m.Measure) -> None:
        def happen() -> None:
            self._settle()
            if self.alive:
                self._measure(action)

        self.clock.later(0.0, happen)  # the result's announcement goes first, and these joules behind it

    def _hang_up(self, action: m.Reconnect) -> None:
        """Its session is over, most likely by the host's goodbye: it does not come back."""
        self.end()

    _ACTIONS = {
        **SimulatedBoard._ACTIONS,
        m.MeasureSplit: _owe_split, m.Measure: _measure_later, m.Reconnect: _hang_up,
    }  # fmt: skip


def main() -> int:
    """Do what stdin's line says until stdin ends."""
    order = Order(**json.loads(sys.stdin.readline()))
    keys = [KeyPair(*pair) for pair in order.keys]
    with closing(Dealers(order.endpoint, order.host_key, keys, sys.stdin.fileno())) as dealers:
        if order.echo is not None:
            _echo(dealers, bytes(order.echo[0]), bytes(order.echo[1]), len(keys))
        else:
            _be_boards(dealers, order)
        print(json.dumps(Told(dealers.sent, dealers.received).__dict__))
    return 0


def _echo(dealers: Dealers, header: bytes, payload: bytes, sockets: int) -> None:
    for number in range(sockets):  # so that the host knows its way to each
        dealers.send(number, header, payload)
    while not dealers.cut:
        for number in dealers.poll(LONGEST_S):
            for _ in dealers.receive(number):
                dealers.send(number, header, payload)


def _be_boards(dealers: Dealers, order: Order) -> None:
    clock = Clock(time.monotonic())
    task = Nudged(make(TASK, {"ballast": order.ballast}, SEED, None))
    boards = [_board(clock, number, task, dealers) for number in range(len(order.keys))]
    for board in boards:
        board.start()
    due_s = clock.now_s
    while not dealers.cut:
        ready = dealers.poll(min(LONGEST_S, due_s - time.monotonic()))
        clock.advance(time.monotonic())
        for number in ready:
            board = boards[number]
            for header, payload in dealers.receive(number):
                board.hear(header, payload)
            if not board.alive:
                dealers.shut(number)
        due_s = clock.advance(time.monotonic())
    for board in boards:
        if board.trouble or board.dropped:
            print(f"{board.name}: {board.trouble or board.dropped[0]}", file=sys.stderr)


def _board(clock: Clock, number: int, task: Nudged, dealers: Dealers) -> _Board:
    def to_host(name: str, route: int, header: bytes, payload: memoryview | bytes) -> None:
        dealers.send(number, header, payload)

    name = f"board-{number}"
    model = BoardModel(BoardProfile(name, 1.0, 1.0, 2.0), number, SEED, 1, 0.0)
    return _Board(clock, number, name, model, task, (_AtOnce(), _AtOnce()), to_host)


if __name__ == "__main__":
    sys.exit(main())
