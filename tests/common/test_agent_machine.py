# SPDX-License-Identifier: Apache-2.0
"""The agent machine against a scripted host: what a board says and does, event by event, and what it never does."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from paceline import machine as m
from paceline import wire
from paceline.errors import RemoteProtocolError
from paceline.session import Session, State
from paceline.wire import (
    Answer,
    Assign,
    Begin,
    Bye,
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
    Tensor,
    Welcome,
    energy_of,
)  # fmt: skip

KIB = 1024
SIZE = 96 * KIB  # three chunks at the floor
CREDIT = 64 * KIB
RANGES = ((0, 0, 10),)
WINDOW = 8  # the nonce that follows the first session's
TRAINER = m.TrainerReady("manifest", SIZE, 60, "linear", 42, data_sha256="data")
ME = m.Identity("0.1.0", "machine", 41, 1 << 20, "modelled", True)


class Host:
    """The other end of one agent machine: a real session that checks what it hears, and a clock."""

    def __init__(self, identity: m.Identity = ME, kept: m.Kept | None = None) -> None:
        nonces = itertools.count(7)
        self.now_s = 100.0
        self.agent = m.AgentMachine(identity, lambda: next(nonces), kept)
        self.heard: list[Message] = []
        self.done: list[m.Action] = []
        self.pieces: list[tuple[int, int]] = []
        self.hear(self.agent.restart(self.now_s))

    def hear(self, actions: list[m.Action]) -> list[m.Action]:
        """Take the agent's messages, keep its other actions; return those."""
        others: list[m.Action] = []
        for action in actions:
            if isinstance(action, m.Send):
                message = wire.decode(action.header, wire.FROM_AGENT)
                if isinstance(message, Hello):
                    self.session = Session(message.session, is_host=True, patience_s=30.0, now_s=self.now_s)
                self.session.accept(message, self.now_s)
                self.heard.append(message)
                if action.piece is not None:
                    self.pieces.append(action.piece)
            else:
                others.append(action)
        self.done += others
        return others

    def event(self, event: m.Event) -> list[m.Action]:
        """Let something happen on the board; return what it does beside talking."""
        return self.hear(self.agent.step(event, self.now_s))

    def say(self, message: Message, payload_bytes: int = 0) -> list[m.Action]:
        """Say something to the agent through the host's own table."""
        return self.event(m.Received(self.session.send(message, self.now_s), payload_bytes))

    @property
    def nonce(self) -> int:
        """Return the present session's nonce."""
        return self.session.nonce

    def last(self) -> Message:
        """Return what the agent said last."""
        return self.heard[-1]

    def tick(self, seconds: float) -> list[m.Action]:
        """Let time pass."""
        self.now_s += seconds
        return self.event(m.Tick())

    def welcome(self) -> Host:
        """Greet the board."""
        self.say(Welcome(self.nonce, 1, 3, 32 * KIB, CREDIT, 2.0, 30.0))
        return self

    def load(self) -> Host:
        """Bring the board to READY, the run begun."""
        self.welcome()
        self.say(Load(self.nonce, "run", "pma", "linear", "{}", 1, False))
        self.event(TRAINER)
        self.say(Begin(self.nonce, "run"))
        return self

    def assign(self, lease: int = 5, base_bytes: int = SIZE, lease_s: float = 60.0) -> list[m.Action]:
        """Give the board work."""
        return self.say(Assign(self.nonce, "run", 1, 0, 0, lease, lease_s, 4, RANGES, "base", base_bytes))

    def working(self) -> Host:
        """Bring the board to work, the model in place."""
        self.load()
        self.assign()
        for offset in range(0, SIZE, 32 * KIB):
            self.say(Chunk(self.nonce, 5, offset), 32 * KIB)
        self.event(m.BaseReady(5, True))
        return self

    def uploaded(self) -> Host:
        """Bring the board to the point where it waits for the verdict."""
        self.working()
        self.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SIZE, "update"))
        self.say(Credit(self.nonce, 5, 32 * KIB, SIZE))
        self.event(m.Measured(5, 1000, 10, "modelled", 0))
        return self


def kinds(messages: list[Message]) -> list[str]:
    """Return the kinds of messages."""
    return [message.kind for message in messages]


def test_a_whole_round_is_said_and_done_in_order() -> None:
    host = Host().uploaded()
    assert host.say(Answer(host.nonce, 5, "accepted", "", 0)) == [m.Mark("wait")]
    assert host.say(RoundClosed(host.nonce, "run", 1, 0)) == [m.Mark("other"), m.MeasureSplit("run", 1)]
    split = Energy(1, 1, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)
    host.event(m.SplitMeasured(split))
    assert host.say(End(host.nonce, "run", 1, "finished")) == [m.Mark("other"), m.MeasureSplit("run", 1)]
    assert kinds(host.heard) == [
        "hello", "ready", "taken", "credit", "credit", "result", "chunk", "chunk", "chunk", "commit", "energy",
    ]  # fmt: skip
    assert host.heard[0] == Hello(7, 2, 2, "0.1.0", "machine", 1 << 20, 41, "", 0, 0)
    assert host.heard[1] == Ready(7, "run", "manifest", SIZE, 60, "linear", 42, "modelled", True, None, "data")
    assert host.heard[5] == Result(7, "run", 1, 0, 0, 5, 10, 3, 1000, 0, 0, "base", SIZE, "update", False)
    assert host.heard[9] == Commit(7, 5, 1000, 10, "modelled", 0)
    assert host.last() == Energy(7, WINDOW, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)
    assert host.pieces == [(0, 32 * KIB), (32 * KIB, 64 * KIB), (64 * KIB, SIZE)]
    assert host.done[:8] == [
        m.StartTrainer(Load(7, "run", "pma", "linear", "{}", 1, False)),
        m.OpenWindow("run"),
        m.Mark("transfer"),
        m.StoreBase(5, 0, None),
        m.StoreBase(5, 32 * KIB, None),
        m.StoreBase(5, 64 * KIB, "base"),
        m.StartWork(5, 1, RANGES, 4),
        m.Measure(5),
    ]
    assert host.agent.state is State.READY


def test_news_that_was_held_back_is_taken_as_of_its_own_instant() -> None:
    host = Host().uploaded()
    t_us = round(host.now_s * 1e6)
    assert host.say(Answer(host.nonce, 5, "accepted", "", 5000)) == [m.Mark("wait", t_us - 5000)]
    assert host.say(RoundClosed(host.nonce, "run", 1, 2000)) == [
        m.Mark("other", t_us - 2000),
        m.MeasureSplit("run", 1, t_us - 2000),
    ]


def test_news_that_comes_with_the_next_work_is_taken_as_if_it_had_come_before() -> None:
    host = Host().uploaded()
    t_us = round(host.now_s * 1e6)
    more = Assign(host.nonce, "run", 2, 0, 0, 6, 60.0, 4, RANGES, "base", 0, 5, 5000, 1, 2000)
    assert host.say(more) == [
        m.Mark("wait", t_us - 5000),
        m.Mark("other", t_us - 2000),
        m.MeasureSplit("run", 1, t_us - 2000),
        m.Mark("transfer"),
        m.StartWork(6, 2, RANGES, 4),
    ]


def test_a_verdict_on_work_that_was_let_go_of_is_none_on_the_work_that_is_kept() -> None:
    host = Host().uploaded()
    more = Assign(host.nonce, "run", 2, 0, 0, 6, 60.0, 4, RANGES, "base", 0, 4, 5000)
    assert host.say(more)[:2] == [m.Mark("wait"), m.Void(5)], "its joules are wasted: nobody has counted it"


def test_edges_of_the_trainer_mark_what_time_is_spent_on() -> None:
    host = Host().working()
    assert host.event(m.WorkEdge(5, True, 123)) == [m.Mark("compute", 123, 5)]
    assert host.event(m.WorkEdge(5, False, 456)) == [m.Mark("transfer", 456, 5)]
    assert host.event(m.WorkEdge(5, False, 456, True)) == [m.Mark("wait", 456, 5)]


def test_a_model_that_is_there_already_is_worked_from_at_once() -> None:
    host = Host().uploaded()
    host.say(Answer(host.nonce, 5, "accepted", "", 0))
    assert host.assign(6, base_bytes=0) == [m.Mark("transfer"), m.StartWork(6, 1, RANGES, 4)]


@pytest.mark.parametrize("lost_by", ["never had it", "trainer", "load", "half of another", "session"])
def test_work_from_a_model_that_is_not_there_is_declined(lost_by: str) -> None:
    """Whatever the host believes: an update from another model must not come into being."""
    host = Host().load() if lost_by == "never had it" else Host().uploaded()
    if lost_by != "never had it":
        host.say(Answer(host.nonce, 5, "accepted", "", 0))
    if lost_by == "trainer":
        host.event(m.TrainerGone("killed"))
        host.event(TRAINER)
    elif lost_by == "load":
        host.say(Load(host.nonce, "run", "pma", "linear", "{}", 1, False))
        host.event(TRAINER)
    elif lost_by == "half of another":
        host.assign(6)
        host.say(Chunk(host.nonce, 6, 0), 32 * KIB)
        host.say(Cancel(host.nonce, 6, "late"))
    elif lost_by == "session":
        host.hear(host.agent.restart(host.now_s))
        host.load()
    assert host.assign(9, base_bytes=0) == []
    assert host.last() == Failed(host.nonce, 9, "no-base", "the model was lost; send it again")
    assert host.agent.state is host.session.state is State.READY


def test_a_newer_assignment_replaces_the_work_in_hand() -> None:
    host = Host().working()
    actions = host.assign(6)
    assert actions == [m.StopWork(5), m.Void(5), m.Mark("wait"), m.Mark("transfer")]
    assert host.last() == Taken(7, 6)
    assert host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SIZE, "update")) == []


def test_unknown_joules_travel_as_none() -> None:
    host = Host().working()
    host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SIZE, "update"))
    host.say(Credit(host.nonce, 5, 32 * KIB, SIZE))
    host.event(m.Measured(5, None, None, "none", 4))
    assert host.last() == Commit(7, 5, None, None, "none", 4)
    split = Energy(1, 1, "run", 1, None, None, None, None, None, None, None, 9, 0, "none", 4)
    host.event(m.SplitMeasured(split))
    assert host.last() == Energy(7, WINDOW, "run", 1, None, None, None, None, None, None, None, 9, 0, "none", 4)


@pytest.mark.parametrize("joules_first", [True, False])
def test_commit_comes_after_the_last_piece_and_after_the_joules(joules_first: bool) -> None:
    host = Host().working()
    host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SIZE, "update"))
    assert kinds(host.heard)[-3:] == ["result", "chunk", "chunk"], "credit holds the third piece back"
    for joules in (True, False) if joules_first else (False, True):
        assert host.agent.state is State.UPLOADING
        if joules:
            host.event(m.Measured(5, 1000, 10, "modelled", 0))
        else:
            host.say(Credit(host.nonce, 5, 32 * KIB, SIZE))
    assert host.agent.state is State.JUDGING
    assert kinds(host.heard)[-2:] == ["chunk", "commit"]


SMALL = 4 * KIB


def small(host: Host, payload_bytes: int = SMALL) -> list[m.Action]:
    """Load a small model and assign work that brings it along."""
    host.welcome()
    host.say(Load(host.nonce, "run", "pma", "linear", "{}", 1, False))
    host.event(replace(TRAINER, model_bytes=SMALL))
    return host.say(Assign(host.nonce, "run", 1, 0, 0, 5, 60.0, 4, RANGES, "base", SMALL), payload_bytes)


def test_a_small_model_comes_with_the_work_and_its_update_goes_with_the_result() -> None:
    host = Host()
    assert small(host) == [m.Mark("transfer"), m.StoreBase(5, 0, "base")]
    assert host.event(m.BaseReady(5, True)) == [m.StartWork(5, 1, RANGES, 4)]
    assert host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SMALL, "update")) == [m.Measure(5)]
    assert host.agent.wake_s() == host.now_s + m.JOULES_S
    kept = host.event(m.Measured(5, 1000, 10, "modelled", 0))[0]
    assert host.pieces == [(0, SMALL)]
    assert isinstance(kept, m.Keep)
    assert kinds(host.heard)[2:] == ["delivery"], "work that is quickly over needs no TAKEN"
    assert host.last() == Delivery(
        host.nonce, "run", 1, 0, 0, 5, 10, 3, 1000, 0, 0, "base", SMALL, "update", False, 1000, 10, "modelled", 0
    )
    assert host.agent.state is State.JUDGING
    host.tick(m.JOULES_S)
    assert len(host.heard) == 3, "nothing is said twice"
    assert host.say(Answer(host.nonce, 5, "accepted", "", 0)) == [m.Mark("wait")]


SPLIT = Energy(1, 1, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)


def at_work_on_a_small_model() -> Host:
    """Return a board whose small update waits for its joules."""
    host = Host()
    small(host)
    host.event(m.BaseReady(5, True))
    host.say(Begin(host.nonce, "run"))
    host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SMALL, "update"))
    return host


def test_the_split_of_a_round_goes_along_with_a_delivery() -> None:
    host = at_work_on_a_small_model()
    host.event(m.SplitMeasured(SPLIT))
    host.event(m.Measured(5, 1000, 10, "modelled", 0))
    assert kinds(host.heard)[2:] == ["delivery"]
    last = host.last()
    assert isinstance(last, Delivery)
    assert energy_of(last) == replace(SPLIT, session=host.nonce, window=WINDOW)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ([m.Tick()], ["result", "energy"]),
        ([m.Measured(5, 1000, 10, "none", 1)], ["delivery", "energy"]),
        ([m.SplitMeasured(SPLIT), m.Measured(5, 1000, 10, "modelled", 0)], ["energy", "delivery"]),
        ([m.TrainerGone("killed")], ["failed", "energy"]),
    ],
    ids=["the joules are late", "of another source", "two splits", "the trainer dies"],
)
def test_a_split_that_no_delivery_takes_along_is_said_alone(then: list[m.Event], said: list[str]) -> None:
    host = at_work_on_a_small_model()
    host.event(m.SplitMeasured(SPLIT))
    host.now_s += m.JOULES_S
    for event in then:
        host.event(event)
    assert kinds(host.heard)[2:] == said


def test_a_split_that_waits_is_not_said_to_a_host_that_has_gone() -> None:
    host = at_work_on_a_small_model()
    host.event(m.SplitMeasured(SPLIT))
    host.hear(host.agent.restart(host.now_s))
    host.welcome()
    assert kinds(host.heard)[2:] == ["hello"]


def test_a_small_update_does_not_wait_for_joules_that_take_longer() -> None:
    host = Host()
    small(host)
    host.event(m.BaseReady(5, True))
    host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SMALL, "update"))
    host.tick(m.JOULES_S)
    assert kinds(host.heard)[2:] == ["result"]
    assert host.pieces == [(0, SMALL)]
    host.event(m.Measured(5, 1000, 10, "modelled", 0))
    assert host.last() == Commit(host.nonce, 5, 1000, 10, "modelled", 0)


def test_a_kept_small_result_whose_joules_are_known_is_delivered_in_one() -> None:
    host = Host()
    small(host)
    host.event(m.BaseReady(5, True))
    host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SMALL, "update"))
    host.event(m.Measured(5, None, None, "none", 1))
    host.hear(host.agent.restart(host.now_s))
    small(host)
    last = host.last()
    assert isinstance(last, Delivery)
    assert (last.lease, last.compute_uj, last.update_bytes, host.pieces) == (5, None, SMALL, [(0, SMALL)] * 2)


def test_work_that_takes_longer_is_said_to_be_taken() -> None:
    host = Host()
    small(host)
    host.event(m.BaseReady(5, True))
    assert host.agent.wake_s() == host.now_s + m.TAKEN_S
    host.tick(m.TAKEN_S)
    assert host.last() == Taken(host.nonce, 5)
    host.tick(m.TAKEN_S)
    assert kinds(host.heard).count("taken") == 1


@pytest.mark.parametrize("nbytes", [1, SMALL - 1, SMALL + 1])
def test_a_part_of_a_small_model_is_refused_as_a_whole(nbytes: int) -> None:
    host = Host()
    with pytest.raises(RemoteProtocolError, match="payload"):
        small(host, nbytes)


def test_work_that_is_declined_drops_the_model_that_came_along() -> None:
    host = Host().load()
    assert host.say(Assign(host.nonce, "run", 1, 0, 0, 5, 60.0, 4, RANGES, "base", SMALL), SMALL) == []
    assert isinstance(host.last(), Failed)


@pytest.mark.parametrize("trickle", [0, 1], ids=["nothing comes", "a byte now and then"])
def test_a_model_that_does_not_come_is_given_up_after_a_patience(trickle: int) -> None:
    """The host lives and renews the lease, so that neither silence nor the lease ends this wait."""
    host = Host().load()
    host.assign(lease_s=500.0)
    host.say(Chunk(host.nonce, 5, 0), 32 * KIB)
    for i in range(29):
        host.tick(1.0)
        host.say(Pong(host.nonce, 5, 500.0))
        if trickle:
            host.say(Chunk(host.nonce, 5, 32 * KIB + i), 1)
    assert host.agent.wake_s() == host.now_s + 1.0
    assert host.tick(1.0) == [m.StopWork(5), m.Void(5), m.Mark("wait")]
    text = f"no progress of the model for 30 s: {32 * KIB + 29 * trickle} of {SIZE} bytes moved"
    assert [h for h in host.heard if isinstance(h, Failed)] == [Failed(host.nonce, 5, "stalled", text)]


def test_an_update_that_the_host_does_not_take_is_given_up_after_a_patience() -> None:
    host = Host().working()
    host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, SIZE, "update"))
    for _ in range(29):
        host.tick(1.0)
        host.say(Pong(host.nonce, 5, 500.0))
    assert host.tick(1.0) == [m.Mark("wait")], "it is kept"
    text = f"no progress of the update for 30 s: 0 of {SIZE} bytes moved"
    assert [h for h in host.heard if isinstance(h, Failed)] == [Failed(host.nonce, 5, "stalled", text)]


def test_once_all_is_sent_the_lease_alone_is_the_deadline() -> None:
    host = Host().uploaded()
    for _ in range(60):
        host.tick(1.0)
        host.say(Pong(host.nonce, 5, 500.0))
    assert host.agent.state is State.JUDGING


@pytest.mark.parametrize("verdict", ["rejected", "stale"])
def test_what_is_not_counted_is_wasted(verdict: str) -> None:
    host = Host().uploaded()
    assert host.say(Answer(host.nonce, 5, verdict, "norm", 0)) == [m.Void(5), m.Mark("wait")]


@pytest.mark.parametrize("verdict", ["accepted", "duplicate"])
def test_what_is_counted_is_not_wasted(verdict: str) -> None:
    host = Host().uploaded()
    assert host.say(Answer(host.nonce, 5, verdict, "", 0)) == [m.Mark("wait")]


def test_a_cancel_stops_the_work_and_late_events_of_the_old_lease_do_nothing() -> None:
    host = Host().working()
    assert host.say(Cancel(host.nonce, 5, "late")) == [m.StopWork(5), m.Void(5), m.Mark("wait")]
    late: list[m.Event] = [
        m.WorkEdge(5, True, 1), m.WorkProgress(5, 9), m.WorkDone(5, 10, 3, 1000, 0, 0, SIZE, "update"),
        m.WorkFailed(5, "cancelled", ""), m.Measured(5, 1, 1, "modelled", 0), m.BaseReady(5, True),
    ]  # fmt: skip
    for lease in (None, 6):
        if lease:
            host.assign(lease)
        said = len(host.heard)
        for event in late:
            assert host.event(event) == []
        assert len(host.heard) == said
    assert host.agent.state is State.WORKING, "TAKEN was said of the new lease"


def test_a_trainer_that_does_not_let_go_of_cancelled_work_is_killed_and_started_anew() -> None:
    host = Host().working()
    host.say(Cancel(host.nonce, 5, "late"))
    host.now_s += 15.0
    host.say(Pong(host.nonce, 0, 0.0))
    host.event(m.WorkProgress(5, 9))  # it lives, and has not read it yet
    host.now_s += 29.0
    host.say(Pong(host.nonce, 0, 0.0))
    assert host.tick(0.5) == []
    assert host.agent.wake_s() <= host.now_s + 0.5
    (kill,) = host.tick(0.5)
    assert isinstance(kill, m.KillTrainer)
    assert "30 s" in kill.reason
    assert host.tick(1.0) == [], "once is enough"
    actions = host.event(m.TrainerGone("the trainer was ended by SIGKILL"))
    assert any(isinstance(action, m.StartTrainer) for action in actions)


@pytest.mark.parametrize("last", [m.WorkFailed(5, "cancelled", ""), m.WorkDone(5, 10, 3, 1, 0, 0, SIZE, "update")])
def test_a_trainer_that_lets_go_of_cancelled_work_lives(last: m.Event) -> None:
    host = Host().working()
    host.say(Cancel(host.nonce, 5, "late"))
    host.event(last)
    for _ in range(5):
        host.now_s += 20.0
        host.say(Pong(host.nonce, 0, 0.0))
        assert not any(isinstance(action, m.KillTrainer) for action in host.tick(0.0))


def test_work_that_was_not_begun_leaves_nothing_for_the_trainer_to_answer() -> None:
    host = Host().load()
    host.assign(5)
    host.say(Cancel(host.nonce, 5, "late"))
    for _ in range(5):
        host.now_s += 20.0
        host.say(Pong(host.nonce, 0, 0.0))
        assert not any(isinstance(action, m.KillTrainer) for action in host.tick(0.0))


def test_messages_under_another_lease_or_session_are_refused_and_change_nothing() -> None:
    host = Host().working()
    for message in (
        Cancel(7, 4, "old"),
        Chunk(7, 6, 0),
        Credit(7, 4, 0, 9),
        Answer(7, 4, "accepted", "", 0),
        Bye(8, "x"),
    ):
        with pytest.raises(RemoteProtocolError):
            host.agent.step(m.Received(wire.encode(message), 0), host.now_s)
    assert host.agent.state is State.WORKING


def test_a_lease_that_is_not_renewed_ends_by_itself() -> None:
    host = Host().working()
    host.now_s += 25.0
    host.say(Pong(host.nonce, 0, 0.0))
    host.now_s += 25.0
    host.say(Pong(host.nonce, 0, 0.0))
    assert host.agent.wake_s() <= 160.0
    assert host.tick(9.9) == []
    assert host.tick(0.1) == [m.StopWork(5), m.Void(5), m.Mark("wait")]
    assert Failed(7, 5, "lease-expired", "the host did not renew it") in host.heard[-2:]


def test_a_pong_renews_the_lease_it_names() -> None:
    host = Host().working()
    host.now_s += 25.0
    host.say(Pong(host.nonce, 5, 100.0))
    for _ in range(3):
        host.now_s += 25.0
        host.say(Pong(host.nonce, 4, 0.0))
        assert host.tick(0.0) == []
    assert host.agent.state is State.WORKING


def test_pings_tell_progress_and_come_only_when_nothing_else_was_said() -> None:
    host = Host().working()
    assert host.agent.wake_s() == host.now_s + 2.0
    host.event(m.WorkProgress(5, 6))
    host.tick(1.9)
    assert not isinstance(host.last(), Ping)
    host.tick(0.1)
    assert host.last() == Ping(7, 5, 6)
    host.say(Cancel(host.nonce, 5, "late"))
    host.tick(2.0)
    assert host.last() == Ping(7, 0, 0)


def test_a_silent_host_is_left_after_patience_and_greeted_anew() -> None:
    host = Host().working()
    host.tick(29.9)
    (action,) = host.tick(0.1)
    assert action == m.Reconnect("no sign of life from the host for 30 s")
    assert host.hear(host.agent.restart(host.now_s)) == [m.StopWork(5), m.Void(5), m.Mark("wait")]
    assert host.last() == Hello(9, 2, 2, "0.1.0", "machine", 1 << 20, 41, "", 0, 0)


def test_without_an_answer_to_hello_the_agent_sleeps_until_it_tries_again() -> None:
    host = Host()
    assert host.agent.wake_s() == host.now_s + m.GREETING_S, "no ping is due before the greeting"
    assert host.tick(m.GREETING_S - 0.1) == []
    assert isinstance(host.tick(0.1)[0], m.Reconnect)


def test_at_every_wake_up_something_happens_or_the_next_one_is_later() -> None:
    """A driver that sleeps until `wake_s` never spins, whatever the rounding."""
    host = Host().working()
    for i in range(200):
        due_s = host.agent.wake_s()
        host.now_s = max(host.now_s, due_s)
        said = len(host.heard)
        actions = host.event(m.Tick())
        assert actions or len(host.heard) > said or host.agent.wake_s() > due_s, f"spins at {due_s} after {i} wake-ups"
        if any(isinstance(a, m.Reconnect) for a in actions):
            return
    raise AssertionError("silence was never noticed")


def test_a_trainer_that_dies_is_started_again_a_few_times_and_then_no_more() -> None:
    host = Host().working()
    load = Load(7, "run", "pma", "linear", "{}", 1, False)
    assert host.event(m.TrainerGone("killed by signal 9")) == [m.Void(5), m.Mark("wait"), m.StartTrainer(load)]
    assert host.last() == Failed(7, 0, "trainer-gone", "killed by signal 9")
    assert host.session.state is State.LOADING
    host.event(TRAINER)
    assert isinstance(host.last(), Ready)
    starts = 1 + 1
    while host.event(m.TrainerGone("again")):
        starts += 1
    assert starts == m.TRAINER_LIVES
    assert host.last() == Failed(7, 0, "trainer-gone", "again; 3 times in a row, so not started again in this run")


def test_work_that_is_done_gives_the_trainer_its_lives_back() -> None:
    host = Host().uploaded()
    host.say(Answer(host.nonce, 5, "accepted", "", 0))
    for _ in range(m.TRAINER_LIVES - 1):
        assert host.event(m.TrainerGone("killed")), "started again"
        host.event(TRAINER)
    host.assign(6)
    for offset in range(0, SIZE, 32 * KIB):
        host.say(Chunk(host.nonce, 6, offset), 32 * KIB)
    host.event(m.BaseReady(6, True))
    host.event(m.WorkDone(6, 10, 3, 1000, 0, 0, SIZE, "update"))
    assert any(isinstance(action, m.StartTrainer) for action in host.event(m.TrainerGone("killed")))


def test_a_new_run_gives_the_trainer_its_lives_back() -> None:
    host = Host().load()
    for _ in range(m.TRAINER_LIVES):
        host.event(m.TrainerGone("again"))
    assert host.say(Load(host.nonce, "next", "pma", "linear", "{}", 1, False)) != []
    assert host.event(m.TrainerGone("again")) != []


def test_a_trainer_that_cannot_load_says_why() -> None:
    host = Host().welcome()
    host.say(Load(host.nonce, "run", "pma", "linear", "{}", 1, False))
    host.event(m.WorkFailed(0, "data", "no such folder"))
    assert host.last() == Failed(7, 0, "trainer-gone", "data: no such folder")


def test_work_that_fails_is_told_and_the_trainer_lives_on() -> None:
    host = Host().working()
    assert host.event(m.WorkFailed(5, "trainer", "é" * 600)) == [m.Void(5), m.Mark("wait")]
    assert host.last() == Failed(7, 5, "trainer", "é" * 256)
    assert host.agent.state is State.READY


def test_a_model_that_arrives_damaged_is_told() -> None:
    host = Host().load()
    host.assign()
    for offset in range(0, SIZE, 32 * KIB):
        host.say(Chunk(host.nonce, 5, offset), 32 * KIB)
    assert host.event(m.BaseReady(5, False)) == [m.Void(5), m.Mark("wait")]
    assert host.last() == Failed(7, 5, "base-hash", "the model arrived damaged")


def test_an_assignment_of_another_models_size_is_declined() -> None:
    host = Host().load()
    assert host.assign(base_bytes=SIZE + 1) == []
    assert host.last() == Failed(7, 5, "model-bytes", f"assign names a model of {SIZE + 1} bytes")
    assert host.agent.state is host.session.state is State.READY


@pytest.mark.parametrize(("offset", "nbytes"), [(32 * KIB, 32 * KIB), (0, 0), (0, SIZE)], ids=str)
def test_a_chunk_out_of_order_empty_or_beyond_the_credit_is_refused(offset: int, nbytes: int) -> None:
    host = Host().load()
    host.assign()
    with pytest.raises(RemoteProtocolError):
        host.say(Chunk(host.nonce, 5, offset), nbytes)
    assert host.say(Chunk(host.nonce, 5, 0), 32 * KIB) == [m.StoreBase(5, 0, None)]


def test_a_payload_where_none_belongs_is_refused_and_changes_nothing() -> None:
    host = Host().load()
    assign = Assign(7, "run", 1, 0, 0, 5, 60.0, 4, RANGES, "base", SIZE)
    with pytest.raises(RemoteProtocolError, match="assign with a payload"):
        host.agent.step(m.Received(wire.encode(assign), 1), host.now_s)
    assert host.agent.state is State.READY


def test_the_end_of_a_run_ends_its_work_too() -> None:
    host = Host().working()
    actions = host.say(End(host.nonce, "run", 1, "interrupted"))
    assert actions == [m.StopWork(5), m.Void(5), m.Mark("wait"), m.Mark("other"), m.MeasureSplit("run", 1)]
    assert host.agent.state is host.session.state is State.READY
    assert host.say(RoundClosed(host.nonce, "run", 1, 0)) == [], "the window is closed"


@pytest.mark.parametrize("code", ["version", "fenced", "manifest", "data"])
def test_a_refused_agent_ends_with_the_hosts_words(code: str) -> None:
    host = Host().load()
    assert host.say(Reject(host.nonce, code, "what to do")) == [m.Exit(code, "what to do")]


def test_a_host_that_knows_no_such_session_is_greeted_anew() -> None:
    """It may have been started again, or have taken a stopped board for lost."""
    host = Host().load()
    (action,) = host.say(Reject(host.nonce, "session", "say hello first"))
    assert isinstance(action, m.Reconnect)


def test_a_hosts_goodbye_stops_the_work_and_the_agent_waits_for_another() -> None:
    host = Host().working()
    actions = host.say(Bye(host.nonce, "SIGTERM"))
    assert actions == [m.StopWork(5), m.Void(5), m.Mark("wait"), m.Reconnect("the host said goodbye: SIGTERM")]


def test_an_older_life_of_the_host_is_not_obeyed() -> None:
    host = Host().welcome()
    host.hear(host.agent.restart(host.now_s))
    (action,) = host.say(Welcome(host.nonce, 1, 2, 32 * KIB, CREDIT, 2.0, 30.0))
    assert action == m.Reconnect("an older life of the host answered (epoch 2)")


def test_the_agents_own_goodbye_is_said_only_where_somebody_hears_it() -> None:
    host = Host()
    assert host.agent.bye("SIGTERM", host.now_s) is None
    host.load()
    header = host.agent.bye("SIGTERM", host.now_s)
    assert header is not None
    assert wire.decode(header, wire.FROM_AGENT) == Bye(7, "SIGTERM")
    assert host.agent.bye("again", host.now_s) is None


def test_the_trainers_late_answer_to_an_earlier_session_is_not_taken_for_this_ones() -> None:
    host = Host().welcome()
    host.say(Load(host.nonce, "run", "pma", "linear", "{}", 1, False))
    host.hear(host.agent.restart(host.now_s))
    assert host.event(TRAINER) == []
    assert isinstance(host.last(), Hello)
    assert host.event(m.TrainerGone("late")) == []


# A result that is kept ------------------------------------------------------------------------------------------------


def back(host: Host, counted: bool = False) -> None:
    """Let the host die and come back: a new session, up to READY."""
    host.session.state = State.CLOSED
    host.hear(host.agent.restart(host.now_s))
    host.welcome()
    host.say(Load(host.nonce, "run", "pma", "linear", "{}", 1, counted))
    host.event(TRAINER)


def kept_of(host: Host) -> m.Kept:
    """Return what the agent asked to have kept."""
    return next(action.kept for action in reversed(host.done) if isinstance(action, m.Keep))


def test_a_finished_result_is_offered_again_and_waits_to_be_told_from_where_on() -> None:
    host = Host().uploaded()
    kept = kept_of(host)
    assert kept == m.Kept("run", 1, 0, 0, 5, RANGES, "base", 10, 3, 1000, 0, 0, SIZE, "update", kept.energy)
    assert kept.energy == m.Measured(5, 1000, 10, "modelled", 0)
    back(host)
    assert host.heard[-2] == Hello(host.nonce, 2, 2, "0.1.0", "machine", 1 << 20, 41, "run", 1, 0)
    host.pieces.clear()
    host.assign(lease=9)
    assert kinds(host.heard[-2:]) == ["taken", "result"]
    assert host.last() == Result(host.nonce, "run", 1, 0, 0, 9, 10, 3, 1000, 0, 0, "base", SIZE, "update", True)
    assert not host.pieces, "nothing is sent before the host has said what it holds"
    host.say(Credit(host.nonce, 9, 64 * KIB, SIZE))
    assert host.pieces == [(64 * KIB, SIZE)]
    assert host.last() == Commit(host.nonce, 9, 1000, 10, "modelled", 0)
    for offset in range(0, SIZE, 32 * KIB):  # the model that came along; it is kept for what follows
        host.say(Chunk(host.nonce, 9, offset), 32 * KIB)
    host.event(m.BaseReady(9, True))
    host.say(Answer(host.nonce, 9, "accepted", "", 0))
    assert [action for action in host.done if isinstance(action, m.Void | m.StopWork)] == []
    host.assign(lease=10, base_bytes=0)
    assert [action.lease for action in host.done if isinstance(action, m.StartWork)] == [5, 10]


@pytest.mark.parametrize("energy", [None, m.Measured(3, None, None, "none", 1)], ids=["not measured", "unknown"])
def test_what_an_earlier_life_of_the_agent_left_is_offered(energy: m.Measured | None) -> None:
    left = m.Kept("run", 1, 0, 0, 3, RANGES, "base", 10, 3, 1000, 0, 0, SIZE, "update", energy)
    host = Host(kept=left).load()
    host.assign(base_bytes=0)
    host.say(Credit(host.nonce, 5, 0, SIZE))
    if energy is None:
        assert kinds(host.heard)[-1] == "chunk", "what is not measured is not committed"
        host.event(m.Measured(3, None, None, "none", 1))
    assert host.last() == Commit(host.nonce, 5, None, None, "none", 1)


@pytest.mark.parametrize(
    "change",
    [{"round": 2}, {"slice": 1}, {"ranges": ((0, 0, 9),)}, {"base_sha256": "other"}, {"run": "next"}],
    ids=lambda change: next(iter(change)),
)
def test_a_kept_result_answers_its_own_assignment_alone(change: dict[str, object]) -> None:
    host = Host().uploaded()
    back(host)
    assert [action for action in host.done if isinstance(action, m.Void)] == []
    plain = Assign(host.nonce, "run", 1, 0, 0, 9, 60.0, 4, RANGES, "base", SIZE)
    host.say(replace(plain, **change))  # type: ignore[arg-type]
    assert kinds(host.heard)[-1] == "taken"
    assert [action.lease for action in host.done if isinstance(action, m.Void)] == [5], "its joules are wasted"


@pytest.mark.parametrize(("run", "counted", "voids"), [("run", True, []), ("run", False, []), ("next", False, [5])])
def test_a_load_says_what_becomes_of_what_is_kept(run: str, counted: bool, voids: list[int]) -> None:
    host = Host().uploaded()
    host.session.state = State.CLOSED
    host.hear(host.agent.restart(host.now_s))
    host.welcome()
    host.say(Load(host.nonce, run, "pma", "linear", "{}", 1, counted))
    assert [action.lease for action in host.done if isinstance(action, m.Void)] == voids
    host.hear(host.agent.restart(host.now_s))
    keeps = (run, counted) == ("run", False)
    assert host.last() == Hello(
        host.nonce, 2, 2, "0.1.0", "machine", 1 << 20, 41, *(("run", 1, 0) if keeps else ("", 0, 0))
    )


def test_a_model_of_another_size_makes_what_is_kept_worthless() -> None:
    left = m.Kept("run", 1, 0, 0, 3, RANGES, "base", 10, 3, 1000, 0, 0, SIZE // 2, "update", None)
    host = Host(kept=left).load()
    assert [action.lease for action in host.done if isinstance(action, m.Void)] == [3]


def test_a_window_outlives_the_hosts_life_and_not_the_run() -> None:
    host = Host().load()
    back(host)
    host.say(Begin(host.nonce, "run"))
    assert [action for action in host.done if isinstance(action, m.OpenWindow)] == [m.OpenWindow("run")]
    split = Energy(1, 1, "run", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)
    host.event(m.SplitMeasured(split))
    assert host.last() == replace(split, session=host.nonce, window=WINDOW)
    host.say(End(host.nonce, "run", 1, "interrupted"))
    host.say(Begin(host.nonce, "run"))
    assert len([action for action in host.done if isinstance(action, m.OpenWindow)]) == 2


# Split learning -----------------------------------------------------------------------------------------------------


def stepping() -> Host:
    """Bring the board to work that needs no model."""
    host = Host()
    host.welcome()
    host.say(Load(host.nonce, "run", "psl", "digits", "{}", 1, False))
    host.event(replace(TRAINER, inbox_bytes=100 * KIB))
    host.say(Begin(host.nonce, "run"))
    assert host.say(Assign(host.nonce, "run", 1, 0, 0, 5, 60.0, 4, RANGES, "", 0)) == [
        m.Mark("transfer"), m.StartWork(5, 1, RANGES, 4)
    ]  # fmt: skip
    return host


def given(host: Host, offset: int = 0, size: int = 60 * KIB, what: str = "model", step: int = 3) -> Tensor:
    """Return a piece of what the host gives to a step."""
    return Tensor(host.nonce, 5, step, 1, what, size, offset)


def test_a_tensor_comes_in_pieces_and_the_trainer_is_told_of_the_whole() -> None:
    host = stepping()
    first = host.say(given(host), 32 * KIB)
    assert first == [m.Mark("transfer"), m.StoreTensor(5, 3, 1, "model", 60 * KIB, 0, False)]
    assert host.say(given(host, 32 * KIB), 28 * KIB) == [m.StoreTensor(5, 3, 1, "model", 60 * KIB, 32 * KIB, True)]
    assert host.say(given(host, size=7), 7) == [m.StoreTensor(5, 3, 1, "model", 7, 0, True)]


def test_what_the_trainer_puts_out_goes_in_pieces_and_then_the_board_waits() -> None:
    host = stepping()
    assert host.event(m.WorkTensor(5, 3, 1, "smashed", 40 * KIB)) == [m.Mark("wait")]
    assert host.heard[-2:] == [
        Tensor(7, 5, 3, 1, "smashed", 40 * KIB, 0), Tensor(7, 5, 3, 1, "smashed", 40 * KIB, 32 * KIB)
    ]  # fmt: skip
    assert host.pieces == [(0, 32 * KIB), (32 * KIB, 40 * KIB)]
    assert host.event(m.WorkTensor(4, 3, 1, "smashed", 40 * KIB)) == []  # of an older lease


@pytest.mark.parametrize(("what", "counts"), [("update", True), ("done", True), ("smashed", False), ("here", False)])
def test_a_tensor_of_work_that_is_done_gives_the_trainer_its_lives_back(what: str, counts: bool) -> None:
    host = stepping()
    for lease in range(6, 6 + m.TRAINER_LIVES - 1):
        assert any(isinstance(action, m.StartTrainer) for action in host.event(m.TrainerGone("killed")))
        host.event(replace(TRAINER, inbox_bytes=100 * KIB))
        host.say(Assign(host.nonce, "run", 1, 0, 0, lease, 60.0, 4, RANGES, "", 0))
    host.event(m.WorkTensor(lease, 3, 1, what, 40))
    assert any(isinstance(action, m.StartTrainer) for action in host.event(m.TrainerGone("killed"))) == counts


def test_the_account_of_an_epoch_needs_no_update() -> None:
    host = stepping()
    assert host.event(m.WorkDone(5, 10, 3, 1000, 0, 0, 0, "part")) == [m.Measure(5)]
    host.event(m.Measured(5, 1000, 10, "modelled", 0))
    assert host.last() == Delivery(
        7, "run", 1, 0, 0, 5, 10, 3, 1000, 0, 0, "", 0, "part", False, 1000, 10, "modelled", 0
    )
    assert host.pieces == []


@pytest.mark.parametrize(
    ("offset", "size", "what", "nbytes", "said"),
    [
        (0, 101 * KIB, "model", 10, "no room"),
        (0, 10, "joke", 10, "no room"),
        (0, 10, "smashed", 10, "no room"),
        (5, 10, "model", 5, "5 bytes at 5, 0 are here"),
        (0, 10, "model", 11, "11 bytes at 0, 0 are here"),
    ],
    ids=["too-large", "unknown", "the-boards-own", "no-beginning", "too-long"],
)
def test_a_tensor_that_has_no_place_is_refused_and_changes_nothing(
    offset: int, size: int, what: str, nbytes: int, said: str
) -> None:
    host = stepping()
    with pytest.raises(RemoteProtocolError, match=said):
        host.say(given(host, offset, size, what), nbytes)
    assert host.say(given(host, size=7), 7) == [m.StoreTensor(5, 3, 1, "model", 7, 0, True)]


def test_a_piece_of_another_tensor_than_the_one_begun_is_refused() -> None:
    host = stepping()
    host.say(given(host), 32 * KIB)
    with pytest.raises(RemoteProtocolError, match="are here"):
        host.say(given(host, 32 * KIB, step=4), 28 * KIB)
    assert host.say(given(host, 32 * KIB), 28 * KIB)[-1].whole  # type: ignore[union-attr]
    with pytest.raises(RemoteProtocolError, match="0 are here"):
        host.say(given(host, 32 * KIB), 28 * KIB)


def test_tensors_keep_a_lease_and_a_new_connection_ends_the_work() -> None:
    host = stepping()
    host.tick(20.0)
    host.say(given(host, size=7), 7)
    host.tick(20.0)
    host.event(m.WorkTensor(5, 3, 1, "smashed", 40))
    assert m.StopWork(5) not in host.done
    host.hear(host.agent.restart(host.now_s))
    assert m.StopWork(5) in host.done
