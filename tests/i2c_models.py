# SPDX-License-Identifier: Apache-2.0
"""Register models of INA219 and INA3221 that convert a load under a virtual clock, behind the ioctls of /dev/i2c-N.

Real smbus2 runs on top: `Adapter.ioctl` takes the place of fcntl.ioctl and reads and writes smbus2's ctypes structures
as the kernel would. Models follow the datasheets (SBOS448G, SBOS576B), not the drivers; conversions are means over
their own time, and the joules that a right driver finds are those of `Load`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import smbus2

FUNC_I2C, FUNC_BLOCKS = 0x00000001, 0x0C000000


@dataclass
class Clock:
    """Microseconds that pass when a transfer takes them, or a test says so."""

    now_us: int = 1_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass(frozen=True)
class Load:
    """Current in steps: (from, microamperes); and a bus voltage."""

    steps: tuple[tuple[int, int], ...]
    bus_mv: int = 5_000

    def charge(self, t_us: int) -> int:
        """Return the integral of the current from 0 to t_us, in uA us."""
        total = 0
        for (begin, current), end in zip(self.steps, [*(t for t, _ in self.steps[1:]), None], strict=True):
            upto = t_us if end is None else min(end, t_us)
            total += max(0, upto - begin) * current
        return total

    def mean_ua(self, t0_us: int, t1_us: int) -> Fraction:
        return Fraction(self.charge(t1_us) - self.charge(t0_us), t1_us - t0_us)

    def energy_uj(self, t0_us: int, t1_us: int) -> Fraction:
        """Return the true energy of a window."""
        return Fraction((self.charge(t1_us) - self.charge(t0_us)) * self.bus_mv, 10**9)


def steady(milliamps: int, bus_mv: int = 5_000) -> Load:
    return Load(((0, milliamps * 1000),), bus_mv)


def two_bytes(value: int) -> bytes:
    return (value & 0xFFFF).to_bytes(2, "big")


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


@dataclass
class Ina219Model:
    """Converts from the last write of register 00 on, shunt first. `wrong`: (offset uV, gain, bus gain) of the chip."""

    load: Load
    shunt_uohm: int = 100_000
    speed: Fraction = Fraction(1)  # of its clock: cycles are so much longer
    wrong: tuple[int, Fraction, Fraction] = (0, Fraction(1), Fraction(1))
    true_uohm: int | None = None  # of the resistor, where it is not what is printed on it
    frozen_us: int | None = None  # conversions stopped here: the values stay, and CNVR stays 0
    overflow: bool = False
    config: int = 0x399F
    calibration: int = 0
    began_us: int = 0
    cleared: int = 0  # conversions that CNVR has told of
    writes: list[tuple[int, int]] = field(default_factory=list)

    TIMES = {
        **{code: (84, 148, 276, 532)[code & 3] for code in range(8)}, 8: 532, 9: 1_060, 10: 2_130, 11: 4_260, 12: 8_510,
        13: 17_020, 14: 34_050, 15: 68_100,
    }  # fmt: skip

    @property
    def shunt_us(self) -> Fraction:
        return self.TIMES[self.config >> 3 & 15] * self.speed

    @property
    def cycle_us(self) -> Fraction:
        return self.shunt_us + self.TIMES[self.config >> 7 & 15] * self.speed

    def ended(self, now_us: int) -> int:
        """Return how many conversions have ended."""
        if self.config & 7 != 7:
            return 0
        return int((min(now_us, self.frozen_us or now_us) - self.began_us) / self.cycle_us)

    def reset(self, now_us: int) -> None:
        """Lose everything, as after a brown-out."""
        self.config, self.calibration, self.began_us, self.cleared = 0x399F, 0, now_us, 0

    def write(self, register: int, value: int, now_us: int) -> None:
        self.writes.append((register, value))
        if register == 0 and value & 0x8000:
            self.reset(now_us)
        elif register == 0:
            self.config, self.began_us, self.cleared = value, now_us, 0
        elif register == 5:
            self.calibration = value & 0xFFFE

    def read(self, register: int, now_us: int) -> bytes:
        done = self.ended(now_us)
        if register == 0:
            return two_bytes(self.config)
        if register == 1:
            return two_bytes(self.shunt_counts(done))
        if register == 2:
            volts = round(self.load.bus_mv * self.wrong[2] / 4) if done else 0
            return two_bytes(clamp(volts, 0, 8191) << 3 | (done > self.cleared) << 1 | self.overflow)
        if register == 3:
            self.cleared = done
        return two_bytes(self.calibration if register == 5 else 0)

    def shunt_counts(self, done: int) -> int:
        """Return register 01: the mean of the last whole conversion of the shunt, 12 bits at the gain's full scale."""
        if done == 0:
            return 0
        begin = self.began_us + (done - 1) * self.cycle_us
        mean_ua = self.load.mean_ua(round(begin), round(begin + self.shunt_us))
        uv = mean_ua * (self.true_uohm or self.shunt_uohm) / 10**6 * self.wrong[1] + self.wrong[0]
        full = 4000 << (self.config >> 11 & 3)
        return clamp(round(uv / 10), -full, full)


@dataclass
class Ina3221Model:
    """Three channels in turn, each its shunt first; AVG is the recursive filter that the chip has."""

    loads: dict[int, Load]
    shunt_uohm: int = 100_000
    speed: Fraction = Fraction(1)
    wrong: tuple[int, Fraction, int, Fraction] = (0, Fraction(1), 0, Fraction(1))
    true_uohm: int | None = None
    frozen_us: int | None = None
    identity: tuple[int, int] = (0x5449, 0x3220)
    config: int = 0x7127
    began_us: int = 0
    cleared: int = 0
    writes: list[tuple[int, int]] = field(default_factory=list)

    TIMES = (140, 204, 332, 588, 1100, 2116, 4156, 8244)
    AVERAGES = (1, 4, 16, 64, 128, 256, 512, 1024)

    @property
    def enabled(self) -> list[int]:
        return [channel for channel in (1, 2, 3) if self.config >> (15 - channel) & 1]

    @property
    def shunt_us(self) -> Fraction:
        return self.TIMES[self.config >> 3 & 7] * self.speed

    @property
    def bus_us(self) -> Fraction:
        return self.TIMES[self.config >> 6 & 7] * self.speed

    @property
    def cycle_us(self) -> Fraction:
        return len(self.enabled) * (self.shunt_us + self.bus_us)

    def ended(self, now_us: int) -> int:
        if self.config & 7 != 7 or not self.enabled:
            return 0
        return int((min(now_us, self.frozen_us or now_us) - self.began_us) / self.cycle_us)

    def reset(self, now_us: int) -> None:
        self.config, self.began_us, self.cleared = 0x7127, now_us, 0

    def write(self, register: int, value: int, now_us: int) -> None:
        self.writes.append((register, value))
        if register == 0 and value & 0x8000:
            self.reset(now_us)
        elif register == 0:
            self.config, self.began_us, self.cleared = value, now_us, 0

    def read(self, register: int, now_us: int) -> bytes:
        done = self.ended(now_us)
        if register == 0:
            return two_bytes(self.config)
        if register in (0xFE, 0xFF):
            return two_bytes(self.identity[register - 0xFE])
        if register == 0x0F:
            ready, self.cleared = done > self.cleared, done
            return two_bytes(int(ready))
        channel = (register + 1) // 2
        if channel not in self.enabled or done == 0:
            return two_bytes(0)
        if register % 2:
            return two_bytes(clamp(round(self.shunt_uv(channel, done) / 40), -4096, 4095) << 3)
        volts = self.loads[channel].bus_mv * self.wrong[3] + self.wrong[2]
        return two_bytes(clamp(round(volts / 8), -4096, 4095) << 3)

    def shunt_uv(self, channel: int, done: int) -> Fraction:
        average = self.AVERAGES[self.config >> 9 & 7]
        place = self.enabled.index(channel)
        value = None
        for number in range(max(0, done - 12 * average), done):
            begin = self.began_us + number * self.cycle_us + place * (self.shunt_us + self.bus_us)
            mean_ua = self.loads[channel].mean_ua(round(begin), round(begin + self.shunt_us))
            value = mean_ua if value is None else value + (mean_ua - value) / average
        assert value is not None
        return value * (self.true_uohm or self.shunt_uohm) / 10**6 * self.wrong[1] + self.wrong[0]


@dataclass
class Adapter:
    """One bus. Faults can be switched at any time; `log` holds what was written to whom."""

    clock: Clock
    chips: dict[int, Any]
    functions: int = FUNC_I2C | FUNC_BLOCKS
    transfer_us: int = 470  # 47 bit times at 100 kHz
    owned: set[int] = field(default_factory=set)  # addresses with a kernel driver
    faults: list[int] = field(default_factory=list)  # errnos of the next transfers; 0: that one works
    stuck: bytes | None = None  # what every read returns: the bus is unplugged or shorted
    transfers: int = 0
    log: list[tuple[int, bytes]] = field(default_factory=list)
    pointers: dict[int, int] = field(default_factory=dict)
    hook: Callable[[], None] | None = None  # called before each transfer
    _slave: int = 0

    def ioctl(self, request: int, argument: Any) -> int:
        """Do what the kernel does."""
        if request == 0x0705:  # I2C_FUNCS
            argument.value = self.functions
        elif request == 0x0703:  # I2C_SLAVE
            if argument in self.owned:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            self._slave = argument
        elif request == 0x0707:  # I2C_RDWR
            if not self.functions & FUNC_I2C:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            self._combined([argument.msgs[k] for k in range(argument.nmsgs)])
        elif request == 0x0720:  # I2C_SMBUS
            self._smbus(argument)
        else:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return 0

    def _combined(self, messages: list[Any]) -> None:
        if any(message.flags & 1 for message in messages[:-1]):
            raise OSError(errno.EOPNOTSUPP, "only the last part may be a read")  # as on a Raspberry Pi
        self._pass(messages[0].addr)
        for message in messages:
            if message.flags & 1:
                ctypes.memmove(message.buf, self._read(message.addr), message.len)
            else:
                self._write(message.addr, ctypes.string_at(message.buf, message.len))

    def _smbus(self, request: Any) -> None:
        if request.size != 8:  # I2C_SMBUS_I2C_BLOCK_DATA
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        self._pass(self._slave)
        block = request.data.contents.block
        if request.read_write:
            self._write(self._slave, bytes([request.command]))
            reply = self._read(self._slave)
            block[0] = 2
            block[1], block[2] = reply
        else:
            self._write(self._slave, bytes([request.command, *block[1 : 1 + block[0]]]))

    def _pass(self, address: int) -> None:
        if self.hook is not None:
            self.hook()
        self.clock.now_us += self.transfer_us
        self.transfers += 1
        fault = self.faults.pop(0) if self.faults else 0
        if fault == 0 and address not in self.chips:
            fault = errno.ENXIO
        if fault:
            raise OSError(fault, os.strerror(fault))

    def _write(self, address: int, data: bytes) -> None:
        self.log.append((address, data))
        self.pointers[address] = data[0]
        if len(data) == 3:
            self.chips[address].write(data[0], int.from_bytes(data[1:], "big"), self.clock.now_us)

    def _read(self, address: int) -> bytes:
        register = self.pointers.get(address, 0)
        answer: bytes = self.chips[address].read(register, self.clock.now_us)
        return self.stuck if self.stuck is not None else answer


def install(adapters: dict[Path, Adapter], patch: Callable[[Any, str, object], None]) -> None:
    """Let ioctls on these files go to the adapters. `patch(module, name, value)` sets it and takes it back later."""

    def ioctl(descriptor: int, request: int, argument: Any = 0) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path not in adapters:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return adapters[path].ioctl(request, argument)

    patch(fcntl, "ioctl", ioctl)
    patch(sys.modules[smbus2.SMBus.__module__], "ioctl", ioctl)
