# SPDX-License-Identifier: Apache-2.0
"""The figures of simulated runs, and their table. Unknown is None. A report finds the same ones in a journal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.wire import Energy
from paceline_host.policy_notes import once
from paceline_host.steps import Finish

PARTS = ("compute", "wait", "transfer", "wasted", "other")


@dataclass
class RoundOutcome:
    """One round: shares as planned, and what boards have delivered."""

    round: int
    shares: Mapping[int, int]
    compute_us: dict[int, int] = field(default_factory=dict)  # by board
    samples: int = 0
    cv: float | None = None  # kept when the rest is forgotten

    def delivered(self, board: int, samples: int, compute_us: int) -> None:
        """A board has delivered a slice."""
        self.compute_us[board] = self.compute_us.get(board, 0) + compute_us
        self.samples += samples

    @property
    def compute_cv(self) -> float | None:
        """Population coefficient of variation of compute times."""
        if self.cv is not None:
            return self.cv
        values = [float(us) for us in self.compute_us.values()]
        mean = statistics.fmean(values) if values else 0.0
        return math.sqrt(statistics.fmean((us - mean) ** 2 for us in values)) / mean if mean > 0 else None

    def forget(self) -> None:
        """Keep the figures, not what each board did."""
        self.cv = self.compute_cv
        self.shares, self.compute_us = {}, {}


@dataclass(frozen=True)
class Outcome:
    """One policy's run."""

    policy: str
    state: str  # "finished", or why not
    round_s: tuple[float, ...]  # makespans
    compute_cv: tuple[float | None, ...]
    samples: int
    lost: int  # leases without a counted result
    joules: float | None  # of the boards that are known
    parts_j: Mapping[str, float] | None
    unknown: int  # boards whose joules are unknown, wholly or for a time
    shares: tuple[Mapping[int, int], ...] = ()  # of each round, by board
    notes: tuple[str, ...] = ()  # what the policy had to assume or to give up

    @property
    def makespan_s(self) -> float:
        """Of all rounds."""
        return sum(self.round_s)

    @property
    def later_s(self) -> float | None:
        """Median of rounds from the second on."""
        return statistics.median(self.round_s[1:]) if len(self.round_s) > 1 else None

    @property
    def later_cv(self) -> float | None:
        """Median of rounds from the second on."""
        known = [cv for cv in self.compute_cv[1:] if cv is not None]
        return statistics.median(known) if known else None

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "policy": self.policy, "state": self.state, "rounds": len(self.round_s), "samples": self.samples,
            "makespan_s": self.makespan_s, "makespan_median_s": self.later_s, "joules": self.joules,
            "parts_j": self.parts_j, "boards_unknown": self.unknown, "compute_cv": self.later_cv,
            "leases_lost": self.lost, "round_s": list(self.round_s), "notes": list(self.notes),
        }  # fmt: skip


def outcome(
    policy: str, finish: Finish, round_s: Sequence[float], rounds: Mapping[int, RoundOutcome],
    energy: Mapping[tuple[int, int], Energy], lost: int, notes: Sequence[tuple[int, str]],
) -> Outcome:  # fmt: skip
    """Return the figures of a run over a link. Rounds that were not closed count for nothing but their joules."""
    known = [e for e in energy.values() if e.total_uj is not None]
    windows: dict[int, int] = {}
    for board, _ in energy:
        windows[board] = windows.get(board, 0) + 1
    unknown = {board for (board, _), e in energy.items() if e.total_uj is None}
    unknown |= {board for board, count in windows.items() if count > 1}  # nobody saw it in between
    parts = {name: sum(getattr(e, f"{name}_uj") or 0 for e in known) * 1e-6 for name in PARTS} if known else None
    return of_rounds(policy, finish, round_s, rounds, parts, len(unknown), lost, notes)


def of_rounds(
    policy: str, finish: Finish, round_s: Sequence[float], rounds: Mapping[int, RoundOutcome],
    parts_j: Mapping[str, float] | None, unknown: int, lost: int, notes: Sequence[tuple[int, str]],
) -> Outcome:  # fmt: skip
    """Return the figures of a run."""
    closed = [rounds[number] for number in range(1, len(round_s) + 1)]
    return Outcome(
        policy, "finished" if finish.ok else finish.reason, tuple(round_s), tuple(row.compute_cv for row in closed),
        sum(row.samples for row in closed), lost, sum(parts_j.values()) if parts_j is not None else None, parts_j,
        unknown, tuple(row.shares for row in closed), once(notes),
    )  # fmt: skip


def table(outcomes: Sequence[Outcome], title: str) -> list[str]:
    """Return a line for each policy; changes are against the first."""
    lines = [
        title, "", f"{'policy':24} {'rounds':>6} {'makespan':>11} {'':>8} {'median >= 2':>11} {'joules':>14} {'':>8} "
        f"{'waiting':>14} {'CV':>8} {'lost':>5}",
    ]  # fmt: skip
    lines.append("-" * len(lines[-1]))
    for number, one in enumerate(outcomes):
        first = outcomes[0] if number else None
        waits = None if one.parts_j is None else one.parts_j["wait"]
        seconds = _change(one.makespan_s, first.makespan_s) if first is not None else ""
        joules = _change(one.joules, first.joules) if first is not None and not one.unknown + first.unknown else ""
        lines.append(
            f"{one.policy:24} {len(one.round_s):>6} {_s(one.makespan_s):>11} {seconds:>8} {_s(one.later_s):>11} "
            f"{_j(one.joules, one.unknown):>14} {joules:>8} {_j(waits, one.unknown):>14} "
            f"{_percent(one.later_cv):>8} {one.lost:>5}"
        )
    lines += [f"- {one.policy}: {one.state}" for one in outcomes if one.state != "finished"]
    lines += [f"- {one.policy}: {text}" for one in outcomes for text in one.notes]
    lines += [
        f"- {one.policy}: joules of {one.unknown} boards are unknown, wholly or for a time; >= is what is known"
        for one in outcomes if one.unknown
    ]  # fmt: skip
    return lines


def _s(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _j(value: float | None, unknown: int) -> str:
    return "unknown" if value is None else f"{'>= ' if unknown else ''}{value:,.1f} J"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _change(value: float | None, first: float | None) -> str:
    return "" if value is None or not first else f"{100 * (value / first - 1):+.1f} %"
