# SPDX-License-Identifier: Apache-2.0
"""A board's part of a schedule: what is encoded comes back, positions follow from it, and nothing false gets in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RemoteProtocolError
from paceline.split.rows import Rows, most_rows, room

SIZES = (10, 0, 7)
ROWS = Rows(first=3, epoch_steps=9, used=(2, 0, 1), counts=((1, 0, 2), (0, 0, 0), (4, 0, 1)))


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    clients, number, first = draw(st.integers(1, 5)), draw(st.integers(0, 6)), draw(st.integers(0, 1000))
    numbers = st.lists(st.integers(0, 1 << 20), min_size=clients, max_size=clients).map(tuple)
    counts = tuple(draw(numbers) for _ in range(number))
    return Rows(first, first + number + draw(st.integers(0, 5)), draw(numbers), counts)


@given(rows())
def test_what_is_encoded_comes_back(some: Rows) -> None:
    assert Rows.decode(some.encode(), [1 << 31] * len(some.used)) == some


def test_the_bytes_are_what_the_protocol_page_says() -> None:
    assert ROWS.encode() == struct.pack("<16I", 3, 3, 3, 9, 2, 0, 1, 1, 0, 2, 0, 0, 0, 4, 0, 1)


def test_positions_count_from_where_the_rows_begin() -> None:
    assert ROWS.positions(3) == [(2, 3), (0, 0), (1, 3)]
    assert ROWS.positions(5) == [(3, 7), (0, 0), (3, 4)]
    for step in (2, 6):
        with pytest.raises(RemoteProtocolError, match=f"step {step} is not in the schedule"):
            ROWS.positions(step)


def test_more_than_a_client_holds_is_refused() -> None:
    Rows.decode(ROWS.encode(), SIZES)
    with pytest.raises(RemoteProtocolError, match="more than its 6 samples"):
        Rows.decode(ROWS.encode(), (6, 0, 7))


@given(st.binary(max_size=80))
def test_whatever_arrives_is_rows_or_a_protocol_error(data: bytes) -> None:
    try:
        some = Rows.decode(data, SIZES)
    except RemoteProtocolError:
        return
    assert some.encode() == data


@given(st.integers(0, 63))
def test_a_schedule_that_is_cut_short_is_refused(end: int) -> None:
    with pytest.raises(RemoteProtocolError):
        Rows.decode(ROWS.encode()[:end], SIZES)


@pytest.mark.parametrize("clients", [1, 7, 128, 70_000])
def test_the_most_rows_fit_where_they_are_put(clients: int) -> None:
    many = Rows(0, 1 << 20, (0,) * clients, ((0,) * clients,) * most_rows(clients))
    assert len(many.encode()) <= room(clients)
