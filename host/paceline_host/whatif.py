# SPDX-License-Identifier: Apache-2.0
"""A recorded run under another policy: what its boards were measured to cost, with the shares that it would have given.

Each round's pace and watts of a board are the measured ones of that round, carried to another share by a model of the
whole run (fixed seconds where these were found); what it draws while it does not compute is the run's mean. Transfers
and the host are in no figure, so the recorded run is told by the same model, its makespan as measured beside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline.core import Fit
from paceline.errors import RunError, SettingsError
from paceline.policies import fits, policy
from paceline_host import left_out
from paceline_host.explain import minimum_of, planner_of
from paceline_host.ledger import Ledger
from paceline_host.records import Contribution, Energy, Run, as_reported

SCHEMA = "paceline-whatif-1"


@dataclass(frozen=True)
class Outcome:
    """A run by the model. Joules are of computing and waiting; None: no board has readings."""

    policy: str
    seconds: float  # sum of the rounds' slowest boards
    compute_j: float | None
    wait_j: float | None
    shares: tuple[int, ...]  # of the last round, by board, 0 for the absent

    @property
    def total_j(self) -> float | None:
        return None if self.compute_j is None or self.wait_j is None else self.compute_j + self.wait_j


@dataclass(frozen=True)
class _Cost:
    """One board in one round."""

    samples: int
    seconds: float
    active_w: float | None


class Recording:
    """What a run's journal says of costs."""

    def __init__(self, folder: Path) -> None:
        """Read it. Raises StorageError, and RunError where there is nothing to replay."""
        with Ledger(folder) as ledger:
            self.run: Run = ledger.run
            self.names = [board.name for board in ledger.boards()]
            rounds, rows, energy = ledger.rounds(), ledger.contributions(verdict="accepted"), ledger.energy()
            lost = {(c.round, c.board) for c in ledger.contributions() if c.verdict != "accepted"}
            idle = left_out.read(ledger.events(left_out.KIND))
            self.plans = {
                row.round: {s.board: s.samples for s in ledger.slices(row.round) if s.redealt_from is None}
                | dict.fromkeys(idle.get(row.round, ()), 0)
                for row in rounds
                if row.closed_s is not None
            }
        if self.run.regime == "psl":
            raise RunError(
                f"{folder}: a method of split learning says who gives what to a step; no policy divides samples"
            )
        if self.run.regime == "async":
            raise RunError(f"{folder}: boards took slices as they were done with the last; no policy divided samples")
        if not self.plans:
            raise RunError(f"{folder}: no round of it was finished, so there are no costs to replay")
        if policy(self.run.policy).every:  # a plan was only where its round began
            done = Counter[tuple[int, int]]()
            for one in rows:
                done[one.round, one.board] += one.samples
            self.plans = {round_: {board: done[round_, board] for board in plan} for round_, plan in self.plans.items()}
        self.lost = {n: [self.names[board] for round_, board in sorted(lost) if round_ == n] for n in self.plans}
        self._folder, self.minimum = folder, minimum_of(folder)
        self.measured_s = sum(row.makespan_s for row in rounds if row.makespan_s is not None)
        self._costs = _costs(rows)
        self.wait_w = _without_gaps(_wait_w(energy, rows), self._costs)
        self._fits = {board: _fit(own) for board, own in self._costs.items()}

    def told(self, board: int, round_: int, samples: int) -> tuple[float, float | None]:
        """Return seconds and watts of a board, had it had so many samples in that round."""
        own = self._costs.get(board)
        if not own:  # it never delivered: like the others
            known = [self.told(other, round_, samples) for other in self._costs]
            watts = [w for _, w in known if w is not None]
            return median(s for s, _ in known), median(watts) if watts else None
        if samples == 0:
            return 0.0, next(iter(own.values())).active_w
        past = [number for number in own if number <= round_]
        measured = own[max(past) if past else min(own)]
        fit = self._fits[board]
        a, tau = (fit.fixed_seconds, fit.seconds_per_sample) if fit.is_affine else (0.0, 1.0)
        return measured.seconds * (a + tau * samples) / (a + tau * measured.samples), measured.active_w

    def outcome(self, name: str, plans: Mapping[int, Mapping[int, int]]) -> Outcome:
        """Return what these shares would have cost."""
        seconds, compute_j, wait_j, known = 0.0, 0.0, 0.0, True
        for round_, shares in plans.items():
            told = {board: self.told(board, round_, n) for board, n in shares.items()}
            slowest = max(s for s, _ in told.values())
            seconds += slowest
            for board, (s, watts) in told.items():
                wait_w = self.wait_w.get(board)
                if watts is None or wait_w is None:
                    known = False
                    continue
                compute_j += watts * s
                wait_j += wait_w * (slowest - s)
        last = plans[max(plans)]
        final = tuple(last.get(board, 0) for board in range(len(self.names)))
        return Outcome(name, seconds, compute_j if known else None, wait_j if known else None, final)

    def under(self, name: str) -> Outcome:
        """Return the run under a policy, which learns from what it would have been told."""
        made = planner_of(self.run, self._folder, name)
        plans: dict[int, dict[int, int]] = {}
        for round_, recorded in self.plans.items():
            present = sorted(recorded)
            plans[round_] = shares = dict(zip(present, made.plan(present), strict=True))
            told = {board: self.told(board, round_, n) for board, n in shares.items()}
            slowest = max(s for s, _ in told.values())
            for board, (s, watts) in told.items():
                if shares[board]:
                    made.observe(board, s, None if watts is None else watts * s, shares[board])
                wait_w = self.wait_w.get(board)
                if wait_w and slowest > s:
                    made.observe_wait(board, slowest - s, wait_w * (slowest - s))
        return self.outcome(name, plans)


def whatif(folder: Path, policies: Sequence[str]) -> dict[str, Any]:
    """Return the recorded run and it under each policy, as one JSON object."""
    recording = Recording(folder)
    regime = recording.run.regime
    unfit = [name for name in policies if not fits(policy(name), regime)]
    if unfit:
        raise SettingsError([f"--policy: {name} cannot divide a run of regime {regime}" for name in unfit])
    recorded = recording.outcome(recording.run.policy, recording.plans)
    return {
        "schema": SCHEMA, "run": recording.run.run_id, "rounds": len(recording.plans),
        "measured_makespan_s": recording.measured_s, "boards": recording.names,
        "recorded": _entry(recorded, recorded),
        "policies": [_entry(recording.under(name), recorded) for name in policies],
        "notes": [
            *(f"{name}: by plans of whole rounds; what it gains within one is left out" for name in policies
              if policy(name).every),
            *(f"round {n}: {', '.join(names)} lost work in it; it is told as it was planned, as if nobody had"
              for n, names in recording.lost.items() if names),
        ],
    }  # fmt: skip


def _entry(one: Outcome, recorded: Outcome) -> dict[str, Any]:
    joules = one.total_j / recorded.total_j - 1 if one.total_j is not None and recorded.total_j else None
    return {
        **asdict(one), "total_j": one.total_j, "seconds_against_recorded": one.seconds / recorded.seconds - 1,
        "joules_against_recorded": joules,
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """Return it as text."""
    lines = [
        f"{found['run']}: {found['rounds']} rounds as measured, {found['measured_makespan_s']:.3g} s with transfers; "
        "below without",
        "",
        f"{'policy':26} {'seconds':>9} {'':>8} {'joules':>9} {'':>8} {'compute':>9} {'wait':>9}",
    ]
    for number, one in enumerate([found["recorded"], *found["policies"]]):
        name = f"{one['policy']} (recorded)" if number == 0 else one["policy"]
        cells = [f"{name:26} {one['seconds']:9.4g} {_change(one['seconds_against_recorded'], number):>8}"]
        cells += [f"{_joules(one['total_j']):>9} {_change(one['joules_against_recorded'], number):>8}"]
        cells += [f"{_joules(one['compute_j']):>9} {_joules(one['wait_j']):>9}"]
        lines.append(" ".join(cells))
    return "\n".join([*lines, "", *found["notes"]] if found["notes"] else lines)


def _change(value: float | None, number: int) -> str:
    return "" if value is None or number == 0 else f"{100 * value:+.1f} %"


def _joules(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _costs(rows: Sequence[Contribution]) -> dict[int, dict[int, _Cost]]:
    """Return what each board did in each round, slices of one round together."""
    parts: dict[tuple[int, int], list[Contribution]] = defaultdict(list)
    for row in as_reported(rows):
        if row.compute_us > 0 and row.samples > 0:
            parts[row.board, row.round].append(row)
    found: dict[int, dict[int, _Cost]] = defaultdict(dict)
    for (board, round_), own in sorted(parts.items()):
        seconds = sum(row.compute_us for row in own) * 1e-6
        joules = [row.compute_uj for row in own if row.compute_uj is not None]
        watts = sum(joules) * 1e-6 / seconds if len(joules) == len(own) and sum(joules) > 0 else None
        found[board][round_] = _Cost(sum(row.samples for row in own), seconds, watts)
    return dict(found)


def _fit(own: Mapping[int, _Cost]) -> Fit:
    fit = Fit()
    for one in own.values():
        fit.observe(one.seconds, one.samples)
    return fit


def _without_gaps(wait_w: Mapping[int, float], costs: Mapping[int, Mapping[int, _Cost]]) -> dict[int, float]:
    """Add what boards would draw that never waited: the part of active watts that others do, else all of them."""
    active = {}
    for board, own in costs.items():
        watts = [one.active_w for one in own.values() if one.active_w is not None]
        if watts:
            active[board] = median(watts)
    ratios = [wait_w[board] / active[board] for board in active if board in wait_w]
    ratio = median(ratios) if ratios else 1.0
    return {board: wait_w.get(board, ratio * watts) for board, watts in active.items()}


def _wait_w(energy: Sequence[Energy], rows: Sequence[Contribution]) -> dict[int, float]:
    """Return the watts of each board outside its computing; boards with readings of one whole window only."""
    last: dict[int, list[Energy]] = defaultdict(list)
    for row in energy:  # they come in round order, and are cumulative
        last[row.board] = [one for one in last[row.board] if one.session != row.session] + [row]
    worked_us: dict[int, int] = defaultdict(int)
    for contribution in rows:
        worked_us[contribution.board] += contribution.compute_us
    found = {}
    for board, splits in last.items():
        parts = [part for one in splits for part in (one.wait_uj, one.transfer_uj, one.other_uj)]
        outside_us = sum(one.span_us for one in splits) - worked_us[board]
        known = [part for part in parts if part is not None]
        if len(splits) == 1 and len(known) == len(parts) and outside_us > 0 and sum(known) > 0:
            found[board] = sum(known) / outside_us
    return found
