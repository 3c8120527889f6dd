# SPDX-License-Identifier: Apache-2.0
"""Laws of a bulk transfer: pieces cover the whole exactly once, in order, and never beyond what was granted; and they
follow the pace of the link, here links of a virtual clock.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RemoteProtocolError
from paceline.transfer import LEAST_CHUNKS, MOST_CHUNKS, Rate, Receiver, Sender
from paceline.wire import CHUNK_CEILING, CHUNK_FLOOR, CHUNK_START

KIB = 1024
SIZES = st.integers(1, 4 << 20)
CHUNKS = st.integers(0, 2 << 20)
CREDITS = st.integers(1, 4 << 20)


@given(SIZES, CHUNKS, CREDITS, st.sampled_from([0.0, 1e-4, 0.01, 3.0]), st.randoms(use_true_random=False))
def test_pieces_cover_the_whole_exactly_and_never_exceed_the_credit(
    size: int, chunk: int, credit: int, tick_s: float, random: Random
) -> None:
    sender, receiver = Sender(size, chunk, credit), Receiver(size, credit, max(chunk, CHUNK_FLOOR))
    granted, on_the_wire, arrived, now_s = min(size, credit), [], 0, 50.0
    most = max(credit, LEAST_CHUNKS * CHUNK_FLOOR, MOST_CHUNKS * max(chunk, CHUNK_FLOOR))
    for _ in range(100_000):
        fresh = sender.pieces()
        assert all(0 < end - begin <= max(CHUNK_FLOOR, min(chunk, CHUNK_CEILING)) for begin, end in fresh)
        assert all(end <= granted for _, end in fresh)
        on_the_wire += fresh
        if not on_the_wire:
            break
        for _ in range(random.randint(1, len(on_the_wire))):
            begin, end = on_the_wire.pop(0)
            assert begin == arrived
            now_s += tick_s * random.random()
            receiver.take(begin, end - begin, now_s)
            arrived = end
            upto = receiver.grant()
            if upto is not None:
                assert granted <= upto <= size
                assert upto == granted or upto - arrived <= most, "no more than the window is ever outstanding"
                granted = upto
                sender.granted(receiver.have, upto, now_s)
    assert arrived == size
    assert sender.done
    assert receiver.done
    assert (sender.pieces(), receiver.grant()) == ([], None)


@given(SIZES, CHUNKS)
def test_without_a_grant_a_sender_stops_at_its_credit(size: int, chunk: int) -> None:
    sender = Sender(size, chunk, 100 * KIB)
    assert sum(end - begin for begin, end in sender.pieces()) == min(size, 100 * KIB)
    assert sender.pieces() == []
    assert sender.done == (size <= 100 * KIB)


@pytest.mark.parametrize(
    ("what", "have", "upto"),
    [
        ("bytes that were never sent", 257 * KIB, 300 * KIB),
        ("an end behind the transfer", 0, 1024 * KIB + 1),
        ("a limit below what is there", 200 * KIB, 100 * KIB),
    ],
)
def test_a_credit_that_cannot_be_is_refused_and_changes_nothing(what: str, have: int, upto: int) -> None:
    sender = Sender(1024 * KIB, 64 * KIB, 256 * KIB)
    assert len(sender.pieces()) == 4
    with pytest.raises(RemoteProtocolError):
        sender.granted(have, upto, 1.0)
    assert sender.pieces() == []


def test_a_repeated_or_older_credit_takes_nothing_back_and_sends_nothing_twice() -> None:
    sender = Sender(1024 * KIB, 64 * KIB, 256 * KIB)
    sender.pieces()
    sender.granted(128 * KIB, 384 * KIB, 1.0)
    assert sender.pieces() == [(256 * KIB, 320 * KIB), (320 * KIB, 384 * KIB)]
    for _ in range(2):
        sender.granted(64 * KIB, 320 * KIB, 2.0)
        assert sender.pieces() == []


@pytest.mark.parametrize(
    ("what", "offset", "nbytes"),
    [
        ("an empty piece", 64 * KIB, 0),
        ("a piece before its turn", 128 * KIB, 64 * KIB),
        ("a piece that was here already", 0, 64 * KIB),
        ("a piece that overlaps", 32 * KIB, 64 * KIB),
        ("a piece beyond the credit", 64 * KIB, 200 * KIB),
        ("a piece beyond the whole", 64 * KIB, 1024 * KIB),
    ],
)
def test_a_piece_out_of_order_or_bounds_is_refused_and_changes_nothing(what: str, offset: int, nbytes: int) -> None:
    receiver = Receiver(1024 * KIB, 256 * KIB)
    receiver.take(0, 64 * KIB, 1.0)
    with pytest.raises(RemoteProtocolError):
        receiver.take(offset, nbytes, 2.0)
    assert receiver.have == 64 * KIB
    receiver.take(64 * KIB, 64 * KIB, 2.0)


def test_nothing_enters_behind_the_end() -> None:
    receiver = Receiver(100, 100)
    receiver.take(0, 100, 1.0)
    with pytest.raises(RemoteProtocolError):
        receiver.take(100, 1, 2.0)


def test_more_is_granted_once_half_of_the_window_is_used() -> None:
    receiver = Receiver(1024 * KIB, 256 * KIB)
    assert receiver.grant() is None
    receiver.take(0, 127 * KIB, 1.0)
    assert receiver.grant() is None
    receiver.take(127 * KIB, KIB, 2.0)
    assert receiver.grant() == (128 + 256) * KIB
    assert receiver.grant() is None


# The pace of the link -----------------------------------------------------------------------------------------------


@dataclass
class Wire:
    """A link of `bytes_per_s` each way, `latency_s` long, between two ends that answer at once; time is virtual."""

    bytes_per_s: float
    latency_s: float = 0.001
    now_s: float = 1000.0
    free_s: float = 0.0  # when the wire has taken what was put on it
    chunks: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)  # what a control message would have waited behind chunks
    rate_out: Rate = field(default_factory=Rate)
    rate_in: Rate = field(default_factory=Rate)

    def carry(self, size: int, chunk_max: int = CHUNK_CEILING, credit: int = CHUNK_START) -> float:
        """Carry one transfer, return its seconds."""
        began_s = self.now_s
        sender, receiver = (
            Sender(size, chunk_max, credit, self.rate_out),
            Receiver(size, credit, chunk_max, self.rate_in),
        )
        due: list[tuple[float, int, int, int]] = []  # (when, 0: chunk, 1: credit; then its two numbers)
        self._put(sender, due)
        while not receiver.done:
            self.now_s, is_credit, a, b = heapq.heappop(due)
            if is_credit:
                sender.granted(a, b, self.now_s)
                self._put(sender, due)
                continue
            receiver.take(a, b - a, self.now_s)
            upto = receiver.grant()
            if upto is not None:
                heapq.heappush(due, (self.now_s + self.latency_s, 1, receiver.have, upto))
        return self.now_s - began_s

    def _put(self, sender: Sender, due: list[tuple[float, int, int, int]]) -> None:
        for begin, end in sender.pieces():
            self.free_s = max(self.free_s, self.now_s) + (end - begin) / self.bytes_per_s
            self.chunks.append(end - begin)
            heapq.heappush(due, (self.free_s + self.latency_s, 0, begin, end))
        self.waits_s.append(max(0.0, self.free_s - self.now_s))


@pytest.mark.parametrize(
    ("what", "bytes_per_s", "latency_s", "chunk", "wait_s"),
    [
        ("this machine", 1e9, 0.00005, CHUNK_CEILING, 0.02),
        ("a wired network", 11e6, 0.0005, CHUNK_CEILING, 1.1),
        ("Wi-Fi", 2e6, 0.003, CHUNK_START, 1.1),
        ("a bad modem", 50e3, 0.1, CHUNK_FLOOR, 5.3),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_the_chunk_follows_the_pace_of_the_link(
    what: str, bytes_per_s: float, latency_s: float, chunk: int, wait_s: float
) -> None:
    wire = Wire(bytes_per_s, latency_s)
    wire.carry(8 << 20)
    assert wire.chunks[0] == CHUNK_START, "nothing is known yet"
    learnt = len(wire.chunks)
    wire.waits_s.clear()
    took_s = wire.carry(8 << 20)
    assert max(wire.chunks[learnt:]) == chunk
    assert wire.chunks[learnt] == min(chunk, CHUNK_START), "the next transfer begins with what the last one learnt"
    assert max(wire.waits_s) <= wait_s, "a control message does not wait for long behind chunks"
    assert took_s <= 1.1 * (8 << 20) / bytes_per_s + 10 * latency_s, "the link is never idle for want of credit"


def test_neither_sides_limit_is_passed_on_a_fast_link() -> None:
    wire = Wire(1e9)
    wire.carry(8 << 20, chunk_max=100_000)
    assert max(wire.chunks) == 100_000


def test_a_link_that_becomes_slow_gets_smaller_chunks_within_its_transfer() -> None:
    wire = Wire(100e6)
    wire.carry(64 << 20)
    assert wire.chunks[-2] == CHUNK_CEILING
    wire.bytes_per_s = 100e3
    wire.carry(32 << 20)
    assert wire.chunks[-2] == CHUNK_FLOOR


def test_a_small_transfer_tells_nothing_of_the_pace() -> None:
    wire = Wire(1e9, latency_s=0.2)
    for _ in range(20):
        wire.carry(40)
    assert (wire.rate_in.bytes_per_s, wire.rate_out.bytes_per_s) == (None, None)


def test_a_receiver_that_was_busy_does_not_take_the_link_for_a_faster_one() -> None:
    """It finds a second's worth of chunks in one moment."""
    rate = Rate()
    for i in range(40):
        rate.mark(i * CHUNK_FLOOR, i * 0.125)
    for i in range(40, 48):
        rate.mark(i * CHUNK_FLOOR, 6.0)
    assert rate.bytes_per_s == pytest.approx(8 * CHUNK_FLOOR, rel=0.3)


def test_fewer_bytes_than_the_floor_are_no_progress_but_the_last_ones_are() -> None:
    receiver = Receiver(CHUNK_FLOOR + 10, 1 << 20)
    sender = Sender(CHUNK_FLOOR + 10, CHUNK_CEILING, 1 << 20)
    sender.pieces()
    for offset in range(5):
        receiver.take(offset, 1, float(offset))
        sender.granted(receiver.have, receiver.size, float(offset))
        assert (receiver.moved(), sender.moved()) == (False, False)
    receiver.take(5, CHUNK_FLOOR, 6.0)
    sender.granted(receiver.have, receiver.size, 6.0)
    assert (receiver.moved(), sender.moved()) == (True, True)
    assert (receiver.moved(), sender.moved()) == (False, False)
    receiver.take(CHUNK_FLOOR + 5, 5, 7.0)
    assert receiver.moved()
