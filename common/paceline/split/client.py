# SPDX-License-Identifier: Apache-2.0
"""The clients' side of a step: own samples -> smashed tensor and labels, its gradient -> the client part's gradient.

It holds no optimiser: the part comes from the host before each step (DECISIONS 24). Between forward and backward it
keeps the graph of each open step. Knows no network, no schedule and no other client.
"""

from __future__ import annotations

import torch

from paceline.errors import LocalProtocolError
from paceline.split import SplitError
from paceline.split.layout import check_size, gradient_manifest, known, upload_manifest
from paceline.tasks import Buffer, Indices, SplitTask
from paceline.tasks.flat import Flat, as_tensor, view_of


class SplitClient:
    """One client part. Several clients of a process may share it: each has its own `key`.

    Clients of a group may also compute under one key, their samples one after the other: no norm of a client part looks
    across samples, so the sums are the same up to rounding.
    """

    def __init__(self, task: SplitTask, wire_dtype: str = "float32", device: str = "cpu") -> None:
        self._task, self._wire, self._device = task, known(wire_dtype), device
        self._flat = Flat(task.client_half(), device)
        self._flat.weights.zero_()
        self._open: dict[int, torch.Tensor] = {}  # key -> smashed tensor, in the part's own dtype

    def load(self, part: Buffer) -> None:
        """Take the client part that the host sent (task.client_manifest); open steps are forgotten."""
        self._open.clear()
        self._flat.load(part)

    def forward(self, key: int, indices: Indices, epoch: int) -> bytearray:
        """Return the upload of these samples (layout: `upload_manifest`); the step stays open under `key`."""
        if not len(indices):
            raise LocalProtocolError(f"client {key} has no sample in this step and takes no part in it")
        inputs, labels = self._task.batch(indices, epoch)
        smashed: torch.Tensor = self._flat.module(inputs.to(self._device))  # (n, ...) -> (n, *smashed_shape)
        self._open[key] = smashed
        manifest = upload_manifest(self._task, len(indices), self._wire)
        out = bytearray(manifest.nbytes)
        view_of(out, manifest, "smashed").copy_(smashed.detach())
        view_of(out, manifest, "labels").copy_(labels)
        return out

    def backward(self, key: int, gradient: Buffer) -> bytearray:
        """Return the client part's gradient (task.client_manifest) of an open step, and close it. Raises SplitError."""
        if key not in self._open:
            raise SplitError(key, "a gradient came, but no step is open; it was void or is over")
        smashed = self._open[key]
        manifest = gradient_manifest(self._task, len(smashed), self._wire)
        data = check_size(key, "the gradient of the smashed tensor", gradient, manifest)
        scale = float(view_of(data, manifest, "scale"))
        if not 0.0 < scale < float("inf"):
            raise SplitError(key, f"the gradient's scale is {scale}; expected a number above 0")
        back = view_of(data, manifest, "gradient").to(smashed) / scale
        if not bool(torch.isfinite(back).all()):
            raise SplitError(key, "the gradient of the smashed tensor is not finite")
        del self._open[key]
        found = torch.autograd.grad(smashed, self._flat.parameters, back)
        for parameter, value in zip(self._flat.parameters, found, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(value)
        out = bytearray(self._flat.manifest.nbytes)
        as_tensor(out)[: self._flat.gradient.nbytes].copy_(self._flat.gradient.view(torch.uint8))
        return out

    def forget(self, key: int | None = None) -> None:
        """Forget the open step of a key, of all keys for None: it is void."""
        if key is None:
            self._open.clear()
        else:
            self._open.pop(key, None)
