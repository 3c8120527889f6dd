# SPDX-License-Identifier: Apache-2.0
"""The round machine alone: a script says what boards and store do; the machine's answers and ledger are judged.

`test_machines_joined.py` has the same machine with real agent machines, and loses boards at every point.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.fakes import MANIFEST, MODEL_BYTES, EvenPlanner, FakeStore, check_exactly_once, facts, model_of, places, sha

from paceline.errors import RemoteProtocolError
from paceline.session import Session, State
from paceline.wire import (
    Answer,
    Assign,
    Begin,
    Cancel,
    Chunk,
    Commit,
    Credit,
    Delivery,
    End,
    Energy,
    Failed,
    Hello,
    Load,
    Message,
    Ping,
    Pong,
    Ready,
    Reject,
    Result,
    RoundClosed,
    Taken,
    Welcome,
    split_of,
)  # fmt: skip
from paceline_host import machine as rm
from paceline_host.machine import UNSAID
from paceline_host.muster import FIRST_LEASE, HOLD_S, REFUSALS
from paceline_host.regimes.pma import Pma


class Script:
    """A round machine, its sessions and its store; boards say what the test lets them say."""

    def __init__(self, boards: int = 3, **changes: object) -> None:
        self.facts = facts(**changes)
        self.now_s = 100.0
        self.store = FakeStore()
        self.planner = EvenPlanner(self.facts.budget)
        self.machine = rm.RoundMachine(
            self.facts, Pma(self.facts.samples, self.facts.budget), self.planner,
            [f"b{i}" for i in range(boards)], sha(model_of(0)), self.now_s,
        )  # fmt: skip
        self.sessions: dict[int, Session] = {}
        self.said: dict[int, list[Message]] = {i: [] for i in range(boards)}
        self.finish: rm.Finish | None = None
        self._nonce = 0

    def step(self, event: rm.Event) -> None:
        """Let an event happen and carry out what the machine says."""
        for action in self.machine.step(event, self.now_s):
            if isinstance(action, rm.Send):
                session = self.sessions[action.board]
                session.send(action.message, self.now_s)  # raises where the machine says what it may not
                self.said[action.board].append(action.message)
            elif isinstance(action, rm.Finish):
                assert self.finish is None, "a run ends once"
                self.finish = action
            elif not isinstance(action, rm.WriteUpload):
                self.store.jobs.append(action)

    def settle(self, limit: int = 1 << 30) -> None:
        """Let the store do some of what it has to do, and what follows from that."""
        for _ in range(min(limit, 1000)):
            if not self.store.jobs:
                return
            for event in self.store.settle(1):
                self.step(event)

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.step(rm.Tick())

    def connect(self, board: int, chunk_max: int = 1 << 20, kept: tuple[str, int, int] = ("", 0, 0)) -> None:
        """Let a board open a session; `kept`: the finished result that it holds."""
        self._nonce += 1
        session = Session(self._nonce, is_host=True, patience_s=30.0, now_s=self.now_s)
        session.accept(Hello(self._nonce, 1, 1, "0.1.0", "m", chunk_max, 9, "", 0, 0), self.now_s)
        session.send(Welcome(self._nonce, 1, 1, 1 << 15, 1 << 16, 2.0, 30.0), self.now_s)
        self.sessions[board] = session
        self.step(rm.Connected(board, session, chunk_max=chunk_max, kept=kept))

    def lose(self, board: int, reason: str = "no sign of life") -> None:
        """Let a board's session end."""
        self.step(rm.Gone(board, reason))

    def says(self, board: int, message: Message, payload_bytes: int = 0) -> None:
        """Let a board say something, through its session's table."""
        self.sessions[board].accept(message, self.now_s)
        self.step(rm.Said(board, message, payload_bytes))

    def ready(self, board: int, **changes: object) -> None:
        """Let a board say READY."""
        plain = Ready(
            self.sessions[board].nonce, "run", MANIFEST, MODEL_BYTES, self.facts.samples, "linear", 9, "modelled", True
        )
        self.says(board, dataclasses.replace(plain, **changes))  # type: ignore[arg-type]

    def last(self, board: int, kind: type[Message]) -> Message:
        """Return the last message of a kind to a board."""
        return next(m for m in reversed(self.said[board]) if type(m) is kind)

    def assignment(self, board: int) -> Assign:
        """Return the last ASSIGN to a board."""
        message = self.last(board, Assign)
        assert isinstance(message, Assign)
        return message

    def take(self, board: int) -> None:
        """Let a board say TAKEN."""
        self.says(board, Taken(self.sessions[board].nonce, self.assignment(board).lease))

    def fetch(self, board: int, until: int = MODEL_BYTES) -> None:
        """Let a board take the model, and grant the sending of all of it if it takes all."""
        lease, size = self.assignment(board).lease, 1 << 15
        for have in range(size, until + 1, size):
            upto = min(MODEL_BYTES if until == MODEL_BYTES else MODEL_BYTES - 1, have + 2 * size)
            self.says(board, Credit(self.sessions[board].nonce, lease, have, upto))

    def result(self, board: int, **changes: object) -> None:
        """Let a board announce its result."""
        a = self.assignment(board)
        n = sum(end - begin for _, begin, end in a.ranges)
        plain = Result(
            a.session, a.run, a.round, a.slice, a.attempt, a.lease, n, 1, 1000 * n, 0, 0, a.base_sha256, MODEL_BYTES,
            "u", False,
        )  # fmt: skip
        self.says(board, dataclasses.replace(plain, **changes))  # type: ignore[arg-type]

    def upload(self, board: int, until: int = MODEL_BYTES) -> None:
        """Let a board send its update."""
        a, size = self.assignment(board), 1 << 15
        for offset in range(0, until, size):
            self.says(board, Chunk(a.session, a.lease, offset), min(size, MODEL_BYTES - offset))

    def commit(self, board: int, joules_uj: int | None = 5000) -> None:
        """Let a board say COMMIT."""
        a = self.assignment(board)
        self.says(board, Commit(a.session, a.lease, joules_uj, joules_uj, "modelled", 0))

    def work(self, board: int) -> None:
        """Let a board do all of its present assignment; the store has not judged it yet."""
        self.take(board)
        self.result(board)
        self.upload(board)
        self.commit(board)

    def energy(self, board: int) -> None:
        """Let a board report its joules."""
        nonce = self.sessions[board].nonce
        self.says(board, Energy(nonce, 1, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0))

    def begin(self) -> Script:
        """Let all boards get ready, and the first plan reach the disk."""
        for board in self.said:
            self.connect(board)
            self.ready(board)
        self.settle()
        return self


# The start -----------------------------------------------------------------------------------------------------------


def test_idle_watts_are_wanted_before_the_first_round_alone_and_only_where_the_run_says_so() -> None:
    for wanted in (True, False):
        script = Script(idle_baseline=wanted)
        for board in (0, 1):
            script.connect(board)
        for board in (0, 1):
            script.ready(board)
        script.tick(script.facts.start_s)
        script.settle()
        script.connect(2)
        loads = [script.last(board, Load) for board in (0, 2)]
        assert [load.idle_baseline for load in loads if isinstance(load, Load)] == [wanted, False]


def test_nothing_is_said_of_work_before_the_plan_is_on_disk() -> None:
    script = Script()
    for board in range(3):
        script.connect(board)
        script.ready(board)
    assert script.machine.phase == "planning"
    assert [[type(m) for m in said] for said in script.said.values()] == [[Load]] * 3
    script.settle()
    assert script.machine.phase == "working"
    assert [[type(m) for m in said] for said in script.said.values()] == [[Load, Begin, Assign, Chunk, Chunk]] * 3


def test_shares_sum_to_the_budget_and_are_what_the_planner_said() -> None:
    script = Script(budget=23).begin()
    assert [sum(e - b for _, b, e in script.assignment(i).ranges) for i in range(3)] == [8, 8, 7]
    assert places(r for i in range(3) for r in script.assignment(i).ranges) == places([(0, 0, 20), (1, 0, 3)])


def test_hello_is_not_ready_and_the_run_waits_until_its_start_deadline() -> None:
    script = Script()
    for board in range(3):
        script.connect(board)
    script.ready(0)
    script.tick(59.9)
    assert script.machine.phase == "starting"
    assert script.machine.wake_s() == 160.0
    script.tick(0.1)
    script.settle()
    assert script.machine.phase == "working"
    assert script.store.ledger.said("missing") == ["starting without b1, b2: not ready"]
    assert sum(e - b for _, b, e in script.assignment(0).ranges) == 24


def test_without_any_ready_board_the_run_ends_at_its_start_deadline() -> None:
    script = Script()
    script.connect(0)
    script.tick(60.0)
    assert script.finish == rm.Finish(False, "no board became ready (waited up to 60 s); see the agents' logs")


def test_boards_whose_trainer_cannot_live_are_not_waited_for() -> None:
    script = Script()
    for board in range(3):
        script.connect(board)
    script.ready(0)
    for board in (1, 2):
        for _ in range(REFUSALS):
            script.says(board, Failed(script.sessions[board].nonce, 0, "trainer-gone", "killed by signal 11"))
    assert script.machine.phase == "planning"


@pytest.mark.parametrize(
    ("changes", "code", "what"),
    [
        ({"manifest_sha256": "other"}, "manifest", "its model differs from the host's"),
        ({"model_bytes": 40}, "manifest", "its model differs from the host's"),
        ({"samples": 21}, "data", "its data hold 21 samples, the host's 20"),
        ({"data_sha256": "b" * 64}, "data", "its data are as many as the host's, but other ones (bbbb"),
    ],
)
def test_a_board_with_another_model_or_other_data_is_refused(changes: dict[str, object], code: str, what: str) -> None:
    script = Script()
    script.connect(0)
    script.ready(0, **changes)
    reject = script.last(0, Reject)
    assert isinstance(reject, Reject)
    assert reject.code == code
    assert what in reject.text
    assert not script.machine.boards[0].usable


def test_a_ready_for_another_run_is_ignored() -> None:
    script = Script()
    script.connect(0)
    script.ready(0, run="earlier")
    assert not script.machine.boards[0].usable


def test_a_policy_that_needs_joules_is_refused_where_no_board_has_a_meter() -> None:
    script = Script(energy_needed=True)
    for board in range(3):
        script.connect(board)
        script.ready(board, energy_known=False)
    assert script.finish is not None
    assert not script.finish.ok
    assert "set required = false to run by time alone" in script.finish.reason


def test_idle_watts_are_told_to_the_policy_once_and_journaled_for_a_resume() -> None:
    script = Script()
    for board in range(3):
        script.connect(board)
        script.ready(board, idle_uw=None if board == 1 else 2_500_000 + board)
    script.settle()
    assert script.planner.idle == {0: 2.5, 2: 2.500002}
    (note,) = [note for note in script.store.ledger.notes if note.kind == "idle"]
    assert (json.loads(note.detail), note.round) == ({"0": 2.5, "2": 2.500002}, 1)
    script.planner.idle.clear()
    for board in range(3):
        script.work(board)
    script.settle()
    assert script.machine.round == 2
    assert not script.planner.idle


def test_one_meter_is_enough_to_begin() -> None:
    script = Script(energy_needed=True)
    for board in range(3):
        script.connect(board)
        script.ready(board, energy_known=board == 2)
    assert script.machine.phase == "planning"


# Results -------------------------------------------------------------------------------------------------------------


def test_accepted_is_said_only_after_the_result_is_on_disk() -> None:
    script = Script().begin()
    script.work(0)
    script.tick(HOLD_S)
    assert Answer not in {type(m) for m in script.said[0]}
    assert script.planner.observed == []
    script.settle()
    assert script.machine.wake_s() == script.now_s + HOLD_S
    script.tick(HOLD_S)
    nonce, lease = script.sessions[0].nonce, script.assignment(0).lease
    assert script.last(0, Answer) == Answer(nonce, lease, "accepted", "", round(HOLD_S * 1e6))
    assert script.planner.observed == [(0, 0.008, 0.005, 8)]


def test_a_board_that_comes_back_while_its_result_is_judged_hears_whether_it_counts_only_once_that_is_known() -> None:
    for refused in (False, True):
        script = Script().begin()
        script.work(0)
        script.lose(0)
        script.connect(0, kept=("run", 1, 0))
        assert type(script.said[0][-1]) is not Load
        lease = script.assignment(0).lease
        script.step(rm.ResultRefused(0, lease, "damaged") if refused else rm.ResultStored(0, lease))
        load = script.last(0, Load)
        assert isinstance(load, Load)
        assert (load.session, load.counted) == (script.sessions[0].nonce, not refused)
        script.ready(0)


def test_a_result_that_went_with_a_broken_connection_is_not_waited_for_until_its_lease_ends() -> None:
    script = Script(boards=1).begin()
    script.take(0)
    script.fetch(0)
    nonce, a = script.sessions[0].nonce, script.assignment(0)
    script.tick(100.0)
    script.says(0, Ping(nonce, a.lease, 1))  # at this pace the lease lasts for more than an hour
    script.says(0, Ping(nonce, a.lease, 24))
    script.tick(UNSAID * script.facts.patience_s - 1)
    script.says(0, Ping(nonce, a.lease, 24))
    assert Cancel not in {type(m) for m in script.said[0]}
    script.tick(1)
    assert script.last(0, Cancel) == Cancel(
        nonce, a.lease, "its work on slice 0 is done, and its result was not announced"
    )


def test_what_no_board_acts_on_goes_along_with_what_it_is_told_next_and_says_how_long_ago_it_was() -> None:
    script = Script().begin()
    for board in range(3):
        script.work(board)
        script.now_s += 0.001
        script.settle(1)
    assert Answer not in {type(m) for said in script.said.values() for m in said}
    script.now_s += 0.002
    script.settle()
    assert not {Answer, RoundClosed} & {type(m) for said in script.said.values() for m in said}
    told = [script.assignment(board) for board in range(3)]
    assert [(a.answered, a.answered_us, a.closed, a.closed_us) for a in told] == [
        (1, 4000, 1, 2000), (2, 3000, 1, 2000), (3, 2000, 1, 2000),
    ]  # fmt: skip


def test_of_several_closed_rounds_the_next_work_has_room_for_none() -> None:
    script = Script().begin()
    held = script.machine.boards[0].held
    held += [(RoundClosed(script.sessions[0].nonce, "run", number, 0), script.now_s) for number in (1, 2)]
    assert script.machine._take_held(0) == (0, 0, 0, 0)
    assert not script.machine.boards[0].held
    sent = [action.message for action in script.machine._out if isinstance(action, rm.Send)]
    assert [m.round for m in sent if isinstance(m, RoundClosed)] == [1, 2]


def test_a_pong_takes_the_answer_along_and_an_answer_to_work_that_its_board_has_let_go_of_is_not_said() -> None:
    script = Script().begin()
    for board in (0, 1):
        script.work(board)
    script.settle()
    script.says(0, Ping(script.sessions[0].nonce, 0, 0))
    assert [type(m) for m in script.said[0][-2:]] == [Answer, Pong]
    script.says(1, Failed(script.sessions[1].nonce, 0, "trainer-gone", "killed by signal 9"))
    script.tick(HOLD_S)
    assert Answer not in {type(m) for m in script.said[1]}


def test_unknown_joules_reach_the_planner_as_none() -> None:
    script = Script().begin()
    script.take(0)
    script.result(0)
    script.upload(0)
    script.commit(0, joules_uj=None)
    script.settle()
    assert script.planner.observed == [(0, 0.008, None, 8)]


def test_the_model_travels_once_and_is_not_sent_to_a_board_that_holds_it() -> None:
    script = Script().begin()
    assert script.assignment(0).base_bytes == MODEL_BYTES
    script.work(0)
    script.settle()
    script.lose(1)
    script.settle()
    assert script.assignment(0).base_bytes == 0, "the same round's model is there"
    script.work(0)
    script.work(2)
    script.settle()
    script.work(2)
    script.settle()
    assert script.machine.round == 2
    assert script.assignment(0).base_bytes == MODEL_BYTES
    assert script.assignment(0).base_sha256 == sha(model_of(1))


def test_after_its_trainer_died_a_board_is_sent_the_model_again() -> None:
    script = Script().begin()
    script.work(0)
    script.settle()
    script.says(0, Failed(script.sessions[0].nonce, 0, "trainer-gone", "killed by signal 9"))
    script.ready(0)
    script.lose(1)
    script.settle()
    assert script.assignment(0).base_bytes == MODEL_BYTES


def test_after_a_failure_a_board_is_sent_the_model_again() -> None:
    script = Script().begin()
    script.work(0)
    script.settle()
    script.lose(1)
    script.settle()
    assert script.assignment(0).base_bytes == 0
    script.says(0, Failed(script.sessions[0].nonce, script.assignment(0).lease, "no-base", "the model was lost"))
    script.lose(2)
    script.settle()
    assert script.assignment(0).base_bytes == MODEL_BYTES


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"samples": 9}, "samples 9 instead of 8"),
        ({"base_sha256": "other"}, "base 'other' instead of"),
        ({"update_bytes": 40}, f"bytes 40 instead of {MODEL_BYTES}"),
        ({"run": "other"}, "run 'other' instead of 'run'"),
        ({"round": 2}, "round 2 instead of 1"),
        ({"slice": 1}, "slice 1 instead of 0"),
        ({"attempt": 1}, "attempt 1 instead of 0"),
        ({"compute_us": 0}, "no compute time"),
    ],
)
def test_a_result_that_is_not_what_was_assigned_is_refused_and_dealt_again(
    changes: dict[str, object], what: str
) -> None:
    script = Script().begin()
    lost = script.assignment(0)
    script.take(0)
    script.result(0, **changes)
    cancel = script.last(0, Cancel)
    assert isinstance(cancel, Cancel)
    assert what in cancel.reason
    script.settle()
    assert [(loss.board, loss.verdict) for loss in script.store.ledger.losses] == [(0, "rejected")]
    again = [s for s in script.store.ledger.slices.values() if s.redealt_from == lost.slice]
    assert places(r for s in again for r in s.ranges) == places(lost.ranges)
    assert {s.board for s in again} == {1, 2}


def test_a_commit_before_the_whole_update_is_refused() -> None:
    script = Script().begin()
    script.take(0)
    script.result(0)
    script.upload(0, until=MODEL_BYTES - (1 << 15))
    script.commit(0)
    answer = script.last(0, Answer)
    assert isinstance(answer, Answer)
    assert (answer.verdict, answer.reason) == ("rejected", "commit before the whole update was here")


@pytest.mark.parametrize("offset", [1 << 15, 1, 2 << 15])
def test_a_chunk_out_of_order_is_refused_and_the_transfer_goes_on(offset: int) -> None:
    script = Script().begin()
    script.take(0)
    script.result(0)
    with pytest.raises(RemoteProtocolError):
        script.says(0, Chunk(script.sessions[0].nonce, 1, offset), 1 << 15)
    script.upload(0)
    script.commit(0)
    script.settle()
    assert len(script.store.ledger.accepted) == 1


def test_credit_and_chunks_without_a_transfer_and_payloads_where_none_belong_are_refused() -> None:
    script = Script().begin()
    nonce, lease = script.sessions[0].nonce, script.assignment(0).lease
    script.take(0)
    bad: list[tuple[Message, int]] = [
        (Chunk(nonce, lease, 0), 5), (Ping(nonce, lease, 0), 5), (Credit(nonce, lease, 9, 9), 0),
    ]  # fmt: skip
    for message, payload_bytes in bad:
        if isinstance(message, Credit):
            script.machine.boards[0].lease.sender = None  # type: ignore[union-attr]
        with pytest.raises(RemoteProtocolError):
            script.says(0, message, payload_bytes)
    assert script.sessions[0].state is State.WORKING


def test_a_refused_update_is_answered_and_dealt_to_others_and_three_in_a_row_bar_the_board() -> None:
    script = Script(rounds=9).begin()
    script.store.verdict = lambda action: "norm" if action.board == 0 else ""
    for _ in range(REFUSALS):
        round_ = script.machine.round
        script.work(0)
        script.settle()
        assert isinstance(script.last(0, Answer), Answer)
        while script.machine.round == round_:
            for board in (1, 2):
                if script.sessions[board].state is State.ASSIGNED:
                    script.work(board)
            script.settle()
    assert script.machine.boards[0].barred
    assert {s.board for (r, _), s in script.store.ledger.slices.items() if r == 4} == {1, 2}
    check_exactly_once(script.store.ledger, script.facts, 3)


def test_an_accepted_update_forgives_earlier_failures() -> None:
    script = Script(rounds=9, budget=24).begin()
    nonce = script.sessions[0].nonce
    for lease_ends in ("failed", "failed", "accepted", "failed", "failed"):
        round_ = script.machine.round
        if lease_ends == "failed":
            script.take(0)
            script.says(0, Failed(nonce, script.assignment(0).lease, "trainer", "oops"))
        else:
            script.work(0)
        script.settle()
        while script.machine.round == round_:
            for board in (1, 2):
                if script.sessions[board].state is State.ASSIGNED:
                    script.work(board)
            script.settle()
    assert not script.machine.boards[0].barred


def test_a_result_in_the_stores_hands_is_not_dealt_again_when_its_board_is_lost() -> None:
    script = Script().begin()
    script.work(0)
    script.lose(0)
    script.settle()
    assert [s.redealt_from for s in script.store.ledger.slices.values()] == [None] * 3
    assert [done.board for done in script.store.ledger.accepted] == [0]
    assert not script.store.ledger.losses


def test_a_result_that_is_refused_after_its_board_was_lost_is_dealt_again_once() -> None:
    script = Script().begin()
    script.store.verdict = lambda action: "norm"
    script.work(0)
    script.lose(0)
    script.settle()
    assert {s.board for s in script.store.ledger.slices.values() if s.redealt_from == 0} == {1, 2}
    assert [loss.verdict for loss in script.store.ledger.losses] == ["rejected"]


# Leases --------------------------------------------------------------------------------------------------------------


def test_a_lease_without_progress_ends_and_the_board_is_told() -> None:
    script = Script().begin()
    for board in range(3):
        script.take(board)
        script.fetch(board)
    assert script.machine.wake_s() == script.now_s + FIRST_LEASE * 30.0
    script.tick(FIRST_LEASE * 30.0)
    assert {type(script.said[board][-1]) for board in range(3)} == {Cancel}
    assert len(script.store.jobs) > 0


@pytest.mark.parametrize("trickle", [0, 1], ids=["nothing moves", "a byte now and then"])
def test_a_model_that_a_board_does_not_take_ends_its_lease_after_a_patience(trickle: int) -> None:
    """The lease itself is of four patiences."""
    script = Script(boards=1).begin()
    script.take(0)
    script.fetch(0, until=1 << 15)
    for i in range(29):
        script.tick(1.0)
        have = (1 << 15) + i * trickle
        script.says(0, Credit(script.sessions[0].nonce, script.assignment(0).lease, have, MODEL_BYTES - 1))
    assert script.machine.wake_s() == script.now_s + 1.0
    script.tick(1.0)
    text = f"no progress of the model for 30 s: {(1 << 15) + 28 * trickle} of {MODEL_BYTES} bytes moved"
    assert script.last(0, Cancel).reason == text  # type: ignore[attr-defined]
    assert script.store.jobs[0].detail == f"b0: {text}"  # type: ignore[union-attr]


@pytest.mark.parametrize("trickle", [0, 1], ids=["nothing comes", "a byte now and then"])
def test_an_update_that_does_not_come_ends_its_lease_after_a_patience(trickle: int) -> None:
    script = Script(boards=1).begin()
    script.take(0)
    script.fetch(0)
    script.result(0)
    script.upload(0, until=1 << 15)
    nonce, lease = script.sessions[0].nonce, script.assignment(0).lease
    for i in range(29):
        script.tick(1.0)
        if trickle:
            script.says(0, Chunk(nonce, lease, (1 << 15) + i), 1)
    script.tick(1.0)
    text = f"no progress of the update for 30 s: {(1 << 15) + 29 * trickle} of {MODEL_BYTES} bytes moved"
    assert script.last(0, Cancel).reason == text  # type: ignore[attr-defined]


@pytest.mark.parametrize("nbytes", [1, 3999, 4001])
def test_a_part_of_a_small_update_is_refused_as_a_whole(nbytes: int) -> None:
    script = Script(boards=1, model_bytes=4000)
    script.connect(0)
    script.ready(0, model_bytes=4000)
    script.settle()
    a = script.assignment(0)
    plain = Result(a.session, a.run, a.round, a.slice, 0, a.lease, 24, 1, 1000, 0, 0, a.base_sha256, 4000, "u", False)
    with pytest.raises(RemoteProtocolError, match="payload"):
        script.says(0, plain, nbytes)


def delivered(nbytes: int, **changes: object) -> tuple[Script, Delivery]:
    """Return the script of one board with a small model that has delivered `nbytes` of its update, and what it said."""
    script = Script(boards=1, model_bytes=4000)
    script.connect(0)
    script.ready(0, model_bytes=4000)
    script.settle()
    a = script.assignment(0)
    plain = Delivery(
        a.session, a.run, a.round, a.slice, 0, a.lease, 24, 1, 24_000, 0, 0, a.base_sha256, 4000, "u", False,
        5000, 10, "modelled", 0,
    )  # fmt: skip
    said = dataclasses.replace(plain, **changes)  # type: ignore[arg-type]
    script.says(0, said, nbytes)
    return script, said


def test_a_delivery_is_result_update_and_joules_in_one() -> None:
    script, said = delivered(4000)
    (job,) = script.store.jobs
    assert isinstance(job, rm.StoreResult)
    assert job.result is said
    assert job.commit == Commit(said.session, said.lease, 5000, 10, "modelled", 0)
    script.settle()
    assert script.planner.observed == [(0, 0.024, 0.005, 24)]
    assert script.machine.round == 2


def test_the_joules_of_a_round_that_come_with_a_delivery_are_written_as_if_they_had_come_alone() -> None:
    split = Energy(1, 9, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)
    script, said = delivered(4000, split=split_of(split))
    joules, result = script.store.jobs
    assert joules == rm.StoreEnergy(0, dataclasses.replace(split, session=said.session))
    assert isinstance(result, rm.StoreResult)
    assert script.machine.boards[0].energies_owed == 0


def test_of_a_delivery_that_the_end_of_the_run_has_overtaken_the_joules_count() -> None:
    script, said = delivered(0)
    script.step(rm.Stop("enough"))
    assert script.finish is None, "the joules of the end are owed"
    split = Energy(said.session, 9, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)
    script.step(rm.Said(0, dataclasses.replace(said, split=split_of(split)), 4000))
    assert rm.StoreEnergy(0, split) in script.store.jobs
    assert script.finish is not None


@pytest.mark.parametrize(
    ("nbytes", "changes", "why"),
    [
        (0, {}, "commit before the whole update was here"),
        (4000, {"samples": 23}, "samples 23 instead of 24"),
        (4000, {"compute_us": 0}, "no compute time"),
    ],
)
def test_a_delivery_that_is_not_what_was_assigned_is_refused_once(
    nbytes: int, changes: dict[str, object], why: str
) -> None:
    script, _ = delivered(nbytes, **changes)
    answer = script.last(0, Answer)
    assert isinstance(answer, Answer)
    assert answer.verdict == "rejected"
    assert why in answer.reason
    assert script.machine.boards[0].failures == 1
    assert not any(isinstance(job, rm.StoreResult) for job in script.store.jobs)


def test_a_boards_own_chunk_limit_binds_the_hosts_chunks() -> None:
    script = Script(boards=1, chunk_bytes=1 << 17, credit_bytes=1 << 17)
    script.connect(0, chunk_max=1 << 15)
    script.ready(0)
    script.settle()
    offsets = [chunk.offset for chunk in script.said[0] if isinstance(chunk, Chunk)]
    assert offsets == list(range(0, MODEL_BYTES, 1 << 15))


def test_a_lease_of_a_known_board_is_twice_its_predicted_time_and_patience() -> None:
    script = Script().begin()
    for board in range(3):
        script.work(board)
    script.settle()
    assert script.assignment(0).lease_s == pytest.approx(2 * 0.001 * 8 + 30.0)


def test_progress_renews_a_lease_and_the_board_is_told_for_how_long() -> None:
    script = Script().begin()
    script.take(0)
    nonce, lease = script.sessions[0].nonce, script.assignment(0).lease
    script.now_s += 100.0
    script.says(0, Ping(nonce, lease, 4))
    assert script.last(0, Pong) == Pong(nonce, lease, 2 * 100.0 + 30.0)
    script.says(0, Ping(nonce, lease + 1, 4))
    assert script.last(0, Pong) == Pong(nonce, lease + 1, 0.0), "there is no such lease"


def test_progress_beyond_the_slice_renews_nothing_twice() -> None:
    """A board that lies about its progress holds its ranges for one patience more, not for ever."""
    script = Script().begin()
    script.take(0)
    nonce, lease = script.sessions[0].nonce, script.assignment(0).lease
    for i in range(20):
        script.now_s += 29.0
        if script.sessions[0].lease != lease:
            break
        script.says(0, Ping(nonce, lease, 1000 + i))
        script.tick()
    assert script.sessions[0].lease != lease
    assert script.now_s < 100.0 + FIRST_LEASE * 30.0 + 2 * 30.0


def test_a_failed_board_is_journaled_with_its_reason() -> None:
    script = Script().begin()
    script.take(0)
    script.says(0, Failed(script.sessions[0].nonce, script.assignment(0).lease, "trainer", "out of memory"))
    script.settle()
    (loss,) = script.store.ledger.losses
    assert (loss.verdict, loss.reason) == ("failed", "trainer: out of memory")


def test_long_reasons_in_any_script_are_cut_so_that_they_travel() -> None:
    script = Script().begin()
    script.store.verdict = lambda action: "é" * 600
    script.work(0)
    script.settle()
    answer = script.last(0, Answer)
    assert isinstance(answer, Answer)
    assert answer.reason == "é" * 256
    script.take(1)
    script.result(1, run="ж" * 250)
    assert script.sessions[1].lease == 0
    script.step(rm.Stop("é" * 600))
    assert script.machine.phase == "ending"


# The end -------------------------------------------------------------------------------------------------------------


def finish_round(script: Script) -> None:
    """Let all boards do a round's work."""
    for board in script.said:
        script.work(board)
    script.settle()


def test_a_run_ends_when_the_joules_of_its_end_are_in() -> None:
    script = Script(rounds=1).begin()
    finish_round(script)
    assert [type(script.said[b][-1]) for b in range(3)] == [End] * 3
    assert [type(script.said[b][-2]) for b in range(3)] == [RoundClosed] * 3
    for board in range(3):
        script.energy(board)
        assert script.finish is None, "that was the round's"
    for board in range(3):
        assert script.finish is None
        script.energy(board)
    assert script.finish == rm.Finish(True, "finished")


def test_joules_that_do_not_come_do_not_hold_the_end_for_long() -> None:
    script = Script(rounds=1).begin()
    finish_round(script)
    for board in (0, 0, 1, 1):
        script.energy(board)
    assert script.machine.wake_s() == script.now_s + 5.0
    script.tick(5.0)
    script.settle()
    assert script.finish == rm.Finish(True, "finished")
    assert script.store.ledger.said("energy-missing") == ["no final joules from b2"]


def test_a_board_that_is_lost_at_the_end_is_not_waited_for() -> None:
    script = Script(rounds=1).begin()
    finish_round(script)
    for board in (0, 0, 1, 1):
        script.energy(board)
    script.lose(2)
    assert script.finish == rm.Finish(True, "finished")


@pytest.mark.parametrize("when", ["starting", "planning", "working", "judging", "closing"])
def test_a_stop_ends_the_run_in_every_phase_and_later_events_change_nothing(when: str) -> None:
    script = Script(rounds=2)
    for board in range(3):
        script.connect(board)
        if when != "starting":
            script.ready(board)
    if when in ("working", "judging", "closing"):
        script.settle()
    if when in ("judging", "closing"):
        for board in range(3):
            script.work(board)
    if when == "closing":
        script.settle(3)
    assert script.machine.phase == {"judging": "working"}.get(when, when)
    script.step(rm.Stop("interrupted"))
    script.step(rm.Stop("once more"))
    script.settle()
    assert script.machine.phase in ("ending", "finished")
    script.tick(5.0)
    assert script.finish == rm.Finish(False, "interrupted")
    assert {session.state for session in script.sessions.values()} <= {State.LOADING, State.READY}
    before = script.machine.wake_s()
    script.tick(1000.0)
    assert script.machine.wake_s() == before == float("inf")


def test_nobody_waits_for_a_board_whose_process_has_ended() -> None:
    script = Script(boards=2)
    script.step(rm.Gone(1, "its agent process ended by SIGKILL", for_good=True))
    script.connect(0)
    script.ready(0)
    assert script.machine.phase == "planning"
    script.settle()
    assert sum(end - begin for _, begin, end in script.assignment(0).ranges) == script.facts.budget
    script.step(rm.Gone(0, "its agent process ended by SIGKILL", for_good=True))
    assert script.finish is not None
    assert script.finish.reason.startswith("no board may go on, the last was ")


def test_a_run_whose_boards_are_all_barred_ends_at_once_and_says_why() -> None:
    script = Script(boards=1).begin()
    for _ in range(REFUSALS):
        script.says(0, Failed(script.sessions[0].nonce, script.assignment(0).lease, "trainer", "oops"))
        script.settle()
    assert script.machine.boards[0].barred
    assert script.machine.phase in ("ending", "finished")
    script.tick(6.0)  # the last joules did not come
    assert script.finish is not None
    assert not script.finish.ok
    assert script.finish.reason.startswith("no board may go on, the last was ")
    assert script.finish.reason.endswith("trainer: oops")


# Laws ----------------------------------------------------------------------------------------------------------------


class Rounds(RuleBasedStateMachine):
    """Boards come, work, fail and go in any order; the store does its work at once or much later."""

    def __init__(self) -> None:
        super().__init__()
        self.script = Script(rounds=3, budget=17, samples=10)

    def _states(self) -> dict[int, State]:
        connected = {b: s for b, s in self.script.sessions.items() if self.script.machine.boards[b].session is s}
        return {board: session.state for board, session in connected.items()}

    @rule(board=st.integers(0, 2))
    def connects(self, board: int) -> None:
        if board in self._states():
            self.script.lose(board, "a new session replaced it")
        self.script.connect(board)

    @rule(board=st.integers(0, 2))
    def gets_ready(self, board: int) -> None:
        if self._states().get(board) is State.LOADING:
            self.script.ready(board)

    @rule(board=st.integers(0, 2), how_far=st.integers(1, 4))
    def works(self, board: int, how_far: int) -> None:
        if self._states().get(board) is not State.ASSIGNED:
            return
        steps = (self.script.take, self.script.result, self.script.upload, self.script.commit)
        for step in steps[:how_far]:
            step(board)

    @rule(board=st.integers(0, 2))
    def commits(self, board: int) -> None:
        if self._states().get(board) is State.UPLOADING:
            self.script.commit(board)

    @rule(board=st.integers(0, 2), trainer=st.booleans())
    def fails(self, board: int, trainer: bool) -> None:
        state = self._states().get(board)
        if state in (None, State.IDLE) or (trainer and state is State.LOADING):
            return
        session = self.script.sessions[board]
        self.script.says(board, Failed(session.nonce, 0 if trainer else session.lease, "oops", ""))

    @rule(board=st.integers(0, 2))
    def is_lost(self, board: int) -> None:
        self.script.lose(board)

    @rule(limit=st.sampled_from([1, 2, 1000]))
    def store_works(self, limit: int) -> None:
        self.script.settle(limit)

    @rule(limit=st.integers(1, 3), bad=st.booleans())
    def store_judges(self, limit: int, bad: bool) -> None:
        self.script.store.verdict = lambda action: "norm" if bad else ""
        self.script.settle(limit)
        self.script.store.verdict = lambda action: ""

    @rule(seconds=st.sampled_from([0.0, 1.0, 31.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.script.tick(seconds)

    @precondition(lambda self: self.script.machine.phase not in ("starting", "finished", "ending"))
    @rule()
    def heals(self) -> None:
        """Let a fresh board do what is left of the round, unless it was barred: nothing may be stuck."""
        script = self.script
        able = [i for i, b in enumerate(script.machine.boards) if not b.barred]
        if not able:
            return
        for board in range(3):
            script.lose(board)
        script.connect(able[0])
        script.ready(able[0])
        round_ = script.machine.round
        for _ in range(100):
            script.settle()
            if script.machine.round != round_ or script.machine.phase in ("ending", "finished"):
                return
            if self._states()[able[0]] is State.ASSIGNED:
                script.work(able[0])
        raise AssertionError(f"round {round_} is stuck in phase {script.machine.phase}")

    @invariant()
    def ledger_holds(self) -> None:
        check_exactly_once(self.script.store.ledger, self.script.facts)

    @invariant()
    def leases_are_the_sessions(self) -> None:
        for board, session in self.script.sessions.items():
            held = self.script.machine.boards[board]
            if held.session is session and held.lease is not None:
                assert held.lease.number == session.lease


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_boards_that_say_goodbye_and_whose_processes_then_end_are_not_waited_for() -> None:
    script = Script(boards=1)
    script.connect(0)
    script.ready(0)
    script.settle()
    script.lose(0, "said goodbye: its parent is gone")
    assert script.machine.phase == "working", "it may come back"
    script.step(rm.Gone(0, "its agent process ended with status 0", for_good=True))
    script.settle()
    assert script.finish is not None
    assert "no board may go on" in script.finish.reason
