# SPDX-License-Identifier: Apache-2.0
"""From the round machine's state to the lines a person watches. Reads the machine, changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.talk import Talk
from paceline_host import machine as m
from paceline_host.comparison import Watcher
from paceline_host.experiment import Experiment
from paceline_host.muster import Muster
from paceline_host.progress import BoardView, Header, Progress, head
from paceline_host.server import Outcome

_WAITING = {
    "greeting": "a handshake", "idle": "the host", "loading": "its trainer to load", "assigned": "the model",
    "working": "", "uploading": "its upload", "judging": "the host's verdict",
}  # fmt: skip


def board_views(machine: Muster, now_s: float) -> list[BoardView]:
    """Return one view a board: share, done, costs, whom it waits for and since when."""
    views = []
    for index, board in enumerate(machine.boards):
        lease = board.lease
        views.append(
            BoardView(
                name=board.name,
                share=board.share + sum(item.samples for item in board.queue),
                done=board.done + (lease.samples if lease else 0),
                seconds_per_sample=machine.seconds_per_sample(index),
                energy_per_sample_j=board.energy_per_sample_j,
                energy_label=board.ready.energy_source if board.ready else "",
                waiting_for=_waiting(machine, board),
                since_s=now_s - board.since_s,
                counted=board.counted,
            )
        )
    return views


def _waiting(machine: Muster, board: m.Board) -> str:
    if board.barred:
        return "nothing: barred after failures"
    if board.session is None:
        return "the board: not connected"
    if board.ready is None or board.lease is not None:
        return _WAITING.get(board.session.state.value, "")
    busy = [other.name for other in machine.boards if other.lease is not None]
    return f"{len(busy)} boards: {', '.join(busy[:2])}" if len(busy) > 1 else busy[0] if busy else "the next plan"


def watcher(experiment: Experiment, talk: Talk, *, quiet: bool) -> Watcher:
    """Return a watcher that writes to stderr: a view for people, or for programs a line a round."""
    progress = Progress(sys.stderr)
    talk.lines_to(progress.say)
    rounds = _RoundLines(experiment.run.rounds, talk)

    def view(policy: str, machine: Muster, now_s: float) -> None:
        if quiet:
            return
        if talk.as_json:
            rounds.tell(policy, machine)
        else:
            header = Header(policy, machine.round, experiment.run.rounds, machine.phase, list(machine.round_seconds))
            progress.show(header, board_views(machine, now_s))

    def run_ended(folder: Path, outcome: Outcome) -> None:
        rounds.run_ended()
        progress.done()
        how = "finished" if outcome.ok else f"ended: {outcome.reason}"
        talk(f"{folder.name}: {how}", level="info" if outcome.ok else "warning", event="run-ended")

    return Watcher(talk, view, run_ended)


class _RoundLines:
    """A line for each round that is over, also when several ended between two looks."""

    def __init__(self, rounds: int, talk: Talk) -> None:
        self._rounds, self._talk = rounds, talk
        self._told = 0
        self._seen: tuple[str, Muster] | None = None

    def tell(self, policy: str, machine: Muster) -> None:
        self._seen = policy, machine
        header = Header(policy, machine.round, self._rounds, machine.phase, list(machine.round_seconds))
        for number in range(self._told + 1, len(header.round_seconds) + 1):
            self._talk.info(head(header.of_round(number)), event="round")
            self._told = number

    def run_ended(self) -> None:
        if self._seen is not None:
            self.tell(*self._seen)
        self._told, self._seen = 0, None
