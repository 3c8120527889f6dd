# SPDX-License-Identifier: Apache-2.0
"""The commands of `paceline-agent` that concern the board as a whole: doctor, install, uninstall, service."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.commandline import CommandParser, Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register them."""
    for each in (_add_doctor, _add_install, _add_uninstall, _add_service):
        each(program)


def _add_doctor(program: Program) -> None:
    parser = program.command(
        "doctor",
        _doctor,
        "tell what of this board is as it must be, and what to do where it is not",
        about="Nothing is changed. With --config it also looks at agent.toml and what that names: keys, meter, disk and"
        " whether the host takes this board's key. The status is that of the first bad row; warnings leave it 0.",
        examples=[
            ("paceline-agent doctor --config /etc/paceline/agent.toml", "all of it"),
            ("paceline-agent doctor --json", "for a program, without an agent.toml"),
        ],
        exits=(3, 4, 5, 7, 10),
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="agent.toml of the agent on this board")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_install(program: Program) -> None:
    parser = program.command(
        "install",
        _install,
        "write agent.toml, keys and a systemd unit for the agent on this board",
        about="`paceline boards install` on the host does all of it over ssh. What is there already stays as it is."
        " The agent is not started: the host must have this board's .pub first; then `paceline-agent service start`.",
        examples=[
            (
                "paceline-agent install --name pi4 --endpoint tcp://pc:5570 --host-key KEY",
                "as root, for the whole board; with --dry-run: what it would do",
            ),
            (
                "paceline-agent install --name a --endpoint E --host-key KEY --prefix ~/a",
                "without root: below one folder, no unit",
            ),
        ],
        exits=(3, 5, 9, 10),
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="the board's name, as the host will list it")
    parser.add_argument("--endpoint", required=True, metavar="WHERE", help="of the host: tcp://ADDRESS:PORT")
    parser.add_argument("--host-key", required=True, metavar="KEY", help="the line in the host's host.pub")
    parser.add_argument(
        "--meter", default="", metavar="LINES", help="lines of [meter] (default: of the sensor that sees most)"
    )
    parser.add_argument("--take-over", action="store_true", help="also where agent.toml names another host")
    _add_prefix(parser)
    parser.add_argument("--dry-run", action="store_true", help="print each step and do none")
    parser.add_argument("--json", action="store_true", help="print JSON: public key, steps, a first reading")


def _add_uninstall(program: Program) -> None:
    parser = program.command(
        "uninstall",
        _uninstall,
        "end the agent on this board and remove all that was installed",
        about="Its keys, its state and its program as well; the host forgets it by `paceline boards remove`.",
        examples=[
            ("paceline-agent uninstall --dry-run", "what it would remove"),
            ("paceline-agent uninstall --prefix ~/.local/paceline", "what was installed below one folder"),
        ],
        exits=(9, 10),
    )
    _add_prefix(parser)
    parser.add_argument("--dry-run", action="store_true", help="print each step and do none")


def _add_service(program: Program) -> None:
    parser = program.command(
        "service",
        _service,
        "start, stop or look at the installed agent",
        about="Under systemd where that runs, else in the background. `status` has status 0 when it runs, else 9.",
        examples=[
            ("paceline-agent service status", "whether it runs"),
            ("paceline-agent service logs --lines 50", "its last words"),
            ("paceline-agent service start --prefix ~/.local/paceline", "start it, or start it anew"),
        ],
        exits=(9, 10),
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    _add_prefix(parser)
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="of logs: how many (default: 20)")


ACTIONS = ("start", "stop", "status", "logs")


def _add_prefix(parser: CommandParser) -> None:
    parser.add_argument(
        "--prefix",
        type=Path,
        metavar="FOLDER",
        help="one user's agent below this folder (default: the board's, as root)",
    )


def _doctor(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.checkup import tell
    from paceline_agent.doctor import examine

    return tell(examine(arguments.config, become=True), as_json=arguments.json)


def _install(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.keys import fingerprint, read_public
    from paceline_agent.config import load_config
    from paceline_agent.installing import Wish, install, perform, reading
    from paceline_agent.places import places

    where = places(arguments.prefix)
    steps = install(
        where, Wish(arguments.name, arguments.endpoint, arguments.host_key, arguments.meter, arguments.take_over)
    )
    done = [step.about for step in steps if step.needed]
    told: dict[str, object] = {"schema": "paceline-install-1", "name": arguments.name, "steps": done}
    if arguments.dry_run:
        print(json.dumps(told) if arguments.json else "\n".join(done or ["nothing is to be done"]))
        return 0
    perform(steps)
    public = read_public(where.etc / f"{arguments.name}.pub")
    if arguments.json:
        told |= {"public_key": public, "config": str(where.config), **reading(load_config(where.config))}
        print(json.dumps(told))
        return 0
    print(where.etc / f"{arguments.name}.pub")
    below = "" if where.unit is not None else f" --prefix {where.prefix}"
    talk(
        f"fingerprint {fingerprint(public)}; put {public} as {arguments.name}.pub into the host's boards' key folder,"
        f" then: {where.program} service start{below}"
    )
    return 0


def _uninstall(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent.installing import perform, uninstall
    from paceline_agent.places import places

    steps = uninstall(places(arguments.prefix))
    if arguments.dry_run:
        print("\n".join(step.about for step in steps if step.needed))
        return 0
    perform(steps)
    return 0


def _service(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.errors import RunError, SettingsError
    from paceline_agent.places import places
    from paceline_agent.service import service

    where = places(arguments.prefix)
    if not where.config.exists():
        raise SettingsError(
            [f"{where.config} does not exist: no agent is installed here; `paceline-agent install` does it"]
        )
    running = service(where)
    if arguments.action == "logs":
        print(running.log(arguments.lines))
    elif arguments.action == "status":
        if not running.is_running():
            raise RunError("the agent does not run; `service logs` tells its last words, `service start` starts it")
        print(f"running ({running.kind})")
    else:
        running.start() if arguments.action == "start" else running.stop()
    return 0
