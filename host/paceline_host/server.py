# SPDX-License-Identifier: Apache-2.0
"""The host's loop: carries out what the RoundMachine says. Effects only; decisions are the machine's, disk is the
store's.

One thread runs the loop and owns the link. Sessions outlive runs, so that a comparison starts its fleet once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline.wire import Bye
from paceline_host import machine as m
from paceline_host.fleet import LocalFleet
from paceline_host.link import Arrival, HostLink
from paceline_host.peers import Peers
from paceline_host.planner import Planner
from paceline_host.store import Job, Store, StoreEvent, StoreFailed

VIEW_S = 0.25  # how often the progress view is renewed, and the fleet's processes are looked at


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    ok: bool
    reason: str


class TimedPlanner:
    """A planner that remembers how long its last plan took; the machine itself reads no clock."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.last_s = 0.0
        self.observe = planner.observe
        self.seconds_per_sample = planner.seconds_per_sample

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the planner's shares."""
        began_s = time.perf_counter()
        shares = self._planner.plan(present)
        self.last_s = time.perf_counter() - began_s
        return shares


class Server:
    """Serves one run after the other to the boards `names`, over one link."""

    def __init__(
        self, link: HostLink, peers: Peers, names: Sequence[str], fleet: LocalFleet | None, say: Callable[[str], None]
    ) -> None:
        self._link, self._peers, self._fleet, self._say = link, peers, fleet, say
        self._index = {name: i for i, name in enumerate(names)}
        self._names = list(names)
        self._stop_reason = ""
        self._uploads: dict[int, bytearray] = {}
        self._departed: dict[str, str] = {}  # boards whose process has ended, and how
        self._jobs: list[Job] = []
        self._looked_s = 0.0
        self.on_view: Callable[[m.RoundMachine, float], None] = lambda machine, now_s: None

    def stop(self, reason: str) -> None:
        """End the present run in order; any thread or signal handler may call."""
        self._stop_reason = reason
        self._link.wake()

    def wake(self) -> None:
        """End the loop's present wait; any thread may call."""
        self._link.wake()

    def farewell(self) -> None:
        """Tell all boards that the host ends, so that they need not find out by its silence."""
        for name in self._peers.connected():
            header = self._peers.encode(name, Bye(self._peers.nonce(name), "the host has ended"), time.monotonic())
            self._link.send(name, header)

    def run(self, machine: m.RoundMachine, planner: TimedPlanner, store: Store, zero_s: float) -> Outcome:
        """Serve a run to its end. `zero_s`: monotonic instant of its start. Raises what made the store fail."""
        self._machine, self._planner, self._store, self._zero_s = machine, planner, store, zero_s
        self._outcome: Outcome | None = None
        self._uploads.clear()
        self._dropped = self._count_dropped()
        for name in self._peers.connected():
            self._connected(name)
        for name, how in self._departed.items():
            self._step(m.Gone(self._index[name], how, for_good=True))
        while (outcome := self._turn()) is None:
            pass
        return outcome

    def _turn(self) -> Outcome | None:
        now_s = time.monotonic()
        due_s = min(self._machine.wake_s(), self._peers.next_silence_s(), self._looked_s + VIEW_S)
        self._link.poll(max(0.0, due_s - now_s))
        for arrival in self._link.receive():
            self._hear(arrival)
        for event in self._store.events():
            self._settle(event)
        now_s = time.monotonic()
        if self._stop_reason:
            reason, self._stop_reason = self._stop_reason, ""
            self._step(m.Stop(reason))
        if now_s >= self._looked_s + VIEW_S:
            self._look(now_s)
        if now_s >= self._machine.wake_s():
            self._step(m.Tick())
        self._post()
        return self._outcome

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        for board in self._peers.silent(now_s):
            self._step(m.Gone(self._index[board], "no sign of life"))
        for ended in self._fleet.ended() if self._fleet is not None else ():
            self._peers.forget(ended.board)
            self._departed[ended.board] = ended.text
            self._step(m.Gone(self._index[ended.board], ended.text, for_good=True))
        self.on_view(self._machine, now_s)

    def _settle(self, event: StoreEvent) -> None:
        if isinstance(event, StoreFailed):
            raise event.error
        self._step(event)

    def _hear(self, arrival: Arrival) -> None:
        heard = self._peers.hear(arrival.board, arrival.header, time.monotonic())
        index = self._index[arrival.board]
        if heard.warning:
            self._say(heard.warning)
            self._jobs.append(Job(m.Note("warning", heard.warning, index, loud=False), self._run_s()))
        if heard.closed:
            self._step(m.Gone(index, heard.closed))
        if heard.current:
            self._link.adopt(arrival.board, arrival.route)
        if heard.answer is not None:
            self._link.send_to(arrival.route, heard.answer)
        if heard.opened:
            self._connected(arrival.board)
        if heard.message is not None:
            self._step(m.Said(index, heard.message, len(arrival.payload)), arrival)

    def _connected(self, name: str) -> None:
        session, hello = self._peers.session(name), self._peers.hello(name)
        if session is not None:
            self._step(m.Connected(self._index[name], session, hello.pid, hello.agent_version, hello.chunk_max))

    def _step(self, event: m.Event, arrival: Arrival | None = None) -> None:
        try:
            actions = self._machine.step(event, time.monotonic())
        except RemoteProtocolError as error:
            self._peers.dropped["against-the-run"] += 1
            self._say(f"{arrival.board if arrival else 'a board'} broke the protocol, message dropped: {error}")
            return
        for action in actions:
            self._do(action, arrival)

    def _do(self, action: m.Action, arrival: Arrival | None) -> None:
        if isinstance(action, m.Send):
            self._send(action)
        elif isinstance(action, m.WriteUpload):
            assert arrival is not None
            upload = self._uploads.get(action.lease)
            if upload is None:
                upload = self._uploads[action.lease] = bytearray(action.nbytes)
            part = memoryview(upload)[action.offset : action.offset + len(arrival.payload)]
            part[:] = arrival.payload  # a bytearray's own slice would copy twice
        else:
            self._record(action)

    def _record(self, action: m.Action) -> None:
        upload, session, allocate_s = None, "", 0.0
        if isinstance(action, m.StoreResult):
            upload = self._uploads.pop(action.result.lease)
        elif isinstance(action, m.StoreLoss):
            self._uploads.pop(action.lease, None)
        elif isinstance(action, m.StoreEnergy):
            session = f"{action.energy.session:016x}"
        elif isinstance(action, m.StoreSlices) and action.first:
            allocate_s = self._planner.last_s
        elif isinstance(action, m.Note) and action.loud:
            self._say(action.detail)
        elif isinstance(action, m.Finish):
            self._record_dropped()
        self._jobs.append(Job(action, self._run_s(), upload, session, allocate_s))
        if isinstance(action, m.Finish):
            self._outcome = Outcome(action.ok, action.reason)

    def _record_dropped(self) -> None:
        """Say and journal how many messages of this run were refused, and for what."""
        fresh = self._count_dropped() - self._dropped
        if fresh:
            counts = ", ".join(f"{number} {reason}" for reason, number in sorted(fresh.items()))
            self._record(m.Note("dropped", f"messages dropped in this run: {counts}"))

    def _count_dropped(self) -> Counter[str]:
        return self._peers.dropped + Counter({"wrong-frames": self._link.dropped_frames})

    def _send(self, action: m.Send) -> None:
        name = self._names[action.board]
        payload: memoryview | bytes = b""
        if action.piece is not None:
            payload = memoryview(self._store.model)[action.piece[0] : action.piece[1]]
        try:
            header = self._peers.encode(name, action.message, time.monotonic())
        except (KeyError, LocalProtocolError) as error:
            self._say(f"{name}: {action.message.kind} not sent: {error}")
            return
        if not self._link.send(name, header, payload) and self._peers.forget(name):
            self._step(m.Gone(action.board, "its connection is lost"))

    def _post(self) -> None:
        if self._jobs:
            self._store.post(self._jobs)
            self._jobs = []

    def _run_s(self) -> float:
        return time.monotonic() - self._zero_s
