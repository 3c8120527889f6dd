# SPDX-License-Identifier: Apache-2.0
"""Ten floats fitted to made-up data: a real task that costs almost nothing, so what remains is the system itself.

Knows neither numpy nor torch. Sample i is a hash of (seed, i), so there is no data to load: ten features of six bits
each in [-1, 1), and a target that a known model plus bounded noise makes of them. The loss is the mean squared error.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from paceline.tasks import Buffer, Evaluation, Indices, read_options
from paceline.tasks.options import LinearOptions
from paceline.tensors import Manifest, Role

WEIGHTS = 10
TEST_SAMPLES = 512  # held out: sample numbers from 2^32 on, which no training index reaches
NOISE = 1.0 / 32.0  # half-width of the target's noise
_MASK = (1 << 64) - 1
_PACKED = struct.Struct(f"<{WEIGHTS}f")


def _mix(value: int) -> int:
    """Return 64 well mixed bits of a 64-bit number (the splitmix64 finaliser)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Linear:
    """The task; see paceline.tasks.Task."""

    def __init__(self, options: Mapping[str, object], seed: int, data_dir: Path | None = None) -> None:
        self.options = read_options(options, LinearOptions)
        self.samples = self.options.samples
        tensors: list[tuple[str, str, tuple[int, ...], Role]] = [("weight", "float32", (WEIGHTS,), "parameter")]
        if self.options.ballast:
            tensors.append(("ballast", "float32", (self.options.ballast,), "parameter"))
        self.manifest = Manifest.build(tensors)
        self.reference_seconds_per_sample = self.options.reference_seconds_per_sample
        self.data_label = f"synthetic linear, {self.samples} samples"
        self._key = _mix(seed & _MASK)
        self._test: list[tuple[tuple[float, ...], float]] = []
        self.truth = tuple(_feature(_mix(self._key + 1), j) for j in range(WEIGHTS))

    def sample(self, index: int) -> tuple[tuple[float, ...], float]:
        """Return (features, target) of a sample; each is a multiple of 2^-10, so exact in double precision."""
        bits = _mix((self._key + 0x9E3779B97F4A7C15 * (index + 2)) & _MASK)
        features = tuple([((bits >> shift) & 63) / 32.0 - 1.0 for shift in range(0, 6 * WEIGHTS, 6)])
        noise = ((bits >> 60) / 8.0 - 0.9375) * NOISE
        return features, sum([w * x for w, x in zip(self.truth, features, strict=True)]) + noise

    def initial(self) -> bytes:
        return self._pad(_PACKED.pack(*[0.0] * WEIGHTS))

    def evaluate(self, model: Buffer) -> Evaluation:
        weights = _PACKED.unpack_from(model)
        if not self._test:
            self._test = [self.sample(index) for index in range(1 << 32, (1 << 32) + TEST_SAMPLES)]
        total = 0.0
        for features, target in self._test:
            error = sum([w * x for w, x in zip(weights, features, strict=True)]) - target
            total += error * error
        return Evaluation(TEST_SAMPLES, total / TEST_SAMPLES, None, "mse")

    def learner(self) -> LinearLearner:
        return LinearLearner(self)

    def _pad(self, packed: bytes) -> bytes:
        return packed.ljust(self.manifest.nbytes, b"\0")


class LinearLearner:
    """Plain gradient descent in double precision; weights are rounded to single precision when they are dumped."""

    def __init__(self, task: Linear) -> None:
        self._task = task
        self._weights = self._origin = [0.0] * WEIGHTS
        self._rho = 0.0
        self._ballast = b""

    at_once = 0  # its samples take no memory

    def load(self, model: Buffer, rho: float = 0.0) -> None:
        self._weights = list(_PACKED.unpack_from(model))
        self._rho, self._origin = rho, self._weights
        self._ballast = bytes(memoryview(model)[_PACKED.size :])

    def step(self, indices: Indices) -> None:
        weights = self._weights
        gradient = [0.0] * WEIGHTS
        for index in indices:
            features, target = self._task.sample(index)
            error = sum([w * x for w, x in zip(weights, features, strict=True)]) - target
            gradient = [g + error * x for g, x in zip(gradient, features, strict=True)]
        rate = self._task.options.learning_rate
        scale = 2.0 * rate / len(indices)  # d/dw of the mean of error^2
        if self._rho:
            weights = [w - rate * self._rho * (w - o) for w, o in zip(weights, self._origin, strict=True)]
        self._weights = [w - scale * g for w, g in zip(weights, gradient, strict=True)]

    def dump(self, out: bytearray | memoryview) -> None:
        out[:] = _PACKED.pack(*self._weights) + self._ballast


def _feature(bits: int, place: int) -> float:
    return ((bits >> (6 * place)) & 63) / 32.0 - 1.0
