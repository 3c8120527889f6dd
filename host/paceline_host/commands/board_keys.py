# SPDX-License-Identifier: Apache-2.0
"""`paceline boards pending`, `accept`, `reject`, `revoke`: whose key is let in. What they do is in onboard/gate.py."""

from __future__ import annotations

from paceline.commandline import Program
from paceline_host.commands.boards import add_json, add_keys, does

_KEY = "its fingerprint, the 40 characters, or a .pub file"


def add(program: Program) -> None:
    """Register the commands."""
    parser = program.command(
        "boards pending",
        does("gate", "pending"),
        "list the keys that have knocked at a host daemon and that nobody knows",
        about="A stranger is heard by its key alone: compare the fingerprint with what `paceline-agent keys` or"
        " `install` printed on the board. Which host: --host, else $PACELINE_HOST, else"
        " ~/.config/paceline/operator.toml.",
        examples=[("paceline boards pending", "fingerprint, address, how often, the key")],
        exits=(3, 4, 5, 6),
    )
    parser.add_argument("--host", metavar="WHERE", help="the host daemon: its operator.toml, the folder of that")
    add_json(parser)
    parser = program.command(
        "boards accept",
        does("gate", "accept"),
        "let a board's key in, under a name",
        about="As putting NAME.pub into keys/boards/ does, with a look at what is there. A daemon lets it in at once.",
        examples=[
            ("paceline boards accept pi4 90ab12cd34ef5678 --host /etc/paceline", "one that has knocked"),
            ("paceline boards accept pi4 /media/usb/pi4.pub", "one that was brought"),
        ],
        exits=(3, 4, 5, 10),
    )
    parser.add_argument("name", metavar="NAME", help="of the board, as the host will list it")
    parser.add_argument("key", metavar="KEY", help=_KEY)
    add_keys(parser)
    parser = program.command(
        "boards reject",
        does("gate", "reject"),
        "leave a key out, and list it as pending no longer",
        about="Nobody is let in who was not accepted: this only ends the question. `accept` takes it back.",
        examples=[("paceline boards reject 90ab12cd34ef5678 --host /etc/paceline", "one that has knocked")],
        exits=(3, 4, 5, 10),
    )
    parser.add_argument("key", metavar="KEY", help=_KEY)
    add_keys(parser)
    parser = program.command(
        "boards revoke",
        does("gate", "revoke"),
        "withdraw a board's key: stolen, sold, or not to be trusted",
        about="A daemon cuts its link at once, in a run too, and deals its open work to others. Nothing is done on the"
        " board; `paceline boards remove` takes the agent off one that can still be reached.",
        examples=[("paceline boards revoke pi4 --host /etc/paceline", "from now on it is a stranger")],
        exits=(3, 4, 5, 10),
    )
    parser.add_argument("name", metavar="NAME", help="of the board, as `paceline boards list` names it")
    add_keys(parser)
