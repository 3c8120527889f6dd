# SPDX-License-Identifier: Apache-2.0
"""A meter as a process of its own: speaks the frames of docs/PROTOCOL.md, section 9, over a pty or TCP, with faults.

Its truth is a course of power over this machine's monotonic clock, which a test can integrate by itself (`truth_uj`).
Argument: a JSON object, the fields of `Script`. It ends with its stdin.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import sys
import threading
import time
import tty
from dataclasses import dataclass, field
from pathlib import Path

from paceline_agent.meters import serial_frames as frames
from paceline_agent.meters.serial_frames import COUNTED, ENERGY, MEAN, POWER, encode

LOW_UW, HIGH_UW, HALF_US = 2_000_000, 6_000_000, 70_000  # the course of power: a square wave


@dataclass(frozen=True)
class Script:
    """What the peer does. `faults`: number of the reading -> what happens to it."""

    link: str = ""  # a symbolic link to the pty; empty: listen on TCP and print the port
    period_us: int = 20_000
    ppm: int = 0  # how much faster the device's clock goes
    jitter_us: int = 0  # most that is waited before sending, besides the system's own
    kind: str = "energy"
    faults: dict[str, str] = field(default_factory=dict)


def power_uw(t_us: int) -> int:
    """Return the course of power."""
    return HIGH_UW if t_us // HALF_US % 2 else LOW_UW


def truth_uj(t0_us: int, t1_us: int) -> float:
    """Return the energy between two instants of the monotonic clock."""

    def until(t_us: int) -> int:
        whole, rest = divmod(t_us, 2 * HALF_US)
        high = whole * HALF_US + max(0, rest - HALF_US)
        return LOW_UW * t_us + (HIGH_UW - LOW_UW) * high

    return (until(t1_us) - until(t0_us)) / 1e6


class Peer:
    """One device."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._noise = random.Random(7)
        self._server: socket.socket | None = None
        self._ends: list[int] = []
        self._plug_in()
        self._boot_up(1)

    def run(self) -> None:
        """Send until stdin ends."""
        threading.Thread(target=self._until_stdin_ends, daemon=True).start()
        number, next_us = 0, now_us()
        while True:
            time.sleep(max(0, next_us - now_us()) / 1e6)
            next_us = max(next_us + self._script.period_us, now_us())
            number += 1
            self._reading(self._script.faults.get(str(number), ""))

    def _boot_up(self, boot: int) -> None:
        self._boot, self._sequence, self._start_us, self._sent_us = boot, 0, now_us(), now_us()
        quantity, flags = {"energy": (ENERGY, COUNTED), "mean": (POWER, COUNTED | MEAN), "point": (POWER, COUNTED)}[
            self._script.kind
        ]
        self._channels = (
            frames.Channel("VIN", quantity, flags, 1000, gain_ppm=0),
            frames.Channel("part", quantity, flags & ~COUNTED, 1000),
        )
        self._ident()

    def _ident(self) -> None:
        ident = frames.Ident(self._script.period_us, self._boot, b"peer0001", "peer 1", self._channels)
        self._send(b"\0" + encode(ident))

    def _reading(self, fault: str) -> None:
        if fault == "reset":
            self._boot_up(self._boot + 1)
        elif fault == "unplug":
            self._unplug()
        elif fault == "text":
            self._send(encode(frames.Text("shunt is \x1b[31mhot\n")))
        elif fault == "garbage":
            self._send(self._noise.randbytes(300))
        elif fault == "fault":
            self._send(encode(frames.Fault(1, 0, "no INA219 at 0x40")))
            return
        t_us = now_us()
        device_us = round((t_us - self._start_us) * (1 + self._script.ppm / 1e6))
        if self._script.kind == "energy":  # integrated by the device's own clock
            value = round(truth_uj(self._start_us, t_us) * (1 + self._script.ppm / 1e6))
        elif self._script.kind == "mean":
            value = round(truth_uj(self._sent_us, t_us) * 1e6 / max(1, t_us - self._sent_us))
        else:
            value = power_uw(t_us)
        self._sent_us = t_us
        self._sequence += 1
        raw = frames.pack_values(self._channels, ((value,), (value // 2,)))
        frame = encode(frames.ReadingFrame(self._sequence, device_us % 2**32, self._boot & 0xFF, 0, 2, raw))
        time.sleep(self._noise.random() * self._script.jitter_us / 1e6)
        if self._sequence % max(1, 500_000 // self._script.period_us) == 0:
            self._ident()
        if fault == "half":
            self._send(frame[: len(frame) // 2] + b"\0")
        elif fault == "flip":
            self._send(bytes((frame[0], frame[1] ^ 16)) + frame[2:])
        elif fault == "double":
            self._send(frame + frame)
        elif fault != "drop":
            self._send(frame)

    def _send(self, data: bytes) -> None:
        for end in self._ends[:1]:
            try:
                os.write(end, data)
            except BlockingIOError:
                pass  # nobody reads: a UART would lose it too
            except OSError:
                self._unplug()

    def _plug_in(self) -> None:
        if self._script.link:
            master, slave = os.openpty()
            tty.setraw(slave)
            beside = Path(self._script.link + ".new")
            beside.symlink_to(os.ttyname(slave))
            beside.rename(self._script.link)
            self._ends = [master, slave]
        else:
            if self._server is None:
                self._server = socket.create_server(("127.0.0.1", 0))
                print(self._server.getsockname()[1], flush=True)
            connection, _ = self._server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends = [connection.detach()]
        os.set_blocking(self._ends[0], False)

    def _unplug(self) -> None:
        if self._script.link:
            Path(self._script.link).unlink()
        for end in self._ends:
            os.close(end)
        self._ends = []
        time.sleep(0.3)
        self._plug_in()

    def _until_stdin_ends(self) -> None:
        while select.select([0], [], [])[0] and os.read(0, 100):
            pass
        os._exit(0)


def now_us() -> int:
    return time.monotonic_ns() // 1000


if __name__ == "__main__":
    Peer(Script(**json.loads(sys.argv[1]))).run()
