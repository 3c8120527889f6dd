# SPDX-License-Identifier: Apache-2.0
"""A run's journal as a status document, in the form of a host's own: where it stands, by what is on disk. Reads only.

A journal knows what was planned and counted, not who is connected: whom a round waits for are the boards whose slices
are not counted yet.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline_host.boards import mean_w
from paceline_host.details import happenings
from paceline_host.journal import JOURNAL, is_held
from paceline_host.ledger import Ledger
from paceline_host.records import Contribution, Energy, Round, as_reported
from paceline_host.runs import run_folders

Row = dict[str, Any]

EVENTS = 50  # the last ones; all stand in the report


def newest(folder: Path) -> Path:
    """Return the run that was written last of a comparison's folder, or the run that it is. Raises StorageError."""
    return max(run_folders(folder), key=_written_s)


def run_status(folder: Path) -> Row:
    """Return where a run stands. Raises StorageError."""
    with Ledger(folder) as ledger:
        run, rounds = ledger.run, ledger.rounds()
        last = rounds[-1] if rounds else None
        number = last.round if last is not None else 0
        slices, rows = ledger.slices(number), ledger.contributions(number)
        before = ledger.contributions(number - 1, "accepted") if number > 1 else []
        boards, energy, told = ledger.boards(), ledger.energy(), happenings(ledger)
    counted = {row.slice for row in rows if row.verdict == "accepted"}
    replaced = {item.redealt_from for item in slices}
    live = [item for item in slices if item.index not in replaced]
    owing = {item.board for item in live if item.index not in counted}
    costs = as_reported([*before, *(row for row in rows if row.verdict == "accepted")])
    names = {board.board: board.name for board in boards}
    table = []
    for board in boards:
        mine = [item for item in live if item.board == board.board]
        share, done = (sum(i.samples for i in part) for part in (mine, [i for i in mine if i.index in counted]))
        table.append(
            {
                "name": board.name, "state": "", "doing": _doing(share, board.board in owing, last), "version": "",
                "share": share, "done": done, **_costs(costs, board.board),
                **_joules([row for row in energy if row.board == board.board]),
                "energy_source": board.energy_source or "",
            }
        )  # fmt: skip
    ago_s = max(0.0, time.time() - _written_s(folder))  # of files on this machine: one clock
    now_s = max([*(each.at_s for each in told), *(row.at_s for row in rows)], default=0.0)
    awaited = sorted(owing) if last is not None and last.closed_s is None else []
    return {
        "schema": "paceline-run-status-1",
        "active": {
            "ticket": run.run_id, "policy": run.policy, "round": number, "rounds": run.rounds,
            "phase": _phase(folder, last, run.ended), "over": run.ended is not None, "written_s": round(ago_s, 3),
            "waits": [
                {"who": "the run", "for": names[board], "since_s": None, "until_s": None, "limit": "its host knows"}
                for board in awaited
            ],
        },
        "boards": table,
        "events": [
            {
                "ago_s": round(max(0.0, now_s - each.at_s) + ago_s, 3), "kind": each.kind, "text": each.text,
                "board": each.board or "",
            }
            for each in told[-EVENTS:]
        ],
    }  # fmt: skip


def _phase(folder: Path, last: Round | None, ended: Any) -> str:
    if ended is not None:
        return "finished" if ended.get("ok") else f"ended: {ended.get('reason')}"
    if not is_held(folder):
        return "no process works on it; paceline resume goes on with it"
    if last is None:
        return "starting"
    return "working" if last.closed_s is None else "between rounds"


def _doing(share: int, owes: bool, last: Round | None) -> str:
    if not share or last is None:
        return "has no share of this round"
    return "is waited for" if owes and last.closed_s is None else "is done with the round"


def _costs(rows: Sequence[Contribution], board: int) -> Row:
    """Return what a board's last counted work took, a sample."""
    row = next((row for row in reversed(rows) if row.board == board and row.samples), None)
    if row is None:
        return {"seconds_per_sample": None, "energy_per_sample_j": None}
    joules = None if row.compute_uj is None else row.compute_uj * 1e-6 / row.samples
    return {"seconds_per_sample": row.compute_us * 1e-6 / row.samples, "energy_per_sample_j": joules}


def _joules(rows: Sequence[Energy]) -> Row:
    """Return a board's joules over its sessions, and the mean power between its last two words."""
    sessions: dict[str, list[Energy]] = defaultdict(list)
    for row in rows:
        sessions[row.session].append(row)
    totals = [session[-1].total_uj for session in sessions.values()]
    known = [total for total in totals if total is not None]
    latest = max(sessions.values(), key=lambda session: session[-1].round, default=[])
    words = [(row.total_uj, row.span_us) for row in latest[-2:]]
    return {
        "energy_j": sum(known) * 1e-6 if known and len(known) == len(totals) else None,
        "power_w": mean_w(*[(0, 0), *words][-2:]) if words else None,
    }


def _written_s(folder: Path) -> float:
    """Return when a run's journal was written last, on this machine's clock."""
    times = [0.0]
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)
