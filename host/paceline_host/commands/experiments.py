# SPDX-License-Identifier: Apache-2.0
"""`paceline experiments`: studies of many trainings, declared in a file beforehand, and what came of them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commandline import Program
from paceline.errors import DataError, SettingsError
from paceline.talk import Talk

if TYPE_CHECKING:
    from paceline_host.studies.figures import Figures

STUDIES = Path("experiments/studies")
WORK = Path("runs/studies")
MOST_JOBS = 256


def add(program: Program) -> None:
    """Register the group and its commands."""
    program.group("experiments", "studies of many trainings: list, run, show")
    listing = program.command(
        "experiments list",
        _list,
        "list the study files of a folder, and how much of each is finished",
        examples=[("paceline experiments list", f"those in {STUDIES}")],
        exits=(3, 10),
    )
    listing.add_argument("folder", nargs="?", type=Path, default=STUDIES, metavar="FOLDER", help=f"default: {STUDIES}")
    running = program.command(
        "experiments run",
        _run,
        "train what a study file declares, and write down what came of it",
        about="Each finished cell is kept at once: after Ctrl-C, or a crash, the same command goes on. A changed file"
        " trains anew only what it changes.",
        examples=[
            ("paceline experiments run experiments/studies/gpsl_scaled.toml", "as many processes as processors"),
            ("paceline experiments run studies/gpsl_full_clients.toml --device cuda", "on a GPU"),
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
    showing.add_argument("study", type=Path, metavar="FILE", help=f"TOML file; see {STUDIES}")
    for parser in (running, showing):
        parser.add_argument(
            "--out", type=Path, metavar="FOLDER", help="where NAME.md, NAME.csv and NAME.png are written"
        )
    for parser in (listing, running, showing):
        parser.add_argument(
            "--work-dir", type=Path, default=WORK, metavar="FOLDER", help=f"where finished cells are (default: {WORK})"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")


def _list(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.studies.design import cells, load_study
    from paceline_host.studies.pool import read_cells

    if not arguments.folder.is_dir():
        raise DataError(f"{arguments.folder}: there is no such folder; expected one with study files (*.toml)")
    rows: list[dict[str, object]] = []
    for path in sorted(arguments.folder.glob("*.toml")):
        try:
            study = load_study(path)
        except SettingsError as error:
            more = f" (and {len(error.errors) - 1} more)" if len(error.errors) > 1 else ""
            talk.warning(f"{path} is left out, it is no study: {error.errors[0]}{more}")
            continue
        every = cells(study)
        done = len(read_cells(arguments.work_dir / path.stem, every))
        rows.append({"file": str(path), "title": study.title, "cells": len(every), "finished": done})
    if arguments.json:
        print(json.dumps({"schema": "paceline-studies-1", "studies": rows}, indent=1))
        return 0
    for row in rows:
        print(f"{row['file']!s:48} {row['finished']:>4} of {row['cells']:>4} cells  {row['title']}")
    return 0


def _show(arguments: argparse.Namespace, talk: Talk) -> int:
    return _told(arguments, talk, _figures(arguments))


def _run(arguments: argparse.Namespace, talk: Talk) -> int:
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
    return _told(arguments, talk, _figures(arguments))


def _quiet(text: str) -> None:
    pass


def _figures(arguments: argparse.Namespace) -> Figures:
    from paceline_host.studies.design import cells, load_study
    from paceline_host.studies.figures import figures
    from paceline_host.studies.pool import read_cells

    study = load_study(arguments.study)
    return figures(study, read_cells(arguments.work_dir / arguments.study.stem, cells(study)))


def _told(arguments: argparse.Namespace, talk: Talk, made: Figures) -> int:
    """Print the figures, and write them where that was asked for."""
    from paceline_host.studies.page import as_json, markdown, write

    name = arguments.study.stem
    if arguments.out:
        from paceline_host.plot_study import draw_study

        draw: Callable[[Path], object] = lambda path: draw_study(made, path)  # noqa: E731
        write(made, name, arguments.out, draw)
        talk.info(f"written: {arguments.out / name}.md, .csv and .png")
    print(
        json.dumps(as_json(made, name), indent=1) if arguments.json else markdown(made, name, picture=False), end="\n"
    )
    return 0
