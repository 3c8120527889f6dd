# SPDX-License-Identifier: Apache-2.0
"""A whole fleet takes as long as its profile alone predicts: transport, meter, journal and host add less than 3 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_host.closed_form import ideal_seconds, round_seconds, run_seconds
from paceline_host.ledger import Ledger
from paceline_host.profile import BoardProfile, load_profile

from .fleet_tools import Bench, Declared, shares

FLEET = {
    "fast": Declared(speed=2.0, step_fixed_s=0.001),
    "hot": Declared(speed=1.6, step_fixed_s=0.001, throttle_after_s=0.3, throttle_factor=1.5),
    "plain": Declared(speed=1.0, step_fixed_s=0.002),
    "slow": Declared(speed=0.8, step_fixed_s=0.002),
}
ROUNDS, BUDGET, BATCH, REFERENCE_S = 3, 6000, 16, 0.001
TOLERANCE = 0.03
DEADBAND = 0.05  # the controller lets shares stay when it would gain less than this
BUSY = 0.05  # share of a board's steps that may come late before the machine counts as too busy to emulate it


@pytest.mark.timeout(120)
def test_measured_makespan_is_the_closed_forms_within_three_percent(bench: Bench) -> None:
    folder = run_fleet(bench, "first")
    if late := overrun(folder):  # a busy machine is no finding; once more, then say so
        folder = run_fleet(bench, "second")
        late = overrun(folder)
    assert not late, f"this machine is too busy to keep the declared pace; share of late steps: {late}"

    boards = load_profile(str(bench.folder / "profile.toml")).boards
    for policy in ("equal", "time"):
        measured, dealt = rounds_of(folder / policy)
        predicted = [round_seconds(boards, each, BATCH, REFERENCE_S) for each in dealt]
        assert sum(measured) == pytest.approx(sum(predicted), rel=TOLERANCE), policy
        assert sum(measured[1:]) == pytest.approx(sum(predicted[1:]), rel=TOLERANCE), policy
        assert run_seconds(boards, dealt, BATCH, REFERENCE_S) == pytest.approx(sum(predicted))
    ideal_s = ideal_seconds(boards, BUDGET, BATCH, REFERENCE_S)
    assert last_round(folder / "time", boards) <= ideal_s * (1 + DEADBAND), "no way to share out is much better"


def run_fleet(bench: Bench, name: str) -> Path:
    """Run both policies over one fleet; return the comparison's folder."""
    experiment = bench.experiment(
        name,
        {"rounds": ROUNDS, "budget": BUDGET, "policies": ["equal", "time"]},
        task={"batch": BATCH, "reference_seconds_per_sample": REFERENCE_S},
        fleet={"profile": bench.profile(FLEET)},
    )
    host = bench.host(experiment, "--quiet")
    assert host.ends() == 0, host.err
    return bench.folder / "runs" / f"{name}-001"


def overrun(folder: Path) -> dict[str, float]:
    """Return the share of late steps of each board that did not keep its pace, by policy/board."""
    found = {}
    for policy in ("equal", "time"):
        with Ledger(folder / policy) as ledger:
            for board in ledger.boards():
                rows = [c for c in ledger.contributions(verdict="accepted") if c.board == board.board]
                share = sum(c.overruns for c in rows) / sum(c.steps for c in rows)
                lost = sum(c.late_us for c in rows) / sum(c.compute_us for c in rows)
                if share > BUSY or lost > TOLERANCE / 2:
                    found[f"{policy}/{board.name}"] = max(share, lost)
    return found


def rounds_of(folder: Path) -> tuple[list[float], list[list[int]]]:
    """Return the makespan and the shares of each round."""
    with Ledger(folder) as ledger:
        assert ledger.verify().faults == ()
        assert not [c for c in ledger.contributions() if c.verdict != "accepted"]
        rounds = ledger.rounds()
        dealt = [shares(ledger, r.round) for r in rounds]
    measured = [r.makespan_s for r in rounds if r.makespan_s is not None]
    assert len(measured) == ROUNDS
    return measured, [[each[board] for board in range(len(FLEET))] for each in dealt]


def last_round(folder: Path, boards: tuple[BoardProfile, ...]) -> float:
    """Return what the last round's shares take by the closed form."""
    return round_seconds(boards, rounds_of(folder)[1][-1], BATCH, REFERENCE_S)
