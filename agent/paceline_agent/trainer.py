# SPDX-License-Identifier: Apache-2.0
"""The trainer: a process that trains on slices and tells its agent over one socket. Knows no link, no meter and no
host.

Everything heavy (torch, data, model) lives here, so that what kills it is reported by the agent and not suffered. It
ends when told to, and when its socket closes, also in the middle of a slice and while it waits for a declared pace.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import json
import mmap
import os
import select
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.errors import DataError, PacelineError, RemoteProtocolError, SettingsError
from paceline.tasks import BY_NO_LIBRARY, Task, data_sha256, make
from paceline.wire import INLINE_BYTES
from paceline_agent import channel
from paceline_agent.channel import (
    Cancel,
    Done,
    Edge,
    Failed,
    Hello,
    Input,
    Load,
    Loaded,
    Output,
    Progress,
    Stop,
    Work,
)
from paceline_agent.pace import Pace, Pacer
from paceline_agent.workers import BY_NUMPY, Worker, worker

PROGRESS_S = 0.25  # between two Progress messages of a slice
WARM_UP_BATCH = 32
REGIME = "split"  # key of LOAD's options whose value is for the regime's worker, not for the task
BRIEF_US = 20_000  # work that takes no longer tells of its beginning when it is over: each message wakes the agent
HOLD_S = 5.0  # so long may the trainer before this one take to end


def main(argv: list[str] | None = None) -> int:
    """Serve the agent at the other end of an inherited socket."""
    parser = argparse.ArgumentParser(prog="paceline_agent.trainer", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited SOCK_SEQPACKET Unix socket")
    parser.add_argument("--threads", type=int, default=1, help="threads of numerical libraries (default 1)")
    parser.add_argument("--no-torch", action="store_true", help="do not touch torch: it has ended a trainer here")
    arguments = parser.parse_args(argv)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(arguments.threads)  # read when torch and numpy are imported, at Load
    with socket.socket(fileno=arguments.fd) as agent:
        return serve(agent, no_torch=arguments.no_torch)


def serve(agent: socket.socket, *, no_torch: bool = False) -> int:
    """Serve one agent until it stops this trainer or is gone; return the exit status."""
    agent.setblocking(True)
    trainer = Trainer(agent, no_torch)
    try:
        trainer.say(Hello(os.getpid()))
        while True:
            trainer.obey(trainer.next_message(None))
    except Ended:
        return 0
    except RemoteProtocolError as error:
        with suppress(Ended):
            trainer.say(Failed(channel.BROKEN, channel.shortened(str(error))))
        return 1


class Ended(Exception):
    """The agent said Stop, or is gone."""


class Cancelled(Exception):
    """The agent cancelled the slice in work."""


class Trainer:
    """Holds a task, its worker and the two mapped files."""

    def __init__(self, agent: socket.socket, no_torch: bool) -> None:
        self._agent, self._no_torch = agent, no_torch
        self._library = ""  # that trains the task
        self._loaded: Load | None = None
        self._task: Task | None = None
        self._worker: Worker | None = None
        self._model = self._update = memoryview(b"")
        self._sample_us = float("inf")  # what a sample of the last slice took
        self._hold: int | None = None  # descriptor whose lock keeps another trainer off the update

    def obey(self, message: channel.Message | None) -> None:
        """Carry out one message. What goes wrong is answered by Failed; only Ended and a broken protocol get out."""
        if isinstance(message, Load):
            self._attempt(None, lambda: self._load(message))
        elif isinstance(message, Work):
            self._attempt(
                message.lease, lambda: self._work(message)
            )  # an Input or Cancel of work that is over: nothing

    def say(self, message: channel.Message) -> None:
        try:
            self._agent.send(channel.encode(message))
        except OSError:
            raise Ended from None

    def next_message(self, timeout_s: float | None) -> channel.Message | None:
        """Return the next message, or None after timeout_s (None: wait). Raises Ended for Stop and a closed socket."""
        if timeout_s is not None and not select.select((self._agent,), (), (), timeout_s)[0]:
            return None
        try:
            data = self._agent.recv(channel.MESSAGE_BYTES + 1)
        except OSError:
            data = b""
        message = channel.decode(data, channel.FROM_AGENT) if data else Stop()
        if isinstance(message, Stop):
            raise Ended
        return message

    def _attempt(self, lease: int | None, action: Callable[[], None]) -> None:
        try:
            action()
            return
        except (Ended, RemoteProtocolError):
            raise
        except Cancelled:
            reason, detail = "cancelled", "the agent cancelled this lease"
        except PacelineError as error:
            reason = {DataError: "data", SettingsError: "settings"}.get(type(error), "refused")
            detail = str(error)
        except MemoryError:
            reason, detail = "memory", "out of memory; try a smaller batch or model"
        except Exception as error:
            traceback.print_exc()
            reason, detail = "error", f"{type(error).__name__}: {error}"
        self.say(Failed(reason, channel.shortened(detail), lease))

    # Load -----------------------------------------------------------------------------------------------------------

    def _load(self, load: Load) -> None:
        task = self._task_for(load)
        if self._hold is not None:
            os.close(self._hold)
        self._hold = _held(Path(load.update_path))
        assert self._worker is not None
        inbox_bytes, outbox_bytes = self._worker.inbox_bytes, self._worker.outbox_bytes
        self._model = _mapped(Path(load.model_path), inbox_bytes)
        self._update = _mapped(Path(load.update_path), outbox_bytes)
        self._loaded, self._sample_us = load, float("inf")
        self.say(
            Loaded(
                task.manifest.digest(), self._worker.model_bytes, self._worker.samples, task.data_label, inbox_bytes,
                outbox_bytes, data_sha256(task), self._library,
            )
        )  # fmt: skip

    def _task_for(self, load: Load) -> Task:
        """Return the task, the one at hand when nothing but the run, files or pace has changed."""
        known = self._loaded
        if known is not None and self._task is not None:
            same = replace(
                known, run=load.run, model_path=load.model_path, update_path=load.update_path, pace=load.pace
            )
            if same == load:
                return self._task
        self._loaded = self._task = self._worker = None
        try:
            options = json.loads(load.options)
        except ValueError as error:
            raise SettingsError([f"task options are not JSON: {error}"]) from None
        if type(options) is not dict:
            raise SettingsError([f"task options are a {type(options).__name__}, expected a JSON object"])
        own = options.pop(REGIME, {})
        name = (
            "" if load.task in BY_NO_LIBRARY else "torch" if not self._no_torch and _can_be_loaded("torch") else "numpy"
        )
        if name == "numpy" and load.regime not in BY_NUMPY:
            raise SettingsError(
                [f"run.regime: {load.regime} needs torch on each board, and this one has none that works; leave it out"]
            )
        folder = Path(load.data_dir) if load.data_dir else None
        self._task = make(load.task, options, load.seed, folder, has_torch=name != "numpy")
        self._library = f"{name} {sys.modules[name].__version__}" if name else ""
        self._worker = worker(load.regime, self._task, own)
        self._worker.warm_up(WARM_UP_BATCH)
        return self._task

    # Work -----------------------------------------------------------------------------------------------------------

    def _work(self, work: Work) -> None:
        if self._loaded is None or self._task is None or self._worker is None:
            raise RemoteProtocolError("WORK before LOAD")
        small = 0 < self._worker.update_bytes <= INLINE_BYTES  # it takes no time to write down
        quick = small and self._loaded.regime in ("pma", "async")  # ranks and clients know no end of their own
        pace, reference_s = self._loaded.pace, self._task.reference_seconds_per_sample
        brief = quick and self._sample_us * work.samples <= BRIEF_US
        clock = WorkClock(self, work.lease, pace, reference_s, quick=quick, brief=brief, host=self._loaded.host)
        result = self._worker.work(work, self._model, self._update, clock)
        self._sample_us = clock.compute_us / max(1, clock.samples)
        self.say(
            Done(
                lease=work.lease,
                samples=clock.samples,
                steps=clock.steps,
                compute_us=clock.compute_us,
                begin_us=clock.untold_us,
                end_us=clock.end_us if quick else 0,
                overruns=clock.overruns,
                late_us=clock.late_us,
                update_bytes=self._worker.update_bytes,
                update_sha256=hashlib.sha256(result).hexdigest(),
            )
        )


class WorkClock:
    """Time of one slice: edges, declared pace, progress, a look at the socket after each step, and, under a regime that
    steps over the link, the tensors that come and go.

    `quick`: DONE follows the end at once, and tells of it. `brief`: it is expected so soon that it may tell of the
    beginning as well.
    """

    def __init__(
        self, trainer: Trainer, lease: int, pace: Pace | None, seconds_per_sample: float, *, quick: bool = False,
        brief: bool = False, host: str = "",
    ) -> None:  # fmt: skip
        self._quick, self._brief = quick, brief
        self.untold_us = 0  # when computing began, if the agent does not know it yet
        self.host = host
        self._trainer = trainer
        self._lease = lease
        self._pacer = Pacer(pace, seconds_per_sample, lease) if pace is not None else None
        self._progress_due_s = 0.0
        self._inputs: deque[Input] = deque()
        self._begin_us = 0
        self.samples = self.steps = self.compute_us = 0

    @property
    def overruns(self) -> int:
        return self._pacer.overruns if self._pacer else 0

    @property
    def late_us(self) -> int:
        return round(self._pacer.late_s * 1e6) if self._pacer else 0

    def begin(self) -> None:
        self._begin_us = self.untold_us = _now_us()
        if not self._brief:
            self._tell_begin()
        begin_s = self._begin_us / 1e6
        if not self.steps:
            self._progress_due_s = begin_s + PROGRESS_S
        if self._pacer:
            self._pacer.begin(begin_s)

    def _tell_begin(self) -> None:
        if self.untold_us:
            self._trainer.say(Edge(self._lease, "begin", self.untold_us))
            self.untold_us = 0

    def step(self, samples: int) -> None:
        self.finish(samples)

    def finish(self, samples: int, part: float = 1.0) -> None:
        self.samples += samples
        self.steps += 1
        due_s = self._pause(samples, part, ends=True)
        if due_s >= self._progress_due_s:
            self._progress_due_s = due_s + PROGRESS_S
            self._trainer.say(Progress(self._lease, self.samples))

    def pause(self, samples: int, part: float) -> None:
        self._pause(samples, part, ends=False)

    def _pause(self, samples: int, part: float, *, ends: bool) -> float:
        now_s = time.monotonic()
        due_s = self._pacer.step(samples, now_s, part, ends=ends) if self._pacer else now_s
        if self.untold_us and due_s * 1e6 > self.untold_us + BRIEF_US:  # it was expected to be over by now
            self._tell_begin()
        while True:  # at least one look, then until the step is due
            message = self._trainer.next_message(max(0.0, due_s - time.monotonic()))
            if message is None:
                break
            self._answer(message)
        return due_s

    def wait(self) -> None:
        now_us = _now_us()
        self.compute_us += now_us - self._begin_us
        self._tell_begin()
        self._trainer.say(Edge(self._lease, "wait", now_us))

    def end(self) -> None:
        self.end_us = _now_us()
        self.compute_us += self.end_us - self._begin_us
        if not self._quick:
            self._tell_begin()
            self._trainer.say(Edge(self._lease, "end", self.end_us))

    def receive(self) -> Input:
        while not self._inputs:
            message = self._trainer.next_message(None)
            assert message is not None
            self._answer(message)
        return self._inputs.popleft()

    def look(self) -> bool:
        while (message := self._trainer.next_message(0.0)) is not None:
            self._answer(message)
        return bool(self._inputs)

    def put_out(self, step: int, redraw: int, what: str, size: int) -> None:
        self._trainer.say(Output(self._lease, step, redraw, what, size))

    def _answer(self, message: channel.Message) -> None:
        if isinstance(message, Cancel):
            if message.lease == self._lease:
                raise Cancelled
        elif isinstance(message, Input):
            if message.lease == self._lease:
                self._inputs.append(message)
        else:
            raise RemoteProtocolError(f"{message.kind.upper()} while lease {self._lease} is in work")


def _can_be_loaded(library: str) -> bool:
    try:
        importlib.import_module(library)
    except (ImportError, OSError):  # it is not there, or a library of its own is not
        return False
    return True


def _held(path: Path) -> int:
    """Lock the update: the trainer of an agent that was killed may take a moment to notice, and must not write here."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from None
    deadline_s = time.monotonic() + HOLD_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if time.monotonic() > deadline_s:
            os.close(descriptor)
            raise DataError(f"{path}: another trainer writes it; give each agent a state_dir of its own")
        time.sleep(0.02)


def _mapped(path: Path, nbytes: int) -> memoryview:
    """Size a file and map it for reading and writing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)  # a full disk is found here, not as a bus error in a slice
            os.ftruncate(descriptor, nbytes)
            return memoryview(mmap.mmap(descriptor, nbytes))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"{path}: cannot make a file of {nbytes} bytes: {error.strerror}") from None


def _now_us() -> int:
    return time.monotonic_ns() // 1000


if __name__ == "__main__":
    sys.exit(main())
