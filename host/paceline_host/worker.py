# SPDX-License-Identifier: Apache-2.0
"""The thread of a daemon that works through tickets, one after the other. Knows no operator and no queue."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline_host.comparison import Comparison, Watcher, held
from paceline_host.host_config import HostConfig
from paceline_host.intake import taken
from paceline_host.journal import JOURNAL
from paceline_host.ledger import Ledger
from paceline_host.muster import Muster
from paceline_host.progress import Header
from paceline_host.recovery import begun
from paceline_host.report_files import report_of
from paceline_host.server import Outcome, Server
from paceline_host.tickets import Ticket
from paceline_host.watch import board_views

VIEW_S = 0.5  # how often who watches gets a picture
MANY_ROUNDS = 10_000  # from here on the seconds of all rounds fill a message


@dataclass(frozen=True)
class News:
    """Something to tell who watches the active ticket."""

    document: dict[str, Any]


@dataclass(frozen=True)
class Over:
    """A ticket's work is over, or was interrupted."""

    ticket: Ticket
    ok: bool
    reason: str
    document: dict[str, Any]


@dataclass(frozen=True)
class Where:
    """Where the present run stands. `since_s`: when its phase began (monotonic, to a quarter of a second)."""

    policy: str = ""
    phase: str = ""
    since_s: float = 0.0


def _begun_with(folder: Path) -> dict[str, str]:
    """Return the boards over which a comparison was begun, name -> public key; empty: it was not begun yet."""
    for run in sorted(path.parent for path in folder.glob(f"*/{JOURNAL}")):
        if begun(run):
            with Ledger(run) as ledger:
                return {board.name: board.public_key for board in ledger.boards()}
    return {}


class Worker(threading.Thread):
    """`give` it a ticket at a time; `post` hears News and then Over."""

    def __init__(
        self, config: HostConfig, server: Server, say: Callable[[str], None], post: Callable[[News | Over], None]
    ) -> None:
        super().__init__(name="worker", daemon=True)
        self._config, self._server, self._say, self._post = config, server, say, post
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # around which comparison a stop is meant for
        self._comparison: Comparison | None = None
        self._told = ("", "")  # a ticket's name, and why
        self.watched = False  # somebody wants pictures
        self.where = Where()  # replaced as a whole; for the loop's thread
        self._viewed_s = 0.0

    def give(self, ticket: Ticket) -> None:
        """Work on a ticket."""
        with self._lock:
            self._told = ("", "")  # a stop of an earlier life of it is over with that
        self._tickets.put(ticket)

    def end(self) -> None:
        """No more tickets."""
        self._tickets.put(None)

    def stop(self, ticket: Ticket, reason: str, *, after_round: bool = False) -> None:
        """Stop a ticket's work in order, wherever it is, or when its round is over; any thread may call."""
        with self._lock:
            self._told = ticket.name, reason
            if self._comparison is not None:
                self._comparison.stop(reason, after_round=after_round)

    def run(self) -> None:
        """Work until told to end."""
        while (ticket := self._tickets.get()) is not None:
            try:
                over = self._work(ticket)
            except PacelineError as error:
                over = Over(ticket, False, str(error), {})
            except Exception as error:
                self._say(traceback.format_exc())
                over = Over(ticket, False, f"a bug of paceline: {error!r}; its trace is in the host's log", {})
            self._post(over)

    def _work(self, ticket: Ticket) -> Over:
        folder, outcomes = Path(self._config.runs_dir) / ticket.name, []

        def say(text: str) -> None:
            self._say(text)
            self._post(News({"say": text}))

        def run_ended(run: Path, outcome: Outcome) -> None:
            outcomes.append(outcome)
            say(f"{ticket.name}/{run.name}: {'finished' if outcome.ok else f'ended: {outcome.reason}'}")

        self.where = Where()
        comparison = Comparison(taken(ticket, self._config), Watcher(say, self._view, run_ended))
        self._rounds = comparison.experiment.run.rounds
        try:
            with self._lock:
                self._comparison = comparison
                if self._told[0] == ticket.name:
                    comparison.stop(self._told[1])
            boards = _begun_with(folder) or self._config.read_peers([])[0]
            with held(folder):
                ok = comparison.work(folder, self._server, boards)
        finally:
            with self._lock:  # from here on a stop of this ticket does nothing, least of all to the next one
                self._comparison = None
                self._server.stop("")
            self.where = Where()
        reason = next((outcome.reason for outcome in outcomes if not outcome.ok), comparison.stopping and "stopped")
        return Over(ticket, ok, "" if ok else str(reason), report_of(folder, self._say))

    def _view(self, policy: str, machine: Muster, now_s: float) -> None:
        """Take note of a run's state; called from the loop's thread."""
        if (self.where.policy, self.where.phase) != (policy, machine.phase):
            self.where = Where(policy, machine.phase, now_s)
        if not self.watched or time.monotonic() < self._viewed_s + VIEW_S or len(machine.round_seconds) > MANY_ROUNDS:
            return
        self._viewed_s = time.monotonic()
        seconds = [round(each, 4) for each in machine.round_seconds]
        header = Header(policy, machine.round, self._rounds, machine.phase, seconds)
        boards = [asdict(view) for view in board_views(machine, now_s)]
        self._post(News({"view": {"header": asdict(header), "boards": boards}}))
