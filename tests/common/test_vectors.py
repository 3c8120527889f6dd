# SPDX-License-Identifier: Apache-2.0
"""The committed vectors are what their makers write, and the core gives them from Python too."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import core
from paceline.energy import EnergyIntegrator
from paceline.errors import CoreError

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
REFUSALS: dict[int, type[Exception]] = {-1: CoreError, -11: LookupError}  # argument, forgotten
MAKERS = sorted(path.stem for path in VECTORS.glob("make_*.py"))
sys.path.insert(0, str(ROOT))

from tests.vectors.rows import from_bits, read  # noqa: E402


@pytest.mark.parametrize("maker", MAKERS)
def test_a_maker_writes_what_is_committed(maker: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"tests.vectors.{maker}", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=100)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.inc")}
    assert made
    for name, text in made.items():
        assert text == (VECTORS / name).read_text(encoding="utf-8"), f"{name}: run python -m tests.vectors.{maker}"


def test_each_committed_vector_has_a_maker() -> None:
    named = {
        re.findall(r"vectors/(make_\w+)\.py", path.read_text(encoding="utf-8"))[0] for path in VECTORS.glob("*.inc")
    }
    assert named == set(MAKERS)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_maker_knows_nothing_of_paceline(maker: str) -> None:
    source = (VECTORS / f"{maker}.py").read_text(encoding="utf-8") + (VECTORS / "rows.py").read_text(encoding="utf-8")
    assert re.search(r"^\s*(from|import) paceline", source, re.MULTILINE) is None


def test_philox_gives_the_known_answers() -> None:
    for counter, key, out in read("philox"):
        assert core.philox(counter, key) == out


def test_bounded_integers_are_the_replicas() -> None:
    for seed, purpose, epoch, step, n, below, after in read("below"):
        rng = core.Rng(seed, purpose, epoch, step)
        assert [rng.below(n) for _ in range(8)] == below
        assert rng.word() == after


def test_permutations_are_the_replicas() -> None:
    for seed, epoch, n, head, crc in read("permutation"):
        out = core.permutation(seed, epoch, n)
        assert list(out[:8]) == head[: min(n, 8)]
        assert zlib.crc32(out) == crc  # little-endian machines, which all of ours are


def test_splits_are_the_replicas() -> None:
    for n, budget, costs, minimum, capacity, shares in read("allocate"):
        given = [from_bits(cost) for cost in costs[:n]]
        assert core.allocate(given, budget, minimum[:n], capacity[:n]) == shares[:n]


def test_windows_are_the_replicas() -> None:
    e = EnergyIntegrator(1)
    for op, numbers, status, out in read("energy"):
        if op == 0:
            period, modulus, most, knots = numbers
            e = EnergyIntegrator(period, knots, modulus, most)
        elif op == 4:
            if status in REFUSALS:
                with pytest.raises(REFUSALS[status]):
                    e.window(numbers[0], numbers[1])
                continue
            window = e.window(numbers[0], numbers[1])
            assert (window is None) == (status != 0)
            if window is not None:
                known = None if "unknown" in window.flags else out[0]
                assert (window.energy_uj, window.covered_us, window.bound_uj, window.edge_uj) == (known, *out[1:4])
        else:
            feeds: dict[int, Callable[..., None]] = {1: e.add_interval, 2: e.add_point, 3: e.add_counter}
            feed = feeds[op]
            given = numbers[: {1: 4, 2: 3, 3: 2}[op]]
            if status == 0:
                feed(*given)
            else:
                with pytest.raises(CoreError):
                    feed(*given)


def test_registers_are_the_replicas() -> None:
    for chip, config, shunt, bus, shunt_uohm, out in read("sensors"):
        if chip == 219:
            found = core.ina219(config, bytes(shunt), bytes(bus), shunt_uohm)
        else:
            found = core.ina3221(bytes(shunt), bytes(bus), shunt_uohm)
        flags = sum({"ready": 1, "overflow": 2, "saturated": 4}[flag] for flag in found[4])
        assert [*found[:4], flags] == out


@pytest.mark.parametrize(
    ("shunt", "shunt_uohm", "named"), [(b"\x01", 1000, "shunt holds 1 bytes"), (b"\x00\x01", 0, "at least 1 microohm")]
)
def test_registers_that_cannot_be_are_refused(shunt: bytes, shunt_uohm: int, named: str) -> None:
    with pytest.raises(CoreError, match=named):
        core.ina219(0x39FF, shunt, b"\x27\x10", shunt_uohm)
    with pytest.raises(CoreError, match=named):
        core.ina3221(shunt, b"\x13\x88", shunt_uohm)


HANDLES: list[tuple[type[core.SamplerHandle], str]] = [
    (core.SamplerHandle, "best"),
    *((core.EngineHandle, simd) for simd in core.simd_here()),
]


@pytest.mark.parametrize(("kind", "simd"), HANDLES)
def test_draws_are_the_replicas(kind: type[core.SamplerHandle], simd: str) -> None:
    handle = kind.init([], 0, 0, simd)
    for op, a, b, total, n_ids, ids, counts in read("sampler"):
        if op == 0:
            handle = kind.init([], a, b, simd)
        elif op == 1:
            handle.draw(a)
            assert handle.drawn() == (ids[:n_ids], counts[:n_ids])
        elif op == 2:
            handle.commit()
        elif op == 3:
            handle.void()
        elif op == 4:
            handle.set_count(a, b)
        elif op == 5:
            handle.add(a)
        elif op == 6:
            for k in range(a):
                handle.add(k * k % b)
        else:
            handle.skip(b, a)
        assert handle.total == total


@pytest.mark.parametrize(("kind", "simd"), HANDLES)
def test_digests_of_many_draws_are_the_replicas(kind: type[core.SamplerHandle], simd: str) -> None:
    for clients, batch, steps, seed, epoch, scale, total, wanted in read("engine"):
        pools = [k * k % 41 * scale for k in range(clients)]
        handle, crc = kind.init(pools, seed, epoch, simd), 0
        for _ in range(steps):
            handle.draw(batch)
            ids, counts = handle.drawn()
            crc = zlib.crc32(struct.pack(f"<{2 * len(ids)}I", *ids, *counts), crc)
            handle.commit()
        assert (handle.total, crc) == (total, wanted)


def test_schedules_are_the_replicas() -> None:
    for n, steps, shares, batches in read("schedule"):
        table = core.batch_schedule(shares[:n], steps, 0)
        assert [batch for row in table for batch in row] == batches[: n * steps]


def test_plans_on_the_frontier_are_the_replicas() -> None:
    kinds = {number: kind for kind, number in core.GOALS.items()}
    for n, n_groups, kind, budgets, limit, time, reals, words, status, shares, figures in read("frontier"):
        rows = [
            (*(from_bits(x) for x in reals[6 * k : 6 * k + 6]), *words[3 * k : 3 * k + 3])
            for k in range(n)
        ]  # fmt: skip
        verdict, plan, found, curve = core.frontier_plan(
            kinds[kind], from_bits(limit), rows, budgets[:n_groups], [from_bits(time)]
        )
        assert verdict == ("reach" if status else "")
        if status:
            assert found["nearest"] == from_bits(figures[0])
            continue
        assert plan == shares[:n]
        names = ("seconds", "energy_j", "real_seconds", "real_j", "least_seconds", "least_j")
        assert [found[name] for name in names] == [from_bits(x) for x in figures]
        assert curve[0][1] == found["least_j"]


def test_fits_are_the_replicas() -> None:
    fit = core.Fit()
    for seconds, samples, fields, reports in read("fit"):
        if samples == 0:
            fit = core.Fit()
            continue
        fit.observe(from_bits(seconds), samples)
        fit = core.Fit(fit.values())
        found = dict(zip(core.Fit.FIELDS, fit.values(), strict=True))
        assert found.pop("reports") == reports
        names = ("fixed_seconds", "seconds_per_sample", "proportional", "error_affine", "error_proportional",
                 "var_fixed", "covariance", "var_pace", "typical_samples")  # fmt: skip
        assert [found[name] for name in names] == [from_bits(x) for x in fields]


def test_sums_are_the_replicas_wherever_the_bytes_lie() -> None:
    for n, weight, mix, distance, model, update, mixed, before, after in read("sums"):
        for shift in (0, 1, 2):
            old, new = (
                memoryview(bytes(shift) + struct.pack(f"<{n}I", *words[:n]))[shift:] for words in (model, update)
            )
            total, out = bytearray(struct.pack(f"<{n}Q", *before[:n])), bytearray(4 * n)
            core.sums_add(new, from_bits(weight), total)
            core.sums_mix(old, new, from_bits(mix), out)
            assert list(struct.unpack(f"<{n}Q", total)) == after[:n]
            assert list(struct.unpack(f"<{n}I", out)) == mixed[:n]
            assert core.sums_distance(new, old) == from_bits(distance)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 15, 16, 36])
def test_a_distance_is_finite_only_if_all_values_are(value: float, at: int) -> None:
    items = [3.4e38, -3.4e38] * 18 + [1.0]
    base = struct.pack("<37f", *(-x for x in items))
    assert core.sums_distance(struct.pack("<37f", *items), base) < float("inf")
    items[at] = value
    assert not core.sums_distance(struct.pack("<37f", *items), base) < float("inf")


def test_sums_over_other_numbers_of_items_are_refused() -> None:
    for call in (
        lambda: core.sums_add(bytes(8), 1.0, bytearray(8)),
        lambda: core.sums_distance(bytes(8), bytes(4)),
        lambda: core.sums_distance(bytes(7), bytes(7)),
        lambda: core.sums_mix(bytes(8), bytes(4), 0.5, bytearray(8)),
        lambda: core.sums_mix(bytes(8), bytes(8), 0.5, bytearray(4)),
    ):
        with pytest.raises(CoreError, match=r"sums: [0-9]+ bytes"):
            call()
