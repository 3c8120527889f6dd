# SPDX-License-Identifier: Apache-2.0
"""The tasks on weather and on reviews against independent computations, on files that the tests make."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data import reviews, series
from paceline.errors import DataError, SettingsError
from paceline.tasks import Task, make, splittable
from paceline.tasks.modules import Trainable

BEGIN = datetime(2020, 3, 1, tzinfo=UTC)
HOURS, TRAIN = 1400, 1200  # test is the last seventh
GAP = 700  # one hour is missing


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """Return a folder of prepared hours: a daily wave with noise, a second column, one that never changes."""
    noise = np.random.default_rng(3).normal(size=HOURS)
    rows = [
        f"{BEGIN + timedelta(hours=i + (i >= GAP)):%Y-%m-%dT%H:00},{280 + 5 * math.sin(i / 24 * 2 * math.pi)},"
        f"{noise[i] + i / 100},7"
        for i in range(HOURS)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["time,t2m,u10,const", *rows]))
    (tmp_path / "era5").mkdir()
    series.from_file(tmp_path / "x.csv", tmp_path / "era5")
    return tmp_path


def columns(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return hours and columns of all rows, read from the CSV file, independently of the code under test."""
    lines = [line.split(",") for line in (folder / "x.csv").read_text().splitlines()[1:]]
    hours = np.array([datetime.fromisoformat(f"{line[0]}+00:00").timestamp() / 3600 for line in lines])
    return hours, np.array([[float(cell) for cell in line[1:]] for line in lines])


def test_a_sample_is_a_window_and_what_comes_after_it(weather: Path) -> None:
    task = make("era5", {"window": 5, "ahead": 3, "precision": "float64"}, 1, weather)
    hours, values = columns(weather)
    mean, spread = values[:TRAIN].mean(0), values[:TRAIN].std(0)
    x, y = task.batch([0, 10], 0)  # type: ignore[attr-defined]
    assert x.shape == (2, 5, 3 + 4)
    for place, start in enumerate((0, 10)):
        for column in (0, 1):
            wanted = (values[start : start + 5, column] - mean[column]) / spread[column]
            assert x[place, :, column].numpy() == pytest.approx(wanted, abs=1e-5)  # the files hold floats
        assert x[place, :, 2].tolist() == [0.0] * 5  # a column that never changes says nothing
        day = 2 * math.pi * (hours[start : start + 5] % 24) / 24
        assert x[place, :, 3].numpy() == pytest.approx(np.sin(day), abs=1e-6)
        assert x[place, :, 4].numpy() == pytest.approx(np.cos(day), abs=1e-6)
        assert float(y[place]) == pytest.approx((values[start + 7, 0] - mean[0]) / spread[0], abs=1e-5)


def test_no_window_reaches_over_a_gap_or_into_the_test(weather: Path) -> None:
    window, ahead = 5, 3
    task = make("era5", {"window": window, "ahead": ahead}, 1, weather)
    hours, _ = columns(weather)
    hours = hours[:TRAIN]
    reach = window - 1 + ahead
    whole = [i for i in range(TRAIN - reach) if hours[i + reach] == hours[i] + reach]
    assert task.samples == len(whole) == TRAIN - 2 * reach
    labels = task.labels()  # type: ignore[attr-defined]
    assert labels.tolist() == [(BEGIN + timedelta(hours=hours[i + reach] - hours[0])).month - 1 for i in whole]


def test_quality_is_kelvin_beside_that_of_persistence(weather: Path) -> None:
    options = {"window": 5, "ahead": 6, "hidden": [4]}
    task = make("era5", options, 1, weather)
    _, values = columns(weather)
    mean, spread = values[:TRAIN, 0].mean(), values[:TRAIN, 0].std()
    test = values[TRAIN:, 0]
    targets = test[10:]
    found = task.evaluate(bytes(task.manifest.nbytes))  # all weights 0: it foretells the training mean
    assert found.samples == len(targets) == HOURS - TRAIN - 10
    assert found.loss == pytest.approx(math.sqrt(np.mean((targets - mean) ** 2)), rel=1e-4)
    assert found.accuracy is None
    persistence = math.sqrt(np.mean((targets - test[4:-6]) ** 2))
    assert found.metric == f"rmse in K, persistence {persistence:.2f}"
    assert spread > 1


@pytest.mark.parametrize(
    ("options", "name"),
    [({"window": 8, "hidden": [8]}, "era5"), ({"window": 8, "model": "gru", "hidden": [8]}, "era5"),
     ({"vocabulary": 5, "width": 3}, "imdb"), ({"vocabulary": 5, "model": "gru", "width": 3, "hidden": 4}, "imdb")],
    ids=["mlp", "gru of hours", "bag", "gru of words"],
)  # fmt: skip
def test_training_lowers_the_loss_and_equals_plain_torch(
    weather: Path, opinions: Path, options: dict[str, object], name: str
) -> None:
    folder = weather if name == "era5" else opinions
    rate = {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.0, "precision": "float64"}
    task = make(name, {**options, **rate}, 3, folder)
    net = task.whole()  # type: ignore[attr-defined]
    step = torch.optim.SGD(net.parameters(), lr=0.05)
    learner = task.learner()
    learner.load(task.initial())
    for begin in range(0, task.samples // 4 * 4, 4):
        indices = range(begin, begin + 4)
        learner.step(indices)
        x, y = task.batch(indices, 0)  # type: ignore[attr-defined]
        step.zero_grad()
        out = net(x)
        loss = ((out[:, 0] - y) ** 2).mean() if name == "era5" else torch.nn.CrossEntropyLoss()(out, y)
        loss.backward()
        step.step()
    model = bytearray(task.manifest.nbytes)
    learner.dump(model)
    for parameter, spec in zip(net.parameters(), task.manifest.tensors, strict=True):
        ours = np.frombuffer(task.manifest.view(model, spec), "<f8").reshape(spec.shape)
        assert ours == pytest.approx(parameter.detach().numpy(), abs=1e-12)
    assert task.evaluate(model).loss < task.evaluate(task.initial()).loss


# Reviews ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opinions(tmp_path: Path) -> Path:
    """Return a folder of prepared reviews, whose second word gives their label away."""
    (tmp_path / "imdb").mkdir()
    bad, good = ([f"film {word} w{i} the end" for i in range(60)] for word in ("bad", "good"))
    reviews.prepare((bad, good), (bad[:9], good[:9]), tmp_path / "imdb")
    return tmp_path


def test_words_beyond_the_vocabulary_are_one_word(opinions: Path) -> None:
    task = make("imdb", {"vocabulary": 4, "words": 4}, 1, opinions)
    x, y = task.batch([0, 1, 3], 0)  # type: ignore[attr-defined]
    # Frequent first, then by alphabet: end film the (120 each), bad good (60 each), then w0 and so on.
    bad, unknown = 5, reviews.UNKNOWN
    assert x.tolist() == [[3, bad, unknown, 4], [3, unknown, unknown, 4], [3, unknown, unknown, 4]]
    assert y.tolist() == [0, 1, 1]


def test_a_bag_is_the_mean_of_its_words_and_knows_no_padding(opinions: Path) -> None:
    task = make("imdb", {"vocabulary": 8, "width": 2, "words": 9, "precision": "float64"}, 1, opinions)
    net = task.whole()  # type: ignore[attr-defined]
    vectors, head = net.words.weight.detach(), net.head
    assert vectors[reviews.PADDING].tolist() == [0.0, 0.0]
    x, _ = task.batch([0], 0)  # type: ignore[attr-defined]
    own = x[0][x[0] != reviews.PADDING]
    assert len(own) == 5
    assert torch.allclose(net(x)[0], head(vectors[own].mean(0)))


def test_a_number_below_zero_is_no_word(opinions: Path) -> None:
    path = opinions / "imdb" / "test-words-idx2-short"
    content = bytearray(path.read_bytes())
    content[12:14] = b"\xff\xff"
    path.write_bytes(content)
    with pytest.raises(DataError, match="a word has a number below 0"):
        make("imdb", {}, 1, opinions)


# Both ---------------------------------------------------------------------------------------------------------------


def tasks(weather: Path, opinions: Path) -> list[Task]:
    return [make("era5", {}, 1, weather), make("imdb", {"vocabulary": 9}, 1, opinions)]


def test_the_same_seed_begins_with_the_same_weights_and_another_with_others(weather: Path, opinions: Path) -> None:
    for task, name in zip(tasks(weather, opinions), ("era5", "imdb"), strict=True):
        options = {} if name == "era5" else {"vocabulary": 9}
        assert make(name, options, 1, weather).initial() == task.initial()
        assert make(name, options, 2, weather).initial() != task.initial()


def test_a_step_of_a_group_takes_the_tasks_own_loss(weather: Path, opinions: Path) -> None:
    for task in tasks(weather, opinions):
        trainable = Trainable(task)
        trainable.initial_state()
        x, y = trainable.batch([0, 1, 2], 0)
        loss = trainable.loss(trainable.flat.module(x), y)
        parts = [trainable.loss(trainable.flat.module(x[i : i + 1]), y[i : i + 1]) for i in range(3)]
        assert loss.item() == pytest.approx(
            sum(part.item() for part in parts) / 3, rel=1e-5
        )  # a mean over samples, as groups need
    with pytest.raises(SettingsError, match="its model is no torch module"):
        Trainable(make("linear", {}, 1, None))


def test_they_cannot_be_cut(weather: Path, opinions: Path) -> None:
    for task in tasks(weather, opinions):
        with pytest.raises(SettingsError, match="one part only"):
            splittable(task)


def test_a_window_longer_than_the_data_is_refused(weather: Path) -> None:
    with pytest.raises(DataError, match="hold no window of 700 hours and 6 more"):
        make("era5", {"window": 700, "train_hours": 500}, 1, weather)
