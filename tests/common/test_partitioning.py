# SPDX-License-Identifier: Apache-2.0
"""Partitions: every sample once and nobody empty, the law of each method, the same bits everywhere, damage refused."""

from __future__ import annotations

import hashlib
import math
import zlib
from fractions import Fraction

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import Rng
from paceline.data import Partition, partition
from paceline.data.draws import Draws, exp, log
from paceline.data.partitioning import METHODS
from paceline.errors import DataError

LABELS = np.random.default_rng(4).integers(0, 10, 6000)


def made(method: str, clients: int = 16, labels: object = LABELS, seed: int = 1, **options: object) -> Partition:
    column = np.arange(len(labels)) % 23 if method == "natural" else None  # type: ignore[arg-type]
    return partition(labels, clients, method, column=column, seed=seed, **options)  # type: ignore[arg-type]


# Laws ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
def test_every_sample_has_one_client_and_no_client_is_empty(method: str, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 4), min_size=5, max_size=120))
    clients = data.draw(st.integers(1, 9))
    seed = data.draw(st.integers(0, (1 << 64) - 1))
    try:
        dealt = made(method, clients, np.array(labels), seed, classes_per_client=2, alpha=0.3)
    except DataError as error:
        assert "take" in str(error) or "classes per client, but" in str(error)  # what to do instead  # noqa: PT017
        return
    parts = dealt.indices()
    assert len(parts) == clients
    assert sorted(int(i) for part in parts for i in part) == list(range(len(labels)))
    assert [len(part) for part in parts] == dealt.sizes()
    assert min(dealt.sizes()) >= 1
    assert [sum(row) for row in dealt.table(labels, 5)] == dealt.sizes()


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_names_one_partition_and_another_seed_another(method: str) -> None:
    assert made(method).owner.tolist() == made(method).owner.tolist()
    assert made(method).owner.tolist() != made(method, seed=2).owner.tolist()


@pytest.mark.parametrize(
    ("method", "digest"),
    [
        ("iid", "5d042b96b7aa58cc"),
        ("dirichlet", "b82d9a05313b304f"),
        ("mild", "2cb598453c16a2fb"),
        ("severe", "2d5f53fd195d3db6"),
        ("shards", "e334d1d7643c7cb3"),
        ("natural", "052fc0d52e242075"),
    ],
)
def test_the_bits_are_the_same_on_every_machine(method: str, digest: str) -> None:
    labels = np.arange(5000) * 7919 % 10
    owner = made(method, 16, labels, seed=(3 << 32) + 5).owner
    assert hashlib.sha256(owner.astype("<u4").tobytes()).hexdigest()[:16] == digest


# Methods ------------------------------------------------------------------------------------------------------------


def test_iid_parts_are_near_equal_and_mixed() -> None:
    dealt = made("iid", 7)
    assert sorted(set(dealt.sizes())) == [857, 858]
    expected = np.bincount(LABELS) / len(LABELS)
    for row in dealt.table(LABELS, 10):
        assert np.abs(np.array(row) / sum(row) - expected).max() < 0.06  # over 5 standard deviations


@pytest.mark.parametrize(("method", "classes"), [("mild", 5), ("severe", 2), ("dirichlet-classes", 3)])
def test_extended_dirichlet_keeps_to_its_classes_with_equally_many_holders(method: str, classes: int) -> None:
    dealt = made(method, 40, classes_per_client=3)
    table = np.array(dealt.table(LABELS, 10))
    assert (table > 0).sum(1).max() <= classes
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 3  # by the draw at most one apart; small shares may round to none
    assert dealt.method == "dirichlet-classes"
    assert dealt.options == {"classes_per_client": classes, "alpha": 3.0}


def test_many_classes_and_clients_do_not_underflow() -> None:
    """The published form fails here: exp of -100 times the number of holders is 0 for all classes."""
    labels = np.arange(30_000) % 100
    table = np.array(partition(labels, 128, "dirichlet-classes", classes_per_client=20).table(labels, 100))
    holders = (table > 0).sum(0)
    assert 22 <= holders.min() <= holders.max() <= 26  # 128 x 20 / 100 = 25.6


def test_a_small_alpha_is_uneven_and_a_large_one_even() -> None:
    sizes = {alpha: np.std(made("dirichlet", 10, alpha=alpha).sizes()) for alpha in (0.05, 1.0, 1000.0)}
    assert sizes[0.05] > sizes[1.0] > sizes[1000.0]
    shares = np.array(made("dirichlet", 10, alpha=1e6).table(LABELS, 10)) / np.bincount(LABELS)
    assert np.abs(shares - 0.1).max() < 0.07


def test_shards_give_each_client_few_classes() -> None:
    labels = np.repeat(np.arange(10), 200)
    dealt = made("shards", 20, labels, shards_per_client=2)
    assert dealt.sizes() == [100] * 20
    assert (np.array(dealt.table(labels, 10)) > 0).sum(1).max() <= 2


def test_natural_clients_are_the_values_of_a_column() -> None:
    cities = np.array(["Jena", "Bonn", "Jena", "Kiel", "Bonn", "Jena"])
    dealt = partition([0] * 6, None, "natural", column=cities)
    assert [part.tolist() for part in dealt.indices()] == [[1, 4], [0, 2, 5], [3]]  # in the order of the values
    fewer = partition([0] * 6, 2, "natural", column=cities)
    assert sorted(part.tolist() for part in fewer.indices()) == [[0, 2, 5], [1, 3, 4]]  # whole values, even loads


def test_a_client_that_was_left_empty_gets_a_sample_it_may_hold() -> None:
    labels = np.array([0] * 6 + [1] * 6)
    for seed in range(60):
        dealt = partition(labels, 6, "dirichlet-classes", classes_per_client=1, alpha=0.05, seed=seed)
        table = np.array(dealt.table(labels, 2))
        assert (table.sum(1) >= 1).all()
        assert ((table > 0).sum(1) == 1).all()


# Random numbers -----------------------------------------------------------------------------------------------------


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_is_right_to_the_last_bits(x: float) -> None:
    assert log(x) == pytest.approx(math.log(x), rel=4e-16, abs=4e-16)


@given(st.floats(-700, 0))
def test_the_exponential_is_right_to_the_last_bits(x: float) -> None:
    rel = 2e-13 if x < -1 else 1e-15  # a relative error in x itself becomes |x| times as large
    assert exp(x) == pytest.approx(math.exp(x), rel=rel)


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 3.0, 20.0])
def test_gamma_numbers_have_their_moments(shape: float) -> None:
    draws = Draws(Rng(11, 200, 0, 0))
    n = 20_000
    values = [math.exp(draws.log_gamma(shape)) for _ in range(n)]
    mean, variance = sum(values) / n, np.var(values)
    assert abs(mean - shape) < 5 * math.sqrt(shape / n)
    fourth = 3 * shape**2 + 6 * shape  # central moment
    assert abs(variance - shape) < 5 * math.sqrt((fourth - shape**2) / n)


def test_uniform_numbers_are_never_0_or_1_and_normal_ones_normal() -> None:
    draws = Draws(Rng(12, 200, 0, 0))
    values = [draws.uniform() for _ in range(20_000)]
    assert min(values) > 0.0
    assert max(values) < 1.0
    counts = np.histogram(values, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    normal = [draws.normal() for _ in range(20_000)]
    inside = sum(abs(x) < 1.0 for x in normal)
    assert abs(inside - 20_000 * math.erf(math.sqrt(0.5))) < 5 * math.sqrt(20_000 * 0.683 * 0.317)


def test_choices_follow_their_weights() -> None:
    draws = Draws(Rng(13, 200, 0, 0))
    counts = np.bincount([draws.choose([1.0, 0.0, 3.0]) for _ in range(8000)], minlength=3)
    assert counts[1] == 0
    assert abs(counts[0] - 2000) < 5 * math.sqrt(8000 * Fraction(3, 16))


# Saved --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 16, 300])
def test_a_saved_partition_is_the_same_and_small(clients: int) -> None:
    dealt = made("iid", clients)
    saved = dealt.to_bytes()
    again = Partition.from_bytes(saved, LABELS)
    assert again.owner.tolist() == dealt.owner.tolist()
    assert (again.method, again.options, again.seed, again.clients) == ("iid", {}, 1, clients)
    assert again.to_bytes() == saved
    assert len(saved) < len(LABELS) * (1 if clients <= 256 else 2) + 300


def sealed(head: dict[str, object]) -> bytes:
    """Return a file of this head whose checksum is right."""
    body: bytes = msgpack.packb(head)
    return body + zlib.crc32(body).to_bytes(4, "little")


def test_no_bit_of_a_saved_partition_can_flip_unseen() -> None:
    saved = partition(LABELS[:60], 4, "dirichlet", alpha=0.5, seed=3).to_bytes()
    for bit in range(8 * len(saved)):
        damaged = bytearray(saved)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError, match="the partition is damaged"):
            Partition.from_bytes(bytes(damaged))


def test_a_damaged_partition_or_one_of_other_labels_is_refused() -> None:
    dealt = made("severe")
    saved = dealt.to_bytes()
    head = msgpack.unpackb(saved[:-4])
    assert sealed(head) == saved
    changed = [
        {"schema": "paceline-partition-1"},
        {"schema": "paceline-partition-9"},
        {"samples": 5999},
        {"samples": 6001},
        {"samples": 1 << 40},
        {"clients": 15},
        {"clients": 17},
        {"clients": 1 << 30},
        {"width": 3},
        {"owner": head["owner"][:-3]},
    ]
    for bad in [saved[:-1], b"", b"\xc1", msgpack.packb(head), *(sealed(head | change) for change in changed)]:
        with pytest.raises(DataError, match="the partition is damaged"):
            Partition.from_bytes(bad)
    with pytest.raises(DataError, match="made for other labels"):
        Partition.from_bytes(saved, LABELS[::-1])


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((LABELS, 4, "dirichlett"), {}, "did you mean dirichlet?"),
        ((LABELS, 0, "iid"), {}, "clients is 0"),
        ((LABELS, None, "iid"), {}, "clients is None"),
        ((LABELS[:3], 4, "iid"), {}, "3 samples are too few for 4 clients"),
        ((LABELS, 4, "severe"), {}, "4 clients x 2 cannot hold all 10 classes"),
        ((LABELS, 4, "dirichlet-classes"), {"classes_per_client": 11}, "but the labels have 10 classes"),
        ((LABELS, 4, "dirichlet"), {"alpha": 0.0}, "alpha is 0.0"),
        ((LABELS, 4, "shards"), {"shards_per_client": 2000}, "take fewer"),
        ((LABELS, 4, "natural"), {}, "one value for each of 6000 samples, got none"),
        ((LABELS[:4], 3, "natural"), {"column": [1, 1, 2, 2]}, "2 values of the column for 3 clients"),
        (([0.5, 1.0], 2, "iid"), {}, "expected a flat sequence of whole numbers"),
        (([2**32 + 1, 1], 2, "iid"), {}, "labels hold 4294967297; expected whole numbers from 0 to 2^32 - 1"),
        (([3, -1], 2, "iid"), {}, "labels hold -1; expected whole numbers from 0"),
        ((LABELS, 1.5, "iid"), {}, "clients is 1.5; expected a whole number from 1"),
        ((LABELS, 4, "shards"), {"shards_per_client": 1.5}, "shards_per_client is 1.5; expected a whole number"),
        ((LABELS, 4, "shards"), {"shards_per_client": 0}, "shards_per_client is 0; expected a whole number from 1"),
        ((LABELS, 4, "dirichlet-classes"), {"classes_per_client": 0}, "classes_per_client is 0; expected a whole"),
        ((LABELS, 4, "dirichlet"), {"alpha": "x"}, "alpha is 'x'; expected a number"),
        ((LABELS[:3], 2, "natural"), {"column": [None, 1, "x"]}, "values of kinds that cannot be compared"),
        ((LABELS[:3], 2, "natural"), {"column": "abc"}, "expected a flat column, one value a sample, got shape ()"),
        ((LABELS[:2], 2, "natural"), {"column": [[1], [2]]}, "expected a flat column, one value a sample"),
        *(
            ((LABELS, 4, method), {"seed": seed}, f"seed is {seed}; expected a whole number from 0 to 184467440737")
            for method in ("iid", "shards", "dirichlet", "severe")
            for seed in (-1, 1 << 64)
        ),
    ],
)
def test_what_cannot_be_dealt_is_one_sentence(
    arguments: tuple[object, ...], options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        partition(*arguments, **options)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
