# SPDX-License-Identifier: Apache-2.0
"""The meter's firmware on a machine that QEMU emulates, and the line to it: heard by a test, damaged on demand, cut.

The joules of a machine's simulated load are known at every instant of its clock (`Machine.truth_uj`).
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline_agent.meters import serial_frames as f

FIRMWARE = Path(__file__).resolve().parents[2] / "core_c" / "firmware"
PATIENCE_S = 20.0
DIVISION_BYTES = 56  # __aeabi_uldivmod and what it calls: 48
LOAD = re.compile(r"\.bus_mv = (\d+), \.low_ma = (\d+), \.high_ma = (\d+), \.period_us = (\d+), \.high_us = (\d+)")


@dataclass(frozen=True)
class Kind:
    """A reference port: its toolchain, what emulates it, and how many rails of its loads count."""

    name: str
    toolchain: str
    port: str
    compiler: tuple[str, str]  # and Debian's packages
    emulator: tuple[str, str]
    machine: tuple[str, ...]
    ram_bytes: int  # as the toolchain's file has them
    stack_bytes: int
    counted: int = 2


KINDS = (
    Kind("rv32", "rv32.cmake", "virt_rv32.c",
         ("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"),
         ("qemu-system-riscv32", "qemu-system-misc"), ("-M", "virt", "-bios", "none", "-m", "16"),
         3072, 1024),
    Kind("cortex-m3", "cortex-m3.cmake", "mps2_an385.c",
         ("arm-none-eabi-gcc", "gcc-arm-none-eabi picolibc-arm-none-eabi"),
         ("qemu-system-arm", "qemu-system-arm"), ("-M", "mps2-an385"), 2048, 664),
)  # fmt: skip


def built(kind: Kind, folder: Path, cmake: Path, ninja: Path) -> str:
    """Build the firmware of a machine and the template; return what the linker says of their sizes."""
    configure = [str(cmake), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", str(FIRMWARE), "-B", str(folder)]
    configure += [f"-DCMAKE_TOOLCHAIN_FILE={FIRMWARE / kind.toolchain}"]
    for command in (configure, [str(cmake), "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def deepest(folder: Path, start: str) -> dict[str, int]:
    """Return the chain of calls of the template that takes most stack, each with its bytes, as the compiler knows them.

    What a port puts behind the HAL is its own; the compiler's divisions take DIVISION_BYTES at the most.
    """
    sizes: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    found = [*folder.glob("CMakeFiles/pl_meter.dir/**/*.ci"), *folder.glob("CMakeFiles/template.dir/**/*.ci")]
    assert found
    for path in found:
        text = path.read_text(encoding="utf-8")
        for name, told in re.findall(r'node: { title: "([^"]+)" label: "[^"]*?(\d+) bytes', text):
            sizes[name] = int(told)
        for caller, called in re.findall(r'edge: { sourcename: "([^"]+)" targetname: "([^"]+)"', text):
            calls.setdefault(caller, set()).add(called)

    def below(name: str) -> list[str]:
        chains = [below(called) for called in calls.get(name, ())]
        return [name, *max(chains, key=lambda chain: sum(map(bytes_of, chain)), default=[])]

    def bytes_of(name: str) -> int:
        return sizes.get(name, DIVISION_BYTES if name.startswith("__") else 0)

    return {name.rpartition(":")[2].partition(".")[0]: bytes_of(name) for name in below(start)}


class Machine:
    """A machine that runs, and its line. `frames`: what it has said so far, undamaged, with our instants."""

    def __init__(self, kind: Kind, image: Path, folder: Path, over: str) -> None:
        self.kind, self._image, self._folder = kind, image, folder
        self.frames: list[tuple[int, f.Frame]] = []
        self.noise: Callable[[bytes], bytes] | None = None  # what the line makes of bytes on their way to the agent
        self._parser = f.FrameParser()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._listener: socket.socket | None = None
        self._agent: int | socket.socket | None = None
        self._near = -1
        if over == "pty":
            self._agent, self._near = os.openpty()
            tty.setraw(self._near)
            self.port = os.ttyname(self._near)
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.port = f"socket://127.0.0.1:{self._listener.getsockname()[1]}"
        source = (FIRMWARE / "ports" / kind.port).read_text(encoding="utf-8")
        self._loads = [tuple(map(int, found)) for found in LOAD.findall(source)][: kind.counted]
        self._start()
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def close(self) -> None:
        """End the machine and the line."""
        self._ending.set()
        self._thread.join()
        self._stop()
        self.cut()
        for each in (self._agent, self._near, self._listener):
            if isinstance(each, int) and each >= 0:
                os.close(each)
            elif isinstance(each, socket.socket):
                each.close()

    def say(self, data: bytes) -> None:
        """Put bytes on the line to the machine."""
        self._device.sendall(data)

    def monitor(self, command: str) -> str:
        """Give QEMU's monitor a command."""
        with _connected(self._folder / "monitor") as desk:
            desk.sendall(f"{command}\n".encode())
            answer = b""
            while answer.count(b"(qemu)") < 2:
                answer += desk.recv(65536)
        return answer.decode()

    def cycle_power(self) -> None:
        """Take the supply away and give it back: nothing that the machine remembered is left."""
        with self._lock:
            self._stop()
            self._start()

    def cut(self) -> None:
        """Break the line to the agent; it may come again."""
        if isinstance(self._agent, socket.socket):
            with suppress(OSError):
                self._agent.shutdown(socket.SHUT_RDWR)

    def wait(self, look: Callable[[list[f.Frame]], object], since: int = 0) -> list[f.Frame]:
        """Wait until `look` likes what the machine has said from the frame `since` on; return that."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            said = [frame for _, frame in self.frames[since:]]
            if look(said):
                return said
            select.select([], [], [], 0.01)
        raise AssertionError(f"nothing of the kind within the patience: {said[-5:]}")

    def clock_us(self) -> int:
        """Return how much the machine's clock is ahead of ours, asked now and late by as little as could be had."""
        ahead = []
        for number in range(1000, 1005):
            since, asked_us = len(self.frames), time.monotonic_ns() // 1000
            self.say(f.ask_edge(number))
            said = self.wait(lambda said, n=number: _edge(said, n), since)  # type: ignore[misc]  # binds n
            edge = _edge(said, number)
            assert edge is not None
            ahead.append(edge.counters.t_us - asked_us)
        return min(ahead)

    def truth_uj(self, t0_us: int, t1_us: int) -> float:
        """Return the joules of the counted rails between two instants of the machine's clock."""
        return sum(_until_uj(load, t1_us) - _until_uj(load, t0_us) for load in self._loads)

    @property
    def swing_uw(self) -> int:
        """Return by how much the load may rise at once."""
        return sum(mv * (high - low) for mv, low, high, _, _ in self._loads)

    def _start(self) -> None:
        for name in ("line", "monitor"):
            (self._folder / name).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                self.kind.emulator[0], *self.kind.machine, "-kernel", str(self._image), "-display", "none",
                "-serial", f"unix:{self._folder / 'line'},server=on,wait=on",
                "-monitor", f"unix:{self._folder / 'monitor'},server=on,wait=off",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._device = _connected(self._folder / "line")

    def _stop(self) -> None:
        self._device.close()
        self._process.kill()
        self._process.wait()

    def _pass_on(self) -> None:
        while not self._ending.is_set():
            with self._lock:
                ends = [each for each in (self._device, self._listener, self._agent) if each is not None]
                ready, _, _ = select.select(ends, [], [], 0.02)
                if self._device in ready:
                    self._from_device(self._device.recv(4096))
                if self._listener is not None and self._listener in ready:
                    if isinstance(self._agent, socket.socket):
                        self._agent.close()
                    self._agent, _ = self._listener.accept()
                elif isinstance(self._agent, socket.socket) and self._agent in ready:
                    self._from_agent(self._agent)

    def _from_device(self, data: bytes) -> None:
        now_us = time.monotonic_ns() // 1000
        self.frames += [(now_us, frame) for frame in self._parser.feed(data)]
        data = self.noise(data) if self.noise is not None else data
        with suppress(OSError):  # an agent that has gone
            if isinstance(self._agent, socket.socket):
                self._agent.sendall(data)
            elif self._agent is not None:
                os.write(self._agent, data)

    def _from_agent(self, agent: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = agent.recv(4096)
        if data:
            self._device.sendall(data)
        else:
            agent.close()
            self._agent = None


@contextmanager
def running(kind: Kind, image: Path, folder: Path, over: str = "tcp") -> Iterator[Machine]:
    """Start a machine."""
    machine = Machine(kind, image, folder, over)
    try:
        yield machine
    finally:
        machine.close()


def _connected(path: Path) -> socket.socket:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
            return line
        except OSError:
            line.close()
            if time.monotonic() > deadline_s:
                raise
            select.select([], [], [], 0.01)


def _edge(said: list[f.Frame], number: int) -> f.Edge | None:
    edges = (each for each in said if isinstance(each, f.Edge))
    return next((each for each in edges if each.counters.sequence == number), None)


def _until_uj(load: tuple[int, ...], t_us: int) -> float:
    mv, low_ma, high_ma, period_us, high_us = load
    whole, rest = divmod(t_us, period_us)
    high = whole * high_us + min(rest, high_us)
    return mv * (low_ma * t_us + (high_ma - low_ma) * high) / 1e6
