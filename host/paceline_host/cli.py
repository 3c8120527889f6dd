# SPDX-License-Identifier: Apache-2.0
"""The door of `paceline`. It says what Ctrl-C means before it loads anything: most of a short command is that."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    _leave_on_signals()
    from paceline_host.commands import program

    try:
        return program().run(argv)
    finally:
        _leave_on_signals()  # while the interpreter cleans up, too


def _leave_on_signals() -> None:
    """Where nothing is there yet that would have to be ended in order, a signal ends the program without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os._exit(128 + number))
