# SPDX-License-Identifier: Apache-2.0
"""Bytes -> other bytes, nearly valid ones: flips, cuts, repeats, splices, and what decoders like to fall over."""

from __future__ import annotations

import random
from collections.abc import Sequence

LONGEST = 1 << 17  # bytes of an input; what decoders are given is bounded by their callers
# Lengths that lie, depth, numbers that are none or too long for somebody, ends of text.
TOKENS: tuple[bytes, ...] = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01", b"\xd4\x01\x00", b"\xd6\xff\x00\x00\x00\x01", b"\x91" * 2000, b"\x81\xa1a" * 700,
    b"[" * 3000, b'{"a":' * 2000, b"a." * 3000, b"\xc0", b"\xc2", b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf0" + bytes(6),
    b"\xcf" + b"\xff" * 8, b"\xd3" + b"\x80" + bytes(7), b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 5000,
    b"9" * 400, b"1" + b"0" * 308, b"-1", b"-0", b"0", b"true", b"null", b'""', b"[]", b"{}", b"\xff" * 4, b"\xff" * 8,
    b"\x7f\xff\xff\xff", bytes(4), b"\x00", b"\n", b"\r", b'"', b"'", b'"""\n', b"=", b"#", b",", b".", b"\\ud800",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1f\x8b", b"0001-01-01", b"9999-12-31T23:00:00-14:00",
)  # fmt: skip


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Return `data` with one to a few changes; pieces of `others` may come into it."""
    out = bytearray(data)
    for _ in range(1 + int(draw.expovariate(1.2))):
        at = draw.randrange(len(out) + 1)
        how = draw.choice((0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8))
        if how == 0 and at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        elif how == 1 and at < len(out):
            out[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif how == 2:
            del out[at : at + _length(draw)]
        elif how == 3:
            out[at:at] = draw.randbytes(_length(draw))
        elif how == 4:
            out[at:at] = out[at : at + _length(draw)] * draw.choice((1, 1, 2, 30))
        elif how == 5:
            token = draw.choice(TOKENS)
            out[at : at + draw.choice((0, 1, len(token)))] = token
        elif how == 6:
            other = draw.choice(others)
            begin = draw.randrange(len(other) + 1)
            out[at : at + draw.choice((0, _length(draw)))] = other[begin : begin + _length(draw)]
        elif how == 7 and at + 4 <= len(out):  # a number, whichever way round
            step = -1 if draw.random() < 0.5 else 1
            number = int.from_bytes(out[at : at + 4][::step], "big") + draw.choice((-1, 1, 1 << 16, 1 << 31))
            out[at : at + 4] = (number % (1 << 32)).to_bytes(4, "big")[::step]
        else:
            del out[at:]
    return bytes(out[:LONGEST])


def _length(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 4, 8, draw.randrange(1, 65)))
