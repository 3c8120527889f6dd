# SPDX-License-Identifier: Apache-2.0
"""An epoch of split learning whose clients come and go: the laws of its counts, whatever happens in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import GlobalSampler
from paceline.batches import schedule
from paceline_host.psl.plan import EpochPlan

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any)


@pytest.mark.parametrize("method", ["gpsl", "fls", "fpls"])
def test_undisturbed_it_is_the_methods_own_schedule(method: str) -> None:
    sizes, batch = [13, 0, 40, 7, 25], 16
    plan = EpochPlan(method, sizes, batch, seed=5, epoch=2)
    dense = []
    for ids, counts in schedule(method, sizes, batch, 5, 2):
        row = [0] * len(sizes)
        for client, count in zip(ids, counts, strict=True):
            row[client] = count
        dense.append(tuple(row))
    assert plan.rows(1000) == dense
    walked = []
    while not plan.over:
        walked.append(plan.counts)
        plan.commit()
    assert walked == dense
    assert plan.used == sizes


def test_a_void_step_is_drawn_anew_and_the_next_epoch_is_another() -> None:
    plan = EpochPlan("gpsl", [50, 50, 50], 30, seed=1, epoch=0)
    first = plan.counts
    plan.void([])
    sampler = GlobalSampler([50, 50, 50], seed=1, epoch=0)
    sampler.draw(30)
    sampler.void()
    assert plan.counts == tuple(sampler.draw_dense(30))  # with the words of the first redraw, by the sampler's contract
    assert plan.redraw == 1
    assert first != EpochPlan("gpsl", [50, 50, 50], 30, seed=1, epoch=1).counts


@given(
    st.sampled_from(["gpsl", "fls", "fpls"]), SIZES, st.integers(1, 40), st.integers(0, 1 << 62),
    st.lists(
        st.tuples(st.sampled_from(["commit", "commit", "void", "lose", "leave", "back"]), st.integers(0, 7)),
        max_size=40,
    ),
)  # fmt: skip
def test_no_sample_is_given_twice_and_none_is_forgotten(
    method: str, sizes: list[int], batch: int, seed: int, events: list[tuple[str, int]]
) -> None:
    plan = EpochPlan(method, sizes, batch, seed, 0)
    given_, gone = [0] * len(sizes), set()
    for what, number in events:
        client = number % len(sizes)
        if what == "commit" and not plan.over:
            row = plan.counts
            assert all(count == 0 for c, count in enumerate(row) if c in gone)
            if method == "gpsl":
                reachable = sum(s - g for c, (s, g) in enumerate(zip(sizes, given_, strict=True)) if c not in gone)
                assert sum(row) == min(batch, reachable)
            given_ = [g + count for g, count in zip(given_, row, strict=True)]
            plan.commit()
        elif what == "void" and not plan.over:
            plan.void([])
        elif what == "lose" and not plan.over:
            plan.void([client])
            gone.add(client)
        elif what == "leave":
            plan.remove(client)
            plan.changed()
            gone.add(client)
        elif what == "back":
            plan.restore(client)
            plan.changed()
            gone.discard(client)
        assert plan.used == given_
        assert plan.left == sum(sizes[c] - given_[c] for c in gone)
        ahead = [sum(column) for column in zip(*plan.rows(10_000), strict=True)] or [0] * len(sizes)
        assert [g + a for g, a in zip(given_, ahead, strict=True)] == [
            given_[c] if c in gone else size for c, size in enumerate(sizes)
        ]


def test_the_same_events_give_the_same_epoch() -> None:
    def walk() -> list[tuple[int, ...]]:
        plan = EpochPlan("gpsl", [20, 30, 40], 16, seed=9, epoch=3)
        seen = [plan.counts]
        plan.commit()
        plan.void([1])
        seen += [plan.counts]
        plan.commit()
        plan.restore(1)
        plan.changed()
        return seen + plan.rows(100)

    assert walk() == walk()
