# SPDX-License-Identifier: Apache-2.0
"""The host's door to pyserial: which ports there are and what is known of them, and a line to talk over."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import serial
from serial.tools import list_ports

from paceline_host.onboard.shell import BoardError

LOOK_S = 0.05
# VID, PID (None: any of that maker) -> what it is, and what it is good for.
CONSOLE, METER, BOARD = "console", "meter", "board"
KNOWN: tuple[tuple[int, int | None, str, str], ...] = (
    (0x0403, 0x6001, "FTDI FT232R adapter", CONSOLE),
    (0x0403, 0x6010, "FTDI FT2232 adapter", CONSOLE),
    (0x0403, 0x6011, "FTDI FT4232 adapter", CONSOLE),
    (0x0403, 0x6014, "FTDI FT232H adapter", CONSOLE),
    (0x0403, 0x6015, "FTDI FT231X adapter", CONSOLE),
    (0x0483, 0x374B, "ST-Link/V2.1 of a Nucleo", METER),
    (0x0483, 0x374E, "ST-Link/V3", METER),
    (0x067B, 0x2303, "Prolific PL2303 adapter", CONSOLE),
    (0x0955, 0x7020, "Jetson in device mode", BOARD),
    (0x0D28, 0x0204, "DAPLink of a microcontroller", METER),
    (0x10C4, 0xEA60, "Silicon Labs CP210x adapter", CONSOLE),
    (0x16C0, 0x0483, "Teensy", METER),
    (0x1A86, 0x5523, "WCH CH341 adapter", CONSOLE),
    (0x1A86, 0x55D3, "WCH CH343 adapter", CONSOLE),
    (0x1A86, 0x55D4, "WCH CH9102 adapter", CONSOLE),
    (0x1A86, 0x7523, "WCH CH340 adapter", CONSOLE),
    (0x2341, None, "Arduino", METER),
    (0x2E8A, 0x0005, "Raspberry Pi Pico (MicroPython)", METER),
    (0x2E8A, 0x000A, "Raspberry Pi Pico", METER),
    (0x2E8A, 0x000C, "Raspberry Pi Debug Probe", CONSOLE),
    (0x303A, 0x1001, "ESP32-C3, -C6, -H2 or -S3", METER),
    (0x303A, None, "Espressif chip", METER),
)


@dataclass(frozen=True)
class Port:
    """A serial port. `use`: console, meter, board, or empty where nothing is known of it."""

    device: str
    use: str
    about: str


class PortInfo(Protocol):
    """What pyserial tells of a port."""

    device: str
    vid: int | None
    pid: int | None
    description: str


def ports(infos: Iterable[PortInfo] | None = None) -> list[Port]:
    """Return the USB serial ports of this machine, or those of `infos`: for others nobody can tell what they are."""
    found = []
    for info in sorted(list_ports.comports() if infos is None else infos, key=lambda each: each.device):
        if info.vid is None or info.pid is None:
            continue
        ids = f"{info.vid:04x}:{info.pid:04x}"
        for vid, pid, name, use in KNOWN:
            if vid == info.vid and pid in (None, info.pid):
                found.append(Port(info.device, use, f"{name} ({ids})"))
                break
        else:
            found.append(Port(info.device, "", f"{info.description} ({ids})"))
    return found


class SerialLine:
    """An open line of bytes. All calls raise BoardError where it cannot be used or goes away."""

    def __init__(self, port: str, baud: int) -> None:
        self._port, self.baud = port, baud
        try:
            self._line = serial.serial_for_url(port, baud, timeout=LOOK_S, write_timeout=10.0, exclusive=True)
        except (OSError, ValueError) as error:
            why = str(error).rpartition("]")[2].strip(" '") or type(error).__name__
            raise BoardError(
                4, f"{port} cannot be opened ({why}): is it plugged in, may this user use it (group dialout), and does"
                " no other program have it?"
            ) from None  # fmt: skip

    def write(self, data: bytes) -> None:
        """Send all of it."""
        try:
            self._line.write(data)
            self._line.flush()
        except OSError as error:
            raise self._gone(error) from None

    def read(self, wait_s: float) -> bytes:
        """Return what has come, as soon as something has; empty: nothing in time."""
        end_s = time.monotonic() + wait_s
        try:
            while True:
                data: bytes = self._line.read(max(1, self._line.in_waiting))
                if data or time.monotonic() >= end_s:
                    return data
        except (OSError, TypeError) as error:  # a torn line of pyserial has both
            raise self._gone(error) from None

    def close(self) -> None:
        """Give the port back."""
        self._line.close()

    def _gone(self, error: Exception) -> BoardError:
        return BoardError(
            4, f"the line at {self._port} is gone ({error}): plug it in again and repeat the command, which goes on"
            " where it was"
        )  # fmt: skip
