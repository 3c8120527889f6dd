# SPDX-License-Identifier: Apache-2.0
"""`paceline runs` and `paceline report`: what was run, and what came out, read from the journals."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commandline import Program
from paceline.errors import StorageError
from paceline.talk import Talk
from paceline_host.commands import operate

if TYPE_CHECKING:
    from paceline_host.target import Target


def add_runs(program: Program) -> None:
    """Register `runs`."""
    parser = program.command(
        "runs",
        _runs,
        "list what was run",
        about="One line a run: its folder, policy, state, rounds done and when it began.",
        examples=[("paceline runs", "all runs below runs/"), ("paceline runs --json", "the same for a program")],
        exits=(3, 4, 5, 6, 10),
    )
    parser.add_argument("--runs-dir", type=Path, metavar="FOLDER", help="where they are (default: runs)")
    operate.add_host(parser)
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def add_report(program: Program) -> None:
    """Register `report`."""
    parser = program.command(
        "report",
        _report,
        "table, picture and page of a run or comparison",
        about="All is read from the journals; the picture and the page (report.html) are written beside them.",
        examples=[
            ("paceline report runs/demo-001", "the comparison's table again"),
            ("paceline report runs/demo-001 --target 0.9", "and when, and with how many joules, 90 % were reached"),
            ("paceline report runs/era5-001 --target loss=0.1", "the same where a task has no accuracy"),
            ("paceline report runs/demo-001/time --json", "one run of it, for a program"),
        ],
        exits=(10,),
    )
    parser.add_argument("run", type=Path, metavar="FOLDER", help="of a comparison or of one run")
    parser.add_argument(
        "--target", type=_target, metavar="ACCURACY|loss=X", help="time and joules until it was reached: 0.9, loss=0.1"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _target(text: str) -> Target:
    """Return a target; raises ArgumentTypeError."""
    from paceline_host.target import Target

    return Target.read(text)


def print_report(folder: Path, as_json: bool, talk: Talk, target: Target | None = None) -> None:
    """Print the report of a folder, and write its picture, page and JSON. `target`: for two rows more."""
    from paceline_host.html import write_pages
    from paceline_host.plot import draw
    from paceline_host.report import load_report, render

    report = replace(load_report(folder), target=target)
    print(json.dumps(report.as_json(), indent=1) if as_json else render(report))
    sys.stdout.flush()
    try:
        picture = draw(report, folder / "comparison.png")
        (folder / "report.json").write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
        talk.info(f"runs in {folder}, picture in {picture}")
        page = write_pages(report, folder)
    except (OSError, StorageError) as error:  # what was asked for is printed; a folder may be for reading only
        why = f"{folder}: {error.strerror}" if isinstance(error, OSError) else str(error)
        talk.warning(f"no picture and no page: {why}", event="storage")
        return
    talk.info(f"this table again: paceline report {folder}; to look at: {page}")


def _runs(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.runs import list_runs

    runs_dir = arguments.runs_dir or Path("runs")
    rows = operate.runs(arguments) if arguments.host else list_runs(runs_dir)
    if arguments.json:
        print(json.dumps({"schema": "paceline-runs-1", "runs": rows}, indent=1))
    elif not rows:
        talk.info(f"no runs in {runs_dir}; begin with: paceline run experiments/demo.toml")
    for row in () if arguments.json else rows:
        print(
            f"{row['run']:40} {row['policy']:12} {row['state']:10} "
            f"round {row['rounds_done']}/{row['rounds']}  {row['started']}"
        )
    return 0


def _report(arguments: argparse.Namespace, talk: Talk) -> int:
    print_report(arguments.run, arguments.json, talk, arguments.target)
    return 0
