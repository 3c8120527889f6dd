# SPDX-License-Identifier: Apache-2.0
"""Networks as ordered lists of named parts, and the cut through such a list. Knows torch; no data and no optimiser.

A residual connection never leaves its part, so a model may be cut behind any part but the last. What a client computes
must not depend on who else is in its batch: BatchNorm in front of the cut becomes GroupNorm, behind it it sees the
pooled batch.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from paceline.errors import SettingsError
from paceline.settings import did_you_mean

Parts = list[tuple[str, nn.Module]]
GROUPS = 32  # of a GroupNorm, as in the GPSL paper; fewer where a group would have one channel


class Dense(nn.Linear):
    """Flatten, linear, and ReLU unless it is the last."""

    def __init__(self, inputs: int, outputs: int, last: bool = False) -> None:
        super().__init__(inputs, outputs)
        self._last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x.flatten(1))
        return y if self._last else y.relu()


class ResidualConv2d(nn.Conv2d):
    """A convolution without bias that begins as ResNets' do: normal, of a variance that keeps gradients' size."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Convolution(nn.Module):
    """3x3 convolution, norm, ReLU, and half as many rows and columns."""

    def __init__(self, inputs: int, outputs: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")
        self.norm = make_norm(norm, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)


class Stem(nn.Module):
    """ResNet's begin for small images: 3x3 convolution, norm, ReLU, at full size."""

    def __init__(self, inputs: int, outputs: int, norm: str) -> None:
        super().__init__()
        self.conv = ResidualConv2d(inputs, outputs, 3)
        self.norm = make_norm(norm, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x))
        return y.relu()


class Residual(nn.Module):
    """ResNet's basic block: two 3x3 convolutions beside a shortcut, a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = ResidualConv2d(inputs, outputs, 3, stride)
        self.norm1 = make_norm(norm, outputs)
        self.conv2 = ResidualConv2d(outputs, outputs, 3)
        self.norm2 = make_norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                ResidualConv2d(inputs, outputs, 1, stride), make_norm(norm, outputs)
            )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(self.conv1(x)).relu()
        z: torch.Tensor = self.norm2(self.conv2(y)) + self.shortcut(x)
        return z.relu()


class PooledHead(nn.Linear):
    """Mean over rows and columns, then linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.mean((2, 3)), self.weight, self.bias)


def make_norm(kind: str, channels: int) -> nn.Module:
    """Return "none", "batch" or "group" normalisation."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(groups(channels), channels) if kind == "group" else nn.Identity()


def groups(channels: int) -> int:
    """Return how many groups a GroupNorm over so many channels has: GROUPS, or fewer, so that each has two channels."""
    return max(1, math.gcd(2 * GROUPS, channels) // 2)


# Models -------------------------------------------------------------------------------------------------------------


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int]) -> Parts:
    """layer0, layer1, ...: hidden layers of these widths, then one that has an output a class."""
    widths = [math.prod(shape), *hidden, classes]
    last = len(widths) - 2
    return [(f"layer{i}", Dense(widths[i], widths[i + 1], i == last)) for i in range(last + 1)]


def cnn(shape: Sequence[int], classes: int, norm: str) -> Parts:
    """conv1, conv2, hidden, head: 16 and 32 channels, each pooled to half the size, 64 hidden units."""
    channels, rows, columns = shape
    return [
        ("conv1", Convolution(channels, 16, norm)),
        ("conv2", Convolution(16, 32, norm)),
        ("hidden", Dense(32 * (rows // 4) * (columns // 4), 64)),
        ("head", Dense(64, classes, last=True)),
    ]


BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


def resnet(shape: Sequence[int], classes: int, norm: str, blocks: Sequence[int]) -> Parts:
    """stem, layer1 to layer4, head: the form for 32 x 32 images, with a 3x3 stem and no max-pool."""
    parts: Parts = [("stem", Stem(shape[0], 64, norm))]
    if norm == "none":
        raise SettingsError(['task.norm: a ResNet without normalisation does not train; take "batch" or "group"'])
    inputs = 64
    for i, count in enumerate(blocks):
        outputs = 64 << i
        strides = [1 if i == 0 else 2] + [1] * (count - 1)
        stage = []
        for stride in strides:
            stage.append(Residual(inputs, outputs, stride, norm))
            inputs = outputs
        parts.append((f"layer{i + 1}", nn.Sequential(*stage)))
    parts.append(("head", PooledHead(inputs, classes)))
    return parts


def build(model: str, shape: Sequence[int], classes: int, norm: str, hidden: Sequence[int]) -> Parts:
    """Return a model's parts by name. `norm` "auto" is none for mlp and cnn, batch for ResNets."""
    if norm == "auto":
        norm = "batch" if model in BLOCKS else "none"
    if model == "mlp":
        if norm != "none":
            raise SettingsError(['task.norm: the model "mlp" has no normalisation; take "none", or the model "cnn"'])
        return mlp(shape, classes, hidden)
    return cnn(shape, classes, norm) if model == "cnn" else resnet(shape, classes, norm, BLOCKS[model])


def initialise(module: nn.Module, seed: int) -> None:
    """Set all weights and biases, in order, from a seed: uniform in +-1/sqrt(inputs), ResNets' convolutions normal."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
                layer.reset_parameters()  # 1 and 0
            if isinstance(layer, nn.GRU):
                bound = 1.0 / math.sqrt(layer.hidden_size)
                for parameter in layer.parameters():
                    parameter.uniform_(-bound, bound, generator=source)
            if not isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding | nn.EmbeddingBag):
                continue
            if isinstance(layer, ResidualConv2d):
                spread = math.sqrt(2.0 / (layer.out_channels * math.prod(layer.kernel_size)))
                layer.weight.normal_(0.0, spread, generator=source)
                continue
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            layer.weight.uniform_(-bound, bound, generator=source)
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                if layer.padding_idx is not None:
                    layer.weight[layer.padding_idx] = 0.0
            elif layer.bias is not None:
                layer.bias.uniform_(-bound, bound, generator=source)


# The cut ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves:
    """A model that was cut. `notes`: what was changed on the way, a sentence each."""

    client: nn.Sequential
    server: nn.Sequential
    notes: tuple[str, ...]


def split(parts: Parts, cut: str, *, convert: bool = True) -> Halves:
    """Cut a model behind the part named `cut`; clients hold what is before. Raises SettingsError.

    BatchNorm in the client part becomes GroupNorm with a note, or is refused (`convert` False). Any other state that
    training changes by the way (a buffer) is refused: each client would have its own.
    """
    names = [name for name, _ in parts]
    if cut not in names[:-1]:
        valid = names[:-1]
        raise SettingsError(
            [
                f"task.cut: there is no cut {cut!r}; {did_you_mean(cut, valid)} "
                f"(the model can be cut behind {', '.join(valid) or 'nothing: it has one part'})"
            ]
        )
    at = names.index(cut) + 1
    notes = []
    client: list[tuple[str, nn.Module]] = []
    for name, part in parts[:at]:
        holder = nn.Sequential(OrderedDict([(name, part)]))
        found = _batch_norms(holder)
        if found and not convert:
            text = f"part {name} in front of the cut has BatchNorm, and its statistics would differ by client"
            raise SettingsError([f'task.cut: {text} ({", ".join(found)}); take norm = "group", or have it converted'])
        if found:
            notes.append(f"client part {name}: BatchNorm became GroupNorm in {', '.join(found)}")
            _to_group_norms(holder)
        state = [key for key, _ in holder.named_buffers()]
        if state:
            text = f"part {name} in front of the cut keeps state, each client its own ({', '.join(state)})"
            raise SettingsError([f"task.cut: {text}"])
        client.append((name, holder[0]))
    return Halves(nn.Sequential(OrderedDict(client)), nn.Sequential(OrderedDict(parts[at:])), tuple(notes))


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm)


def _batch_norms(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_modules() if _is_batch_norm(child)]


def _to_group_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if _is_batch_norm(child):
            channels = int(child.num_features)  # type: ignore[arg-type]  # every BatchNorm has it
            setattr(module, name, nn.GroupNorm(groups(channels), channels))
        else:
            _to_group_norms(child)
