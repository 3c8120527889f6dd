# SPDX-License-Identifier: Apache-2.0
"""`paceline keys`: the host's key pair."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.commandline import Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "keys",
        _keys,
        "make the host's key pair, for a fleet of real boards",
        about="NAME.key is secret and never leaves this machine. An existing pair is never overwritten.",
        examples=[
            ("paceline keys", "keys/host.key, keys/host.pub and the folder keys/boards/"),
            ("paceline keys lab --dir /srv/paceline/keys", "another name and folder"),
        ],
        exits=(5,),
    )
    parser.add_argument("name", nargs="?", default="host", metavar="NAME", help="name of the pair (default: host)")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("keys"),
        metavar="FOLDER",
        help="for NAME.key (0600) and NAME.pub (default: keys)",
    )


def _keys(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.keys import check_name, fingerprint, write_pair
    from paceline_host.link import new_pair

    name = check_name(arguments.name)
    pair = new_pair()
    write_pair(arguments.dir, name, pair)
    (arguments.dir / "boards").mkdir(exist_ok=True)
    print(arguments.dir / f"{name}.pub")
    talk.info(
        f"fingerprint {fingerprint(pair.public)}; put {pair.public} into each board's agent.toml as "
        f"host.public_key, and each board's NAME.pub into {arguments.dir / 'boards'}"
    )
    return 0
