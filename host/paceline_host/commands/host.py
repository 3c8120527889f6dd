# SPDX-License-Identifier: Apache-2.0
"""`paceline host`: the daemon, in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "host",
        _host,
        "serve boards and operators until stopped",
        about="Boards stay connected whether there is work or not; operators submit experiments, which are run one"
        " after the other. SIGTERM ends it in order, also in the middle of a run; what is unfinished goes on at the"
        " next start. It stays in the foreground: a unit for systemd comes with --unit.",
        examples=[
            ("paceline host --init /etc/paceline", "make keys, host.toml, operator.toml"),
            ("paceline host --config /etc/paceline/host.toml", "serve"),
            ("paceline host --unit /etc/paceline/host.toml", "print a unit file for systemd"),
        ],
        exits=(3, 4, 5, 9, 10),
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, metavar="FILE", help="host.toml: serve; its paths start at its folder")
    what.add_argument("--init", type=Path, metavar="FOLDER", help="make keys and files there, over nothing that exists")
    what.add_argument("--unit", type=Path, metavar="FILE", help="print a systemd unit for this host.toml")


def _host(arguments: argparse.Namespace, talk: Talk) -> int:
    if arguments.init is not None:
        return _init(arguments.init, talk)
    if arguments.unit is not None:
        return _unit(arguments.unit)
    from paceline_host.host_config import load_host

    config = load_host(arguments.config)
    from paceline_host.daemon import Daemon

    return Daemon(config, talk).run()


def _init(folder: Path, talk: Talk) -> int:
    from paceline.keys import fingerprint
    from paceline_host.host_config import WHERE, make_host
    from paceline_host.link import new_pair

    pair = new_pair()
    config, operator = make_host(folder, pair, new_pair())
    print(config)
    talk(
        f"the host's key has fingerprint {fingerprint(pair.public)}; next:\n"
        f"  1. put each board's NAME.pub into {folder / 'keys' / 'boards'}\n"
        f"     (made there by: paceline-agent keys --dir /etc/paceline --name NAME)\n"
        f'  2. in each board\'s agent.toml: [host] endpoint = "tcp://THIS-MACHINE:5570", public_key = "{pair.public}"\n'
        f"  3. paceline host --config {config}\n"
        f"  4. paceline status --host {operator}   (or: export {WHERE}={operator.resolve()})"
    )
    return 0


def _unit(config: Path) -> int:
    from paceline_host.host_config import load_host
    from paceline_host.unit import unit

    print(unit(config.resolve(), load_host(config)), end="")
    return 0
