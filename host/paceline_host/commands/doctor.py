# SPDX-License-Identifier: Apache-2.0
"""`paceline doctor`: is this machine fit to be a host?"""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "doctor",
        _doctor,
        "tell what of this host is as it must be, and what to do where it is not",
        about="Nothing is changed. With --config it also looks at host.toml and what that names: keys, disk, runs and"
        " port. It asks the daemon about its boards. The status is that of the first bad row; warnings leave it 0.",
        examples=[
            ("paceline doctor --config /etc/paceline/host.toml", "all of it"),
            ("paceline doctor --json", "for a program, without a host.toml"),
        ],
        exits=(3, 4, 5, 10),
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="host.toml of the daemon on this machine")
    parser.add_argument("--host", metavar="WHERE", help="operator.toml to ask the daemon with, or its folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _doctor(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.checkup import tell
    from paceline_host.doctor import examine

    return tell(examine(arguments.config, arguments.host), as_json=arguments.json)
