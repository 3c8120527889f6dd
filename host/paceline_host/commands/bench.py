# SPDX-License-Identifier: Apache-2.0
"""`paceline bench`: what paceline itself costs on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk

LEAST_TRIALS = 20


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "bench",
        _bench,
        "what paceline itself costs: allocate, agent, round, transfer; how true its joules are: energy",
        about="Each figure with its median, range and number of repeats."
        " `energy` integrates simulated readings of loads whose joules are known; it runs only when it is named.",
        examples=[
            ("paceline bench", "all benchmarks, in a minute"),
            ("paceline bench allocate --json", "one of them, for a program"),
            ("paceline bench transfer", "45 MB over the link, beside raw TCP and ZeroMQ in the clear"),
            ("paceline bench energy --out docs/results", "errors and what is stated of them: table, page and picture"),
        ],
        exits=(4, 9, 10),
    )
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="allocate, agent, round, transfer (default: these), energy"
    )
    parser.offers = {"what": ("allocate", "agent", "round", "transfer", "energy")}
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="energy: windows a row (default: 200)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="energy: of all its draws (default: 1)")
    parser.add_argument("--out", metavar="DIR", help="energy: write energy_error.md and energy_error.png there")


def _bench(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.bench import BENCHES, machine

    unknown = [name for name in arguments.what if name not in (*BENCHES, "energy")]
    if unknown:
        talk.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHES)}, energy", event="usage")
        return 2
    if "energy" in arguments.what:
        if arguments.what != ["energy"]:
            talk.error("energy is a table of its own: name it alone", event="usage")
            return 2
        return _energy(arguments, talk)
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


def _energy(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.bench import machine
    from paceline_host.bench_energy import run_trials, text_table, verdict, write_page

    if arguments.trials < LEAST_TRIALS:
        talk.error(f"--trials is {arguments.trials}; a 95th percentile needs at least {LEAST_TRIALS}", event="usage")
        return 2
    found = run_trials(arguments.trials, arguments.seed)
    if arguments.json:
        facts = {"schema": "paceline-bench-energy-1", "machine": machine()}
        print(json.dumps({**facts, "trials": arguments.trials, "seed": arguments.seed, **found}, indent=1))
    else:
        print(text_table(found["rows"]))
    talk.info(verdict(found["rows"]))
    if arguments.out:
        talk.info(f"written: {write_page(Path(arguments.out), found, arguments.trials, arguments.seed)}")
    return 0
