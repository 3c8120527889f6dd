# SPDX-License-Identifier: Apache-2.0
"""The wire format: what is encoded comes back, and whatever else arrives is a RemoteProtocolError and nothing worse."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import messages

from paceline import wire
from paceline.errors import LocalProtocolError, RemoteProtocolError

ALL_KINDS = tuple(dict.fromkeys((*wire.FROM_AGENT, *wire.FROM_HOST)))
BY_KIND = {cls.kind: cls for cls in ALL_KINDS}


def _sample_value(name: str, hint: object) -> object:
    table: dict[object, object] = {
        str: "x", int: 3, float: 1.5, bool: True, int | None: None, tuple[wire.Range, ...]: ((0, 2, 9), (1, 0, 1)),
        wire.Split | None: (7, 3, None, *range(12)),
    }  # fmt: skip
    return {"session": 7, "proto_min": wire.PROTOCOL, "proto_max": wire.PROTOCOL}.get(name, table.get(hint))


def sample(cls: type[wire.Message]) -> wire.Message:
    """Return one plain message of a kind."""
    hints = typing.get_type_hints(cls)
    return cls(**{f.name: _sample_value(f.name, hints[f.name]) for f in dataclasses.fields(cls)})  # type: ignore[arg-type]


SAMPLES = [pytest.param(sample(cls), id=cls.kind) for cls in ALL_KINDS]


def refused(header: bytes, allowed: tuple[type[wire.Message], ...] = ALL_KINDS) -> str:
    """Assert that a header is the peer's fault; return what is said about it."""
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode(header, allowed)
    return str(caught.value)


def test_kinds_are_unique_and_every_message_has_one() -> None:
    assert all(BY_KIND)
    assert len(BY_KIND) == len(ALL_KINDS)
    declared = {v for v in vars(wire).values() if isinstance(v, type) and issubclass(v, wire.Message)}
    assert declared - {wire.Message} == set(ALL_KINDS)


@pytest.mark.parametrize("cls", ALL_KINDS, ids=lambda cls: str(cls.kind))
@given(data=st.data())
def test_what_is_encoded_comes_back(cls: type[wire.Message], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    header = wire.encode(message)
    assert len(header) <= wire.HEADER_BYTES
    for shape in (header, memoryview(header)):
        assert wire.decode(shape, (cls,)) == message


@pytest.mark.parametrize("cls", ALL_KINDS, ids=lambda cls: str(cls.kind))
def test_the_largest_message_inside_the_contract_fits_the_header(cls: type[wire.Message]) -> None:
    """So `encode` can refuse for the length only what no caller may send; Assign has 1 + 64 x 28 bytes of ranges."""
    largest: dict[object, object] = {
        str: "x" * wire.TEXT_BYTES,
        int: wire.MAX_INT,
        float: 1e300,
        bool: True,
        int | None: wire.MAX_INT,
        tuple[wire.Range, ...]: ((wire.MAX_INT, wire.MAX_INT - 1, wire.MAX_INT),) * wire.MAX_RANGES,
        wire.Split | None: (wire.MAX_INT,) * len(wire.SPLIT),
    }
    hints = typing.get_type_hints(cls)
    values = {f.name: largest[hints[f.name]] for f in dataclasses.fields(cls)}
    values["session"] = (1 << 64) - 1
    if "options" in values:
        values["options"] = "x" * wire.OPTIONS_BYTES
    message = cls(**values)  # type: ignore[arg-type]
    assert wire.decode(wire.encode(message), (cls,)) == message


@pytest.mark.parametrize("message", SAMPLES)
def test_a_header_cut_short_at_any_byte_is_refused(message: wire.Message) -> None:
    header = wire.encode(message)
    for length in range(len(header)):
        refused(header[:length])


@pytest.mark.parametrize("message", SAMPLES)
@pytest.mark.parametrize("junk", [b"\x00", b"\xc0", b"junk", b"\xc1" * 40], ids=repr)
def test_junk_behind_a_header_is_refused(message: wire.Message, junk: bytes) -> None:
    refused(wire.encode(message) + junk)


@pytest.mark.parametrize("message", SAMPLES)
def test_two_headers_in_one_frame_are_refused(message: wire.Message) -> None:
    refused(wire.encode(message) * 2)


@pytest.mark.parametrize("message", SAMPLES)
def test_a_flipped_bit_gives_a_valid_message_or_a_protocol_error(message: wire.Message) -> None:
    header = bytearray(wire.encode(message))
    for bit in range(8 * len(header)):
        header[bit // 8] ^= 1 << bit % 8
        try:
            got = wire.decode(bytes(header), ALL_KINDS)
        except RemoteProtocolError:
            pass
        else:
            assert wire.decode(wire.encode(got), ALL_KINDS) == got
        header[bit // 8] ^= 1 << bit % 8


@given(st.binary(max_size=300))
def test_random_bytes_are_a_protocol_error(header: bytes) -> None:
    refused(header)


_SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
_JSONISH = st.recursive(
    _SCALARS | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from([m.values[0] for m in SAMPLES]), st.data())
def test_a_field_of_another_shape_is_refused_or_inside_the_contract(message: wire.Message, data: st.DataObject) -> None:
    content = msgpack.unpackb(wire.encode(message))
    name = data.draw(st.sampled_from(sorted(content)))
    content[name] = data.draw(_JSONISH)
    try:
        got = wire.decode(msgpack.packb(content), ALL_KINDS)
    except RemoteProtocolError:
        return
    assert wire.decode(wire.encode(got), ALL_KINDS) == got


@pytest.mark.parametrize("message", SAMPLES)
def test_a_missing_and_an_unknown_field_are_refused(message: wire.Message) -> None:
    content = msgpack.unpackb(wire.encode(message))
    for name in content:
        refused(msgpack.packb({k: v for k, v in content.items() if k != name}))
        refused(msgpack.packb({("other" if k == name else k): v for k, v in content.items()}))
    refused(msgpack.packb({**content, "other": 1}))


WRONG: dict[str, list[object]] = {
    "session": [0, -1, 1.0, "7", None, True],
    "int": [-1, 1 << 63, 1.0, "3", None, True, [3]],
    "float": [math.nan, math.inf, -math.inf, -0.5, 1, "1.5", None],
    "str": ["x" * (wire.TEXT_BYTES + 1), "é" * (wire.TEXT_BYTES // 2 + 1), b"x", 3, None],
    "bool": [0, 1, "true", None],
    "optional": [-1, 1 << 63, 1.0, "3", True],
    "ranges": [
        None, 3, "", {}, [[0, 2]], [[0, 2, 9, 1]], [[0, 9, 2]], [[0, 2, 2]], [[-1, 2, 9]], [[0, 2.0, 9]], [3], ["abc"],
        [[0, 0, 1]] * (wire.MAX_RANGES + 1),
    ],
    "split": [[], [7] * 14, [7] * 16, [0] * 15, [None] * 15, [7, None, *[7] * 13], [7, 7, "x", *[7] * 12], 3, "x" * 15],
}  # fmt: skip
FIELDS: list[tuple[str, type[wire.Message], str]] = [
    ("session", wire.Ping, "session"), ("int", wire.Ping, "lease"), ("float", wire.Pong, "lease_s"),
    ("str", wire.Bye, "reason"), ("bool", wire.Ready, "energy_known"), ("optional", wire.Commit, "compute_uj"),
    ("ranges", wire.Assign, "ranges"), ("split", wire.Delivery, "split"),
]  # fmt: skip
WRONG_VALUES = [(cls, name, value) for what, cls, name in FIELDS for value in WRONG[what]]


@pytest.mark.parametrize(("cls", "name", "value"), WRONG_VALUES, ids=lambda v: f"{v!r:.30}")
def test_values_outside_the_contract_are_refused_on_the_way_in(
    cls: type[wire.Message], name: str, value: object
) -> None:
    content = msgpack.unpackb(wire.encode(sample(cls)))
    content[name] = value
    assert f"{cls.kind}.{name}" in refused(msgpack.packb(content))


@pytest.mark.parametrize(("cls", "name", "value"), WRONG_VALUES, ids=lambda v: f"{v!r:.30}")
def test_values_outside_the_contract_are_our_own_fault_on_the_way_out(
    cls: type[wire.Message], name: str, value: object
) -> None:
    message = dataclasses.replace(sample(cls), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match=f"{cls.kind}.{name}"):
        wire.encode(message)


def test_joules_that_go_along_with_a_delivery_are_those_that_would_have_gone_alone() -> None:
    energy = wire.Energy(7, 1 << 63, "run", 3, 1, 2, 3, None, 5, 6, 7, 8, 9, "modelled", 64, None, 11, 12)
    alone = wire.Delivery(7, "run", 4, 0, 0, 5, 10, 1, 100, 0, 0, "b", 40, "u", False, 1, 1, "modelled", 0)
    along = dataclasses.replace(alone, split=wire.split_of(energy))
    got = wire.decode(wire.encode(along), wire.FROM_AGENT)
    assert isinstance(got, wire.Delivery)
    assert wire.energy_of(got) == energy
    assert wire.energy_of(alone) is None
    missing = {f.name for f in dataclasses.fields(wire.Energy)} - {*wire.SPLIT, "session", "run"}
    assert missing == {"source"}, "a field of ENERGY that a DELIVERY would lose"


def test_text_that_is_no_utf8_is_our_own_fault_on_the_way_out_and_the_peers_on_the_way_in() -> None:
    with pytest.raises(LocalProtocolError, match=r"bye\.reason"):
        wire.encode(wire.Bye(7, "\ud800"))
    refused(wire.encode(wire.Bye(7, "xyz")).replace(b"xyz", b"\xed\xa0\x80"))


@given(st.text(st.characters()), st.integers(0, 40))
def test_a_clipped_text_may_travel_and_one_that_may_is_not_changed(text: str, limit: int) -> None:
    clipped = wire.clip(text, limit)
    assert len(clipped.encode()) <= limit
    assert wire.clip("x" * 2000) == "x" * wire.TEXT_BYTES
    if len(text.encode("utf-8", "replace")) <= limit:
        assert clipped == text.encode("utf-8", "replace").decode()


def test_a_kind_that_the_other_end_may_not_send_is_refused() -> None:
    for cls in ALL_KINDS:
        header = wire.encode(sample(cls))
        for allowed in (wire.FROM_AGENT, wire.FROM_HOST):
            if cls not in allowed:
                assert "unexpected message kind" in refused(header, allowed)


def _nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


BOMBS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "not a map": lambda: msgpack.packb([1, 2]),
    "an empty map": lambda: msgpack.packb({}),
    "no kind": lambda: msgpack.packb({"session": 7}),
    "an unknown kind": lambda: msgpack.packb({"kind": "shutdown", "session": 7}),
    "a kind that is a map": lambda: msgpack.packb({"kind": {"a": 1}}),
    "a long kind": lambda: msgpack.packb({"kind": "x" * 4000}),
    "lists nested 4000 deep": lambda: _nested(4000),
    "maps nested 2000 deep": lambda: b"\x81\xa1k" * 1300 + b"\xc0",
    "a nested list as a value": lambda: b"\x82\xa4kind\xa4ping\xa5lease" + _nested(3000),
    "an array that claims 4 G items": lambda: b"\xdd\xff\xff\xff\xff",
    "a map that claims 4 G items": lambda: b"\xdf\xff\xff\xff\xff",
    "a text that claims 4 GB": lambda: b"\xdb\xff\xff\xff\xff",
    "bytes that claim 4 GB": lambda: b"\xc6\xff\xff\xff\xff",
    "an extension type": lambda: msgpack.packb({"kind": msgpack.ExtType(5, b"x")}),
    "a timestamp": lambda: b"\x81\xa4kind\xd6\xff\x00\x00\x00\x00",
    "integer keys": lambda: msgpack.packb({1: 2}),
    "list keys": lambda: b"\x81\x91\x01\x01",
    "bytes as keys": lambda: msgpack.packb({b"kind": "bye", b"session": 7, b"reason": ""}),
    "a header one byte too long": lambda: b"\x00" * (wire.HEADER_BYTES + 1),
    "a megabyte": lambda: b"\x80" * (1 << 20),
}


@pytest.mark.parametrize("what", BOMBS)
def test_bombs_and_oddities_are_refused(what: str) -> None:
    text = refused(BOMBS[what]())
    assert len(text) < 200, "the text itself must not carry the bomb into the log"


def test_a_header_above_the_limit_is_refused_before_it_is_decoded() -> None:
    assert "limit is 4096" in refused(msgpack.packb({"kind": "bye", "session": 7, "reason": "x" * 5000}))


def test_the_sockets_limit_holds_the_largest_chunk_its_header_and_curve() -> None:
    assert wire.CHUNK_FLOOR <= wire.CHUNK_START <= wire.CHUNK_CEILING
    assert wire.CHUNK_CEILING + wire.HEADER_BYTES + 33 <= wire.MAX_FRAME


# Other protocols ----------------------------------------------------------------------------------------------------


def said(proto: int, **changed: object) -> bytes:
    """Return HELLO as an agent of a protocol would say it; None: it has no such field."""
    plain = wire.Hello(7, proto, proto, "0.9.0", "m", 1 << 18, 9, "run", 2, 3, 1_700_000_000)
    content = {"kind": "hello", **vars(plain), **changed}
    packed: bytes = msgpack.packb({name: value for name, value in content.items() if value is not None})
    return packed


def test_a_hello_of_the_protocol_before_lacks_the_clock_and_nothing_else() -> None:
    assert wire.OLDEST == wire.PROTOCOL - 1
    got = wire.decode(said(wire.OLDEST, clock_s=None), wire.FROM_AGENT)
    assert got == wire.Hello(7, wire.OLDEST, wire.OLDEST, "0.9.0", "m", 1 << 18, 9, "run", 2, 3, 0)
    refused(said(wire.OLDEST, clock_s=None, machine=None))
    refused(said(wire.OLDEST, clock_s=None, more=1))
    refused(said(wire.PROTOCOL, clock_s=None))
    refused(said(wire.PROTOCOL, more=1))


@pytest.mark.parametrize("proto", [wire.PROTOCOL + 1, wire.PROTOCOL + 9, wire.OLDEST - 1])
@pytest.mark.parametrize("changed", [{"more": [1]}, {"machine": 5}, {"pid": None, "clock_s": None}], ids=str)
def test_of_a_hello_without_a_common_protocol_only_what_all_share_counts(
    proto: int, changed: dict[str, object]
) -> None:
    got = wire.decode(said(proto, **changed), wire.FROM_AGENT)
    assert got == wire.Hello(7, proto, proto, "0.9.0", "", 0, 0, "", 0, 0, 0)
    for name in ("session", "proto_min", "proto_max"):
        refused(said(proto, **{**changed, name: None}))
    for name in ("session", "proto_min", "proto_max", "agent_version"):
        refused(said(proto, **{**changed, name: "x" * 600}))


def test_of_a_hello_that_also_speaks_this_protocol_what_is_new_is_passed_over() -> None:
    got = wire.decode(said(wire.PROTOCOL, proto_max=wire.PROTOCOL + 1, more=1), wire.FROM_AGENT)
    assert isinstance(got, wire.Hello)
    assert (got.kept_run, got.clock_s) == ("run", 1_700_000_000)
    refused(said(wire.PROTOCOL, proto_max=wire.PROTOCOL + 1, pid=None))
