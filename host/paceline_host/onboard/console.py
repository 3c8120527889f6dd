# SPDX-License-Identifier: Apache-2.0
"""A board's shell over its serial console: logs in, brings the board's end (board_console), then asks that.

What goes over the line is checked and repeated until it is right; what was sent before the line was cut is not sent
again. The password is typed at the board's own prompt, once, and is in no argument, log or file.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline_host.onboard import board_console
from paceline_host.onboard.board_console import ANSWER, ASK, PIECE, line, parsed
from paceline_host.onboard.serial_line import SerialLine
from paceline_host.onboard.shell import BoardError, Shell, answered

FOLDER = '"$HOME"/.paceline-console'
LOGIN_S = 60.0  # a console that was idle may take long to wake up
QUIET_S = 2.0  # without an answer for so long, and what the bytes take, a request comes again
TRIES = 30
STARTS = 5  # of the board's end, and questions to it each time: a line of shell that was garbled started nothing
STEP_S = 0.3  # between two looks at a script that runs
HELD_BYTES = 1 << 14  # of what never becomes a line
TEXT_BYTES = 240  # of a piece of the board's end in one line of shell: what the poorest shell takes


@dataclass
class Console:
    """A login on a serial line. `quiet_s`: how long an answer may take beyond its bytes."""

    line: SerialLine
    quiet_s: float = QUIET_S
    _heard: bytes = b""
    _said: list[str] = field(default_factory=list)
    _number: int = field(default_factory=lambda: 1 + secrets.randbelow(1 << 30))

    def enter(self, user: str, password: Callable[[], str], python: str) -> None:
        """Log in, and start the board's end. Raises BoardError."""
        self._log_in(user, password)
        self._shell(" stty -echo; exec env PS1= PS2= sh\necho in=$?", lambda said: "in=0" in said)
        name, python = python, shlex.quote(python)
        self._shell(f"command -v {python}; echo python=$?", lambda said: said[-1].startswith("python="))
        if "python=0" not in self._said:
            raise BoardError(6, f"there is no {name} on it: put one there, or name another with --python")
        self._shell(f"umask 077; mkdir -p {FOLDER}; cd {FOLDER} && rm -f c???; echo at=$?", lambda said: "at=0" in said)
        content = Path(board_console.__file__).read_bytes()
        text = base64.b64encode(gzip.compress(content, mtime=0)).decode()
        pieces = [text[at : at + TEXT_BYTES] for at in range(0, len(text), TEXT_BYTES)]
        for number, piece in enumerate(pieces):
            self._sent(f"printf %s {piece} >c{number:03}", f"c{number:03}", piece.encode())
        self._sent("cat c??? | base64 -d | gzip -dc >console.py", "console.py", content)
        for left in range(STARTS - 1, -1, -1):
            self.line.write(f"exec {python} console.py\n".encode())
            try:
                self.ask("here", tries=STARTS)
                return
            except BoardError:
                if not left:
                    raise
                self.line.write(b"\x03\n")

    def leave(self, *, is_done: bool) -> None:
        """End the board's end, which logs out; when all is done its folder goes, else the next try needs it."""
        self.ask("leave", b"done" if is_done else b"", tries=3)

    def ask(self, verb: str, rest: bytes = b"", tries: int = TRIES) -> bytes:
        """Have the board's end do something; return its answer. Raises BoardError."""
        self._number += 1
        request = line(ASK, self._number, f"{verb} ".encode() + rest)
        for _ in range(tries):
            self.line.write(b"\n" + request)  # the first ends what is left of a garbled line
            end_s = time.monotonic() + self.quiet_s + 2 * 10 * (len(request) + PIECE) / self.line.baud
            while (said := self._line(end_s)) is not None:
                answer = parsed(ANSWER, said)
                if answer is None and said.strip():  # GARBLED, or an answer that is
                    break
                if answer is not None and answer[0] == self._number:
                    if answer[1][:1] != b"+":
                        raise BoardError(10, f"on the board: {answer[1][1:].decode(errors='replace')}")
                    return answer[1][1:]
        raise BoardError(4, "the board answers no longer, or its line garbles all: look at plug and speed (--baud)")

    # Parts of them --------------------------------------------------------------------------------------------------

    def _log_in(self, user: str, password: Callable[[], str]) -> None:
        """Come to a shell's prompt from whatever the console shows. Raises BoardError."""
        text, is_told, quiet, end_s = "", False, 0, time.monotonic() + LOGIN_S
        number = secrets.randbelow(1000)
        self.line.write(b"\x03\r")  # ends what a try before has left running
        while time.monotonic() < end_s:
            data = self.line.read(self.quiet_s)
            text = text[-4000:] + data.decode(errors="replace")
            last = text.splitlines()[-1].rstrip() if text.strip() else ""
            if f"paceline:{number + 7}:" in text:
                return
            if is_told and re.search(r"(?i)login incorrect|authentication failure", text):
                raise BoardError(5, f"it does not let {user} in with that password: is there such a user?")
            if re.search(r"(?i)(?<!last )login:$", last):
                self.line.write(user.encode() + b"\r")
                text = ""
            elif re.search(r"(?i)password.*:$", last):
                self.line.write((b"" if is_told else password().encode()) + b"\r")
                text, is_told = "", True
            elif not data:
                quiet += 1  # first the prompt again, in case a message of the kernel stands behind it
                self.line.write(b"\r" if quiet % 2 else b"echo paceline:$((%d+7)):\r" % number)
        raise BoardError(4, f"nothing like a login came within {LOGIN_S:g} s: is it the right port and speed (--baud)?")

    def _sent(self, command: str, name: str, content: bytes) -> None:
        """Repeat a command until a file there is what it is to be."""
        wanted = f"{cksum(content)} {len(content)}"
        self._shell(f"{command}; cksum <{name}", lambda said: wanted in said)

    def _shell(self, command: str, is_right: Callable[[list[str]], bool]) -> None:
        """Repeat a line of shell until what is said after it is right. Raises BoardError."""
        for _ in range(TRIES):
            self.line.write(command.encode() + b"\n")
            self._said, end_s = [], time.monotonic() + self.quiet_s
            while (each := self._line(end_s)) is not None:
                self._said.append(each.decode(errors="replace").strip())
                if is_right(self._said):
                    return
            self.line.write(b"\x03\n")  # ends whatever a garbled line has begun
            while self._line(time.monotonic() + STEP_S) is not None:
                continue
        raise BoardError(4, "the board's shell does not answer as expected: is it a POSIX system's, with base64, gzip?")

    def _line(self, end_s: float) -> bytes | None:
        """Return the next whole line; None: none in time."""
        while b"\n" not in self._heard:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return None
            self._heard = (self._heard + self.line.read(left_s))[-HELD_BYTES:]
        said, _, self._heard = self._heard.partition(b"\n")
        return said


@dataclass(frozen=True)
class SerialShell(Shell):
    """What Shell is over ssh, over a console."""

    console: Console = field(kw_only=True)
    say: Callable[[str], None] = field(kw_only=True)

    def run(self, script: str, *arguments: str, file: Path | None = None, timeout_s: float = 120.0) -> str:
        """Run a script of sh there, with `file` as its input; return what it printed. Raises BoardError."""
        if file is not None:
            self._send(file.read_bytes())
        wish = {"script": script, "arguments": arguments, "file": file is not None}
        self.console.ask("run", json.dumps(wish).encode())
        end_s = time.monotonic() + timeout_s
        while (state := self._told("wait"))["status"] is None:
            if time.monotonic() > end_s:
                raise BoardError(4, f"it has not finished within {timeout_s:g} s: is it hanging? look there")
            time.sleep(STEP_S)
        said = [self._said(which, size) for which, size in enumerate(state["sizes"])]
        return answered(int(state["status"]), *said)

    def _send(self, content: bytes) -> None:
        name = f"{hashlib.sha256(content).hexdigest()[:32]}.part"
        there = self._told("file", name.encode())
        begun = int(there["size"])
        if begun > len(content) or hashlib.sha256(content[:begun]).hexdigest() != there["sha256"]:
            begun = 0
        seconds = (len(content) - begun) * 12.5 / self.console.line.baud
        went_on = f", {begun} are there from before" if begun else ""
        self.say(f"sending {len(content)} bytes{went_on}: about {seconds:.0f} s")
        tenth = 0
        for at in range(begun, len(content), PIECE):
            self.console.ask("put", at.to_bytes(8, "big") + content[at : at + PIECE])
            if 10 * at // len(content) > tenth:
                tenth = 10 * at // len(content)
                self.say(f"{10 * tenth} % are there")

    def _said(self, which: int, size: int) -> bytes:
        said = b""
        while len(said) < size:
            said += self.console.ask("said", json.dumps([which, len(said)]).encode())
        return said

    def _told(self, verb: str, rest: bytes = b"") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.console.ask(verb, rest))
        return answer


def cksum(content: bytes) -> int:
    """Return the checksum that POSIX's cksum prints."""
    crc, length = 0, len(content)
    while length:
        content += bytes([length & 0xFF])
        length >>= 8
    for byte in content:
        crc ^= byte << 24
        for _ in range(8):
            crc = ((crc << 1) ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
    return crc ^ 0xFFFFFFFF
