# SPDX-License-Identifier: Apache-2.0
"""The session's table, from both ends: what may be said when, under which lease, and for how long one may be silent."""

from __future__ import annotations

import pytest

from paceline import wire
from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline.session import NEXT, Fenced, Session, StaleLease, State
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
)  # fmt: skip

N = 7  # the session's nonce
L = 5  # the present lease
SAMPLES: dict[type[Message], Message] = {
    Hello: Hello(N, 1, 1, "0.1.0", "m", 1 << 20, 100, "", 0, 0),
    Ready: Ready(N, "r", "d", 40, 60, "linear", 101, "modelled", True),
    Taken: Taken(N, L),
    Ping: Ping(N, L, 3),
    Result: Result(N, "r", 1, 0, 0, L, 10, 1, 1000, 0, 0, "b", 40, "u", False),
    Delivery: Delivery(N, "r", 1, 0, 0, L, 10, 1, 1000, 0, 0, "b", 40, "u", False, 5, None, "modelled", 0),
    Chunk: Chunk(N, L, 0),
    Tensor: Tensor(N, L, 0, 0, "smashed", 40, 0),
    Credit: Credit(N, L, 0, 40),
    Commit: Commit(N, L, None, None, "none", 0),
    Failed: Failed(N, L, "oops", ""),
    Energy: Energy(N, 1, "r", 1, None, None, None, None, None, None, None, 0, 0, "none", 0),
    Bye: Bye(N, "done"),
    Welcome: Welcome(N, 1, 1, 1 << 18, 1 << 20, 2.0, 30.0),
    Reject: Reject(N, "version", "no"),
    Load: Load(N, "r", "pma", "linear", "{}", 1, False),
    Begin: Begin(N, "r"),
    Assign: Assign(N, "r", 1, 0, 0, L, 60.0, 32, ((0, 0, 10),), "b", 40),
    Pong: Pong(N, L, 60.0),
    Cancel: Cancel(N, L, "late"),
    Answer: Answer(N, L, "accepted", "", 0),
    RoundClosed: RoundClosed(N, "r", 1, 0),
    End: End(N, "r", 1, "finished"),
}
# The way from a fresh session to each state, as (says, message).
AGENT, HOST = "agent", "host"
PATH: list[tuple[str, type[Message]]] = [
    (AGENT, Hello), (HOST, Welcome), (HOST, Load), (AGENT, Ready), (HOST, Assign), (AGENT, Taken), (AGENT, Result),
    (AGENT, Commit),
]  # fmt: skip
STEPS = {
    State.GREETING: 1, State.IDLE: 2, State.LOADING: 3, State.READY: 4, State.ASSIGNED: 5, State.WORKING: 6,
    State.UPLOADING: 7, State.JUDGING: 8,
}  # fmt: skip
LEASED = (Taken, Result, Delivery, Chunk, Tensor, Credit, Commit, Cancel, Answer, Failed)
HOLDING = (State.ASSIGNED, State.WORKING, State.UPLOADING, State.JUDGING)

# The law, written out once more by hand: state -> kind -> where it leads. Each kind comes from the end that may say it.
ANY = {
    "ping": None, "pong": None, "energy": None, "begin": None, "round_closed": None, "end": None,
    "bye": "closed", "reject": "closed",
}  # fmt: skip
END = ANY | {"failed": "ready", "cancel": "ready", "assign": "assigned"}
LAW: dict[str, dict[str, str | None]] = {
    "greeting": {"hello": None, "welcome": "idle", "reject": "closed", "bye": "closed"},
    "idle": ANY | {"load": "loading"},
    "loading": ANY | {"load": None, "ready": "ready", "failed": None},
    "ready": ANY | {"load": "loading", "ready": None, "failed": "loading", "assign": "assigned"},
    "assigned": END
    | {"assign": None, "taken": "working", "result": "uploading", "delivery": "judging", "chunk": None, "tensor": None},
    "working": END | {"chunk": None, "credit": None, "tensor": None, "result": "uploading", "delivery": "judging"},
    "uploading": END | {"chunk": None, "credit": None, "commit": "judging"},
    "judging": END | {"answer": "ready", "chunk": None, "credit": None},
    "closed": {},
}


class Pair:
    """Both ends of one session on a wire that loses nothing."""

    def __init__(self) -> None:
        self.agent = Session(N, is_host=False, patience_s=30.0, now_s=0.0)
        self.host = Session(N, is_host=True, patience_s=30.0, now_s=0.0)

    def say(self, who: str, message: Message, now_s: float = 0.0) -> None:
        """Let one end say it and the other hear it; both ends must agree where that leads."""
        speaker, listener = (self.agent, self.host) if who == AGENT else (self.host, self.agent)
        assert listener.receive(speaker.send(message, now_s), now_s) == message
        assert (speaker.state, speaker.lease) == (listener.state, listener.lease)


def pair_in(state: State) -> Pair:
    """Return two ends that have come to a state by the shortest way."""
    pair = Pair()
    if state is State.CLOSED:
        pair.say(AGENT, SAMPLES[Hello])
        pair.say(HOST, SAMPLES[Reject])
    else:
        for who, cls in PATH[: STEPS[state]]:
            pair.say(who, SAMPLES[cls])
    assert pair.host.state is state
    return pair


def under(cls: type[Message], lease: int) -> Message:
    """Return the sample of a kind under another lease."""
    message = SAMPLES[cls]
    return type(message)(**{**message.__dict__, "lease": lease}) if hasattr(message, "lease") else message


def said_in(cls: type[Message], state: State) -> Message:
    """Return the sample of a kind under the lease that is the present one in that state."""
    return under(cls, L if state in HOLDING or cls is Assign else 0)


def test_the_table_is_the_law() -> None:
    assert set(LAW) == {state.value for state in State} == {state.value for state in NEXT}
    for state, moves in NEXT.items():
        got = {cls.kind: None if landing in (None, state) else landing.value for cls, landing in moves.items()}
        assert got == LAW[state.value], state


def test_the_samples_are_all_messages() -> None:
    assert set(SAMPLES) == set(wire.FROM_AGENT) | set(wire.FROM_HOST)


@pytest.mark.parametrize("cls", SAMPLES, ids=lambda cls: str(cls.kind))
@pytest.mark.parametrize("state", State, ids=lambda state: str(state.value))
def test_each_kind_in_each_state_is_a_move_or_an_error_at_both_ends(state: State, cls: type[Message]) -> None:
    message = said_in(cls, state)
    for who in (AGENT, HOST):
        if cls not in (wire.FROM_AGENT if who == AGENT else wire.FROM_HOST):
            continue
        pair = pair_in(state)
        speaker, listener = (pair.agent, pair.host) if who == AGENT else (pair.host, pair.agent)
        if cls.kind in LAW[state.value]:
            pair.say(who, message)
            landing = LAW[state.value][cls.kind]
            if cls is Failed and message.lease == 0:  # type: ignore[attr-defined]
                landing = "loading"
            assert listener.state.value == (landing or state.value)
            assert listener.lease == (L if listener.state in HOLDING else 0)
            continue
        before = (state, speaker.lease)
        with pytest.raises(LocalProtocolError):
            speaker.send(message, 1.0)
        with pytest.raises(RemoteProtocolError):
            listener.receive(wire.encode(message), 1.0)
        assert (speaker.state, speaker.lease) == (listener.state, listener.lease) == before


@pytest.mark.parametrize("cls", SAMPLES, ids=lambda cls: str(cls.kind))
def test_no_end_says_or_hears_what_is_the_other_ends_to_say(cls: type[Message]) -> None:
    for is_host, allowed in ((True, wire.FROM_AGENT), (False, wire.FROM_HOST)):
        if cls in allowed:
            continue
        end = Session(N, is_host=is_host, patience_s=30.0, now_s=0.0)
        with pytest.raises(RemoteProtocolError):
            end.receive(wire.encode(SAMPLES[cls]), 0.0)
        end = Session(N, is_host=not is_host, patience_s=30.0, now_s=0.0)
        with pytest.raises(LocalProtocolError):
            end.send(SAMPLES[cls], 0.0)


@pytest.mark.parametrize("state", HOLDING, ids=lambda state: str(state.value))
@pytest.mark.parametrize("cls", LEASED, ids=lambda cls: str(cls.kind))
def test_another_lease_is_stale_whatever_the_state(state: State, cls: type[Message]) -> None:
    for lease in (L - 1, L + 1):
        message = under(cls, lease)
        for is_host in (True, False):
            pair = pair_in(state)
            listener, speaker = (pair.host, pair.agent) if is_host else (pair.agent, pair.host)
            if cls not in (wire.FROM_AGENT if is_host else wire.FROM_HOST):
                continue
            with pytest.raises(StaleLease) as caught:
                listener.receive(wire.encode(message), 1.0)
            assert caught.value.message == message
            assert (listener.state, listener.lease) == (state, L)
            with pytest.raises(LocalProtocolError):
                speaker.send(message, 1.0)


def test_after_a_lease_ended_its_late_messages_are_stale() -> None:
    for ending in (SAMPLES[Cancel], SAMPLES[Failed]):
        pair = pair_in(State.WORKING)
        pair.say(HOST if isinstance(ending, Cancel) else AGENT, ending)
        with pytest.raises(StaleLease):
            pair.host.receive(wire.encode(SAMPLES[Result]), 1.0)
        pair.say(HOST, under(Assign, L + 1))
        with pytest.raises(StaleLease):
            pair.host.receive(wire.encode(SAMPLES[Result]), 1.0)
        pair.say(AGENT, under(Taken, L + 1))


def test_ends_that_cross_on_the_wire_settle_on_the_same_state() -> None:
    """CANCEL and RESULT pass each other; so do FAILED and CANCEL, and the loss of the trainer and ASSIGN."""
    pair = pair_in(State.WORKING)
    cancel, result = pair.host.send(SAMPLES[Cancel], 1.0), pair.agent.send(SAMPLES[Result], 1.0)
    pair.agent.receive(cancel, 1.0)
    with pytest.raises(StaleLease):
        pair.host.receive(result, 1.0)
    assert pair.agent.state is pair.host.state is State.READY

    pair = pair_in(State.WORKING)
    cancel, failed = pair.host.send(SAMPLES[Cancel], 1.0), pair.agent.send(SAMPLES[Failed], 1.0)
    for end, header in ((pair.agent, cancel), (pair.host, failed)):
        with pytest.raises(StaleLease):
            end.receive(header, 1.0)
    assert pair.agent.state is pair.host.state is State.READY

    pair = pair_in(State.READY)
    assign, gone = pair.host.send(SAMPLES[Assign], 1.0), pair.agent.send(under(Failed, 0), 1.0)
    with pytest.raises(RemoteProtocolError):
        pair.agent.receive(assign, 1.0)
    pair.host.receive(gone, 1.0)
    assert pair.agent.state is pair.host.state is State.LOADING
    assert pair.agent.lease == pair.host.lease == 0


def test_the_hosts_newest_assignment_holds_whatever_the_board_had_taken_before() -> None:
    """The board's trainer died and was back before the host heard of it; an older ASSIGN arrives after that."""
    pair = pair_in(State.READY)
    first = pair.host.send(SAMPLES[Assign], 1.0)
    gone, ready = pair.agent.send(under(Failed, 0), 1.0), pair.agent.send(SAMPLES[Ready], 1.0)
    pair.agent.receive(first, 2.0)
    taken = pair.agent.send(SAMPLES[Taken], 2.0)
    pair.host.receive(gone, 2.0)
    pair.host.receive(ready, 2.0)
    second = pair.host.send(under(Assign, L + 1), 2.0)
    with pytest.raises(StaleLease):
        pair.host.receive(taken, 3.0)
    pair.agent.receive(second, 3.0)
    assert (pair.agent.state, pair.agent.lease) == (pair.host.state, pair.host.lease) == (State.ASSIGNED, L + 1)


@pytest.mark.parametrize("cls", SAMPLES, ids=lambda cls: str(cls.kind))
def test_a_message_of_another_session_is_fenced_and_is_no_sign_of_life(cls: type[Message]) -> None:
    message = type(SAMPLES[cls])(**{**SAMPLES[cls].__dict__, "session": N + 1})
    for is_host in (True, False):
        if cls not in (wire.FROM_AGENT if is_host else wire.FROM_HOST):
            continue
        pair = pair_in(State.READY)
        listener, speaker = (pair.host, pair.agent) if is_host else (pair.agent, pair.host)
        with pytest.raises(Fenced):
            listener.receive(wire.encode(message), 29.0)
        assert listener.state is State.READY
        assert listener.silent(30.0)
        with pytest.raises(LocalProtocolError):
            speaker.send(message, 29.0)


def test_a_message_that_cannot_be_encoded_changes_nothing() -> None:
    pair = pair_in(State.JUDGING)
    with pytest.raises(LocalProtocolError, match=r"answer\.reason"):
        pair.host.send(Answer(N, L, "rejected", "x" * 600, 0), 1.0)
    assert (pair.host.state, pair.host.lease, pair.host.said_s) == (State.JUDGING, L, 0.0)


def test_silence_is_patience_after_the_last_valid_message() -> None:
    pair = pair_in(State.READY)
    assert not pair.host.silent(29.999)
    assert pair.host.silent(30.0)
    pair.say(AGENT, SAMPLES[Ping], 29.0)
    assert (pair.host.heard_s, pair.agent.said_s, pair.host.silent_at_s) == (29.0, 29.0, 59.0)
    with pytest.raises(RemoteProtocolError):
        pair.host.receive(b"junk", 50.0)
    assert not pair.host.silent(58.999)
    assert pair.host.silent(59.0)


def test_a_stale_or_misplaced_message_is_a_sign_of_life_all_the_same() -> None:
    pair = pair_in(State.READY)
    for message in (under(Taken, L + 3), SAMPLES[Hello]):
        pair.host.heard_s = 0.0
        with pytest.raises(RemoteProtocolError):
            pair.host.receive(wire.encode(message), 20.0)
        assert not pair.host.silent(49.0)


@pytest.mark.parametrize("heard_s", [0.1 * i + 1e5 for i in range(50)])
def test_at_the_instant_of_silence_a_session_is_silent_whatever_the_rounding(heard_s: float) -> None:
    """A driver sleeps until `silent_at_s`; were the session not silent then, it would spin."""
    session = Session(N, is_host=True, patience_s=30.1, now_s=heard_s)
    assert session.silent(session.silent_at_s)
