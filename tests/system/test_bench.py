# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that have peers; what they measure is not asserted, what they carry or compute is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline import GlobalSampler
from paceline.errors import RunError
from paceline.one_way import KINDS
from paceline_host import (
    bench_aggregate,
    bench_controller,
    bench_ddp,
    bench_link,
    bench_sampler,
    bench_schedule,
    bench_simulator,
    bench_transfer,
)  # fmt: skip

pytestmark = pytest.mark.in_turn  # each takes long


def test_what_the_transfer_benchmark_sends_comes_back_by_every_kind() -> None:
    """It raises where a byte differs."""
    found = bench_transfer.measure(lambda text: None, repeats=1)
    places = ("", bench_transfer.APART) if len(os.sched_getaffinity(0)) > 1 else ("",)
    ways = [way + place for place in places for way in (bench_transfer.TO_AGENT, bench_transfer.TO_HOST)]
    assert sorted(found) == sorted((kind, way) for kind in KINDS for way in ways)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found.values())


@pytest.mark.parametrize("case", [bench_sampler.Case(10, 1100, 20_000), bench_sampler.Case(3000, 128, 20_000)], ids=str)
def test_the_sampler_benchmark_runs_all_in_every_round(case: bench_sampler.Case) -> None:
    """It raises where an epoch does not use each sample once."""
    found = bench_sampler.measure(case, rounds=2)
    assert set(found) >= {bench_sampler.LIMIT, bench_sampler.ENGINE, *bench_sampler.EXACT, *bench_sampler.SHUFFLE}
    assert (bench_sampler.BY_CLIENT in found) == (case.clients == 10)
    assert all(len(each) == 2 and min(each) > 0 for each in found.values())
    assert all(len(each) == 2 for _, each in bench_sampler.ratios(found))


def test_the_sampler_benchmark_refuses_a_sampler_that_loses_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    case, whole = bench_sampler.Case(10, 100, 1000), GlobalSampler.schedule

    def careless(self: GlobalSampler, batch: int, by_client: bool = False) -> object:
        self.set_count(0, self.remaining[0] - 1)
        return whole(self, batch, by_client=by_client)

    monkeypatch.setattr(GlobalSampler, "schedule", careless)
    with pytest.raises(RunError, match="K=10 B=100: "):
        bench_sampler.check(case)


def test_the_simulators_benchmark_times_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_simulator, "IN_FULL", {30: 2})
    monkeypatch.setattr(bench_simulator, "ALONE", {300: 2})
    rows = list(bench_simulator.measure(lambda text: None))
    assert [len(values) for _, _, values in rows] == [5, 5, 2, 2]
    assert {unit for _, unit, _ in rows} == {"s"}
    assert not list(tmp_path.iterdir())


def test_the_controllers_benchmark_agrees_with_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises where numpy's shares, or its least joules, are others."""
    monkeypatch.setattr(bench_controller, "SIZES", {11: (2, 8), 300: (2, 1)})
    rows = list(bench_controller.measure(lambda text: None))
    assert len({name for name, _, _ in rows}) == len(rows)
    assert {unit for _, unit, _ in rows} <= {"us", "ms", "x"}
    assert all(len(values) == 2 and min(values) > 0 for _, _, values in rows)


def test_the_benchmark_of_ranks_steps_in_each_way_and_loses_all_ranks_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ddp, "GROUP", 3)
    rows = list(bench_ddp.measure(turns=60, warm=20))
    assert [(unit, len(values)) for _, unit, values in rows] == [("ms", 40)] * 3 + [("x", 1)] * 4 + [
        ("ms", 2),
        ("ms", 1),
    ]
    assert all(value > 0 for _, _, values in rows for value in values)
    monkeypatch.setattr(bench_ddp, "PROGRAM", "paceline_agent.workers.no_such")
    with pytest.raises(RunError, match="ended without figures"):
        list(bench_ddp.measure(turns=60))


def test_the_schedules_benchmark_agrees_with_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises where numpy's batches are others, or an order is none."""
    monkeypatch.setattr(bench_schedule, "ORDERS", {500: (2, 1)})
    monkeypatch.setattr(bench_schedule, "BATCHES", {(11, 10): (2, 1), (3, 7): (2, 1)})
    rows = list(bench_schedule.measure(lambda text: None))
    assert len({name for name, _, _ in rows}) == len(rows) == 3 + 2 * 5
    assert all(len(values) == 2 and min(values) > 0 for _, _, values in rows)
    monkeypatch.setattr(bench_schedule, "batch_schedule", lambda shares, steps: [[1] * len(shares)] * steps)
    with pytest.raises(RunError, match="numpy's batches are not the core's"):
        list(bench_schedule.measure(lambda text: None))


def test_the_aggregations_benchmark_has_the_memorys_speed_beside_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name: values for name, _, values in bench_aggregate.measure(lambda text: None, items=50_000, turns=2)}
    assert {name.removeprefix("0.2 MB update, ") for name in rows if "/ limit" in name} == {
        f"{what} / limit" for what in bench_aggregate.TRAFFIC
    }
    assert all(len(values) == 2 and min(values) > 0 for values in rows.values())
    monkeypatch.setattr(bench_aggregate, "PARTICIPANTS", (2, 40))
    *_, (name, unit, (growth,)) = bench_aggregate.memory(lambda text: None, items=250_000)
    assert (name, unit) == ("the same, 40 against 2", "x")
    assert growth < 1.5, "forty updates of 1 MB were kept"


def test_the_links_benchmark_has_every_kind_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises where a byte differs, or where a board of the fan-out does not get everything."""
    monkeypatch.setattr(bench_link, "SIZES", (100_000,))
    monkeypatch.setattr(bench_link, "FAN_BYTES", 1_500_000)
    monkeypatch.setattr(bench_link, "BOARDS", 3)
    rows = {name: values for name, _, values in bench_link.measure(lambda text: None, repeats=1, fan_repeats=2)}
    ways = ["64 B there and back", "0.1 MB host to agent", "0.1 MB agent to host", "1.5 MB to 3 boards"]
    assert [name for name in rows if " / " not in name] == [f"{way}: {kind}" for way in ways for kind in KINDS]
    assert all(min(values) > 0 for values in rows.values())
    assert len(rows[f"1.5 MB to 3 boards: {KINDS[2]}"]) == 2
