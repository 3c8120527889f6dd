# SPDX-License-Identifier: Apache-2.0
"""`paceline bench`: what paceline itself costs on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.commandline import Program
from paceline.errors import PacelineError
from paceline.talk import Talk

LEAST_TRIALS = 20
NAMES = (
    "allocate", "controller", "sampler", "schedule", "aggregate", "agent", "round", "join", "link", "transfer",
    "simulator", "ddp",
)  # fmt: skip
PAGES = ("energy", "meter")  # each a table of its own


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "bench",
        _bench,
        f"what paceline itself costs: {', '.join(NAMES)}, meter; how true joules are: energy",
        about="Each figure with its median, range and number of repeats."
        " `energy` integrates simulated readings of loads whose joules are known, `meter` measures what reading costs;"
        " these two run only when they are named.",
        examples=[
            ("paceline bench", "all benchmarks, in five minutes"),
            ("paceline bench allocate --json", "one of them, for a program"),
            ("paceline bench controller --compare before.json", "ratios to what --json had saved, and what is slower"),
            ("paceline bench sampler", "ns a draw, beside numpy's ways and the machine's limit, and the ratios"),
            ("paceline bench controller", "11 to a million boards, beside numpy"),
            ("paceline bench schedule aggregate", "orders and batches beside numpy, sums beside the memory's speed"),
            ("paceline bench round", "a round that trains nothing, beside the link alone"),
            ("paceline bench join", "1,000 participants join one host; whether a host grows in 1,000 rounds"),
            ("paceline bench link", "64 bytes there and back, 1 and 10 MB one way or to eleven; raw TCP"),
            ("paceline bench transfer", "45 MB over the link, beside raw TCP and ZeroMQ in the clear"),
            ("paceline bench ddp", "a step with our hook beside a plain one; how fast groups form again"),
            ("paceline bench energy --out docs/results", "errors and what is stated of them: table, page and picture"),
            ("paceline bench meter --beside other/bin/python", "what reading costs, beside CodeCarbon and pyJoules"),
        ],
        exits=(3, 4, 9, 10),
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"{', '.join(NAMES)} (default: these), {', '.join(PAGES)}",
    )
    parser.offers = {"what": (*NAMES, *PAGES)}
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="what --json had saved: ratios to its medians")
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="energy: windows a row (default: 200)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="energy: of all its draws (default: 1)")
    parser.add_argument("--out", metavar="DIR", help="energy, meter: write their page there, and the picture")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="meter: for each source (default: 10)")
    parser.add_argument("--beside", default="", metavar="FILE", help="meter: a python that has codecarbon and pyJoules")


def _bench(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.bench import BENCHES, machine
    from paceline_host.bench_compare import compared, read_saved, verdicts

    unknown = [name for name in arguments.what if name not in (*BENCHES, *PAGES)]
    if unknown:
        talk.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join((*BENCHES, *PAGES))}", event="usage")
        return 2
    if alone := [name for name in arguments.what if name in PAGES]:
        if len(arguments.what) > 1:
            talk.error(f"{alone[0]} is a table of its own: name it alone", event="usage")
            return 2
        if arguments.compare is not None:
            talk.error(f"--compare: {alone[0]} has no medians to compare", event="usage")
            return 2
        return (_energy if alone == ["energy"] else _meter)(arguments, talk)
    saved = read_saved(arguments.compare) if arguments.compare is not None else None
    rows: list[dict[str, object]] = []
    failure: PacelineError | None = None
    for name in arguments.what or BENCHES:
        try:
            rows += BENCHES[name](talk)
        except PacelineError as error:  # what was measured before is printed all the same
            failure = error
            break
    if saved is not None:
        rows = compared(rows, saved)
    if arguments.json:
        print(json.dumps({"schema": "paceline-bench-1", "machine": machine(), "figures": rows}, indent=1))
    else:
        for row in rows:
            print(
                f"{row['name']:58} {row['median']:9.3f} {row['unit']:4} "
                f"({row['least']:.3f} to {row['most']:.3f}, {row['repeats']} times){_then(row)}"
            )
        talk.info(" ".join(f"{key} {value}" for key, value in machine().items()))
    for text in verdicts(rows, saved, machine()) if saved is not None else ():
        talk.info(text, event="compared")
    if failure is not None:
        raise failure
    return 0


def _then(row: Mapping[str, Any]) -> str:
    """Return the columns of a comparison, where there is one."""
    if "ratio" not in row:
        return ""
    if row["ratio"] is None:
        return "  before: none"
    return f"  before {row['then']:.3f}, {row['ratio']:.2f}x {row['verdict']}".rstrip()


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


def _meter(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.bench import machine
    from paceline_host.bench_meter import run_costs, text_tables, write_page

    if not 1.0 <= arguments.seconds <= 100.0:
        talk.error(f"--seconds is {arguments.seconds:g}; expected 1 to 100", event="usage")
        return 2
    found = run_costs(arguments.seconds, arguments.beside)
    if arguments.json:
        facts = {"schema": "paceline-bench-meter-1", "machine": machine()}
        print(json.dumps({**facts, "seconds": arguments.seconds, **found}, indent=1))
    else:
        print(text_tables(found))
    if arguments.out:
        page = write_page(Path(arguments.out), found, machine(), arguments.seconds)
        talk.info(f"written: {page}")
    return 0
