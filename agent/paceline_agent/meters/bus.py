# SPDX-License-Identifier: Apache-2.0
"""Registers of chips on an I2C bus: the only door to smbus2. Knows 16-bit registers and times, but no chip.

A read is one combined transfer (pointer byte, repeated start, two bytes), so that no other process gets in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import smbus2

from paceline_agent.meters import MeterError

I2C_SLAVE = 0x0703  # <linux/i2c-dev.h>: the kernel answers EBUSY where one of its drivers owns the chip
FUNC_I2C = 0x00000001
FUNC_BLOCKS = 0x0C000000  # read and write "I2C block": the combined transfer of adapters that know SMBus only
TRIES = 3  # a chip that is busy or was disturbed answers the next time
TRY_US = 20_000  # after so long nothing is tried again: the reading would be too late to be of use
REOPEN_FAILURES = 10  # in a row: an adapter that was unplugged comes back as another device
_FINAL = {errno.EBADF, errno.ENODEV, errno.EOPNOTSUPP}  # trying again does not help

Clock = Callable[[], int]


def now_us() -> int:
    """Return the time of the agent's windows: monotonic, so it stands still in suspend."""
    return time.monotonic_ns() // 1000


@dataclass(frozen=True, slots=True)
class Word:
    """A register as its two bytes came over the wire, high byte first, and when the transfer began and ended."""

    wire: bytes
    before_us: int
    after_us: int

    @property
    def value(self) -> int:
        """Return the 16 bits as a number."""
        return int.from_bytes(self.wire, "big")


class Bus(Protocol):
    """16-bit registers behind addresses. All but `close` raise MeterError with one sentence."""

    name: str

    def claim(self, address: int) -> None:
        """Make sure that no kernel driver owns the chip."""
        ...

    def read(self, address: int, register: int) -> Word:
        """Return a register."""
        ...

    def write(self, address: int, register: int, value: int) -> None:
        """Set a register."""
        ...

    def close(self) -> None:
        """Give the bus back."""
        ...


class I2cBus:
    """/dev/i2c-N through smbus2. Used by one thread at a time."""

    def __init__(self, bus: int | str, clock: Clock = now_us) -> None:
        self.name = f"/dev/i2c-{bus}" if isinstance(bus, int) else bus
        self.retries = 0  # transfers that had to be tried again
        self._clock = clock
        self._failures = 0  # in a row
        self._i2c = self._open()

    def claim(self, address: int) -> None:
        """Make sure that no kernel driver owns the chip; transfers alone would not tell."""
        if self._i2c.fd is None:
            self._i2c = self._open()
        assert self._i2c.fd is not None
        try:
            fcntl.ioctl(self._i2c.fd, I2C_SLAVE, address)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise MeterError(f"{self.name}: address 0x{address:02x} is refused: {error.strerror}") from None
            raise MeterError(
                f"{self.name}: a kernel driver owns the chip at 0x{address:02x}; "
                'set meter.source = "hwmon", or unbind the driver'
            ) from None

    def read(self, address: int, register: int) -> Word:
        """Return a register; the times are those of the transfer that succeeded."""

        def transfer() -> bytes:
            if not self._i2c.funcs & FUNC_I2C:
                return bytes(self._i2c.read_i2c_block_data(address, register, 2))
            reply = smbus2.i2c_msg.read(address, 2)  # one pair a call: some adapters take no read but as the last part
            self._i2c.i2c_rdwr(smbus2.i2c_msg.write(address, [register]), reply)
            return bytes(reply)

        return Word(*self._tried(transfer, address, "read"))

    def write(self, address: int, register: int, value: int) -> None:
        """Set a register, high byte first."""
        data = value.to_bytes(2, "big")

        def transfer() -> bytes:
            if self._i2c.funcs & FUNC_I2C:
                self._i2c.i2c_rdwr(smbus2.i2c_msg.write(address, [register, *data]))
            else:
                self._i2c.write_i2c_block_data(address, register, list(data))
            return b""

        self._tried(transfer, address, "written")

    def close(self) -> None:
        """Close the device."""
        with suppress(OSError):
            self._i2c.close()

    def _tried(self, transfer: Callable[[], bytes], address: int, done: str) -> tuple[bytes, int, int]:
        if self._i2c.fd is None:
            self._i2c = self._open()
        start_us = self._clock()
        for number in range(1, TRIES + 1):
            before_us = self._clock()
            try:
                wire = transfer()
            except OSError as error:
                after_us = self._clock()
                if number == TRIES or error.errno in _FINAL or after_us - start_us > TRY_US:
                    raise self._failed(error, address, done, number) from None
                self.retries += 1
            else:
                self._failures = 0
                return wire, before_us, self._clock()
        raise AssertionError("unreachable")

    def _failed(self, error: OSError, address: int, done: str, tries: int) -> MeterError:
        self._failures += 1
        if self._failures >= REOPEN_FAILURES:
            self._failures = 0
            self.close()  # and the next transfer opens it again
        times = "once" if tries == 1 else f"{tries} times"
        what = {
            errno.ENXIO: "no chip answers",
            errno.EREMOTEIO: "no chip answers",
            errno.ETIMEDOUT: "the bus is held low, or too slow",
            errno.EBUSY: "the bus is busy",
            errno.EAGAIN: "another master has the bus",
        }.get(error.errno or 0, error.strerror or str(error))
        return MeterError(
            f"{self.name}: the chip at 0x{address:02x} cannot be {done} (tried {times}): {what} "
            f"[errno {error.errno}]; check its wiring, power and address"
        )

    def _open(self) -> smbus2.SMBus:
        i2c = smbus2.SMBus()
        try:
            i2c.open(self.name)
        except OSError as error:
            with suppress(OSError):
                i2c.close()
            raise MeterError(f"{self.name} {_why(error)}") from None
        if not i2c.funcs & FUNC_I2C and int(i2c.funcs) & FUNC_BLOCKS != FUNC_BLOCKS:
            i2c.close()
            raise MeterError(f"{self.name}: this adapter can do no combined transfers; choose another meter.bus")
        return i2c


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        there = ", ".join(sorted(f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("i2c-")))
        return f"is not there (there is {there or 'no I2C bus'}): enable I2C, load the module i2c-dev, or set meter.bus"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be opened: add the agent's user to the device's group, mostly i2c: usermod -aG i2c USER"
    if error.errno == errno.ENOTTY:
        return "is no I2C bus; expected a device like /dev/i2c-1 in meter.bus"
    return f"cannot be opened: {error.strerror}"
