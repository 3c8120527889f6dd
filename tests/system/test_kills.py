# SPDX-License-Identifier: Apache-2.0
"""A few real kills in each regime; `make soak` does a hundred. PACELINE_KILL_SEED draws others: a failure names it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline_host.journal import JOURNAL

from .kill_checks import REGIMES
from .kills import blows, fight

SEED = int(os.environ.get("PACELINE_KILL_SEED", "1"))
FEW = 2
NO_FIGHT = 0
WRONG = (
    "UPDATE round SET model_sha256 = base_sha256 WHERE round = 3",
    "UPDATE contribution SET verdict = 'lost' WHERE round = 2 AND slice = 1",
    "UPDATE contribution SET samples = samples + 1 WHERE round = 2 AND slice = 1",
)


@pytest.mark.in_turn
@pytest.mark.timeout(300)
@pytest.mark.parametrize("regime", REGIMES)
def test_a_run_whose_processes_are_killed_comes_to_the_end_of_an_unbroken_one(
    regime: str, tmp_path: Path, pictures: Path
) -> None:
    again = regime in ("pma", "async")  # the check makes these models again and wants nothing to compare with
    whole = None if again else fight(regime, SEED, NO_FIGHT, tmp_path / "whole", pictures, None).folder
    fight(regime, SEED, FEW, tmp_path / "killed", pictures, whole)


def test_a_seed_draws_the_same_signals_again_and_another_one_others() -> None:
    first = blows("pma", 7, 20)
    assert first == blows("pma", 7, 20)
    assert first != blows("pma", 8, 20)
    assert {blow.victim for blow in first} == {"host", "agent", "trainer"}
    assert {blow.victim for blow in blows("pma", 9, 20)} == {"host"}, "a third leaves the boards alone"


def test_the_checks_see_a_model_and_a_count_that_are_wrong(tmp_path: Path, pictures: Path) -> None:
    """The journal is changed afterwards into what a host that counts wrongly would have written."""
    done = fight("pma", SEED, NO_FIGHT, tmp_path / "run", pictures, None)
    for number, change in enumerate(WRONG):
        folder = tmp_path / str(number)
        shutil.copytree(done.folder, folder)
        with closing(sqlite3.connect(folder / JOURNAL)) as db, db:
            db.execute(change)
        with pytest.raises(AssertionError):
            REGIMES["pma"].check(folder, pictures, None)
