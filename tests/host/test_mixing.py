# SPDX-License-Identifier: Apache-2.0
"""Regime async: the paper's weights, the model against a replay in double precision, and runs in virtual time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulated import Boards, exact, faults, in_full

from paceline.errors import RunError, SettingsError
from paceline.tensors import Manifest
from paceline_host import checkpoint
from paceline_host.explain import explain, words
from paceline_host.figures import figures
from paceline_host.ledger import Ledger
from paceline_host.mixing.law import KINDS, Mixing, MixingSettings
from paceline_host.mixing.store import MixingStore
from paceline_host.recovery import recover
from paceline_host.reducer import mixed
from paceline_host.report import load_report, render
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.run import run_alone
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.task import STEP, TrivialTask
from paceline_host.simulation.world import opened
from paceline_host.whatif import Recording

POLICIES = tuple(KINDS)
FLOATS = struct.Struct("<4f")


def rule(policy: str, **changes: float) -> Mixing:
    return Mixing.of(policy, MixingSettings(**changes), 1200, 3)  # type: ignore[arg-type]


# The paper's weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "formula"),
    [
        ("fedasync", lambda k: 0.6),
        ("fedasync-poly", lambda k: 0.6 * (k + 1) ** -0.5),
        ("fedasync-hinge", lambda k: 0.6 if k <= 4 else 0.6 / (10 * (k - 4) + 1)),
    ],
)
def test_weights_are_the_papers_with_its_defaults(policy: str, formula: Callable[[int], float]) -> None:
    one = rule(policy)
    assert [one.weight(k) for k in range(30)] == pytest.approx([formula(k) for k in range(30)], rel=1e-12)
    assert (one.alpha, one.rho) == (0.6, 0.005)
    assert one.weight(7) == one.weight(7), "an update's weight does not wear off by being asked for"


@given(st.sampled_from(POLICIES), st.integers(0, 500), st.floats(0.01, 1.0), st.floats(0.01, 20.0), st.floats(0, 50))
def test_an_older_update_never_weighs_more(policy: str, age: int, alpha: float, a: float, b: float) -> None:
    one = rule(policy, alpha=alpha, a=a, b=b)
    assert one.weight(0) == alpha
    assert 0.0 < one.weight(age + 1) <= one.weight(age) <= alpha


def test_a_slice_is_a_quarter_of_an_equal_share_or_as_said() -> None:
    assert rule("fedasync").slice == 100
    assert rule("fedasync", slice=7).slice == 7
    assert Mixing.of("fedasync", MixingSettings(), 3, 11).slice == 1
    with pytest.raises(SettingsError, match=r"mixing\.slice = 2000 is above run\.budget = 1200"):
        rule("fedasync", slice=2000)


@given(st.data(), st.floats(0.001, 1.0))
def test_mixing_is_rounded_once_from_double_precision(data: st.DataObject, weight: float) -> None:
    manifest = Manifest.build([("w", "float32", (3,), "parameter"), ("n", "int64", (2,), "buffer")])
    floats = st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3)
    counts = st.lists(st.integers(0, 1 << 40), min_size=2, max_size=2)

    def model(values: list[float], numbers: list[int]) -> bytes:
        out = bytearray(manifest.nbytes)
        manifest.view(out, manifest["w"])[:] = np.array(values, "<f4").tobytes()
        manifest.view(out, manifest["n"])[:] = np.array(numbers, "<i8").tobytes()
        return bytes(out)

    old, new = data.draw(floats), data.draw(floats)
    fewer, more = data.draw(counts), data.draw(counts)
    wanted = [float(np.float32((1.0 - weight) * x + weight * y)) for x, y in zip(old, new, strict=True)]
    found = mixed(manifest, model(old, fewer), model(new, more), weight)
    assert found == model(wanted, [max(pair) for pair in zip(fewer, more, strict=True)])


# Runs in virtual time -----------------------------------------------------------------------------------------------


def small(**changes: object) -> Scenario:
    plain: dict[str, object] = {"rounds": 4, "budget": 1200, "batch": 10, "noise": 0.1}
    return Scenario(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_model_is_what_a_replay_of_the_arrivals_in_double_precision_gives(tmp_path: Path, policy: str) -> None:
    """The replay knows of each update its numbers and its steps alone: what it was trained from tells its age."""
    folder = tmp_path / "c" / "run"
    in_full(Boards(small(), exact([1.0, 2.0, 5.0])), policy, folder)
    formulas: dict[str, Callable[[int], float]] = {
        "fedasync": lambda k: 1.0, "fedasync-poly": lambda k: (k + 1) ** -0.5,
        "fedasync-hinge": lambda k: 1.0 if k <= 4 else 1 / (10 * (k - 4) + 1),
    }  # fmt: skip
    weigh = formulas[policy]
    with Ledger(folder) as ledger:
        rows = {(c.round, c.slice): c for c in ledger.contributions(verdict="accepted")}
        at_s = [rows[mix.round, mix.slice].at_s for mix in ledger.mixes()]
        assert at_s == sorted(at_s), "in the order of acceptance"
        past, ages = [0.0], []
        for mix in ledger.mixes():
            row = rows[mix.round, mix.slice]
            (number, *_) = FLOATS.unpack(ledger.update(row))
            base = number - STEP * row.steps
            assert past[-1 - mix.age] == pytest.approx(base, abs=1e-5), f"update {mix.version} has another age"
            weight = 0.6 * weigh(mix.age)
            past.append((1 - weight) * past[-1] + weight * number)
            ages.append(mix.age)
        last = ledger.rounds()[-1]
        model, digest = checkpoint.load(checkpoint.path(folder, 4), TrivialTask(60_000, 0.0025).manifest)
    assert digest == last.model_sha256
    assert FLOATS.unpack(model)[0] == pytest.approx(past[-1], abs=1e-5)
    assert max(ages) > 4, "the slow board's updates are old, or the hinge is not tried"


def test_nobody_waits_for_a_slow_board_but_at_the_very_end(tmp_path: Path) -> None:
    boards = exact([1.0, 4.0, 16.0])
    scenario = Scenario(rounds=10, budget=2100, batch=1, latency_s=0.0001, model_bytes=16, slice=105)
    found = in_full(Boards(scenario, boards), "fedasync", tmp_path / "c" / "run")
    ideal_s = 10 * 2100 * 0.0025 / 21
    assert ideal_s < found.makespan_s < ideal_s + 105 * 0.0025 + 0.1 * ideal_s, "a slice of the slowest, and transfers"
    assert found.parts_j is not None
    assert found.parts_j["wait"] < 0.05 * found.parts_j["compute"]
    assert in_full(Boards(scenario, boards), "equal").makespan_s > 4 * found.makespan_s
    with Ledger(tmp_path / "c" / "run") as ledger:
        rounds, samples = ledger.rounds(), [0, 0, 0]
        for row in ledger.contributions():
            samples[row.board] += row.samples
    run = figures(tmp_path / "c" / "run")
    assert run.makespan_s == pytest.approx((rounds[-1].closed_s or 0.0) - rounds[0].planned_s), "rounds overlap"
    assert samples[2] / samples[0] == pytest.approx(16.0, rel=0.2)
    assert found.joules == pytest.approx(run.joules.total_j, rel=1e-6)
    assert run.joules.complete


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), policy=st.sampled_from(POLICIES))
def test_whatever_becomes_of_boards_each_sample_counts_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: str
) -> None:
    folder = tmp_path_factory.mktemp("fate") / "c" / "run"
    found = in_full(Fleet(small(rounds=6, seed=seed, fault_rate=0.15, noise=0.2), None), policy, folder)
    assert (found.state, found.samples) == ("finished", 6 * 1200)
    with Ledger(folder) as ledger:
        proof = ledger.verify()
    assert (proof.faults, proof.rounds, proof.samples) == ((), 6, 6 * 1200)


def test_a_lost_boards_slice_goes_to_the_next_that_asks(tmp_path: Path) -> None:
    scenario = small(fault=faults("board=0 round=2 leave", "board=0 round=4 return"))
    found = in_full(Boards(scenario, exact([1.0, 2.0, 2.0])), "fedasync-poly", tmp_path / "c" / "run")
    assert (found.state, found.lost) == ("finished", 1)
    with Ledger(tmp_path / "c" / "run") as ledger:
        (again,) = [item for item in ledger.slices() if item.redealt_from is not None]
        assert again.board != 0
        assert ledger.verify().ok
        boards = {row.board for row in ledger.contributions(4, "accepted")}
    assert 0 in boards, "it came back"


def test_a_run_that_all_boards_leave_says_why_it_ended() -> None:
    scenario = small(fault=faults("board=0 round=3 leave", "board=1 round=3 leave"))
    assert in_full(Boards(scenario, exact([1.0, 2.0])), "fedasync").state == "no board came back within 30 s"


def test_a_board_that_falls_silent_or_connects_anew_with_a_result_costs_no_sample(tmp_path: Path) -> None:
    folder, seen = tmp_path / "c" / "run", []
    fleet = Boards(small(patience_s=3.0, latency_s=0.05), exact([1.0, 2.0, 2.0]))
    with opened(fleet.scenario, fleet.names, fleet.models(), "fedasync-hinge", folder, {}, {}) as world:

        def befall(number: int) -> None:
            if number == 2:
                world.boards[2].end()
                look()

        def look() -> None:
            """Wait until board 1 holds a result that the host has not heard of."""
            lease, kept = world.machine.boards[1].lease, world.boards[1]._kept
            if lease is not None and lease.result is None and kept is not None and kept.slice == lease.slice.index:
                seen.append(kept.slice)
                world.boards[1]._connect()
            else:
                world.clock.later(0.001, look)

        world.on_round = befall
        assert world.run().ok
    with Ledger(folder) as ledger:
        assert (ledger.verify().faults, ledger.verify().samples) == ((), 4 * 1200)
        assert [event.board for event in ledger.events("back")] == [1]
        assert [event.board for event in ledger.events("lost")] == [2]
        assert ("accepted", 1) in {(c.verdict, c.board) for c in ledger.contributions() if c.slice in seen}


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_breaks_a_rule_while_nothing_happens(policy: str) -> None:
    fleet = Fleet(small(), None)
    with opened(fleet.scenario, fleet.names, fleet.models(), policy, None, {}, {}) as world:
        assert world.run().ok
    assert not world.host.peers.dropped
    assert [board.dropped for board in world.boards] == [[]] * 11


def stopped(folder: Path) -> tuple[bytes, int]:
    """Leave a run in its third round; return its model and how many updates are in it."""
    fleet = Fleet(small(rounds=5), None)
    seen: list[int] = []
    with opened(fleet.scenario, fleet.names, fleet.models(), "fedasync-poly", folder, {}, {}) as world:
        world.on_round = seen.append
        assert not world.run(lambda: 3 in seen).ok
        store = world.host._store
        assert isinstance(store, MixingStore)
        return store.model, store._version


def test_a_stopped_run_is_recovered_to_the_same_bits(tmp_path: Path) -> None:
    folder, task = tmp_path / "c" / "run", TrivialTask(60_000, 0.0025)
    model, version = stopped(folder)
    found = recover(folder, task, pytest.fail)
    assert found.model == model
    assert found.standing is not None
    assert found.standing.version == version
    with Ledger(folder) as ledger:
        counted = sum(c.samples for c in ledger.contributions(verdict="accepted"))
        assert ledger.verify().ok
    open_ = sum(item.samples for item in found.machine.open_slices)
    assert (found.standing.dealt, open_ > 0) == (counted + open_, True)
    of_open = sum(sum(boards.values()) for boards in found.standing.counted.values())
    assert counted == 1200 * found.standing.closed + of_open


def test_a_damaged_checkpoint_is_made_anew_from_the_updates(tmp_path: Path) -> None:
    folder, task = tmp_path / "c" / "run", TrivialTask(60_000, 0.0025)
    model, _ = stopped(folder)
    with Ledger(folder) as ledger:
        closed = sum(row.closed_s is not None for row in ledger.rounds())
    assert closed >= 1
    path = checkpoint.path(folder, closed)
    path.write_bytes(b"\0" * path.stat().st_size)
    said: list[str] = []
    assert recover(folder, task, said.append).model == model
    assert len(said) == 1


# What is said of it -------------------------------------------------------------------------------------------------


def test_report_and_explain_tell_of_ages_and_whatif_says_why_not(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "fedasync-hinge"
    in_full(Fleet(small(), None), "fedasync-hinge", folder)
    text = render(load_report(tmp_path / "c"))
    assert "updates mixed in" in text
    assert "since their model was handed out: " in text
    run = figures(folder).mixing
    assert run is not None
    assert sum(run.by_octave.values()) == sum(run.ages.values()) == run.updates
    facts = explain(folder, 2)
    assert sum(entry["samples"] for entry in facts["boards"]) == facts["samples"] == 1200
    said = "\n".join(words(facts))
    assert "s = 1 up to age 4, then 1 / (10 (age - 4) + 1)" in said
    with pytest.raises(RunError, match="no policy divided samples"):
        Recording(folder)
    with pytest.raises(SettingsError, match="it divides no samples"):
        run_alone(Fleet(small(), None), "fedasync", lambda number, took_s, cpu_s: None)
