# SPDX-License-Identifier: Apache-2.0
"""The reducer against exact arithmetic: order of arrival never changes bits, means are right, bad updates are named."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tensors import Manifest
from paceline_host.reducer import BLOCK, Reducer, Refused, Verified

ITEMS = 3
MANIFEST = Manifest.build(
    [
        ("w", "float32", (ITEMS,), "parameter"), ("mean", "float64", (ITEMS,), "buffer"),
        ("half", "float16", (ITEMS,), "parameter"), ("brain", "bfloat16", (ITEMS,), "parameter"),
        ("steps", "int64", (), "buffer"), ("mask", "bool", (ITEMS,), "buffer"),
    ]
)  # fmt: skip
BASE = bytes(MANIFEST.nbytes)


def brain_bits(value: float) -> int:
    """Return the bits of a bfloat16 that is exact in `value`."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    assert bits & 0xFFFF == 0
    return bits >> 16


def brain_value(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def pack(
    w: list[float], mean: list[float], half: list[float], brain: list[float], steps: int, mask: list[bool]
) -> bytes:
    """Return a model."""
    model = bytearray(MANIFEST.nbytes)
    parts = [
        np.array(w, "<f4"), np.array(mean, "<f8"), np.array(half, "<f2"),
        np.array([brain_bits(v) for v in brain], "<u2"), np.array(steps, "<i8"), np.array(mask, "u1"),
    ]  # fmt: skip
    for tensor, part in zip(MANIFEST.tensors, parts, strict=True):
        MANIFEST.view(model, tensor)[:] = part.tobytes()
    return bytes(model)


def values_of(model: bytes, name: str, dtype: str) -> list[float]:
    """Return a tensor as plain numbers."""
    return [float(v) for v in np.frombuffer(MANIFEST.view(model, MANIFEST[name]), dtype)]


def floats(width: int, bound: float) -> st.SearchStrategy[list[float]]:
    return st.lists(
        st.floats(-bound, bound, width=width, allow_subnormal=False), min_size=ITEMS, max_size=ITEMS  # type: ignore[arg-type]
    )  # fmt: skip


updates = st.builds(
    pack,
    floats(32, 1024.0), floats(64, 1e6), floats(16, 1024.0),
    st.lists(st.integers(-128, 128).map(float), min_size=ITEMS, max_size=ITEMS),
    st.integers(-(2**62), 2**62), st.lists(st.booleans(), min_size=ITEMS, max_size=ITEMS),
)  # fmt: skip
rounds = st.lists(st.tuples(st.integers(1, 10_000), updates), min_size=1, max_size=8)


def reduced(entries: list[tuple[int, bytes]], order: list[int], skipped: int = 0) -> bytes:
    """Reduce in an order of arrival; behind the slices stand `skipped` ones that contribute nothing."""
    reducer = Reducer(MANIFEST)
    reducer.begin(BASE, sum(samples for samples, _ in entries))
    for index in order:
        if index < len(entries):
            reducer.add(index, *entries[index])
        else:
            reducer.skip(index)
    return reducer.finish()


@given(rounds, st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_order_of_arrival_never_changes_a_bit(
    entries: list[tuple[int, bytes]], skipped: int, random: object
) -> None:
    order = list(range(len(entries) + skipped))
    shuffled = list(order)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert reduced(entries, order, skipped) == reduced(entries, shuffled, skipped)


@given(rounds)
def test_means_are_the_exact_ones_rounded_once(entries: list[tuple[int, bytes]]) -> None:
    """Within half a unit in the last place, half the smallest subnormal, and what float64 sums lose to cancellation."""
    model = reduced(entries, list(range(len(entries))))
    total = sum(samples for samples, _ in entries)
    for name, dtype, half_unit, smallest in (("w", "<f4", 24, 149), ("mean", "<f8", 52, 1074), ("half", "<f2", 11, 24)):
        got = values_of(model, name, dtype)
        columns = zip(*(values_of(update, name, dtype) for _, update in entries), strict=True)
        for mean, column in zip(got, columns, strict=True):
            exact = sum((Fraction(v) * n for v, (n, _) in zip(column, entries, strict=True)), Fraction(0)) / total
            lost = Fraction(max(abs(v) for v in column)) / 2**48
            assert abs(Fraction(mean) - exact) <= abs(exact) / 2**half_unit + lost + Fraction(1, 2**smallest)


@given(rounds)
def test_bfloat16_means_are_the_nearest_bfloat16(entries: list[tuple[int, bytes]]) -> None:
    model = reduced(entries, list(range(len(entries))))
    total = sum(samples for samples, _ in entries)
    got = np.frombuffer(MANIFEST.view(model, MANIFEST["brain"]), "<u2")
    for item in range(ITEMS):
        bits = [int(np.frombuffer(MANIFEST.view(u, MANIFEST["brain"]), "<u2")[item]) for _, u in entries]
        columns = zip(bits, entries, strict=True)
        exact = sum((Fraction(brain_value(b)) * n for b, (n, _) in columns), Fraction(0)) / total
        here = abs(Fraction(brain_value(int(got[item]))) - exact)
        for other in (int(got[item]) - 1, int(got[item]) + 1):  # magnitudes next to it
            if 0 <= other <= 0xFFFF and other & 0x7F80 != 0x7F80:
                assert here <= abs(Fraction(brain_value(other)) - exact) * (1 + Fraction(1, 2**40)) + Fraction(1, 2**45)


@given(rounds)
def test_counters_and_masks_take_the_maximum(entries: list[tuple[int, bytes]]) -> None:
    model = reduced(entries, list(range(len(entries))))
    for name, dtype in (("steps", "<i8"), ("mask", "u1")):
        got = np.frombuffer(MANIFEST.view(model, MANIFEST[name]), dtype)
        all_of_them = [np.frombuffer(MANIFEST.view(u, MANIFEST[name]), dtype) for _, u in entries]
        assert got.tolist() == np.max(all_of_them, axis=0).tolist()


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=8), updates)
def test_boards_that_agree_are_not_changed_by_a_bit(samples: list[int], update: bytes) -> None:
    """Holds where products of sample count and value are exact in float64: not for the float64 tensor."""
    model = reduced([(n, update) for n in samples], list(range(len(samples))))
    for name in ("w", "half", "brain", "steps", "mask"):
        same = MANIFEST.view(model, MANIFEST[name]) == MANIFEST.view(update, MANIFEST[name])
        zeros = np.frombuffer(MANIFEST.view(update, MANIFEST[name]), "u1").tolist().count(0x80)  # -0.0 may become 0.0
        assert same or zeros


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_do_not_show(dtype: str) -> None:
    manifest = Manifest.build([("w", dtype, (2 * BLOCK + 3,), "parameter")])
    rng = np.random.default_rng(5)
    parts = [rng.standard_normal(2 * BLOCK + 3).astype(dtype) for _ in range(3)]
    reducer = Reducer(manifest)
    reducer.begin(bytes(manifest.nbytes), 60)
    for i, part in enumerate(parts):
        reducer.add(i, 10 * (i + 1), part.tobytes().ljust(manifest.nbytes, b"\0"))
    got = np.frombuffer(reducer.finish(), dtype)[: 2 * BLOCK + 3]
    want = sum(10.0 * (i + 1) * part.astype(np.float64) for i, part in enumerate(parts)) / 60
    assert got.tolist() == np.asarray(want).astype(dtype).tolist()


def test_a_reducer_is_used_round_after_round() -> None:
    reducer = Reducer(MANIFEST)
    for value in (1.0, 2.0):
        update = pack([value] * 3, [value] * 3, [value] * 3, [value] * 3, int(value), [True] * 3)
        reducer.begin(BASE, 5)
        reducer.add(0, 5, update)
        assert reducer.finish() == update


def test_a_counter_may_fall_when_all_boards_say_so() -> None:
    high, low = (pack([0.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3, steps, [False] * 3) for steps in (9, 4))
    reducer = Reducer(MANIFEST)
    reducer.begin(high, 2)
    reducer.add(0, 2, low)
    assert reducer.finish() == low


# What is wrong is refused, and our own mistakes are errors ------------------------------------------------------------


def spoiled(name: str, value: float) -> bytes:
    update = bytearray(pack([1.0] * 3, [1.0] * 3, [1.0] * 3, [1.0] * 3, 1, [True] * 3))
    tensor = MANIFEST[name]
    width = {"w": "<f", "mean": "<d", "half": "<e"}[name]
    struct.pack_into(width, update, tensor.offset + tensor.nbytes // ITEMS, value)
    return bytes(update)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["w", "mean", "half"])
def test_a_value_that_is_not_finite_is_refused_and_its_tensor_named(name: str, value: float) -> None:
    verdict = Reducer(MANIFEST).verify(spoiled(name, value), BASE, 30, 3, [])
    assert isinstance(verdict, Refused)
    assert f"tensor {name} holds values that are not finite" in verdict.reason


def test_bfloat16_infinity_is_refused() -> None:
    update = bytearray(BASE)
    update[MANIFEST["brain"].offset : MANIFEST["brain"].offset + 2] = (0x7F80).to_bytes(2, "little")
    verdict = Reducer(MANIFEST).verify(update, BASE, 30, 3, [])
    assert isinstance(verdict, Refused)
    assert "tensor brain" in verdict.reason


@pytest.mark.parametrize(
    ("update", "steps", "reason"),
    [
        (BASE[:-16], 3, "it has"),
        (BASE, 0, "0 local steps"),
        (BASE[: MANIFEST["mask"].offset] + b"\x02" * 16, 3, "tensor mask is boolean"),
        (spoiled("mean", 1e300), 3, "beyond all numbers"),
    ],
    ids=["size", "steps", "bool", "overflow"],
)
def test_refused(update: bytes, steps: int, reason: str) -> None:
    verdict = Reducer(MANIFEST).verify(update, BASE, 30, steps, [])
    assert isinstance(verdict, Refused)
    assert reason in verdict.reason


def test_the_norm_is_that_of_the_change_per_step() -> None:
    base = pack([1.0, 2.0, 3.0], [0.0] * 3, [0.0] * 3, [0.0] * 3, 0, [False] * 3)
    update = pack([1.0, 2.0, 6.0], [4.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3, 99, [True] * 3)
    assert Reducer(MANIFEST).verify(update, base, 60, 5, []) == Verified(1.0, 12.0)


@pytest.mark.parametrize(
    ("history", "norm", "accepted"),
    [
        ([], 1e9, True),
        ([1.0], 1e9, True),
        ([1.0, 1.0], 10.0, True),
        ([1.0, 1.0], 10.5, False),
        ([100.0] * 5 + [1.0] * 10, 11.0, False),
        ([1.0] * 5 + [100.0] * 10, 900.0, True),
        ([0.0] * 5, 5.0, True),
    ],
    ids=["first", "second", "at the limit", "above", "only the last ten", "last ten grew", "never moved before"],
)
def test_the_guard_compares_with_the_boards_own_history(history: list[float], norm: float, accepted: bool) -> None:
    update = pack([0.0] * 3, [norm, 0.0, 0.0], [0.0] * 3, [0.0] * 3, 0, [False] * 3)
    verdict = Reducer(MANIFEST).verify(update, BASE, 32, 1, [Verified(one, 32.0) for one in history])
    assert isinstance(verdict, Verified) == accepted
    if isinstance(verdict, Refused):
        assert "more than 10 times the 1 that is usual for this board" in verdict.reason


@pytest.mark.parametrize(
    ("samples", "steps", "norm", "accepted"),
    [(2, 1, 159.0, True), (2, 1, 161.0, False), (33, 2, 38.0, True), (33, 2, 40.0, False), (64, 1, 10.5, False)],
)
def test_a_step_of_fewer_samples_than_usual_may_be_as_much_longer(
    samples: int, steps: int, norm: float, accepted: bool
) -> None:
    """Of a usual batch of 32 one sample may bear the whole gradient: 10 * 32 / 2 = 160, and 2 * 10 * 32 / 16.5 = 38.8.

    Updates like the first have barred board after board, for each that was given those two samples found the same.
    """
    update = pack([0.0] * 3, [norm, 0.0, 0.0], [0.0] * 3, [0.0] * 3, 0, [False] * 3)
    verdict = Reducer(MANIFEST).verify(update, BASE, samples, steps, [Verified(1.0, 32.0)] * 3)
    assert isinstance(verdict, Verified) == accepted


def test_a_round_does_not_finish_early_nor_count_twice() -> None:
    reducer = Reducer(MANIFEST)
    with pytest.raises(ValueError, match="no round has begun"):
        reducer.add(0, 1, BASE)
    reducer.begin(BASE, 10)
    reducer.add(0, 4, BASE)
    with pytest.raises(ValueError, match="4 of 10 samples"):
        reducer.finish()
    with pytest.raises(ValueError, match="slice 0 is in this round's model already"):
        reducer.add(0, 4, BASE)
    reducer.add(2, 6, BASE)
    with pytest.raises(ValueError, match="slice 1 is missing, 1 later ones wait"):
        reducer.finish()
    with pytest.raises(ValueError, match="slice 2"):
        reducer.skip(2)
    reducer.skip(1)
    assert reducer.finish() == BASE
