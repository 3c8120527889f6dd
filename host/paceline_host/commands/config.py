# SPDX-License-Identifier: Apache-2.0
"""`paceline config show`: what an experiment file comes to, and where each value is from."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk
from paceline_host.commands.run import add_set


def add(program: Program) -> None:
    """Register the group and its command."""
    program.group("config", "what a configuration comes to: show")
    parser = program.command(
        "config show",
        _show,
        "print the effective settings of an experiment file",
        about="Defaults are filled in, those of the task too. What is printed is an experiment file again; the waits"
        " that follow from run.patience_s stand below it in comments.",
        examples=[
            ("paceline config show experiments/demo.toml", "all settings, and the waits that follow from them"),
            ("paceline config show experiments/demo.toml --origin", "the line, or default, each is from"),
            ("paceline config show experiments/demo.toml --set run.patience_s=5 --json", "for a program"),
        ],
        exits=(3,),
    )
    parser.add_argument("experiment", type=Path, metavar="FILE", help="TOML file; see experiments/")
    add_set(parser)
    parser.add_argument("--origin", action="store_true", help="tell where each value comes from")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _show(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline import show
    from paceline_host.experiment import effective, load_with_sheet
    from paceline_host.patience import Patience

    experiment, sheet = load_with_sheet(arguments.experiment, arguments.set)
    waits = Patience(experiment.run.patience_s).waits
    settings = effective(experiment)
    if arguments.json:
        print(show.as_json(settings, sheet, arguments.experiment, origin=arguments.origin, waits=waits))
    else:
        waits_are = "seconds that follow from run.patience_s"
        print(show.as_toml(settings, sheet, origin=arguments.origin, waits=waits, waits_are=waits_are), end="")
    return 0
