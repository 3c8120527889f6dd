# SPDX-License-Identifier: Apache-2.0
"""`paceline experiments`: studies of many trainings and tables of many runs, declared in a file beforehand, and what
came of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.commandline import Program
from paceline.errors import DataError, SettingsError
from paceline.talk import Talk

if TYPE_CHECKING:
    from paceline_host.studies.figures import Figures
    from paceline_host.tables.design import Cell
    from paceline_host.tables.figures import Figures as TableFigures

STUDIES, TABLES = Path("experiments/studies"), Path("experiments/tables")
WORK = Path("runs/studies")
MOST_JOBS = 256


def add(program: Program) -> None:
    """Register the group and its commands."""
    program.group("experiments", "studies of many trainings, tables of many runs: list, run, show, table")
    listing = program.command(
        "experiments list",
        _list,
        "list the study and table files of a folder, and how much of each is finished",
        examples=[("paceline experiments list", f"those in {STUDIES} and {TABLES}")],
        exits=(3, 10),
    )
    listing.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=f"default: {STUDIES}, {TABLES}")
    running = program.command(
        "experiments run",
        _run,
        "train or run what a study or table file declares, and write down what came of it",
        about="Each finished cell is kept at once: after Ctrl-C, or a crash, the same command goes on. A changed file"
        " trains anew only what it changes.",
        examples=[
            ("paceline experiments run experiments/studies/gpsl_scaled.toml", "as many processes as processors"),
            ("paceline experiments run studies/gpsl_full_clients.toml --device cuda", "on a GPU"),
            ("paceline experiments run experiments/tables/papers.toml --out docs/results", "the papers' tables"),
        ],
        exits=(3, 9, 10),
    )
    running.add_argument("study", type=Path, metavar="FILE", help=f"TOML file; see {STUDIES}")
    running.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (default: processors; cuda: 1)")
    running.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu, cuda, cuda:1 (default: cpu)")
    running.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")
    showing = program.command(
        "experiments show",
        _show,
        "show what has come of a study so far, finished or not",
        examples=[
            ("paceline experiments show experiments/studies/gpsl_scaled.toml", "the tables, as Markdown"),
            ("paceline experiments show experiments/studies/gpsl_scaled.toml --out pages", "write them anew"),
        ],
        exits=(3, 10),
    )
    table = program.command(
        "experiments table",
        _show,
        "the same as show, for a table of runs",
        examples=[("paceline experiments table experiments/tables/papers.toml", "what has come of it so far")],
        exits=(3, 10),
    )
    table.add_argument("study", type=Path, metavar="FILE", help=f"TOML file; see {TABLES}")
    showing.add_argument("study", type=Path, metavar="FILE", help=f"TOML file; see {STUDIES}")
    for parser in (running, showing, table):
        parser.add_argument(
            "--out", type=Path, metavar="FOLDER", help="where NAME.md, NAME.csv and NAME.png are written"
        )
    for parser in (listing, running, showing, table):
        parser.add_argument(
            "--work-dir", type=Path, default=WORK, metavar="FOLDER", help=f"where finished cells are (default: {WORK})"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")


def _is_table(path: Path) -> bool:
    """Tell whether a file declares runs. Raises SettingsError where it is no TOML file, or is of neither kind."""
    from paceline.sheet import Sheet

    sheet = Sheet.read(path, path.name)
    kind = sheet.at(("kind",))
    if kind not in ("split", "runs"):
        found = "is missing" if kind is None else f"= {kind!r}"
        expected = 'expected "split" (trainings in one process, a study) or "runs" (runs of experiment files, a table)'
        raise SettingsError([f"{sheet.place(('kind',))}: kind {found}: {expected}"])
    return kind == "runs"


def _list(arguments: argparse.Namespace, talk: Talk) -> int:
    if arguments.folder is not None and not arguments.folder.is_dir():
        raise DataError(f"{arguments.folder}: there is no such folder; expected one with study files (*.toml)")
    folders = (arguments.folder,) if arguments.folder is not None else (STUDIES, TABLES)
    rows: list[dict[str, object]] = []
    paths = [path for folder in folders for path in sorted(folder.glob("*.toml"))]
    if not paths:
        talk.warning(f"no file *.toml in {' nor in '.join(map(str, folders))}: name the folder that holds them")
    for path in paths:
        try:
            title, planned, finished = _counted(path, arguments.work_dir)
        except SettingsError as error:
            more = f" (and {len(error.errors) - 1} more)" if len(error.errors) > 1 else ""
            talk.warning(f"{path} is left out, it is no study and no table: {error.errors[0]}{more}")
            continue
        rows.append({"file": str(path), "title": title, "cells": planned, "finished": finished})
    if arguments.json:
        print(json.dumps({"schema": "paceline-studies-1", "studies": rows}, indent=1))
        return 0
    for row in rows:
        print(f"{row['file']!s:48} {row['finished']:>4} of {row['cells']:>4} cells  {row['title']}")
    return 0


def _counted(path: Path, work_dir: Path) -> tuple[str, int, int]:
    """Return a file's title, its cells and how many of them are finished."""
    if _is_table(path):
        made = _table_figures(path, work_dir)
        return made.table.title, made.planned, made.finished
    from paceline_host.studies.design import cells, load_study
    from paceline_host.studies.pool import read_cells

    study = load_study(path)
    every = cells(study)
    return study.title, len(every), len(read_cells(work_dir / path.stem, every))


def _show(arguments: argparse.Namespace, talk: Talk) -> int:
    return _told(arguments, talk)


def _run(arguments: argparse.Namespace, talk: Talk) -> int:
    status = _run_table(arguments, talk) if _is_table(arguments.study) else _train(arguments, talk)
    return status or _told(arguments, talk)


def _train(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.studies.design import cells, load_study
    from paceline_host.studies.pool import read_cells, train_cells
    from paceline_host.studies.progress import Progress

    processors = len(os.sched_getaffinity(0))
    jobs = arguments.jobs or (processors if arguments.device == "cpu" else 1)
    if not 1 <= jobs <= MOST_JOBS:
        raise DataError(f"--jobs {arguments.jobs}: expected a whole number from 1 to {MOST_JOBS}")
    study = load_study(arguments.study)
    every = cells(study)
    folder = arguments.work_dir / arguments.study.stem
    found = read_cells(folder, every)
    left = [cell for cell in every if cell.key() not in found]
    progress = Progress(every, found, min(jobs, max(1, len(left))), _quiet if arguments.quiet else talk.info)
    try:
        train_cells(left, folder, jobs=jobs, device=arguments.device, told=progress.over, tick=progress.tick)
    except KeyboardInterrupt:
        talk.warning(
            f"interrupted: {progress.finished} of {len(every)} cells are kept in {folder}; the same command goes on"
        )
        return 130
    return 0


def _run_table(arguments: argparse.Namespace, talk: Talk) -> int:
    """Run what is not finished, one comparison at a time: each has a fleet that wants the processors."""
    from paceline_host.tables.run import run_cell

    if arguments.jobs or arguments.device != "cpu":
        raise DataError("--jobs and --device are for studies; a table's runs follow one another, on their own fleets")
    _, every, found = _table_cells(arguments.study, arguments.work_dir)
    folder = arguments.work_dir / arguments.study.stem
    stops: list[Callable[[str], None]] = []
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:  # twice: now; the fleet dies with its parent
            sys.exit(128 + number)
        for stop in stops[-1:]:
            stop("interrupted")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, cell in enumerate(every, 1):
            if cell.key() in found or interrupts:
                continue
            if not arguments.quiet:
                talk.info(f"{number} of {len(every)}: {cell.row}, seed {cell.seed}")
            run_cell(cell, folder, talk, stops.append)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupts:
        talk.warning(f"interrupted: what is finished is kept in {folder}; the same command goes on")
        return 128 + interrupts[0]
    return 0


def _quiet(text: str) -> None:
    pass


def _figures(arguments: argparse.Namespace) -> Figures:
    from paceline_host.studies.design import cells, load_study
    from paceline_host.studies.figures import figures
    from paceline_host.studies.pool import read_cells

    study = load_study(arguments.study)
    return figures(study, read_cells(arguments.work_dir / arguments.study.stem, cells(study)))


def _table_cells(path: Path, work_dir: Path) -> tuple[Any, list[Cell], Mapping[str, Mapping[str, Any]]]:
    """Return a table, its cells and the records of those that are finished."""
    from paceline_host.tables.design import cells, load_table_file
    from paceline_host.tables.run import read_records

    table = load_table_file(path)
    every = cells(table, path)
    return table, every, read_records(work_dir / path.stem, every)


def _table_figures(path: Path, work_dir: Path) -> TableFigures:
    from paceline_host.tables.figures import figures

    return figures(*_table_cells(path, work_dir))


def _told(arguments: argparse.Namespace, talk: Talk) -> int:
    """Print the figures, and write them where that was asked for."""
    from paceline_host.studies.page import write

    name, out = arguments.study.stem, arguments.out
    if _is_table(arguments.study):
        from paceline_host.plot_table import draw_table
        from paceline_host.tables import page

        made = _table_figures(arguments.study, arguments.work_dir)
        shown, printed = page.markdown(made, name), page.markdown(made, name, picture=False)
        rows, document = page.as_csv(made), page.as_json(made, name)
        draw: Callable[[Path], object] = lambda path: draw_table(made, path)  # noqa: E731
    else:
        from paceline_host.plot_study import draw_study
        from paceline_host.studies import page as pages

        study = _figures(arguments)
        shown, printed = pages.markdown(study, name), pages.markdown(study, name, picture=False)
        rows, document = pages.as_csv(study), pages.as_json(study, name)
        draw = lambda path: draw_study(study, path)  # noqa: E731
    if out:
        write(shown, rows, name, out, draw)
        talk.info(f"written: {out / name}.md, .csv and .png")
    print(json.dumps(document, indent=1) if arguments.json else printed)
    return 0
