# SPDX-License-Identifier: Apache-2.0
"""The host's side of a step: all uploads -> one forward of the server part, one mean loss over the pooled batch, each
client's gradient; then the sum of the client parts' gradients, and one step of both optimisers (DECISIONS 24).

A step has two phases (DECISIONS 23): until `commit` nothing has changed, and `void` takes back what a forward does by
the way (BatchNorm's statistics). Clients come in increasing order whatever the order of arrival, so the bits do not
depend on it. Knows no network, no schedule and no sample.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from paceline.errors import LocalProtocolError, StorageError
from paceline.split import SplitError, Upload
from paceline.split.layout import check_size, gradient_manifest, known, upload_manifest
from paceline.tasks import Buffer, SplitTask
from paceline.tasks.flat import Flat, as_tensor, view_of

_HEAD = struct.Struct("<4sQQQQ")  # magic, version, optimiser steps, bytes of the model, bytes of the optimisers' memory
_MAGIC = b"PSL1"
HALF_TARGET = 1 << 10  # float16 gradients are scaled so that the largest lies below it; 65,504 is the end


@dataclass(frozen=True)
class Step:
    """What came out of the first phase."""

    clients: tuple[int, ...]  # increasing
    samples: int
    loss: float  # mean over the pooled batch
    right: int  # how many the model had right
    labels: tuple[int, ...]  # how many of each class
    gradients: Mapping[int, bytes]  # client -> layout `gradient_manifest`


class SplitHost:
    """The model and both optimisers. One step at a time: `step`, then `commit` or `void`."""

    def __init__(self, task: SplitTask, wire_dtype: str = "float32", device: str = "cpu") -> None:
        self._task, self._wire, self._device = task, known(wire_dtype), device
        client, server = task.halves()
        self._client, self._server = Flat(client, device), Flat(server, device)
        self._optimisers = (task.optimiser(self._client.weights), task.optimiser(self._server.weights))
        self._open: tuple[int, ...] = ()  # clients of the step between its phases
        self._before = self._server.buffers.clone()
        self.version = 0  # committed steps

    # A step -----------------------------------------------------------------------------------------------------------

    def step(self, uploads: Sequence[Upload]) -> Step:
        """Do the first phase. Raises SplitError, and then no step is open and nothing has changed."""
        if self._open:
            raise LocalProtocolError("a step is open; commit it or void it first")
        uploads = sorted(uploads, key=lambda upload: upload.client)
        self._check_clients(uploads)
        read = [self._read(upload) for upload in uploads]
        self._check_finite("smashed tensor", {u.client: tensor for u, (tensor, _) in zip(uploads, read, strict=True)})
        smashed = torch.cat([tensor for tensor, _ in read]).requires_grad_(True)  # (B, *smashed_shape)
        labels = torch.cat([truth for _, truth in read])  # (B,)
        self._before.copy_(self._server.buffers)
        self._server.gradient.zero_()
        try:
            logits = self._server.module(smashed)  # (B, classes)
            loss = cross_entropy(logits, labels)  # ONE mean over the pooled batch
            value = float(loss.detach())
            if not math.isfinite(value):
                raise SplitError(None, f"the loss of step {self.version} is {value}: the training has diverged")
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
            if not bool(torch.isfinite(smashed.grad).all()):  # type: ignore[arg-type]  # there is one now
                smashed.grad = None
                raise SplitError(None, f"the gradient of step {self.version} is not finite: the training has diverged")
        except ValueError as error:  # BatchNorm over a single value
            raise SplitError(None, f"the server part cannot train on a batch of {len(labels)}: {error}") from None
        finally:
            if smashed.grad is None:
                self._server.buffers.copy_(self._before)
        assert smashed.grad is not None
        pieces = torch.split(smashed.grad, [upload.samples for upload in uploads])
        self._open = tuple(upload.client for upload in uploads)
        return Step(
            clients=self._open,
            samples=len(labels),
            loss=value,
            right=int((logits.argmax(1) == labels).sum()),
            labels=tuple(torch.bincount(labels, minlength=self._task.classes).tolist()),
            gradients={client: self._pack(piece) for client, piece in zip(self._open, pieces, strict=True)},
        )

    def commit(self, gradients: Mapping[int, Buffer], weight: float = 1.0) -> None:
        """Do the second phase with the gradient of every client of the step, summed in their order.

        Summed, not averaged: each carries its share of the one mean already. `weight` is for studies: of the whole
        step's gradient. Raises SplitError, and then the step is still open.
        """
        if not self._open:
            raise LocalProtocolError("no step is open")
        if set(gradients) != set(self._open):
            late = sorted(set(self._open) - set(gradients))
            extra = sorted(set(gradients) - set(self._open))
            raise SplitError(None, f"gradients of the step's clients: missing are {late}, not asked for are {extra}")
        total = torch.zeros_like(self._client.weights)
        parts = {}
        for client in self._open:
            data = check_size(client, "the client part's gradient", gradients[client], self._client.manifest)
            parts[client] = as_tensor(data)[: total.nbytes].view(total.dtype).to(self._device)
        self._check_finite("gradient of the client part", parts)
        for part in parts.values():
            total += part
        for optimiser, gradient in zip(self._optimisers, (total, self._server.gradient), strict=True):
            optimiser.step(gradient if weight == 1.0 else gradient * weight)
        self._open = ()
        self.version += 1

    def void(self) -> None:
        """Forget the step: everything is as it was before."""
        if self._open:
            self._server.buffers.copy_(self._before)
            self._open = ()

    def _check_clients(self, uploads: Sequence[Upload]) -> None:
        if not uploads:
            raise SplitError(None, "a step without a client has no batch")
        for one, next_ in itertools.pairwise(uploads):
            if one.client == next_.client:
                raise SplitError(one.client, "it handed over twice for one step")

    def _check_finite(self, what: str, tensors: Mapping[int, torch.Tensor]) -> None:
        """One client alone may be broken; where several put out what is not finite, it is the training, and no fault
        of theirs.
        """
        broken = [client for client, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
        half = self._wire == "float16" and what == "smashed tensor"
        if len(broken) > 1:
            why = "the training has diverged" + (", or its numbers are too large for float16" if half else "")
            whose = f"{len(broken)} of {len(tensors)} clients'"
            raise SplitError(None, f"in step {self.version} {whose} {what} is not finite: {why}")
        if broken:
            raise SplitError(broken[0], f"its {what} is not finite" + (" in float16, which ends at 65,504" * half))

    def _read(self, upload: Upload) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a client's smashed tensor in the server part's dtype, and its labels, both checked."""
        client = upload.client
        if upload.samples < 1:
            raise SplitError(client, f"it handed over {upload.samples} samples; who has none takes no part in a step")
        manifest = upload_manifest(self._task, upload.samples, self._wire)
        shape = (upload.samples, *self._task.smashed_shape)
        if upload.dtype and upload.dtype != self._wire:
            raise SplitError(client, f"its smashed tensor is {upload.dtype}, expected {self._wire}")
        if upload.shape and tuple(upload.shape) != shape:
            raise SplitError(client, f"its smashed tensor has shape {tuple(upload.shape)}, expected {shape}")
        data = check_size(client, "its upload", upload.data, manifest)
        smashed = view_of(data, manifest, "smashed").to(self._device, self._server.weights.dtype)
        labels = view_of(data, manifest, "labels").to(self._device, torch.int64)
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self._task.classes:
            wrong = low if low < 0 else high
            raise SplitError(client, f"one of its labels is {wrong}; expected 0 to {self._task.classes - 1}")
        return smashed, labels

    def _pack(self, gradient: torch.Tensor) -> bytes:
        manifest = gradient_manifest(self._task, len(gradient), self._wire)
        out = bytearray(manifest.nbytes)
        scale = 1.0
        if self._wire == "float16":
            largest = float(gradient.abs().max())
            exponent = torch.frexp(torch.tensor(largest)).exponent.item() if largest else 0  # largest < 2^exponent
            scale = float(HALF_TARGET * 2.0 ** -max(-110, min(110, exponent)))
        view_of(out, manifest, "scale").fill_(scale)
        view_of(out, manifest, "gradient").copy_(gradient * scale)
        return bytes(out)

    # What the model is ------------------------------------------------------------------------------------------------

    def client_part(self) -> bytes:
        """Return the client part (task.client_manifest) of `version`."""
        return self._client.to_bytes()

    def digest(self) -> str:
        """Return the sha256 (hex) of the client part: what clients hold must have the same."""
        return hashlib.sha256(self.client_part()).hexdigest()

    def model(self) -> bytes:
        """Return the whole model (task.manifest)."""
        return self._client.to_bytes() + self._server.to_bytes()

    def load_model(self, model: Buffer) -> None:
        """Begin with this model (task.manifest), at version 0 and without optimiser state."""
        view = memoryview(model).cast("B")
        at = self._client.manifest.nbytes
        self.void()
        self._client.load(view[:at])
        self._server.load(view[at:])
        for optimiser in self._optimisers:
            optimiser.reset()
        self.version = 0

    def state(self) -> bytes:
        """Return everything needed to go on from the last committed step."""
        if self._open:
            raise LocalProtocolError("a step is open; commit it or void it first")
        model = self.model()
        memory = b"".join(bytes(o.memory.cpu().contiguous().view(torch.uint8).numpy().data) for o in self._optimisers)
        return _HEAD.pack(_MAGIC, self.version, self._optimisers[0].steps, len(model), len(memory)) + model + memory

    def load_state(self, state: bytes) -> None:
        """Go on from what `state` returned. Raises StorageError when it is damaged, or of another task."""
        sizes = [o.memory.nbytes for o in self._optimisers]
        nbytes = self._client.manifest.nbytes + self._server.manifest.nbytes
        whole = _HEAD.size + nbytes + sum(sizes)
        if len(state) != whole or _HEAD.unpack_from(state)[0] != _MAGIC:
            raise StorageError("the state of split learning is damaged, or of another model or optimiser")
        _, version, steps, in_model, in_memory = _HEAD.unpack_from(state)
        if (in_model, in_memory) != (nbytes, sum(sizes)):
            raise StorageError("the state of split learning is damaged: its parts have not the lengths of its head")
        at = _HEAD.size + nbytes
        self.load_model(state[_HEAD.size : at])
        for optimiser, size in zip(self._optimisers, sizes, strict=True):
            if size:
                values = torch.frombuffer(bytearray(state[at : at + size]), dtype=optimiser.memory.dtype)
                optimiser.memory.copy_(values.view(optimiser.memory.shape))
            optimiser.steps = steps
            at += size
        self.version = version


def finds_cuda() -> bool:
    """Tell whether torch can compute on a CUDA device here."""
    return torch.cuda.is_available()
