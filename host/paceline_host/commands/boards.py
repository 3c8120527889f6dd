# SPDX-License-Identifier: Apache-2.0
"""`paceline boards`: brings the agent onto boards over ssh, asks for it there, takes it off again."""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commandline import CommandParser, Program, UsageError
from paceline.talk import Talk, printable

if TYPE_CHECKING:
    from paceline_host.host_config import HostConfig
    from paceline_host.onboard.crew import Outcome
    from paceline_host.onboard.greeting import Greeting
    from paceline_host.onboard.inventory import Inventory, Place
    from paceline_host.onboard.shell import Shell

PARTIAL = 8
_SSH = "ssh is the user's own, with ~/.ssh/config and agent; it never asks for a password."
_MANY = "One board that fails stops no other; with several the status is then 8."


def add(program: Program) -> None:
    """Register the commands."""
    program.group("boards", "the agent on boards: install, bundle, list, status, doctor, logs, rollback, remove")
    for each in (_add_install, _add_bundle, _add_list, _add_ask, _add_logs, _add_remove):
        each(program)


def _add_install(program: Program) -> None:
    parser = program.command(
        "boards install",
        _install,
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
    _add_keys(parser)
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
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="made before (default: one is made for each kind)")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels for the bundle, as in `boards bundle`")
    parser.add_argument("--dry-run", action="store_true", help="look at the boards and say what would be done")
    _add_json(parser)


def _add_bundle(program: Program) -> None:
    parser = program.command(
        "boards bundle",
        _bundle,
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
    _add_json(parser)


def _add_list(program: Program) -> None:
    parser = program.command(
        "boards list",
        _list,
        "list the boards that were installed, and those whose keys are let in",
        examples=[("paceline boards list", "all"), ("paceline boards list --json", "for a program")],
        exits=(5, 10),
    )
    _add_keys(parser)
    _add_json(parser)


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
            _HANDLERS[name],
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
        _add_keys(parser)
        _add_json(parser)


def _add_logs(program: Program) -> None:
    parser = program.command(
        "boards logs",
        _logs,
        "print the last words of a board's agent",
        examples=[("paceline boards logs pi4", "20 lines"), ("paceline boards logs pi4 --lines 200", "more")],
        exits=(3, 4, 5, 9, 10),
    )
    parser.add_argument("board", metavar="NAME", help="as `paceline boards list` names it")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="how many (default: 20)")
    _add_keys(parser)


def _add_remove(program: Program) -> None:
    parser = program.command(
        "boards remove",
        _remove,
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
    _add_keys(parser)
    _add_json(parser)


def _add_keys(parser: CommandParser) -> None:
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


def _add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


# What they do -------------------------------------------------------------------------------------------------------


def _install(arguments: argparse.Namespace, talk: Talk) -> int:
    from tempfile import TemporaryDirectory

    from paceline_host.onboard import crew
    from paceline_host.onboard.bundle import make_bundle, read_bundle
    from paceline_host.onboard.inventory import Inventory

    if arguments.prefix is not None and not arguments.prefix.startswith("/"):
        raise UsageError("paceline boards install: error: --prefix: expected an absolute path of the boards")
    host = _host(arguments)
    if arguments.listen:
        host = replace(host, listen=arguments.listen)
    inventory = Inventory(Path(host.keys))
    shells = _shells(arguments, inventory)
    pair = host.read_keys()
    wish = crew.Wish(
        home="user" if arguments.user else arguments.prefix or "",
        host_key=pair.public,
        port=_port(host.listen),
        endpoint=arguments.endpoint or "",
        python=arguments.python,
        meter=arguments.meter,
        dry_run=arguments.dry_run,
    )
    given = read_bundle(arguments.bundle) if arguments.bundle is not None else None
    with TemporaryDirectory(prefix="paceline-boards-") as folder:
        bundle_for = crew.bundles(Path(folder), given, lambda arch, out: make_bundle(arch, out, arguments.wheels))
        greeting = None if wish.dry_run else _greeting(arguments, host)
        try:
            gang = crew.Crew(wish, bundle_for, inventory, greeting, talk.info)
            outcomes = crew.side_by_side(list(shells), lambda name: gang.install(name, shells[name]), shells)
        finally:
            if greeting is not None:
                greeting.close()
    return _recap(outcomes, arguments.json, talk)


def _bundle(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard.bundle import make_bundle

    made = make_bundle(arguments.arch, arguments.out, arguments.wheels)
    told = {
        "file": str(made.path),
        "release": made.release,
        "arch": made.arch,
        "bytes": made.size,
        "wheels": made.wheels,
    }
    print(json.dumps({"schema": "paceline-bundle-1", **told}) if arguments.json else made.path)
    talk.info(f"{made.release} for {made.arch}, {made.size / 1e6:.1f} MB: {', '.join(made.wheels)}")
    return 0


def _list(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.keys import fingerprint, read_boards
    from paceline_host.onboard.inventory import Inventory

    keys = Path(_host(arguments).keys)
    known, places = read_boards(keys / "boards", []), Inventory(keys).boards
    rows = [
        {
            "name": name, "fingerprint": fingerprint(known[name]) if name in known else None,
            **(asdict(places[name]) if name in places else {"address": None}),
        }
        for name in sorted({*known, *places})
    ]  # fmt: skip
    if arguments.json:
        print(json.dumps({"schema": "paceline-boards-1", "boards": rows}, indent=1))
        return 0
    for row in rows:
        where = f"{row['address']}  {row['arch']}  {row['release']}  {row['prefix']}" if row["address"] else "by hand"
        print(f"{row['name']:20}  {row['fingerprint'] or 'its key is not let in':16}  {where}")
    return 0


_Work = Callable[["Inventory", str, "Shell"], tuple[str, str, int]]  # -> state, text, exit status


def _each(arguments: argparse.Namespace, talk: Talk, work: _Work) -> int:
    """Do `work` on boards of the inventory."""
    from paceline_host.onboard import crew
    from paceline_host.onboard.inventory import Inventory

    inventory = Inventory(Path(_host(arguments).keys))
    names = list(dict.fromkeys(arguments.boards)) or sorted(inventory.boards)
    shells = {name: _shell_of(_place(inventory, name)) for name in names}

    def one(name: str) -> Outcome:
        state, text, status = work(inventory, name, shells[name])
        trouble = "its rows above say what is wrong" if status else ""
        return crew.Outcome(name, shells[name].address, state, trouble, status, facts={"text": text} if text else {})

    return _recap(crew.side_by_side(names, one, shells), arguments.json, talk)


def _status(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard.crew import act

    def ask(inventory: Inventory, name: str, shell: Shell) -> tuple[str, str, int]:
        return act(inventory.boards[name], shell, "service status").strip(), "", 0

    return _each(arguments, talk, ask)


def _doctor(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard.crew import act

    def ask(inventory: Inventory, name: str, shell: Shell) -> tuple[str, str, int]:
        place = inventory.boards[name]
        etc = f"{shlex.quote(place.prefix)}/etc" if place.private else "/etc/paceline"
        look = f"doctor --config {etc}/agent.toml; echo $?"  # rows are wanted of a bad board above all
        text, _, status = act(place, shell, look, has_prefix=False, timeout_s=900.0).strip().rpartition("\n")
        return "ok" if status == "0" else "bad", text, int(status)

    return _each(arguments, talk, ask)


def _rollback(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard.crew import roll_back

    def go(inventory: Inventory, name: str, shell: Shell) -> tuple[str, str, int]:
        place = inventory.boards[name]
        release = roll_back(place, shell)
        inventory.put(name, replace(place, release=release))
        return "rolled back", release, 0

    return _each(arguments, talk, go)


_HANDLERS = {"status": _status, "doctor": _doctor, "rollback": _rollback}


def _logs(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard.crew import act
    from paceline_host.onboard.inventory import Inventory

    place = _place(Inventory(Path(_host(arguments).keys)), arguments.board)
    print(act(place, _shell_of(place), f"service logs --lines {arguments.lines}"), end="")
    return 0


def _remove(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.onboard import crew
    from paceline_host.onboard.inventory import Inventory
    from paceline_host.onboard.shell import Shell

    inventory = Inventory(Path(_host(arguments).keys))
    names = list(dict.fromkeys(arguments.boards))
    shells = {name: Shell(name) if arguments.forget else _shell_of(_place(inventory, name)) for name in names}

    def one(name: str) -> Outcome:
        if not arguments.forget:
            crew.act(inventory.boards[name], shells[name], "uninstall")
        inventory.drop(name)
        return crew.Outcome(name, shells[name].address, "forgotten" if arguments.forget else "removed")

    return _recap(crew.side_by_side(names, one, shells), arguments.json, talk)


# Parts of them ------------------------------------------------------------------------------------------------------


def _host(arguments: argparse.Namespace) -> HostConfig:
    """Return the host's settings: of its daemon, or those of a folder of keys alone."""
    from paceline_host.host_config import HostConfig, load_host

    if arguments.host is None:
        return HostConfig(keys=str(arguments.keys))
    return load_host(arguments.host / "host.toml" if arguments.host.is_dir() else arguments.host)


def _greeting(arguments: argparse.Namespace, host: HostConfig) -> Greeting:
    """Return who hears of the agents: the daemon where one answers, else this command itself."""
    from paceline.errors import LinkError, SettingsError
    from paceline_host.host_config import load_operator
    from paceline_host.onboard.greeting import OfDaemon, OfOwn

    if arguments.host is not None:
        try:
            return OfDaemon(load_operator(str(arguments.host)))
        except (LinkError, SettingsError):
            pass  # it does not run, or this user is no operator of it
    return OfOwn(host.listen, host.read_keys(), Path(host.keys) / "boards")


def _shells(arguments: argparse.Namespace, inventory: Inventory) -> dict[str, Shell]:
    """Return name -> how to reach it, of all boards on the command line."""
    from paceline.keys import check_name
    from paceline_host.onboard.shell import Shell

    options: list[str] = []
    if arguments.port is not None:
        options += ["-p", str(arguments.port)]
    if arguments.identity is not None:
        options += ["-i", str(arguments.identity.absolute()), "-o", "IdentitiesOnly=yes"]
    for option in arguments.ssh_option:
        options += ["-o", option]
    found: dict[str, Shell] = {}
    for text in arguments.boards:
        if text in inventory.boards:
            place = inventory.boards[text]
            name, shell = text, Shell(place.address, tuple(options) or place.ssh)
        else:
            named = re.fullmatch(
                r"(?:([A-Za-z0-9._-]+)=)?((?:ssh://)?(?:[^@/\s-][^@/\s]*@)?([^@:/\s-][^@:/\s]*)(?::\d+)?)", text
            )
            if named is None:
                raise UsageError(
                    f"paceline boards install: error: {text!r}: expected [NAME=]USER@HOST, as ssh takes it"
                )
            name, shell = check_name(named[1] or named[3]), Shell(named[2], tuple(options))
        if name in found:
            raise UsageError(
                f"paceline boards install: error: two boards would be named {name}: NAME=USER@HOST names them"
            )
        found[name] = shell
    return found


def _place(inventory: Inventory, name: str) -> Place:
    from paceline.errors import SettingsError

    if name not in inventory.boards:
        known = ", ".join(sorted(inventory.boards)) or "none"
        raise SettingsError(
            [f"{name}: `paceline boards install` has installed no board of that name; it knows {known}"]
        )
    return inventory.boards[name]


def _shell_of(place: Place) -> Shell:
    from paceline_host.onboard.shell import Shell

    return Shell(place.address, place.ssh)


def _port(listen: str) -> int:
    from paceline.errors import SettingsError

    port = listen.rpartition(":")[2]
    if not port.isdecimal():
        raise SettingsError([f"listen = {listen!r} names no port that boards could be told; set one"])
    return int(port)


def _recap(outcomes: list[Outcome], as_json: bool, talk: Talk) -> int:
    """Show a row for each board; return the status: of a single one its own, of several 8 when one failed."""
    failed = [outcome for outcome in outcomes if outcome.exit_code]
    if as_json:
        rows = [{**asdict(each), **each.facts} for each in outcomes]
        for row in rows:
            del row["facts"]
        print(json.dumps({"schema": "paceline-recap-1", "ok": not failed, "boards": rows}, indent=1))
    else:
        for each in outcomes:
            facts = each.facts
            watts = facts.get("watts")
            shown = [str(facts[key]) for key in ("arch", "release", "prefix") if facts.get(key)]
            if "meter" in facts:
                shown.append(
                    f"{facts['meter']}: {watts:.2f} W" if watts is not None else f"no reading ({facts['why']})"
                )
            shown += [facts[key] for key in ("clock",) if key in facts]
            print(f"{each.name:20}  {each.state:11}  {each.seconds:6.1f} s  {'  '.join(shown)}".rstrip())
            if "text" in facts:
                for line in str(facts["text"]).splitlines():
                    print(f"  {' ' * (len(line) - len(line.lstrip()))}{printable(line)}")
    for each in failed:
        talk.error(f"{each.name} ({each.address}): {each.trouble}", board=each.name, event="failed")
    return 0 if not failed else PARTIAL if len(outcomes) > 1 else failed[0].exit_code
