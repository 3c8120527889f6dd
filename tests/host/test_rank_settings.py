# SPDX-License-Identifier: Apache-2.0
"""Synchronised ranks in an experiment file: what is refused before anything starts, and in which words."""

from __future__ import annotations

import pytest

from paceline.errors import SettingsError
from paceline_host.ddp.run import consent
from paceline_host.experiment import FleetSettings, RunSettings

RUN = RunSettings(rounds=1, budget=120, regime="ddp", steps=5)


@pytest.mark.parametrize(
    ("fleet", "ranks"),
    [
        (FleetSettings("local", listen="tcp://192.0.2.2:*"), 3),  # it does not listen there
        (FleetSettings("boards", listen="tcp://127.0.1.1:5555"), 3),
        (FleetSettings("boards", listen="tcp://0.0.0.0:5555"), 3),  # boards may be here; the ranks say where they are
        (FleetSettings("boards", listen="tcp://*:5555"), 3),
        (FleetSettings("boards", listen="ipc:///run/paceline"), 3),
        (FleetSettings("boards", listen="tcp://192.0.2.2:5555"), 1),  # nothing travels
    ],
)
def test_no_consent_is_asked_for_where_nothing_need_travel(fleet: FleetSettings, ranks: int) -> None:
    consent(RUN, fleet, ranks)


def test_plain_text_off_loopback_is_refused_before_anything_starts() -> None:
    fleet = FleetSettings("boards", listen="tcp://192.0.2.2:5555")
    with pytest.raises(SettingsError, match=r"tcp://192.0.2.2:5555: .*set run.allow_plain_collectives = true"):
        consent(RUN, fleet, 2)
    consent(RunSettings(rounds=1, regime="ddp", allow_plain_collectives=True), fleet, 2)
