# SPDX-License-Identifier: Apache-2.0
"""The trainer child, seen from the agent: its process or connection, its channel, its two mapped files. Knows no link.

On a board the child is spawned over a socket pair; in an emulated fleet the agent connects to a preloaded server, which
forks one for it. Either way the trainer is another process: what kills it is reported, not suffered.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.errors import StorageError
from paceline_agent import channel

END_S = 2.0


class TrainerChild:
    """At most one living trainer. Its files lie in `state_dir`; `server` is a trainer server's socket or empty."""

    def __init__(self, state_dir: Path, server: str) -> None:
        self._server = server
        self.model_path = state_dir / "model"
        self.update_path = state_dir / "update"
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.model: mmap.mmap | None = None
        self.update: mmap.mmap | None = None
        self.pid = 0  # as it says itself; 0: it has not yet
        self._options: list[str] = []

    def fileno(self) -> int | None:
        """Return the channel's descriptor while a trainer lives."""
        return self._socket.fileno() if self._socket is not None else None

    def start(self) -> None:
        """Bring a trainer to life if none is. Raises OSError when that fails."""
        if self._socket is not None:
            return
        if self._server:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self._socket.connect(self._server)
            except OSError:
                self._socket.close()
                self._socket = None
                raise
        else:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "paceline_agent.trainer", "--fd", str(theirs.fileno()), *self._options],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            self._socket = ours
        self._socket.setblocking(False)

    def send(self, message: channel.Message) -> None:
        """Send to the trainer; if it is dead, `receive` will tell."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(channel.encode(message))

    def receive(self) -> Iterator[channel.Message | None]:
        """Yield what the trainer said; None, once, when it is gone."""
        while self._socket is not None:
            try:
                data = self._socket.recv(channel.MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                yield None
                return
            message = channel.decode(data, channel.FROM_TRAINER)
            yield message
            if isinstance(message, channel.Done):  # it waits for us now: another look would find nothing
                return

    def map(self, inbox_bytes: int, outbox_bytes: int) -> None:
        """Map both files, which the trainer has sized. Raises StorageError when they are not what it said."""
        self.unmap()
        try:
            with self.model_path.open("r+b") as model, self.update_path.open("r+b") as update:
                self.model = mmap.mmap(model.fileno(), inbox_bytes)
                self.update = mmap.mmap(update.fileno(), outbox_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            text = f"{self.model_path.parent}: cannot map {inbox_bytes} and {outbox_bytes} bytes: {error}"
            raise StorageError(text) from None

    def unmap(self) -> None:
        """Let go of both files. A view of the update that is still being sent keeps its map alive."""
        for mapped in (self.model, self.update):
            if mapped is not None:
                with suppress(BufferError):
                    mapped.close()
        self.model = self.update = None

    def bury(self) -> str:
        """Collect a dead trainer and return how it died."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.pid = 0
        self.unmap()
        if self._process is None:
            return "the trainer process is gone"
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        if status < 0:
            name = signal.Signals(-status).name
            hint = "; out of memory? try a smaller batch or model" if name == "SIGKILL" else ""
            if name == "SIGILL":  # torch of another processor; the next one does what numpy can do
                self._options, hint = ["--no-torch"], "; the next one trains without torch, which may be its cause"
            return f"the trainer was ended by {name}{hint}"
        return f"the trainer ended with status {status}"

    def kill(self) -> None:
        """Kill a trainer that hears nothing; `receive` will tell that it is gone."""
        if self._socket is not None and self.pid:  # an open channel: it is alive, and the number still its own
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the trainer: it stops at the closing of its channel, or is killed."""
        if self._socket is not None:
            self.send(channel.Stop())
            self.bury()
