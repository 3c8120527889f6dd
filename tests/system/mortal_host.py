# SPDX-License-Identifier: Apache-2.0
"""`paceline` that kills itself at a chosen point, or lists the points it passes. A program, started by tests.

    python mortal_host.py LIST|POINT|full@POINT FILE paceline-arguments...

A point is an event of the host and how often it has happened: "commit-StoreResult:3" (about to commit the third
result), "committed-StoreResult:3", "said:assign:1", "heard:result:2". With LIST each is appended to FILE as it goes by;
at POINT the process gets SIGKILL, which nothing can catch, and FILE has the point's name; at full@POINT the disk that
holds FILE is filled to the last byte by FILE, and the process goes on. No report is made: it is not what is tried here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgpack

from paceline_host import checkpoint, journal, tickets
from paceline_host.cli import main
from paceline_host.commands import report
from paceline_host.hfl.store import SiloStore
from paceline_host.journal import Journal
from paceline_host.link import HostLink
from paceline_host.mixing.store import MixingStore
from paceline_host.psl.store import SplitStore
from paceline_host.server import Server
from paceline_host.steps import Note
from paceline_host.store import Store

TARGET, FILE = sys.argv[1], sys.argv[2]
seen: Counter[str] = Counter()


def passing(event: str) -> None:
    """Count an event; die here if this is the point."""
    seen[event] += 1
    point = f"{event}:{seen[event]}"
    if TARGET in ("LIST", point):
        with open(FILE, "a", encoding="utf-8") as file:
            file.write(point + "\n")
    if point == TARGET:
        os.kill(os.getpid(), signal.SIGKILL)
    if f"full@{point}" == TARGET:
        fill()


def kind_of(header: bytes | memoryview) -> str:
    """Return what a message to or from a board or an operator is."""
    return str(msgpack.unpackb(header)["kind"])


def fill() -> None:
    """Take all room on the disk."""
    with open(FILE, "ab", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def patch() -> None:
    """Let the journal and the link tell what they do."""
    transaction, send_to, hear = Journal.transaction, HostLink.send_to, Server._hear
    save_ticket, tickets.save = tickets.save, lambda *arguments: ticketed(*arguments)
    batch: list[str] = []  # what the store's present transaction holds
    append, save = Journal._append, checkpoint.save

    @contextmanager
    def watched(journal: Journal) -> Iterator[None]:
        inner = journal._inside
        with transaction(journal):
            yield
            if not inner:
                pass_each("commit")
        if not inner:
            pass_each("committed")
            batch.clear()

    def pass_each(event: str) -> None:
        """Tell of a commit by what is in it: how many there are, and what falls together in one, is chance."""
        for what in batch or ["other"]:
            passing(f"{event}-{what}")

    def watched_job(name: str, job_of: Callable[..., Any]) -> Callable[..., Any]:
        def work(store: Store, job: Any) -> Any:
            batch.append(name)
            return job_of(store, job)

        return work

    for store in (Store, SplitStore, SiloStore, MixingStore):
        for action, job_of in list(store._JOBS.items()):
            if action is not Note:
                store._JOBS[action] = watched_job(action.__name__, job_of)

    def said(link: HostLink, route: bytes, header: bytes, payload: Any = b"") -> bool:
        sent = send_to(link, route, header, payload)
        passing(f"said:{kind_of(header)}")
        return sent

    def heard(server: Server, arrival: Any) -> None:
        kind = kind_of(arrival.header)
        hear(server, arrival)
        passing(f"heard:{kind}")

    def appended(store: Journal, view: memoryview) -> int:
        passing("spool")
        return append(store, view)

    def saved(*arguments: Any, **more: Any) -> str:
        passing("checkpoint")
        return save(*arguments, **more)

    def ticketed(*arguments: Any) -> None:
        save_ticket(*arguments)
        passing("ticket")

    replaced: dict[str, tuple[type, Callable[..., Any]]] = {
        "transaction": (Journal, watched), "send_to": (HostLink, said), "_hear": (Server, heard),
        "_append": (Journal, appended),
    }  # fmt: skip
    checkpoint.save = saved
    journal.BLOB_BYTES = 16  # the smallest model goes through the spool
    report.print_report = lambda *given: None
    for name, (cls, function) in replaced.items():
        setattr(cls, name, function)


if __name__ == "__main__":
    patch()
    sys.exit(main(sys.argv[3:]))
