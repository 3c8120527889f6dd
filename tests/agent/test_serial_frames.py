# SPDX-License-Identifier: Apache-2.0
"""The laws of the frames: what is said comes back, damage is seen, nothing raises, nothing grows."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline_agent.meters import serial_frames as f

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")

u8, u32 = st.integers(0, 2**8 - 1), st.integers(0, 2**32 - 1)
lsb = st.integers(1, 2**32 - 1)
VALUES = {f.POWER: (-(2**31), 2**31 - 1), f.PAIR: (-(2**31), 2**31 - 1), f.ENERGY: (-(2**63), 2**63 - 1)}


def text(most: int, least: int = 0) -> st.SearchStrategy[str]:
    printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=least, max_size=most)
    return printable | st.text(st.sampled_from("µΩé"), min_size=least, max_size=most // 2)


@st.composite
def channel(draw: st.DrawFn, name: str) -> f.Channel:
    quantity = draw(st.sampled_from([f.POWER, f.PAIR, f.ENERGY]))
    current = draw(lsb) if quantity == f.PAIR else 0
    return f.Channel(name, quantity, draw(u8), draw(lsb), current, draw(st.integers(0, 10**6)), draw(u32))


@st.composite
def idents(draw: st.DrawFn) -> f.Ident:
    names = draw(st.lists(text(f.NAME_BYTES, 1), min_size=1, max_size=f.CHANNELS_MAX, unique=True))
    channels = tuple(draw(channel(name)) for name in names)
    period_us = draw(st.integers(f.PERIOD_MIN_US, f.PERIOD_MAX_US))
    device, firmware = draw(st.binary(min_size=8, max_size=8)), draw(text(f.FIRMWARE_BYTES))
    return f.Ident(period_us, draw(u32), device, firmware, channels)


@st.composite
def idents_and_values(draw: st.DrawFn) -> tuple[f.Ident, tuple[tuple[int, ...], ...]]:
    ident = draw(idents())
    values = tuple(
        tuple(draw(st.integers(*VALUES[each.quantity])) for _ in range(1 + (each.quantity == f.PAIR)))
        for each in ident.channels
    )
    return ident, values


@st.composite
def readings(draw: st.DrawFn) -> f.ReadingFrame:
    ident, values = draw(idents_and_values())
    raw = f.pack_values(ident.channels, values)
    return f.ReadingFrame(draw(u32), draw(u32), ident.boot & 0xFF, draw(u8), len(values), raw)


frames = st.one_of(
    idents(),
    readings(),
    st.builds(f.Edge, readings()),
    st.builds(f.Fault, st.integers(1, f.LAST_FAULT), u8, text(f.FAULT_TEXT_BYTES)),
    st.builds(f.Text, text(f.NOTE_BYTES)),
)


def parse(data: bytes) -> list[f.Frame]:
    return f.FrameParser().feed(data)


@given(st.binary(max_size=253))
def test_stuffing_leaves_no_zero_and_comes_back(data: bytes) -> None:
    stuffed = f.stuff(data)
    assert 0 not in stuffed
    assert len(stuffed) == len(data) + 1
    assert f.unstuff(stuffed) == data


@given(st.binary(max_size=300))
@example(b"\x02\x00")
@example(b"\x00")
@example(b"\x03a")
def test_whatever_is_unstuffed_is_what_was_stuffed_or_nothing(data: bytes) -> None:
    plain = f.unstuff(data)
    assert plain is None or f.stuff(plain) == data


@given(st.lists(frames, max_size=4), st.data())
def test_what_is_encoded_comes_back_in_any_pieces(sent: list[f.Frame], data: st.DataObject) -> None:
    line = b"".join(f.encode(frame) for frame in sent if not isinstance(frame, f.Unsupported))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(line)), max_size=6)))
    parser, got = f.FrameParser(), []
    for begin, end in zip([0, *cuts], [*cuts, len(line)], strict=True):
        got += parser.feed(line[begin:end])
    assert got == sent
    assert (parser.damaged, parser.unknown) == (0, 0)


@given(frames)
def test_a_frame_fits_its_bytes_and_holds_one_zero_the_last(frame: f.Ident) -> None:
    encoded = f.encode(frame)
    assert len(encoded) <= f.FRAME_BYTES
    assert encoded.index(0) == len(encoded) - 1


@given(idents_and_values())
def test_values_come_back_by_the_shape_of_their_ident(pair: tuple[f.Ident, tuple[tuple[int, ...], ...]]) -> None:
    ident, values = pair
    frame = f.ReadingFrame(1, 2, ident.boot & 0xFF, 0, len(values), f.pack_values(ident.channels, values))
    assert frame.values(ident) == values
    other_boot = f.Ident(ident.period_us, ident.boot ^ 1, ident.device, ident.firmware, ident.channels)
    assert frame.values(other_boot) is None, "a reading of another boot is not read by this IDENT"


@given(frames, frames, st.data())
def test_a_flipped_bit_is_seen_and_the_next_frame_comes(first: f.Ident, second: f.Ident, data: st.DataObject) -> None:
    encoded = bytearray(f.encode(first))
    bit = data.draw(st.integers(0, 8 * (len(encoded) - 1) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    parser = f.FrameParser()
    assert parser.feed(bytes(encoded) + b"\0" + f.encode(second)) == [second]
    assert parser.damaged > 0


@given(frames, frames, st.data())
def test_half_a_frame_costs_itself_alone_when_the_next_begins_with_a_zero(
    first: f.Ident, second: f.Ident, data: st.DataObject
) -> None:
    encoded = f.encode(first)
    half = encoded[: data.draw(st.integers(1, len(encoded) - 2))]
    parser = f.FrameParser()
    assert parser.feed(half + b"\0" + f.encode(second)) == [second]
    assert parser.damaged == 1


@given(st.lists(st.binary(max_size=600), max_size=8), frames)
def test_no_bytes_raise_or_grow_and_the_parser_is_in_step_at_the_next_zero(noise: list[bytes], frame: f.Ident) -> None:
    parser = f.FrameParser()
    for piece in noise:
        parser.feed(piece)
        assert len(parser._part) < f.FRAME_BYTES
    assert parser.feed(b"\0" + f.encode(frame))[-1] == frame


def test_an_endless_frame_is_one_damage_and_no_memory() -> None:
    parser = f.FrameParser()
    for _ in range(1000):
        parser.feed(b"x" * 1000)
    assert (parser.damaged, len(parser._part)) == (1, 0)


@given(frames, st.data())
def test_a_whole_frame_with_any_other_body_never_raises(frame: f.Ident, data: st.DataObject) -> None:
    body = bytearray(f.unstuff(f.encode(frame)[:-1]) or b"")[:-4]
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(u8)
    body = body[: data.draw(st.integers(1, len(body)))]
    parser = f.FrameParser()
    got = parser.feed(f.stuff(bytes(body) + zlib.crc32(body).to_bytes(4, "little")) + b"\0")
    assert len(got) + parser.unknown == 1
    for each in got:
        assert isinstance(each, f.Unsupported) or f.encode(each)


VIN = f.Channel("VIN", f.ENERGY, f.COUNTED, 1000, gain_ppm=5000, offset_uw=2000)
IDENT = f.Ident(100_000, 7, b"\1\2\3\4\5\6\7\x08", "meter 1.0", (VIN,))


@pytest.mark.parametrize(
    "wrong",
    [
        f.Ident(999, 7, bytes(8), "", (VIN,)),
        f.Ident(100_000, 7, bytes(8), "", ()),
        f.Ident(100_000, 7, bytes(8), "", (VIN, VIN)),
        f.Ident(100_000, 7, bytes(8), "x" * 25, (VIN,)),
        f.Ident(100_000, 2**32, bytes(8), "", (VIN,)),
        f.Ident(100_000, 7, bytes(8), "", (f.Channel("", f.ENERGY, 1, 1),)),
        f.Ident(100_000, 7, bytes(8), "", (f.Channel("thirteen-long", f.ENERGY, 1, 1),)),
        f.Ident(100_000, 7, bytes(8), "", (f.Channel("a", 4, 1, 1),)),
        f.Ident(100_000, 7, bytes(8), "", (f.Channel("a", f.PAIR, 1, 1),)),
        f.Ident(100_000, 7, bytes(8), "", (f.Channel("a", f.POWER, 1, 0),)),
        f.Fault(6, 0, ""),
        f.Text("x" * 129),
        f.ReadingFrame(0, 0, 256, 0, 1, b""),
    ],
)
def test_values_outside_the_contract_are_not_sent(wrong: f.Ident) -> None:
    with pytest.raises(ValueError, match="outside the contract"):
        f.encode(wrong)


def test_another_version_is_told_from_damage() -> None:
    body = bytearray(f.unstuff(f.encode(IDENT)[:-1]) or b"")[:-4]
    body[1] = 2
    assert parse(f.stuff(bytes(body) + zlib.crc32(body).to_bytes(4, "little")) + b"\0") == [f.Unsupported(2)]


def test_the_example_of_the_page_is_what_the_code_says() -> None:
    reading = f.ReadingFrame(41, 4_100_000, 7, 0, 1, f.pack_values((VIN,), ((20_500_000,),)))
    shown = re.findall(r"^    ([0-9a-f ]+)$", PAGE.partition("### Example")[2], re.MULTILINE)
    assert [bytes.fromhex(line) for line in shown[:2]] == [f.encode(IDENT), f.encode(reading)]
