# SPDX-License-Identifier: Apache-2.0
"""`paceline config show`: what an experiment file or a host.toml comes to, and where each value is from."""

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
        "print the effective settings of an experiment file or a host.toml",
        about="Defaults are filled in, those of the task too. What is printed is such a file again; the waits that"
        " follow from the patience stand below it in comments.",
        examples=[
            ("paceline config show experiments/demo.toml", "all settings, and the waits that follow from them"),
            ("paceline config show experiments/demo.toml --origin", "the line, or default, each is from"),
            ("paceline config show experiments/demo.toml --set run.patience_s=5 --json", "for a program"),
            ("paceline config show /etc/paceline/host.toml --origin", "the same of a daemon"),
        ],
        exits=(3,),
    )
    parser.add_argument("experiment", type=Path, metavar="FILE", help="an experiment file (experiments/), or host.toml")
    add_set(parser)
    parser.add_argument("--origin", action="store_true", help="tell where each value comes from")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _show(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline import show
    from paceline_host.experiment import effective, load_with_sheet
    from paceline_host.host_config import host_with_sheet, is_host_file
    from paceline_host.patience import Patience

    settings: object
    if is_host_file(arguments.experiment) and not arguments.set:
        settings, sheet = host_with_sheet(arguments.experiment)
        patience_s, knob = settings.patience_s, "patience_s"
    else:
        experiment, sheet = load_with_sheet(arguments.experiment, arguments.set, keys_needed=False)
        patience_s, knob = experiment.run.patience_s, "run.patience_s"
        settings = effective(experiment)
    waits = Patience(patience_s).waits
    if arguments.json:
        print(show.as_json(settings, sheet, arguments.experiment, origin=arguments.origin, waits=waits))
    else:
        waits_are = f"seconds that follow from {knob}"
        print(show.as_toml(settings, sheet, origin=arguments.origin, waits=waits, waits_are=waits_are), end="")
    return 0
