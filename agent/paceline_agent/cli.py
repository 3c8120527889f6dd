# SPDX-License-Identifier: Apache-2.0
"""The command line of a board: `paceline-agent`. Talk goes to stderr; torch is never imported here."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from paceline.errors import PacelineError
from paceline.version import VERSION

_EXAMPLES = """examples:
  paceline-agent keys --dir /etc/paceline --name pi4      make this board's key pair, once
  paceline-agent run --config /etc/paceline/agent.toml    serve the host until stopped

exit status: 0 ended in order, 2 usage, 3 configuration, 4 no connection, 5 key refused, 6 version, 7 meter, 10 storage
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
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline-agent",
        description="The agent on a board: trains what the host assigns, measures seconds and joules.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"paceline-agent {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve the host named in agent.toml until stopped")
    run.add_argument("--config", type=Path, required=True, help="agent.toml; relative paths in it start at its folder")
    run.set_defaults(command=_run)
    keys = commands.add_parser("keys", help="make this board's key pair")
    keys.add_argument("--dir", type=Path, required=True, help="folder for NAME.key (0600) and NAME.pub")
    keys.add_argument("--name", required=True, help="the board's name, as the host will list it")
    keys.set_defaults(command=_keys)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from paceline_agent.agent import Agent
    from paceline_agent.config import load_config

    agent = Agent(load_config(arguments.config), arguments.config.resolve().parent, _say)
    signal.signal(signal.SIGTERM, lambda *_: agent.stop("SIGTERM"))
    signal.signal(signal.SIGINT, lambda *_: agent.stop("SIGINT"))
    return agent.run()


def _keys(arguments: argparse.Namespace) -> int:
    from paceline.keys import check_name, fingerprint, write_pair
    from paceline_agent.link import new_pair

    name = check_name(arguments.name)
    pair = new_pair()
    write_pair(arguments.dir, name, pair)
    print(arguments.dir / f"{name}.pub")
    _say(f"fingerprint {fingerprint(pair.public)}; copy {name}.pub into the boards folder of the host's keys")
    return 0


def _say(text: str) -> None:
    print(f"paceline-agent: {text}", file=sys.stderr, flush=True)
