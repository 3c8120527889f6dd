# SPDX-License-Identifier: Apache-2.0
"""The mathematics of a step: one split step is one central step on the pooled batch, for every task; what is not a step
is refused, and a void one leaves no trace.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paceline.data.idx import write_idx
from paceline.data.sources import KINDS
from paceline.errors import LocalProtocolError, SettingsError, StorageError
from paceline.split import SplitError, Upload
from paceline.split.client import SplitClient
from paceline.split.host import SplitHost, Step
from paceline.split.layout import gradient_manifest, upload_manifest
from paceline.tasks import SplitTask, make, splittable
from paceline.tasks.flat import view_of
from paceline.tasks.images import Images

TRAIN, TEST = 60, 12
SHAPES = {"mnist": (9, 8), "fashion-mnist": (9, 8), "cifar10": (3, 8, 8), "cifar100": (3, 8, 8)}
DOUBLE: dict[str, object] = {"precision": "float64", "learning_rate": 0.1, "momentum": 0.6, "optimizer": "sgd"}
TASKS: dict[str, tuple[str, dict[str, object]]] = {
    "mlp": ("mnist", {"cut": "layer0", "hidden": [11, 7]}),
    "mlp, cut later": ("mnist", {"cut": "layer1", "hidden": [11, 7]}),
    "mnist cnn": ("mnist", {"model": "cnn", "cut": "conv1"}),
    "mnist cnn, server BatchNorm": ("mnist", {"model": "cnn", "cut": "conv1", "norm": "batch"}),
    "fashion cnn, GroupNorm, cut late": ("fashion-mnist", {"cut": "hidden", "norm": "group"}),
    "cifar10 cnn, server BatchNorm, augmented": ("cifar10", {"cut": "conv1", "norm": "batch", "augment": True}),
    "cifar10 cnn, adam": ("cifar10", {"cut": "conv2", "optimizer": "adam", "learning_rate": 0.003}),
    "cifar10 resnet18, augmented": ("cifar10", {"model": "resnet18", "cut": "layer1", "augment": True}),
    "cifar100 resnet34": ("cifar100", {"model": "resnet34", "cut": "layer2"}),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine: two threads that wait for each other are many times slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small random data sets, one folder a name."""
    folder = tmp_path_factory.mktemp("images")
    for name, shape in SHAPES.items():
        source = np.random.default_rng(5)
        (folder / name).mkdir()
        for place, count in ((0, TRAIN), (2, TEST)):
            files = KINDS[name].files
            pixels = source.integers(0, 256, (count, *shape), dtype=np.uint8)
            labels = source.integers(0, KINDS[name].classes, count, dtype=np.uint8)
            write_idx(folder / name / files[place], pixels.shape, pixels.tobytes())
            write_idx(folder / name / files[place + 1], labels.shape, labels.tobytes())
    return folder


def made(images: Path, which: str, **options: object) -> Images:
    name, own = TASKS[which]
    return cast(Images, make(name, {**DOUBLE, **own, **options}, 7, images / name))


def forward(host: SplitHost, client: SplitClient, work: Mapping[int, Sequence[int]], epoch: int = 0) -> Step:
    """Do the first phase with these samples of each client; one object plays all of them."""
    client.load(host.client_part())
    uploads = [Upload(k, len(own), client.forward(k, own, epoch)) for k, own in work.items() if len(own)]
    return host.step(uploads)


def whole_step(host: SplitHost, client: SplitClient, work: Mapping[int, Sequence[int]], epoch: int = 0) -> Step:
    step = forward(host, client, work, epoch)
    host.commit({k: client.backward(k, step.gradients[k]) for k in step.clients})
    return step


def parameters(task: Images, model: bytes) -> dict[str, NDArray[np.float64]]:
    kinds = {"float64": "<f8", "int64": "<i8"}
    return {
        spec.name: np.frombuffer(task.manifest.view(model, spec), kinds[spec.dtype]).reshape(spec.shape)
        for spec in task.manifest.tensors
    }


def central(task: Images, batches: Sequence[Sequence[int]], epochs: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Return the weights after training the uncut model in plain torch, with torch's own optimiser."""
    net = task.whole()
    options = task.options
    optimiser: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), options.learning_rate, options.momentum)
    if options.optimizer == "adam":
        optimiser = torch.optim.Adam(net.parameters(), options.learning_rate)
    for batch, epoch in zip(batches, epochs, strict=True):
        inputs, labels = task.batch(batch, epoch)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}


STEPS: list[dict[int, Sequence[int]]] = [  # client -> its samples; some have none, and a client may be alone
    {0: [3, 41], 1: [], 2: [7, 8, 9, 30, 5], 5: [59]},
    {2: [10, 11, 12, 13]},
    {0: [20], 1: [1], 5: [2, 21, 22, 23]},
]
EPOCHS = [0, 0, 1]


@pytest.mark.parametrize("which", TASKS)
def test_a_split_step_is_a_central_step_on_the_pooled_batch(images: Path, which: str) -> None:
    task = made(images, which)
    host, client = SplitHost(task, "float64"), SplitClient(task, "float64")
    steps, epochs = (STEPS[2:], EPOCHS[2:]) if "resnet" in which else (STEPS, EPOCHS)  # which take seconds a step
    for work, epoch in zip(steps, epochs, strict=True):
        whole_step(host, client, work, epoch)
    found = parameters(task, host.model())
    expected = central(task, [[i for own in work.values() for i in own] for work in steps], epochs)
    assert found.keys() == expected.keys()
    first = parameters(task, task.initial())
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() < 1e-6, name
        if values.dtype == np.float64:
            assert np.abs(values - first[name]).max() > 1e-9, f"{name} was not trained, so this proves nothing"
    assert host.version == len(steps)


def test_a_mean_over_clients_instead_of_the_sum_breaks_the_law(images: Path) -> None:
    task = made(images, "cifar10 cnn, server BatchNorm, augmented")
    host, client = SplitHost(task, "float64"), SplitClient(task, "float64")
    step = forward(host, client, STEPS[0])
    gradients = {}
    for k in step.clients:
        gradient = np.frombuffer(client.backward(k, step.gradients[k]), np.float64)
        gradients[k] = (gradient / len(step.clients)).tobytes()
    host.commit(gradients)
    found = parameters(task, host.model())
    expected = central(task, [[3, 41, 7, 8, 9, 30, 5, 59]], [0])
    assert np.abs(found["conv1.conv.weight"] - expected["conv1.conv.weight"]).max() > 1e-6
    assert np.abs(found["head.weight"] - expected["head.weight"]).max() < 1e-12


def test_the_order_of_arrival_changes_no_bit_and_counts_are_right(images: Path) -> None:
    task = made(images, "mnist cnn, server BatchNorm", precision="float32")
    models = []
    for turn in (1, -1):
        host, client = SplitHost(task), SplitClient(task)
        client.load(host.client_part())
        uploads = [Upload(k, len(own), client.forward(k, own, 0)) for k, own in STEPS[0].items() if own]
        step = host.step(uploads[::turn])
        assert (step.clients, step.samples) == ((0, 2, 5), 8)
        assert list(step.labels) == np.bincount(task.train.labels()[[3, 41, 7, 8, 9, 30, 5, 59]], minlength=10).tolist()
        host.commit({k: client.backward(k, step.gradients[k]) for k in step.clients[::turn]})
        models.append(host.model())
    assert models[0] == models[1]


def test_a_void_step_leaves_no_trace(images: Path) -> None:
    task = made(images, "mnist cnn, server BatchNorm", precision="float32")
    host, client = SplitHost(task), SplitClient(task)
    whole_step(host, client, STEPS[1])
    before = host.state()
    step = forward(host, client, STEPS[0])
    assert host.model() != before[36 : 36 + len(host.model())]  # BatchNorm has seen the batch
    client.backward(0, step.gradients[0])  # one answers, another is lost
    host.void()
    client.forget()
    assert host.state() == before
    undisturbed = SplitHost(task)
    undisturbed.load_state(before)
    for one in (host, undisturbed):
        whole_step(one, SplitClient(task), STEPS[2])
    assert host.state() == undisturbed.state()


def test_a_group_that_computes_as_one_gives_the_same_step(images: Path) -> None:
    task = made(images, "cifar10 cnn, server BatchNorm, augmented")
    alone, group = SplitHost(task, "float64"), SplitHost(task, "float64")
    whole_step(alone, SplitClient(task, "float64"), STEPS[0])
    whole_step(group, SplitClient(task, "float64"), {0: [3, 41, 7, 8, 9, 30, 5], 5: [59]})
    one, other = parameters(task, alone.model()), parameters(task, group.model())
    assert all(np.abs(one[name] - other[name]).max() < 1e-12 for name in one)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_state_goes_on_bit_for_bit(images: Path, optimizer: str) -> None:
    task = made(images, "mnist cnn, server BatchNorm", precision="float32", optimizer=optimizer, learning_rate=0.01)
    host = SplitHost(task)
    whole_step(host, SplitClient(task), STEPS[0])
    other = SplitHost(task)
    other.load_state(host.state())
    assert (other.version, other.digest()) == (1, host.digest())
    for one in (host, other):
        whole_step(one, SplitClient(task), STEPS[2])
    assert host.state() == other.state()
    for damaged in (host.state()[:-1], b"PSL0" + host.state()[4:], host.state()[:24] + bytes(8) + host.state()[32:]):
        with pytest.raises(StorageError, match="the state of split learning is damaged"):
            other.load_state(damaged)


@pytest.mark.parametrize(("wire", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_as_many_bytes_give_nearly_the_same_gradient(images: Path, wire: str, tolerance: float) -> None:
    task = made(images, "mlp", precision="float32")  # no max-pool, whose choices flip with the last bit
    parts = []
    for dtype in ("float32", wire):
        host, client = SplitHost(task, dtype), SplitClient(task, dtype)
        step = forward(host, client, STEPS[0])
        back = client.backward(2, step.gradients[2])
        parts.append(np.frombuffer(back, np.float32))
    assert np.linalg.norm(parts[0] - parts[1]) / np.linalg.norm(parts[0]) < tolerance
    half = upload_manifest(task, 5, wire)
    assert half.nbytes < 0.51 * upload_manifest(task, 5, "float32").nbytes + 32


@pytest.mark.parametrize("size", [1e-12, 3.0, 1e6])
def test_float16_gradients_neither_vanish_nor_overflow(images: Path, size: float) -> None:
    task = made(images, "mnist cnn", precision="float32")
    host = SplitHost(task, "float16")
    gradient = size * torch.linspace(-1, 1, 2 * 16 * 4 * 4).view(2, 16, 4, 4)
    packed, manifest = host._pack(gradient), gradient_manifest(task, 2, "float16")
    back = view_of(packed, manifest, "gradient").float() / view_of(packed, manifest, "scale")
    assert float((back - gradient).abs().max()) < 1e-3 * size


# What is refused ----------------------------------------------------------------------------------------------------


def planted(task: SplitTask, upload: bytearray, samples: int, name: str, value: float) -> bytes:
    view_of(upload, upload_manifest(task, samples, "float32"), name)[-1:].fill_(value)
    return bytes(upload)


BAD: dict[str, tuple[Callable[[SplitTask, bytearray], list[Upload]], str]] = {
    "too few bytes": (lambda t, u: [Upload(3, 2, u[:-16])], "client 3: its upload has .* bytes, expected .* same task"),
    "samples it does not have": (lambda t, u: [Upload(3, 4, u)], "client 3: its upload has"),
    "no sample": (lambda t, u: [Upload(3, 0, b"")], "client 3: it handed over 0 samples"),
    "twice": (lambda t, u: [Upload(3, 2, u), Upload(3, 2, u)], "client 3: it handed over twice for one step"),
    "nobody": (lambda t, u: [], "a step without a client has no batch"),
    "dtype": (lambda t, u: [Upload(3, 2, u, dtype="float16")], "client 3: .* is float16, expected float32"),
    "shape": (lambda t, u: [Upload(3, 2, u, shape=(2, 4, 4, 16))], r"\(2, 4, 4, 16\), expected \(2, 16, 4, 4\)"),
    "not a number": (lambda t, u: [Upload(3, 2, planted(t, u, 2, "smashed", np.nan))], "client 3: .* is not finite"),
    "infinite": (lambda t, u: [Upload(3, 2, planted(t, u, 2, "smashed", np.inf))], "client 3: .* is not finite"),
    "label": (lambda t, u: [Upload(3, 2, planted(t, u, 2, "labels", 10))], "client 3: one of its labels is 10; .*9"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_an_upload_that_does_not_fit_is_refused_and_the_step_can_be_repeated(images: Path, what: str) -> None:
    task = made(images, "mnist cnn, server BatchNorm", precision="float32")
    host, client = SplitHost(task), SplitClient(task)
    client.load(host.client_part())
    good = client.forward(3, [1, 2], 0)
    before = host.state()
    uploads, sentence = BAD[what]
    with pytest.raises(SplitError, match=sentence):
        host.step(uploads(task, bytearray(good)))
    assert host.state() == before
    step = host.step([Upload(3, 2, good)])
    host.commit({3: client.backward(3, step.gradients[3])})
    assert host.version == 1


def test_gradients_that_do_not_fit_are_refused_and_the_step_stays_open(images: Path) -> None:
    task = made(images, "mnist cnn", precision="float32")
    host, client = SplitHost(task), SplitClient(task)
    step = forward(host, client, {1: [1, 2], 4: [3]})
    with pytest.raises(SplitError, match=r"missing are \[4\], not asked for are \[9\]"):
        host.commit({1: b"", 9: b""})
    good = {k: client.backward(k, step.gradients[k]) for k in step.clients}
    with pytest.raises(SplitError, match="client 4: the client part's gradient has 16 bytes"):
        host.commit(good | {4: bytes(16)})
    nan = struct.pack("<f", float("nan")) + bytes(good[4])[4:]
    with pytest.raises(SplitError, match="client 4: its gradient of the client part is not finite"):
        host.commit(good | {4: nan})
    with pytest.raises(LocalProtocolError, match="a step is open"):
        host.step([])
    host.commit(good)
    with pytest.raises(LocalProtocolError, match="no step is open"):
        host.commit(good)


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        ("float32", "the training has diverged"),
        ("float16", "the training has diverged, or its numbers are too large for float16"),
    ],
)
def test_what_is_not_finite_at_several_clients_is_the_training_and_nobodys_fault(
    images: Path, wire: str, why: str
) -> None:
    task = made(images, "mnist cnn", precision="float32")
    host = SplitHost(task, wire)
    clients = {k: SplitClient(task, wire) for k in (1, 4, 6)}
    uploads = []
    for k, client in clients.items():
        client.load(host.client_part())
        uploads.append(Upload(k, 1, client.forward(k, [k], 0)))
    before = host.state()
    for broken in (uploads[:1], uploads[:2], uploads):
        view_of(broken[-1].data, upload_manifest(task, 1, wire), "smashed")[-1:].fill_(float("inf"))
        with pytest.raises(SplitError) as caught:
            host.step(uploads)
        if len(broken) == 1:
            ends = " in float16, which ends at 65,504" if wire == "float16" else ""
            assert (caught.value.client, caught.value.text) == (1, f"its smashed tensor is not finite{ends}")
        else:
            assert caught.value.client is None
            assert str(caught.value) == f"in step 0 {len(broken)} of 3 clients' smashed tensor is not finite: {why}"
    assert host.state() == before


def test_gradients_of_several_clients_that_are_not_finite_are_the_training(images: Path) -> None:
    task = made(images, "mnist cnn", precision="float32")
    host, client = SplitHost(task), SplitClient(task)
    step = forward(host, client, {1: [1, 2], 4: [3]})
    nan = struct.pack("<f", float("nan"))
    bad = {k: nan + bytes(client.backward(k, step.gradients[k]))[4:] for k in step.clients}
    with pytest.raises(SplitError, match="2 of 2 clients' gradient of the client part is not finite") as caught:
        host.commit(bad)
    assert caught.value.client is None


def test_a_gradient_that_overflows_behind_a_finite_loss_goes_to_no_client(images: Path) -> None:
    task = made(images, "mlp", precision="float32")
    host, client = SplitHost(task), SplitClient(task)
    client.load(host.client_part())
    upload = client.forward(3, [1, 2], 0)
    view_of(upload, upload_manifest(task, 2, "float32"), "smashed").fill_(0.0)
    for parameter in host._server.parameters:  # logits 1e24 apart; back through two layers it is 1e50
        with torch.no_grad():
            rows = torch.arange(len(parameter), dtype=parameter.dtype)
            parameter.copy_(rows[:, None].expand_as(parameter) * 1e25 if parameter.dim() == 2 else 0 * rows + 0.1)
    with pytest.raises(SplitError, match="the gradient of step 0 is not finite: the training has diverged") as caught:
        host.step([Upload(3, 2, upload)])
    assert caught.value.client is None
    host.load_model(task.initial())  # no step is open
    host.step([Upload(3, 2, upload)])


def test_a_client_refuses_what_is_no_gradient_of_its_step(images: Path) -> None:
    task = made(images, "mnist cnn", precision="float32")
    host, client = SplitHost(task), SplitClient(task)
    step = forward(host, client, {1: [1, 2]})
    good = step.gradients[1]
    with pytest.raises(SplitError, match="client 2: a gradient came, but no step is open"):
        client.backward(2, good)
    with pytest.raises(SplitError, match=r"client 1: the gradient of the smashed tensor has \d+ bytes"):
        client.backward(1, good[:-16])
    with pytest.raises(SplitError, match="client 1: the gradient's scale is 0"):
        client.backward(1, bytes(16) + good[16:])
    with pytest.raises(SplitError, match="client 1: the gradient of the smashed tensor is not finite"):
        client.backward(1, good[:16] + struct.pack("<f", float("inf")) + good[20:])
    with pytest.raises(LocalProtocolError, match="has no sample in this step"):
        client.forward(1, [], 0)
    client.backward(1, good)
    with pytest.raises(SplitError, match="no step is open; it was void or is over"):
        client.backward(1, good)


def test_a_batch_that_batch_norm_cannot_take_is_one_sentence(images: Path) -> None:
    task = made(images, "cifar10 resnet18, augmented", precision="float32")  # 8 x 8 pixels are one in the last layer
    host, client = SplitHost(task), SplitClient(task)
    before = host.state()
    with pytest.raises(SplitError, match="the server part cannot train on a batch of 1"):
        forward(host, client, {0: [4]})
    assert host.state() == before


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mnist", {"model": "cnn", "cut": "conv3"}, r"no cut 'conv3'; did you mean conv\d\? .* conv1, conv2, hidden\)"),
        ("mnist", {"model": "cnn", "cut": "head"}, "no cut 'head'"),
        ("mnist", {"model": "mlp", "cut": "conv1"}, r"behind layer0\)"),
        ("mnist", {"model": "mlp", "cut": "layer0", "norm": "batch"}, "no normalisation"),
        ("cifar10", {"model": "resnet18", "norm": "none"}, "a ResNet without normalisation does not train"),
    ],
)
def test_a_cut_that_does_not_exist_lists_those_that_do(
    images: Path, name: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        make(name, options, 1, images / name)


def test_what_is_not_cut_cannot_be_split(images: Path) -> None:
    with pytest.raises(SettingsError, match="one part only"):
        splittable(make("linear", {}, 1, None))
    with pytest.raises(SettingsError, match="one part only"):
        splittable(make("mnist", {}, 1, images / "mnist"))
    with pytest.raises(SettingsError, match="needs the part to cut behind, one of conv1, conv2, hidden"):
        splittable(make("mnist", {"model": "cnn"}, 1, images / "mnist"))
    assert splittable(made(images, "mlp")).cut == "layer0"
