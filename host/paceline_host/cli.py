# SPDX-License-Identifier: Apache-2.0
"""The command line of the host: `paceline`. stdout is data, stderr is talk; heavy modules are imported by the command
that needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from paceline.errors import PacelineError
from paceline.version import VERSION

_EXAMPLES = """examples:
  paceline data fetch mnist                    get the data set, once
  paceline run experiments/demo.toml           run it over its fleet, print the comparison
  paceline run experiments/demo.toml --set run.rounds=2 --json
  paceline runs                                what was run
  paceline report runs/demo-001                its table again
  paceline bench                               what paceline itself costs
  paceline keys host --dir keys                the host's key pair, for real boards

exit status: 0 ok, 2 usage, 3 configuration or data, 4 connection, 5 keys, 9 the run failed, 10 storage, 130 Ctrl-C
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    if sys.stderr is None:  # closed by the caller: talk goes nowhere, least of all to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.command(arguments)
        return status
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:  # of our own output: files of a run raise StorageError
        print(f"paceline: cannot write the output: {error.strerror}", file=sys.stderr)
        return 10


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Train one model over unequal boards: a fixed sample budget, re-divided by measurement."
        " Every round is planned from measured seconds and joules.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"paceline {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an experiment file")
    run.add_argument("experiment", type=Path, help="TOML file; see experiments/")
    run.add_argument("--runs-dir", type=Path, default=Path("runs"), help="where run folders are made (default: runs)")
    run.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="override a key; VALUE is TOML"
    )
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")
    run.set_defaults(command=_run)

    runs = commands.add_parser("runs", help="list what was run")
    runs.add_argument("--runs-dir", type=Path, default=Path("runs"))
    runs.add_argument("--json", action="store_true")
    runs.set_defaults(command=_runs)

    report = commands.add_parser("report", help="table, picture and page of a run or comparison, from its journals")
    report.add_argument(
        "run", type=Path, help="folder of a comparison (runs/demo-001) or of one run (runs/demo-001/time)"
    )
    report.add_argument("--json", action="store_true")
    report.set_defaults(command=_report)

    data = commands.add_parser("data", help="data sets: fetch").add_subparsers(required=True, metavar="ACTION")
    fetch = data.add_parser("fetch", help="download, verify and cache a data set")
    fetch.add_argument("name", help="mnist")
    fetch.add_argument("--source", default="", help="take it from this source only (see the error for their names)")
    fetch.add_argument("--json", action="store_true")
    fetch.set_defaults(command=_fetch)

    bench = commands.add_parser("bench", help="what paceline itself costs: allocate, agent, round, transfer")
    bench.add_argument("what", nargs="*", help="allocate, agent, round, transfer (default: all)")
    bench.add_argument("--json", action="store_true")
    bench.set_defaults(command=_bench)

    keys = commands.add_parser("keys", help="make the host's key pair, for a fleet of real boards")
    keys.add_argument("name", nargs="?", default="host", help="name of the pair (default: host)")
    keys.add_argument("--dir", type=Path, default=Path("keys"), help="folder for NAME.key (0600) and NAME.pub")
    keys.set_defaults(command=_keys)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from paceline_host.comparison import Comparison, new_folder
    from paceline_host.experiment import load_experiment
    from paceline_host.watch import watcher

    experiment = load_experiment(arguments.experiment, arguments.set)
    comparison = Comparison(experiment, watcher(experiment, quiet=arguments.quiet))
    folder = new_folder(arguments.runs_dir, arguments.experiment.stem)
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:  # twice: now; the fleet dies with its parent
            sys.exit(128 + number)
        comparison.stop("interrupted")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    complete = comparison.run(folder)
    if interrupts and not any(folder.glob("*/journal.sqlite")):
        print(f"paceline: interrupted before the first run began; {folder} holds no run", file=sys.stderr)
        return 128 + interrupts[0]
    _print_report(folder, arguments.json)
    if interrupts:
        print(f"paceline: interrupted; what was finished is in {folder}", file=sys.stderr)
        return 128 + interrupts[0]
    return 0 if complete else 9


def _print_report(folder: Path, as_json: bool) -> None:
    from paceline_host.html import write_pages
    from paceline_host.plot import draw
    from paceline_host.report import load_report, render

    report = load_report(folder)
    print(json.dumps(report.as_json(), indent=1) if as_json else render(report))
    picture = draw(report, folder / "comparison.png")
    (folder / "report.json").write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    print(f"paceline: runs in {folder}, picture in {picture}", file=sys.stderr)
    page = write_pages(report, folder)
    print(f"paceline: this table again: paceline report {folder}; to look at: {page}", file=sys.stderr)


def _runs(arguments: argparse.Namespace) -> int:
    from paceline_host.runs import list_runs

    rows = list_runs(arguments.runs_dir)
    if arguments.json:
        print(json.dumps({"schema": "paceline-runs-1", "runs": rows}, indent=1))
    elif not rows:
        print(
            f"paceline: no runs in {arguments.runs_dir}; begin with: paceline run experiments/demo.toml",
            file=sys.stderr,
        )
    for row in () if arguments.json else rows:
        print(
            f"{row['run']:40} {row['policy']:12} {row['state']:10} "
            f"round {row['rounds_done']}/{row['rounds']}  {row['started']}"
        )
    return 0


def _report(arguments: argparse.Namespace) -> int:
    _print_report(arguments.run, arguments.json)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from paceline.data import fetch

    got = fetch(
        arguments.name, source=arguments.source, progress=lambda text: print(f"paceline: {text}", file=sys.stderr)
    )
    if arguments.json:
        print(json.dumps({"schema": "paceline-data-1", **asdict(got)}, default=str, indent=1))
    else:
        print(got.folder)
        print(
            f"paceline: {got.label}: {got.train} + {got.test} samples, {got.bytes:,} bytes; {got.terms}",
            file=sys.stderr,
        )
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from paceline_host.bench import BENCHES, machine

    unknown = [name for name in arguments.what if name not in BENCHES]
    if unknown:
        print(f"paceline: no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    rows = [row for name in arguments.what or BENCHES for row in BENCHES[name](_talk)]
    if arguments.json:
        print(json.dumps({"schema": "paceline-bench-1", "machine": machine(), "figures": rows}, indent=1))
    else:
        for row in rows:
            print(
                f"{row['name']:58} {row['median']:9.3f} {row['unit']:4} "
                f"({row['least']:.3f} to {row['most']:.3f}, {row['repeats']} times)"
            )
        print(" ".join(f"{key} {value}" for key, value in machine().items()), file=sys.stderr)
    return 0


def _talk(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr)


def _keys(arguments: argparse.Namespace) -> int:
    from paceline.keys import check_name, fingerprint, write_pair
    from paceline_host.link import new_pair

    name = check_name(arguments.name)
    pair = new_pair()
    write_pair(arguments.dir, name, pair)
    (arguments.dir / "boards").mkdir(exist_ok=True)
    print(arguments.dir / f"{name}.pub")
    print(
        f"paceline: fingerprint {fingerprint(pair.public)}; put {pair.public} into each board's agent.toml as "
        f"host.public_key, and each board's NAME.pub into {arguments.dir / 'boards'}",
        file=sys.stderr,
    )
    return 0
