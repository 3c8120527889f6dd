# SPDX-License-Identifier: Apache-2.0
"""A word to systemd, when it has started this program and waits for one (sd_notify(3)); else nothing."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

PINGS = 3  # in the time after which systemd would take this program for dead


def notify(state: str) -> bool:
    """Send a state such as READY=1; tell whether it was sent. Never raises: it is for the service manager's sake."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
        end.connect("\0" + address[1:] if address[0] == "@" else address)
        end.sendall(state.encode())
        return True
    return False


class Watchdog:
    """Tells systemd that a loop still turns, as often as its unit's WatchdogSec asks for; without one nothing."""

    def __init__(self) -> None:
        text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        is_mine = text.isdecimal() and pid in ("", str(os.getpid()))
        self._every_s = int(text) / 1e6 / PINGS if is_mine else float("inf")
        self._due_s = float("-inf") if is_mine else float("inf")

    def turn(self, now_s: float) -> None:
        """Be called by the loop, more often than the watchdog bites."""
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            notify("WATCHDOG=1")
