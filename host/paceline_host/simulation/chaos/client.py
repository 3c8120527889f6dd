# SPDX-License-Identifier: Apache-2.0
"""Split learning without a model: a board whose smashed data say which samples they are of, and the host's side, which
knows what each message ought to be, and keeps account of what it was not.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import machine as m
from paceline.errors import RemoteProtocolError
from paceline.split import SplitError, Upload
from paceline.split.rows import Rows, room
from paceline_host.psl.steps import SplitFacts
from paceline_host.simulation.chaos import truth
from paceline_host.simulation.chaos.stepping import SteppingBoard
from paceline_host.simulation.chaos.truth import ChaosTask

SAMPLE = struct.Struct("<2I")  # client, place in its own order
DIGEST_BYTES = 32
FORWARD, BACKWARD = 1 / 3, 2 / 3


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def smashed(part: bytes, samples: Sequence[tuple[int, int]]) -> bytes:
    """Return what a client part makes of samples."""
    body = _hash(part) + b"".join(SAMPLE.pack(*sample) for sample in samples)
    return body + _hash(body)


def gradient(uploads: Sequence[bytes], samples: int) -> bytes:
    """Return what a board with so many samples is sent back."""
    return _hash(*uploads) + bytes(4 * samples)


def update(part: bytes, given: bytes) -> bytes:
    """Return what a board makes of its gradient."""
    return (_hash(part, given) * (len(part) // DIGEST_BYTES + 1))[: len(part)]


class ChaosClient(SteppingBoard):
    """Does what the agent's worker of split learning does, one thing after the other."""

    def __init__(self, *of_board: Any) -> None:
        *plain, facts = of_board
        super().__init__(*plain)
        self._facts: SplitFacts = facts
        self._clients = facts.clients(self.number)
        self._sizes = [facts.sizes[client] for client in self._clients]
        self._samples = sum(self._sizes)
        self._inbox_bytes = room(len(self._clients)) + max(facts.part_bytes, facts.gradient_bytes(self._samples))

    def begins(self) -> None:
        self._rows: Rows | None = None
        self._opened = -1, -1

    def takes(self, given: m.StoreTensor, data: bytes) -> None:
        try:
            if given.what == "schedule":
                self._rows = Rows.decode(data, self._sizes)
            elif self._rows is None:
                raise RemoteProtocolError(f"{given.what} of step {given.step} before any schedule")
            elif given.what == "model" and given.step >= self._rows.epoch_steps:
                self.ends_work(b"", data, given.step)
            elif given.what == "model":
                self._forward(given, data, self._rows.positions(given.step))
            elif (given.step, given.redraw) == self._opened:  # else its step was void meanwhile
                self._backward(given, data)
        except RemoteProtocolError as error:
            lease, self.is_working = self.is_working, 0
            self.step(m.WorkFailed(lease, "error", str(error)))

    def _forward(self, given: m.StoreTensor, part: bytes, spans: Sequence[tuple[int, int]]) -> None:
        pairs = zip(self._clients, spans, strict=True)
        samples = [(client, place) for client, (begin, end) in pairs for place in range(begin, end)]
        self._opened, self._part, self._busy = (given.step, given.redraw), part, True
        self._then(given, "smashed", smashed(part, samples), len(samples), FORWARD)

    def _backward(self, given: m.StoreTensor, data: bytes) -> None:
        self._busy = True
        self._then(given, "update", update(self._part, data), (len(data) - DIGEST_BYTES) // 4, BACKWARD)

    def _then(self, given: m.StoreTensor, what: str, data: bytes, samples: int, share: float) -> None:
        def is_done() -> None:
            self._busy = False
            self.gives(given.step, given.redraw, what, data)
            self.go_on()

        self.compute(samples, is_done, waits=False, share=share)


# The host's side ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """What came out of the first phase of a step: as SplitHost has it."""

    samples: int
    loss: float
    right: int
    labels: tuple[int, ...]
    gradients: Mapping[int, bytes]


class Books:
    """What is known of an epoch: which samples its committed steps have used, and whose they were."""

    def __init__(self, state: bytes) -> None:
        self.state = state  # of model and optimisers
        self.used: list[tuple[int, int]] = []  # (client, place)
        self.given: Counter[int] = Counter()  # samples by board
        self.steps = 0


class ChaosSide:
    """The server part and both optimisers. `complain` is told what is not as it ought to be."""

    def __init__(self, task: ChaosTask, part_bytes: int, complain: Callable[[str], None]) -> None:
        self._part_bytes, self._complain = part_bytes, complain
        self.books = Books(truth.first_state(task))
        self._open: dict[int, tuple[list[tuple[int, int]], bytes]] = {}  # by board: samples, update that it owes

    def step(self, uploads: Sequence[Upload]) -> Pooled:
        """Do the first phase. Raises SplitError for what is no smashed data."""
        if self._open:
            self._complain("P2 step: a step begins, and another one is open")
        uploads, part = sorted(uploads, key=lambda one: one.client), self.client_part()
        read = {one.client: self._read(one, part) for one in uploads}
        datas = [bytes(one.data) for one in uploads]
        gradients = {board: gradient(datas, len(samples)) for board, samples in read.items()}
        self._open = {board: (samples, update(part, gradients[board])) for board, samples in read.items()}
        count = sum(map(len, read.values()))
        return Pooled(count, 1.0, count, (count,), gradients)

    def _read(self, one: Upload, part: bytes) -> list[tuple[int, int]]:
        data = bytes(one.data)
        body = data[:-DIGEST_BYTES]
        if _hash(body) != data[-DIGEST_BYTES:]:
            raise SplitError(one.client, "its smashed tensor is not finite")
        samples = list(SAMPLE.iter_unpack(body[DIGEST_BYTES:]))
        if body[:DIGEST_BYTES] != _hash(part):
            self._complain(
                f"P3 base: board {one.client} was heard with data of another client part than the present one"
            )
        if len(samples) != one.samples:
            self._complain(f"P4 samples: board {one.client} gives {len(samples)} samples for {one.samples}")
        return [(client, place) for client, place in samples]

    def commit(self, gradients: Mapping[int, Any]) -> None:
        """Do the second phase. Raises SplitError for what is no gradient."""
        for board, (_, ought) in sorted(self._open.items()):
            if bytes(gradients[board]) != ought:
                raise SplitError(board, "its gradient of the client part is not finite")
        if gradients.keys() != self._open.keys():
            self._complain(f"P2 step: boards {set(gradients)} give what boards {set(self._open)} owe")
        books, together = self.books, [sample for samples, _ in self._open.values() for sample in samples]
        books.state = truth.stepped(books.state, [client << 32 | place for client, place in together])
        books.used += together
        books.given.update({board: len(samples) for board, (samples, _) in self._open.items()})
        books.steps += 1
        self._open = {}

    def void(self) -> None:
        """Forget the open step."""
        self._open = {}

    def client_part(self) -> bytes:
        """Return the client part."""
        return (truth.weights(self.books.state) * 2)[: self._part_bytes]

    def digest(self) -> str:
        """Return its hash."""
        return truth.sha(self.client_part())

    def model(self) -> bytes:
        """Return the whole model."""
        return truth.weights(self.books.state)

    def state(self) -> bytes:
        """Return everything needed to go on."""
        return self.books.state

    def load_state(self, state: bytes) -> None:
        """Go on from a state."""
        self.books = Books(state)
