# SPDX-License-Identifier: Apache-2.0
"""The host in virtual time: the production Peers, RoundMachine and store, and what `server` does around them.

It works in turns as the server does: what has arrived is heard, each turn's jobs are one commit, deadlines are looked
at once a turn. A turn takes TURN_S for each board, so that with many boards arrivals share turns, as they really do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline.wire import Message
from paceline_host import machine as m
from paceline_host.muster import Muster
from paceline_host.peers import Peers, Terms
from paceline_host.simulation.clock import Clock, Timer
from paceline_host.simulation.store import InlineStore
from paceline_host.store import Job

TURN_S = 5e-6  # of a turn, for each board: what looking at all of them takes
COMMIT_S = 2e-3  # until a batch of jobs is done: a journal commit on an ordinary disk

Arrival = tuple[str, int, bytes, "memoryview | bytes"]  # board, connection, header, payload
ToBoard = Callable[[str, int, bytes, "memoryview | bytes"], object]


class Watch(Protocol):
    """Who wants to know what the host's machine has decided."""

    def saw(self, action: m.Action) -> None:
        """The machine said that this is to be done, and it is being done."""

    def planned(self, round_: int) -> None:
        """The plan of a round is on disk, its work is about to be given out."""


class SimulatedHost:
    """Give it a machine with `begin`; `finish` is set when the run is over. `to_board` sends to a board by name."""

    def __init__(
        self, clock: Clock, terms: Terms, names: Sequence[str], store: InlineStore, to_board: ToBoard, watch: Watch
    ) -> None:
        self._clock, self._names, self._store, self._to_board, self._watch = clock, names, store, to_board, watch
        self._index: Mapping[str, int] = {name: i for i, name in enumerate(names)}
        self.peers = Peers(terms)
        self.finish: m.Finish | None = None
        self.stop_reason = ""
        self._turn_s = TURN_S * len(names)
        self._planned = 0  # the last round of which the watch was told
        self._free_s = 0.0  # until then the last turn takes
        self._arrivals: deque[Arrival] = deque()
        self._events: deque[Any] = deque()  # what the store has done
        self._routes: dict[str, int] = {}
        self._jobs: list[Job] = []
        self._uploads: dict[int, bytearray] = {}
        self._timer = Timer(clock, self._turn)
        self._silent_s = self._due_s = float("inf")

    def begin(self, machine: Muster) -> None:
        """Serve a run."""
        self.machine = machine
        self._timer.set(machine.wake_s())
        self._due_s = machine.wake_s()

    def stop(self, reason: str) -> None:
        """End the run in order, at the next turn."""
        self.stop_reason = reason
        self._wake()

    def arrive(self, *arrival: Any) -> None:
        """Take a message of a board, an Arrival; it is heard at the next turn."""
        self._arrivals.append(arrival)
        self._wake()

    # A turn ---------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._timer.sooner(max(self._free_s, self._clock.now_s))

    def _turn(self) -> None:
        if self.finish is not None:
            return
        now_s = self._clock.now_s
        self._free_s = now_s + self._turn_s
        while self._arrivals:
            self._hear(*self._arrivals.popleft())
        while self._events:
            self._has_done(self._events.popleft())
        if now_s >= self._silent_s:
            for name in self.peers.silent(now_s):
                self._step(m.Gone(self._index[name], "no sign of life"))
        if self.stop_reason:
            self._step(m.Stop(self.stop_reason))
            self.stop_reason = ""
        if now_s >= self._due_s:
            self._step(m.Tick())
        if self._jobs:
            jobs, self._jobs = self._jobs, []
            self._post(jobs)
        self._silent_s = self.peers.next_silence_s()
        self._due_s = self.machine.wake_s()
        self._timer.set(max(min(self._due_s, self._silent_s), self._free_s))

    def _post(self, jobs: list[Job]) -> None:
        """Let the store do a turn's jobs, as one commit."""
        if events := self._store.do(jobs):
            self._clock.later(COMMIT_S, lambda: self._told(events))

    def _told(self, events: Sequence[Any]) -> None:
        self._events.extend(events)
        self._wake()

    def _has_done(self, event: Any) -> None:
        self._step(event)
        if isinstance(event, m.SlicesStored) and self.machine.round > self._planned:
            self._planned = self.machine.round
            self._watch.planned(self._planned)

    def _hear(self, board: str, route: int, header: bytes, payload: memoryview | bytes) -> None:
        heard = self.peers.hear(board, header, self._clock.now_s, route)
        index = self._index[board]
        if heard.closed and not heard.opened:
            self._step(m.Gone(index, heard.closed))
        if heard.current:
            self._routes[board] = route
        if heard.answer is not None:
            self._to_board(board, route, heard.answer, b"")
        if heard.opened:
            session, hello = self.peers.session(board), self.peers.hello(board)
            assert session is not None
            kept = hello.kept_run, hello.kept_round, hello.kept_slice
            self._step(m.Connected(index, session, hello.pid, hello.agent_version, hello.chunk_max, kept))
        if heard.message is not None:
            self._step(m.Said(index, heard.message, len(payload)), payload)

    # What the machine says ------------------------------------------------------------------------------------------

    def _step(self, event: Any, payload: memoryview | bytes = b"") -> None:
        try:
            actions = self.machine.step(event, self._clock.now_s)
        except RemoteProtocolError as error:
            self.peers.dropped[f"against-the-run: {error}"] += 1
            return
        for action in actions:
            if isinstance(action, m.Send):
                self._send(action)
            elif isinstance(action, m.WriteUpload):
                self._write(action, payload)
            else:
                self._do(action, payload)

    def _do(self, action: Any, payload: memoryview | bytes) -> None:
        self._record(action)

    def _record(self, action: m.Action) -> None:
        self._watch.saw(action)
        self._jobs.append(self._job(action))
        if isinstance(action, m.Finish):
            self._finish(action)

    def _job(self, action: m.Action) -> Job:
        upload = self._upload(action.board) if isinstance(action, m.StoreResult) else None
        return Job(action, self._run_s(), upload)

    def _run_s(self) -> float:
        """Return the instant by the journal's clock."""
        return self._clock.now_s

    def _write(self, action: m.WriteUpload, payload: memoryview | bytes) -> None:
        if action.offset == 0:
            self._uploads[action.board] = bytearray(action.part.size)
        self._uploads[action.board][action.offset : action.offset + len(payload)] = payload

    def _upload(self, board: int) -> bytearray | memoryview:
        return self._uploads.pop(board)

    def _finish(self, action: m.Finish) -> None:
        self._store.do(self._jobs)
        self._jobs, self.finish = [], action

    def _send(self, action: m.Send) -> None:
        name, message = self._names[action.board], action.message
        payload: memoryview | bytes = b""
        if action.piece is not None:
            payload = memoryview(action.model or self._store.model)[action.piece[0] : action.piece[1]]
        self._say(name, message, payload)

    def _say(self, name: str, message: Message, payload: memoryview | bytes) -> None:
        try:
            header = self.peers.encode(name, message, self._clock.now_s)
        except (KeyError, LocalProtocolError) as error:
            self.peers.dropped[f"not-sent: {error}"] += 1
            return
        self._to_board(name, self._routes[name], header, payload)
