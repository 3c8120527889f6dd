# SPDX-License-Identifier: Apache-2.0
"""What `paceline boards` does: from arguments to shells and steps, and from outcomes to a recap and a status."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.commandline import UsageError
from paceline.errors import LinkError, SettingsError
from paceline.keys import check_name, fingerprint, read_boards
from paceline.talk import Talk, printable
from paceline_host.host_config import HostConfig, load_host, load_operator
from paceline_host.onboard import crew
from paceline_host.onboard.bundle import bundles, make_bundle, read_bundle
from paceline_host.onboard.crew import Outcome, act, roll_back
from paceline_host.onboard.greeting import Greeting, OfDaemon, OfOwn
from paceline_host.onboard.inventory import Inventory, Place
from paceline_host.onboard.shell import Shell

PARTIAL = 8


def install(arguments: argparse.Namespace, talk: Talk) -> int:
    """Install on boards."""
    if arguments.prefix is not None and not arguments.prefix.startswith("/"):
        raise UsageError("paceline boards install: error: --prefix: expected an absolute path of the boards")
    host = _listening(arguments)
    inventory = Inventory(Path(host.keys))
    shells = _shells(arguments, inventory)
    wish = crew.Wish(
        home="user" if arguments.user else arguments.prefix or "",
        host_key=host.read_keys().public,
        port=port_of(host.listen),
        endpoint=arguments.endpoint or "",
        python=arguments.python,
        meter=arguments.meter,
        dry_run=arguments.dry_run,
        take_over=arguments.take_over,
    )
    return _bring(arguments, talk, host, wish, inventory, shells)


def update(arguments: argparse.Namespace, talk: Talk) -> int:
    """Bring another release to boards that have one."""
    host = _listening(arguments)
    inventory = Inventory(Path(host.keys))
    names = list(dict.fromkeys(arguments.boards)) or sorted(inventory.boards)
    shells = {name: _shell_of(_place(inventory, name)) for name in names}
    if not names:
        talk.info("no board was installed over ssh; `paceline boards install` does it")
        return 0
    wish = crew.Wish(
        home="",
        host_key=host.read_keys().public,
        port=port_of(host.listen),
        dry_run=arguments.dry_run,
        update=True,
        window_s=arguments.window,
    )
    return _bring(arguments, talk, host, wish, inventory, shells)


def _bring(
    arguments: argparse.Namespace, talk: Talk, host: HostConfig, wish: crew.Wish, inventory: Inventory,
    shells: dict[str, Shell],
) -> int:  # fmt: skip
    """Bring the agent to boards, and show what came of it."""
    given = read_bundle(arguments.bundle) if arguments.bundle is not None else None
    with TemporaryDirectory(prefix="paceline-boards-") as folder:
        bundle_for = bundles(Path(folder), given, lambda arch, out: make_bundle(arch, out, arguments.wheels))
        greeting = None if wish.dry_run else _greeting(arguments, host)
        try:
            gang = crew.Crew(wish, bundle_for, inventory, greeting, talk.info)
            outcomes = crew.side_by_side(list(shells), lambda name: gang.install(name, shells[name]), shells)
        finally:
            if greeting is not None:
                greeting.close()
    return recap(outcomes, arguments.json, talk)


def bundle(arguments: argparse.Namespace, talk: Talk) -> int:
    """Make a bundle."""
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


def listing(arguments: argparse.Namespace, talk: Talk) -> int:
    """Show the inventory, and the keys that are let in."""
    keys = Path(host_of(arguments).keys)
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


_Work = Callable[[Inventory, str, Shell], tuple[str, str, int]]  # -> state, text, exit status


def _each(arguments: argparse.Namespace, talk: Talk, work: _Work) -> int:
    """Do `work` on boards of the inventory."""
    inventory = Inventory(Path(host_of(arguments).keys))
    names = list(dict.fromkeys(arguments.boards)) or sorted(inventory.boards)
    shells = {name: _shell_of(_place(inventory, name)) for name in names}

    def one(name: str) -> Outcome:
        state, text, status = work(inventory, name, shells[name])
        trouble = "its rows above say what is wrong" if status else ""
        return crew.Outcome(name, shells[name].address, state, trouble, status, facts={"text": text} if text else {})

    return recap(crew.side_by_side(names, one, shells), arguments.json, talk)


def status(arguments: argparse.Namespace, talk: Talk) -> int:
    """Ask whether agents run."""

    def ask(inventory: Inventory, name: str, shell: Shell) -> tuple[str, str, int]:
        return act(inventory.boards[name], shell, "service status").strip(), "", 0

    return _each(arguments, talk, ask)


def doctor(arguments: argparse.Namespace, talk: Talk) -> int:
    """Have boards look at themselves."""

    def ask(inventory: Inventory, name: str, shell: Shell) -> tuple[str, str, int]:
        place = inventory.boards[name]
        etc = f"{shlex.quote(place.prefix)}/etc" if place.private else "/etc/paceline"
        look = f"doctor --config {etc}/agent.toml; echo $?"  # rows are wanted of a bad board above all
        text, _, status = act(place, shell, look, has_prefix=False, timeout_s=900.0).strip().rpartition("\n")
        return "ok" if status == "0" else "bad", text, int(status)

    return _each(arguments, talk, ask)


def rollback(arguments: argparse.Namespace, talk: Talk) -> int:
    """Go back to the release before."""

    def go(inventory: Inventory, name: str, shell: Shell) -> tuple[str, str, int]:
        place = inventory.boards[name]
        release = roll_back(place, shell)
        inventory.put(name, replace(place, release=release))
        return "rolled back", release, 0

    return _each(arguments, talk, go)


def logs(arguments: argparse.Namespace, talk: Talk) -> int:
    """Print a log."""
    place = _place(Inventory(Path(host_of(arguments).keys)), arguments.board)
    print(act(place, _shell_of(place), f"service logs --lines {arguments.lines}"), end="")
    return 0


def remove(arguments: argparse.Namespace, talk: Talk) -> int:
    """Take agents off their boards, and their keys off this host."""
    inventory = Inventory(Path(host_of(arguments).keys))
    names = list(dict.fromkeys(arguments.boards))
    shells = {name: Shell(name) if arguments.forget else _shell_of(_place(inventory, name)) for name in names}

    def one(name: str) -> Outcome:
        if not arguments.forget:
            crew.act(inventory.boards[name], shells[name], "uninstall")
        inventory.drop(name)
        return crew.Outcome(name, shells[name].address, "forgotten" if arguments.forget else "removed")

    return recap(crew.side_by_side(names, one, shells), arguments.json, talk)


# Parts of them ------------------------------------------------------------------------------------------------------


def host_of(arguments: argparse.Namespace) -> HostConfig:
    """Return the host's settings: of its daemon, or those of a folder of keys alone."""
    if arguments.host is None:
        return HostConfig(keys=str(arguments.keys))
    return load_host(arguments.host / "host.toml" if arguments.host.is_dir() else arguments.host)


def _listening(arguments: argparse.Namespace) -> HostConfig:
    """Return the same, with the place that the command line names to listen at."""
    host = host_of(arguments)
    return replace(host, listen=arguments.listen) if arguments.listen else host


def _greeting(arguments: argparse.Namespace, host: HostConfig) -> Greeting:
    """Return who hears of the agents: the daemon where one answers, else this command itself."""
    if arguments.host is not None:
        try:
            return OfDaemon(load_operator(str(arguments.host)))
        except (LinkError, SettingsError):
            pass  # it does not run, or this user is no operator of it
    return OfOwn(host.listen, host.read_keys(), Path(host.keys) / "boards")


def _shells(arguments: argparse.Namespace, inventory: Inventory) -> dict[str, Shell]:
    """Return name -> how to reach it, of all boards on the command line."""
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
    if name not in inventory.boards:
        known = ", ".join(sorted(inventory.boards)) or "none"
        raise SettingsError(
            [f"{name}: `paceline boards install` has installed no board of that name; it knows {known}"]
        )
    return inventory.boards[name]


def _shell_of(place: Place) -> Shell:
    return Shell(place.address, place.ssh)


def port_of(listen: str) -> int:
    port = listen.rpartition(":")[2]
    if not port.isdecimal():
        raise SettingsError([f"listen = {listen!r} names no port that boards could be told; set one"])
    return int(port)


def recap(outcomes: list[Outcome], as_json: bool, talk: Talk) -> int:
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
