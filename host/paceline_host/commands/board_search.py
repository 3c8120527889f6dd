# SPDX-License-Identifier: Apache-2.0
"""`paceline boards discover` and `console`: finding boards, and reaching those without a network."""

from __future__ import annotations

from pathlib import Path

from paceline.commandline import Program
from paceline_host.commands.boards import add_bundles, add_json, add_keys, add_take_over, does, positive_s


def add(program: Program) -> None:
    """Register the commands."""
    _add_discover(program)
    _add_console(program)


def _add_discover(program: Program) -> None:
    parser = program.command(
        "boards discover",
        does("discover", "discover"),
        "list what might be a board: in the network, at serial ports, in your ssh config",
        about="Looks, and touches nothing: who announces ssh over mDNS (with `pip install paceline[discover]`), USB"
        " serial ports by what they say they are, and each host of your ssh config as ssh understands it.",
        examples=[
            ("paceline boards discover", "all three ways, three seconds"),
            ("paceline boards discover --only serial --json", "serial ports, for a program"),
        ],
        exits=(10,),
    )
    parser.add_argument(
        "--only", action="append", choices=("mdns", "serial", "ssh"), metavar="WAY", help="mdns, serial, ssh; several"
    )
    parser.add_argument(
        "--seconds", type=positive_s, default=3.0, metavar="N", help="how long mDNS is listened to (default: 3)"
    )
    parser.add_argument(
        "--interface", action="append", default=[], metavar="ADDRESS", help="of this machine, for mDNS (default: all)"
    )
    parser.add_argument("--ssh-config", type=Path, metavar="FILE", help="as ssh -F (default: ~/.ssh/config)")
    parser.add_argument(
        "--keys", type=Path, default=Path("keys"), metavar="FOLDER", help="whose boards are known (default: keys)"
    )
    add_json(parser)


def _add_console(program: Program) -> None:
    parser = program.command(
        "boards console",
        does("by_console", "console"),
        "install the agent through a board's serial console, without a network",
        about="Logs in there, sends the bundle in pieces that are checked each, and goes on as `boards install` does."
        " When the line is cut, the same command goes on where it was. At 115200 baud 2.4 MB take five minutes."
        " The password is asked for when the board does, or read from --password-file. No HELLO is waited for.",
        examples=[
            ("paceline boards console /dev/ttyUSB0 --name pi4 --endpoint tcp://pc:5570", "as root"),
            ("paceline boards console /dev/ttyACM0 --name a --endpoint E --login pi --user", "for pi"),
        ],
        exits=(3, 4, 5, 6, 9, 10),
    )
    parser.add_argument("port", metavar="PORT", help="of this machine: /dev/ttyUSB0, or what pyserial takes")
    parser.add_argument("--name", required=True, metavar="NAME", help="the board's name, as the host will list it")
    parser.add_argument("--endpoint", required=True, metavar="WHERE", help="of this host, as the board will reach it")
    parser.add_argument("--login", default="root", metavar="USER", help="who logs in (default: root)")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="first line: the password; mode 0600")
    parser.add_argument("--baud", type=int, default=115200, metavar="N", help="of the line (default: 115200)")
    home = parser.add_mutually_exclusive_group()
    home.add_argument("--user", action="store_true", help="without root, below ~/.local/paceline")
    home.add_argument("--prefix", metavar="FOLDER", help="as --user, below another absolute path of the board")
    parser.add_argument("--python", default="python3", metavar="NAME", help="of the board (default: python3)")
    parser.add_argument("--meter", default="", metavar="LINES", help="of [meter] (default: what the board has)")
    add_keys(parser)
    add_bundles(parser)
    add_take_over(parser)
    add_json(parser)
