# SPDX-License-Identifier: Apache-2.0
"""Who answers at the serial ports: listens to all of them for a second, all at once. Sends nothing, keeps none open."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from paceline.talk import printable
from paceline_agent.meters import MeterError, MeterSettings
from paceline_agent.meters import serial_frames as frames
from paceline_agent.meters.findings import Finding, Where, refused
from paceline_agent.meters.ports import serial_ports
from paceline_agent.meters.serial_port import SerialPort

LISTEN_S = 1.3  # a meter says IDENT at least once a second


def find(where: Where) -> Iterator[Finding]:
    """Tell which meters speak our frames, or something else, at which ports.

    Opening a port makes some boards start anew, so it is done for `meter scan` alone.
    """
    if not where.listen:
        return
    with ExitStack() as life:
        heard: dict[str, tuple[SerialPort, frames.FrameParser, list[frames.Frame], list[bytes]]] = {}
        for path in serial_ports(where):
            try:
                port = SerialPort(str(path), MeterSettings.baud)
            except MeterError as error:
                yield refused("serial", str(path), error)
                continue
            life.callback(port.close)
            heard[str(path)] = port, frames.FrameParser(), [], []
        end_s = time.monotonic() + LISTEN_S
        while heard and time.monotonic() < end_s and not all(_names_itself(found) for *_, found, _ in heard.values()):
            time.sleep(0.02)
            for port, parser, found, pieces in heard.values():
                for _, data in port.take():
                    pieces.append(data)
                    found += parser.feed(data)
        for name, (_, _, found, pieces) in heard.items():
            yield from _answer(name, found, b"".join(pieces))


def _names_itself(found: Sequence[frames.Frame]) -> bool:
    return any(isinstance(frame, frames.Ident | frames.Unsupported) for frame in found)


def _answer(name: str, found: Sequence[frames.Frame], data: bytes) -> Iterator[Finding]:
    for frame in found:
        if isinstance(frame, frames.Ident):
            names = ", ".join(channel.name for channel in frame.channels)
            about = f"{printable(frame.firmware) or 'a meter'}, number {frame.device.hex()}: {names}"
            each = f"; each {frame.period_us / 1e3:g} ms"
            yield Finding("meter", "serial", name, True, about + each, settings={"port": name})
            return
        if isinstance(frame, frames.Unsupported):
            about = f"a meter that speaks version {frame.version} of the frames, this agent speaks {frames.VERSION}"
            yield Finding("meter", "serial", name, False, about, "update the older one")
            return
    if data:
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data[-40:])
        todo = "for a meter that prints set meter.format and channels, for another speed meter.baud"
        yield Finding("meter", "serial", name, False, f"it speaks, but no frames of ours: {shown!r}", todo)
