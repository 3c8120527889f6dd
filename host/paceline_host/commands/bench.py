# SPDX-License-Identifier: Apache-2.0
"""`paceline bench`: what paceline itself costs on this machine."""

from __future__ import annotations

import argparse
import json

from paceline.commandline import Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "bench",
        _bench,
        "what paceline itself costs: allocate, sampler, agent, round, transfer",
        about="Each figure with its median, range and number of repeats.",
        examples=[
            ("paceline bench", "all benchmarks, in three minutes"),
            ("paceline bench allocate --json", "one of them, for a program"),
            ("paceline bench sampler", "ns a draw, beside numpy's ways and the machine's limit, and the ratios"),
            ("paceline bench transfer", "45 MB over the link, beside raw TCP and ZeroMQ in the clear"),
        ],
        exits=(4, 9, 10),
    )
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="allocate, sampler, agent, round, transfer (default: all)"
    )
    parser.offers = {"what": ("allocate", "sampler", "agent", "round", "transfer")}
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _bench(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.bench import BENCHES, machine

    unknown = [name for name in arguments.what if name not in BENCHES]
    if unknown:
        talk.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHES)}", event="usage")
        return 2
    rows = [row for name in arguments.what or BENCHES for row in BENCHES[name](talk)]
    if arguments.json:
        print(json.dumps({"schema": "paceline-bench-1", "machine": machine(), "figures": rows}, indent=1))
    else:
        for row in rows:
            print(
                f"{row['name']:58} {row['median']:9.3f} {row['unit']:4} "
                f"({row['least']:.3f} to {row['most']:.3f}, {row['repeats']} times)"
            )
        talk.info(" ".join(f"{key} {value}" for key, value in machine().items()))
    return 0
