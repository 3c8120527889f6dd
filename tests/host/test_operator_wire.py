# SPDX-License-Identifier: Apache-2.0
"""The operator's messages: what is encoded comes back, whatever else arrives is refused and never raises otherwise."""

from __future__ import annotations

import dataclasses
import json
import typing
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline_host import operator_wire as w

EVERY = (*w.FROM_OPERATOR, *w.TO_OPERATOR)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,89}", fullmatch=True)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, (1 << 63) - 1), bool: st.booleans(),
    str: st.text(max_size=100).filter(lambda text: text.encode("utf-8", "replace").decode() == text),
}  # fmt: skip


def any_message(cls: type[w.Message]) -> st.SearchStrategy[w.Message]:
    hints = typing.get_type_hints(cls)
    given_fields = {
        f.name: {"name": NAMES, "ticket": NAMES | st.just("")}.get(f.name, VALUES.get(hints[f.name], st.nothing()))
        for f in dataclasses.fields(cls)
        if f.name != "document"
    }
    return st.builds(cls, **given_fields, document=st.dictionaries(st.text(), JSON, max_size=4))


messages = st.sampled_from(EVERY).flatmap(any_message)


@given(messages)
def test_what_is_encoded_comes_back(message: w.Message) -> None:
    assert w.decode(*w.encode(message), EVERY) == message


@given(messages, st.data())
def test_any_cut_or_changed_byte_is_a_message_or_a_refusal(message: w.Message, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in w.encode(message)]
    frame = frames[data.draw(st.integers(0, 1))]
    if frame:
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        del frame[data.draw(st.integers(0, len(frame))) :]
    with suppress(RemoteProtocolError):
        w.decode(bytes(frames[0]), bytes(frames[1]), EVERY)


STOP = {"kind": "stop", "request": 1, "proto": 1, "ticket": "demo-001"}


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"\xff", b""),
        (b"", b""),
        (msgpack.packb([1]), b""),
        (msgpack.packb({**STOP, "kind": "stopping"}), b""),
        (msgpack.packb({**STOP, "kind": 7}), b""),
        (msgpack.packb({**STOP, "more": 1}), b""),
        (msgpack.packb({"kind": "stop", "request": 1, "proto": 1}), b""),
        (msgpack.packb({**STOP, "request": -1}), b""),
        (msgpack.packb({**STOP, "request": True}), b""),
        (msgpack.packb({**STOP, "ticket": "../demo-001"}), b""),
        (msgpack.packb({**STOP, "ticket": ".."}), b""),
        (msgpack.packb({**STOP, "ticket": "a/b"}), b""),
        (msgpack.packb({**STOP, "ticket": "x" * 101}), b""),
        (msgpack.packb(STOP), b"[1]"),
        (msgpack.packb(STOP), b"no json"),
        (msgpack.packb(STOP), b'{"x": NaN}'),
        (msgpack.packb(STOP), b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        (msgpack.packb(STOP), json.dumps({"x": "y" * w.DOCUMENT_BYTES}).encode()),
        (msgpack.packb({**STOP, "ticket": "x" * 5000}), b""),
    ],
)  # fmt: skip
def test_what_is_not_in_the_contract_is_refused(header: bytes, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        w.decode(header, payload, w.FROM_OPERATOR)


@pytest.mark.parametrize(
    "message",
    [
        w.Stop(1, 1, "a/b"),
        w.Submit(1, 1, ""),
        w.Refused(1, -1),
        w.Ended(1, "demo-001", True, "x" * 600),
        w.Told(1, document={"x": "y" * w.DOCUMENT_BYTES}),
    ],
)
def test_our_own_faults_are_found_before_they_travel(message: w.Message) -> None:
    with pytest.raises(LocalProtocolError):
        w.encode(message)
