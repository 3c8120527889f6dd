# SPDX-License-Identifier: Apache-2.0
"""`paceline explain` and `paceline whatif`: why a round was divided as it was, and what others would have done."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register the commands."""
    parser = program.command(
        "explain",
        _explain,
        "why a board got its samples in a round",
        about="The decision is made again from the journal: costs, smoothing, medians, dead-band and limits.",
        examples=[
            ("paceline explain runs/demo-001/time --round 3", "all boards"),
            ("paceline explain runs/demo-001/time --round 3 --board milk-v-mars", "one of them"),
        ],
        exits=(4, 9, 10),
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of one run")
    parser.add_argument("--round", type=int, required=True, metavar="R", help="the round, from 1")
    parser.add_argument("--board", metavar="NAME", help="of one board only")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser = program.command(
        "whatif",
        _whatif,
        "a recorded run under other policies",
        about="Measured costs, other shares. A model: no board runs, and transfers are left out.",
        examples=[
            ("paceline whatif runs/demo-001/equal --policy time --policy frontier:energy", "two others"),
            ("paceline whatif runs/demo-001/time --policy frontier:deadline=1.1x --json", "for a program"),
        ],
        exits=(3, 4, 9, 10),
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of one run")
    parser.add_argument("--policy", action="append", required=True, metavar="P", help="a policy; may be given again")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _explain(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.explain import explain, one_run, words

    facts = explain(one_run(arguments.run), arguments.round)
    lines = words(facts, arguments.board)  # also refuses a board that was not there
    if arguments.json:
        boards = [entry for entry in facts["boards"] if arguments.board in (None, entry["board"])]
        print(json.dumps({**facts, "boards": boards}, indent=1))
    else:
        print("\n".join(lines))
    return 0


def _whatif(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.errors import SettingsError
    from paceline.policies import METHODS, policy
    from paceline_host.explain import one_run
    from paceline_host.whatif import table, whatif

    faults = []
    for name in arguments.policy:
        try:
            policy(name)
        except ValueError as error:
            faults.append(f"--policy: {error}")
        if name in METHODS:
            faults.append(f"--policy: {name} is a method of split learning, which divides no samples")
    if faults:
        raise SettingsError(faults)
    found = whatif(one_run(arguments.run), arguments.policy)
    print(json.dumps(found, indent=1) if arguments.json else table(found))
    return 0
