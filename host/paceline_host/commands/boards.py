# SPDX-License-Identifier: Apache-2.0
"""`paceline boards`: its commands, their arguments and help. What they do is in onboard/tool.py."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

from paceline.commandline import CommandParser, Handler, Program
from paceline.talk import Talk

_SSH = "ssh is the user's own, with ~/.ssh/config and agent; it never asks for a password."
_MANY = "One board that fails stops no other; with several the status is then 8."


def add(program: Program) -> None:
    """Register the commands."""
    program.group("boards", "the agent on boards: find, install, update, look after, let in, remove; flash a meter")
    for each in (_add_install, _add_update, _add_bundle, _add_list, _add_ask, _add_logs, _add_remove, _add_flash):
        each(program)


def _add_install(program: Program) -> None:
    parser = program.command(
        "boards install",
        does("tool", "install"),
        "bring the agent to boards over ssh, enrol their keys, start it",
        about=f"{_SSH} A board is looked at first; then one bundle is copied, a release is made beside the one before,"
        f" keys are exchanged, the agent is started and its HELLO waited for. A second time nothing changes. {_MANY}",
        examples=[
            ("paceline boards install pi@192.0.2.7 visionfive", "two boards, as root or with sudo"),
            ("paceline boards install pi4=pi@192.0.2.7 --user", "named pi4, for that user alone, without root"),
            ("paceline boards install pi@192.0.2.7 --dry-run", "look, and say what would be done"),
        ],
        exits=(3, 4, 5, 6, 8, 9, 10),
    )
    parser.add_argument(
        "boards", nargs="+", metavar="[NAME=]USER@HOST", help="as ssh takes it; or a name in `paceline boards list`"
    )
    add_keys(parser)
    ssh = parser.add_argument_group("ssh")
    ssh.add_argument("--port", type=int, metavar="N", help="of sshd on the boards")
    ssh.add_argument("--identity", type=Path, metavar="FILE", help="the private key to log in with")
    ssh.add_argument("--ssh-option", action="append", default=[], metavar="KEY=VALUE", help="as ssh -o; several")
    home = parser.add_mutually_exclusive_group()
    home.add_argument(
        "--user", action="store_true", help="without root, below ~/.local/paceline; a restart of the board ends it"
    )
    home.add_argument("--prefix", metavar="FOLDER", help="as --user, below another absolute path of the board")
    parser.add_argument("--listen", metavar="WHERE", help="where this host listens (default: as in host.toml)")
    parser.add_argument("--python", default="", metavar="NAME", help="of the boards (default: python3)")
    parser.add_argument(
        "--endpoint", metavar="WHERE", help="of this host (default: tcp://, where ssh comes from, its port)"
    )
    parser.add_argument(
        "--meter", default="", metavar="LINES", help="of [meter], for all (default: what each board has)"
    )
    add_bundles(parser)
    add_take_over(parser)
    parser.add_argument("--dry-run", action="store_true", help="look at the boards and say what would be done")
    add_json(parser)


def _add_update(program: Program) -> None:
    parser = program.command(
        "boards update",
        does("tool", "update"),
        "bring another release of the agent to boards that have one",
        about="The new release is made beside the old one, then one link is switched and the agent started anew."
        " Without a HELLO within --window, without readings where the old release has them, or with an agent that has"
        f" ended, the board goes back to the old release by itself. {_MANY}",
        examples=[
            ("paceline boards update", "all that were installed over ssh"),
            ("paceline boards update pi4 --window 20", "one, with little patience"),
        ],
        exits=(3, 4, 5, 6, 7, 8, 9, 10),
    )
    parser.add_argument("boards", nargs="*", metavar="NAME", help="as `paceline boards list` names them (default: all)")
    add_keys(parser)
    parser.add_argument("--listen", metavar="WHERE", help="where this host listens (default: as in host.toml)")
    parser.add_argument(
        "--window", type=positive_s, default=60.0, metavar="SECONDS", help="for HELLO and reading (default: 60)"
    )
    add_bundles(parser)
    parser.add_argument("--dry-run", action="store_true", help="look at the boards and say what would be done")
    add_json(parser)


def _add_bundle(program: Program) -> None:
    parser = program.command(
        "boards bundle",
        does("tool", "bundle"),
        "make the archive that is copied to boards of one kind",
        about="Our wheel is built from this checkout for this machine's kind; for another it must be in --wheels. What"
        " no wheel brings comes from the board's own packages. By hand: tar xzf FILE; python3 */install.py --help.",
        examples=[
            ("paceline boards bundle --out paceline.tar.gz", "for boards of this machine's kind"),
            ("paceline boards bundle --arch riscv64 --wheels wheels/riscv64 --out rv.tar.gz", "for another"),
        ],
        exits=(3, 9, 10),
    )
    parser.add_argument(
        "--arch", default=platform.machine(), metavar="ARCH", help="as `uname -m` says it there (default: as here)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the archive; replaced when it is there"
    )
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels to take: torch, numpy, others' kinds")
    add_json(parser)


def _add_list(program: Program) -> None:
    parser = program.command(
        "boards list",
        does("tool", "listing"),
        "list the boards that were installed, and those whose keys are let in",
        examples=[("paceline boards list", "all"), ("paceline boards list --json", "for a program")],
        exits=(5, 10),
    )
    add_keys(parser)
    add_json(parser)


def _add_ask(program: Program) -> None:
    for name, summary, about in (
        (
            "status",
            "ask boards whether their agents run",
            "Over ssh; what the host thinks of them `paceline status` tells.",
        ),
        ("doctor", "have boards look at themselves", "`paceline-agent doctor` on each, with what to do."),
        ("rollback", "go back to the release before, on boards", "Where no HELLO came this happened by itself."),
    ):
        parser = program.command(
            f"boards {name}",
            does("tool", name),
            summary,
            about=f"{about} {_MANY}",
            examples=[(f"paceline boards {name} pi4", "one"), (f"paceline boards {name} pi4 nano", "two at once")],
            exits=(3, 4, 5, 7, 8, 9, 10),
        )
        looks = name != "rollback"
        every = " (default: all)" if looks else ""
        parser.add_argument(
            "boards", nargs="*" if looks else "+", metavar="NAME", help=f"as `paceline boards list` names them{every}"
        )
        add_keys(parser)
        add_json(parser)


def _add_logs(program: Program) -> None:
    parser = program.command(
        "boards logs",
        does("tool", "logs"),
        "print the last words of a board's agent",
        examples=[("paceline boards logs pi4", "20 lines"), ("paceline boards logs pi4 --lines 200", "more")],
        exits=(3, 4, 5, 9, 10),
    )
    parser.add_argument("board", metavar="NAME", help="as `paceline boards list` names it")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="how many (default: 20)")
    add_keys(parser)


def _add_remove(program: Program) -> None:
    parser = program.command(
        "boards remove",
        does("tool", "remove"),
        "take the agent off boards, and their keys off this host",
        about=f"On the board nothing is left: program, unit, keys, state. {_MANY}",
        examples=[
            ("paceline boards remove pi4", "there and here"),
            ("paceline boards remove pi4 --forget", "here only: the board is gone, or was set up anew"),
        ],
        exits=(3, 4, 5, 8, 9, 10),
    )
    parser.add_argument("boards", nargs="+", metavar="NAME", help="as `paceline boards list` names them")
    parser.add_argument("--forget", action="store_true", help="do not speak to the boards")
    add_keys(parser)
    add_json(parser)


def _add_flash(program: Program) -> None:
    parser = program.command(
        "boards flash",
        _flash,
        "bring a meter's firmware to a microcontroller",
        about="By the chip's own tool (esptool, picotool, probe-rs, openocd), which must be installed, or by a copy"
        " into a UF2 bootloader's folder. The image says for which chip it is; one for another is refused. What was"
        " written is verified.",
        examples=[
            ("paceline boards flash --port /dev/ttyACM0 --image meter.bin", "an ESP32-C3 or C6"),
            ("paceline boards flash --port /media/pi/RP2350 --image meter.uf2", "an RP2350 with BOOTSEL held"),
            (
                "paceline boards flash --port swd --chip STM32F103C8 --image m.elf --dry-run",
                "say what would be done",
            ),
        ],
        exits=(3, 4, 9, 10),
    )
    parser.add_argument(
        "--port",
        required=True,
        metavar="WHERE",
        help="a serial port; a bootloader's folder; usb (picotool); swd, or VENDOR:PRODUCT[:SERIAL] of a probe"
        " (probe-rs); openocd:INTERFACE.cfg,TARGET.cfg",
    )
    parser.add_argument("--image", type=Path, required=True, metavar="FILE", help="UF2, ESP image or ELF")
    parser.add_argument("--chip", default="", metavar="CHIP", help="as the tool has it (default: as the image says)")
    parser.add_argument(
        "--offset", type=lambda text: int(text, 0), default=0, metavar="N", help="of an ESP image in flash (default: 0)"
    )
    parser.add_argument("--dry-run", action="store_true", help="check all, and say what would be done")
    add_json(parser)


def _flash(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard import flashing

    return flashing.flash(arguments, talk)


def add_take_over(parser: CommandParser) -> None:
    """Add the option that takes a board from another host."""
    parser.add_argument(
        "--take-over", action="store_true", help="also a board that serves another host: from now on it serves this one"
    )


def add_bundles(parser: CommandParser) -> None:
    """Add the options that say what is brought."""
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="made before (default: one is made for each kind)")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels for the bundle, as in `boards bundle`")


def positive_s(text: str) -> float:
    """Return seconds."""
    try:
        if 0 < (seconds := float(text)) < 1e6:
            return seconds
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, above 0")


def add_keys(parser: CommandParser) -> None:
    """Add the options that name the host's keys."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--host", type=Path, metavar="FILE", help="host.toml of the daemon on this machine, or its folder"
    )
    where.add_argument(
        "--keys",
        type=Path,
        default=Path("keys"),
        metavar="FOLDER",
        help="without a daemon: host's keys (default: keys)",
    )


def add_json(parser: CommandParser) -> None:
    """Add the option for programs."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def does(module: str, name: str) -> Handler:
    """Return what is done by a function of paceline_host.onboard, which is loaded only then."""

    def handle(arguments: argparse.Namespace, talk: Talk) -> int:
        from importlib import import_module

        status: int = getattr(import_module(f"paceline_host.onboard.{module}"), name)(arguments, talk)
        return status

    return handle
