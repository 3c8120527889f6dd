# SPDX-License-Identifier: Apache-2.0
"""Run folders for the tests of the page: a clean comparison, and one in which everything went wrong that may."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from paceline_host.journal import Journal
from paceline_host.profile import BoardProfile
from paceline_host.records import Contribution, Energy, Event, Round
from paceline_host.regimes.pma import Pma

from .run_folder import Story, model_hash, run_row

NAMES = ("pi-4", "jupiter", "mars")
SCRIPT = "<script>alert('x')</script>"
HOSTILE = f'{SCRIPT}"><img src=x onerror=alert(1)>&\x00\u202e</pre></style><!--'
DECLARED = {
    "profile": "three-boards",
    "reference_seconds_per_sample": 0.01,
    "boards": [
        asdict(BoardProfile(name, speed, 1.0, 5.0, "riscv64"))
        for name, speed in zip(NAMES, (1.0, 0.33, 0.33), strict=True)
    ],
}


def compared(folder: Path, **changes: object) -> Path:
    """Tell `equal` and, changed, `time`, both with a declared pace."""
    facts = {"declared": DECLARED, "versions": {"paceline": "0.0.1", "python": "3.12.1"}, "machine": {"cpu_count": 96}}
    row = run_row(run_id=f"{folder.name}/equal", policy="equal", started="2026-01-01T00:00:00Z", **facts)
    Story(run=row, shares=((34, 33, 33),) * 3, names=NAMES).tell(folder / "equal")
    row = run_row(run_id=f"{folder.name}/time", policy="time", started="2026-01-01T00:01:00Z", **facts)
    replace(Story(run=row, names=NAMES), **changes).tell(folder / "time")  # type: ignore[arg-type]
    return folder


def troubled(folder: Path) -> Path:
    """Tell a run with hostile text in every field that a peer or a user may fill, a lost board and a refused update."""
    row = run_row(
        run_id=f"{folder.name}/{SCRIPT}", policy="time", task=HOSTILE, data_label=HOSTILE, options={HOSTILE: HOSTILE},
        machine={"system": HOSTILE}, versions={HOSTILE: HOSTILE}, started=HOSTILE, rounds=4,
    )  # fmt: skip
    names = (SCRIPT, HOSTILE, "n" * 64)
    Story(run=row, names=names, active_w=(5.0, None, 3.0), source=HOSTILE).tell(folder, ended=False)
    with Journal.open(folder) as journal:
        journal.add_plan(
            Round(4, 9.0, model_hash(3), allocate_s=1e-5), Pma(70, 100).plan(4, [(0, 40), (1, 30), (2, 30)])
        )
        said = ((0, "lost", "no sign of life for 30 s"), (1, "rejected", HOSTILE), (2, "stale", ""))
        for board, verdict, reason in said:
            row_ = Contribution(4, board, 0, 400 + board, board, verdict, 10.0 + board, reason)  # type: ignore[arg-type]
            assert journal.add_contributions([(row_, None)]) == [True]
        journal.add_event(Event(10.0, "lost", HOSTILE, round=4, board=0))
        journal.add_event(Event(10.5, HOSTILE, {"why": HOSTILE, "half": "\ud800"}, board=1))
        journal.set_energy(Energy(3, 2, "s1", 1, 0, 0, 0, 0, 1, 5, 5, 0, HOSTILE))
        journal.end(ok=False, reason=HOSTILE, at_s=12.0)
    (folder / "run.toml").write_text(f'name = "{HOSTILE}"\n', encoding="utf-8")
    return folder
