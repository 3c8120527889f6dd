# SPDX-License-Identifier: Apache-2.0
"""The channel between agent and trainer: every message survives, everything else is refused."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline_agent import channel as c
from paceline_agent.pace import Pace

PACE = Pace(speed=2, step_fixed_s=0.001, noise=0.1, throttle_after_s=1, throttle_factor=1.5, seed=9)
LOAD = c.Load("run-1", "mnist", '{"batch": 8}', 7, "", "/s/model", "/s/update", PACE)
WORK = c.Work(3, ((0, 10, 20), (1, 0, 4)), 8, (1 << 64) - 1)
SAMPLES: list[c.Message] = [
    LOAD,
    dataclasses.replace(LOAD, pace=None, regime="ddp"),
    WORK,
    c.Cancel(3),
    c.Stop(),
    c.Hello(4711),
    c.Loaded("ab" * 32, 203568, 60000, "MNIST (complete)", 203568, 203568, "ef" * 32),
    c.Edge(3, "begin", 123456789),
    c.Progress(3, 64),
    c.Done(3, 14, 2, 40_000, 0, 0, 1, 300, 203568, "cd" * 32),
    c.Failed("cancelled", "the agent cancelled this lease", 3),
    c.Failed("data", "no such file"),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.kind)
def test_every_message_survives(message: c.Message) -> None:
    allowed = c.FROM_AGENT if type(message) in c.FROM_AGENT else c.FROM_TRAINER
    assert c.decode(c.encode(message), allowed) == message


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.kind)
def test_a_message_from_the_wrong_end_is_refused(message: c.Message) -> None:
    wrong = c.FROM_TRAINER if type(message) in c.FROM_AGENT else c.FROM_AGENT
    with pytest.raises(RemoteProtocolError, match="unexpected message kind"):
        c.decode(c.encode(message), wrong)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.kind)
def test_an_unknown_field_and_a_missing_one_are_refused(message: c.Message) -> None:
    allowed = c.FROM_AGENT + c.FROM_TRAINER
    content = msgpack.unpackb(c.encode(message))
    with pytest.raises(RemoteProtocolError, match="unknown key surprise"):
        c.decode(msgpack.packb(content | {"surprise": 1}), allowed)
    required = [f.name for f in dataclasses.fields(message) if f.default is dataclasses.MISSING]
    for name in required:
        with pytest.raises(RemoteProtocolError, match=f"{name} is missing"):
            c.decode(msgpack.packb({key: value for key, value in content.items() if key != name}), allowed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranges": []}, "ranges"),
        ({"ranges": [[0, 1]]}, "ranges"),
        ({"ranges": [[0, 1, 2]] * 65}, "ranges"),
        ({"ranges": [[0, 1, 1 << 32]]}, "ranges"),
        ({"ranges": [[0, -1, 2]]}, "ranges"),
        ({"batch": 0}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 8.0}, "batch"),
        ({"plan_seed": 1 << 63, "lease": -1}, "lease"),
        ({"lease": None}, "lease"),
    ],
    ids=str,
)
def test_values_outside_their_contract_are_refused(change: dict[str, object], words: str) -> None:
    content = msgpack.unpackb(c.encode(WORK)) | change
    with pytest.raises(RemoteProtocolError, match=words):
        c.decode(msgpack.packb(content), c.FROM_AGENT)


def test_no_datagram_is_longer_than_the_limit() -> None:
    with pytest.raises(LocalProtocolError, match="the limit is 61440"):
        c.encode(dataclasses.replace(LOAD, options="x" * c.MESSAGE_BYTES))
    with pytest.raises(RemoteProtocolError, match="the limit is 61440"):
        c.decode(bytes(c.MESSAGE_BYTES + 1), c.FROM_AGENT)


@given(st.binary(max_size=200))
def test_junk_is_refused_and_nothing_else_happens(junk: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        c.decode(junk, c.FROM_AGENT)


@given(st.text(max_size=2000))
def test_a_shortened_detail_fits_the_link_and_stays_text(text: str) -> None:
    short = c.shortened(text)
    assert len(short.encode()) <= c.DETAIL_BYTES
    assert text.encode("utf-8", "replace").decode().startswith(short)
