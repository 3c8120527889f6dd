# SPDX-License-Identifier: Apache-2.0
"""The board's end of a serial console: takes files and runs commands, over a line that loses and garbles bytes.

Runs on the board by its Python: standard library only, and short, for it is sent over that line first. A request or an
answer is one line: MARK NUMBER CRC-32 PAYLOAD, the last in base 85. A request comes again until its answer is through;
one that was done is not done again. A line that is none of these is answered with "!", so that it comes again at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zlib

PIECE = 2048  # a line stays below the 4096 characters that a terminal takes
ASK, ANSWER, GARBLED = (
    b"#",
    b"<",
    b"!",
)  # a shell that reads a request, because this is not there, takes it for a comment


def line(mark: bytes, number: int, payload: bytes) -> bytes:
    """Return a request or an answer as a line."""
    return b"%s %d %08x %s\n" % (mark, number, zlib.crc32(b"%d " % number + payload), base64.b85encode(payload))


def parsed(mark: bytes, text: bytes) -> tuple[int, bytes] | None:
    """Return number and payload of a line; None: it is not one, or not whole."""
    try:
        there, number, crc, packed = text.rstrip(b"\r\n").split(b" ")
        payload = base64.b85decode(packed)
        if there == mark and int(crc, 16) == zlib.crc32(b"%d " % int(number) + payload):
            return int(number), payload
    except ValueError:
        pass
    return None


class Board:
    """What can be asked. Files lie in `folder`, also when the line is cut: the next try goes on with them."""

    def __init__(self, folder: str) -> None:
        self._folder, self._path = folder, os.devnull

    def here(self, asked: bytes) -> bytes:
        """Tell that this runs."""
        return b""

    def file(self, asked: bytes) -> bytes:
        """Tell how much of the file of a name is here, and the digest of that."""
        self._path = os.path.join(self._folder, os.path.basename(asked.decode()))
        with open(self._path, "a+b") as file:
            file.seek(0)
            content = file.read()
        return json.dumps({"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}).encode()

    def put(self, asked: bytes) -> bytes:
        """Write bytes at an offset; what is behind them goes."""
        with open(self._path, "r+b") as file:
            file.seek(int.from_bytes(asked[:8], "big"))
            file.write(asked[8:])
            file.truncate()
        return b""

    def run(self, asked: bytes) -> bytes:
        """Start a script, the file being its input where that is wished."""
        wish = json.loads(asked)
        self._said = [open(os.path.join(self._folder, name), "w+b") for name in ("out", "err")]  # noqa: SIM115
        with open(self._path if wish["file"] else os.devnull, "rb") as given:
            self._process = subprocess.Popen(
                ["sh", "-c", wish["script"], "sh", *wish["arguments"]], stdin=given, stdout=self._said[0],
                stderr=self._said[1], start_new_session=True,
            )  # fmt: skip
        return b""

    def wait(self, asked: bytes) -> bytes:
        """Tell the script's status, None while it runs, and how many bytes it has said on each stream."""
        sizes = [os.fstat(said.fileno()).st_size for said in self._said]
        return json.dumps({"status": self._process.poll(), "sizes": sizes}).encode()

    def leave(self, asked: bytes) -> bytes:
        """Take the folder away when all is done."""
        if asked == b"done":
            shutil.rmtree(self._folder, ignore_errors=True)
        return b""

    def said(self, asked: bytes) -> bytes:
        """Return a piece of what it has said."""
        which, offset = json.loads(asked)
        return os.pread(self._said[which].fileno(), PIECE, offset)


def main() -> None:
    """Answer until a request says leave."""
    board, last, answer, verb = Board(os.getcwd()), 0, b"", ""
    while verb != "leave":
        text = sys.stdin.buffer.readline()
        if not text:
            return
        request = parsed(ASK, text)
        out = (GARBLED + b"\n") if text.strip() else b""
        if request is not None:
            number, (verb, rest) = request[0], _split(request[1])
            if number != last:
                try:
                    answer = line(ANSWER, number, b"+" + getattr(board, verb)(rest))
                except OSError as error:
                    answer = line(ANSWER, number, b"-" + str(error).encode())
                last = number
            out = answer
        sys.stdout.buffer.write(out)
        sys.stdout.flush()


def _split(payload: bytes) -> tuple[str, bytes]:
    verb, _, rest = payload.partition(b" ")
    return verb.decode(), rest


if __name__ == "__main__":
    main()
