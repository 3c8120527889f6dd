# SPDX-License-Identifier: Apache-2.0
"""What a program says on stderr: lines for people, or one JSON object a line. Knows levels; no terminal and no file.

A Talk is called with a text wherever a `say` is wanted; who knows more than the text says it by level, board or event.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress

LEVELS = ("debug", "info", "warning", "error")


class Talk:
    """Talk of one program, from `level` upwards. Never raises: that nobody can read it ends no run."""

    def __init__(self, component: str, level: str = "info", *, as_json: bool = False) -> None:
        self.component = component  # the program's name
        self.as_json = as_json
        self.board = ""  # an agent sets its own
        self._least = LEVELS.index(level)
        self._plain: Callable[[str], None] = self._write_lines

    def __call__(self, text: str, *, level: str = "info", board: str = "", event: str = "") -> None:
        """Say something. `event`: a short name of what happened, for programs; people read the text."""
        if LEVELS.index(level) < self._least:
            return
        with suppress(OSError, ValueError):  # closed, or its reader is gone
            if self.as_json:
                self._write(json_line(level, self.component, board or self.board, event, text))
            else:  # what a peer has a part in may colour, move or clear no screen
                self._plain("\n".join(map(shown, text.splitlines())))

    def debug(self, text: str, *, board: str = "", event: str = "") -> None:
        """Say what only who looks for a fault wants to know."""
        self(text, level="debug", board=board, event=event)

    def info(self, text: str, *, board: str = "", event: str = "") -> None:
        """Say how things go."""
        self(text, level="info", board=board, event=event)

    def warning(self, text: str, *, board: str = "", event: str = "") -> None:
        """Say what went wrong and was got over."""
        self(text, level="warning", board=board, event=event)

    def error(self, text: str, *, board: str = "", event: str = "") -> None:
        """Say why something was not done."""
        self(text, level="error", board=board, event=event)

    def lines_to(self, plain: Callable[[str], None]) -> None:
        """Hand lines for people to somebody else, who has a picture on the same terminal. JSON stays as it is."""
        self._plain = plain

    def _write_lines(self, text: str) -> None:
        self._write("".join(f"{self.component}: {line}\n" for line in text.splitlines()))

    def _write(self, text: str) -> None:
        sys.stderr.write(text)  # in one piece: other threads talk too
        sys.stderr.flush()


def shown(line: str) -> str:
    """Return a line without what colours, moves or clears a person's screen."""
    return line if line.isprintable() else "".join(each if each.isprintable() else " " for each in line)


def printable(text: str) -> str:
    """Return a text that others made, as one line to show."""
    return shown(text).strip()


def json_line(level: str, component: str, board: str, event: str, text: str) -> str:
    """Return one object on one line; what is not known is left out."""
    now_ns = time.time_ns()
    ts = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ns // 10**9)) + f".{now_ns // 10**6 % 1000:03d}Z"
    entry = {"ts": ts, "level": level, "component": component, "board": board, "event": event, "text": text}
    return json.dumps({key: value for key, value in entry.items() if value or key == "text"}) + "\n"
