# SPDX-License-Identifier: Apache-2.0
"""The only door to pyserial: bytes with the instant of their arrival, from a line that may go away and come back.

A thread of its own waits for the bytes, so that their instants are theirs and not those of somebody's next look. It
knows no format.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import select
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import serial

from paceline_agent.meters import MeterError

BY_ID = Path("/dev/serial/by-id")  # names that udev makes of what the device says of itself
PIECE_BYTES = 4096  # what one look takes
HELD_BYTES = 1 << 20  # what nobody fetches is dropped above
AGAIN_S = 0.5  # between two tries to open
LOOK_S = 0.1  # a port without a descriptor is waited for in such steps


class SerialPort:
    """Open from the start, or MeterError. `port`: a device, or a URL of pyserial (socket://, rfc2217://)."""

    def __init__(self, port: str, baud: int, by_id: Path = BY_ID) -> None:
        self._port, self._baud, self._by_id = port, baud, by_id
        self._name = port  # how it is opened again
        self._lock = threading.Lock()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._held = 0
        self.dropped_bytes = 0
        self.trouble = ""  # why the line is down
        self.opened_us = 0
        self._line: serial.SerialBase | None = self._open()
        self._name = lasting_name(port, by_id) or port  # unplugged and back, it may have another number
        self._ending = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="serial", daemon=True)
        self._thread.start()

    def take(self) -> list[tuple[int, bytes]]:
        """Return what has come, each with its instant; b"" where the line was broken."""
        with self._lock:
            pieces, self._pieces, self._held = list(self._pieces), deque(), 0
        return pieces

    def close(self) -> None:
        """End the thread and give the port back."""
        self._ending.set()
        os.write(self._wake_write, b"e")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                if self._line is None:
                    self._line = self._open()
                    self.trouble = ""
                data = self._wait(self._line)
                if data:
                    self._hold(data)
            except MeterError as error:
                self.trouble = f"{str(error).rstrip('?')}; it is tried again"
                self._ending.wait(AGAIN_S)
            except (OSError, ValueError, TypeError) as error:  # pyserial's own errors are OSErrors; a torn line has all
                self.trouble = _broken(self._port, error)  # before the line is closed, which may take a while
                self._drop_line()
        self._drop_line()

    def _wait(self, line: serial.SerialBase) -> bytes:
        """Return the bytes that have come; at the latest after a while, or at the end, none."""
        try:
            descriptor = line.fileno()
        except (OSError, AttributeError):  # rfc2217, loop: they queue in a thread of their own
            first: bytes = line.read(1)
            more = min(getattr(line, "in_waiting", 0), PIECE_BYTES)
            return first + line.read(more) if first else b""
        ready, _, _ = select.select([descriptor, self._wake_read], [], [])
        return line.read(PIECE_BYTES) if descriptor in ready else b""

    def _hold(self, data: bytes) -> None:
        with self._lock:
            self._pieces.append((_now_us(), data))
            self._held += len(data)
            if self._held > HELD_BYTES:  # nobody fetches it
                self.dropped_bytes += self._held
                self._pieces, self._held = deque([(_now_us(), b"")]), 0

    def _drop_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with suppress(OSError, ValueError, TypeError):
                line.close()
            with self._lock:
                self._pieces.append((_now_us(), b""))

    def _open(self) -> serial.SerialBase:
        """Open, and lock against others where the system can. Raises MeterError, one sentence with what to do."""
        if "://" in self._name and not _is_url(self._name):
            raise MeterError(
                f"meter.port = {self._port!r}: expected a device, socket://HOST:PORT or rfc2217://HOST:PORT"
            )
        try:
            line = serial.serial_for_url(self._name, do_not_open=True, baudrate=self._baud)
            if not self._name.startswith(("rfc2217://", "socket://")):
                line.exclusive = True
            with_descriptor = not self._name.startswith(("rfc2217://", "loop://"))
            line.timeout = 0 if with_descriptor else LOOK_S
            line.open()
        except (OSError, ValueError) as error:
            raise _unopened(self._port, self._by_id, error) from None
        self.opened_us = _now_us()
        return line


def lasting_name(port: str, by_id: Path = BY_ID) -> str | None:
    """Return the name under which this device is found again whatever its number; None where it has none."""
    with suppress(OSError):
        for link in sorted(by_id.iterdir()):
            if str(link) != port and link.resolve() == Path(port).resolve():
                return str(link)
    return None


def ports_here(by_id: Path = BY_ID, devices: Path = Path("/dev")) -> list[str]:
    """Return the serial ports that are here, by lasting names where they have some."""
    with_names = {}
    with suppress(OSError):
        with_names = {link.resolve(): str(link) for link in sorted(by_id.iterdir())}
    found = [path for pattern in ("ttyACM*", "ttyUSB*") for path in sorted(devices.glob(pattern))]
    return sorted(with_names.values()) + [str(path) for path in found if path.resolve() not in with_names]


def _unopened(port: str, by_id: Path, error: Exception) -> MeterError:
    number = _number(error)
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        here = ports_here(by_id)
        there = f"here are {', '.join(here)}" if here else "there are no serial ports here; is it plugged in?"
        return MeterError(f"meter.port = {port!r} is not there: {there}")
    if number in (errno.EACCES, errno.EPERM):
        user, group = _user(), _group(port)
        return MeterError(
            f"{port} may not be opened by {user}: it belongs to group {group}; "
            f"`sudo usermod -aG {group} {user}`, then log in anew"
        )
    if number in (errno.EAGAIN, errno.EBUSY):
        return MeterError(
            f"{port} is in use by another program: `fuser -v {port}` names it; end it, and keep ModemManager off "
            "serial meters"
        )
    if number == errno.ENOTTY:
        names = ", ".join(ports_here(by_id)) or "none"
        return MeterError(f"meter.port = {port!r} is no serial port; here: {names}")
    return MeterError(f"meter.port = {port!r} cannot be opened: {error}")


def _broken(port: str, error: Exception) -> str:
    text = str(error)
    number = _number(error)
    if "no data" in text or "disconnected" in text or number in (errno.EIO, errno.ENODEV, errno.ENXIO):
        return f"{port} is gone: it was unplugged, or another program reads from it too; it is tried again"
    return f"{port} cannot be read: {text}; it is tried again"


def _number(error: BaseException) -> int | None:
    """Return the system's number for it, which pyserial leaves in what it was made from, termios as the first word."""
    for each in (error, error.__context__):
        number = getattr(each, "errno", None) or next(iter(getattr(each, "args", ())), None)
        if isinstance(number, int):
            return number
    return None


def _is_url(port: str) -> bool:
    """Return whether pyserial can make something of a URL."""
    try:
        parts = urlsplit(port)
        is_whole = bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False
    return is_whole if parts.scheme in ("socket", "rfc2217") else parts.scheme in ("loop", "spy", "alt", "hwgrep")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _group(port: str) -> str:
    try:
        return grp.getgrgid(os.stat(port).st_gid).gr_name
    except (OSError, KeyError):
        return "dialout"


def _now_us() -> int:
    return time.monotonic_ns() // 1000
