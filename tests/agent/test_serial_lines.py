# SPDX-License-Identifier: Apache-2.0
"""Meters that print: what stands in a line is what was declared, and nothing else is a reading."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_agent.meters.serial_lines import LINE_BYTES, Line, LineParser, check_channels


def parse(style: str, channels: tuple[str, ...], *lines: bytes) -> tuple[list[Line], int]:
    parser = LineParser(style, channels)
    parser.feed(b"\n")  # the line that was there before
    return parser.feed(b"".join(line + b"\n" for line in lines)), parser.damaged


@pytest.mark.parametrize(
    ("style", "channels", "line", "expected"),
    [
        ("csv", ("t_ms", "-", "mv", "ma"), b"18014,x,5000,800\r", Line(4_000_000, None, 18_014_000, None)),
        ("csv", ("v", "a"), b"5.0, -0.5", Line(-2_500_000, None, None, None)),
        ("csv", ("seq", "mw"), b"7,1500.25,more", Line(1_500_250, None, None, 7)),
        ("csv", ("t_s", "mwh"), b"1.5,0.001", Line(None, 3_600_000, 1_500_000, None)),
        ("json", ("power=w", "ms=t_ms"), b'{"ms": 5, "power": "2.5", "x": [1]}', Line(2_500_000, None, 5_000, None)),
        ("json", ("e=j",), b'{"e": 12}', Line(None, 12_000_000_000, None, None)),
    ],
)
def test_a_line_means_what_was_declared(style: str, channels: tuple[str, ...], line: bytes, expected: Line) -> None:
    assert parse(style, channels, line) == ([expected], 0)


@pytest.mark.parametrize(
    ("style", "channels", "line"),
    [
        ("csv", ("v", "a"), b"5.0"),
        ("csv", ("v", "a"), b"5.0,"),
        ("csv", ("v", "a"), b"volts,amps"),
        ("csv", ("w",), b"nan"),
        ("csv", ("w",), b"inf"),
        ("csv", ("w",), b"1e300"),
        ("csv", ("w",), b"\xff\xfe"),
        ("json", ("p=w",), b"{}"),
        ("json", ("p=w",), b'{"p": null}'),
        ("json", ("p=w",), b'{"p": true}'),
        ("json", ("p=w",), b"[1]"),
        ("json", ("p=w",), b'{"p": 1'),
        ("json", ("p=w",), b"[" * 1000),
        ("json", ("p=w",), b'{"p": 1' + b"0" * 400 + b"}"),
    ],
)
def test_a_line_that_lacks_a_value_is_damaged_and_never_zero(
    style: str, channels: tuple[str, ...], line: bytes
) -> None:
    assert parse(style, channels, line) == ([], 1)


@given(st.lists(st.integers(-(10**9), 10**9), max_size=8), st.data())
def test_lines_come_whole_in_any_pieces(values: list[int], data: st.DataObject) -> None:
    text = b"\n" + b"".join(json.dumps({"p": value}).encode() + b"\r\n" for value in values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parser, lines = LineParser("json", ("p=uw",)), []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        lines += parser.feed(text[begin:end])
    assert [line.power_uw for line in lines] == values


def test_the_end_of_a_line_that_was_there_before_is_no_reading() -> None:
    parser = LineParser("csv", ("w",))
    assert parser.feed(b"75\n2\n") == [Line(2_000_000, None, None, None)], "175 W may have stood there"
    parser.feed(b"1")
    parser.cut()
    assert parser.feed(b"5\n3\n") == [Line(3_000_000, None, None, None)]


@given(st.lists(st.binary(max_size=2 * LINE_BYTES), max_size=6), st.sampled_from(["csv", "json"]))
def test_no_bytes_raise_or_grow(noise: list[bytes], style: str) -> None:
    parser = LineParser(style, ("p=w",) if style == "json" else ("w",))
    for piece in noise:
        parser.feed(piece)
        assert len(parser._part) <= LINE_BYTES
    assert parser.feed(b'\n{"p": 2}\n' if style == "json" else b"\n2\n")[-1].power_uw == 2_000_000


@pytest.mark.parametrize(
    ("style", "channels", "named"),
    [
        ("csv", (), "expected each once"),
        ("csv", ("t_ms",), "expected each once"),
        ("csv", ("v",), "expected each once"),
        ("csv", ("w", "mw"), "expected each once"),
        ("csv", ("w", "j"), "expected each once"),
        ("csv", ("watts",), "'watts'"),
        ("json", ("w",), "KEY=UNIT"),
        ("json", ("p=-",), "KEY=UNIT"),
    ],
)
def test_columns_that_make_no_reading_are_refused(style: str, channels: tuple[str, ...], named: str) -> None:
    with pytest.raises(ValueError, match=r"^meter\.channels") as refused:
        check_channels(style, channels)
    assert named in str(refused.value)
