# SPDX-License-Identifier: Apache-2.0
"""Silos' samples: every place leads to one of them, and to each once an epoch."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import DataError
from paceline.settings import load_table
from paceline.silos import Dealing, SiloRule, SiloSamples
from paceline.tasks import Task


def task_of(labels: list[int]) -> Task:
    """Return what silos ask of a task."""
    return cast(Task, SimpleNamespace(samples=len(labels), labels=lambda: labels))


TASK = task_of([i % 10 for i in range(200)])


@given(
    st.sampled_from(["iid", "mild", "dirichlet", "shards"]), st.integers(2, 6), st.integers(0, 99), st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), min_size=1, max_size=4),
)  # fmt: skip
def test_every_place_of_a_silos_stream_is_one_of_its_samples(
    method: Any, silos: int, seed: int, epoch: int, stretches: list[tuple[int, int]]
) -> None:
    rules = [SiloRule(method, seed=seed, silo=number, silos=silos) for number in range(silos)]
    held = [rule.samples(TASK) for rule in rules]
    members = Dealing(method, seed=seed).members(TASK, silos)
    assert Counter(int(i) for own in members for i in own) == Counter(range(200)), "a sample is in one silo"
    for own, mine in zip(held, members, strict=True):
        order = own.order(seed, epoch)
        assert Counter(order) == Counter(int(i) for i in mine)
        for place, count in stretches:  # as a worker takes places of the stream
            taken = [own.order(seed, p // len(own))[p % len(own)] for p in range(place, place + min(count, 5))]
            assert set(taken) <= {int(i) for i in mine}


def test_a_range_and_own_data_are_what_they_say() -> None:
    assert sorted(SiloRule(kind="range", begin=50, end=90).samples(TASK).order(1, 0)) == list(range(50, 90))
    assert sorted(SiloRule(kind="own").samples(TASK).order(1, 0)) == list(range(200))


def test_a_rule_travels_as_options_and_comes_back() -> None:
    rule = SiloRule("dirichlet", 3, 0.5, 9, "dealt", silo=1, silos=3)
    assert load_table(asdict(rule), SiloRule, where="silo") == rule


@pytest.mark.parametrize(("begin", "end"), [(0, 201), (5, 5), (9, 3)])
def test_a_range_that_the_data_have_not_is_refused(begin: int, end: int) -> None:
    with pytest.raises(DataError, match="the data have 200"):
        SiloRule(kind="range", begin=begin, end=end).samples(TASK)


def test_a_task_without_labels_is_not_dealt() -> None:
    with pytest.raises(DataError, match="give each silo its samples"):
        Dealing().members(cast(Task, SimpleNamespace(samples=10)), 2)


def test_epochs_are_other_orders_of_the_same_samples() -> None:
    samples = SiloSamples(range(30, 60))
    assert samples.order(1, 0) != samples.order(1, 1)
    assert sorted(samples.order(1, 0)) == sorted(samples.order(1, 1)) == list(range(30, 60))
