# SPDX-License-Identifier: Apache-2.0
"""Synchronised ranks in an experiment file: what is refused before anything starts, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from paceline.errors import SettingsError
from paceline_host.ddp.run import consent, too_little
from paceline_host.experiment import FleetSettings, RunSettings

RUN = RunSettings(rounds=1, budget=120, regime="ddp", steps=5)


@pytest.mark.parametrize(
    ("fleet", "ranks"),
    [
        (FleetSettings("boards", listen="tcp://127.0.1.1:5555"), 3),
        (FleetSettings("boards", listen="tcp://0.0.0.0:5555"), 3),  # boards may be here; the ranks say where they are
        (FleetSettings("boards", listen="tcp://*:5555"), 3),
        (FleetSettings("boards", listen="ipc:///run/paceline"), 3),
        (FleetSettings("boards", listen="tcp://192.0.2.2:5555"), 1),  # nothing travels
    ],
)
def test_no_consent_is_asked_for_where_nothing_need_travel(fleet: FleetSettings, ranks: int) -> None:
    consent(RUN, fleet, ranks)


@pytest.mark.parametrize("kind", ["boards", "local"])
def test_plain_text_off_loopback_is_refused_before_anything_starts(kind: Literal["boards", "local"]) -> None:
    fleet = FleetSettings(kind, listen="tcp://192.0.2.2:5555")
    with pytest.raises(SettingsError, match=r"tcp://192.0.2.2:5555: .*set run.allow_plain_collectives = true"):
        consent(RUN, fleet, 2)
    consent(RunSettings(rounds=1, regime="ddp", allow_plain_collectives=True), fleet, 2)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({}, ""),
        ({"steps": 40}, ""),
        ({"steps": 41}, "run.steps = 41: {} 1 in each step; expected at most 40 steps"),
        ({"steps": 5, "min_batch": 9}, "run.steps = 5: {} 9 in each step; expected at most 4 steps"),
        ({"min_batch": 50}, "run.min_batch = 50: {} so many in a step; expected at most 40"),
        ({"minimum": 100}, "run.minimum = 100: {} so many each; expected at most 40"),
        ({"minimum": 40, "min_batch": 0}, ""),
        ({"steps": 120, "min_batch": 0}, ""),
        ({"steps": 121, "min_batch": 0}, "run.steps = 121: {} each step one; expected at most 120 steps"),
    ],
)
def test_the_key_that_asks_for_too_much_is_the_one_that_is_named(keys: dict[str, int], fault: str) -> None:
    run = replace(RUN, **keys)  # type: ignore[arg-type]
    boards = "" if run.steps > 120 else " 3 boards"
    assert too_little(run, 120, 3) == fault.format(f"a budget of 120 samples does not give{boards}")


def test_a_budget_without_a_sample_for_each_board_is_itself_named() -> None:
    assert too_little(RUN, 2, 3).endswith("3 boards one each; expected at least 15 samples")
