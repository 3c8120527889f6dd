# SPDX-License-Identifier: Apache-2.0
"""A group of ranks over gloo: its store, its collectives, its gradients. Knows torch.distributed; no host and no task.

Over nccl, where each rank has a CUDA GPU, it goes the same way; that was not tried.

Everything is bound to one chosen address (DECISIONS 21): gloo left to itself resolves the host's own name, which on
many systems is 127.0.1.1. Every wait ends within the patience.
"""

from __future__ import annotations

import fcntl
import gc
import ipaddress
import json
import math
import os
import re
import socket
import struct
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public by its documentation
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import DataError
from paceline.talk import printable
from paceline.torch.gradients import weight

SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"
SOURCE = re.compile(r"^\[\S+:\d+\] ")  # the place in gloo's source, before its sentence
SENTENCE = re.compile(r"\.\s+(?=[A-Z])")  # behind the first one gloo gives advice, which is not for who reads ours

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of output and targets


class Broken(Exception):
    """The group is no more. `blamed`: ranks whose fault it is, where that is known."""

    def __init__(self, kind: str, text: str, blamed: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.kind, self.blamed = kind, list(blamed)


class _Gradients:
    """Calls `when_whole` as soon as the last gradient of a backward pass is there, before its exchange begins.

    A communication hook could do that; but it takes part in the exchange, and costs more of a small step than this.
    """

    def __init__(self, module: nn.Module, when_whole: Callable[[], None]) -> None:
        parameters = [p for p in module.parameters() if p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._one) for p in parameters]  # type: ignore[no-untyped-call]
        self._all, self._when_whole = len(parameters), when_whole
        self.count = 0

    def _one(self, parameter: torch.Tensor) -> None:
        self.count += 1
        if self.count == self._all:
            self._when_whole()

    def close(self) -> None:
        """Leave the module as it was."""
        for hook in self._hooks:
            hook.remove()


class Group:
    """Make it, `open` (rank 0) or `find` the store, `meet`, `share`, `wrap`; then `step`. Raises Broken."""

    def __init__(
        self, rank: int, names: Sequence[str], address: str, patience_s: float, backend: str = "gloo"
    ) -> None:  # fmt: skip
        self._rank, self._names, self._address, self._backend = rank, names, address, backend
        self._patience = timedelta(seconds=patience_s)
        self._store: Any = None  # a TCPStore
        self._listener: socket.socket | None = None
        self._world: Any = None  # torch's process group
        self._model: DistributedDataParallel | None = None
        self._gradients: _Gradients | None = None
        self._loss: Loss = cross_entropy
        self._factors: dict[tuple[int, int], torch.Tensor] = {}  # by samples of this rank, of all
        self._after_backward: Callable[[], None] = lambda: None
        self._raised: BaseException | None = None  # by it: torch knows no way for all kinds through a backward pass
        self._whole_s = 0.0  # when the last gradient was there

    def open(self) -> int:
        """Open the store on a port that is free at this address, and return it."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((self._address, 0))
            listener.listen(128)
            port = int(listener.getsockname()[1])
            self._store = TCPStore(
                self._address, port, is_master=True, wait_for_workers=False, timeout=self._patience,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
        except (OSError, RuntimeError) as error:
            listener.close()
            raise Broken("store", f"cannot open a store at {self._address}: {_first_line(error)}", [0]) from None
        return port

    def find(self, address: str, port: int) -> None:
        """Connect to the first rank's store."""
        try:
            socket.create_connection((address, port), self._patience.total_seconds()).close()
            self._store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=self._patience)
        except (OSError, RuntimeError) as error:
            text = f"cannot reach the store of {self._names[0]} at {address}:{port}: {_first_line(error)}"
            raise Broken("unreachable", text, [self._rank]) from None

    def meet(self, facts: Mapping[str, str]) -> None:
        """See that every rank is alive and trains the same, then form the group."""
        store = self._store
        assert store is not None
        everybody = range(len(self._names))
        try:
            store.set(f"rank/{self._rank}", json.dumps(facts))
            store.wait([f"rank/{rank}" for rank in everybody], self._patience)
            found = [json.loads(store.get(f"rank/{rank}")) for rank in everybody]
        except RuntimeError as error:
            missing: list[int] = []
            with suppress(RuntimeError):
                missing = [rank for rank in everybody if not store.check([f"rank/{rank}"])]
            names = ", ".join(self._names[rank] for rank in missing) or _first_line(error)
            raise Broken("meeting", f"not all ranks came to the store: {names}", missing) from None
        for rank in everybody:
            for key in facts:
                if found[rank][key] != found[0][key]:
                    text = f"{self._names[rank]} has {key} {found[rank][key]}, {self._names[0]} {found[0][key]}"
                    raise Broken("different", text, [rank])
        os.environ[f"{self._backend.upper()}_SOCKET_IFNAME"] = interface_of(self._address)
        self._try(
            lambda: dist.init_process_group(
                self._backend, store=store, rank=self._rank, world_size=len(self._names), timeout=self._patience
            )
        )
        self._world = dist.group.WORLD

    def share(self, state: bytes) -> bytes:
        """Return the first rank's state."""
        buffer = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        buffer = buffer.cuda() if self._backend == "nccl" else buffer
        self._try(lambda: dist.broadcast(buffer, src=0))
        return bytes(memoryview(buffer.cpu().numpy()))  # type: ignore[arg-type]

    def wrap(self, module: nn.Module, loss: Loss = cross_entropy) -> None:
        """Let the gradients of a module pass through the group; the loss is a mean over samples."""
        self._loss = loss

        def wrapped() -> None:
            # Buffers are each rank's own within a round: their broadcast would stand in front of each forward.
            self._model = DistributedDataParallel(module, broadcast_buffers=False)

        self._try(wrapped)
        self._gradients = _Gradients(module, self._when_whole)

    def _when_whole(self) -> None:
        try:
            self._finish_computing()
            self._after_backward()
        except BaseException as error:
            self._raised = error
            raise RuntimeError("the step is given up") from None
        finally:
            self._whole_s = time.monotonic()

    def step(
        self, x: torch.Tensor, y: torch.Tensor, own: int, total: int, after_forward: Callable[[], None],
        after_backward: Callable[[], None],
    ) -> tuple[float, float, float]:  # fmt: skip
        """Leave the gradient of the mean over all ranks' samples; return seconds of forward, compute, exposed waiting.

        `after_backward` is called when the last local gradient is there; what it raises ends the step.
        """
        gradients = self._gradients
        assert self._model is not None  # and in no variable of this frame, which an error would carry out: see `close`
        assert gradients is not None
        gradients.count, self._after_backward, self._raised = 0, after_backward, None
        begin_s = time.monotonic()
        output = self._forward(x)
        self._finish_computing()
        after_forward()
        forward_s = time.monotonic() - begin_s
        loss = self._loss(output, y) if own else output.sum() * 0
        if not math.isfinite(loss.item()):
            raise ValueError("the loss is not finite; has training diverged? a smaller learning_rate may help")
        del output  # its graph goes as the backward pass does
        try:
            loss.backward(self._factor(loss, own, total))  # type: ignore[no-untyped-call]  # torch's own stub
        except RuntimeError as error:
            if self._raised is None:
                raise broken_by(error, self._patience.total_seconds()) from None
        if self._raised is not None:
            raise self._raised
        self._finish_computing()
        return forward_s, self._whole_s - begin_s, time.monotonic() - self._whole_s

    def _finish_computing(self) -> None:
        """A GPU is given its work and left to it; what is timed must be done."""
        if self._backend == "nccl":
            torch.cuda.synchronize()

    def _factor(self, loss: torch.Tensor, own: int, total: int) -> torch.Tensor:
        """Return what the backward pass begins with: torch averages the ranks, and no pass over gradients is ours."""
        found = self._factors.get((own, total))
        if found is None:
            value = weight(own, total, len(self._names))
            found = self._factors[own, total] = torch.full_like(loss, value, requires_grad=False)
        return found

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self._model is not None
        try:
            output: torch.Tensor = self._model(x)
        except RuntimeError as error:
            frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
            if any(frame.f_locals.get("self") is self._model.module for frame in frames):
                raise
            raise broken_by(error, self._patience.total_seconds()) from None  # of DDP's own, before the network's
        return output

    def close(self) -> None:
        """Let go of the group; neighbours that wait for this rank find out at once.

        Call it when no error is left whose frames hold the model. The model's reducer holds the process group, and if
        it is the last to let go, it waits under the interpreter's lock for gloo's threads, which wait for that lock to
        drop a collective that has failed. Python's own reference is let go without the lock: so it must be the last.
        """
        if self._gradients is not None:
            self._gradients.close()
        self._model = self._gradients = self._raised = None
        gc.collect()  # the model is a part of cycles
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        self._store = self._world = None

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except RuntimeError as error:
            raise broken_by(error, self._patience.total_seconds()) from None


def broken_by(error: RuntimeError, patience_s: float) -> Broken:
    """Return what a collective's error is to the group: gloo knows no finer classes, and names no rank."""
    if "Timed out" in str(error):
        return Broken("late", f"waited {patience_s:g} s for another rank's part of the step")
    return Broken("collective", f"a collective failed: {_first_line(error)}")


def address_towards(endpoint: str) -> str:
    """Return this machine's address on the way to an endpoint "tcp://HOST:PORT", or to an address."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0] if "://" in endpoint else endpoint
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # of a datagram socket: it asks for the way and sends nothing
            return str(probe.getsockname()[0])
        except OSError as error:
            raise Broken("route", f"there is no way to {host}: {error.strerror}") from None


def address_for(ranks: int, endpoint: str) -> str:
    """Return the address that a group's ports are bound to: a rank alone sends nothing, and stays on loopback."""
    return LOOPBACK if ranks == 1 else address_towards(endpoint)


def is_loopback(address: str) -> bool:
    """Tell whether what is sent there stays on this machine."""
    return ipaddress.ip_address(address).is_loopback


def need_consent(address: str, given: bool) -> None:
    """Raise DataError where collectives would leave this machine in plain text and nobody has agreed to that."""
    if not (given or is_loopback(address)):
        raise DataError(
            f"collectives would travel in plain text over {address}; set run.allow_plain_collectives = true on a "
            "network that you trust"
        )


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address. Raises Broken."""
    if is_loopback(address):
        address = LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]) == address:
                    return name
    raise Broken("interface", f"no interface has the address {address}")


def _first_line(error: BaseException) -> str:
    line = SENTENCE.split(SOURCE.sub("", str(error).strip().partition("\n")[0]))[0]
    return printable(line).rstrip(".")[:200] or type(error).__name__
