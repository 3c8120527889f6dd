# SPDX-License-Identifier: Apache-2.0
"""A word to systemd, when it has started this program and waits for one (sd_notify(3)); else nothing."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


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
