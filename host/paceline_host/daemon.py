# SPDX-License-Identifier: Apache-2.0
"""The host as a daemon: serves boards all the time, operators as they come, one experiment after the other.

Threads: this one (desk, signals, keys), the server's loop (link and sessions), the worker (the active experiment), the
clerk (checks what is submitted, which may load torch). They meet in queues and in the loop's errands.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import KeyFileError, LocalProtocolError, RemoteProtocolError, RunError, StorageError
from paceline.keys import fingerprint
from paceline.notify import notify
from paceline.talk import Talk
from paceline.version import VERSION
from paceline.wire import clip
from paceline_host import desk, status, tickets
from paceline_host import operator_wire as w
from paceline_host.desk import Caller, Desk
from paceline_host.embedded import terms
from paceline_host.experiment import RunSettings
from paceline_host.host_config import HostConfig
from paceline_host.intake import Cleared, Clerk
from paceline_host.keyring import Admitted, Keyring, changed
from paceline_host.link import Arrival, HostLink
from paceline_host.peers import Peers
from paceline_host.scripts import Scripts
from paceline_host.server import Server
from paceline_host.tickets import Ticket
from paceline_host.worker import News, Over, Worker

BEAT_S = 1.0  # who watches hears something at least so often
KEYS_S = 1.0  # how often the key folders are looked at
END_S = 10.0  # what the end of a run may take beyond its own deadline, for the last checkpoint


@dataclass(frozen=True)
class _Asked:
    """An operator's two frames."""

    caller: Caller
    header: bytes
    payload: bytes


@dataclass(frozen=True)
class _Lost:
    """An operator's connection took no message."""

    caller: Caller


_Event = _Asked | _Lost | Cleared | News | Over | Admitted | None


class Daemon:
    """`run` it until a signal."""

    def __init__(self, config: HostConfig, talk: Talk) -> None:
        self._config, self._talk = config, talk
        self._runs_dir = Path(config.runs_dir)
        self._inbox: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._desk = Desk(lambda name: tickets.find(self._runs_dir, name))
        self._scripts = Scripts()
        self._signals: list[int] = []
        self._interrupted = False  # the active ticket's work has ended, and goes on at the next start
        self._beat_s = self._looked_s = 0.0

    def run(self) -> int:
        """Serve until SIGTERM or drained (exit status 0), or Ctrl-C (130); a second signal ends it on the spot.

        Raises PacelineError when it cannot begin, or cannot go on.
        """
        config = self._config
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        with ExitStack() as life:
            keys = config.read_keys()
            self._keyring = Keyring(config)
            boards, operators = self._keyring.peers.boards, self._keyring.peers.operators
            self._tell_faults()
            self._key = fingerprint(keys.public)
            self._link = HostLink(config.listen, keys, boards, self._talk.warning, operators)
            life.callback(self._link.close)
            life.enter_context(tickets.held(self._runs_dir))
            settings = RunSettings(1, 1, patience_s=config.patience_s, chunk_bytes=config.chunk_bytes)
            self._server = Server(self._link, Peers(terms(settings, self._runs_dir)), None, self._talk)
            self._server.on_operator = self._hear
            self._worker = Worker(config, self._server, self._talk, self._inbox.put)
            self._clerk = Clerk(config, self._recover() + 1, self._inbox.put)
            self._began_s = time.monotonic()
            self._server.start()
            life.callback(self._server.close)
            for thread in (self._worker, self._clerk):
                thread.start()
            self._talk(
                f"listening on {self._link.endpoint} for {len(boards)} boards and {len(operators)} operators; "
                f"runs in {self._runs_dir}"
            )
            notify("READY=1")
            while not self._signals and not self._is_drained():
                self._turn()
            notify("STOPPING=1")
            self._end()
        return 0 if not self._signals or self._signals[0] == signal.SIGTERM else 128 + self._signals[0]

    # The loop -------------------------------------------------------------------------------------------------------

    def _turn(self, timeout_s: float = 0.25) -> None:
        try:
            event = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            event = None
        if event is not None:
            self._take(event)
        self._server.check()
        now_s = time.monotonic()
        if now_s >= self._looked_s + KEYS_S:
            self._looked_s = now_s
            self._mind_keys()
        if now_s >= self._beat_s + BEAT_S:
            self._beat_s = now_s
            self._do(self._desk.beat())
        before = self._desk.active
        if not self._signals:
            self._do(self._desk.begin())
        if self._desk.active is not None and self._desk.active is not before:
            self._tell("begins", f"{self._desk.active.name}, submitted by {self._desk.active.by}, begins")
            self._worker.give(self._desk.active)
        self._worker.watched = self._desk.is_watched

    def _take(self, event: _Event) -> None:
        if isinstance(event, _Asked):
            self._answer(event)
        elif isinstance(event, _Lost):
            self._desk.lose(lambda caller: caller == event.caller)
        elif isinstance(event, Cleared):
            if isinstance(event.result, Ticket):
                self._do(self._desk.submit(event.caller, event.request, event.result))
            else:
                self._do([desk.Say(event.caller, event.result)])
        elif isinstance(event, News):
            self._do(self._desk.news(event.document))
        elif isinstance(event, Admitted):
            self._renew(event)
        elif isinstance(event, Over):
            ending = bool(self._signals or self._desk.draining)
            self._interrupted = ending and not event.ok and not self._desk.stopping
            if not self._interrupted:  # else it stays active on disk
                how = "is finished" if event.ok else f"ended: {self._desk.stopping or event.reason}"
                self._tell("ended", f"{event.ticket.name} {how}")
                self._do(self._desk.over(event.ok, event.reason, event.document))

    def _is_drained(self) -> bool:
        return bool(self._desk.draining) and (self._desk.active is None or self._interrupted)

    def _end(self) -> None:
        """End the active run in order, tell who watches."""
        self._talk("ending; a second signal ends it on the spot")
        active = self._desk.active
        if active is not None:
            self._worker.stop(active, "the host was stopped")
        self._worker.end()
        end_s = time.monotonic() + END_S + self._config.patience_s / 6
        while self._worker.is_alive() and time.monotonic() < end_s:
            self._turn(0.05)
        while not self._inbox.empty():
            self._turn(0.0)
        if self._worker.is_alive():
            self._talk.warning("the active run did not end in time; its journal holds what was finished")
        self._do(self._desk.close())
        with suppress(RunError):
            self._server.ask(lambda: None)  # all that was to be said has been handed to the link

    def _interrupt(self, number: int, frame: object) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            os._exit(128 + number)
        self._inbox.put(None)

    def _recover(self) -> int:
        """Queue what an earlier life left; return the number of the last ticket there is."""
        every = list(tickets.every(self._runs_dir, self._talk.warning))
        left = [ticket for ticket in every if not ticket.over]
        self._do(self._desk.recover(left, resume=self._config.resume))
        if self._desk.queue:
            names = ", ".join(ticket.name for ticket in self._desk.queue)
            self._talk(f"taken up from before: {names}")
        return every[-1].number if every else 0

    # Operators ------------------------------------------------------------------------------------------------------

    def _hear(self, arrival: Arrival) -> None:
        """Take an operator's message to the desk; called from the server's loop."""
        caller = Caller(arrival.operator, arrival.route)
        self._inbox.put(_Asked(caller, bytes(arrival.header), bytes(arrival.payload)))

    def _answer(self, asked: _Asked) -> None:
        caller = asked.caller
        try:
            message = w.decode(asked.header, asked.payload, w.FROM_OPERATOR)
        except RemoteProtocolError as error:
            self._talk.warning(f"operator {caller.name} sent a malformed message, dropped: {error}")
            return
        request = message.request
        if getattr(message, "proto", 0) != w.PROTOCOL:
            text = f"this host (paceline {VERSION}) speaks operator protocol {w.PROTOCOL}; use its version of paceline"
            self._do([desk.Say(caller, w.Refused(request, 6, document={"errors": [text]}))])
        elif isinstance(message, w.Submit | w.Resume) and self._desk.draining:
            self._do([self._desk.refuse(caller, request)])
        elif isinstance(message, w.Submit | w.Runs):
            self._clerk.give(caller, message)
        elif isinstance(message, w.Status):
            try:
                answer: w.Message = w.Told(request, document=self._status())
            except RunError as error:  # it stood still with its machine, perhaps
                answer = w.Refused(request, error.exit_code, document={"errors": [str(error)]})
            self._do([desk.Say(caller, answer)])
        elif isinstance(message, w.Divide):
            self._do([desk.Say(caller, self._scripts.answer(caller.name, message, time.monotonic()))])
        elif isinstance(message, w.Stop):
            self._do(self._desk.stop(caller, request, message.ticket))
        elif isinstance(message, w.Drain):
            self._do(self._desk.drain(caller, request))
            self._tell(
                "drain", f"{self._desk.draining}: nothing is admitted any more; ends when the open round is over"
            )
        elif isinstance(message, w.Resume):
            self._do(self._desk.resume(caller, request, message.ticket))
        elif isinstance(message, w.Watch):
            for action in self._desk.watch(caller, request, message.ticket):
                if isinstance(action, desk.Say) and isinstance(action.message, w.Ended):
                    self._clerk.give(caller, action.message)  # it is over already: its report is read from disk
                else:
                    self._do([action])
        else:
            self._desk.unwatch(caller, request)

    def _do(self, actions: Iterable[desk.Action]) -> None:
        for action in actions:
            if isinstance(action, desk.Say):
                self._say(action.to, action.message)
            elif isinstance(action, desk.End):
                assert self._desk.active is not None
                self._worker.stop(self._desk.active, action.reason, after_round=action.after_round)
            else:
                try:
                    tickets.save(self._runs_dir, action.ticket)
                except StorageError as error:
                    self._talk.error(str(error))

    def _tell(self, kind: str, text: str) -> None:
        self._talk(text)
        self._server.recent.add(kind, text, time.monotonic())

    def _say(self, caller: Caller, message: w.Message) -> None:
        if isinstance(message, w.Refused):
            why = "; ".join(map(str, message.document.get("errors", [])))
            self._server.recent.add("refused", f"{caller.name} was refused: {clip(why)}", time.monotonic())
        try:
            header, payload = w.encode(message)
        except LocalProtocolError as error:
            self._talk.error(f"operator {caller.name}: {message.kind} not sent: {error}")
            return

        def send() -> None:
            if not self._link.send_to(caller.route, header, payload):
                self._inbox.put(_Lost(caller))

        self._server.call(send)

    def _status(self) -> w.Document:
        active, where, names = self._desk.active, self._worker.where, sorted(self._keyring.peers.boards)

        def look() -> w.Document:
            now_s, machine = time.monotonic(), self._server.machine
            return {
                "boards": status.board_rows(
                    names, machine, self._server.presence, self._began_s, now_s, self._server.idle_s
                ),
                "run": None if machine is None else {
                    "policy": where.policy, "round": machine.round, "rounds": machine.facts.rounds,
                    "phase": machine.phase, "waits": status.run_waits(machine, where.since_s or now_s, now_s),
                },
            }  # fmt: skip

        looked = self._server.ask(look)
        run = looked.pop("run") or {"policy": "", "round": 0, "rounds": 0, "phase": "preparing", "waits": []}
        now_s, rejected = time.monotonic(), self._keyring.rejected()
        return {
            "schema": "paceline-status-1",
            "host": {
                "endpoint": self._link.endpoint, "version": VERSION, "pid": os.getpid(), "fingerprint": self._key,
                "up_s": round(now_s - self._began_s, 3), "boards": str(Path(self._config.keys) / "boards"),
                "runs_dir": str(self._runs_dir), "draining": self._desk.draining,
            },
            "active": None if active is None else {
                "ticket": active.name, "by": active.by, "submitted": active.submitted,
                "stopping": self._desk.stopping, **run,
            },
            "queue": [{"ticket": t.name, "by": t.by, "submitted": t.submitted} for t in self._desk.queue],
            **looked,
            "events": self._server.recent.rows(now_s),
            "scripts": self._scripts.rows(now_s),
            "pending": [
                {
                    "fingerprint": fingerprint(each.key), "key": each.key, "address": each.address,
                    "times": each.times, "since_s": round(now_s - each.first_s, 3),
                    "last_s": round(now_s - each.last_s, 3),
                }
                for each in self._link.strangers() if fingerprint(each.key) not in rejected
            ],
        }  # fmt: skip

    # Keys -----------------------------------------------------------------------------------------------------------

    def _mind_keys(self) -> None:
        """Admit keys that were added to the folders, and cut off those that were removed."""
        before = self._keyring.peers
        try:
            now = self._keyring.look()
        except KeyFileError as error:
            self._talk.error(f"the keys stay as they were: {error}")
            return
        if now is not None:
            self._tell_faults()
            self._server.call(lambda: self._admit(before, now))

    def _tell_faults(self) -> None:
        for fault in self._keyring.faults:
            self._talk.warning(f"{fault}; left out", event="keys")

    def _admit(self, before: Admitted, now: Admitted) -> None:
        """Let in whom the folders name now; in the server's loop."""
        try:
            self._link.admit(now.boards, now.operators)
        except KeyFileError as error:
            self._talk.error(f"the keys stay as they were: {error}")
            return
        for name in changed(before.boards, now.boards)[1]:
            self._server.expel(name, "key", f"{name}: its key was withdrawn from the host's boards")
        self._inbox.put(now)

    def _renew(self, now: Admitted) -> None:
        """Take note of who is let in from now on."""
        before, self._keyring.peers = self._keyring.peers, now
        come, left = changed(before.boards, now.boards)
        hired, dismissed = changed(before.operators, now.operators)
        self._desk.lose(lambda caller: caller.name in dismissed)
        for what, names in (
            ("admitted", come), ("withdrawn", left), ("operators admitted", hired), ("operators withdrawn", dismissed)
        ):  # fmt: skip
            if names:
                self._tell("keys", f"{what}: {', '.join(names)}")
