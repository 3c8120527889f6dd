# SPDX-License-Identifier: Apache-2.0
"""The four methods: laws of an epoch, the published baselines computed independently, GPSL against its sampler."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import GlobalSampler
from paceline.batches import METHODS, Global, half_even, schedule
from paceline.errors import CoreError, SettingsError

SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) > 0)


def dense(method: str, sizes: Sequence[int], batch: int, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    """Return steps x clients."""
    made = schedule(method, sizes, batch, seed, epoch)
    rows = []
    for ids, counts in made:
        row = [0] * made.clients
        for k, count in zip(ids, counts, strict=True):
            row[k] = count
        rows.append(row)
    return rows


@pytest.mark.parametrize("method", METHODS)
@given(sizes=SIZES, batch=st.integers(1, 80), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_uses_each_sample_once_and_ends(
    method: str, sizes: list[int], batch: int, seed: int, epoch: int
) -> None:
    made = schedule(method, sizes, batch, seed, epoch)
    steps = list(made)
    assert len(steps) == made.steps
    assert steps == list(made)
    assert sum(steps[0][1]) == made.effective_batch
    used = [0] * made.clients
    for ids, counts in steps:
        assert ids == sorted(set(ids))
        assert min(counts) >= 1
        for k, count in zip(ids, counts, strict=True):
            used[k] += count
    assert used == ([sum(sizes)] if method == "central" else sizes)
    if method in ("gpsl", "central"):
        batches = [sum(counts) for _, counts in steps]
        assert batches[:-1] == [batch] * (len(batches) - 1)
        assert 1 <= batches[-1] <= batch


@pytest.mark.parametrize("method", ["fls", "fpls"])
@given(sizes=SIZES, batch=st.integers(1, 80))
def test_fixed_batches_are_those_of_the_published_loop(method: str, sizes: list[int], batch: int) -> None:
    """Its loop, restated: every client gives what it can until all is used; Python's round is half to even as well."""
    total, clients = sum(sizes), len(sizes)
    shares = [Fraction(batch, clients) if method == "fls" else Fraction(batch * size, total) for size in sizes]
    local = [max(1, round(share)) for share in shares]
    left, rows = list(sizes), []
    while sum(left):
        rows.append([min(b, rest) for b, rest in zip(local, left, strict=True)])
        left = [rest - given_ for rest, given_ in zip(left, rows[-1], strict=True)]
    assert dense(method, sizes, batch) == rows
    assert schedule(method, sizes, batch).steps == max(-(-d // b) for d, b in zip(sizes, local, strict=True))


def test_the_published_examples() -> None:
    many = schedule("fls", [400] * 128, 64)  # round(0.5) is 0, lifted to 1
    assert (many.effective_batch, many.steps) == (128, 400)
    iid = [3125] * 16  # CIFAR-10
    assert [schedule(method, iid, 128).steps for method in METHODS] == [391] * 4
    assert dense("gpsl", [50_000], 128)[-1] == [80]
    near = [sum(counts) for _, counts in Global([50_000], 128, near_equal=True)]
    assert (near.count(128), near.count(127), len(near)) == (343, 48, 391)


@pytest.mark.parametrize(
    ("numerator", "denominator", "nearest"),
    [(1, 2, 0), (3, 2, 2), (5, 2, 2), (7, 2, 4), (10**30 + 1, 2 * 10**30, 1), (10**30, 2 * 10**30, 0), (7, 3, 2)],
)
def test_halves_go_to_the_even_number_exactly(numerator: int, denominator: int, nearest: int) -> None:
    assert half_even(numerator, denominator) == nearest == round(Fraction(numerator, denominator))


def test_a_client_without_samples_ends_no_epoch_late_and_still_counts_among_k() -> None:
    assert dense("fls", [4, 0, 2], 6) == [[2, 0, 2], [2, 0, 0]]
    assert dense("fpls", [4, 0, 2], 3) == [[2, 0, 1], [2, 0, 1]]
    assert schedule("fls", [4, 0, 2], 6).effective_batch == 4


def test_gpsl_is_the_global_sampler_and_differs_by_seed_and_epoch() -> None:
    sizes = [30, 5, 17, 48]
    sampler = GlobalSampler(sizes, seed=9, epoch=4)
    assert dense("gpsl", sizes, 7, 9, 4) == [list(sampler.draw_dense(7)) for _ in range(15)]
    assert dense("gpsl", sizes, 7, 9, 4) != dense("gpsl", sizes, 7, 9, 5) != dense("gpsl", sizes, 7, 8, 5)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (("gspl", [1], 1), SettingsError, "did you mean gpsl"),
        (("gpsl", [1], 0), CoreError, "a step takes at least 1 sample"),
        (("fls", [0, 0], 4), CoreError, "2 clients hold 0 samples"),
        (("central", [], 4), CoreError, "0 clients hold 0 samples"),
        (("fpls", [5, -1], 4), CoreError, "expected sizes of 0 or more"),
        (("gpsl", [1 << 31, 1 << 31], 4), CoreError, "sum of 1 to 2\\^32 - 1"),
        (("fpls", [3, 2.5], 2), CoreError, "a client's size is 2.5; expected a whole number"),
        (("fls", [3], 2.5), CoreError, "batch is 2.5; expected a whole number"),
        (("gpsl", [3], 2.0), CoreError, "batch is 2.0; expected a whole number"),
        (("central", ["3"], 2), CoreError, "a client's size is '3'; expected a whole number"),
    ],
)
def test_what_makes_no_epoch_is_refused(
    arguments: tuple[str, list[int], int], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        schedule(*arguments)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("kind", ["uint16", "int32", "uint32", "int64"])
def test_numbers_of_any_width_make_the_schedule_of_pythons_own(method: str, kind: str) -> None:
    """B D_k is far above what 16 or 32 bits hold: computed in them, fpls would give other batches."""
    numpy = pytest.importorskip("numpy")
    sizes, batch = [60_000, 4] if kind == "uint16" else [3_000_000, 4], 2000
    wanted = schedule(method, sizes, batch)
    array = numpy.array(sizes, dtype=kind)
    for given_ in (array, list(array)):
        made = schedule(method, given_, array.dtype.type(batch))
        assert (made.steps, made.effective_batch, made.clients) == (
            wanted.steps,
            wanted.effective_batch,
            wanted.clients,
        )
        assert next(iter(made)) == next(iter(wanted))
    assert wanted.steps == {"gpsl": 1501, "central": 1501, "fls": 3000, "fpls": 1500}[method] or kind == "uint16"
