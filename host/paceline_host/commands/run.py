# SPDX-License-Identifier: Apache-2.0
"""`paceline run` and `paceline resume`: an experiment over its fleet."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commandline import Program
from paceline.errors import DamagedError, StorageError
from paceline.talk import Talk
from paceline_host.commands import operate

if TYPE_CHECKING:
    from paceline_host.comparison import Comparison


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "run",
        _run,
        "run an experiment file",
        about="Each of its policies is a run of its own over the same fleet; the comparison is printed at the end."
        " Ctrl-C once: end in order, what was finished stays; twice: now. With --host a daemon runs it, and Ctrl-C"
        " only ends the watch.",
        examples=[
            ("paceline run experiments/demo.toml", "run it over its fleet, print the comparison"),
            ("paceline run experiments/demo.toml --set run.rounds=2 --json", "with other settings, for a program"),
            ("paceline run experiments/demo.toml --log-json 2>run.log", "talk for a program, too"),
            ("paceline run my.toml --host operator.toml", "let a host daemon run it, and watch"),
        ],
        exits=(3, 4, 5, 6, 9, 10),
    )
    parser.add_argument("experiment", type=Path, metavar="FILE", help="TOML file; see experiments/")
    parser.add_argument(
        "--runs-dir",
        type=Path,
        metavar="FOLDER",
        help="where run folders are made (default: runs)",
    )
    add_set(parser)
    add_replay(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")
    operate.add_host(parser)
    parser.add_argument("--detach", action="store_true", help="with --host: do not watch, print the ticket")


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add the option that overrides a key of an experiment file."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="override a key; VALUE is TOML"
    )


def add_resume(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "resume",
        _resume,
        "go on with what was interrupted",
        about="Goes on from the journal, wherever the run was interrupted or its host killed: what was counted stays"
        " counted, the open round is finished, runs of the comparison that had not begun are begun. The folder's"
        " own experiment.toml says how.",
        examples=[
            ("paceline resume runs/demo-001", "every run of the comparison that is not finished"),
            ("paceline resume runs/demo-001/time", "that run alone"),
            ("paceline resume demo-001 --host /etc/paceline", "a daemon's experiment that was stopped or has failed"),
        ],
        exits=(3, 4, 5, 6, 9, 10),
    )
    parser.add_argument(
        "run", type=Path, metavar="FOLDER", help="of a comparison, or of one run in it; with --host a ticket"
    )
    operate.add_host(parser)
    parser.add_argument("--detach", action="store_true", help="with --host: do not watch it")
    add_replay(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the option that makes adaptive policies repeatable."""
    parser.add_argument(
        "--replay-reports",
        type=Path,
        metavar="FOLDER",
        help="plan from the seconds and joules that this finished comparison of the same experiment measured, instead"
        " of from this run's own: the same plans, and so the same model, bit for bit",
    )


def _run(arguments: argparse.Namespace, talk: Talk) -> int:
    if arguments.host or arguments.detach:
        return operate.submit(arguments, talk)
    from paceline.keys import read_boards
    from paceline_host.comparison import Comparison, new_folder
    from paceline_host.experiment import load_experiment
    from paceline_host.watch import watcher

    experiment = load_experiment(arguments.experiment, arguments.set)
    watch = watcher(experiment, talk, quiet=arguments.quiet)
    comparison = Comparison(experiment, watch, arguments.replay_reports)
    if comparison.profile is None:
        read_boards(Path(experiment.fleet.keys) / "boards")  # here a faulty file is a mistake, and told before all else
    folder = new_folder(arguments.runs_dir or Path("runs"), arguments.experiment.stem)
    return _work(comparison, folder, arguments.json, talk)


def _resume(arguments: argparse.Namespace, talk: Talk) -> int:
    if arguments.host or arguments.detach:
        return operate.resume(arguments, talk)
    from paceline_host.commands.report import print_report
    from paceline_host.comparison import Comparison, load_folder
    from paceline_host.watch import watcher

    folder, experiment = load_folder(arguments.run)
    watch = watcher(experiment, talk, quiet=arguments.quiet)
    comparison = Comparison(experiment, watch, arguments.replay_reports)
    if not comparison.left(folder):
        talk(f"{folder}: every run is finished, nothing is left to do")
        print_report(folder, arguments.json, talk)
        return 0
    return _work(comparison, folder, arguments.json, talk)


def _work(comparison: Comparison, folder: Path, as_json: bool, talk: Talk) -> int:
    """Work through a comparison, print its report; Ctrl-C ends it in order, a second one at once."""
    from paceline_host.commands.report import print_report
    from paceline_host.embedded import run_embedded

    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:  # twice: now; the fleet dies with its parent
            sys.exit(128 + number)
        comparison.stop("interrupted")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal that is closed ends a run in order, too
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, interrupt)
    try:
        complete = run_embedded(comparison, folder, talk)
    except DamagedError:
        raise
    except StorageError as error:
        if not any(folder.glob("*/journal.sqlite")):
            raise
        raise StorageError(f"{error}; then go on with: paceline resume {folder}") from error
    if interrupts and not any(folder.glob("*/journal.sqlite")):
        talk.warning(
            f"interrupted before the first run began; to begin it: paceline resume {folder}", event="interrupted"
        )
        return 128 + interrupts[0]
    print_report(folder, as_json, talk)
    if interrupts:
        talk.warning(f"interrupted; to go on: paceline resume {folder}", event="interrupted")
        return 128 + interrupts[0]
    return 0 if complete else 9
