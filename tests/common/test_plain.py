# SPDX-License-Identifier: Apache-2.0
"""Training by numpy against the torch tasks whose twins it is: same layout, same first weights, same steps.

Tolerance: float32 sums in another order, over 12 steps of 7 samples; 1e-5 of the largest weight (DECISIONS 46).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.data.idx import write_idx
from paceline.data.sources import KINDS
from paceline.errors import SettingsError
from paceline.tasks import Task, make

TRAIN, TEST, BATCH, STEPS = 84, 23, 7, 12
SHAPES = {"mnist": (6, 5), "fashion-mnist": (6, 5), "cifar10": (3, 4, 4), "cifar100": (3, 4, 4)}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("mnist", {"momentum": 0.0}),
    "momentum, two hidden layers": ("mnist", {"hidden": [9, 8], "momentum": 0.8}),
    "adam": ("mnist", {"optimizer": "adam", "learning_rate": 0.004}),
    "part of the set": ("mnist", {"train_samples": 50, "test_samples": 20}),
    "clothes": ("fashion-mnist", {"model": "mlp"}),
    "three channels": ("cifar10", {"model": "mlp", "hidden": [11], "optimizer": "adam"}),
    "a cut": ("mnist", {"hidden": [9, 8], "cut": "layer1"}),
    "float64": ("mnist", {"precision": "float64", "momentum": 0.8}),
}


@pytest.fixture
def images(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes a folder of small random images."""

    def made(name: str) -> Path:
        source, files = np.random.default_rng(5), KINDS[name].files
        for (picture, label), count in ((files[:2], TRAIN), (files[2:], TEST)):
            shape = (count, *SHAPES[name])
            write_idx(tmp_path / picture, shape, source.integers(0, 256, shape, dtype=np.uint8).tobytes())
            write_idx(tmp_path / label, (count,), source.integers(0, 10, count, dtype=np.uint8).tobytes())
        return tmp_path

    return made


def twins(name: str, options: dict[str, object], folder: Path) -> tuple[Task, Task]:
    """Return a task as torch trains it, and as numpy does."""
    by_torch, by_numpy = (make(name, options, 2**33 + 5, folder, has_torch=has) for has in (True, False))
    assert type(by_torch) is not type(by_numpy)
    return by_torch, by_numpy


def trained(task: Task, rho: float) -> bytes:
    """Return the model after a slice."""
    learner, order = task.learner(), np.random.default_rng(1).permutation(task.samples).astype(np.uint32)
    learner.load(task.initial(), rho)
    for step in range(STEPS):
        learner.step(memoryview(order[np.arange(step * BATCH, (step + 1) * BATCH) % task.samples]))  # type: ignore[arg-type]  # arrays are buffers
    out = bytearray(task.manifest.nbytes)
    learner.dump(out)
    return bytes(out)


@pytest.mark.parametrize("rho", [0.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_an_update_by_numpy_is_that_of_torch(case: str, rho: float, images: Callable[[str], Path]) -> None:
    name, options = CASES[case]
    theirs, ours = twins(name, options, images(name))
    dtype = np.dtype(str(options.get("precision", "float32")))
    expected, got = (np.frombuffer(trained(task, rho), dtype) for task in (theirs, ours))
    moved = np.abs(expected - np.frombuffer(theirs.initial(), dtype)).max()
    off = np.abs(expected - got).max() / np.abs(expected).max()
    print(f"{case}: off by {off:.1e}, moved by {moved:.1e}")
    assert moved > 1e-3
    assert off < (1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("case", CASES)
def test_layout_and_data_are_the_same_and_so_are_the_first_weights_but_for_rounding(
    case: str, images: Callable[[str], Path]
) -> None:
    name, options = CASES[case]
    theirs, ours = twins(name, options, images(name))
    assert ours.manifest == theirs.manifest
    dtype = np.dtype(str(options.get("precision", "float32")))
    expected, got = (np.frombuffer(task.initial(), dtype) for task in (theirs, ours))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2 * float(np.finfo(dtype).eps) * np.abs(expected).max())
    for what in ("samples", "data_label", "data_sha256", "reference_seconds_per_sample"):
        assert getattr(ours, what) == getattr(theirs, what)


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_judged_alike(case: str, images: Callable[[str], Path]) -> None:
    name, options = CASES[case]
    theirs, ours = twins(name, options, images(name))
    expected, got = theirs.evaluate(theirs.initial()), ours.evaluate(theirs.initial())
    assert (got.samples, got.accuracy, got.metric) == (expected.samples, expected.accuracy, expected.metric)
    assert got.loss == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("mnist", {"model": "cnn"}, 'its model is "cnn"'),
        ("fashion-mnist", {}, 'its model is "cnn"'),
        ("cifar10", {"model": "mlp", "augment": True}, "it augments images"),
        ("era5", {}, "no multi-layer perceptron on images"),
        ("imdb", {}, "no multi-layer perceptron on images"),
    ],
)
def test_what_numpy_does_not_train_is_refused_in_a_sentence(name: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(SettingsError, match="has no torch that works") as refused:
        make(name, options, 1, None, has_torch=False)
    assert why in str(refused.value)


def test_what_needs_neither_library_is_the_same_without_torch() -> None:
    assert type(make("linear", {}, 1, None, has_torch=False)) is type(make("linear", {}, 1, None))
