# SPDX-License-Identifier: Apache-2.0
"""A board behind a serial console: logins on a pseudo terminal, and a line to it that garbles, drops and is cut."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
import threading

from .fleet_tools import Bench, Program

PASSWORD = "sword fish"
LOGIN = """
stty sane; trap 'exit 1' INT
printf '\\r\\npi4 login: '; read -r user
stty -echo; printf 'Password: '; read -r word; stty echo; echo
[ "$user:$word" = "root:$1" ] || { echo; echo 'Login incorrect'; exit 1; }
trap - INT; echo 'Last login: yesterday'
exec sh -i
"""
GETTY = 'while :; do setsid --ctty --wait sh -c "$1" sh "$2" <"$3" >"$3" 2>&1; done'  # as init does


class ConsoleBoard:
    """`home` is the user's on the board. Each `plug` is a new line to it."""

    def __init__(self, bench: Bench) -> None:
        self.home = bench.folder / "board" / "home"
        self.tmp = bench.folder / "board" / "tmp"
        for folder in (self.home, self.tmp):
            folder.mkdir(parents=True)
        self._board, self._slave = pty.openpty()
        self._lines: list[Line] = []
        begin = ["env", f"HOME={self.home}", f"TMPDIR={self.tmp}", "PS1=root@pi4:~# ", "sh", "-c", GETTY, "sh"]
        self.getty = Program(bench, "getty", [*begin, LOGIN, PASSWORD, os.ttyname(self._slave)])
        bench.programs.append(self.getty)

    def plug(self, **faults: int) -> Line:
        """Return a line to it, which ends the one before."""
        self.unplug()
        self._lines.append(Line(self._board, **faults))
        return self._lines[-1]

    def unplug(self) -> None:
        for line in self._lines:
            line.close()

    def close(self) -> None:
        self.unplug()
        self.getty.signal(signal.SIGTERM)
        self.getty.ends()
        os.close(self._slave)
        os.close(self._board)  # whoever is logged in is hung up


class Line:
    """`port` is what the host opens. One byte in `one_in` is garbled or lost once `clean` have gone to the board; after
    `cut` of them it is unplugged. 0: never.
    """

    def __init__(self, board: int, one_in: int = 0, clean: int = 0, cut: int = 0) -> None:
        self._host, slave = pty.openpty()
        self.port = os.ttyname(slave)
        self._slave: int | None = slave  # kept open, or a host that closes it would end the line
        subprocess.run(["stty", "-F", self.port, "raw", "-echo"], check=True, timeout=10)
        self._board, self._one_in, self._clean, self._cut = board, one_in, clean, cut
        self._dice = random.Random(11)
        self.faults = self.sent = 0
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="line")
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            os.write(self._wake[1], b"e")
        self._thread.join()
        for end in (*self._wake, *((self._host, self._slave) if self._slave is not None else ())):
            os.close(end)
        self._wake, self._slave = (), None  # type: ignore[assignment]

    def _run(self) -> None:
        while True:
            ready = select.select([self._host, self._board, self._wake[0]], [], [])[0]
            if self._wake[0] in ready:
                return
            for end in ready:
                data = os.read(end, 1024)
                if end == self._host:
                    self.sent += len(data)
                os.write(self._board if end == self._host else self._host, self._worn(data))
            if self._cut and self.sent > self._cut:
                assert self._slave is not None
                os.close(self._slave)
                os.close(self._host)
                self._slave = None
                return

    def _worn(self, data: bytes) -> bytes:
        """Return what is left of some bytes."""
        if not self._one_in or self.sent < self._clean:
            return data
        left = bytearray(data)
        for at in range(len(left) - 1, -1, -1):
            if self._dice.randrange(self._one_in) == 0:
                self.faults += 1
                if self._dice.randrange(2):
                    del left[at]
                else:
                    left[at] = self._dice.randrange(33, 127)
        return bytes(left)
