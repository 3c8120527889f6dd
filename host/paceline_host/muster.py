# SPDX-License-Identifier: Apache-2.0
"""What every run's machine does, whatever is synchronised: boards come, load, go and come back; the run starts, ends.

Pure. A regime's machine is a subclass: the methods below "For the subclass" are called when something concerns its
work, and it calls the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from paceline.errors import RemoteProtocolError
from paceline.session import Session
from paceline.transfer import Rate
from paceline.wire import Answer, Begin, End, Energy, Load, Message, Ready, Reject, RoundClosed, clip
from paceline_host import steps as s
from paceline_host.boards import Board, GroupWait, StepWait

REFUSALS = 3  # so many failures or refused updates in a row, and a board gets no more work in this run
FIRST_LEASE = 4.0  # patiences, while nothing is known of a board's speed; progress renews the lease
WINDOWS = 64  # of a board's energy in a run: it opens one in each life, and each is a row a round in the journal
HOLD_S = 0.02  # news that no board acts on waits so long for a message to go along with: each wakes a board's programs


class Muster:
    """Boards named `names` and the run's beginning and end."""

    def __init__(self, facts: s.RunFacts, names: Sequence[str], now_s: float) -> None:
        self.facts = facts
        self.boards = [Board(name, since_s=now_s) for name in names]
        self.round = 0
        self.phase = "starting"  # starting, planning, working, closing, ending, finished
        self.round_seconds: list[float] = []
        self._now_s = now_s
        self._start_end_s = now_s + facts.start_s
        self._last_refusal = ""
        self._found = 0  # the board that `_still` found last
        self._alone_s: float | None = None  # nobody is left: till then one may come back,
        self._alone_by_s = 0.0  # or, if it is here and loads, till then become ready
        self._end_by_s = 0.0
        self._end_reason, self._ok = "", False
        self._last_round, self._why_last = facts.rounds, "finished"  # of this life: the run ends when that is over
        self._out: list[Any] = []
        self._counted: set[tuple[int, int]] = set()  # (round, slice) whose results are on disk
        self._due = ""  # what a run that is taken up has left to do before it needs boards: "close" or "end"

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the present estimate of a board; None: unknown."""
        return None

    def step(self, event: Any, now_s: float) -> list[Any]:
        """Return what to do about an event.

        Raises RemoteProtocolError when a board broke the rules of the run; nothing but its message is lost.
        """
        self._out, self._now_s = [], now_s
        if self.phase != "finished":
            self._HANDLERS[type(event)](self, event, now_s)
        return self._out

    def wake_s(self) -> float:
        """Return when the next Tick is due."""
        if self._due:
            return 0.0
        times = self._wakes()
        times += [board.held[0][1] + HOLD_S for board in self.boards if board.held]
        if self.phase == "starting":
            times.append(self._start_end_s)
        if self._alone_s is not None:
            times.append(self._alone_s)
        if self.phase == "ending":
            times.append(self._end_by_s)
        return min(times, default=float("inf"))

    # For the subclass -----------------------------------------------------------------------------------------------

    def waiting_groups(self) -> Sequence[GroupWait]:
        """Return groups of boards that are done with the round, and whom they wait for: none, where there are none."""
        return ()

    def step_wait(self) -> StepWait | None:
        """Return what the open step waits for; None: boards do not step together, each wait is that for a lease."""
        return None

    def _wakes(self) -> list[float]:
        """Return its own deadlines."""
        raise NotImplementedError

    def _load_options(self, index: int) -> str:
        """Return the options of LOAD, JSON."""
        return self.facts.options

    def _data_fault(self, index: int, samples: int) -> str:
        """Say what is wrong with the number of samples that a board holds; "": nothing."""
        if samples == self.facts.samples:
            return ""
        return (
            f"its data hold {samples} samples, the host's {self.facts.samples}; give both the same data "
            f"(paceline data fetch {self.facts.task})"
        )

    def _content_fault(self, index: int, sha256: str) -> str:
        """Say what is wrong with the content of the data that a board holds, as many as it should; "": nothing."""
        ours = self.facts.data_sha256
        if sha256 == ours:
            return ""
        return (
            f"its data are as many as the host's, but other ones ({sha256[:12]}, the host's {ours[:12]}); give both "
            f"the same data (paceline data fetch {self.facts.task})"
        )

    def _replaced(self, index: int, kept: tuple[int, int], now_s: float) -> None:
        """A board connects anew while its session is not over; it holds the result of (round, slice), (0, 0): none."""
        self._gone(s.Gone(index, "a new session replaced it"), now_s)

    def _is_counted(self, kept: tuple[int, int]) -> bool:
        """Tell whether the result of (round, slice) is on disk."""
        return kept in self._counted

    def _hint(self) -> str:
        """Return what may help when no board may go on."""
        return ""

    def _finish_what_is_due(self, now_s: float) -> None:
        """Do what a run that is taken up has left to do."""
        self._due = ""
        self._end("finished", now_s)

    def _begin_run(self, now_s: float) -> None:
        """The run starts with the boards that are usable now."""
        raise NotImplementedError

    def _is_ready(self, index: int, now_s: float) -> None:
        """A board became usable after the start."""
        raise NotImplementedError

    def _is_gone(self, index: int, reason: str, now_s: float) -> None:
        """A board's session or its work ended."""
        raise NotImplementedError

    def _stop_work(self, reason: str) -> None:
        """Cancel all work."""
        raise NotImplementedError

    def _time_passed(self, now_s: float) -> None:
        """Look at its own deadlines."""
        raise NotImplementedError

    def _said_payload(self, index: int, message: Message, nbytes: int, now_s: float) -> None:
        """A message came with a payload."""
        raise RemoteProtocolError(f"{message.kind} with a payload of {nbytes} bytes")

    # Boards come and go ---------------------------------------------------------------------------------------------

    def _connected(self, event: s.Connected, now_s: float) -> None:
        board, facts = self.boards[event.board], self.facts
        kept = event.kept[1:] if event.kept[0] == facts.run else (0, 0)
        if board.session is not None:
            self._replaced(event.board, kept, now_s)
        board.session, board.ready, board.base, board.begun, board.energies_owed = event.session, None, "", False, 0
        board.held.clear()
        board.agent_pid, board.agent_version = event.agent_pid, event.agent_version
        board.chunk_bytes = min(facts.chunk_bytes, event.chunk_max)
        board.rate_in, board.rate_out = Rate(), Rate()
        board.since_s, board.departed = now_s, False
        self._load(event.board, event.session, kept)

    def _load(self, index: int, session: Session, kept: tuple[int, int]) -> None:
        """Let a board prepare for the run, and tell it whether the result that it kept is on disk."""
        facts, counted = self.facts, self._is_counted(kept)
        options, idle = self._load_options(index), facts.idle_baseline and self.round == 0
        self._send(index, Load(session.nonce, facts.run, facts.regime, facts.task, options, facts.seed, counted, idle))

    def _ready(self, index: int, message: Ready, now_s: float) -> None:
        board, facts = self.boards[index], self.facts
        if message.run != facts.run:
            return
        if (message.manifest_sha256, message.model_bytes) != (facts.manifest_sha256, facts.model_bytes):
            self._refuse(
                index, "manifest", "its model differs from the host's; install the same version of paceline", now_s
            )
        elif text := self._data_fault(index, message.samples) or self._content_fault(index, message.data_sha256):
            self._refuse(index, "data", text, now_s)
        else:
            board.ready, board.since_s = message, now_s
            board.base = ""  # a trainer that has just loaded holds no round's model
            self._out.append(s.StoreReady(index, message, board.agent_pid, board.agent_version))
            if message.library.startswith("numpy"):
                self._out.append(
                    s.Note("numpy", f"{board.name} trains with {message.library}: no torch works there", index)
                )
            if self.phase not in ("starting", "ending"):
                self._begin(index)
                if board.usable:
                    self._is_ready(index, now_s)
            self._start_if_complete(now_s)

    def _refuse(self, index: int, code: str, text: str, now_s: float) -> None:
        board = self.boards[index]
        assert board.session is not None
        self._out.append(s.Note("refused", f"{board.name} is refused: {text}", index))
        self._send(index, Reject(board.session.nonce, code, clip(f"{board.name}: {text}")))
        self._gone(s.Gone(index, f"refused: {text}"), now_s)

    def _gone(self, event: s.Gone, now_s: float) -> None:
        board = self.boards[event.board]
        if board.session is None and (board.departed or not event.for_good):
            return
        board.departed = event.for_good
        self._last_refusal = f"{board.name}: {event.reason}"
        self._out.append(s.Note("lost", self._last_refusal, event.board))
        board.session, board.ready, board.begun = None, None, False
        board.held.clear()
        self._is_gone(event.board, event.reason, now_s)
        self._start_if_complete(now_s)
        if self.phase == "ending":
            self._finish_if_quiet(now_s, late=False)
        elif event.for_good and self._alone_s is not None:
            self._alone(now_s)  # perhaps nobody is left who could come back

    def _start_if_complete(self, now_s: float) -> None:
        if self.phase != "starting":
            return
        if now_s < self._start_end_s and self._is_awaited():
            return
        usable = [b for b in self.boards if b.usable]
        missing = [b.name for b in self.boards if not b.usable]
        if missing:
            self._out.append(s.Note("missing", f"starting without {', '.join(missing)}: not ready"))
        if not usable:
            self._finish(False, f"no board became ready (waited up to {self.facts.start_s:g} s); see the agents' logs")
        elif self.facts.energy_needed and not any(b.ready.energy_known for b in usable if b.ready):
            self._finish(
                False,
                "the policy weighs energy and [energy] required = true, but no board has a meter; configure [meter] in "
                "agent.toml, or set required = false to run by time alone",
            )
        else:
            self._begin_run(now_s)

    def _is_awaited(self) -> bool:
        """Tell whether a board may still become usable."""
        return self._still(lambda board: not board.usable and not board.hopeless)

    def _still(self, holds: Callable[[Board], bool]) -> bool:
        """Tell whether something holds for any board. Looked for from where it held last: each board's news ask."""
        boards = self.boards
        for index in chain(range(self._found, len(boards)), range(self._found)):
            if holds(boards[index]):
                self._found = index
                return True
        return False

    def _begin(self, index: int) -> None:
        board = self.boards[index]
        assert board.session is not None
        if not board.begun:
            board.begun = True
            self._send(index, Begin(board.session.nonce, self.facts.run))

    def _bar_if_hopeless(self, index: int, reason: str) -> None:
        board = self.boards[index]
        self._last_refusal = f"{board.name}: {reason}"
        if board.failures >= REFUSALS and not board.barred:
            board.barred = True
            self._out.append(
                s.Note("barred", f"{board.name}: {REFUSALS} failures in a row, no more work in this run", index)
            )
            if self._alone_s is not None:
                self._alone(self._now_s)  # perhaps it was the last that could have come back

    def _alone(self, now_s: float) -> None:
        if all(board.hopeless for board in self.boards):
            self._stop(s.Stop(f"no board may go on, the last was {self._last_refusal}{self._hint()}"), now_s)
        elif self._alone_s is None:
            self._wait_alone(now_s)
            self._out.append(
                s.Note("alone", f"no board is left; waiting {self.facts.patience_s:g} s for one to come back")
            )

    def _wait_alone(self, now_s: float) -> None:
        self._alone_s = now_s + self.facts.patience_s
        self._alone_by_s = now_s + max(self.facts.patience_s, self.facts.start_s)

    def _waits_on(self, now_s: float) -> bool:
        """Nobody is ready in time. A board that is here and loads may take as long as at the start."""
        if now_s >= self._alone_by_s or not any(board.loads for board in self.boards):
            return False
        self._alone_s = min(now_s + self.facts.patience_s, self._alone_by_s)
        return True

    # What boards say ------------------------------------------------------------------------------------------------

    def _said(self, event: s.Said, now_s: float) -> None:
        if event.payload_bytes:
            self._said_payload(event.board, event.message, event.payload_bytes, now_s)
        else:
            self._MESSAGES.get(type(event.message), Muster._nothing)(self, event.board, event.message, now_s)

    def _nothing(self, index: int, message: Message, now_s: float) -> None:
        """The session has seen it, and that is all."""

    def _energy(self, index: int, message: Energy, now_s: float) -> None:
        if message.run != self.facts.run:
            return
        if message.round > self.round:
            raise RemoteProtocolError(f"joules of round {message.round}, the present one is {self.round}")
        windows = self.boards[index].windows
        if message.window not in windows and len(windows) >= WINDOWS:
            raise RemoteProtocolError(f"joules of more than {WINDOWS} windows in one run")
        self.boards[index].account(message)
        self.boards[index].energies_owed = max(0, self.boards[index].energies_owed - 1)
        self._out.append(s.StoreEnergy(index, message))
        if self.phase == "ending":
            self._finish_if_quiet(now_s, late=False)

    # The end of a round and of the run ------------------------------------------------------------------------------

    def _tell_round_closed(self) -> None:
        self._keep_counted([board.done for board in self.boards])
        for index, board in enumerate(self.boards):
            if board.session is not None and board.begun:
                board.energies_owed += 1
                self._hold(index, RoundClosed(board.session.nonce, self.facts.run, self.round, 0))

    def _keep_counted(self, samples: Sequence[int]) -> None:
        """Keep what each board's part of the round that is over came to, for those who look on."""
        for board, count in zip(self.boards, samples, strict=True):
            board.counted = count

    def _goes_on(self, closed: int, now_s: float) -> bool:
        """Tell whether a round follows the one that is closed; if not, the run ends here."""
        if closed < self._last_round:
            return True
        self._end(self._why_last, now_s, ok=closed >= self.facts.rounds)
        return False

    def _end(self, reason: str, now_s: float, *, ok: bool = True) -> None:
        """Close all energy windows; the run is finished when they have come in, or cannot any more."""
        self.phase, self._end_reason, self._ok = "ending", reason, ok
        self._end_by_s = now_s + self.facts.patience_s / 6
        for index, board in enumerate(self.boards):
            if board.session is not None and board.begun:
                board.energies_owed += 1
                self._send(index, End(board.session.nonce, self.facts.run, self.round, clip(reason)))
        self._finish_if_quiet(now_s, late=False)

    def _finish_if_quiet(self, now_s: float, *, late: bool) -> None:
        if not late and self._still(_owes):
            return
        owing = [b.name for b in self.boards if _owes(b)]
        if owing:
            self._out.append(s.Note("energy-missing", f"no final joules from {', '.join(owing)}"))
        self._finish(self._ok, self._end_reason)

    def _finish(self, ok: bool, reason: str) -> None:
        self.phase = "finished"
        self._out.append(s.Finish(ok, reason))

    def _stop(self, event: s.Stop, now_s: float) -> None:
        if self.phase == "ending":
            return
        if event.after_round and self.phase != "starting" and self._alone_s is None:
            if self.round < self.facts.rounds:
                self._last_round, self._why_last = self.round, event.reason
            return
        self._stop_work(event.reason)
        self._end(event.reason, now_s, ok=False)

    def _tick(self, event: s.Tick, now_s: float) -> None:
        if self._due:
            self._finish_what_is_due(now_s)
            return
        self._start_if_complete(now_s)
        for index, board in enumerate(self.boards):
            if board.held and now_s >= board.held[0][1] + HOLD_S:
                self._say_held(index)
        self._time_passed(now_s)
        if self._alone_s is not None and now_s >= self._alone_s and not self._waits_on(now_s):
            self._alone_s = None
            self._stop(s.Stop(f"no board came back within {self.facts.patience_s:g} s"), now_s)
        if self.phase == "ending" and now_s >= self._end_by_s:
            self._finish_if_quiet(now_s, late=True)

    def _send(
        self, index: int, message: Message, piece: tuple[int, int] | None = None, model: bytes | None = None
    ) -> None:
        if self.boards[index].held:
            self._say_held(index)
        self._out.append(s.Send(index, message, piece, model))

    def _hold(self, index: int, message: Answer | RoundClosed) -> None:
        """Say this together with what the board is told next, after HOLD_S at the latest."""
        self.boards[index].held.append((message, self._now_s))

    def _take_held(self, index: int) -> tuple[int, int, int, int]:
        """Return what was held back as the last four fields of ASSIGN; what they have no room for is said before."""
        board = self.boards[index]
        if [type(message) for message, _ in board.held] not in ([Answer], [RoundClosed], [Answer, RoundClosed]):
            self._say_held(index)
        answered = answered_us = closed = closed_us = 0
        for message, since_s in board.held:
            ago_us = max(0, round((self._now_s - since_s) * 1e6))
            if isinstance(message, RoundClosed):
                closed, closed_us = message.round, ago_us
            elif board.session is None or board.session.lease == message.lease:  # else as in `_say_held`
                answered, answered_us = message.lease, ago_us
        board.held.clear()
        return answered, answered_us, closed, closed_us

    def _say_held(self, index: int) -> None:
        board = self.boards[index]
        held, board.held = board.held, []
        for message, since_s in held:
            if isinstance(message, Answer) and board.session is not None and board.session.lease != message.lease:
                continue  # its trainer has died meanwhile: the board has let go of the lease
            ago_us = max(0, round((self._now_s - since_s) * 1e6))
            self._out.append(s.Send(index, type(message)(**{**vars(message), "ago_us": ago_us})))

    _MESSAGES: dict[type[Message], Callable[..., None]] = {Ready: _ready, Energy: _energy}
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        s.Connected: _connected, s.Said: _said, s.Gone: _gone, s.Stop: _stop, s.Tick: _tick,
    }  # fmt: skip


def _owes(board: Board) -> bool:
    """Tell whether joules are to be expected from a board yet."""
    return board.session is not None and board.begun and board.energies_owed > 0
