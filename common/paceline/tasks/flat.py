# SPDX-License-Identifier: Apache-2.0
"""A torch module whose parameters, buffers and gradients are views into flat memory, and the optimisers on it.

Loading and dumping a model are one copy each, an optimiser step is a few operations on one vector. Parameters come
first in the layout, buffers behind, and the gaps of the layout stay zero.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn

from paceline.errors import CoreError
from paceline.tasks import Buffer
from paceline.tensors import Manifest, Role

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam
_NAMES = {
    torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int64: "int64", torch.uint8: "uint8", torch.int32: "int32",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def manifest_of(module: nn.Module) -> Manifest:
    """Return the layout of a module: its parameters in their order, then its buffers."""
    return Manifest.build(entries_of(module))


def entries_of(module: nn.Module) -> list[tuple[str, str, tuple[int, ...], Role]]:
    """Return name, dtype, shape and role of each tensor of a module."""
    entries: list[tuple[str, str, tuple[int, ...], Role]] = []
    for name, parameter in module.named_parameters():
        entries.append((name, _NAMES[parameter.dtype], tuple(parameter.shape), "parameter"))
    for name, buffer in module.named_buffers():
        entries.append((name, _NAMES[buffer.dtype], tuple(buffer.shape), "buffer"))
    return entries


class Flat:
    """A module in flat memory. What it holds when it comes here stays its content; all its floats are of one dtype."""

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.module = module
        self.manifest = manifest_of(module)
        self._memory = torch.zeros(self.manifest.nbytes, dtype=torch.uint8, device=device)
        parameters = [spec for spec in self.manifest.tensors if spec.role == "parameter"]
        end = parameters[-1].offset + parameters[-1].nbytes
        dtype = DTYPES[parameters[0].dtype]
        self.weights = self._memory[:end].view(dtype)  # all parameters, gaps included
        self.gradient = torch.zeros_like(self.weights)
        item = self.weights.element_size()
        self.parameters: list[nn.Parameter] = []
        for spec, (_, parameter) in zip(parameters, module.named_parameters(), strict=True):
            place = slice(spec.offset // item, spec.offset // item + spec.items)
            view = self.weights[place].view(spec.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[place].view(spec.shape)
            self.parameters.append(parameter)
        self.buffers = self._memory[-(-end // 16) * 16 :]  # bytes; empty where the module has none
        owners = dict(module.named_modules())
        for spec in self.manifest.tensors[len(parameters) :]:
            path, _, name = spec.name.rpartition(".")
            bytes_ = self._memory[spec.offset : spec.offset + spec.nbytes]
            view = bytes_.view(DTYPES[spec.dtype]).view(spec.shape)
            view.copy_(cast(torch.Tensor, getattr(owners[path], name)))
            owners[path]._buffers[name] = view.data  # one BatchNorm's update must not look like another's to backward

    def load(self, model: Buffer) -> None:
        """Take all bytes of the manifest's layout."""
        if memoryview(model).nbytes != self.manifest.nbytes:
            raise CoreError(f"a model of {memoryview(model).nbytes} bytes came; expected {self.manifest.nbytes}")
        self._memory.copy_(as_tensor(model))

    def dump(self, out: bytearray | memoryview) -> None:
        """Write all bytes of the manifest's layout."""
        as_tensor(out).copy_(self._memory)

    def to_bytes(self) -> bytes:
        return bytes(memoryview(self._memory.cpu().numpy()).cast("B"))  # type: ignore[arg-type]  # arrays are buffers


def as_tensor(buffer: Buffer) -> torch.Tensor:
    """Return a buffer's bytes as a tensor of bytes; it shares them where they can be written to."""
    view = memoryview(buffer).cast("B")
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def view_of(buffer: Buffer, manifest: Manifest, name: str) -> torch.Tensor:
    """Return one tensor of a layout; it shares the buffer's bytes where they can be written to."""
    spec = manifest[name]
    bytes_ = as_tensor(manifest.view(buffer, spec))
    return bytes_.view(DTYPES[spec.dtype]).view(spec.shape)


class Optimiser:
    """Gradient descent on one flat vector, with momentum or Adam's moments; `memory` is all its state."""

    def __init__(self, kind: str, learning_rate: float, momentum: float, weights: torch.Tensor) -> None:
        self._kind, self._rate, self._momentum = kind, learning_rate, momentum
        self._weights = weights
        self.memory = torch.zeros((2 if kind == "adam" else 1 if momentum else 0, len(weights))).to(weights)
        self.steps = 0

    def reset(self) -> None:
        """Forget all state."""
        self.memory.zero_()
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> None:
        """Move the weights."""
        self.steps += 1
        if self._kind == "adam":
            first, second = self.memory
            first.lerp_(gradient, 1.0 - BETA1)
            second.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
            spread = second.sqrt().div_(math.sqrt(1.0 - BETA2**self.steps)).add_(EPSILON)
            self._weights.addcdiv_(first, spread, value=-self._rate / (1.0 - BETA1**self.steps))
            return
        if len(self.memory):
            gradient = self.memory[0].mul_(self._momentum).add_(gradient)
        self._weights.add_(gradient, alpha=-self._rate)
