# SPDX-License-Identifier: Apache-2.0
"""The epochs of one run of split learning. Pure: events in, actions out, time is an argument; knows no tensor.

A step: drawn -> the client part goes to the boards that give samples -> their smashed data come in -> one forward and
one loss over all of them -> each board's gradient goes out -> their updates come in -> summed, both optimisers step ->
committed. A board that is lost inside a step makes it void for all; its clients leave the pool until it is back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import RemoteProtocolError
from paceline.split.rows import Rows, most_rows
from paceline.wire import (
    TENSORS_FROM_AGENT,
    Answer,
    Assign,
    Cancel,
    Commit,
    Delivery,
    Failed,
    Message,
    Ping,
    Pong,
    Result,
    Tensor,
    clip,
)  # fmt: skip
from paceline_host import steps as s
from paceline_host.boards import Lease, StepWait
from paceline_host.muster import FIRST_LEASE, Muster
from paceline_host.psl.plan import EpochPlan
from paceline_host.psl.steps import (
    CloseEpoch,
    CommitStep,
    ComputeStep,
    EpochClosed,
    SplitFacts,
    StepCommitted,
    StepComputed,
    StepRefused,
    StorePart,
    TensorOut,
    VoidStep,
    WriteTensor,
)
from paceline_host.regimes import Slice

STORED = "stored"  # what the open step waits for: the plan to be on disk,
SMASHED, GRADIENT, UPDATE, SUM = "smashed", "gradient", "update", "sum"  # boards, the host, boards, the host,
RESULTS = "results"  # and, after the last step, each board's account of the epoch


@dataclass
class _Work:
    """A board's lease of one epoch."""

    hold: Lease
    rows_until: int = 0  # it has been told what it gives before that step
    due_s: float = float("inf")  # it owes something by then
    asked_s: float = 0.0
    given_s: float = 0.0  # when it had last given all that it owed
    owes_bytes: int = 0
    have_bytes: int = 0
    result: Result | None = None

    @property
    def lease(self) -> int:
        """Its number."""
        return self.hold.number

    @property
    def slice(self) -> Slice:
        """The board's part of the epoch."""
        return self.hold.slice

    def owe(self, due_s: float) -> None:
        """Let the board have until then."""
        self.due_s = self.hold.end_s = due_s


@dataclass
class _Totals:
    """What a board has given to an epoch, whatever became of its leases."""

    samples: int = 0
    steps: int = 0
    told: bool = False  # its own account is in the journal


class SplitMachine(Muster):
    """Runs `facts.rounds` epochs. `split` says which clients each board holds, and how large their tensors are."""

    def __init__(
        self,
        facts: s.RunFacts,
        split: SplitFacts,
        names: Sequence[str],
        now_s: float,
        reopened: s.Reopened | None = None,
    ) -> None:
        super().__init__(facts, names, now_s)
        self.split = split
        self.sizes = list(split.sizes)  # of data of their own boards tell when they are ready,
        self._data_sha256 = list(split.data_sha256) or [""] * len(names)  # and what they are
        self._plan: EpochPlan | None = None
        self._work: dict[int, _Work] = {}
        self._totals: dict[int, _Totals] = {}
        self._slices: dict[int, Slice] = {}
        self._longest_s: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._stage = ""
        self._lost: set[int] = set()  # boards that went while the host was in the middle of a step
        self._back: set[int] = set()  # boards that came while an epoch is under way
        self._planned_s = 0.0
        self._lease_number = 0
        self._attempt = 0
        self._sent_bytes = self._received_bytes = 0  # of this epoch's tensors
        self._open_slices: Sequence[Slice] = ()  # of the epoch that is taken up, as they were planned
        if reopened is not None:
            self._open_slices = reopened.open_slices
            self.round, self.round_seconds = reopened.round, list(reopened.round_seconds)
            self._attempt, self._lease_number = reopened.lives, reopened.lives << 32
            self._again = reopened.round if not reopened.closed else 0
            if reopened.closed and reopened.round >= facts.rounds:
                self._due = "end"
        else:
            self._again = 0

    def step_wait(self) -> StepWait | None:
        """Return what the open step waits for."""
        if self.phase != "working":
            return None
        work, waiting = self._work, self._waiting
        return StepWait(
            {i: work[i].asked_s for i in sorted(work) if i in waiting},
            {i: work[i].given_s for i in sorted(work) if i not in waiting},
        )

    # What the muster asks -------------------------------------------------------------------------------------------

    def _load_options(self, index: int) -> str:
        options = json.loads(self.facts.options)
        options["split"] = self.split.options(index)
        return json.dumps(options)

    def _data_fault(self, index: int, samples: int) -> str:
        known = self._samples(index)
        if self.split.own and not known:
            self.sizes[self.split.clients(index)[0]] = samples
            return "" if samples else "it holds no samples"
        if samples == known:
            return ""
        if self.split.own:
            return f"it holds {samples} samples, and held {known} when the run began; restore its data"
        return (
            f"its clients hold {samples} samples, expected {known}; give both the same data "
            f"(paceline data fetch {self.facts.task})"
        )

    def _content_fault(self, index: int, sha256: str) -> str:
        if not self.split.clients(index):
            return ""  # it looks on
        if not self.split.own:
            return super()._content_fault(index, sha256)
        known = self._data_sha256[index]
        if known in ("", sha256):
            self._data_sha256[index] = sha256
            return ""
        return (
            f"its data are as many as when the run began, but other ones ({sha256[:12]}, then {known[:12]}); "
            "restore its data"
        )

    def _samples(self, index: int) -> int:
        return sum(self.sizes[c] for c in self.split.clients(index))

    def _hint(self) -> str:
        is_finite = "not finite" not in self._last_refusal
        return "" if is_finite else "; has training diverged? a smaller learning_rate may help"

    def _wakes(self) -> list[float]:
        return [self._work[i].due_s for i in self._waiting if i in self._work]

    def _begin_run(self, now_s: float) -> None:
        self._plan_epoch(now_s)

    def _is_ready(self, index: int, now_s: float) -> None:
        if not self.split.clients(index):
            return
        if self.phase == "planning" and self._stage != STORED:
            self._plan_epoch(now_s)
        elif self.phase == "working":
            self._come_back(index, now_s)

    def _is_gone(self, index: int, reason: str, now_s: float) -> None:
        self._back.discard(index)
        if index in self._work:
            self._drop(index, reason, now_s)

    def _stop_work(self, reason: str) -> None:
        for index, work in self._work.items():
            board = self.boards[index]
            if board.session is not None:
                self._send(index, Cancel(board.session.nonce, work.lease, clip(reason)))
            board.lease = None
        self._work.clear()
        self._waiting.clear()

    # An epoch -------------------------------------------------------------------------------------------------------

    def _holders(self) -> list[int]:
        return [i for i, board in enumerate(self.boards) if board.usable and self.split.clients(i)]

    def _plan_epoch(self, now_s: float) -> None:
        present = self._holders()
        if self._again and self._open_slices:
            present = [i for i in present if i in {item.board for item in self._open_slices}]
        if not any(self._samples(i) for i in present):
            self.phase = "planning"
            self._alone(now_s)
            return
        self._alone_s = None
        again, self._again = bool(self._again), 0
        if not again:
            self.round += 1
            self._attempt = 0
        self.phase, self._stage = "planning", STORED
        if again and self._open_slices:
            self._slices = {item.board: item for item in self._open_slices}
        else:
            self._slices = {
                i: Slice(self.round, n, i, ((self.round - 1, 0, self._samples(i)),))
                for n, i in enumerate(j for j in range(len(self.boards)) if self._samples(j))
            }
        sizes, absent = self.sizes[:], []
        for index in range(len(self.boards)):
            for client in self.split.clients(index):
                if index not in self._slices:
                    sizes[client] = 0  # a board that has come to a run with data of its own: from the next epoch on
                if index not in present:
                    absent.append(client)
        self._plan = EpochPlan(
            self.split.method, sizes, self.facts.batch, self.facts.seed, self.round - 1, absent=absent
        )
        self._sent_bytes = self._received_bytes = 0
        self._totals, self._work, self._waiting, self._lost, self._back = {}, {}, set(), set(), set()
        for board in self.boards:
            board.share = board.done = 0
        if absent:
            self._note_left(f"without {self._names(set(self._slices) - set(present))}")
        self._out.append(s.StoreSlices(tuple(self._slices.values()), first=not again))

    def _stored(self, event: s.SlicesStored, now_s: float) -> None:
        if self.phase != "planning":
            return
        assert self._plan is not None
        self.phase, self._planned_s = "working", now_s
        for index, board in enumerate(self.boards):
            if board.usable:
                self._begin(index)  # also those without clients: their joules count
        present = [i for i in self._holders() if i in self._slices]
        for index in self._slices:  # boards that came or went while the plan was being written
            for client in self.split.clients(index):
                (self._plan.restore if index in present else self._plan.remove)(client)
        self._plan.changed()
        for index in present:
            self._give_lease(index, now_s)
        self._open_step(now_s)

    def _give_lease(self, index: int, now_s: float) -> None:
        board, facts, item = self.boards[index], self.facts, self._slices[index]
        assert board.session is not None
        self._lease_number += 1
        lease_s = FIRST_LEASE * facts.patience_s
        hold = Lease(self._lease_number, item, "", now_s, lease_s, float("inf"), samples=board.done)
        self._work[index], board.lease = _Work(hold, given_s=now_s), hold
        self._totals.setdefault(index, _Totals()).told = False
        board.share, board.since_s = item.samples, now_s
        self._send(
            index,
            Assign(
                board.session.nonce, facts.run, item.round, item.index, self._attempt, self._lease_number, lease_s,
                facts.batch, item.ranges, "", 0,
            ),
        )  # fmt: skip

    def _tell_rows(self, index: int) -> None:
        """Tell a board what it gives in the steps to come, as far as one message goes."""
        assert self._plan is not None
        clients, work = self.split.clients(index), self._work[index]
        rows = self._plan.rows(most_rows(len(clients)))
        told = Rows(
            self._plan.step, self._plan.steps, tuple(self._plan.used[c] for c in clients),
            tuple(tuple(row[c] for c in clients) for row in rows),
        )  # fmt: skip
        work.rows_until = self._plan.step + len(rows)
        data = told.encode()
        self._push(index, "schedule", len(data), data)

    def _open_step(self, now_s: float) -> None:
        """Ask the boards that give samples in the open step for their smashed data; after the last, for results."""
        assert self._plan is not None
        if not self._work:
            self._stage = ""
            self._alone(now_s)
            return
        if self._plan.over:
            self._ask_results(now_s)
            return
        self._stage, self._waiting = SMASHED, set()
        for index, work in self._work.items():
            if (count := self._count(index)) == 0:
                continue
            if self._plan.step >= work.rows_until:
                self._tell_rows(index)
            self._push(index, "model", self.split.part_bytes)
            self._owe(index, self.split.upload_bytes(count), now_s)

    def _count(self, index: int) -> int:
        assert self._plan is not None
        row = self._plan.counts
        return sum(row[c] for c in self.split.clients(index))

    def _ask_results(self, now_s: float) -> None:
        """All samples are used: each board gets the last client part and gives its account."""
        self._stage, self._waiting = RESULTS, set()
        for index in self._work:
            self._tell_rows(index)
            self._push(index, "model", self.split.part_bytes)
            self._owe(index, 0, now_s)

    def _owe(self, index: int, nbytes: int, now_s: float) -> None:
        work, known = self._work[index], self._longest_s.get(index)
        patience_s = self.facts.patience_s
        lease_s = FIRST_LEASE * patience_s if known is None else 2 * known + patience_s
        work.asked_s = now_s
        work.owe(now_s + lease_s)
        work.owes_bytes, work.have_bytes = nbytes, 0
        self._waiting.add(index)

    def _push(self, index: int, what: str, size: int, data: bytes | None = None) -> None:
        """Send a tensor in pieces; it is small against what a pipe holds, and the board knows how large it is."""
        board, work, plan = self.boards[index], self._work[index], self._plan
        assert board.session is not None
        assert plan is not None
        self._sent_bytes += size
        for begin in range(0, size, board.chunk_bytes):
            end = min(begin + board.chunk_bytes, size)
            message = Tensor(board.session.nonce, work.lease, plan.step, plan.redraw, what, size, begin)
            self._out.append(TensorOut(index, message, (begin, end), data))

    # What boards say ------------------------------------------------------------------------------------------------

    def _say_tensor(self, index: int, message: Tensor, nbytes: int, now_s: float) -> None:
        work, plan = self._work.get(index), self._plan
        if work is None or plan is None or message.lease != work.lease:
            raise RemoteProtocolError("tensor without a lease")
        if message.what not in TENSORS_FROM_AGENT:
            raise RemoteProtocolError(f"tensor {message.what!r:.20} is not a board's to send")
        if (message.step, message.redraw, message.what) != (plan.step, plan.redraw, self._stage):
            return  # of a step that was void meanwhile
        if index not in self._waiting:
            raise RemoteProtocolError(f"tensor {message.what} of step {message.step}, nothing was asked for")
        stated = message.size, message.offset
        if stated != (work.owes_bytes, work.have_bytes) or not 0 < nbytes <= work.owes_bytes - work.have_bytes:
            self._fail(
                index,
                f"its {message.what} of step {message.step} has {message.size} bytes ({nbytes} at {message.offset}), "
                f"expected {work.owes_bytes} ({work.have_bytes} are here)",
                now_s,
            )
            return
        work.have_bytes += nbytes
        self._received_bytes += nbytes
        work.owe(max(work.due_s, now_s + self.facts.patience_s))
        self._out.append(WriteTensor(index, message.offset, message.size))
        if work.have_bytes < work.owes_bytes:
            return
        self._longest_s[index] = max(self._longest_s.get(index, 0.0), now_s - work.asked_s)
        self._arrived(index)

    def _arrived(self, index: int) -> None:
        assert self._plan is not None
        work = self._work[index]
        work.owe(float("inf"))
        work.given_s = self._now_s
        self._waiting.discard(index)
        if self._waiting:
            return
        step, redraw = self._plan.step, self._plan.redraw
        active = tuple(i for i in sorted(self._work) if self._count(i))
        if self._stage == SMASHED:
            self._stage = GRADIENT
            self._out.append(ComputeStep(self.round, step, redraw, tuple((i, self._count(i)) for i in active)))
        elif self._stage == UPDATE:
            self._stage = SUM
            self._out.append(CommitStep(self.round, step, redraw, active))

    def _computed(self, event: StepComputed, now_s: float) -> None:
        if not self._is_open(event.step, event.redraw, GRADIENT):
            return
        self._stage = UPDATE
        for index, count in ((i, self._count(i)) for i in sorted(self._work)):
            if count:
                self._push(index, "gradient", self.split.gradient_bytes(count))
                self._owe(index, self.split.part_bytes, now_s)

    def _step_refused(self, event: StepRefused, now_s: float) -> None:
        if self._is_open(event.step, event.redraw, GRADIENT) or self._is_open(event.step, event.redraw, SUM):
            self._stage = ""  # the store has let go of the step
            if event.board in self._work:
                self._fail(event.board, event.reason, now_s)
                return
            self._note_failure("rejected", event.board, event.reason)  # it was lost, and what it had sent is no good
            self._void_for_lost(now_s)

    def _committed(self, event: StepCommitted, now_s: float) -> None:
        if not self._is_open(event.step, event.redraw, SUM):
            return
        assert self._plan is not None
        for index in self._work:
            if count := self._count(index):
                total = self._totals[index]
                total.samples, total.steps = total.samples + count, total.steps + 1
                self.boards[index].done += count
                self.boards[index].failures = 0
                self._work[index].hold.samples = self.boards[index].done
        for index in self._lost:
            if (count := self._count(index)) and index in self._totals:
                self._totals[index].samples += count
                self._totals[index].steps += 1
        self._plan.commit()
        self._between_steps(now_s)

    def _between_steps(self, now_s: float) -> None:
        """Let go and take in clients, then go on."""
        assert self._plan is not None
        self._alone_s = None
        lost, self._lost = self._lost, set()
        back, self._back = {i for i in self._back if self.boards[i].usable and i in self._slices}, set()
        for index in lost:
            for client in self.split.clients(index):
                self._plan.remove(client)
        for index in back:
            for client in self.split.clients(index):
                self._plan.restore(client)
            self._give_lease(index, now_s)
        if lost or back:
            self._plan.changed()
            self._forget_rows()
        if back:
            self._out.append(s.Note("back", f"{self._names(back)} back in step {self._plan.step}", loud=True))
        self._open_step(now_s)

    def _come_back(self, index: int, now_s: float) -> None:
        """Take a board in after the open step; at once where nobody is left, unless the host is summing that step."""
        self._back.add(index)
        if not self._work and self._stage != SUM:
            self._between_steps(now_s)

    def _is_open(self, step: int, redraw: int, stage: str) -> bool:
        plan = self._plan
        return (
            self.phase == "working"
            and plan is not None
            and (plan.step, plan.redraw, self._stage) == (step, redraw, stage)
        )

    # Boards that are lost inside a step -----------------------------------------------------------------------------

    def _drop(self, index: int, reason: str, now_s: float) -> None:
        """A board's lease is over: its clients leave, and the open step is void for all unless it is nearly done."""
        del self._work[index]
        self.boards[index].lease = None
        self._waiting.discard(index)
        if self.phase != "working" or self._plan is None:
            return
        self._note_left(f"without {self.boards[index].name} ({reason})")
        self._lost.add(index)
        if self._stage == SUM:  # its update is here: the step may end, and ends with it
            return
        if self._stage == RESULTS:
            self._lost.clear()
            self._close_if_complete(now_s)
            return
        self._void_for_lost(now_s)

    def _void_for_lost(self, now_s: float) -> None:
        assert self._plan is not None
        lost, self._lost = self._lost, set()
        self._out.append(VoidStep(self.round, self._plan.step, self._plan.redraw))
        self._plan.void([client for index in lost for client in self.split.clients(index)])
        self._forget_rows()
        if self._back:
            self._between_steps(now_s)
        else:
            self._open_step(now_s)

    def _forget_rows(self) -> None:
        for work in self._work.values():
            work.rows_until = 0

    def _fail(self, index: int, reason: str, now_s: float) -> None:
        """A board broke its part of the step: it loses its lease, and may come back by loading anew."""
        board, work = self.boards[index], self._work.get(index)
        if work is None:
            return
        if board.session is not None:
            self._send(index, Cancel(board.session.nonce, work.lease, clip(reason)))
        self._note_failure("rejected", index, reason)
        self._drop(index, reason, now_s)
        if board.usable and self.phase == "working":
            self._come_back(index, now_s)

    def _work_failed(self, index: int, message: Failed, now_s: float) -> None:
        board = self.boards[index]
        if self.phase == "ending":
            return
        reason = f"{message.reason}: {message.detail}"
        self._note_failure("failed", index, reason)
        if message.lease == 0:
            board.ready = None
        if index in self._work:
            self._drop(index, reason, now_s)
        if board.usable and self.phase == "working":
            self._come_back(index, now_s)
        self._start_if_complete(now_s)

    # The end of an epoch --------------------------------------------------------------------------------------------

    def _result(self, index: int, message: Result, now_s: float) -> None:
        work = self._work.get(index)
        if work is None or self._stage != RESULTS or message.lease != work.lease:
            raise RemoteProtocolError("result before the epoch's end")
        item = work.slice
        expected = (self.facts.run, item.round, item.index, self._attempt, 0)
        stated = (message.run, message.round, message.slice, message.attempt, message.update_bytes)
        if stated != expected:
            self._fail(index, f"its result {stated} does not match the assignment {expected}", now_s)
            return
        work.result = message
        if isinstance(message, Delivery):
            m = message
            joules = Commit(
                m.session, m.lease, m.compute_uj, m.bound_uj, m.energy_source, m.energy_flags, m.sampling_uj
            )
            self._commit(index, joules, now_s)
            return
        work.owe(now_s + self.facts.patience_s)

    def _commit(self, index: int, message: Commit, now_s: float) -> None:
        work = self._work.get(index)
        if work is None or work.result is None:
            raise RemoteProtocolError("commit without a result")
        self._waiting.discard(index)
        work.given_s = now_s
        total = self._totals[index]
        total.told = True
        self._out.append(StorePart(index, work.slice, work.lease, total.samples, total.steps, work.result, message))
        self._close_if_complete(now_s)

    def _close_if_complete(self, now_s: float) -> None:
        if self.phase != "working" or self._stage != RESULTS or self._waiting:
            return
        assert self._plan is not None
        self.phase = "closing"
        self.round_seconds.append(now_s - self._planned_s)
        for index, total in self._totals.items():  # what a lost board has given is in the model all the same
            if not total.told and total.samples:
                self._out.append(StorePart(index, self._slices[index], 0, total.samples, total.steps, None, None))
        self._tell_round_closed()
        self._out.append(
            CloseEpoch(self.round, self._plan.steps, self._plan.left, self._sent_bytes, self._received_bytes)
        )

    def _part_stored(self, event: s.ResultStored, now_s: float) -> None:
        work, board = self._work.get(event.board), self.boards[event.board]
        if work is None or work.lease != event.lease or board.session is None:
            return
        self._hold(event.board, Answer(board.session.nonce, event.lease, "accepted", "", 0))
        del self._work[event.board]
        board.lease, board.since_s = None, now_s

    def _epoch_closed(self, event: EpochClosed, now_s: float) -> None:
        if self.phase != "closing":
            return
        self._plan = None
        if self._goes_on(event.round, now_s):
            self._plan_epoch(now_s)

    # Time -----------------------------------------------------------------------------------------------------------

    def _time_passed(self, now_s: float) -> None:
        for index in sorted(self._waiting):
            work = self._work.get(index)
            if work is not None and now_s >= work.due_s:
                plan = self._plan
                assert plan is not None
                what = "account of the epoch" if self._stage == RESULTS else f"{self._stage} data of step {plan.step}"
                self._fail(index, f"no {what} came ({work.have_bytes} of {work.owes_bytes} bytes)", now_s)

    def _ping(self, index: int, message: Ping, now_s: float) -> None:
        board, work = self.boards[index], self._work.get(index)
        left_s = 0.0
        if work is not None and message.lease == work.lease:
            left_s = FIRST_LEASE * self.facts.patience_s
        if board.session is not None:
            self._send(index, Pong(board.session.nonce, message.lease, left_s))

    def _note_failure(self, kind: str, index: int, reason: str) -> None:
        board = self.boards[index]
        self._out.append(s.Note(kind, f"{board.name}: {reason}", index))
        board.failures += 1
        self._bar_if_hopeless(index, reason)

    def _note_left(self, what: str) -> None:
        assert self._plan is not None
        self._out.append(s.Note("left", f"epoch {self.round}, step {self._plan.step}: {what}", loud=False))

    def _names(self, boards: set[int]) -> str:
        return ", ".join(self.boards[i].name for i in sorted(boards))

    def _said_payload(self, index: int, message: Message, nbytes: int, now_s: float) -> None:
        if not isinstance(message, Tensor):
            raise RemoteProtocolError(f"{message.kind} with a payload of {nbytes} bytes")
        self._say_tensor(index, message, nbytes, now_s)

    _MESSAGES: dict[type[Message], Callable[..., None]] = {
        **Muster._MESSAGES, Ping: _ping, Result: _result, Delivery: _result, Commit: _commit, Failed: _work_failed,
    }  # fmt: skip
    _HANDLERS: dict[type[object], Callable[..., None]] = {
        **Muster._HANDLERS, s.SlicesStored: _stored, StepComputed: _computed, StepRefused: _step_refused,
        StepCommitted: _committed, s.ResultStored: _part_stored, EpochClosed: _epoch_closed,
    }  # fmt: skip
