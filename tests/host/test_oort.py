# SPDX-License-Identifier: Apache-2.0
"""The baseline that leaves boards out: its scores by hand, whom it chooses, and that a run with it can be replayed."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulated import Boards, exact, faults, in_full

from paceline.errors import RunError, SettingsError
from paceline.policies import policy
from paceline_host import left_out, recovery
from paceline_host.experiment import load_experiment
from paceline_host.ledger import Ledger
from paceline_host.oort import Selection, Settings
from paceline_host.planner import make
from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.scenario import Scenario
from paceline_host.whatif import whatif

PACES_S = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]


def rounds(selection: Selection, count: int, wanted: int = 4) -> list[list[int]]:
    """Let boards that keep their pace take part as they are chosen."""
    plans = []
    for _ in range(count):
        chosen = selection.choose(range(len(PACES_S)), wanted)
        plans.append(chosen)
        for board in chosen:
            selection.reported(board, PACES_S[board], 100.0)
    return plans


def test_scores_are_those_of_the_formula() -> None:
    """Round 3: rewards 80, 100, 120, tried in rounds 1, 2, 2; the 10th percentile of durations 1, 2, 4 is 1."""
    selection = Selection(1)
    selection.choose([0, 1, 2], 3)
    selection.reported(0, 2.0, 80.0)
    selection.choose([0, 1, 2], 3)
    selection.reported(1, 1.0, 100.0)
    selection.reported(2, 4.0, 120.0)
    selection.choose([0, 1, 2], 3)
    least, span = 0.999 * 80.0, 120.0 - 0.999 * 80.0
    bonus = [math.sqrt(0.1 * math.log(3) / last) for last in (1, 2, 2)]
    assert selection.preferred_s() == 1.0
    assert selection.scores([0, 1, 2]) == pytest.approx(
        {
            0: ((80.0 - least) / span + bonus[0]) * (1.0 / 2.0) ** 2,
            1: (100.0 - least) / span + bonus[1],
            2: (1.0 + bonus[2]) * (1.0 / 4.0) ** 2,
        }
    )


@given(
    wanted=st.integers(1, 8), seed=st.integers(0, 50),
    presents=st.lists(st.sets(st.integers(0, 7), min_size=1).map(sorted), min_size=1, max_size=60),
)  # fmt: skip
def test_it_chooses_as_many_as_are_wanted_of_whoever_is_there(
    wanted: int, seed: int, presents: list[list[int]]
) -> None:
    selection, again = Selection(seed), Selection(seed)
    for present in presents:
        chosen = selection.choose(present, wanted)
        assert len(chosen) == min(wanted, len(present))
        assert chosen == sorted(set(chosen) & set(present))
        assert chosen == again.choose(present, wanted)
        for board in chosen:
            for one in (selection, again):
                one.reported(board, 1e-9 * 10.0**board, 5.0)


def test_everybody_is_tried_and_then_the_fast_ones_stay() -> None:
    plans = rounds(Selection(3), 40)
    assert {board for plan in plans[:6] for board in plan} == set(range(6))
    often = Counter(board for plan in plans[6:] for board in plan)
    assert often[0] > 0.9 * 34
    assert often[5] < 0.5 * 34
    assert rounds(Selection(3), 40) == plans != rounds(Selection(4), 40)


def test_the_pacer_lets_slower_boards_in_as_utility_stays_the_same() -> None:
    selection = Selection(3, Settings(pacer_delta=30.0, pacer_step=5))
    preferred_s = []
    for _ in range(8):
        rounds(selection, 5)
        preferred_s.append(selection.preferred_s())
    assert preferred_s == sorted(preferred_s)
    assert preferred_s[0] == 0.1
    assert preferred_s[-1] == math.inf


def test_two_thirds_have_the_same_share_and_the_others_nothing() -> None:
    planner = make(policy("oort"), 11, 1200, 1)
    shares = planner.plan(range(11))
    assert sorted(shares) == [0, 0, 0, *([150] * 8)]
    with pytest.raises(SettingsError, match="budget"):
        make(policy("oort"), 9, 800, 100)


def test_who_is_left_out_draws_what_it_draws_idle() -> None:
    scenario = Scenario(rounds=12, budget=900, batch=1)
    found = in_full(Boards(scenario, exact([4.0, 2.0, 0.5], idle_w=2.0, active_w=7.0)), "oort")
    assert found.parts_j is not None
    assert found.joules is not None
    compute_s = found.parts_j["compute"] / 7.0
    span_s = (found.joules - (7.0 - 2.0) * compute_s) / 2.0  # of the three windows together
    assert span_s == pytest.approx(3 * found.makespan_s, rel=0.05)
    assert all(len(row) == 2 for row in found.shares)


def test_a_run_is_replayed_from_its_journal_although_boards_were_left_out(tmp_path: Path) -> None:
    scenario = Scenario(rounds=10, fault=faults("board=1 round=4 leave", "board=1 round=6 return"))
    folder = tmp_path / "c" / "oort"
    found = in_full(Fleet(scenario, None), "oort", folder)
    with Ledger(folder) as ledger:
        assert ledger.verify().faults == ()
        idle = left_out.read(ledger.events(left_out.KIND))
    assert [len(idle[number]) for number in range(1, 11)] == [3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    assert found.samples == 10 * 12_001
    recovery.replay(make(policy("oort"), 11, 12_001, 1, seed=1), folder)
    with pytest.raises(RunError, match="plans round 1 in another way"):
        recovery.replay(make(policy("oort"), 11, 12_001, 1, seed=2), folder)


def test_what_if_it_had_been_oort_is_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "oort"
    in_full(Fleet(Scenario(rounds=8), None), "oort", folder)
    told = whatif(folder, ["oort", "time"])
    again, timely = told["policies"]
    assert again["shares"] == told["recorded"]["shares"]
    assert again["seconds_against_recorded"] == 0.0
    assert timely["joules_against_recorded"] < -0.3, "who is left out draws on"


def test_regimes_whose_ranks_work_together_have_no_use_for_it(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(
        '[run]\nregime = "ddp"\nrounds = 1\nsteps = 2\nbudget = 100\npolicies = ["oort"]\n[task]\nname = "mnist"\n',
        encoding="utf-8",
    )
    with pytest.raises(SettingsError, match="'oort' is nothing for regime ddp"):
        load_experiment(path)
