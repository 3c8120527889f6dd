# SPDX-License-Identifier: Apache-2.0
"""What an operator and the host daemon say to each other <-> two frames. Pure: knows no socket, clock or thread.

A message is a header (a msgpack map, each field checked) and a payload, which is empty or one JSON object: experiments,
reports and faults are long and of free shape, what the host acts upon is not. docs/PROTOCOL.md, section 8, lists all of
it. Both ends are this package.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgpack

from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline.wire import HEADER_BYTES, MAX_INT, TEXT_BYTES, clip

PROTOCOL = 1  # of the operator link; raised when an old end could misunderstand a new one
DOCUMENT_BYTES = 1 << 20  # of a payload: an experiment is 1 KiB, the status of 1,000 boards 300 KiB

Document = dict[str, Any]


@dataclass(frozen=True)
class Message:
    """What all share. `request`: the operator's number, unique in its connection; what answers it carries it too."""

    kind: ClassVar[str] = ""
    request: int
    document: Document = field(default_factory=dict, kw_only=True)


# Operator to host ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit(Message):
    """Queue an experiment. `name`: what its folder is called after. Document: experiment (TOML text), set (strings)."""

    kind = "submit"
    proto: int
    name: str


@dataclass(frozen=True)
class Status(Message):
    """Answered with a document: the host, its queue, its boards, whom each wait is for."""

    kind = "status"
    proto: int


@dataclass(frozen=True)
class Runs(Message):
    """Answered with a document: what was run, and what is queued."""

    kind = "runs"
    proto: int


@dataclass(frozen=True)
class Stop(Message):
    """End a ticket's runs, or take it from the queue. `ticket` empty: the active one."""

    kind = "stop"
    proto: int
    ticket: str


@dataclass(frozen=True)
class Resume(Message):
    """Queue a ticket again that was stopped or has failed. Answered as SUBMIT is."""

    kind = "resume"
    proto: int
    ticket: str


@dataclass(frozen=True)
class Watch(Message):
    """Tell me how a ticket goes until it ends. `ticket` empty: the active one, else the next in the queue."""

    kind = "watch"
    proto: int
    ticket: str


@dataclass(frozen=True)
class Unwatch(Message):
    """No more news to this request."""

    kind = "unwatch"
    proto: int


@dataclass(frozen=True)
class Drain(Message):
    """Admit no experiment any more, end when the open round is over. Answered as WATCH is, with the host's end."""

    kind = "drain"
    proto: int


@dataclass(frozen=True)
class Divide(Message):
    """Shares for a round of a script's ranks. Document: policy, ranks, budget, minimum, reports of the round before."""

    kind = "divide"
    proto: int
    name: str
    round: int


# Host to operator ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queued(Message):
    """The experiment is on the host's disk as `ticket`; `before` others come first."""

    kind = "queued"
    ticket: str
    before: int


@dataclass(frozen=True)
class Told(Message):
    """The document that was asked for."""

    kind = "told"


@dataclass(frozen=True)
class Stopping(Message):
    """The ticket, which was `was` (active, queued), ends, or has ended."""

    kind = "stopping"
    ticket: str
    was: str


@dataclass(frozen=True)
class News(Message):
    """How the watched ticket goes; at least one a second, so that silence means something."""

    kind = "news"
    ticket: str


@dataclass(frozen=True)
class Ended(Message):
    """The watched ticket is over, with which outcome. Document: text and report, where there is one.

    Without a ticket: the host that was to be drained ends.
    """

    kind = "ended"
    ticket: str
    ok: bool
    reason: str


@dataclass(frozen=True)
class Refused(Message):
    """The request is not carried out; `exit_code` is what the operator's command ends with. Document: errors."""

    kind = "refused"
    exit_code: int


FROM_OPERATOR: tuple[type[Message], ...] = (Submit, Status, Runs, Stop, Resume, Watch, Unwatch, Drain, Divide)
TO_OPERATOR: tuple[type[Message], ...] = (Queued, Told, Stopping, News, Ended, Refused)

NAME_LETTERS = 90  # of an experiment or a script; a number comes behind it
# Names of tickets and experiments become names of folders.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_name(text: str) -> bool:
    """Tell whether a text may name an experiment or a ticket."""
    return _NAME.fullmatch(text) is not None


# Field checks -------------------------------------------------------------------------------------------------------

_Check = Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _is_text(value: Any) -> bool:
    return type(value) is str and clip(value, TEXT_BYTES) == value


def _check_for(name: str, hint: Any) -> _Check:
    if name == "name":
        return lambda value: type(value) is str and is_name(value) and len(value) <= NAME_LETTERS
    if name == "ticket":
        return lambda value: type(value) is str and (not value or is_name(value))
    return {int: _is_int, str: _is_text, bool: lambda value: type(value) is bool}[hint]


def _fields(cls: type[Message]) -> tuple[tuple[str, _Check], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((f.name, _check_for(f.name, hints[f.name])) for f in dataclasses.fields(cls) if f.name != "document")


_KINDS: dict[str, type[Message]] = {cls.kind: cls for cls in (*FROM_OPERATOR, *TO_OPERATOR)}
_FIELDS = {cls: _fields(cls) for cls in _KINDS.values()}


def encode(message: Message) -> tuple[bytes, bytes]:
    """Return header and payload. Raises LocalProtocolError when a field or the document is outside its contract."""
    content: dict[str, Any] = {"kind": message.kind}
    for name, check in _FIELDS[type(message)]:
        content[name] = getattr(message, name)
        if not check(content[name]):
            raise LocalProtocolError(f"{message.kind}.{name} is outside its contract: {content[name]!r}")
    payload = json.dumps(message.document, allow_nan=False).encode() if message.document else b""
    if len(payload) > DOCUMENT_BYTES:
        raise LocalProtocolError(f"{message.kind}: a document of {len(payload)} bytes, the limit is {DOCUMENT_BYTES}")
    header: bytes = msgpack.packb(content)
    return header, payload


def decode(header: bytes | memoryview, payload: bytes | memoryview, allowed: tuple[type[Message], ...]) -> Message:
    """Return the message of two frames, one of `allowed`. Raises RemoteProtocolError for anything else."""
    if len(header) > HEADER_BYTES or len(payload) > DOCUMENT_BYTES:
        raise RemoteProtocolError(f"frames of {len(header)} and {len(payload)} bytes")
    try:
        content = msgpack.unpackb(header, raw=False, strict_map_key=True)
        document = json.loads(bytes(payload), parse_constant=_finite, parse_float=_finite) if len(payload) else {}
    except Exception as error:  # both raise many kinds (RecursionError, too); each means the same here
        raise RemoteProtocolError(f"not msgpack and JSON: {type(error).__name__}") from None
    if type(content) is not dict or type(document) is not dict:
        raise RemoteProtocolError("header or document is not a map")
    kind = content.pop("kind", None)
    cls = _KINDS.get(kind) if type(kind) is str else None
    if cls is None or cls not in allowed:
        raise RemoteProtocolError(f"unexpected message kind {kind!r:.40}")
    fields = _FIELDS[cls]
    if len(content) != len(fields):
        raise RemoteProtocolError(f"{kind} has {len(content)} fields, expected {len(fields)}")
    for name, check in fields:
        if name not in content or not check(content[name]):
            raise RemoteProtocolError(f"{kind}.{name} is missing or outside its contract")
    return cls(**content, document=document)


def _finite(text: str) -> float:
    """Return a number that can be said again: NaN is no JSON, and 1e999 would come out as infinity, which is none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is no JSON")
    return number
