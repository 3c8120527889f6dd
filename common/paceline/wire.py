# SPDX-License-Identifier: Apache-2.0
"""Messages <-> header bytes. Pure: knows no socket, clock, thread or state; tensors never pass through here.

A message on the link is a frame, a msgpack map of at most HEADER_BYTES (this module), or two: with raw bytes behind, a
piece of a model or update; most messages have none. Every field is checked on the way in (type, range, length,
finiteness) and on the way out, so the code behind it may trust what it gets. docs/PROTOCOL.md lists the messages and
the rules, each with its test.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgpack

from paceline.errors import LocalProtocolError, RemoteProtocolError
from paceline.quick import quicken, together

PROTOCOL = 2  # raised with whatever is said otherwise than before
OLDEST = PROTOCOL - 1  # that a host works with: boards are upgraded after it, one by one
HEADER_BYTES = 4096  # a cap on what is decoded: a megabyte of empty maps would become a million dicts
CHUNK_FLOOR = 1 << 15
INLINE_BYTES = CHUNK_FLOOR  # a model that goes with ASSIGN, its update with RESULT or DELIVERY: no peer takes less
CHUNK_START = 1 << 18  # slow links need small chunks; 64 KiB costs 2.6x in throughput
CHUNK_CEILING = 1 << 20  # nothing is gained above, and above 32 MiB each frame is a fresh mapping
MAX_FRAME = CHUNK_CEILING + 8192  # the sockets' limit: largest chunk, header and 33 bytes of CURVE
TEXT_BYTES = 512
OPTIONS_BYTES = 2048
SCHEDULE_BYTES = 1 << 18  # of a schedule of split learning; a longer epoch's follows as it is used up
MAX_RANGES = 64
MAX_INT = (1 << 63) - 1

Range = tuple[int, int, int]  # (epoch, begin, end): positions begin..end-1 of the epoch's permutation
Split = tuple[int | None, ...]  # what of ENERGY is not in the DELIVERY that it goes along with, in order: SPLIT


@dataclass(frozen=True)
class Message:
    """What all messages share: `session` is the nonce the agent chose for this life of its connection."""

    kind: ClassVar[str] = ""
    session: int


# Agent to host ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello(Message):
    """First message of a session. `machine` tells two boards apart that share one key file.

    `kept_run`, `kept_round`, `kept_slice`: the finished result that no host has answered yet ("" and 0: there is none).
    `clock_s`: the board's wall clock, for a person to be told that it is wrong; 0: from protocol 1, which has no such.
    """

    kind = "hello"
    proto_min: int
    proto_max: int
    agent_version: str
    machine: str
    chunk_max: int
    pid: int
    kept_run: str
    kept_round: int
    kept_slice: int
    clock_s: int = 0


@dataclass(frozen=True)
class Ready(Message):
    """The trainer holds model and data. HELLO is not READY: only ready boards get work (DECISIONS 47)."""

    kind = "ready"
    run: str
    manifest_sha256: str
    model_bytes: int
    samples: int
    data_label: str
    trainer_pid: int
    energy_source: str
    energy_known: bool
    idle_uw: int | None = None  # drawn before the first round, a prior for waiting (DECISIONS 34); None: not measured
    data_sha256: str = ""  # of the training data; "": the task makes them up
    library: str = ""  # that trains: "torch 2.13.0", "numpy 2.2.4"; "": the task needs none


@dataclass(frozen=True)
class Taken(Message):
    """ASSIGN arrived and is being obeyed."""

    kind = "taken"
    lease: int


@dataclass(frozen=True)
class Ping(Message):
    """Sign of life. `samples` is the progress of the work under `lease` (0: none)."""

    kind = "ping"
    lease: int
    samples: int


@dataclass(frozen=True)
class Result(Message):
    """A slice is done; the update follows as chunks, then COMMIT.

    `again`: it was finished under an earlier lease, and the chunks wait for a CREDIT that says from where on.
    """

    kind = "result"
    run: str
    round: int
    slice: int
    attempt: int
    lease: int
    samples: int
    steps: int
    compute_us: int
    overruns: int
    late_us: int
    base_sha256: str
    update_bytes: int
    update_sha256: str
    again: bool


@dataclass(frozen=True)
class Commit(Message):
    """The upload is complete. The energy of the compute window is None when unknown, never 0.

    `bound_uj` is the instrument's worst case, `sampling_uj` the 95 % half-width of what lies between readings; they are
    never added (DECISIONS 32).
    """

    kind = "commit"
    lease: int
    compute_uj: int | None
    bound_uj: int | None
    energy_source: str
    energy_flags: int
    sampling_uj: int | None = None


@dataclass(frozen=True)
class Delivery(Result):
    """RESULT with the update of a small model, and COMMIT, in one: where the joules are known as soon as the work is
    done. `split`: and ENERGY of the same run and source, if it is to be said at the same time.
    """

    kind = "delivery"
    compute_uj: int | None
    bound_uj: int | None
    energy_source: str
    energy_flags: int
    sampling_uj: int | None = None
    split: Split | None = None


@dataclass(frozen=True)
class Failed(Message):
    """The work under `lease` (0: loading) ended without a result."""

    kind = "failed"
    lease: int
    reason: str
    detail: str


@dataclass(frozen=True)
class Energy(Message):
    """Cumulative five-way split since run start, as of the end of `round` (DECISIONS 29). None: unknown.

    `window` names the window: it outlives sessions, and a board that was started anew opens another. The uncertainties
    are those of the total; `split_uj`: how much of compute may belong to its neighbours (DECISIONS 31).
    """

    kind = "energy"
    window: int
    run: str
    round: int
    compute_uj: int | None
    wait_uj: int | None
    transfer_uj: int | None
    wasted_uj: int | None
    other_uj: int | None
    total_uj: int | None
    bound_uj: int | None
    span_us: int
    covered_us: int
    source: str
    flags: int
    sampling_uj: int | None = None
    split_uj: int | None = None
    wait_us: int = 0


# Both ways ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor(Message):
    """A piece of what one step of split learning exchanges; the bytes, in order and without gaps, are the payload.

    `what` is one of TENSORS_FROM_HOST or TENSORS_FROM_AGENT, `size` the bytes of all pieces. `redraw` tells how often
    the step was begun before (DECISIONS 23).
    """

    kind = "tensor"
    lease: int
    step: int
    redraw: int
    what: str
    size: int
    offset: int


@dataclass(frozen=True)
class Chunk(Message):
    """A piece of the model (to the board) or of the update (to the host); the bytes are the payload frame."""

    kind = "chunk"
    lease: int
    offset: int


@dataclass(frozen=True)
class Credit(Message):
    """The receiver of a transfer holds `have` bytes and allows sending up to offset `upto`."""

    kind = "credit"
    lease: int
    have: int
    upto: int


@dataclass(frozen=True)
class Bye(Message):
    """Orderly end of a session, from either side."""

    kind = "bye"
    reason: str


# Host to agent ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Welcome(Message):
    """Answer to HELLO: what this session uses. Agents obey the highest host epoch they have seen."""

    kind = "welcome"
    proto: int
    host_epoch: int
    chunk_bytes: int
    credit_bytes: int
    heartbeat_s: float
    patience_s: float


@dataclass(frozen=True)
class Reject(Message):
    """The host will not work with this session; `text` says what to do. The codes: docs/PROTOCOL.md."""

    kind = "reject"
    code: str
    text: str


@dataclass(frozen=True)
class Load(Message):
    """Prepare a trainer. `options` is a JSON object of the task's options; the data folder is the board's own.

    `counted`: the result that HELLO named is on the host's disk already. `idle_baseline`: no round has begun, so a
    board with a sensor may measure first what it draws while nothing is done.
    """

    kind = "load"
    run: str
    regime: str
    task: str
    options: str
    seed: int
    counted: bool
    idle_baseline: bool = True


@dataclass(frozen=True)
class Begin(Message):
    """The run has begun: open the energy window (DECISIONS 29)."""

    kind = "begin"
    run: str


@dataclass(frozen=True)
class Assign(Message):
    """A lease on one slice. `base_bytes` 0: the board already holds the model named by `base_sha256`.

    `answered` (a lease, 0: none) is an ANSWER, accepted, of `answered_us` ago; `closed` (a round, 0: none) is a
    ROUND_CLOSED of this run, of `closed_us` ago. Both hold from before this message on.
    """

    kind = "assign"
    run: str
    round: int
    slice: int
    attempt: int
    lease: int
    lease_s: float
    batch: int
    ranges: tuple[Range, ...]
    base_sha256: str
    base_bytes: int
    answered: int = 0
    answered_us: int = 0
    closed: int = 0
    closed_us: int = 0


@dataclass(frozen=True)
class Pong(Message):
    """Answer to PING; renews the lease for `lease_s` more seconds (0: there is no such lease any more)."""

    kind = "pong"
    lease: int
    lease_s: float


@dataclass(frozen=True)
class Cancel(Message):
    """Stop the work under `lease` and forget it; its joules are wasted."""

    kind = "cancel"
    lease: int
    reason: str


@dataclass(frozen=True)
class Answer(Message):
    """Verdict on a result: accepted (it is on the host's disk), duplicate, stale or rejected.

    `ago_us`: so long before it was sent the verdict stood; from then on the board was waiting.
    """

    kind = "answer"
    lease: int
    verdict: str
    reason: str
    ago_us: int


@dataclass(frozen=True)
class RoundClosed(Message):
    """The last contribution of `round` was accepted, `ago_us` before this was sent: there waiting ended.

    Answer with ENERGY as of that instant.
    """

    kind = "round_closed"
    run: str
    round: int
    ago_us: int


@dataclass(frozen=True)
class End(Message):
    """The run is over: close the energy window, answer with ENERGY of `round`."""

    kind = "end"
    run: str
    round: int
    reason: str


# Split learning: who gives how much; the client part; dloss/dsmashed. Ranks: the group and its shares; calls without
# content. From boards: labels and what the cut layer put out; dloss/d(client part); what a rank says of itself.
TENSORS_FROM_HOST = ("schedule", "model", "gradient", "call", "give", "close")
TENSORS_FROM_AGENT = ("smashed", "update", "here", "store", "broken", "done")
# Bits of the flags that travel with joules. saturated: there may have been more; overflow: only the chip's own
# arithmetic is void; estimated: edges may have moved more than a tenth of the compute joules; lost, stale: readings
# were missing or not fresh; frozen: the value never moves, whatever is drawn.
ENERGY_FLAGS = {
    "unknown": 1, "gap": 2, "reset": 4, "saturated": 8, "overflow": 16, "negative": 32, "estimated": 64, "lost": 128,
    "stale": 256, "frozen": 512,
}  # fmt: skip
# What `split` of DELIVERY holds of ENERGY; run and source are DELIVERY's own.
SPLIT = (
    "window", "round", "compute_uj", "wait_uj", "transfer_uj", "wasted_uj", "other_uj", "total_uj", "bound_uj",
    "span_us", "covered_us", "flags", "sampling_uj", "split_uj", "wait_us",
)  # fmt: skip
VERDICTS = ("accepted", "duplicate", "stale", "rejected")
FROM_AGENT: tuple[type[Message], ...] = (
    Hello, Ready, Taken, Ping, Result, Delivery, Chunk, Tensor, Credit, Commit, Failed, Energy, Bye,
)  # fmt: skip
FROM_HOST: tuple[type[Message], ...] = (
    Welcome, Reject, Load, Begin, Assign, Chunk, Tensor, Credit, Pong, Cancel, Answer, RoundClosed, End, Bye,
)  # fmt: skip

# What HELLO says in every protocol, and REJECT as it is: so two that have none in common can still say that.
SHARED = ("kind", "session", "proto_min", "proto_max", "agent_version")
_NO_HELLO = {
    "kind": "hello", "session": 0, "proto_min": 0, "proto_max": 0, "agent_version": "", "machine": "", "chunk_max": 0,
    "pid": 0, "kept_run": "", "kept_round": 0, "kept_slice": 0, "clock_s": 0,
}  # fmt: skip

# Field checks -------------------------------------------------------------------------------------------------------

_LONG_TEXT = {"options": OPTIONS_BYTES}
# What a value must be, as Python says it: the check of a kind is one expression over all of its fields.
_INT = "type({0}) is int and 0 <= {0} <= MAX_INT"
_CONTRACTS: dict[Any, str] = {
    int: _INT,
    float: "type({0}) is float and 0.0 <= {0} < INFINITY",  # not a number is neither
    bool: "type({0}) is bool",
    int | None: f"({{0}} is None or {_INT})",
    Split | None: "({0} is None or is_split({0}))",
}
_NONCE = "type({0}) is int and 0 < {0} < NONCES"
_TEXT = "type({{0}}) is str and (len({{0}}) <= {limit} and {{0}}.isascii() or fits({{0}}, {limit}))"
_RANGES = "is_ranges({0})"


def _is_ranges(value: Any) -> bool:
    return (
        type(value) in (list, tuple)
        and len(value) <= MAX_RANGES
        and all(type(r) in (list, tuple) and len(r) == 3 and all(map(_is_int, r)) and r[1] < r[2] for r in value)
    )


def _is_int(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def clip(text: str, limit: int = TEXT_BYTES) -> str:
    """Return a text that may travel: half surrogate pairs replaced, cut to `limit` bytes."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def _fits(text: str, limit: int) -> bool:
    try:
        return len(text.encode()) <= limit
    except UnicodeEncodeError:  # half a surrogate pair, as the system's file names may hold
        return False


def _is_split(value: Any) -> bool:
    return type(value) in (list, tuple) and len(value) == len(SPLIT) and _IS_SPLIT(*value)


_NAMES = {
    "MAX_INT": MAX_INT, "NONCES": 1 << 64, "INFINITY": math.inf, "fits": _fits, "is_ranges": _is_ranges,
    "is_split": _is_split,
}  # fmt: skip


def _contract(name: str, hint: Any) -> str:
    if name in ("session", "window"):
        return _NONCE.format(name)
    if hint is str:
        return _TEXT.format(limit=_LONG_TEXT.get(name, TEXT_BYTES)).format(name)
    return _CONTRACTS.get(hint, _RANGES).format(name)


def _contracts(cls: type[Message]) -> dict[str, str]:
    hints = typing.get_type_hints(cls)
    return {f.name: _contract(f.name, hints[f.name]) for f in dataclasses.fields(cls)}


_IS_SPLIT = together({name: contract for name, contract in _contracts(Energy).items() if name in SPLIT}, _NAMES)
_SPLIT_OF = operator.attrgetter(*SPLIT)


def split_of(energy: Energy) -> Split:
    """Return what of ENERGY a DELIVERY of the same run and source takes along."""
    split: Split = _SPLIT_OF(energy)
    return split


def energy_of(delivery: Delivery) -> Energy | None:
    """Return the ENERGY that goes along with a DELIVERY, if one does."""
    if delivery.split is None:
        return None
    values: dict[str, Any] = dict(zip(SPLIT, delivery.split, strict=True))
    return Energy(session=delivery.session, run=delivery.run, source=delivery.energy_source, **values)


class _Form:
    """What a kind's header must be."""

    def __init__(self, cls: type[Message]) -> None:
        contracts = _contracts(cls)
        self.cls = cls
        self.names = ("kind", *contracts)
        self.is_right = together(contracts, _NAMES)
        self._checks = {name: together({name: contract}, _NAMES) for name, contract in contracts.items()}
        self.attributes = operator.attrgetter(*self.names)
        self.items = operator.itemgetter(*self.names)
        self.has_lists = any("is_ranges" in contract or "is_split" in contract for contract in contracts.values())

    def wrong(self, content: Mapping[str, Any]) -> str:
        """Return the first field that is missing or outside its contract; "" where none is."""
        return next((name for name, is_right in self._checks.items() if not is_right(content.get(name, _MISSING))), "")


def encode(message: Message) -> bytes:
    """Return the header of a message.

    Raises LocalProtocolError when a field is outside its contract: the fault is on this side.
    """
    form = _FORMS[message.kind]
    values = form.attributes(message)
    content = dict(zip(form.names, values, strict=True))
    if not form.is_right(*values[1:]):
        name = form.wrong(content)
        raise LocalProtocolError(f"{message.kind}.{name} is outside its contract: {content[name]!r}")
    header: bytes = msgpack.packb(content)
    if len(header) > HEADER_BYTES:
        raise LocalProtocolError(f"{message.kind} needs {len(header)} bytes, the limit is {HEADER_BYTES}")
    return header


def decode(header: bytes | memoryview, allowed: tuple[type[Message], ...]) -> Message:
    """Return the message of a header, one of `allowed`.

    Raises RemoteProtocolError for anything else: size, encoding, kind, missing or unknown fields, bad values.
    """
    if len(header) > HEADER_BYTES:
        raise RemoteProtocolError(f"header of {len(header)} bytes, the limit is {HEADER_BYTES}")
    try:
        content = msgpack.unpackb(header, raw=False, strict_map_key=True, use_list=True, ext_hook=_no_ext)
    except Exception as error:  # msgpack raises many kinds; each means the same here
        raise RemoteProtocolError(f"header is not msgpack: {type(error).__name__}") from None
    if type(content) is not dict:
        raise RemoteProtocolError("header is not a map")
    kind = content.get("kind")
    form = _FORMS.get(kind) if type(kind) is str else None
    if form is None or form.cls not in allowed:
        raise RemoteProtocolError(f"unexpected message kind {kind!r:.40}")
    if form.cls is Hello and (len(content) != len(form.names) or form.wrong(content)):
        content = _own_words(content)
    if len(content) != len(form.names):
        raise RemoteProtocolError(f"{kind} has {len(content) - 1} fields, expected {len(form.names) - 1}")
    try:
        values = form.items(content)[1:]
        is_right = form.is_right(*values)
    except KeyError:
        is_right = False
    if not is_right:
        name = form.wrong(content)
        value = content.get(name, _MISSING)
        raise RemoteProtocolError(f"{kind}.{name} is missing or outside its contract: {value!r:.60}")
    if form.has_lists:
        values = tuple([_tuples(value) if type(value) is list else value for value in values])
    return form.cls(*values)


def _own_words(hello: dict[str, Any]) -> dict[str, Any]:
    """Return a HELLO that is none of this protocol as this one would say it, as far as another one is meant.

    Of an older one that a host works with, what it lacks has its default. Of one that also speaks this, what is new is
    passed over. Of any other only what every protocol says counts, so that its refusal can be told: SHARED.
    """
    low, high = hello.get("proto_min"), hello.get("proto_max")
    if type(low) is not int or type(high) is not int or low == PROTOCOL == high:
        return hello
    if high < OLDEST or low > PROTOCOL:
        return {**_NO_HELLO, **{name: hello[name] for name in SHARED if name in hello}}
    if high < PROTOCOL:
        return {"clock_s": 0, **hello}
    return {name: hello[name] for name in _NO_HELLO if name in hello}


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple([tuple(each) if type(each) is list else each for each in value])


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError("extension types are not part of the protocol")


_FORMS = {cls.kind: _Form(cls) for cls in dict.fromkeys((*FROM_AGENT, *FROM_HOST))}
quicken(form.cls for form in _FORMS.values())
