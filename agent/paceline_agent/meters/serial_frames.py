# SPDX-License-Identifier: Apache-2.0
"""The frames of a serial meter: bytes <-> frozen dataclasses, as docs/PROTOCOL.md section 9 has them. Pure.

On the wire: COBS(body + CRC-32 of the body, little-endian), then one 0x00. Whatever arrives, the parser raises nothing,
keeps at most one frame of memory, and is in step again at the next 0x00.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

VERSION = 1
BODY_BYTES = 249  # longest body; with its CRC below the 254 bytes at which COBS starts another block
FRAME_BYTES = BODY_BYTES + 4 + 2  # ... with CRC, COBS byte and delimiter
CHANNELS_MAX = 6  # two INA3221
NAME_BYTES = 12
FIRMWARE_BYTES = 24
FAULT_TEXT_BYTES = 64
NOTE_BYTES = 128
PERIOD_MIN_US, PERIOD_MAX_US = 1_000, 60_000_000
LAST_FAULT = 5  # highest code of FAULT

POWER, PAIR, ENERGY = 1, 2, 3  # quantities of a channel
COUNTED, MEAN = 1, 2  # flags of a channel
SATURATED, STALE = 1, 2  # flags of a READING

_IDENT, _READING, _FAULT, _TEXT, _EDGE = 1, 2, 3, 4, 5
_ASK_EDGE, _ASK_SELFTEST = 0x40, 0x41  # said by a host
_IDENT_HEAD = struct.Struct("<BBBxII8sB")
_CHANNEL = struct.Struct("<BBIIIIB")
_READING_HEAD = struct.Struct("<BBBBII")
_VALUES = {POWER: struct.Struct("<i"), PAIR: struct.Struct("<ii"), ENERGY: struct.Struct("<q")}


@dataclass(frozen=True)
class Channel:
    """What one channel of a READING means, and how far it may be off."""

    name: str
    quantity: int  # POWER, PAIR (voltage and current) or ENERGY
    flags: int  # COUNTED: part of the total; MEAN: mean since the last READING, otherwise at its instant
    lsb: int  # nanowatt, nanovolt or nanojoule a count
    lsb_current: int = 0  # PAIR alone: nanoampere a count
    gain_ppm: int = 0  # worst case of the instrument: of the value ...
    offset_uw: int = 0  # ... and besides


@dataclass(frozen=True)
class Ident:
    """Who speaks, and what its readings mean. At boot, and at least once a second."""

    period_us: int  # intended time between two READINGs
    boot: int  # another one at each boot
    device: bytes  # 8 bytes, this device's own
    firmware: str
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class ReadingFrame:
    """One reading. `values`: a tuple for each channel of IDENT, as its quantity says; `raw` until IDENT is known."""

    sequence: int
    t_us: int  # device time, wraps at 2^32
    boot: int  # low byte of IDENT's
    flags: int
    count: int  # channels
    raw: bytes

    def values(self, ident: Ident) -> tuple[tuple[int, ...], ...] | None:
        """Return the channels' counts; None when this reading is not of that IDENT's shape or boot."""
        shapes = [_VALUES[channel.quantity] for channel in ident.channels]
        fits = self.count == len(shapes) and len(self.raw) == sum(shape.size for shape in shapes)
        if not fits or self.boot != ident.boot & 0xFF:
            return None
        found, at = [], 0
        for shape in shapes:
            found.append(shape.unpack_from(self.raw, at))
            at += shape.size
        return tuple(found)


@dataclass(frozen=True)
class Fault:
    """The device cannot measure: 1 no sensor, 2 sensor reset, 3 bus stuck, 4 supply too low, 5 other."""

    code: int
    channel: int  # 255: none in particular
    text: str


@dataclass(frozen=True)
class Text:
    """For a person."""

    text: str


@dataclass(frozen=True)
class Edge:
    """The counters as of the instant at which `ask_edge` came; the number that it gave stands as the sequence."""

    counters: ReadingFrame


@dataclass(frozen=True)
class Unsupported:
    """An IDENT of another version of this format."""

    version: int


Frame = Ident | ReadingFrame | Fault | Text | Edge | Unsupported


def stuff(data: bytes) -> bytes:
    """Return COBS of at most 253 bytes: each run between zeros, with its length + 1 in front. No zero byte is left."""
    return b"".join(bytes((len(run) + 1,)) + run for run in data.split(b"\0"))


def unstuff(data: bytes) -> bytes | None:
    """Return what `stuff` made into data, None when that is nothing."""
    runs, at = [], 0
    while at < len(data):
        code = data[at]
        run = data[at + 1 : at + code]
        if code == 0 or len(run) != code - 1 or 0 in run:
            return None
        runs.append(run)
        at += code
    return b"\0".join(runs) if runs else None


def encode(frame: Ident | ReadingFrame | Fault | Text | Edge) -> bytes:
    """Return a frame's bytes with the delimiter. Raises ValueError when it is outside the contract."""
    body = _body(frame)
    if len(body) > BODY_BYTES or _decode(body) != frame:
        raise ValueError(f"outside the contract: {frame}")
    return _framed(body)


def ask_edge(number: int) -> bytes:
    """Return what has a meter that listens answer with an Edge: its counters as of now, once they are known."""
    return b"\0" + _framed(bytes((_ASK_EDGE,)) + number.to_bytes(4, "little"))


def ask_selftest() -> bytes:
    """Return what has a meter that listens test itself, and answer with a Text."""
    return b"\0" + _framed(bytes((_ASK_SELFTEST,)))


def _framed(body: bytes) -> bytes:
    return stuff(body + zlib.crc32(body).to_bytes(4, "little")) + b"\0"


class FrameParser:
    """Bytes in any pieces -> frames. Counts what it could not use."""

    def __init__(self) -> None:
        self._part = bytearray()
        self._skipping = False
        self.damaged = 0
        self.unknown = 0  # whole, but of a kind that this version does not know

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete."""
        frames: list[Frame] = []
        *ends, rest = data.split(b"\0")
        for piece in ends:
            self._hold(piece)
            frame = None if self._skipping else self._frame(bytes(self._part))
            if frame is not None:
                frames.append(frame)
            self._part.clear()
            self._skipping = False
        self._hold(rest)
        return frames

    def cut(self) -> None:
        """The line was broken: what comes next does not go on from what came before."""
        self._part.clear()
        self._skipping = False

    def _hold(self, piece: bytes) -> None:
        if self._skipping or not piece:
            return
        if len(self._part) + len(piece) > FRAME_BYTES - 1:
            self._skipping = True
            self._part.clear()
            self.damaged += 1
        else:
            self._part += piece

    def _frame(self, data: bytes) -> Frame | None:
        if not data:
            return None  # senders may say 0x00 before a frame too
        body = unstuff(data)
        if body is None or len(body) < 5 or zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little"):
            self.damaged += 1
            return None
        frame = _decode(body[:-4])
        self.unknown += frame is None
        return frame


def _body(frame: Frame) -> bytes:
    try:
        if isinstance(frame, Ident):
            firmware = frame.firmware.encode()
            head = _IDENT_HEAD.pack(
                _IDENT, VERSION, len(frame.channels), frame.period_us, frame.boot, frame.device, len(firmware)
            )
            return head + firmware + b"".join(_channel_bytes(channel) for channel in frame.channels)
        if isinstance(frame, ReadingFrame | Edge):
            kind, told = (_EDGE, frame.counters) if isinstance(frame, Edge) else (_READING, frame)
            return _READING_HEAD.pack(kind, told.flags, told.boot, told.count, told.sequence, told.t_us) + told.raw
        if isinstance(frame, Fault):
            return bytes((_FAULT, frame.code, frame.channel)) + frame.text.encode()
        if isinstance(frame, Text):
            return bytes((_TEXT,)) + frame.text.encode()
    except struct.error as error:
        raise ValueError(f"outside the contract: {frame}: {error}") from None
    raise ValueError(f"nobody says {frame}")


def _channel_bytes(channel: Channel) -> bytes:
    name = channel.name.encode()
    numbers = (channel.lsb, channel.lsb_current, channel.gain_ppm, channel.offset_uw)
    return _CHANNEL.pack(channel.quantity, channel.flags, *numbers, len(name)) + name


def pack_values(channels: tuple[Channel, ...], values: tuple[tuple[int, ...], ...]) -> bytes:
    """Return the `raw` of a ReadingFrame."""
    return b"".join(_VALUES[channel.quantity].pack(*each) for channel, each in zip(channels, values, strict=True))


def _decode(body: bytes) -> Frame | None:
    """Return the frame of a whole body, None when it is none that we know."""
    try:
        if body[0] == _IDENT:
            return _ident(body)
        if body[0] in (_READING, _EDGE):
            _, flags, boot, count, sequence, t_us = _READING_HEAD.unpack_from(body)
            told = ReadingFrame(sequence, t_us, boot, flags, count, body[_READING_HEAD.size :])
            return told if body[0] == _READING else Edge(told)
        if body[0] == _FAULT and 1 <= body[1] <= LAST_FAULT and len(body) <= 3 + FAULT_TEXT_BYTES:
            return Fault(body[1], body[2], body[3:].decode())
        if body[0] == _TEXT and len(body) <= 1 + NOTE_BYTES:
            return Text(body[1:].decode())
    except (struct.error, IndexError, UnicodeDecodeError):
        pass
    return None


def _ident(body: bytes) -> Ident | Unsupported | None:
    if body[1] != VERSION:
        return Unsupported(body[1])
    _, _, count, period_us, boot, device, length = _IDENT_HEAD.unpack_from(body)
    at = _IDENT_HEAD.size + length
    firmware = body[_IDENT_HEAD.size : at].decode()
    channels = []
    for _ in range(count):
        quantity, flags, lsb, lsb_current, gain_ppm, offset_uw, length_name = _CHANNEL.unpack_from(body, at)
        at += _CHANNEL.size + length_name
        name = body[at - length_name : at].decode()
        channels.append(Channel(name, quantity, flags, lsb, lsb_current, gain_ppm, offset_uw))
        sound = quantity in _VALUES and lsb > 0 and (lsb_current > 0) == (quantity == PAIR) and gain_ppm <= 1_000_000
        if not sound or not name.isprintable() or not 1 <= length_name <= NAME_BYTES:
            return None
    if at != len(body) or length > FIRMWARE_BYTES or not 1 <= count <= CHANNELS_MAX:
        return None
    if not PERIOD_MIN_US <= period_us <= PERIOD_MAX_US or len({channel.name for channel in channels}) < count:
        return None
    return Ident(period_us, boot, device, firmware, tuple(channels))
