# SPDX-License-Identifier: Apache-2.0
"""`paceline verify`: does the fleet compute what one process would?"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk
from paceline_host.commands.run import add_set


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "verify",
        _verify,
        "compare the fleet's gradient with one process's",
        about="One step over the experiment's fleet with unequal batches, in float64 and in float32, against the"
        " gradient of the mean over all its samples in one process. Prints the largest difference; a wrong scaling"
        " is exit 9.",
        examples=[
            ("paceline verify ddp experiments/ddp.toml", "with the model of that experiment"),
            ("paceline verify ddp my.toml --set fleet.profile=eleven-boards --json", "for a program"),
        ],
        exits=(3, 4, 5, 9, 10),
    )
    parser.add_argument("what", choices=("ddp",), help="the regime")
    parser.add_argument("experiment", type=Path, metavar="FILE", help="TOML file; see experiments/")
    add_set(parser)
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def _verify(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.ddp.proof import ALLOWED, verify
    from paceline_host.experiment import load_experiment

    experiment = load_experiment(arguments.experiment, arguments.set)
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as folder:
        found = [verify(experiment, precision, Path(folder), talk) for precision in ALLOWED]
    if arguments.json:
        rows = [{**asdict(row), "allowed": ALLOWED[row.precision], "ok": row.ok} for row in found]
        print(json.dumps({"schema": "paceline-verify-1", "differences": rows}, indent=1))
    else:
        for row in found:
            print(
                f"{row.precision}: largest difference {row.largest:.3g}, of the largest component "
                f"{row.largest / row.gradient:.3g} (allowed {ALLOWED[row.precision]:.0e}); {row.samples} samples over "
                f"{len(row.shares)} ranks, {min(row.shares)} to {max(row.shares)}: {'right' if row.ok else 'WRONG'}"
            )
    if all(row.ok for row in found):
        return 0
    talk.error("the fleet's gradient is not that of the mean over all samples", event="verify")
    return 9
