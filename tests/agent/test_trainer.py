# SPDX-License-Identifier: Apache-2.0
"""Trainers as real processes over real sockets: work, cancel, stop, death of either side, and the forking server."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.core import permutation
from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline.split.rows import Rows
from paceline.tasks import make
from paceline.wire import INLINE_BYTES
from paceline_agent import channel as c
from paceline_agent.pace import Pace
from paceline_agent.trainer import BRIEF_US

PATIENCE_S = 30.0  # a bound against hanging, not a measurement
SLOW = Pace(speed=1e-5)  # the default linear task then needs 100 s a sample: a slice never ends by itself


class Peer:
    """The agent's end of a trainer."""

    def __init__(self, end: socket.socket, folder: Path) -> None:
        self.end = end
        self.end.settimeout(PATIENCE_S)
        self.model, self.update = folder / "model", folder / "update"
        self.edges: list[c.Edge] = []
        self.progress: list[int] = []

    def say(self, message: c.Message) -> None:
        self.end.send(c.encode(message))

    def hear(self) -> c.Message | None:
        """Return the next message that is no edge and no progress; None: the trainer is gone."""
        while True:
            try:
                data = self.end.recv(c.MESSAGE_BYTES)
            except ConnectionResetError:  # the end, when it died with unread messages
                data = b""
            message = c.decode(data, c.FROM_TRAINER) if data else None
            if isinstance(message, c.Edge):
                self.edges.append(message)
            elif isinstance(message, c.Progress):
                self.progress.append(message.samples)
            else:
                return message

    def load(self, task: str = "linear", pace: Pace | None = None, **options: object) -> c.Loaded:
        data_dir = options.pop("data_dir", "")
        self.say(c.Load("r", task, json.dumps(options), 7, str(data_dir), str(self.model), str(self.update), pace))
        loaded = self.hear()
        assert isinstance(loaded, c.Loaded), loaded
        return loaded

    def base(self, model: bytes) -> None:
        with self.model.open("r+b") as file:
            file.write(model)

    def done(self, work: c.Work) -> c.Done:
        self.say(work)
        done = self.hear()
        assert isinstance(done, c.Done), done
        return done

    def failed(self) -> c.Failed:
        failed = self.hear()
        assert isinstance(failed, c.Failed), failed
        return failed


Spawn = Callable[[], tuple[subprocess.Popen[bytes], Peer]]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Return a function that starts a trainer as a board does."""
    living: list[tuple[subprocess.Popen[bytes], Peer]] = []

    def start() -> tuple[subprocess.Popen[bytes], Peer]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "paceline_agent.trainer", "--fd", str(theirs.fileno())]
        with theirs:
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        peer = Peer(ours, tmp_path)
        living.append((child, peer))
        assert peer.hear() == c.Hello(child.pid)
        return child, peer

    yield start
    for child, peer in living:
        peer.end.close()
        child.kill()
        child.wait()


def independent(ranges: list[tuple[int, int, int]], batch: int) -> bytes:
    """Return the update of a slice, from the sampling rule as written in the design."""
    task = make("linear", {}, 7, None)
    order = [permutation(5, epoch, task.samples)[place] for epoch, begin, end in ranges for place in range(begin, end)]
    learner = task.learner()
    learner.load(task.initial())
    for begin in range(0, len(order), batch):
        learner.step(order[begin : begin + batch])
    update = bytearray(task.manifest.nbytes)
    learner.dump(update)
    return bytes(update)


def test_a_slice_is_trained_on_exactly_its_positions_in_order(spawn: Spawn) -> None:
    _, peer = spawn()
    loaded = peer.load()
    task = make("linear", {}, 7, None)
    nbytes = task.manifest.nbytes
    assert loaded == c.Loaded(task.manifest.digest(), nbytes, task.samples, task.data_label, nbytes, nbytes, "")
    assert peer.model.stat().st_size == peer.update.stat().st_size == task.manifest.nbytes
    peer.base(task.initial())
    ranges = [(0, 59_990, 60_000), (1, 0, 21)]  # 31 samples over the border of an epoch: steps of 8, 8, 8, 7
    done = peer.done(c.Work(3, tuple(ranges), 8, 5))
    assert (done.lease, done.samples, done.steps, done.overruns, done.late_us) == (3, 31, 4, 0, 0)
    assert peer.update.read_bytes() == independent(ranges, 8)
    assert done.update_sha256 == hashlib.sha256(peer.update.read_bytes()).hexdigest()
    (begin,) = peer.edges
    assert (begin.lease, begin.edge) == (3, "begin")
    assert done.compute_us == done.end_us - begin.t_us


def test_work_that_is_expected_to_be_over_soon_tells_of_its_beginning_when_it_is(spawn: Spawn) -> None:
    _, peer = spawn()
    peer.load()
    task = make("linear", {}, 7, None)
    peer.base(task.initial())
    assert peer.done(c.Work(3, ((0, 0, 8),), 8, 5)).begin_us == 0, "nothing is known of this board yet"
    told = set()
    for lease in range(4, 54):
        peer.edges.clear()
        done = peer.done(c.Work(lease, ((0, 8, 16),), 8, 5))
        begin_us = peer.edges[0].t_us if peer.edges else done.begin_us
        assert (len(peer.edges), done.end_us - begin_us) == (int(not done.begin_us), done.compute_us)
        told.add("by DONE" if done.begin_us else "by EDGE")  # as well, on a machine that stands still for a while
    assert "by DONE" in told


def test_work_that_turns_out_to_take_longer_tells_of_its_beginning_before_its_end(spawn: Spawn) -> None:
    _, peer = spawn()
    peer.load(pace=Pace(speed=1e6, step_fixed_s=BRIEF_US / 4e6))
    peer.base(make("linear", {}, 7, None).initial())
    peer.done(c.Work(3, ((0, 0, 8),), 8, 5))
    peer.edges.clear()
    done = peer.done(c.Work(4, ((0, 8, 16),), 1, 5))  # as many samples in eight times as many steps
    (begin,) = peer.edges
    assert (begin.edge, done.begin_us) == ("begin", 0)
    assert done.compute_us == done.end_us - begin.t_us


def test_the_end_of_computing_is_told_at_once_where_writing_the_update_takes_time(spawn: Spawn) -> None:
    _, peer = spawn()
    assert peer.load(ballast=12_000).model_bytes > INLINE_BYTES
    peer.base(make("linear", {"ballast": 12_000}, 7, None).initial())
    done = peer.done(c.Work(3, ((0, 0, 8),), 8, 5))
    begin, end = peer.edges
    assert (begin.lease, begin.edge, end.lease, end.edge) == (3, "begin", 3, "end")
    assert (done.compute_us, done.end_us) == (end.t_us - begin.t_us, 0)


def test_the_same_trainer_takes_slice_after_slice_and_run_after_run(spawn: Spawn, tmp_path: Path) -> None:
    _, peer = spawn()
    first = peer.load()
    peer.base(make("linear", {}, 7, None).initial())
    work = c.Work(1, ((0, 0, 40),), 8, 5)
    once = peer.done(work).update_sha256
    assert peer.done(work).update_sha256 == once  # nothing of the slice before is left
    peer.model, peer.update = tmp_path / "model2", tmp_path / "update2"
    assert peer.load() == first
    peer.base(make("linear", {}, 7, None).initial())
    assert peer.done(work).update_sha256 == once
    assert peer.load(learning_rate=0.5) == first
    peer.base(make("linear", {}, 7, None).initial())
    assert peer.done(work).update_sha256 != once


def test_the_declared_pace_is_kept(spawn: Spawn) -> None:
    _, peer = spawn()
    peer.load(pace=Pace(speed=0.5, step_fixed_s=0.01))
    done = peer.done(c.Work(1, ((0, 0, 100),), 16, 5))
    assert done.steps == 7
    assert done.compute_us >= 7 * 10_000 + 100 * 2_000  # 1 ms a sample at speed 1.0; never faster than declared
    assert peer.progress == sorted(peer.progress)


def test_a_stopped_board_overruns_and_does_not_catch_up(spawn: Spawn) -> None:
    child, peer = spawn()
    peer.load(pace=Pace(speed=1.0))
    peer.say(c.Work(1, ((0, 0, 800),), 8, 5))
    assert isinstance(c.decode(peer.end.recv(c.MESSAGE_BYTES), c.FROM_TRAINER), c.Edge)
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.3)  # the length of the stop, not a wait for something
    child.send_signal(signal.SIGCONT)
    done = peer.hear()
    assert isinstance(done, c.Done)
    assert done.overruns >= 1
    assert done.late_us >= 100_000
    assert done.compute_us >= 800_000 + done.late_us - 1


def test_cancelled_work_ends_at_once_and_the_trainer_lives_on(spawn: Spawn) -> None:
    _, peer = spawn()
    peer.load(pace=SLOW)
    peer.say(c.Work(4, ((0, 0, 8),), 8, 5))
    peer.say(c.Cancel(3))  # another lease: none of its business
    peer.say(c.Cancel(4))
    failed = peer.failed()
    assert (failed.lease, failed.reason) == (4, "cancelled")
    peer.say(c.Cancel(4))  # over already
    peer.load()
    assert peer.done(c.Work(5, ((0, 0, 8),), 8, 5)).lease == 5


@pytest.mark.parametrize("way", ["stop", "socket closed"])
def test_the_trainer_ends_while_it_waits_for_its_pace(spawn: Spawn, way: str) -> None:
    child, peer = spawn()
    peer.load(pace=SLOW)
    peer.say(c.Work(1, ((0, 0, 8),), 8, 5))
    peer.end.recv(c.MESSAGE_BYTES)  # the edge: it is in work
    if way == "stop":
        peer.say(c.Stop())
    else:
        peer.end.close()
    assert child.wait(PATIENCE_S) == 0


def test_a_killed_trainer_is_seen_as_the_end_of_its_socket(spawn: Spawn) -> None:
    child, peer = spawn()
    peer.load(pace=SLOW)
    peer.say(c.Work(1, ((0, 0, 8),), 8, 5))
    child.kill()
    assert peer.hear() is None


FAULTS: dict[str, tuple[dict[str, object], str, str]] = {
    "unknown task": ({"task": "liner"}, "settings", "did you mean linear?"),
    "unknown option": ({"options": '{"bach": 1}'}, "settings", "did you mean batch?"),
    "options no JSON": ({"options": "{"}, "settings", "not JSON"),
    "options no object": ({"options": "[]"}, "settings", "expected a JSON object"),
    "unknown regime": ({"regime": "pna"}, "settings", "did you mean pma?"),
    "no data": ({"task": "mnist", "data_dir": "/nowhere/at/all"}, "data", "is not a folder"),
    "no place for files": ({"model_path": "/nowhere/at/all"}, "data", "cannot make a file"),
}


@pytest.mark.parametrize(("change", "reason", "words"), FAULTS.values(), ids=FAULTS)
def test_a_load_that_cannot_be_is_answered_and_survived(
    spawn: Spawn, change: dict[str, str], reason: str, words: str
) -> None:
    _, peer = spawn()
    fields = {
        "run": "r", "task": "linear", "options": "{}", "data_dir": "", "model_path": str(peer.model),
        "update_path": str(peer.update), "regime": "pma",
    } | change  # fmt: skip
    peer.say(c.Load(seed=7, pace=None, **fields))
    failed = peer.failed()
    assert (failed.lease, failed.reason) == (None, reason)
    assert words in failed.detail
    peer.load()


def test_without_torch_a_regime_that_needs_it_is_refused_and_a_task_that_does_not_is_trained(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file')", encoding="ascii")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    _, peer = spawn()
    peer.say(c.Load("r", "mnist", "{}", 7, "", str(peer.model), str(peer.update), None, "ddp"))
    failed = peer.failed()
    assert failed.reason == "settings"
    assert "run.regime: ddp needs torch on each board, and this one has none that works" in failed.detail
    assert peer.load().library == ""


def test_ranges_outside_the_data_fail_that_lease_alone(spawn: Spawn) -> None:
    _, peer = spawn()
    peer.load(samples=100)
    peer.say(c.Work(6, ((0, 90, 101),), 8, 5))
    failed = peer.failed()
    assert (failed.lease, failed.reason) == (6, "data")
    assert "outside the 100 samples" in failed.detail
    assert peer.done(c.Work(7, ((0, 90, 100),), 8, 5)).samples == 10


@pytest.mark.parametrize(
    "datagram",
    [b"junk", c.encode(c.Hello(1)), c.encode(c.Work(1, ((0, 0, 1),), 1, 1))],
    ids=["junk", "message of the other end", "work before load"],
)
def test_a_broken_protocol_ends_the_trainer_with_a_word(spawn: Spawn, datagram: bytes) -> None:
    child, peer = spawn()
    peer.end.send(datagram)
    assert peer.failed().reason == "protocol"
    assert peer.hear() is None
    assert child.wait(PATIENCE_S) == 1


def test_the_linear_task_needs_no_torch(spawn: Spawn) -> None:
    child, peer = spawn()
    peer.load()
    assert "torch" not in Path(f"/proc/{child.pid}/maps").read_text()


# The server ---------------------------------------------------------------------------------------------------------

Server = Callable[..., tuple[subprocess.Popen[bytes], Callable[[str], Peer]]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Return a function (modules to preload) -> (process, connect)."""
    cleanup: list[Callable[[], object]] = []

    def start(*modules: str) -> tuple[subprocess.Popen[bytes], Callable[[str], Peer]]:
        path = tmp_path / "trainers"
        command = [sys.executable, "-m", "paceline_agent.trainer_server", "--socket", str(path)]
        process = subprocess.Popen([*command, "--preload", ",".join(modules)], stdin=subprocess.PIPE)
        assert process.stdin is not None
        cleanup.append(process.stdin.close)
        cleanup.append(process.wait)
        cleanup.append(process.kill)
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.01)

        def connect(name: str) -> Peer:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            cleanup.append(end.close)
            end.connect(str(path))
            (tmp_path / name).mkdir()
            return Peer(end, tmp_path / name)

        return process, connect

    yield start
    for action in reversed(cleanup):
        action()


def pid_of(peer: Peer) -> int:
    hello = peer.hear()
    assert isinstance(hello, c.Hello)
    return hello.pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    """Return whether a process has ended (a zombie has)."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_the_server_forks_one_trainer_for_each_connection(server: Server) -> None:
    process, connect = server()
    peers = [connect(f"board{i}") for i in range(3)]
    pids = [pid_of(peer) for peer in peers]
    assert len({process.pid, *pids}) == 4
    assert {parent_of(pid) for pid in pids} == {process.pid}
    for peer in peers:
        peer.load()
        peer.base(make("linear", {}, 7, None).initial())
    for peer in peers:
        peer.say(c.Work(1, ((0, 0, 40),), 8, 5))
    hashes = set()
    for peer in peers:
        done = peer.hear()
        assert isinstance(done, c.Done)
        hashes.add(done.update_sha256)
    assert hashes == {hashlib.sha256(independent([(0, 0, 40)], 8)).hexdigest()}


def test_trainers_end_with_their_own_socket_also_in_work_and_are_reaped(server: Server) -> None:
    process, connect = server()
    one, other = connect("one"), connect("other")
    pids = [pid_of(one), pid_of(other)]
    for peer in (one, other):
        peer.load(pace=SLOW)
        peer.say(c.Work(1, ((0, 0, 8),), 8, 5))
        peer.end.recv(c.MESSAGE_BYTES)
    one.end.close()
    wait_until(lambda: not Path(f"/proc/{pids[0]}").exists())  # not even a zombie is left
    assert not gone(pids[1])
    other.end.close()
    wait_until(lambda: gone(pids[1]))
    assert process.poll() is None


def test_a_killed_trainer_of_a_server_is_seen_by_its_agent_alone(server: Server) -> None:
    _, connect = server()
    one, other = connect("one"), connect("other")
    pid_of(other)
    os.kill(pid_of(one), signal.SIGKILL)
    assert one.hear() is None
    other.load()


def test_the_server_ends_with_its_stdin_and_its_trainers_with_their_sockets(server: Server) -> None:
    process, connect = server()
    peer = connect("one")
    pid = pid_of(peer)
    peer.load()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    assert peer.done(c.Work(1, ((0, 0, 8),), 8, 5)).samples == 8  # it lives until its agent goes
    peer.end.close()
    wait_until(lambda: gone(pid))


def written_digits(folder: Path) -> Path:
    """Write 50 pictures to train on, and 10 others; return their folder."""
    folder.mkdir()
    for images, labels, count in ((FILES[0], FILES[1], 50), (FILES[2], FILES[3], 10)):
        write_idx(folder / images, (count, 8, 8), bytes(i * 37 % 256 for i in range(count * 64)))
        write_idx(folder / labels, (count,), bytes(i % 10 for i in range(count)))
    return folder


def test_a_forked_trainer_trains_with_the_preloaded_torch(server: Server, tmp_path: Path) -> None:
    digits = written_digits(tmp_path / "digits")
    _, connect = server("torch", "numpy", "paceline.tasks.mnist")
    task = make("mnist", {"hidden": [5]}, 7, digits)
    learner = task.learner()
    learner.load(task.initial())
    order = permutation(5, 0, 50)
    for begin in range(0, 50, 8):
        learner.step([order[i] for i in range(begin, min(50, begin + 8))])
    expected = bytearray(task.manifest.nbytes)
    learner.dump(expected)
    for name in ("one", "other"):
        peer = connect(name)
        pid = pid_of(peer)
        peer.load("mnist", hidden=[5], data_dir=digits)
        peer.base(task.initial())
        peer.done(c.Work(1, ((0, 0, 50),), 8, 5))
        assert peer.update.read_bytes() == bytes(expected)
        assert len(os.listdir(f"/proc/{pid}/task")) == 1


def test_what_a_newer_tensor_has_overtaken_is_passed_over_and_the_newer_one_is_worked_on(
    spawn: Spawn, tmp_path: Path
) -> None:
    digits = written_digits(tmp_path / "digits")
    options = {"cut": "conv1", "model": "cnn"}
    task: Any = make("mnist", options, 7, digits)
    split = {"clients": 1, "first": 0, "count": 1, "largest": 8}
    _, peer = spawn()
    peer.say(
        c.Load(
            "r", "mnist", json.dumps({**options, "split": split}), 7, str(digits), str(peer.model), str(peer.update),
            regime="psl",
        )
    )  # fmt: skip
    loaded = peer.hear()
    assert isinstance(loaded, c.Loaded), loaded
    part = task.initial()[: task.client_manifest.nbytes]

    def told(step: int, redraw: int, what: str, data: bytes, *, lies: bytes | None = None) -> None:
        """Tell of a tensor; what `lies` there is another one by the time it is read."""
        begin = 0 if what == "schedule" else loaded.inbox_bytes - len(data)
        with peer.model.open("r+b") as file:
            file.seek(begin)
            file.write(data if lies is None else lies)
        peer.say(c.Input(1, step, redraw, what, begin, len(data), zlib.crc32(data)))

    older = Rows(0, 9, (0,), tuple((8,) for _ in range(6))).encode()
    newer = Rows(5, 9, (8,), ((6,),)).encode()
    peer.say(c.Work(1, ((0, 0, 50),), 8, 7))
    told(0, 0, "schedule", older, lies=newer)  # another size, and no word of step 0 any more
    told(0, 0, "model", part)  # its schedule is not known
    told(5, 1, "schedule", newer)
    told(5, 1, "model", part[::-1], lies=part)
    told(5, 2, "schedule", newer)
    told(5, 2, "model", part)
    output = peer.hear()
    assert isinstance(output, c.Output), output
    assert (output.step, output.redraw, output.what) == (5, 2, "smashed")
    told(9, 2, "schedule", Rows(9, 9, (14,), ()).encode())
    told(9, 2, "model", part)
    done = peer.hear()
    assert isinstance(done, c.Done), done
    assert done.update_sha256 == hashlib.sha256(part).hexdigest()
