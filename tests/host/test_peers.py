# SPDX-License-Identifier: Apache-2.0
"""The sessions of all boards: whoever is heard is told what holds, and nothing a board sends makes `hear` raise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import messages

from paceline import wire
from paceline.session import LIFE_BITS, State
from paceline.wire import (
    Answer,
    Assign,
    Bye,
    Commit,
    Delivery,
    Energy,
    Hello,
    Load,
    Message,
    Ping,
    Ready,
    Reject,
    Taken,
    Welcome,
    split_of,
)
from paceline_host.peers import Heard, Peers, Terms

LIFE = 1 << LIFE_BITS
TERMS = Terms(host_epoch=4, chunk_bytes=1 << 18, credit_bytes=1 << 20, heartbeat_s=2.0, patience_s=30.0)


def hello(nonce: int, machine: str = "m", **changes: object) -> Hello:
    """Return a board's first message."""
    spoken = {"proto_min": wire.PROTOCOL, "proto_max": wire.PROTOCOL}
    values = {**spoken, "agent_version": "0.1.0", "chunk_max": 1 << 20, "pid": 9}
    kept = {"kept_run": "", "kept_round": 0, "kept_slice": 0}
    return Hello(nonce, machine=machine, **{**values, **kept, **changes})  # type: ignore[arg-type]


def hear(peers: Peers, message: Message, board: str = "pi", now_s: float = 0.0, route: int = 0) -> Heard:
    """Let a board say something, over a connection."""
    return peers.hear(board, wire.encode(message), now_s, route)


def answered(heard: Heard) -> Message:
    """Return the message that goes back."""
    assert heard.answer is not None
    return wire.decode(heard.answer, wire.FROM_HOST)


def greeted(nonce: int = 7) -> Peers:
    """Return peers that one board has greeted."""
    peers = Peers(TERMS)
    hear(peers, hello(nonce))
    return peers


def test_hello_opens_a_session_and_is_answered_with_the_terms() -> None:
    peers = Peers(TERMS)
    heard = hear(peers, hello(7, chunk_max=1 << 16), now_s=5.0)
    assert answered(heard) == Welcome(7, wire.PROTOCOL, 4, 1 << 16, 1 << 20, 2.0, 30.0)
    assert (heard.opened, heard.current, heard.closed, heard.warning, heard.message) == (True, True, "", "", None)
    session = peers.session("pi")
    assert session is not None
    assert session.state is State.IDLE
    assert (peers.connected(), peers.nonce("pi"), peers.hello("pi").pid) == (["pi"], 7, 9)


def test_a_repeated_hello_changes_nothing() -> None:
    peers = greeted()
    before = peers.session("pi")
    assert hear(peers, hello(7)) == Heard()
    assert peers.session("pi") is before


def test_messages_of_the_session_pass_to_the_run() -> None:
    peers = greeted()
    assert hear(peers, Ping(7, 0, 0)) == Heard(message=Ping(7, 0, 0))
    peers.encode("pi", Load(7, "r", "pma", "linear", "{}", 1, False), 1.0)
    ready = Ready(7, "r", "d", 40, 60, "linear", 3, "modelled", True)
    assert hear(peers, ready).message == ready


@pytest.mark.parametrize(
    ("low", "high", "what"),
    [
        (wire.PROTOCOL + 1, wire.PROTOCOL + 3, "upgrade the host, or put its version on the board"),
        (0, wire.OLDEST - 1, "; put its version on the board"),
    ],
)
def test_another_protocol_is_refused_with_what_to_do_and_opens_nothing(low: int, high: int, what: str) -> None:
    peers = Peers(TERMS)
    heard = hear(peers, hello(7, proto_min=low, proto_max=high))
    answer = answered(heard)
    assert isinstance(answer, Reject)
    assert answer.code == "version"
    assert f"{what}, on the host: paceline boards install pi" in answer.text
    assert (heard.opened, heard.current, peers.connected(), peers.dropped["version"]) == (False, False, [], 1)


def test_an_agent_that_speaks_this_protocol_and_newer_ones_is_welcome() -> None:
    heard = hear(Peers(TERMS), hello(7, proto_min=wire.PROTOCOL, proto_max=wire.PROTOCOL + 5))
    assert heard.opened
    assert answered(heard) == Welcome(7, wire.PROTOCOL, 4, 1 << 18, 1 << 20, 2.0, 30.0)


def test_an_agent_of_the_protocol_before_is_welcome_in_that_one() -> None:
    heard = hear(Peers(TERMS), hello(7, proto_min=wire.OLDEST, proto_max=wire.OLDEST))
    assert heard.opened
    assert answered(heard) == Welcome(7, wire.OLDEST, 4, 1 << 18, 1 << 20, 2.0, 30.0)


def test_the_newest_session_wins_and_the_older_one_is_told_so() -> None:
    peers = greeted(7)
    heard = hear(peers, hello(8), now_s=1.0)
    assert (heard.opened, heard.closed, heard.warning) == (True, "a new session replaced it", "")
    old = hear(peers, Ping(7, 0, 0), now_s=2.0)
    answer = answered(old)
    assert isinstance(answer, Reject)
    assert (answer.code, answer.session) == ("fenced", 7)
    assert (old.current, old.message, peers.dropped["fenced"]) == (False, None, 1)
    session = peers.session("pi")
    assert session is not None
    assert (session.nonce, session.heard_s) == (8, 1.0), "the old life is no sign of life of the new one"
    assert hear(peers, Ping(8, 0, 0), now_s=3.0).message == Ping(8, 0, 0)


def test_a_hello_that_comes_late_is_older_than_the_session_that_its_agent_has_opened_since() -> None:
    peers = greeted(LIFE + 2)
    late = hear(peers, hello(LIFE + 1), route=1)
    assert (late.opened, late.answer, late.current, peers.dropped["late"]) == (False, None, False, 1)
    assert hear(peers, Ping(LIFE + 2, 0, 0)).message == Ping(LIFE + 2, 0, 0)
    assert hear(peers, hello(LIFE + 3)).opened
    assert hear(peers, hello(2 * LIFE + 1)).opened, "another life of the agent; numbers of two lives say nothing"


def test_a_board_whose_own_late_hello_was_believed_is_not_called_a_stranger() -> None:
    peers = greeted(LIFE + 2)
    peers.forget("pi")
    hear(peers, hello(LIFE + 1), route=1)
    heard = hear(peers, Ping(LIFE + 2, 0, 0))
    answer = answered(heard)
    assert isinstance(answer, Reject)
    assert (answer.code, heard.current) == ("session", False)
    assert hear(peers, hello(LIFE + 3)).opened


def test_on_a_new_connection_a_board_greets_anew_as_messages_may_be_lost() -> None:
    peers = greeted(7)
    heard = hear(peers, Ping(7, 0, 0), route=1)
    answer = answered(heard)
    assert isinstance(answer, Reject)
    assert (answer.code, heard.closed, heard.current, heard.message) == (
        "session", "its connection was made anew", True, None,
    )  # fmt: skip
    assert peers.session("pi") is None
    assert hear(peers, hello(8), route=1).opened


def test_a_board_that_names_its_lease_on_a_new_connection_has_missed_nothing_and_goes_on() -> None:
    peers = greeted(7)
    peers.encode("pi", Load(7, "run", "pma", "linear", "{}", 1, False, True), 0.0)
    hear(peers, Ready(7, "run", "manifest", 16, 20, "linear", 9, "modelled", True))
    peers.encode("pi", Assign(7, "run", 1, 0, 0, 5, 120.0, 4, ((0, 0, 4),), "a" * 64, 0), 0.0)
    assert hear(peers, Ping(7, 5, 2), route=1).message == Ping(7, 5, 2)
    late = hear(peers, Taken(7, 5), route=0)
    assert (late.message, late.current, peers.dropped["late"]) == (None, False, 1), "what it said before comes too late"
    assert hear(peers, Taken(7, 5), route=1).message == Taken(7, 5)
    assert hear(peers, Ping(7, 4, 2), route=2).closed, "of the lease that it has it has not heard"


def test_another_machine_with_the_same_key_is_called_a_clone() -> None:
    heard = hear(greeted(7), hello(8, machine="other"))
    assert heard.warning.startswith("pi: another machine says hello with the same key; cloned board?")


def test_without_a_session_a_board_is_told_to_say_hello() -> None:
    peers = Peers(TERMS)
    heard = hear(peers, Ping(7, 0, 0))
    answer = answered(heard)
    assert isinstance(answer, Reject)
    assert (answer.code, heard.message, peers.dropped["no-session"]) == ("session", None, 1)


def test_boards_do_not_share_sessions() -> None:
    peers = greeted(7)
    hear(peers, hello(7), board="other")
    assert peers.session("pi") is not peers.session("other")
    hear(peers, Bye(7, "done"), board="other")
    assert peers.connected() == ["pi"]


def test_a_stale_lease_is_dropped_and_counted_and_only_a_commit_is_answered() -> None:
    peers = greeted(7)
    assert hear(peers, Taken(7, 3)) == Heard()
    heard = hear(peers, Commit(7, 3, 1, 1, "modelled", 0))
    assert answered(heard) == Answer(7, 3, "stale", "this lease has ended", 0)
    assert heard.message is None
    whole = Delivery(7, "r", 1, 0, 0, 3, 10, 1, 1000, 0, 0, "b", 40, "u", False, 1, 1, "modelled", 0)
    assert answered(hear(peers, whole)) == Answer(7, 3, "stale", "this lease has ended", 0)
    assert peers.dropped["stale-lease"] == 3


def test_the_joules_of_a_round_that_come_with_a_stale_delivery_are_not_stale() -> None:
    peers = greeted(7)
    energy = Energy(7, 9, "r", 1, 1, 1, 1, 1, 1, 5, 0, 9, 9, "modelled", 0)
    late = Delivery(
        7, "r", 1, 0, 0, 3, 10, 1, 1000, 0, 0, "b", 40, "u", False, 1, 1, "modelled", 0, None, split_of(energy)
    )
    heard = hear(peers, late)
    assert heard.message == energy
    assert answered(heard) == Answer(7, 3, "stale", "this lease has ended", 0)


def test_a_message_out_of_phase_is_dropped_and_counted_and_named() -> None:
    peers = greeted(7)
    heard = hear(peers, Ready(7, "r", "d", 40, 60, "linear", 3, "modelled", True))
    assert heard.message is None
    assert heard.warning == "pi broke the protocol, message dropped: ready does not belong in state idle"
    assert peers.dropped["out-of-phase"] == 1
    assert peers.connected() == ["pi"]


def test_bye_ends_the_session() -> None:
    peers = greeted(7)
    assert hear(peers, Bye(7, "SIGTERM")).closed == "said goodbye: SIGTERM"
    assert peers.connected() == []


def test_silence_ends_a_session_at_the_instant_that_was_announced() -> None:
    peers = greeted(7)
    hear(peers, hello(1), board="other", now_s=10.0)
    assert peers.next_silence_s() == 30.0
    assert peers.silent(29.9) == []
    assert peers.silent(peers.next_silence_s()) == ["pi"]
    assert (peers.connected(), peers.next_silence_s()) == (["other"], 40.0)
    assert Peers(TERMS).next_silence_s() == float("inf")


def test_a_board_that_was_refused_is_not_said_goodbye_to() -> None:
    peers = greeted(7)
    hear(peers, hello(8), board="other")
    peers.encode("pi", Reject(7, "data", "other data"), 0.0)
    assert peers.connected() == ["other"], "a BYE would be against the protocol"


def test_forget_ends_a_session_once() -> None:
    peers = greeted(7)
    assert peers.forget("pi")
    assert not peers.forget("pi")
    assert peers.session("pi") is None


@given(st.binary(max_size=200))
def test_whatever_a_board_sends_is_dropped_and_counted(header: bytes) -> None:
    peers = greeted(7)
    heard = peers.hear("pi", header, 29.0)
    assert (heard.message, heard.answer, heard.current, peers.dropped["malformed"]) == (None, None, False, 1)
    assert heard.warning.startswith("pi sent a malformed message, dropped: ")
    assert peers.silent(30.0) == ["pi"], "a malformed message is no sign of life"


@given(st.lists(st.sampled_from(wire.FROM_AGENT).flatmap(messages), max_size=6), st.booleans())
def test_whatever_messages_a_board_makes_up_hear_never_raises(said: list[Message], same_session: bool) -> None:
    peers = greeted(7)
    for message in said:
        mine = type(message)(**{**message.__dict__, "session": 7}) if same_session else message
        heard = hear(peers, mine)
        assert heard.answer is None or answered(heard).session == mine.session


def test_a_refusal_that_quotes_a_long_text_still_fits_the_wire() -> None:
    heard = hear(Peers(TERMS), hello(7, agent_version="9" * 500, proto_min=90, proto_max=90))
    answer = answered(heard)
    assert isinstance(answer, Reject)
    assert len(answer.text) == wire.TEXT_BYTES
