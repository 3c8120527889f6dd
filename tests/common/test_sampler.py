# SPDX-License-Identifier: Apache-2.0
"""The global sampler: one schedule however it is reached, conservation, churn. Its law: test_sampler_law.py."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import GlobalSampler, core
from paceline.errors import CoreError

POOLS = st.lists(st.integers(0, 60), min_size=1, max_size=30)


def epoch_of(s: GlobalSampler, batch: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the steps until the pool is empty."""
    while s.total:
        yield s.draw(batch)


# Laws


@given(pools=POOLS, batch=st.integers(1, 64), seed=st.integers(0, 2**64 - 1))
def test_an_epoch_uses_each_sample_once(pools: list[int], batch: int, seed: int) -> None:
    s = GlobalSampler(pools, seed=seed)
    used: Counter[int] = Counter()
    steps = list(epoch_of(s, batch))
    for number, (ids, counts) in enumerate(steps):
        assert ids == sorted(set(ids))
        assert sum(counts) == batch or number == len(steps) - 1
        used.update(dict(zip(ids, counts, strict=True)))
    assert [used[k] for k in range(len(pools))] == pools
    assert s.draw(batch) == ([], [])


@given(pools=POOLS, batch=st.integers(1, 40), seed=st.integers(0, 99))
def test_dense_and_sparse_say_the_same(pools: list[int], batch: int, seed: int) -> None:
    sparse, dense = GlobalSampler(pools, seed), GlobalSampler(pools, seed)
    out = array("I", [7] * len(pools))
    for ids, counts in epoch_of(sparse, batch):
        assert dense.draw_dense(batch, out) is out
        assert {k: count for k, count in enumerate(out) if count} == dict(zip(ids, counts, strict=True))
        assert dense.remaining == sparse.remaining
        assert dense.total == sum(dense.remaining)


# One schedule


WAYS = [("fenwick", "best"), *(("tree16", simd) for simd in core.simd_here())]


@settings(max_examples=50, deadline=None)
@given(
    pools=st.lists(st.integers(0, 9), min_size=1, max_size=200)
    | st.lists(st.integers(0, 4), min_size=900, max_size=999),
    batch=st.integers(1, 400),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
)
def test_all_structures_draw_the_same(pools: list[int], batch: int, seed: int, epoch: int) -> None:
    first, *others = (GlobalSampler(pools, seed, epoch, structure, simd) for structure, simd in WAYS)
    steps = list(epoch_of(first, batch))
    if steps:
        whole = GlobalSampler(pools, seed, epoch).schedule(batch)
        assert [(list(ids), list(counts)) for ids, counts in whole] == steps
    for other in others:
        assert list(epoch_of(other, batch)) == steps


@given(pools=POOLS, batch=st.integers(1, 64), done=st.integers(0, 3), structure=st.sampled_from(["tree16", "fenwick"]))
def test_near_equal_steps_differ_by_one_and_are_as_few(pools: list[int], batch: int, done: int, structure: str) -> None:
    s = GlobalSampler(pools, seed=4, structure=structure)
    for _ in range(done):
        s.draw(3)
    s.commit()
    left, total = s.remaining, s.total
    if total == 0:
        return
    used: Counter[int] = Counter()
    sizes = []
    for ids, counts in s.schedule(batch, near_equal=True):
        used.update(dict(zip(ids, counts, strict=True)))
        sizes.append(sum(counts))
    assert [used[k] for k in range(len(pools))] == left
    assert len(sizes) == -(-total // batch)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert s.total == 0
    assert s.step == done + len(sizes)


def test_a_state_goes_from_one_structure_to_another() -> None:
    s = GlobalSampler([k % 9 for k in range(500)], seed=5, structure="fenwick")
    for batch in (100, 40, 7):
        s.draw(batch)
    s.remove(8)
    for structure, simd in WAYS:
        other = GlobalSampler.from_state(s.state(), structure, simd)
        assert other.state() == s.state()
        assert list(epoch_of(other, 33)) == list(epoch_of(GlobalSampler.from_state(s.state(), "fenwick"), 33))


def test_memory_is_what_is_said() -> None:
    pools = array("I", [1]) * 1_000_000
    assert GlobalSampler(pools, replay=False).memory_bytes <= 4_500_000
    assert GlobalSampler(pools, structure="fenwick", replay=False).memory_bytes == 4_000_000
    assert GlobalSampler(pools).memory_bytes <= 8_500_000
    with pytest.raises(CoreError, match="seek: "):
        GlobalSampler([5], replay=False).seek(0, 1)


@given(pools=POOLS, batch=st.integers(1, 20), step=st.integers(0, 30), seed=st.integers(0, 99))
def test_seek_finds_the_step_that_going_there_reaches(pools: list[int], batch: int, step: int, seed: int) -> None:
    walked, sought = GlobalSampler(pools, seed), GlobalSampler(pools, seed)
    for _ in range(step):
        walked.draw(batch)
    sought.draw(5)
    sought.seek(step, batch)
    assert sought.step == step
    assert sought.draw(batch) == walked.draw(batch)
    assert sought.remaining == walked.remaining


@given(pools=POOLS, batch=st.integers(1, 20), steps=st.integers(0, 10), open_=st.booleans())
def test_a_restored_state_goes_on_with_the_same_draws(pools: list[int], batch: int, steps: int, open_: bool) -> None:
    s = GlobalSampler(pools, seed=3)
    for _ in range(steps):
        s.draw(batch)
    s.remove(0)
    s.commit()
    expected = None
    if open_:
        expected = s.draw(batch)
    t = GlobalSampler.from_state(s.state())
    if open_:
        assert t.draw(batch) == expected  # an open step is drawn again, the same
    assert list(epoch_of(t, batch)) == list(epoch_of(s, batch))
    t.restore(0)
    s.restore(0)
    assert t.state() == s.state()


def test_steps_epochs_and_seeds_are_different_streams() -> None:
    pools = [100] * 20
    first = GlobalSampler(pools, 1, 0).draw(50)
    assert first == GlobalSampler(pools, 1, 0).draw(50)
    assert first not in (GlobalSampler(pools, 2, 0).draw(50), GlobalSampler(pools, 1, 1).draw(50))
    assert first != GlobalSampler(pools, 1 << 32, 0).draw(50)


# Two phases


def test_a_void_step_gives_back_and_is_drawn_anew() -> None:
    s = GlobalSampler([50] * 10, seed=5)
    s.draw(20)
    before = s.step
    first = s.draw(20)
    s.void(lost=3)
    assert s.redraw == 1
    assert s.remaining[3] == 0
    second = s.draw(20)
    assert s.step == before + 1
    assert first != second
    assert 3 not in second[0]
    s.restore(3)
    s.commit()
    assert (s.step, s.redraw) == (before + 2, 0)
    assert s.total == 500 - 20 - 20


def test_nothing_is_lost_when_a_client_of_the_open_step_is_lost() -> None:
    s = GlobalSampler([5, 5, 5], seed=1)
    ids, _ = s.draw(12)
    assert ids == [0, 1, 2]
    s.remove(1)
    s.void()
    assert s.remaining == [5, 0, 5]
    s.restore(1)
    assert s.remaining == [5, 5, 5]


def test_a_state_of_an_open_step_keeps_what_the_lost_client_had_given() -> None:
    """As `void` does: the client has all its samples again when it is back, and none before."""
    s = GlobalSampler([5, 5, 5], seed=1)
    ids, _ = s.draw(6)
    assert 0 in ids
    s.remove(0)
    t = GlobalSampler.from_state(s.state())
    assert t.remaining == [0, 5, 5]
    assert 0 not in t.draw(6)[0]
    t.void()
    t.restore(0)
    s.void()
    s.restore(0)
    assert t.remaining == s.remaining == [5, 5, 5]


@given(
    pools=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    steps=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(["", "remove", "restore", "set"]), st.integers(0, 5)), max_size=8
    ),
)
def test_a_state_of_an_open_step_holds_what_a_void_step_leaves(
    pools: list[int], steps: list[tuple[int, str, int]]
) -> None:
    s = GlobalSampler(pools, seed=2)
    for batch, what, k in steps:
        s.draw(batch)
        if k < len(pools):
            if what == "remove":
                s.remove(k)
            elif what == "restore":
                s.restore(k)
            elif what == "set":
                s.set_count(k, 4)
    if steps:
        t = GlobalSampler.from_state(s.state())
        s.void()
        assert t.remaining == s.remaining
        for k in range(len(pools)):
            t.restore(k)
            s.restore(k)
        assert t.remaining == s.remaining


def test_a_void_step_ends_what_can_be_replayed() -> None:
    s = GlobalSampler([5, 5], seed=1)
    s.draw(3)
    s.void()
    s.draw(3)
    s.commit()
    for one in (s, GlobalSampler.from_state(s.state())):
        with pytest.raises(CoreError, match=r"seek: .* or a step was void, so it cannot be replayed"):
            one.seek(1, 3)


def test_what_cannot_be_drawn_leaves_the_open_step_as_it_is() -> None:
    s = GlobalSampler([5, 5], seed=1)
    s.draw(3)
    for batch in (2**40, 2.5, 0, "x"):
        with pytest.raises(CoreError, match="batch is"):
            s.draw(batch)  # type: ignore[arg-type]
    s.void()
    assert s.remaining == [5, 5]


def test_no_open_step_cannot_be_void() -> None:
    s = GlobalSampler([5])
    with pytest.raises(CoreError, match="no step is open"):
        s.void()
    s.draw(1)
    s.commit()
    with pytest.raises(CoreError, match="no step is open"):
        s.void()


# Churn


def test_clients_come_go_and_change() -> None:
    s = GlobalSampler([5, 5], seed=2)
    assert [s.add(n) for n in (7, 0, 3)] == [2, 3, 4]
    s.remove(0)
    s.remove(0)
    assert s.remaining == [0, 5, 7, 0, 3]
    s.set_count(0, 9)
    s.set_count(3, 1)
    s.restore(0)
    s.restore(1)
    assert s.remaining == [9, 5, 7, 1, 3]
    assert s.total == 25
    assert len(s) == 5
    with pytest.raises(CoreError, match="seek: clients joined, left or changed"):
        s.seek(1, 5)


def test_a_sampler_may_begin_empty() -> None:
    s = GlobalSampler([])
    assert s.draw(5) == ([], [])
    assert [s.add(2) for _ in range(40)] == list(range(40))
    assert s.total == 80


def test_a_large_pool_is_drawn_from() -> None:
    s = GlobalSampler([2**31, 2**31 - 1], seed=1)
    assert s.total == 2**32 - 1
    assert sum(s.draw(1000)[1]) == 1000


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda s: s.remove(3), "there is no client 3; this sampler has 3 of them"),
        (lambda s: s.restore(-1), "there is no client -1"),
        (lambda s: s.set_count(0, 2**32), "count is 4294967296; expected a whole number"),
        (lambda s: s.set_count(0, 2**32 - 1), "the pools must sum to no more than 4294967295 samples"),
        (lambda s: s.add(-1), "count is -1; expected"),
        (lambda s: s.draw(-1), "batch is -1; expected 1 or more"),
        (lambda s: s.draw(0), "batch is 0; expected 1 or more"),
        (lambda s: s.draw_by_client(0), "batch is 0; expected 1 or more"),
        (lambda s: s.schedule(0), "batch is 0; expected 1 or more"),
        (lambda s: (s.schedule(9), s.schedule(9)), "schedule: the pool is empty"),
        (lambda s: GlobalSampler([1], structure="heap"), "structure is 'heap'; expected one of auto, tree16, fenwick"),
        (lambda s: GlobalSampler([1], simd="mmx"), "simd is 'mmx'; expected one of those that this machine has: best"),
        (lambda s: s.draw_dense(1, [0]), "out holds 1 places for 3 clients"),
        (lambda s: s.draw("x"), "batch is 'x'; expected 1 or more, a whole number"),
        (lambda s: s.draw_by_client(1.5), "batch is 1.5; expected 1 or more"),
        (lambda s: s.remove("a"), "there is no client a; this sampler has 3"),
        (lambda s: s.seek(1, 0), "batch is 0; expected 1 or more"),
        (lambda s: s.seek(-1, 2), "step is -1; expected a whole number"),
        (lambda s: (s.remove(0), s.set_count(0, 1.5)), "count is 1.5; expected a whole number"),
        (lambda s: GlobalSampler([1], structure="fenwick", simd="zzz"), "simd is 'zzz'; expected one of best, portab"),
        (lambda s: GlobalSampler(7), "counts is 7; expected how many samples each client has"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_done_is_said(call: Callable[[GlobalSampler], object], sentence: str) -> None:
    with pytest.raises(CoreError, match=sentence):
        call(GlobalSampler([1, 2, 3]))


@pytest.mark.parametrize("counts", [[-1], [2**32], [1.5], ["x"], [2**31, 2**31]])
def test_counts_that_are_none_are_refused(counts: list[int]) -> None:
    with pytest.raises(CoreError):
        GlobalSampler(counts)


def test_numpy_counts_go_in() -> None:
    numpy = pytest.importorskip("numpy")
    wanted = GlobalSampler([3, 4, 5], 1).draw(6)
    for kind in ("int64", "uint32", "uint8", ">u4", ">i8"):
        assert GlobalSampler(numpy.array([3, 4, 5], dtype=kind), 1).draw(6) == wanted
        assert GlobalSampler(list(numpy.array([3, 4, 5], dtype=kind)), 1).draw(6) == wanted
    with pytest.raises(CoreError, match="counts holds"):
        GlobalSampler(numpy.array([3.0, 4.5]))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"", lambda b: b[:20] + b"x" + b[21:]]
)
def test_a_damaged_state_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CoreError, match="state"):
        GlobalSampler.from_state(damage(GlobalSampler([1, 2, 3]).state()))


def test_no_bit_of_a_state_can_flip_unseen() -> None:
    s = GlobalSampler([3, 4, 5, 6], seed=3)
    s.draw(4)
    for removed in ([], [0, 2]):
        for k in removed:
            s.remove(k)
        state = s.state()
        for bit in range(8 * len(state)):
            damaged = bytearray(state)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CoreError, match="state"):
                GlobalSampler.from_state(bytes(damaged))
