# SPDX-License-Identifier: Apache-2.0
"""The boards of a scenario: names and models, made anew for each policy. From a profile, or from a recorded run."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import SettingsError
from paceline_host.profile import BoardProfile, load_profile
from paceline_host.simulation.models import BoardModel, RecordedModel, profiles
from paceline_host.simulation.scenario import Scenario
from paceline_host.simulation.traces import Trace

if TYPE_CHECKING:
    from paceline_host.whatif import Recording


class Fleet:
    """`names`, and `models` as often as they are asked for. Raises PacelineError."""

    def __init__(self, scenario: Scenario, replayed: Path | None) -> None:
        """`replayed`: folder of a run whose measured costs the boards have."""
        self._recording = _recording(replayed) if replayed is not None else None
        self._boards: list[BoardProfile] = []
        self._traces: list[tuple[int, Trace | None, Trace | None]] = []
        if self._recording is None:
            shipped = load_profile(scenario.profile).boards
            self._boards = profiles(shipped, scenario.boards or len(shipped), scenario.seed)
            self.names = [board.name for board in self._boards]
            self.scenario = scenario
            self._traces = [(one.board, _trace(one.idle), _trace(one.active)) for one in scenario.trace]
            for board, _, _ in self._traces:
                if board >= len(self._boards):
                    raise SettingsError([f"[[trace]] board = {board}: there are {len(self._boards)}, from 0 on"])
            return
        recording = self._recording
        if scenario.boards not in (0, len(recording.names)):
            raise SettingsError(
                [f"{replayed} has {len(recording.names)} boards, which cannot be made {scenario.boards}"]
            )
        self.names = recording.names
        run = recording.run
        if scenario.trace:
            raise SettingsError(["[[trace]]: boards of a replayed run have its watts; leave one of the two out"])
        self.scenario = replace(
            scenario, budget=scenario.budget or run.budget, samples=run.samples, batch=run.batch,
            minimum=max(scenario.minimum, recording.minimum),
        )  # fmt: skip

    def models(self) -> list[BoardModel]:
        """Return the boards as they are before the first round."""
        s, recording = self.scenario, self._recording
        if recording is not None:
            return [RecordedModel(recording, i, s.seed, s.noise) for i in range(len(self.names))]
        made = [
            BoardModel(
                board, i, s.seed, s.batch, s.seconds_per_sample, round_fixed_s=s.round_fixed_s, noise=s.noise,
                drift_sd=s.drift,
            )
            for i, board in enumerate(self._boards)
        ]  # fmt: skip
        for number, at_rest, at_work in self._traces:
            made[number].at_rest, made[number].at_work = at_rest, at_work
        return made

    def declared(self) -> dict[str, object]:
        """Return what a report's closed form needs; nothing where boards are more than a profile says."""
        s = self.scenario
        if self._recording is not None or s.round_fixed_s or s.drift or s.fault or s.fault_rate or s.boards:
            return {}
        return {
            "profile": s.profile, "boards": [asdict(board) for board in self._boards],
            "reference_seconds_per_sample": s.seconds_per_sample,
        }  # fmt: skip


def _trace(path: str) -> Trace | None:
    return Trace(Path(path)) if path else None


def _recording(folder: Path) -> Recording:
    from paceline_host.whatif import Recording  # here: it brings numpy

    return Recording(folder)
