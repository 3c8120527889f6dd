# SPDX-License-Identifier: Apache-2.0
"""The only door to zeroconf, which is an extra: who in this network says over mDNS that he takes ssh sessions."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import LinkError, SettingsError

MISSING = "not looked at: it takes `pip install paceline[discover]`"
TYPES = ("_ssh._tcp.local.", "_sftp-ssh._tcp.local.", "_workstation._tcp.local.")  # avahi says one or more of them
NAME = r"[A-Za-z0-9][A-Za-z0-9.-]*"  # anybody announces anything, and this becomes part of a line that is copied
ASK_MS = 1000  # for the addresses behind a name


@dataclass(frozen=True)
class Heard:
    """A machine that announces itself. `name`: as ssh takes it, NAME.local."""

    name: str
    addresses: tuple[str, ...]
    port: int


def listen(seconds: float, interfaces: Sequence[str] = ()) -> list[Heard]:
    """Ask for so long, on all interfaces or on those with these addresses. Raises SettingsError, LinkError."""
    try:
        from zeroconf import InterfaceChoice, ServiceBrowser, ServiceListener, Zeroconf
    except ImportError:
        raise SettingsError([MISSING]) from None

    names: set[tuple[str, str]] = set()

    class Listener(ServiceListener):
        def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
            names.add((type_, name))

        def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
            names.add((type_, name))

        def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
            names.discard((type_, name))

    try:
        with Zeroconf(interfaces=list(interfaces) or InterfaceChoice.All) as ears:
            ServiceBrowser(ears, list(TYPES), Listener())
            threading.Event().wait(seconds)
            found: dict[str, Heard] = {}
            for type_, name in sorted(names):
                service = ears.get_service_info(type_, name, ASK_MS)
                if service is not None and service.server:
                    host = service.server.rstrip(".")
                    if not re.fullmatch(NAME, host):
                        continue
                    takes_ssh = type_ != TYPES[2]  # a workstation's port says nothing
                    port = service.port if takes_ssh and service.port else 22
                    found.setdefault(host, Heard(host, tuple(service.parsed_addresses()), port))
            return list(found.values())
    except OSError as error:
        raise LinkError(f"mDNS cannot be listened to ({error.strerror}): is there a network?") from None
