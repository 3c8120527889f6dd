# SPDX-License-Identifier: Apache-2.0
"""`paceline top`: a host daemon, or a run's journal, looked at again and again.

The terminal is only written to: no mode of it is changed, so that it is in order however this ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.commandline import Program, UsageError
from paceline.talk import Talk
from paceline_host.commands.operate import FINDS, add_host, host_of

LEAST_S = 0.1  # between two looks: more often nobody reads
WIDE = 200  # letters a line where there is no terminal
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "top",
        _top,
        "look on: boards, shares, seconds, joules, watts, waits, events",
        about="Of a host daemon, or with RUN of that run's journal, which is only read: of a run that works, or is"
        " over. Renewed in place on a terminal, page after page elsewhere, until Ctrl-C or the end of RUN."
        f" {FINDS}",
        examples=[
            ("paceline top", "the usual host"),
            ("paceline top runs/demo-001", "the run of it that was written last"),
            ("paceline top --once --json", "one look, for a program"),
        ],
        exits=(3, 4, 5, 6, 9, 10),
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a run; without it: a host daemon")
    add_host(parser)
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the documents as JSON, one a line")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_S <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, {LEAST_S:g} to 86400")
    return seconds


def _top(arguments: argparse.Namespace, talk: Talk) -> int:
    if arguments.run is not None and arguments.host:
        raise UsageError("paceline top: error: RUN is a folder on this machine, --host a daemon: give one of them")
    with _looked_at(arguments) as look:
        while True:
            document = look()
            if arguments.json:
                print(json.dumps(document), flush=True)
            else:
                _show(document, once=arguments.once)
            active = document["active"]
            if arguments.once or (active is not None and active.get("over")):
                return 0
            time.sleep(arguments.interval)


@contextmanager
def _looked_at(arguments: argparse.Namespace) -> Iterator[Callable[[], dict[str, Any]]]:
    if arguments.run is None:
        with host_of(arguments) as host:
            yield host.status
    else:
        from paceline_host.run_status import newest, run_status

        yield lambda: run_status(newest(arguments.run))


def _show(document: dict[str, Any], *, once: bool) -> None:
    from paceline_host.top import page

    now = time.localtime()
    clock_s = now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec
    if once or not sys.stdout.isatty():
        columns = _size()[0] if sys.stdout.isatty() else WIDE
        print("\n".join([*page(document, clock_s, columns), *([] if once else [""])]))
    else:  # its size is asked each time; the last line stays free, for whatever comes after
        columns, rows = _size()
        text = "".join(f"{line}{CLEAR_LINE}\n" for line in page(document, clock_s, columns - 1, rows - 1))
        sys.stdout.write(f"{HOME}{text}{CLEAR_BELOW}")
    sys.stdout.flush()


def _size() -> tuple[int, int]:
    size = os.get_terminal_size(1)
    return size.columns or 80, size.lines or 24  # one that does not know its size says 0
