# SPDX-License-Identifier: Apache-2.0
"""Whole runs in virtual time: the same every time, right by hand and by the closed form, and the ledger holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulated import Boards, alone, exact, faults, in_full

from paceline_host.closed_form import run_seconds
from paceline_host.explain import explain
from paceline_host.figures import figures
from paceline_host.ledger import Ledger
from paceline_host.profile import load_profile
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.host import COMMIT_S
from paceline_host.simulation.run import faults_of
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.world import World, opened

QUICK = Scenario(rounds=6, batch=16)
POLICIES = ["equal", "static", "ema-batch", "time", "low-energy", "frontier:energy", "frontier:deadline=1.2x"]


def dump(folder: Path) -> str:
    """Return a journal's whole content."""
    with sqlite3.connect(folder / "journal.sqlite") as db:
        return "\n".join(db.iterdump())


def test_the_same_scenario_and_seed_give_the_same_journal(tmp_path: Path) -> None:
    scenario = Scenario(rounds=5, noise=0.1, drift=0.02, fault_rate=0.05)
    for name in ("one", "two"):
        in_full(Fleet(scenario, None), "low-energy", tmp_path / name / "x")
    other = Scenario(rounds=5, noise=0.1, drift=0.02, fault_rate=0.05, seed=2)
    in_full(Fleet(other, None), "low-energy", tmp_path / "three" / "x")
    one, two, three = (dump(tmp_path / name / "x").replace(f"{name}/x", "") for name in ("one", "two", "three"))
    assert one == two
    assert one != three


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_whole_and_its_figures_are_those_of_the_journal(policy: str, tmp_path: Path) -> None:
    folder = tmp_path / "simulated" / policy  # the run's name, which travels, is then that of one without a folder
    found = in_full(Fleet(QUICK, None), policy, folder)
    with Ledger(folder) as ledger:
        proof = ledger.verify()
    assert (proof.faults, proof.rounds, proof.samples) == ((), 6, 6 * 12_001)
    told = figures(folder)
    assert (found.state, found.samples, found.lost, found.unknown) == ("finished", proof.samples, 0, 0)
    assert told.makespan_s == pytest.approx(found.makespan_s + 6 * COMMIT_S, abs=1e-9)
    assert told.joules.total_j == pytest.approx(found.joules)
    assert told.joules.parts_j == pytest.approx(found.parts_j)
    assert told.compute_cv == pytest.approx(found.later_cv)
    assert in_full(Fleet(QUICK, None), policy) == found, "keeping no journal changes nothing"


def test_the_makespan_is_the_closed_forms_but_for_noise_and_the_link() -> None:
    boards = load_profile("eleven-boards").boards
    found = in_full(Fleet(QUICK, None), "time")
    foretold_s = run_seconds(boards, [[row.get(i, 0) for i in range(11)] for row in found.shares], 16, 0.0025)
    assert 1.0 < found.makespan_s / foretold_s < 1.03  # DECISIONS 40


def test_one_boards_joules_are_its_watts_times_its_seconds() -> None:
    """By hand: 100 samples at 0.5 s, 6 W at work, 2 W else; 1000 bytes a second, 16 bytes count as 160."""
    scenario = Scenario(
        rounds=2, budget=100, batch=100, seconds_per_sample=0.5, latency_s=0.1, model_bytes=160, megabits_per_s=0.008
    )
    found = in_full(Boards(scenario, exact([1.0])), "equal")
    assert found.parts_j is not None
    assert found.parts_j["compute"] == pytest.approx(2 * 100 * 0.5 * 6, abs=1e-3)
    assert found.parts_j["wasted"] == 0.0
    each_way_s = 0.1 + 160 / 1000  # and headers of some hundred bytes
    for round_s in found.round_s:
        assert 50 + 2 * each_way_s < round_s < 50 + 2 * each_way_s + 2.0
    assert found.joules is not None
    idle_j = found.joules - found.parts_j["compute"]
    assert idle_j == pytest.approx(2.0 * (found.makespan_s - 100), rel=0.2), "two rounds and what lies between them"


def test_a_slow_link_makes_rounds_longer() -> None:
    quick, slow = (
        in_full(Fleet(Scenario(rounds=3, megabits_per_s=rate), None), "time").makespan_s for rate in (1000.0, 1.0)
    )
    assert slow > quick + 3 * 2 * 203_560 * 8 / 1e6 * 0.9


def test_the_controller_alone_plans_what_the_full_protocol_plans() -> None:
    fleet = Boards(Scenario(rounds=6, batch=1), exact([0.5, 1.0, 4.0]))
    for policy in ("equal", "time", "frontier:time"):
        full, plain = in_full(fleet, policy), alone(fleet, policy)
        for ours, theirs in zip(full.shares, plain.shares, strict=True):
            assert max(abs(ours[i] - theirs[i]) for i in range(3)) <= 1
        assert plain.makespan_s == pytest.approx(full.makespan_s, rel=0.02)
        assert plain.parts_j is not None
        assert full.parts_j is not None
        assert plain.parts_j["compute"] == pytest.approx(full.parts_j["compute"], rel=0.01)


def test_hundreds_of_boards_speak_the_protocol(tmp_path: Path) -> None:
    found = in_full(Fleet(Scenario(rounds=2, boards=300), None), "time", tmp_path / "c" / "run")
    with Ledger(tmp_path / "c" / "run") as ledger:
        assert ledger.verify().faults == ()
    assert (found.state, found.samples, found.lost) == ("finished", 2 * 1091 * 300, 0)


# What becomes of boards ---------------------------------------------------------------------------------------------


def test_a_board_that_leaves_gives_its_slice_to_the_others_and_may_return(tmp_path: Path) -> None:
    scenario = Scenario(rounds=8, fault=faults("board=1 round=3 leave", "board=1 round=5 return"))
    found = in_full(Fleet(scenario, None), "time", tmp_path / "c" / "run")
    assert (found.state, found.lost, found.unknown) == ("finished", 1, 1)
    assert [1 in row for row in found.shares] == [True, True, True, False, False, True, True, True]
    with Ledger(tmp_path / "c" / "run") as ledger:
        assert ledger.verify().faults == ()
        assert [s.redealt_from for s in ledger.slices(3)].count(1) == 10
        assert [(e.kind, e.board) for e in ledger.events()].count(("lost", 1)) == 1


def test_a_board_that_falls_silent_is_found_out_by_the_hosts_patience(tmp_path: Path) -> None:
    fleet = Fleet(Scenario(rounds=4, patience_s=5.0), None)
    with opened(fleet.scenario, fleet.names, fleet.models(), "time", tmp_path / "c" / "run", {}, {}) as world:
        world.on_round = lambda round_: end_silently(world, round_)
        assert world.run().ok
    with Ledger(tmp_path / "c" / "run") as ledger:
        assert ledger.verify().faults == ()
        silent = [event for event in ledger.events("lost") if event.board == 2]
        assert [event.detail for event in silent] == [f"{fleet.names[2]}: no sign of life"]
        spans = [row.makespan_s for row in ledger.rounds()]
    assert spans[2] is not None
    assert spans[2] > 5.0 - 2.0, "its last word may be a heartbeat old"


def end_silently(world: World, round_: int) -> None:
    """Let board 2 vanish as round 3 begins."""
    if round_ == 3:
        world.clock.later(0.05, world.boards[2].end)


def test_a_run_that_all_boards_leave_says_why_it_ended() -> None:
    scenario = Scenario(rounds=5, fault=faults("board=0 round=3 leave", "board=1 round=3 leave"))
    found = in_full(Boards(scenario, exact([1.0, 2.0])), "time")
    assert (found.state, len(found.round_s)) == ("no board came back within 30 s", 2)


def test_a_meter_that_dies_leaves_its_joules_unknown_and_the_run_goes_on() -> None:
    found = in_full(Fleet(Scenario(rounds=8, fault=faults("board=0 round=3 meter")), None), "low-energy")
    whole = in_full(Fleet(Scenario(rounds=8), None), "low-energy")
    assert (found.state, found.unknown, whole.unknown) == ("finished", 1, 0)
    assert found.joules is not None
    assert whole.joules is not None
    assert found.joules < whole.joules, "what is unknown is in no sum"


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), policy=st.sampled_from(POLICIES))
def test_whatever_becomes_of_boards_each_sample_counts_once(seed: int, policy: str) -> None:
    scenario = Scenario(rounds=6, seed=seed, fault_rate=0.15, noise=0.2)
    found = in_full(Fleet(scenario, None), policy)
    assert found.state == "finished"
    assert found.samples == 6 * 12_001


@pytest.mark.parametrize("policy", ["time", "oort"])
def test_nobody_breaks_a_rule_while_nothing_happens(policy: str) -> None:
    fleet = Fleet(QUICK, None)
    with opened(fleet.scenario, fleet.names, fleet.models(), policy, None, {}, {}) as world:
        assert world.run().ok
    assert not world.host.peers.dropped
    assert [board.dropped for board in world.boards] == [[]] * 11
    assert {board.trouble for board in world.boards} == {""}


def test_a_run_that_is_stopped_ends_in_order(tmp_path: Path) -> None:
    fleet = Fleet(QUICK, None)
    seen: list[int] = []
    with opened(
        fleet.scenario, fleet.names, fleet.models(), "time", tmp_path / "c" / "run", {}, faults_of(fleet)
    ) as world:
        world.on_round = seen.append
        finish = world.run(lambda: 3 in seen)
    assert (finish.ok, finish.reason) == (False, "interrupted")
    with Ledger(tmp_path / "c" / "run") as ledger:
        assert (ledger.verify().faults, ledger.verify().rounds) == ((), 2)
        assert ledger.run.ended is not None
        assert ledger.run.ended["reason"] == "interrupted"


def test_a_runs_minimum_is_known_to_who_replays_it(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "time"
    in_full(Fleet(Scenario(rounds=5, minimum=900), None), "time", folder)
    facts = explain(folder, 4)
    assert {entry["minimum"] for entry in facts["boards"]} == {900}
    assert [entry["at_limit"] for entry in facts["boards"]].count("minimum") > 3


def test_a_goal_takes_idle_watts_for_waits_until_there_are_some_and_a_replay_does_too(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "run"
    scenario = Scenario(rounds=4, budget=300, batch=1, seconds_per_sample=0.001)
    in_full(Boards(scenario, exact([1.0, 2.0, 4.0])), "frontier:energy", folder)
    facts = explain(folder, 2)
    assert {(entry["wait_from"], entry["wait_w"]) for entry in facts["boards"]} == {("idle", 2.0)}
    assert explain(folder, 4)["boards"], "each plan of the journal is made again"


@pytest.mark.parametrize("name", ["equal", "static", "ema-batch", "oort", "time", "frontier:energy"])
def test_a_run_is_simulated_again_from_its_journal(name: str, tmp_path: Path) -> None:
    """The journal has whole microseconds, so a second life differs from the first by some of these, and in no share.

    Goals plan from idle watts too, of which a journal has the run's mean: no fault here changes them.
    """
    changes = faults("board=1 round=3 throttle x2", "board=3 round=5 throttle x1.5")
    scenario = Scenario(rounds=8, noise=0.05, drift=0.02, minimum=400, fault=changes)
    recorded = in_full(Fleet(scenario, None), name, tmp_path / "c" / "run")
    found = in_full(Fleet(Scenario(rounds=8), tmp_path / "c" / "run"), name)
    assert found.shares == recorded.shares
    assert found.round_s == pytest.approx(recorded.round_s, rel=0, abs=5e-6)
    assert found.joules == pytest.approx(recorded.joules, rel=1e-5)


def test_boards_cost_under_another_policy_what_a_run_has_measured(tmp_path: Path) -> None:
    recorded = in_full(Fleet(Scenario(rounds=6, noise=0.1), None), "equal", tmp_path / "c" / "equal")
    found = in_full(Fleet(Scenario(rounds=6), tmp_path / "c" / "equal"), "time")
    assert found.makespan_s < 0.5 * recorded.makespan_s
