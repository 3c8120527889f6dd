# SPDX-License-Identifier: Apache-2.0
"""What was run: the run folders below a directory, read from their journals. Writes nothing."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import StorageError
from paceline_host.journal import JOURNAL, is_held
from paceline_host.ledger import Ledger


def run_folders(folder: Path) -> list[Path]:
    """Return the runs of a comparison's folder (or the one run that the folder is), oldest first.

    Raises StorageError when there are none.
    """
    if (folder / JOURNAL).exists():
        return [folder]
    found = sorted(folder.glob(f"*/{JOURNAL}"), key=lambda path: path.stat().st_ctime_ns)
    if not found:
        raise StorageError(f"{folder}: no run in it; expected a folder that `paceline runs` lists")
    return [path.parent for path in found]


def list_runs(runs_dir: Path) -> list[dict[str, object]]:
    """Return a row for each run in `runs_dir`: run, policy, state, rounds_done, rounds, started, folder."""
    rows: list[dict[str, object]] = []
    for path in sorted(runs_dir.glob(f"*/*/{JOURNAL}")):
        try:
            with Ledger(path.parent) as ledger:
                run = ledger.run
                done = sum(1 for round_ in ledger.rounds() if round_.closed_s is not None)
        except StorageError:  # one that cannot be read hides no other
            name = f"{path.parent.parent.name}/{path.parent.name}"
            known = {"run": name, "policy": path.parent.name, "state": "damaged", "rounds_done": 0, "rounds": 0}
            rows.append({**known, "started": "", "folder": str(path.parent)})
            continue
        alive = "running" if is_held(path.parent) else "unfinished"
        state = alive if run.ended is None else "finished" if run.ended.get("ok") else "stopped"
        rows.append(
            {
                "run": run.run_id,
                "policy": run.policy,
                "state": state,
                "rounds_done": done,
                "rounds": run.rounds,
                "started": run.started,
                "folder": str(path.parent),
            }
        )
    return rows
