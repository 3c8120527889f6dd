# SPDX-License-Identifier: Apache-2.0
"""From a run's folder to where it stood: its journal and checkpoints are all there is to know. Writes nothing.

What equals what after a resume: DECISIONS 1. A policy's memory is not stored but replayed, from the same calls in the
same order, so that what it learned and what the journal says cannot differ.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DamagedError, RunError, StorageError
from paceline.tasks import Task
from paceline_host import checkpoint, left_out, records
from paceline_host.ddp import paces
from paceline_host.journal import JOURNAL, has_journal, is_held
from paceline_host.ledger import Ledger
from paceline_host.mixing import standing as mixing
from paceline_host.mixing.steps import Standing
from paceline_host.planner import Planner
from paceline_host.reducer import NORM_HISTORY, Reducer, Verified
from paceline_host.steps import Reopened
from paceline_host.waits import IDLE
from paceline_host.waits import KIND as WAITS

RESUMED = "resumed"  # kind of the event that begins each further life of a run


@dataclass(frozen=True)
class Recovered:
    """A run as its journal has it. `model` is the base of the open round, or of the next one."""

    run: records.Run
    boards: tuple[records.Board, ...]
    machine: Reopened
    model: bytes
    model_sha256: str
    clock_s: float  # the last instant that was journaled
    norms: Mapping[int, list[Verified]]  # by board, of its last accepted updates
    counted: tuple[tuple[int, int, bytes], ...]  # (slice, samples, update) of the open round
    skipped: tuple[int, ...]  # slices of the open round that were dealt again
    epoch: records.Epoch | None = None  # of split learning, the last that was closed
    standing: Standing | None = None  # of regime async

    @property
    def finished(self) -> bool:
        """It came to its end; there is nothing to go on with."""
        return self.run.ended is not None and bool(self.run.ended.get("ok"))


def recover(folder: Path, task: Task, say: Callable[[str], None]) -> Recovered:
    """Read a run that a host has left. Raises StorageError when it is still being written, or damaged beyond help."""
    if is_held(folder):
        raise StorageError(f"{folder}: a process is still writing this run; end it, or wait until it has ended")
    with Ledger(folder) as ledger:
        run, rounds = ledger.run, ledger.rounds()
        if run.samples != task.samples:
            raise StorageError(
                f"{folder}: was begun with {run.samples} samples, the task now has {task.samples}; restore its data set"
            )
        planned = rounds[-1].round if rounds else 0
        if (newest := checkpoint.newest(folder)) > planned:
            raise DamagedError(
                f"{folder}: has the model of round {newest}, but its journal ends with round {planned}; restore "
                f"{JOURNAL} and {JOURNAL}-wal, or remove the folder to begin the run anew"
            )
        closed = [r for r in rounds if r.closed_s is not None]
        base = closed[-1].round if closed else 0
        model = _model_after(folder, ledger, task, base, say)
        if run.regime == "async":
            model = mixing.remixed(ledger, task.manifest, model, [m for m in ledger.mixes() if m.closed >= base])
        open_round = rounds[-1].round if rounds and rounds[-1].closed_s is None else 0
        accepted = ledger.contributions(open_round, "accepted") if run.regime == "pma" else []
        counted = [(c.slice, c.samples, ledger.update(c)) for c in accepted]
        return Recovered(
            run, tuple(ledger.boards()), _reopened(ledger, rounds, open_round), model, checkpoint.sha256(model),
            _last_instant_s(ledger, rounds), _norms(ledger), tuple(counted),
            tuple(sorted({s.redealt_from for s in ledger.slices(open_round) if s.redealt_from is not None})),
            next(reversed(ledger.epochs()), None), mixing.standing(ledger) if run.regime == "async" else None,
        )  # fmt: skip


def begun(folder: Path) -> bool:
    """Tell whether a run's folder holds more than what a host leaves that dies while making it."""
    return has_journal(folder)


def replay(planner: Planner, folder: Path, before: int | None = None) -> None:
    """Teach a fresh planner what the run's own had learned, or had when it was to plan the round `before`.

    Raises RunError when it would have planned otherwise.
    """
    with Ledger(folder) as ledger:
        if ledger.run.regime == "async":  # nothing was planned
            for c in records.as_reported(ledger.contributions(verdict="accepted")):
                planner.observe(c.board, *_report(c))
            return
        waits, idle = _told(ledger), left_out.read(ledger.events(left_out.KIND))
        steps = paces.read(ledger.events(paces.KIND))
        for row in ledger.rounds():
            planned = [s for s in ledger.slices(row.round) if s.redealt_from is None]
            for told in waits[row.round]:
                _tell(planner, *told)
            if row.round == before:
                return
            given = {s.board: s.samples for s in planned} | dict.fromkeys(idle.get(row.round, ()), 0)
            if planner.plan(sorted(given)) != [given[board] for board in sorted(given)]:
                raise RunError(
                    f"{folder}: this version of paceline plans round {row.round} in another way than the journal says; "
                    "go on with the version that began the run"
                )
            for pace in steps[row.round]:
                planner.observe_steps(*pace)
            for c in records.as_reported(ledger.contributions(row.round, "accepted")):
                planner.observe(c.board, *_report(c))


class Reported:
    """A planner that believes another run's reports instead of this one's (`--replay-reports`).

    What was reported in a round is told when the next one is planned, whatever has become of it here; so the plans are
    that run's, for as long as the same boards are there.
    """

    def __init__(self, planner: Planner, folder: Path) -> None:
        """Read that run's journal. Raises StorageError."""
        self._planner, self._folder = planner, folder
        self.seconds_per_sample = planner.seconds_per_sample
        self._round = 0
        self.heeds_waits = False  # of this run
        self.every = planner.every
        with Ledger(folder) as ledger:
            self._plans = {
                row.round: {s.board: s.samples for s in ledger.slices(row.round) if s.redealt_from is None}
                for row in ledger.rounds()
            }
            for number, boards in left_out.read(ledger.events(left_out.KIND)).items():
                self._plans[number] |= dict.fromkeys(boards, 0)
            self._waits = _told(ledger)
            self._steps: dict[tuple[int, int], list[paces.Pace]] = defaultdict(list)  # by round and board
            for number, found in paces.read(ledger.events(paces.KIND)).items():
                for pace in found:
                    self._steps[number, pace[0]].append(pace)
            self._reports: dict[int, list[records.Contribution]] = defaultdict(list)
            for number in self._plans:
                self._reports[number] = records.as_reported(ledger.contributions(number, "accepted"))

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the shares of the present boards. Raises RunError where that run was another, or is at its end."""
        for c in self._reports[self._round]:
            self._planner.observe(c.board, *_report(c))
        self._round += 1
        for told in self._waits[self._round]:
            _tell(self._planner, *told)
        shares = self._planner.plan(present)
        theirs = self._plans.get(self._round)
        if theirs is None or (theirs.keys() == set(present) and theirs != dict(zip(present, shares, strict=True))):
            why = "has no such round" if theirs is None else "had other shares there"
            raise RunError(
                f"{self._folder} {why} (round {self._round}); reports can be replayed only into the same experiment "
                "over the same boards"
            )
        return shares

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Take note of nothing: what this run measures is not believed."""

    def observe_wait(self, board: int, seconds: float, energy_j: float) -> None:
        """Take note of nothing, likewise."""

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        """Tell the policy what that run's next steps of this round took."""
        if theirs := self._steps[self._round, board]:
            self._planner.observe_steps(*theirs.pop(0))

    def observe_idle(self, board: int, watts: float) -> None:
        """Take note of nothing, likewise."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The policy's."""
        return self._planner.notes


def _told(ledger: Ledger) -> dict[int, list[tuple[int, list[float]]]]:
    """Return what plans were told of waiting, by the round that was planned then: (board, [seconds, joules]); of what
    was drawn before the first round: (board, [watts]).
    """
    found: dict[int, list[tuple[int, list[float]]]] = defaultdict(list)
    for event in (*ledger.events(IDLE), *ledger.events(WAITS)):
        if event.round is not None:
            for board, values in sorted(json.loads(event.detail).items(), key=_number):
                found[event.round].append((int(board), values if isinstance(values, list) else [values]))
    return found


def _tell(planner: Planner, board: int, values: Sequence[float]) -> None:
    if len(values) == 1:
        planner.observe_idle(board, *values)
    else:
        planner.observe_wait(board, *values)


def _number(item: tuple[str, object]) -> int:
    return int(item[0])


def _report(row: records.Contribution) -> tuple[float, float | None, int]:
    return row.compute_us * 1e-6, None if row.compute_uj is None else row.compute_uj * 1e-6, row.samples


def _reopened(ledger: Ledger, rounds: Sequence[records.Round], open_round: int) -> Reopened:
    if ledger.run.regime == "async":
        return mixing.reopened(ledger, len(ledger.events(RESUMED)) + 1, _last_instant_s(ledger, rounds))
    slices = ledger.slices(open_round)
    rows = ledger.contributions(open_round)
    accepted = {c.slice for c in rows if c.verdict == "accepted"}
    redealt = {s.redealt_from for s in slices}
    left = tuple(s for s in slices if s.index not in accepted and s.index not in redealt)
    number = rounds[-1].round if rounds else 0
    recent = [c for r in (number - 1, number) for c in ledger.contributions(r, "accepted")]
    elapsed_s = max(0.0, _last_instant_s(ledger, rounds) - rounds[-1].planned_s) if open_round else 0.0
    if open_round and not left:
        elapsed_s = max(c.at_s for c in rows) - rounds[-1].planned_s
    if ledger.run.regime != "pma":  # a step is memory only, so an open round begins anew
        left, rows = tuple(s for s in slices if s.redealt_from is None), []
    return Reopened(
        round=number, closed=not open_round, open_slices=left, lost=frozenset(c.slice for c in rows) - accepted,
        next_index=len(slices), done=tuple((c.board, c.samples) for c in rows if c.verdict == "accepted"),
        counted=frozenset((c.round, c.slice) for c in recent), lives=len(ledger.events(RESUMED)) + 1,
        elapsed_s=elapsed_s, round_seconds=tuple(r.makespan_s for r in rounds if r.makespan_s is not None),
    )  # fmt: skip


def _last_instant_s(ledger: Ledger, rounds: Sequence[records.Round]) -> float:
    instants = [r.planned_s for r in rounds] + [r.closed_s for r in rounds if r.closed_s is not None]
    instants += [c.at_s for c in ledger.contributions()] + [e.at_s for e in ledger.events()]
    return max(instants, default=0.0)


def _norms(ledger: Ledger) -> dict[int, list[Verified]]:
    norms: dict[int, list[Verified]] = defaultdict(list)
    for c in sorted(ledger.contributions(verdict="accepted"), key=lambda c: c.lease):
        if c.update_norm is not None:
            norms[c.board].append(Verified(c.update_norm, c.samples / c.steps))
    return {board: history[-NORM_HISTORY:] for board, history in norms.items()}


def _model_after(folder: Path, ledger: Ledger, task: Task, number: int, say: Callable[[str], None]) -> bytes:
    """Return the model that round `number` left: from its checkpoint, or, where that is damaged, made anew."""
    if number == 0:
        return task.initial()
    path = checkpoint.path(folder, number)
    row = next(r for r in ledger.rounds() if r.round == number)
    try:
        model, digest = checkpoint.load(path, task.manifest)
        if digest == row.model_sha256:
            return model
        why = f"{path}: is not the model that the journal names"
    except StorageError as error:
        why = str(error)
    say(f"{why}; making it anew from the round before and the updates in the journal")
    if ledger.run.regime not in ("pma", "async"):
        raise DamagedError(f"{why}; restore it from a copy, or begin a new run")
    model = _again(ledger, task, number, _model_after(folder, ledger, task, number - 1, say))
    if checkpoint.sha256(model) != row.model_sha256:
        raise DamagedError(
            f"{path}: is damaged, and what the journal holds of round {number} does not make the same model; restore "
            "the folder, or begin a new run"
        )
    return model


def _again(ledger: Ledger, task: Task, number: int, base: bytes) -> bytes:
    """Return the model that a round made of `base`, from the updates in the journal."""
    if ledger.run.regime == "async":
        return mixing.remixed(ledger, task.manifest, base, [m for m in ledger.mixes() if m.closed == number - 1])
    reducer = Reducer(task.manifest)
    reducer.begin(base, ledger.run.budget)
    feed(
        reducer,
        [(c.slice, c.samples, ledger.update(c)) for c in ledger.contributions(number, "accepted")],
        {s.redealt_from for s in ledger.slices(number) if s.redealt_from is not None},
    )
    return reducer.finish()


def feed(reducer: Reducer, counted: Sequence[tuple[int, int, bytes]], skipped: Sequence[int] | set[int]) -> None:
    """Give a round's reducer what the journal has of it."""
    for index in skipped:
        reducer.skip(index)
    for index, samples, update in counted:
        reducer.add(index, samples, update)
