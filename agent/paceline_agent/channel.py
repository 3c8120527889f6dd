# SPDX-License-Identifier: Apache-2.0
"""Messages between an agent and its trainer <-> datagrams of msgpack. Pure: knows no socket and no process.

One datagram of a SOCK_SEQPACKET socket is one message: a map of `kind` and the fields that are not None. Both ends
are of one version and on one machine, yet sizes, types and names are checked, so that a fault is found where it
enters. Tensors never pass here; they lie in two mapped files. Instants are the monotonic clock of this machine, which
both ends share.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgpack

from paceline.errors import LocalProtocolError, RemoteProtocolError, SettingsError
from paceline.quick import quicken, together
from paceline.settings import Bounds, load_table
from paceline_agent.pace import Pace

MESSAGE_BYTES = 60 * 1024  # below the default send buffer of a Unix socket, so a message is sent whole or not at all
MAX_RANGES = 64
BROKEN = "protocol"  # reason of the FAILED that is a trainer's last word: its agent has broken the protocol
DETAIL_BYTES = 480  # a detail travels on in a message of the link, whose texts hold 512 bytes

Count = Annotated[int, Bounds(ge=0, lt=1 << 63)]
POSITIONS = 1 << 32
Position = Annotated[int, Bounds(ge=0, lt=POSITIONS)]
_Range = tuple[Position, Position, Position]
Text = Annotated[str, Bounds(le=4096)]


@dataclass(frozen=True)
class Message:
    """What all messages share."""

    kind: ClassVar[str] = ""


# Agent to trainer ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load(Message):
    """Prepare for a run. `options` is a JSON object; `data_dir` empty: the user's cache; `pace` None: full speed."""

    kind = "load"
    run: Text
    task: Text
    options: Text
    seed: Annotated[int, Bounds(ge=0, lt=1 << 64)]
    data_dir: Text
    model_path: Text  # sized by the trainer; the agent writes the base model into it before Work
    update_path: Text  # sized by the trainer; holds the trained model at Done
    pace: Pace | None = None
    regime: Text = "pma"
    host: Text = ""  # endpoint of the host: the way there tells by which of its addresses others can reach this board


@dataclass(frozen=True)
class Work(Message):
    """Train on these positions of permutation(plan_seed, epoch), `batch` at a time."""

    kind = "work"
    lease: Count
    ranges: Annotated[tuple[_Range, ...], Bounds(ge=1, le=MAX_RANGES)]
    batch: Annotated[int, Bounds(ge=1, le=1 << 20)]
    plan_seed: Annotated[int, Bounds(ge=0, lt=1 << 64)]

    @property
    def samples(self) -> int:
        return sum(end - begin for _, begin, end in self.ranges)


@dataclass(frozen=True)
class Cancel(Message):
    """Give up the work under `lease`; work that is over already is none of its business."""

    kind = "cancel"
    lease: Count


@dataclass(frozen=True)
class Input(Message):
    """A tensor of a step of split learning lies in the model's file, at `offset`; by its `crc32` a trainer that is late
    finds that a newer one lies there."""

    kind = "input"
    lease: Count
    step: Count
    redraw: Count
    what: Text
    offset: Count
    size: Count
    crc32: Count


@dataclass(frozen=True)
class Stop(Message):
    """End the process."""

    kind = "stop"


# Trainer to agent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello(Message):
    """First message of a trainer's life."""

    kind = "hello"
    pid: Count


@dataclass(frozen=True)
class Loaded(Message):
    """Model and data are held. The files have `inbox_bytes` (the model's) and `outbox_bytes` (the update's)."""

    kind = "loaded"
    manifest_digest: Text
    model_bytes: Count
    samples: Count
    data_label: Text
    inbox_bytes: Count
    outbox_bytes: Count
    data_sha256: Text
    library: Text = ""  # that trains: "torch 2.13.0", "numpy 2.2.4"; "": the task needs none


@dataclass(frozen=True)
class Edge(Message):
    """Computing began or ended at t_us of the monotonic clock; "wait": it ended, and now others are waited for."""

    kind = "edge"
    lease: Count
    edge: Literal["begin", "end", "wait"]  # the one choice among the messages: _EDGES
    t_us: Count


@dataclass(frozen=True)
class Progress(Message):
    """Samples done so far."""

    kind = "progress"
    lease: Count
    samples: Count


@dataclass(frozen=True)
class Output(Message):
    """A tensor of a step of split learning lies at the beginning of the update's file."""

    kind = "output"
    lease: Count
    step: Count
    redraw: Count
    what: Text
    size: Count


@dataclass(frozen=True)
class Done(Message):
    """The update is complete in its file. `overruns`: steps that took longer than declared, by `late_us` in all.

    `begin_us`, `end_us`: when computing began and ended, where no EDGE has told; else 0.
    """

    kind = "done"
    lease: Count
    samples: Count
    steps: Count
    compute_us: Count
    begin_us: Count
    end_us: Count
    overruns: Count
    late_us: Count
    update_bytes: Count
    update_sha256: Text


@dataclass(frozen=True)
class Failed(Message):
    """The work under `lease` (None: loading) ended without a result; the trainer lives on, unless it says BROKEN."""

    kind = "failed"
    reason: Text
    detail: Text
    lease: Count | None = None


FROM_AGENT: tuple[type[Message], ...] = (Load, Work, Input, Cancel, Stop)
FROM_TRAINER: tuple[type[Message], ...] = (Hello, Loaded, Edge, Progress, Output, Done, Failed)
_EDGES = get_args(get_type_hints(Edge)["edge"])
_KINDS = {cls.kind: cls for cls in (*FROM_AGENT, *FROM_TRAINER)}
quicken(_KINDS.values())


def encode(message: Message) -> bytes:
    """Return the datagram of a message. Raises LocalProtocolError when it is too long."""
    content: dict[str, Any] = {"kind": message.kind}
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if value is not None:
            content[name] = dataclasses.asdict(value) if isinstance(value, Pace) else value
    data: bytes = msgpack.packb(content)
    if len(data) > MESSAGE_BYTES:
        raise LocalProtocolError(f"{message.kind} needs {len(data)} bytes, the limit is {MESSAGE_BYTES}")
    return data


def decode(data: bytes, allowed: tuple[type[Message], ...]) -> Message:
    """Return the message of a datagram, one of `allowed`. Raises RemoteProtocolError for anything else."""
    if len(data) > MESSAGE_BYTES:
        raise RemoteProtocolError(f"a datagram of {len(data)} bytes, the limit is {MESSAGE_BYTES}")
    try:
        content = msgpack.unpackb(data, strict_map_key=True)
    except Exception as error:  # msgpack raises many kinds; each means the same here
        raise RemoteProtocolError(f"not msgpack: {type(error).__name__}") from None
    kind = content.pop("kind", None) if type(content) is dict else None
    cls = _KINDS.get(kind) if type(kind) is str else None
    if cls is None or cls not in allowed:
        raise RemoteProtocolError(f"unexpected message kind {kind!r:.40}")
    plain = _PLAIN.get(cls)
    if plain is not None and (values := plain.values(content)) is not None:
        return cls(*values)
    try:
        return load_table(content, cls, where=cls.kind)
    except SettingsError as error:
        raise RemoteProtocolError(str(error)) from None


class _Plain:
    """A message of bare numbers, texts and ranges: whether it is right is one expression."""

    def __init__(self, contracts: Mapping[str, str], lists: bool) -> None:
        self._names = tuple(contracts)
        self._items = operator.itemgetter(*self._names, self._names[0])  # of one name it would be no tuple
        self._is_right = together(contracts, {"is_range": _is_range, "EDGES": _EDGES})
        self._lists = lists

    def values(self, content: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the fields of a message that is surely right; of others `load_table` says what is wrong, if it is."""
        try:
            values = self._items(content)[:-1]
        except KeyError:
            return None
        if len(content) != len(values) or not self._is_right(*values):
            return None
        return tuple([tuple(map(tuple, v)) if type(v) is list else v for v in values]) if self._lists else values


def _plain(cls: type[Message]) -> _Plain | None:
    """Return the plain form of a message; None: it has none."""
    contracts: dict[str, str] = {}
    hints = {name: hint for name, hint in get_type_hints(cls, include_extras=True).items() if name != "kind"}
    for name, hint in hints.items():
        if get_origin(hint) is Literal:
            contracts[name] = f"{name} in EDGES"
            continue
        kind, bounds = get_args(hint) if get_origin(hint) is Annotated else (None, None)
        if kind not in _FIRST or not isinstance(bounds, Bounds):
            return None
        size = name if kind is int else f"len({name})"
        limits = (("> {}", bounds.gt), (">= {}", bounds.ge), ("< {}", bounds.lt), ("<= {}", bounds.le))
        parts = [f"{size} {sign.format(limit)}" for sign, limit in limits if limit is not None]
        contracts[name] = " and ".join([_FIRST[kind].format(name), *parts])
    return _Plain(contracts, _RANGES in [get_args(hint)[:1] for hint in hints.values()]) if contracts else None


def _is_range(value: object) -> bool:
    return type(value) is list and len(value) == 3 and all(type(n) is int and 0 <= n < POSITIONS for n in value)


_RANGES = (tuple[_Range, ...],)
_FIRST = {
    int: "type({0}) is int",
    str: "type({0}) is str",
    tuple[_Range, ...]: "type({0}) is list and all(map(is_range, {0}))",
}
# A round of a small model is a few messages of this kind, and reading them by the book would be half of its cost.
_PLAIN = {cls: plain for cls in _KINDS.values() if (plain := _plain(cls)) is not None}


def shortened(text: str) -> str:
    """Return what of a detail fits into a message of the link."""
    return text.encode("utf-8", "replace")[:DETAIL_BYTES].decode("utf-8", "ignore")
