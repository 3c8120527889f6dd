# SPDX-License-Identifier: Apache-2.0
"""Laws of a bulk transfer: pieces cover the whole exactly once, in order, and never beyond what was granted."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RemoteProtocolError
from paceline.transfer import Receiver, Sender
from paceline.wire import CHUNK_CEILING, CHUNK_FLOOR

KIB = 1024
SIZES = st.integers(1, 4 << 20)
CHUNKS = st.integers(0, 2 << 20)
CREDITS = st.integers(1, 4 << 20)


@given(SIZES, CHUNKS, CREDITS, st.randoms(use_true_random=False))
def test_pieces_cover_the_whole_exactly_and_never_exceed_the_credit(
    size: int, chunk: int, credit: int, random: Random
) -> None:
    sender, receiver = Sender(size, chunk, credit), Receiver(size, credit)
    granted, on_the_wire, arrived = min(size, credit), [], 0
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
            receiver.take(begin, end - begin)
            arrived = end
            upto = receiver.grant()
            if upto is not None:
                assert granted < upto <= size
                assert upto - arrived <= credit, "no more than the window is ever outstanding"
                granted = upto
                sender.granted(receiver.have, upto)
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
        sender.granted(have, upto)
    assert sender.pieces() == []


def test_a_repeated_or_older_credit_takes_nothing_back_and_sends_nothing_twice() -> None:
    sender = Sender(1024 * KIB, 64 * KIB, 256 * KIB)
    sender.pieces()
    sender.granted(128 * KIB, 384 * KIB)
    assert sender.pieces() == [(256 * KIB, 320 * KIB), (320 * KIB, 384 * KIB)]
    for _ in range(2):
        sender.granted(64 * KIB, 320 * KIB)
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
    receiver.take(0, 64 * KIB)
    with pytest.raises(RemoteProtocolError):
        receiver.take(offset, nbytes)
    assert receiver.have == 64 * KIB
    receiver.take(64 * KIB, 64 * KIB)


def test_nothing_enters_behind_the_end() -> None:
    receiver = Receiver(100, 100)
    receiver.take(0, 100)
    with pytest.raises(RemoteProtocolError):
        receiver.take(100, 1)


def test_more_is_granted_once_half_of_the_window_is_used() -> None:
    receiver = Receiver(1024 * KIB, 256 * KIB)
    assert receiver.grant() is None
    receiver.take(0, 127 * KIB)
    assert receiver.grant() is None
    receiver.take(127 * KIB, KIB)
    assert receiver.grant() == (128 + 256) * KIB
    assert receiver.grant() is None
