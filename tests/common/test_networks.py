# SPDX-License-Identifier: Apache-2.0
"""Networks against known sizes and hand-written mathematics; where they are cut; crops and flips by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as f

from paceline.core import PURPOSE_AUGMENT, Rng
from paceline.data.idx import write_idx
from paceline.data.sources import KINDS
from paceline.errors import SettingsError
from paceline.tasks import make, networks
from paceline.tasks.augment import augmented
from paceline.tasks.images import Images
from paceline.tasks.mnist import Mnist

BIG = (3, 32, 32)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine: two threads that wait for each other are many times slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    source = np.random.default_rng(3)
    for place, count in ((0, 40), (2, 12)):
        files = KINDS["cifar10"].files
        write_idx(tmp_path / files[place], (count, *BIG), source.bytes(count * 3072))
        write_idx(tmp_path / files[place + 1], (count,), bytes(i % 10 for i in range(count)))
    return tmp_path


def size(parts: networks.Parts) -> int:
    return sum(parameter.numel() for _, part in parts for parameter in part.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "classes", "norm", "parameters"),
    [
        ("resnet18", BIG, 10, "batch", 11_173_962),  # with a 3x3 stem; 11,181,642 with ImageNet's 7x7
        ("resnet18", BIG, 10, "group", 11_173_962),
        ("resnet34", BIG, 100, "batch", 21_328_292),
        ("cnn", (1, 28, 28), 10, "none", 105_866),
        ("cnn", BIG, 10, "none", 136_874),
        ("mlp", (1, 28, 28), 10, "none", 50_890),
    ],
)
def test_models_have_their_known_size(
    model: str, shape: tuple[int, ...], classes: int, norm: str, parameters: int
) -> None:
    with torch.device("meta"):
        assert size(networks.build(model, shape, classes, norm, [64])) == parameters


def test_the_client_half_of_a_resnet_has_its_residual_connections(cifar10: Path) -> None:
    """Stem and layer1 by hand, from the weights by name: each block is added to what came in, ReLU behind the sum."""
    task = cast(Images, make("cifar10", {"model": "resnet18", "cut": "layer1"}, 3, cifar10))
    client, server = task.halves()
    w = {name: parameter.detach() for name, parameter in client.named_parameters()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        groups = x.reshape(len(x), 32, -1)  # 32 groups of two channels
        even = (groups - groups.mean(2, keepdim=True)) / (groups.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        return even.view(x.shape) * w[f"{name}.weight"].view(1, -1, 1, 1) + w[f"{name}.bias"].view(1, -1, 1, 1)

    inputs, _ = task.batch([1, 2, 3], 0)
    x = norm(f.conv2d(inputs, w["stem.conv.weight"], padding=1), "stem.norm").relu()
    for block in ("layer1.0", "layer1.1"):
        y = norm(f.conv2d(x, w[f"{block}.conv1.weight"], padding=1), f"{block}.norm1").relu()
        y = norm(f.conv2d(y, w[f"{block}.conv2.weight"], padding=1), f"{block}.norm2")
        x = (x + y).relu()
    smashed = client(inputs).detach()
    assert smashed.shape[1:] == task.smashed_shape == (64, 32, 32)  # no max-pool, stride 1
    assert float((smashed - x).abs().max()) < 1e-4
    assert not any("norm" in name and "running" in name for name, _ in client.named_buffers())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in server.modules()) == 15
    assert task.notes[0] == "client part stem: BatchNorm became GroupNorm in stem.norm"
    assert "layer1.1.norm2" in task.notes[1]


def test_batch_norm_in_front_of_the_cut_is_refused_where_it_is_not_to_be_converted() -> None:
    with pytest.raises(SettingsError, match=r"part conv1 in front of the cut has BatchNorm, .*conv1\.norm"):
        networks.split(networks.build("cnn", BIG, 10, "batch", []), "conv2", convert=False)
    halves = networks.split(networks.build("cnn", BIG, 10, "group", []), "conv2", convert=False)
    assert halves.notes == ()


def test_any_other_state_in_front_of_the_cut_is_refused() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.register_buffer("seen", torch.zeros(1))

    with pytest.raises(SettingsError, match=r"part first in front of the cut keeps state, .*first\.seen"):
        networks.split([("first", Counting()), ("last", nn.Linear(3, 2))], "first")


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (128, 32), (32, 16), (16, 8), (2, 1), (1, 1), (33, 1)])
def test_a_group_has_two_channels_at_least(channels: int, groups: int) -> None:
    assert networks.groups(channels) == groups
    assert channels % groups == 0


@pytest.mark.parametrize("cut", ["", "conv1", "conv2", "hidden"])
def test_where_a_model_is_cut_changes_neither_its_first_weights_nor_their_names(cifar10: Path, cut: str) -> None:
    uncut = cast(Images, make("cifar10", {"norm": "group"}, 3, cifar10))
    task = cast(Images, make("cifar10", {"norm": "group", "cut": cut}, 3, cifar10))
    assert task.initial() == uncut.initial()
    assert task.manifest == uncut.manifest
    assert task.evaluate(task.initial()) == uncut.evaluate(uncut.initial())


def test_the_cuttable_mlp_is_the_fast_one(tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    for place, count in ((0, 30), (2, 9)):
        files = KINDS["mnist"].files
        write_idx(tmp_path / files[place], (count, 6, 5), source.bytes(count * 30))
        write_idx(tmp_path / files[place + 1], (count,), bytes(i % 10 for i in range(count)))
    fast = make("mnist", {"hidden": [7, 8]}, 3, tmp_path)
    assert isinstance(fast, Mnist)
    task = make("mnist", {"hidden": [7, 8], "cut": "layer1"}, 3, tmp_path)
    assert task.manifest == fast.manifest
    assert task.initial() == fast.initial()
    models = []
    for one in (fast, task):
        learner = one.learner()
        learner.load(one.initial())
        for begin in (0, 10, 20):
            learner.step(range(begin, begin + 10))
        models.append(bytearray(one.manifest.nbytes))
        learner.dump(models[-1])
    weights = [np.frombuffer(model, np.float32) for model in models]
    assert np.abs(weights[0] - weights[1]).max() < 1e-6
    assert task.evaluate(models[0]).loss == pytest.approx(fast.evaluate(models[0]).loss, rel=1e-5)


def test_training_the_whole_cnn_with_server_batch_norm_learns(cifar10: Path) -> None:
    task = make("cifar10", {"norm": "batch", "cut": "conv1", "train_samples": 20, "learning_rate": 0.05}, 3, cifar10)
    assert (task.samples, task.data_label) == (20, f"own files in {cifar10.name} (40 + 12), the first 20 + 12")
    learner = task.learner()
    learner.load(task.initial())
    out = bytearray(task.manifest.nbytes)
    losses = []
    for _ in range(2):
        for _ in range(15):
            learner.step(range(20))
        learner.dump(out)
        losses.append(cast(Images, task).evaluate(out).loss)
    inputs, labels = cast(Images, task).batch(range(20), 0)
    whole = cast(Images, task).whole()
    before = float(f.cross_entropy(whole(inputs), labels).detach())
    fresh = cast(Images, task)
    net = fresh.whole()
    with torch.no_grad():
        for spec in task.manifest.tensors:
            bytes_ = np.frombuffer(task.manifest.view(out, spec), "<i8" if spec.dtype == "int64" else "<f4")
            net.state_dict()[spec.name].copy_(torch.from_numpy(bytes_.reshape(spec.shape).copy()))
    assert int(net.state_dict()["conv2.norm.num_batches_tracked"]) == 30
    assert float(f.cross_entropy(net(inputs), labels).detach()) < before / 2


def test_augmentation_needs_an_epoch(cifar10: Path) -> None:
    with pytest.raises(SettingsError, match=r"task\.augment"):
        make("cifar10", {"augment": True}, 1, cifar10).learner()


# Crops and flips ----------------------------------------------------------------------------------------------------


def test_an_augmented_image_follows_from_seed_epoch_and_sample_alone(cifar10: Path) -> None:
    task = cast(Images, make("cifar10", {"augment": True}, (5 << 32) + 9, cifar10))
    together, _ = task.batch([4, 7, 31], 2)
    alone, _ = task.batch([31], 2)
    assert torch.equal(together[2:], alone)
    assert not torch.equal(alone, task.batch([31], 3)[0])
    images = task.train.images()[[31]].reshape(1, *BIG)
    stream = Rng((5 << 32) + 9, PURPOSE_AUGMENT, 2, 31)
    down, right, flip = stream.word() * 3 >> 32, stream.word() * 3 >> 32, stream.word() >> 31
    expected = np.zeros((3, 32, 32), np.uint8)
    for row in range(32):
        for column in range(32):
            r, c = row + down - 1, (31 - column if flip else column) + right - 1
            if 0 <= r < 32 and 0 <= c < 32:
                expected[:, row, column] = images[0, :, r, c]
    assert augmented(images, np.array([31]), (5 << 32) + 9, 2)[0].tolist() == expected.tolist()


def test_all_nine_places_and_both_sides_come_up_equally_often() -> None:
    image = np.zeros((1, 1, 3, 3), np.uint8)
    image[0, 0] = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    samples = np.arange(3600)
    made = augmented(np.repeat(image, len(samples), 0), samples, 1, 0)
    kinds, counts = np.unique(made.reshape(len(samples), 9), axis=0, return_counts=True)
    assert len(kinds) == 18
    assert ((counts - 200) ** 2 / 200).sum() < 40.8  # chi-square, 17 degrees of freedom, p = 0.001
