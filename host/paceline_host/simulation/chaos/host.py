# SPDX-License-Identifier: Apache-2.0
"""One life of a host that may die at any action or write, stand still, or meet a disk that is slow, full or failing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import LocalProtocolError, StorageError
from paceline.wire import Bye, Message
from paceline_host import machine as m
from paceline_host import records
from paceline_host.ddp.steps import KeepState, Tell, Told
from paceline_host.peers import Terms
from paceline_host.psl.steps import CommitStep, ComputeStep, SplitSide, TensorOut, WriteTensor
from paceline_host.recovery import Recovered
from paceline_host.simulation.chaos.disk import Disk, Doom, HostDied
from paceline_host.simulation.chaos.truth import ChaosTask
from paceline_host.simulation.clock import Clock
from paceline_host.simulation.host import COMMIT_S, SimulatedHost, Watch
from paceline_host.simulation.store import InlineStore
from paceline_host.store import Job, StoreEvent
from paceline_host.uploads import Uploads


class ChaosStore(InlineStore):
    """The production store and journal, on a disk that may end in the midst of a commit."""

    def __init__(
        self, disk: Disk, doom: Doom, run: records.Run, boards: Sequence[records.Board], task: ChaosTask,
        clock: Callable[[], float], recovered: Recovered | None,
    ) -> None:  # fmt: skip
        self._disk, self._doom = disk, doom
        super().__init__(disk.folder, run, boards, task, clock, recovered)

    def do(self, jobs: Sequence[Job]) -> list[StoreEvent]:
        """Do a batch as one commit, or die on the way."""
        before = self._disk.wal_bytes
        self._doom.point()
        self._mind_the_room()
        with self._journal.transaction():
            done = self._do(jobs)
            self._doom.point()
        self._disk.committed(before)
        return done

    def close(self) -> None:
        """Let go of the files."""
        self._journal.close()

    def _mind_the_room(self) -> None:
        """Let SQLite find a full disk full, and one with room again."""
        db = self._journal._db
        if self._disk.is_full:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {pages}")
        else:
            db.execute("PRAGMA max_page_count = 1000000")


ToLink = Callable[[str, int, bytes, "memoryview | bytes"], bool]


class Ends(Protocol):
    """Who is told how a life of the host ends, and what its machine does meanwhile."""

    def died(self) -> None:
        """It was killed, or lost power."""

    def failed(self, why: str) -> None:
        """Its disk failed, and it has ended with that sentence."""

    def ended(self, finish: m.Finish) -> None:
        """The run is over."""

    def said(self, board: int) -> None:
        """The message that is being taken is given to the machine."""

    def stepped(self) -> None:
        """The machine has taken an event."""

    def committed(self) -> None:
        """A commit is on disk, and nobody has heard of it."""

    def hears(self, board: int, header: bytes) -> None:
        """A message is being taken."""

    def heard(self, board: int, route: int, header: bytes, *, holds: bool) -> None:
        """It was taken; `holds`: the host answers over the connection that it came by."""


class ChaosHost(SimulatedHost):
    """Give it a machine with `begin`, as any. `tell` sends; False: the connection is known to be dead."""

    def __init__(
        self, clock: Clock, terms: Terms, names: Sequence[str], store: ChaosStore, tell: ToLink,
        watch: Watch, ends: Ends, doom: Doom, folder: Path, zero_s: float,
    ) -> None:  # fmt: skip
        super().__init__(clock, terms, names, store, tell, watch)
        self._tell, self._ends, self._doom, self._zero_s = tell, ends, doom, zero_s
        self.files = Uploads(folder / "uploads")
        self.is_dead = False
        self.commit_s = COMMIT_S
        self._frozen_s = 0.0
        self._tensors: dict[int, bytearray] = {}  # what comes in of a step, by board
        self._posted: deque[tuple[float, list[Job]]] = deque()

    @property
    def idle(self) -> bool:
        """Nothing is on its way to the disk or back."""
        return not (self._posted or self._events or self._jobs)

    def freeze(self, seconds: float) -> None:
        """Stand still."""
        self._frozen_s = self._clock.now_s + seconds

    def thaw(self) -> None:
        """Go on now."""
        self._frozen_s = 0.0
        self._wake()

    def end(self) -> None:
        """Be no more."""
        self.is_dead = True
        self._timer.set(float("inf"))

    # What may end it ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if not self.is_dead and self._clock.now_s < self._frozen_s:
            self._timer.set(self._frozen_s)
            return
        self._alive(super()._turn)

    def _alive(self, call: Callable[[], None]) -> None:
        if self.is_dead:
            return
        try:
            call()
        except HostDied:
            self.end()
            self._ends.died()
        except StorageError as error:
            self._abandon(str(error))
            self._ends.failed(str(error))

    def _abandon(self, why: str) -> None:
        """As the server does: boards stop their work, and hear that this host ends; nothing is written any more."""
        try:
            for action in self.machine.step(m.Stop(why), self._clock.now_s):
                if isinstance(action, m.Send):
                    self._send(action)
            self.say_bye()
        except HostDied:
            pass
        self.end()

    def say_bye(self) -> None:
        """Let all boards hear that this host ends."""
        for name in self.peers.connected():
            self._say(name, Bye(self.peers.nonce(name), "the host has ended"))

    # The disk -------------------------------------------------------------------------------------------------------

    def _post(self, jobs: list[Job]) -> None:
        due_s = max(self._clock.now_s + self.commit_s, self._posted[-1][0] if self._posted else 0.0)
        self._posted.append((due_s, jobs))
        self._clock.at(due_s, lambda: self._alive(self._commit))

    def _commit(self) -> None:
        """Do what was posted and is due, as one commit, as the store does with what follows each other closely."""
        jobs: list[Job] = []
        while self._posted and self._posted[0][0] <= self._clock.now_s:
            jobs += self._posted.popleft()[1]
        if not jobs:
            return
        events = self._store.do(jobs)
        self._ends.committed()
        finish = next((job.action for job in jobs if isinstance(job.action, m.Finish)), None)
        if finish is not None:
            self.finish = finish
            self.say_bye()
            self.end()
            self._ends.ended(finish)
        elif events:
            self._told(events)

    def _finish(self, action: m.Finish) -> None:
        jobs, self._jobs = self._jobs, []
        self._post(jobs)

    def _run_s(self) -> float:
        return self._clock.now_s - self._zero_s

    def _write(self, action: m.WriteUpload, payload: memoryview | bytes) -> None:
        self.files.write(action.board, action.part, action.offset, memoryview(payload))

    def _upload(self, board: int) -> bytearray | memoryview:
        return self.files.take(board)

    # Steps that boards do together, as the server has them ----------------------------------------------------------

    def _do(self, action: Any, payload: memoryview | bytes) -> None:
        if isinstance(action, TensorOut):
            self._doom.point()
            whole = action.data
            if whole is None:
                assert isinstance(self._store, SplitSide)
                whole = self._store.outgoing(action.board, action.message.what)
            self._say(self._names[action.board], action.message, whole[action.piece[0] : action.piece[1]])
        elif isinstance(action, WriteTensor):
            if action.offset == 0:
                self._tensors[action.board] = bytearray(action.size)
            self._tensors[action.board][action.offset : action.offset + len(payload)] = payload
        elif isinstance(action, Tell):
            self._step(Told(action.board, action.message, bytes(payload)))
        else:
            self._record(action)

    def _job(self, action: Any) -> Job:
        upload, tensors = None, dict[int, bytearray]()
        if isinstance(action, m.StoreResult | KeepState):
            upload = self._upload(action.board)
        elif isinstance(action, ComputeStep | CommitStep):
            tensors = {board: data for board, data in self._tensors.items() if board in action.who}
            self._tensors = {}
        return Job(action, self._run_s(), upload, tensors)

    # Messages -------------------------------------------------------------------------------------------------------

    def _hear(self, board: str, route: int, header: bytes, payload: memoryview | bytes) -> None:
        self._ends.hears(self._index[board], header)
        super()._hear(board, route, header, payload)
        self._ends.heard(self._index[board], route, header, holds=self._routes.get(board) == route)

    def _step(self, event: Any, payload: memoryview | bytes = b"") -> None:
        if isinstance(event, m.Said):
            self._ends.said(event.board)
        super()._step(event, payload)
        self._ends.stepped()

    def _record(self, action: m.Action) -> None:
        self._doom.point()
        super()._record(action)

    def _send(self, action: m.Send) -> None:
        self._doom.point()
        super()._send(action)

    def _say(self, name: str, message: Message, payload: memoryview | bytes = b"") -> None:
        """As the server does: where there is no connection any more, its session has ended."""
        try:
            header = self.peers.encode(name, message, self._clock.now_s)
        except (KeyError, LocalProtocolError) as error:
            self.peers.dropped[f"not-sent: {error}"] += 1
            return
        if not self._tell(name, self._routes[name], header, payload) and self.peers.forget(name):
            self._step(m.Gone(self._index[name], "its connection is lost"))
