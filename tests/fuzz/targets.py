# SPDX-License-Identifier: Apache-2.0
"""Every decoder of the project that takes foreign bytes: how it is called, valid inputs, and what it may raise.

`run` calls one decoder with any bytes. What it returns is of no interest; it asserts what must hold of what was taken
(that it comes back, for instance). A checksum over the whole would refuse every mutation at the door, so where there is
one it is made right behind it.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import json
import sqlite3
import struct
import tempfile
import typing
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from tests.host.run_folder import Story
from tests.system.conftest import write_pictures

from paceline import wire
from paceline.controller import Controller
from paceline.data import cifar, reviews, series
from paceline.data.idx import SHORT, UNSIGNED_BYTE, read_idx, write_idx
from paceline.data.partitioning import Partition, partition
from paceline.data.sources import REVIEW_FILES
from paceline.errors import (
    CoreError,
    DataError,
    KeyFileError,
    PacelineError,
    RemoteProtocolError,
    SettingsError,
    StorageError,
)
from paceline.keys import read_public
from paceline.local_draw import LocalDraw
from paceline.sampler import GlobalSampler
from paceline.settings import load
from paceline.split.rows import Rows
from paceline.tasks import make
from paceline.tasks.modules import Trainable
from paceline.tasks.states import memory_of
from paceline.tasks.whole import WholeTask
from paceline.tensors import Manifest
from paceline_agent import channel
from paceline_agent.config import load_config
from paceline_agent.kept import RECORD, Shelf
from paceline_agent.meters import MeterError, MeterSettings
from paceline_agent.meters import serial_frames as frames
from paceline_agent.meters.replay import Replay
from paceline_agent.meters.serial_lines import LineParser
from paceline_host import checkpoint, operator_wire
from paceline_host.ddp import steps as ranks
from paceline_host.ddp.figures import HEAD
from paceline_host.ddp.figures import read as read_figures
from paceline_host.experiment import load_experiment
from paceline_host.host_config import OperatorConfig, load_host
from paceline_host.journal import JOURNAL, SPOOL, Journal
from paceline_host.ledger import Ledger
from paceline_host.onboard import board_console
from paceline_host.reducer import Reducer, Refused
from paceline_host.scripts import Scripts
from paceline_host.tickets import Ticket
from paceline_host.uploads import Uploads

Run = Callable[[bytes], object]
MEBI = 1 << 20
AMPLE = 4 * MEBI  # what an input of 64 KiB, taken apart into Python's objects, may come to, and a lie may not exceed
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Target:
    """One decoder. `refusals`: the project's own errors for what it does not take; anything else is a bug."""

    run: Run
    seeds: Callable[[], Iterable[bytes]]
    refusals: tuple[type[Exception], ...] = ()
    most_bytes: int = AMPLE  # at most so much memory for one input
    cost: int = 1  # of an execution, so that all take about the same time


# What goes over links ------------------------------------------------------------------------------------------------

_VALUES: dict[object, object] = {
    str: "text", int: 3, float: 1.5, bool: True, int | None: None, tuple[wire.Range, ...]: ((0, 2, 9), (1, 0, 1)),
    wire.Split | None: (7, 3, None, *range(12)),
}  # fmt: skip


def _messages(kinds: tuple[type[wire.Message], ...]) -> Iterable[bytes]:
    for cls in kinds:
        hints = typing.get_type_hints(cls)
        yield wire.encode(cls(**{f.name: _VALUES[hints[f.name]] for f in dataclasses.fields(cls)}))  # type: ignore[arg-type]


def _wire(kinds: tuple[type[wire.Message], ...]) -> Target:
    def run(data: bytes) -> None:
        message = wire.decode(data, kinds)
        assert wire.decode(wire.encode(message), kinds) == message

    return Target(run, lambda: _messages(kinds), (RemoteProtocolError,))


_REPORTS = [[1.5, 9.0, 300], [2.0, None, 300], None]
_TO_HOST = (
    operator_wire.Submit(1, 1, "demo", document={"experiment": "[run]\nrounds = 2", "set": ["run.rounds=3"]}),
    operator_wire.Status(2, 1), operator_wire.Stop(3, 1, "demo-001"), operator_wire.Watch(4, 1, ""),
    operator_wire.Drain(9, 1),
    operator_wire.Divide(
        5, 1, "mine", 2, document={"policy": "time", "ranks": 3, "budget": 90, "minimum": 1, "reports": _REPORTS}
    ),
)  # fmt: skip
_FROM_HOST = (
    operator_wire.Queued(1, "demo-001", 2), operator_wire.Told(2, document={"boards": [{"name": "pi"}]}),
    operator_wire.News(4, "demo-001", document={"say": "round 3"}), operator_wire.Ended(4, "demo-001", True, "done"),
    operator_wire.Refused(9, 3, document={"errors": ["no"]}),
)  # fmt: skip


def _operator(said: tuple[operator_wire.Message, ...], kinds: tuple[type[operator_wire.Message], ...]) -> Target:
    def run(data: bytes) -> None:
        length = int.from_bytes(data[:2], "little")
        message = operator_wire.decode(data[2 : 2 + length], data[2 + length :], kinds)
        assert operator_wire.decode(*operator_wire.encode(message), kinds) == message
        if isinstance(message, operator_wire.Divide):
            operator_wire.encode(Scripts().answer("ann", message, 0.0))

    def seeds() -> Iterable[bytes]:
        for message in said:
            header, payload = operator_wire.encode(message)
            yield len(header).to_bytes(2, "little") + header + payload

    return Target(run, seeds, (RemoteProtocolError,))


_LOAD = channel.Load("run-1", "mnist", '{"batch": 8}', 7, "", "/s/model", "/s/update")
_TO_TRAINER = (
    _LOAD, channel.Work(3, ((0, 10, 20), (1, 0, 4)), 8, 9), channel.Cancel(3), channel.Stop(),
    channel.Input(3, 1, 0, "model", 0, 64, 1 << 31),
)  # fmt: skip
_FROM_TRAINER = (
    channel.Hello(4711), channel.Loaded("ab" * 32, 2048, 60000, "MNIST", 2048, 2048, ""), channel.Edge(3, "begin", 12),
    channel.Progress(3, 64), channel.Done(3, 14, 2, 40_000, 0, 0, 1, 300, 2048, "cd" * 32),
    channel.Failed("data", "no such file"), channel.Output(3, 1, 0, "smashed", 64),
)  # fmt: skip


def _channel(said: tuple[channel.Message, ...], kinds: tuple[type[channel.Message], ...]) -> Target:
    def run(data: bytes) -> None:
        message = channel.decode(data, kinds)
        assert channel.decode(channel.encode(message), kinds) == message

    return Target(run, lambda: map(channel.encode, said), (RemoteProtocolError,))


_SIZES = (40, 60)


def _rows(data: bytes) -> None:
    rows = Rows.decode(data, _SIZES)
    assert rows.encode() == data
    assert all(len(rows.positions(rows.first + i)) == len(_SIZES) for i in range(len(rows.counts)))


def _manifest(data: bytes) -> None:
    manifest = Manifest.from_json(data.decode("utf-8", "replace"))
    assert Manifest.from_json(manifest.to_json()) == manifest


MANIFEST = Manifest.build([("w", "float32", (3, 5), "parameter"), ("n", "int64", (), "buffer")])


def _rank(data: bytes) -> None:
    for read in (ranks.Here.read, ranks.Store.read, ranks.Broken.read):
        try:
            read(data)
        except ValueError:
            continue
        return
    raise ValueError("none of them")


# Serial meters -------------------------------------------------------------------------------------------------------

_IDENT = frames.Ident(50_000, 7, b"12345678", "fw 1", (frames.Channel("in", frames.PAIR, 0, 1000, 100, 5000, 9),))
_SAID: tuple[frames.Ident | frames.ReadingFrame | frames.Fault | frames.Text, ...] = (
    _IDENT, frames.ReadingFrame(1, 1000, 7, 0, 1, frames.pack_values(_IDENT.channels, ((5000, 900),))),
    frames.Fault(1, 0, "no answer"), frames.Text("hello"),
)  # fmt: skip


def _frames(data: bytes) -> None:
    for frame in frames.FrameParser().feed(b"\0" + data + b"\0"):
        if isinstance(frame, frames.ReadingFrame):
            frame.values(_IDENT)


def _frame_body(data: bytes) -> None:
    body = data[: frames.BODY_BYTES]
    _frames(frames.stuff(body + zlib.crc32(body).to_bytes(4, "little")))


def _frame_bodies() -> Iterable[bytes]:
    return ((frames.unstuff(frames.encode(frame)[:-1]) or b"")[:-4] for frame in _SAID)


def _lines(style: str, channels: tuple[str, ...]) -> Run:
    return lambda data: LineParser(style, channels).feed(b"\n" + data + b"\n")


# Files ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="paceline-fuzz-", dir=memory if memory.is_dir() else None)


def _place(name: str) -> Path:
    path = Path(_folder().name) / name
    path.parent.mkdir(exist_ok=True)
    return path


def _file(name: str, read: Callable[[Path], object]) -> Run:
    """Return what writes its bytes into a file of that name and has them read."""

    def run(data: bytes) -> None:
        path = _place(name)
        path.write_bytes(data)
        read(path)

    return run


_AGENT = (
    b'key_file = "pi.key"\nstate_dir = "s"\n[host]\nendpoint = "tcp://a:1"\npublic_key = "p"\n'
    b'[meter]\nsource = "rapl"\n'
)
_HOST = b'listen = "tcp://*:5570"\npatience_s = 3.0\nresume = true\n# end\n'
_PSL = (
    b'[run]\nregime = "psl"\nrounds = 2\npolicies = ["gpsl", "fls"]\n[task]\nname = "mnist"\nmodel = "cnn"\n'
    b'cut = "conv1"\nbatch = 64\n[split]\nclients = 8\npartition = "severe"\n[fleet]\nkind = "boards"\nkeys = "keys"\n'
)
_TICKET = b'name = "a-001"\nnumber = 1\nby = "ann"\nsubmitted = "2026"\nstate = "queued"\nreason = ""\n'
_TRACE = (
    b'{"schema":"paceline-trace-1","source":"hwmon/ina219","period_us":50000}\n'
    b'{"t0":0,"t1":10,"uw":5000,"error":9,"flags":["negative"]}\n{"missed":"EIO","t":15}\n{"period_us":60000}\n'
    b'{"t0":10,"t1":20,"uw":7,"error":0}\n'
)
_COUNTS = b'{"schema":"paceline-trace-1","source":"rapl","period_us":50000}\n{"t":5,"uj":9,"error":1}\n'
_CSV = b"".join(
    [b"valid_time,t2m,u10,number\n", *(b"2020-01-01T%02d:00,28%d.5,%d,0\n" % (i, i % 9, i) for i in range(24))]
)
_KEPT = {
    "run": "r", "round": 1, "slice": 0, "lease": 3, "attempt": 0, "samples": 10, "steps": 2, "compute_us": 5,
    "overruns": 0, "late_us": 0, "base_sha256": "ab", "update_bytes": 0, "update_sha256": hashlib.sha256().hexdigest(),
    "ranges": [[0, 0, 10]],
}  # fmt: skip


def _series(path: Path) -> None:
    rows = list(series.read_csv(path.read_bytes().decode("utf-8", "replace").splitlines(), "point.csv"))
    if rows:
        series.prepare(rows * (series.LEAST_ROWS // len(rows) + 1), path.parent)


def _idx(shape: tuple[int, ...]) -> Iterable[bytes]:
    path = _place("seed.idx")
    write_idx(path, shape, bytes(range(24)))
    return [path.read_bytes(), gzip.compress(path.read_bytes())]


def _cifar(path: Path) -> None:
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        if not (other := path.with_name(name)).exists():
            other.write_bytes(bytes(3073))
    cifar.read_cifar(path.parent, "cifar10")


def _replay(path: Path) -> None:
    source = Replay(MeterSettings(source="replay", trace=str(path)), 0)
    for _ in range(50):
        try:
            source.read(1 << 62)
        except MeterError as error:
            if "is over" in str(error):
                return


def _shelf(path: Path) -> None:
    update = path.with_name("update")
    update.touch()
    shelf = Shelf(path.parent, lambda text: None)
    shelf.load(update)
    shelf.close()


def _partition(data: bytes) -> None:
    found = Partition.from_bytes(data + zlib.crc32(data).to_bytes(4, "little"))
    assert Partition.from_bytes(found.to_bytes()).sizes() == found.sizes()


def _partitions() -> Iterable[bytes]:
    labels = [i % 10 for i in range(200)]
    return [partition(labels, 8, method, seed=1).to_bytes()[:-4] for method in ("iid", "dirichlet-classes")]


def _checkpoints() -> Iterable[bytes]:
    path = _place("seed.safetensors")
    checkpoint.save(path, MANIFEST, bytes(MANIFEST.nbytes), fsync=False)
    return [path.read_bytes()]


def _upload(path: Path) -> None:
    uploads = Uploads(path.parent)
    for board, part in uploads.left.items():
        assert len(memoryview(uploads.take(board))) == part.size


def _uploads() -> Iterable[bytes]:
    head = struct.pack("<8s64sQQQQ", b"pl-part1", b"ab" * 32, 1, 2, 100, 50)
    return [head.ljust(4096, b"\0") + bytes(100)]


def _journal(data: bytes) -> None:
    folder = _place("run/journal").parent
    for left in folder.iterdir():
        left.unlink()
    (folder / JOURNAL).write_bytes(data)
    (folder / SPOOL).touch()
    with Ledger(folder) as ledger:
        ledger.verify()
        ledger.energy()
        ledger.events()
    Journal.open(folder, fsync=False).close()


def _journals() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as made:
        Story().tell(Path(made) / "r")
        path = Path(made) / "r" / JOURNAL
        db = sqlite3.connect(path)
        db.execute("PRAGMA journal_mode = DELETE")
        db.close()
        return [path.read_bytes()]


# What a rank's gradients come to -------------------------------------------------------------------------------------


@functools.cache
def _trainable(optimizer: str) -> tuple[Trainable, Reducer]:
    folder = _place("pictures/x").parent
    write_pictures(folder)
    task = make("mnist", {"model": "mlp", "hidden": [4], "optimizer": optimizer}, 3, folder)
    return Trainable(task), Reducer(task.manifest)


def _gradient(data: bytes) -> None:
    """Another rank's part of the sum is any number: what the host takes of the state that follows must be finite."""
    trainable, reducer = _trainable("adam" if data[:1] < b"\x80" else "sgd")
    begun = bytes(trainable.initial_state())
    gradient = trainable.flat.gradient.numpy()
    gradient[:] = np.resize(
        np.frombuffer(data[1:].ljust(4, b"\0")[: (len(data) - 1) // 4 * 4 or 4], "<f4"), len(gradient)
    )
    trainable.optimiser.step(trainable.flat.gradient)
    state = bytes(trainable.state())
    size = trainable.model_bytes
    verdict = reducer.verify(state[:size], begun[:size], 1, 1, [])
    if isinstance(verdict, Refused) or not reducer.are_finite(memory_of(state, size)):
        raise ValueError("not finite")
    assert np.isfinite(np.frombuffer(state[:-8], "<f4")).all()


def _state(data: bytes) -> None:
    trainable, _ = _trainable("adam")
    trainable.load_state(data)
    assert trainable.state() == data


def _reviews(data: bytes) -> None:
    """Each part of a review folder is a text of its own; in the end what was prepared is read back."""
    folder = _place("reviews/vocabulary.txt").parent
    for number, part in enumerate(data.split(b"\0")[:12]):
        place = folder / ("train", "test")[number % 2] / ("neg", "pos")[number // 2 % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}_5.txt").write_bytes(part)
    reviews.from_folder(folder, folder)
    for name, dimensions in zip(REVIEW_FILES, (2, 1, 2, 1), strict=True):
        read_idx(folder / name, dimensions, SHORT if dimensions == 2 else UNSIGNED_BYTE)


def _review_files(path: Path) -> None:
    """The words of reviews that somebody has prepared elsewhere."""
    folder = path.parent
    for name, dimensions in zip(REVIEW_FILES[1:], (1, 2, 1), strict=True):
        write_idx(folder / name, (2, 400)[:dimensions], bytes(2 * 800 if dimensions == 2 else 2),
                  SHORT if dimensions == 2 else UNSIGNED_BYTE)  # fmt: skip
    task = make("imdb", {"vocabulary": 50, "words": 20}, 1, folder)
    inputs, labels = typing.cast(WholeTask, task).batch(range(2), 0)
    typing.cast(WholeTask, task).loss(typing.cast(WholeTask, task).whole()(inputs), labels)


def _reviews_idx() -> Iterable[bytes]:
    path = _place("seed.words")
    write_idx(path, (2, 400), struct.pack(">800h", *(number % 60 for number in range(800))), SHORT)
    return [path.read_bytes()]


# States of the C core ------------------------------------------------------------------------------------------------


def _checked(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(4, "little")


def _controller(data: bytes) -> None:
    made = Controller.from_state(_checked(data))
    made.observe(0, seconds=1.0, energy_j=2.0, samples=10)
    made.allocate()
    Controller.from_state(made.state())


def _controllers() -> Iterable[bytes]:
    for policy in (None, "frontier:edp"):
        made = Controller(3, 90, 0.25) if policy is None else Controller(3, 90, policy=policy)
        yield made.state()[:-4]
        for i in range(3):
            made.observe(i, seconds=1.0 + i, energy_j=2.0, samples=30)
        made.allocate()
        yield made.state()[:-4]


def _sampler(data: bytes) -> None:
    for structure in ("tree16", "fenwick"):
        made = GlobalSampler.from_state(_checked(data), structure)
        if len(made) < 1000:
            made.draw(5)
            GlobalSampler.from_state(made.state())


def _samplers() -> Iterable[bytes]:
    for counts in ([5, 7, 9], [3] * 40):
        made = GlobalSampler(counts, seed=7)
        made.draw(4)
        made.remove(1)
        yield made.state()[:-4]


def _local(data: bytes) -> None:
    if int.from_bytes(data[-8:-4], "little") > 1 << 16:  # of so many samples: what it allocates is no lie
        return
    made = LocalDraw.from_state(_checked(data))
    if made.remaining:
        made.draw(1)


def _console_line(data: bytes) -> None:
    """As it came, and as a payload that comes through whole."""
    board_console.parsed(board_console.ANSWER, data)
    whole = board_console.line(board_console.ANSWER, len(data), data)
    assert board_console.parsed(board_console.ANSWER, whole) == (len(data), data)


# All of them ---------------------------------------------------------------------------------------------------------

TARGETS: dict[str, Target] = {
    "wire-to-host": _wire(wire.FROM_AGENT),
    "wire-to-board": _wire(wire.FROM_HOST),
    "operator-to-host": _operator(_TO_HOST, operator_wire.FROM_OPERATOR),
    "operator-from-host": _operator(_FROM_HOST, operator_wire.TO_OPERATOR),
    "channel-to-trainer": _channel(_TO_TRAINER, channel.FROM_AGENT),
    "channel-from-trainer": _channel(_FROM_TRAINER, channel.FROM_TRAINER),
    "schedule-rows": Target(_rows, lambda: [Rows(3, 9, (1, 2), ((3, 4), (5, 6))).encode()], (RemoteProtocolError,)),
    "tensor-manifest": Target(_manifest, lambda: [MANIFEST.to_json().encode()], (ValueError,)),
    "rank-words": Target(
        _rank,
        lambda: [
            b'{"steps": 3, "state": true, "torch": "2.4", "dtype": "float32", "address": "192.0.2.7"}',
            b'{"address": "192.0.2.7", "port": 1234}', b'{"kind": "store", "reason": "no way", "blamed": [0, 1]}',
        ],
        (ValueError,),
    ),
    "rank-figures": Target(
        read_figures, lambda: [HEAD.pack(0.5, 2) + struct.pack("<6I", *range(6)), HEAD.pack(0.0, 0)], (StorageError,)
    ),
    "serial-frames": Target(_frames, lambda: map(frames.encode, _SAID)),
    "serial-bodies": Target(_frame_body, _frame_bodies),
    "serial-csv": Target(_lines("csv", ("t_ms", "-", "mv", "ma")), lambda: [b"10,x,5000,900\n20,x,5001,901\n"]),
    "serial-json": Target(
        _lines("json", ("v=v", "i=a", "n=seq")), lambda: [b'{"v": 5.0, "i": "0.9", "n": 3}\n', b'{"v": 9, "i": 0}\n']
    ),
    "console-lines": Target(_console_line, lambda: [board_console.line(b"<", 7, b"+" + bytes(40)), b"!\n", b"\n"]),
    "agent-toml": Target(_file("agent.toml", load_config), lambda: [_AGENT], (SettingsError,), cost=20),
    "host-toml": Target(_file("host.toml", load_host), lambda: [_HOST], (SettingsError,), cost=20),
    "operator-toml": Target(
        _file("operator.toml", lambda path: load(path, OperatorConfig)),
        lambda: [b'endpoint = "tcp://a:1"\nhost_key = "k"\nkey_file = "f"\n'], (SettingsError,), cost=20,
    ),
    "ticket-toml": Target(
        _file("ticket.toml", lambda path: load(path, Ticket)), lambda: [_TICKET], (SettingsError,), cost=20
    ),
    "experiment": Target(
        _file("experiment.toml", load_experiment),
        lambda: [(ROOT / "experiments" / "demo.toml").read_bytes(), _PSL], (PacelineError,), cost=20,
    ),
    "key-file": Target(_file("pi.pub", read_public), lambda: [b"x" * 40 + b"\n"], (KeyFileError,)),
    "trace": Target(_file("a.trace", _replay), lambda: [_TRACE, _COUNTS], (MeterError,)),
    "kept-result": Target(_file(f"shelf/{RECORD}", _shelf), lambda: [json.dumps(_KEPT).encode()]),
    "idx": Target(_file("a.idx", lambda path: read_idx(path, 3)), lambda: _idx((2, 3, 4)), (DataError,)),
    "idx-labels": Target(_file("b.idx", lambda path: read_idx(path, 1)), lambda: _idx((24,)), (DataError,)),
    "cifar": Target(
        _file("cifar/data_batch_1.bin", _cifar), lambda: [bytes(range(256)) * 12 + b"\1"], (DataError,)
    ),
    "series": Target(_file("series/point.csv", _series), lambda: [_CSV], (DataError,), cost=200),
    "rank-gradient": Target(
        _gradient, lambda: [kind + struct.pack("<3f", 0.5, -2.0, 1e-3) for kind in (b"\1", b"\xf0")],
        (ValueError,), cost=5,
    ),
    "rank-state": Target(_state, lambda: [bytes(_trainable("adam")[0].initial_state())], (CoreError,)),
    "reviews": Target(
        _reviews, lambda: [b"A fine film<br />it's good\0bad\0good\0worse", "na\u00efve\0b\0c\0d".encode()],
        (DataError,), cost=20,
    ),
    "review-words": Target(_file("words/" + REVIEW_FILES[0], _review_files), _reviews_idx, (DataError,), cost=50),
    "partition": Target(_partition, _partitions, (DataError,)),
    "checkpoint": Target(
        _file("a.safetensors", lambda path: checkpoint.load(path, MANIFEST)), _checkpoints, (StorageError,)
    ),
    "upload": Target(_file("uploads/3.part", _upload), _uploads),
    "journal": Target(_journal, _journals, (StorageError,), cost=200),
    "controller-state": Target(_controller, _controllers, (CoreError,)),
    "sampler-state": Target(_sampler, _samplers, (CoreError,)),
    "local-state": Target(_local, lambda: [LocalDraw(50, 7, 0, 3).state()[:-4]], (CoreError,)),
}  # fmt: skip
