# SPDX-License-Identifier: Apache-2.0
"""Tasks against independent computations: the MLP against plain torch, the linear one against exact fractions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline.errors import DataError, SettingsError
from paceline.tasks import Task, make
from paceline.tasks.linear import Linear
from paceline.tasks.scales import PIXEL_MEAN, PIXEL_STD

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = FILES
TRAIN, TEST = 40, 23


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Return a folder of small random images in the format of MNIST."""
    source = np.random.default_rng(5)
    for images, labels, count in ((IMAGES, LABELS, TRAIN), (TEST_IMAGES, TEST_LABELS, TEST)):
        write_idx(tmp_path / images, (count, 6, 5), source.integers(0, 256, count * 30, dtype=np.uint8).tobytes())
        write_idx(tmp_path / labels, (count,), source.integers(0, 10, count, dtype=np.uint8).tobytes())
    return tmp_path


def reference(task: Task, model: bytes, hidden: list[int]) -> torch.nn.Sequential:
    """Return the same network as plain torch modules, its weights read by the manifest."""
    widths = [30, *hidden, 10]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, spec in zip(net.parameters(), task.manifest.tensors, strict=True):
            values = np.frombuffer(task.manifest.view(model, spec), "<f4").reshape(spec.shape)
            parameter.copy_(torch.from_numpy(values.copy()))
    return net


def tensors(folder: Path, images: str, labels: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels, read independently of the code under test."""
    pixels = np.fromfile(folder / images, np.uint8)[16:].reshape(count, 30).astype(np.float32)
    truth = np.fromfile(folder / labels, np.uint8)[8:].astype(np.int64)
    return (torch.from_numpy(pixels) - PIXEL_MEAN) / PIXEL_STD, torch.from_numpy(truth)


Optimiser = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
OPTIMISERS: dict[str, tuple[dict[str, object], Optimiser]] = {
    "sgd": ({"optimizer": "sgd", "learning_rate": 0.07, "momentum": 0.0}, lambda p: torch.optim.SGD(p, lr=0.07)),
    "momentum": (
        {"optimizer": "sgd", "learning_rate": 0.03, "momentum": 0.8},
        lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8),
    ),
    "adam": ({"optimizer": "adam", "learning_rate": 0.004}, lambda p: torch.optim.Adam(p, lr=0.004)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("hidden", [[7], [9, 8]], ids=["one hidden layer", "two hidden layers"])
def test_training_equals_plain_torch(digits: Path, name: str, hidden: list[int]) -> None:
    options, optimiser = OPTIMISERS[name]
    task = make("mnist", {**options, "hidden": hidden}, 3, digits)
    net = reference(task, task.initial(), hidden)
    images, labels = tensors(digits, IMAGES, LABELS, TRAIN)
    step = optimiser(net.parameters())
    learner = task.learner()
    learner.load(task.initial())
    order = array("I", np.random.default_rng(1).permutation(TRAIN).tolist())
    for begin in range(0, TRAIN, 7):  # the last batch is partial
        batch = order[begin : begin + 7]
        chosen = torch.tensor(batch.tolist())
        learner.step(memoryview(batch))
        step.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
        step.step()
    trained = bytearray(task.manifest.nbytes)
    learner.dump(trained)
    assert trained != task.initial()
    for parameter, spec in zip(net.parameters(), task.manifest.tensors, strict=True):
        ours = np.frombuffer(task.manifest.view(trained, spec), "<f4").reshape(spec.shape)
        np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=2e-5, atol=2e-6)
    used = sum(spec.nbytes for spec in task.manifest.tensors)
    gaps = bytearray(trained)
    for spec in task.manifest.tensors:
        task.manifest.view(gaps, spec)[:] = bytes(spec.nbytes)
    assert not any(gaps), f"padding of {len(trained) - used} bytes must stay zero"


def test_evaluation_equals_plain_torch(digits: Path) -> None:
    task = make("mnist", {"hidden": [7]}, 3, digits)
    images, labels = tensors(digits, TEST_IMAGES, TEST_LABELS, TEST)
    with torch.no_grad():
        logits = reference(task, task.initial(), [7])(images)
    result = task.evaluate(task.initial())
    assert result.samples == TEST
    assert result.metric == "cross-entropy"
    assert result.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert result.accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


def test_a_slice_begins_without_the_optimiser_state_of_the_last(digits: Path) -> None:
    for options in ({"momentum": 0.9}, {"optimizer": "adam"}):
        task = make("mnist", options, 3, digits)
        learner, outcomes = task.learner(), []
        for _ in range(2):
            learner.load(task.initial())
            for begin in range(0, TRAIN, 8):
                learner.step(range(begin, begin + 8))
            outcomes.append(bytearray(task.manifest.nbytes))
            learner.dump(outcomes[-1])
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["mnist", "linear"])
def test_the_first_weights_depend_on_options_and_seed_alone(digits: Path, name: str) -> None:
    def first(seed: int) -> bytes:
        return make(name, {}, seed, digits).initial()

    assert first(7) == first(7)
    assert name == "linear" or first(7) != first(8)
    assert len(first(7)) == make(name, {}, 7, digits).manifest.nbytes


def test_linear_training_equals_exact_fractions() -> None:
    task = Linear({"learning_rate": 0.125, "samples": 500}, 11)
    learner = task.learner()
    learner.load(task.initial())
    weights = [Fraction(0)] * 10
    for indices in ([0, 1, 2, 3], [499, 4], [7]):
        learner.step(indices)
        gradient = [Fraction(0)] * 10
        for index in indices:
            features, target = task.sample(index)
            exact = [Fraction(x) for x in features]
            error = sum((w * x for w, x in zip(weights, exact, strict=True)), Fraction(0)) - Fraction(target)
            gradient = [g + 2 * error * x / len(indices) for g, x in zip(gradient, exact, strict=True)]
        weights = [w - g / 8 for w, g in zip(weights, gradient, strict=True)]
    trained = bytearray(task.manifest.nbytes)
    learner.dump(trained)
    assert np.frombuffer(trained, "<f4")[:10].tolist() == [float(np.float32(float(w))) for w in weights]


@pytest.mark.parametrize("name", ["mnist", "images", "linear"])
def test_the_proximal_term_pulls_each_step_towards_the_first_weights(digits: Path, name: str) -> None:
    """With rho, a second step from x goes rate * rho * (x - x0) less far; the first, at x0, is the same."""
    known: dict[str, dict[str, object]] = {
        "mnist": {"momentum": 0.0}, "images": {"momentum": 0.0, "cut": "layer0"}, "linear": {},
    }  # fmt: skip
    options = known[name]
    task = make("linear" if name == "linear" else "mnist", {**options, "learning_rate": 0.1}, 3, digits)
    found = []
    for rho, steps in ((0.0, 1), (2.0, 1), (0.0, 2), (2.0, 2)):
        learner = task.learner()
        learner.load(task.initial(), rho)
        for batch in (range(8), range(8, 16))[:steps]:
            learner.step(batch)
        out = bytearray(task.manifest.nbytes)
        learner.dump(out)
        found.append(np.frombuffer(out, "<f4"))
    once, held_once, twice, held = found
    origin = np.frombuffer(task.initial(), "<f4")
    assert (once == held_once).all()
    np.testing.assert_allclose(held, twice - 0.1 * 2.0 * (once - origin), rtol=1e-4, atol=1e-6)
    assert np.abs(held - twice).max() > 1e-3


def test_linear_samples_follow_the_hidden_model_within_the_noise() -> None:
    task = Linear({}, 2)
    for index in range(200):
        features, target = task.sample(index)
        clean = sum((Fraction(w) * Fraction(x) for w, x in zip(task.truth, features, strict=True)), Fraction(0))
        assert abs(Fraction(target) - clean) <= Fraction(1, 32)
        assert all(-1.0 <= x < 1.0 for x in features)
    assert task.sample(5) == Linear({}, 2).sample(5) != Linear({}, 3).sample(5)


def test_linear_learns(digits: Path) -> None:
    task = make("linear", {}, 7, None)
    learner = task.learner()
    learner.load(task.initial())
    for begin in range(0, 3200, 32):
        learner.step(range(begin, begin + 32))
    trained = bytearray(task.manifest.nbytes)
    learner.dump(trained)
    assert task.evaluate(trained).loss < task.evaluate(task.initial()).loss / 100
    assert task.evaluate(trained).accuracy is None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mnits", {}, ["there is no task", "did you mean mnist?"]),
        ("linear", {"learning_rat": 1}, ["unknown key learning_rat", "did you mean learning_rate?"]),
        ("linear", {"batch": 0, "samples": "many"}, ["batch: expected a whole number >= 1", "samples: expected"]),
        ("mnist", {"hidden": []}, ["hidden: expected an array"]),
        ("mnist", {"optimizer": "adm"}, ['expected one of "sgd", "adam"', "did you mean adam?"]),
        ("mnist", {"learning_rate": float("nan")}, ["learning_rate: expected a number"]),
    ],
)
def test_wrong_options_are_named_with_what_is_expected(name: str, options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        make(name, options, 1, None)
    assert all(word in str(caught.value) for word in words)


def test_missing_data_is_an_error_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no train-images"):
        make("mnist", {}, 1, tmp_path)


def test_the_linear_task_loads_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; from paceline.tasks import make; make('linear', {}, 1, None).learner();"
        "sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ballast_travels_with_the_linear_model_and_stays_as_it_is() -> None:
    task = make("linear", {"ballast": 1000}, 3, None)
    model = bytearray(task.initial())
    assert len(model) == task.manifest.nbytes >= 4040
    model[-4000:] = bytes(range(250)) * 16
    learner = task.learner()
    learner.load(model)
    learner.step([1, 2, 3])
    out = bytearray(len(model))
    learner.dump(out)
    assert out[-4000:] == model[-4000:]
    assert out[:40] != model[:40]
    assert task.evaluate(out).loss < task.evaluate(model).loss
