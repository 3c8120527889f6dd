# SPDX-License-Identifier: Apache-2.0
"""Where boards might be: mDNS, serial ports, the user's ssh config. Only looks; what to do next it says with each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.errors import PacelineError
from paceline.talk import Talk, printable
from paceline_host.onboard import mdns
from paceline_host.onboard.inventory import Inventory
from paceline_host.onboard.serial_line import BOARD, CONSOLE, METER, ports
from paceline_host.onboard.ssh_hosts import ssh_hosts

NEXT = {
    CONSOLE: "a board's console may be behind it: paceline boards console {port}",
    BOARD: "its console: paceline boards console {port}",
    METER: "a meter may be on it: on its board, paceline-agent meter scan",
    "": "nothing is known of it",
}


@dataclass(frozen=True)
class Found:
    """A board, or a way to one. `known`: under which name `paceline boards` has installed it already."""

    source: str  # mdns, serial, ssh
    name: str
    where: str
    about: str
    next: str
    known: str | None = None


def discover(arguments: argparse.Namespace, talk: Talk) -> int:
    """Look, and list what was found; return the status."""
    asked = [source for source in ("mdns", "serial", "ssh") if source in (arguments.only or source)]
    inventory = Inventory(Path(arguments.keys)).boards
    known = {place.address.rpartition("@")[2]: name for name, place in inventory.items()}
    found: list[Found] = []
    missing = {}
    for source in asked:
        try:
            found += _LOOKS[source](arguments, known)
        except PacelineError as error:
            missing[source] = str(error)
            talk.warning(f"{source}: {error}")
    if arguments.json:
        rows = [asdict(each) for each in found]
        print(json.dumps({"schema": "paceline-discover-1", "found": rows, "not_looked_at": missing}, indent=1))
    else:
        for each in found:
            then = f"is {each.known} already" if each.known else each.next
            print(f"{each.source:6}  {printable(each.name):24}  {printable(each.where):30}  {printable(each.about)}")
            print(f"{'':8}{printable(then)}")
    if not found:
        talk.info("nothing was found; `paceline boards install USER@ADDRESS` needs no discovery")
    return 0


def _mdns(arguments: argparse.Namespace, known: dict[str, str]) -> Iterator[Found]:
    for each in mdns.listen(arguments.seconds, arguments.interface):
        at = next((known[name] for name in (each.name, *each.addresses) if name in known), None)
        port = "" if each.port == 22 else f" --port {each.port}"
        then = f"paceline boards install USER@{each.name}{port}"
        yield Found("mdns", each.name, ", ".join(each.addresses), "announces itself in this network", then, at)


def _serial(arguments: argparse.Namespace, known: dict[str, str]) -> Iterator[Found]:
    for each in ports():
        yield Found("serial", each.device, each.use or "?", each.about, NEXT[each.use].format(port=each.device))


def _ssh(arguments: argparse.Namespace, known: dict[str, str]) -> Iterator[Found]:
    for each in ssh_hosts(arguments.ssh_config):
        where = f"{each.user}@{each.address}:{each.port}"
        at = known.get(each.name) or known.get(each.address)
        yield Found("ssh", each.name, where, "in your ssh config", f"paceline boards install {each.name}", at)


_LOOKS = {"mdns": _mdns, "serial": _serial, "ssh": _ssh}
