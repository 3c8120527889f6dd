# SPDX-License-Identifier: Apache-2.0
"""Shares for training scripts that run elsewhere, by the host's policies: reports of a round in, shares of the next
one out. Pure: time is an argument. Knows no run: a script's ranks, data and steps are its own affair.

Scripts are told apart by operator, name and `life`, which each makes up when it starts: one with another's name, or
that one started again, is judged by its own measurements alone. What is known of a script is memory. A host that is
started again, or that hears of a round out of turn, begins anew from the reports it is given, which is as if that round
had been the script's first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import CoreError, RunError, SettingsError
from paceline.policies import fits, policy
from paceline_host import operator_wire as w
from paceline_host import planner
from paceline_host.planner import Planner

KEPT = 64  # scripts; the one that has been silent for longest is forgotten
LIFE = 64  # characters of what tells a script from others of its name
RANKS = 4096  # a document of 1 MiB has room for the reports of so many

Report = tuple[float, float | None, int]  # seconds of computing, joules (None: unknown), samples

_Key = tuple[str, str, str]  # operator, name, life


@dataclass
class _Script:
    """One script."""

    terms: tuple[str, int, int, int]  # policy, ranks, budget, minimum
    planner: Planner
    round: int  # that was planned last
    reports: Sequence[Report | None]  # it was planned from
    shares: list[int]
    asked_s: float


class Scripts:
    """`answer` what scripts ask; `rows` for the status."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Script] = {}  # the last that asked at the end

    def answer(self, by: str, message: w.Divide, now_s: float) -> w.Message:
        """Return the shares of a round, or why there are none."""
        try:
            terms, reports = _read(message.document)
            key = by, message.name, _life(message.document)
            script = self._plan(key, message.round, terms, reports, now_s)
        except SettingsError as error:
            return w.Refused(message.request, error.exit_code, document={"errors": error.errors})
        except (ValueError, CoreError, RunError) as error:
            text = f"{message.name}, round {message.round}: {error}"
            return w.Refused(message.request, 3, document={"errors": [text]})
        notes = list(script.planner.notes)
        return w.Told(message.request, document={"round": script.round, "shares": script.shares, "notes": notes})

    def _plan(
        self, key: _Key, number: int, terms: tuple[str, int, int, int], reports: Sequence[Report | None], now_s: float
    ) -> _Script:  # fmt: skip
        before = self._known.get(key)
        if before is not None and before.terms != terms:
            before = None
        if before is not None and (before.round, before.reports) == (number, reports):
            before.asked_s = now_s  # the answer was lost
            return before
        name, ranks, budget, minimum = terms
        if before is not None and before.round + 1 == number:
            made = before.planner
        else:
            made = planner.make(policy(name), ranks, budget, minimum)
            made.plan(range(ranks))
        for rank, report in enumerate(reports):
            if report is not None:
                made.observe(rank, *report)
        script = _Script(terms, made, number, reports, made.plan(range(ranks)), now_s)
        self._known.pop(key, None)
        self._known[key] = script
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return script

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """Return what is known of each script."""
        return [
            {"name": name, "by": by, "policy": one.terms[0], "round": one.round, "shares": one.shares,
             "last_s": round(now_s - one.asked_s, 3)}
            for (by, name, _), one in self._known.items()
        ]  # fmt: skip


def _read(document: w.Document) -> tuple[tuple[str, int, int, int], list[Report | None]]:
    """Return terms and reports. Raises ValueError for anything else."""
    name = str(document.get("policy", ""))
    entry = policy(name)
    if not fits(entry, "ddp") or entry.every or entry.kind == "method":
        raise ValueError(f"policy {name!r} does not divide the rounds of ranks; use time, for instance")
    numbers = [document.get(key) for key in ("ranks", "budget", "minimum")]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"ranks, budget and minimum are {numbers}; expected whole numbers")
    ranks, budget, minimum = (int(number or 0) for number in numbers)
    if not 1 <= ranks <= RANKS:
        raise ValueError(f"{ranks} ranks; expected 1 to {RANKS}")
    rows = document.get("reports")
    if not isinstance(rows, list) or len(rows) not in (0, ranks):
        raise ValueError(f"expected no reports, or one of each of {ranks} ranks")
    return (name, ranks, budget, minimum), [_report(rank, row) for rank, row in enumerate(rows)]


def _life(document: w.Document) -> str:
    """Return what a script calls itself beside its name; one of before there were lives: nothing."""
    life = document.get("life", "")
    if not isinstance(life, str) or len(life) > LIFE:
        raise ValueError(f"life is {life!r:.60}; expected at most {LIFE} characters")
    return life


def _report(rank: int, row: object) -> Report | None:
    """Return what a rank did in the round; None: nothing."""
    if row is None:
        return None
    if isinstance(row, list) and len(row) == 3:
        seconds, joules, samples = row
        is_time = _is_number(seconds) and seconds > 0
        if is_time and (joules is None or _is_number(joules)) and type(samples) is int and samples > 0:
            return float(seconds), None if joules is None else float(joules), samples
    raise ValueError(f"rank {rank} reports {row!r:.60}; expected [seconds above 0, joules or null, samples above 0]")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max  # type: ignore[operator]
