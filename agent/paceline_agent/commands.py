# SPDX-License-Identifier: Apache-2.0
"""The commands of `paceline-agent`. stdout is data, stderr is talk; torch is never imported here."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from paceline.commandline import Program, add_completion
from paceline.talk import Talk
from paceline.version import VERSION
from paceline_agent import board_commands, meter_commands


def program() -> Program:
    """Return the program with all its commands, in the order of its help."""
    made = Program(
        "paceline-agent", VERSION, "The agent on a board: trains what the host assigns, measures seconds and joules."
    )
    for add in (_add_run, _add_keys, meter_commands.add, board_commands.add, _add_show, add_completion):
        add(made)
    return made


def _add_run(program: Program) -> None:
    parser = program.command(
        "run",
        _run,
        "serve the host named in agent.toml until stopped",
        about="Once it serves, Ctrl-C and SIGTERM end it in order, with status 0. It comes back by"
        " itself when the host or the network was away; it ends when the host refuses its key or its version.",
        examples=[
            ("paceline-agent run --config /etc/paceline/agent.toml", "serve the host until stopped"),
            ("paceline-agent run --config agent.toml --log-json", "the same, its talk for a program"),
        ],
        exits=(3, 4, 5, 6, 7, 9, 10),
    )
    _add_config(parser)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="agent.toml; relative paths in it start at its folder",
    )


def _add_keys(program: Program) -> None:
    parser = program.command(
        "keys",
        _keys,
        "make this board's key pair",
        about="NAME.key is secret and never leaves the board; NAME.pub goes to the host. An existing pair is never"
        " overwritten.",
        examples=[("paceline-agent keys --dir /etc/paceline --name pi4", "pi4.key and pi4.pub, once")],
        exits=(5,),
    )
    parser.add_argument("--dir", type=Path, required=True, metavar="FOLDER", help="for NAME.key (0600) and NAME.pub")
    parser.add_argument("--name", required=True, metavar="NAME", help="the board's name, as the host will list it")


def _add_show(program: Program) -> None:
    program.group("config", "what a configuration comes to: show")
    parser = program.command(
        "config show",
        _show,
        "print the effective settings of an agent.toml",
        about="Defaults are filled in. Keys are shown as the paths of their files, never their content.",
        examples=[
            ("paceline-agent config show --config agent.toml", "all settings"),
            ("paceline-agent config show --config agent.toml --origin", "the line, or default, each is from"),
            ("paceline-agent config show --config agent.toml --json", "for a program"),
        ],
        exits=(3,),
    )
    _add_config(parser)
    parser.add_argument("--origin", action="store_true", help="tell where each value comes from")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent.agent import Agent
    from paceline_agent.config import load_config

    config = load_config(arguments.config)
    talk.board = Path(config.key_file).stem  # as `paceline-agent keys` named it
    agent = Agent(config, arguments.config.resolve().parent, talk)
    signal.signal(signal.SIGTERM, lambda *_: agent.stop("SIGTERM"))
    signal.signal(signal.SIGINT, lambda *_: agent.stop("SIGINT"))
    return agent.run()


def _keys(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.keys import check_name, fingerprint, write_pair
    from paceline_agent.link import new_pair

    name = check_name(arguments.name)
    pair = new_pair()
    write_pair(arguments.dir, name, pair)
    print(arguments.dir / f"{name}.pub")
    talk.info(f"fingerprint {fingerprint(pair.public)}; copy {name}.pub into the boards folder of the host's keys")
    return 0


def _show(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline import show
    from paceline.machine import GREETING_S
    from paceline_agent.config import load_with_sheet

    config, sheet = load_with_sheet(arguments.config)
    waits = {"greeting_s": (GREETING_S, "the host's silence before it has told its own patience: lost")}
    if arguments.json:
        print(show.as_json(config, sheet, arguments.config, origin=arguments.origin, waits=waits))
    else:
        waits_are = "seconds; all other waits follow from the patience that the host tells"
        print(show.as_toml(config, sheet, origin=arguments.origin, waits=waits, waits_are=waits_are), end="")
    return 0
