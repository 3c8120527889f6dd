# SPDX-License-Identifier: Apache-2.0
"""`paceline-agent install` and `uninstall`: configuration, keys, user and unit of an agent whose program is there.

What is to be done is a list of steps, each of which knows whether it is done already; so a second call changes nothing,
and `--dry-run` prints what a call would do. Starting the agent is another command: its host must know its key first.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline import toml
from paceline.errors import KeyFileError, PacelineError, RunError, SettingsError, StorageError
from paceline.keys import check_name, fingerprint, is_public, write_pair
from paceline.settings import load
from paceline_agent.config import AgentConfig, load_config
from paceline_agent.link import new_pair
from paceline_agent.meters.findings import Where, best
from paceline_agent.places import UNIT, USER, Places
from paceline_agent.rights import ask_as, groups_here
from paceline_agent.sampled import opened
from paceline_agent.service import service, systemctl

TEMPLATE = Path(__file__).with_name(UNIT)
READING_S = 1.0


@dataclass(frozen=True)
class Wish:
    """Whose agent this is to be. `meter`: the lines of [meter]; empty: what sees most of this board, if anything.
    `take_over`: also where agent.toml names another host.
    """

    name: str
    endpoint: str
    host_key: str
    meter: str = ""
    take_over: bool = False


@dataclass(frozen=True)
class Step:
    """One change of the board; `needed` False: it is as it is to be."""

    about: str
    needed: bool
    do: Callable[[], None]


def install(where: Places, wish: Wish) -> list[Step]:
    """Return what makes `where` hold an agent as wished for. Raises PacelineError when it holds another one."""
    check_name(wish.name)
    if not is_public(wish.host_key):
        raise KeyFileError("--host-key: expected the 40 characters in the host's host.pub")
    python = Path(sys.executable).resolve()
    if where.unit is not None and any(python.is_relative_to(home) for home in ("/home", "/root")):
        raise SettingsError(
            [f"{python} lies in a home, which the agent's own user may not read: install with the system's python3"]
        )
    taken = where.config.exists() and _is_to_change(load_config(where.config), where, wish)
    secret = where.etc / f"{wish.name}.key"
    steps = [
        Step(f"make the folder {where.etc}", not where.etc.is_dir(), lambda: _folder(where.etc, 0o755)),
        Step(f"make the key pair {secret}", not _has_pair(secret), lambda: _make_pair(secret)),
        Step(f"write {where.config}", not where.config.exists(), lambda: _write(where.config, _settings(where, wish))),
        Step(f"let {where.config} name this host", taken, lambda: _write(where.config, _taken_over(where, wish))),
    ]
    if where.unit is None:
        made = Step(f"make the folder {where.state}", not where.state.is_dir(), lambda: _folder(where.state, 0o700))
        return [*steps, made]
    text = unit_text(where)
    is_there = where.unit.exists() and where.unit.read_text(encoding="utf-8") == text
    return [
        Step(f"make the user {USER}", not _has_user(), _make_user),
        *steps,
        Step(f"let {USER} read its key", not _is_owner(secret), lambda: _own(secret)),
        Step(f"let {USER} keep its state in {where.state}", not where.state.is_dir(), lambda: _state(where.state)),
        Step(f"write {where.unit}", not is_there, lambda: _write_unit(where, unit_text(where))),
    ]


def uninstall(where: Places) -> list[Step]:
    """Return what takes an agent away, its keys, state, unit and all releases of its program with it."""
    running = service(where)
    mine = [path for path in (where.config, *_key_files(where)) if path.exists()]
    releases = [path for path in sorted(where.prefix.glob("*")) if _is_release(path)]
    links = [where.prefix / name for name in ("current", "previous") if (where.prefix / name).is_symlink()]
    steps = [Step("end the agent", running.is_running(), running.stop)]
    if where.unit is not None:
        unit = where.unit
        steps.append(Step(f"remove {unit}", unit.exists(), lambda: _remove_unit(unit)))
    steps += [
        Step(f"remove {', '.join(map(str, mine)) or where.config}", bool(mine), lambda: _unlink(mine)),
        Step(f"remove {where.state}", where.state.exists(), lambda: shutil.rmtree(where.state)),
        Step(f"remove the program in {where.prefix}", bool(releases or links), lambda: _drop(links, releases)),
        Step("remove the folders, as far as nothing else is in them", True, lambda: _tidy(where)),
    ]
    if where.unit is not None:
        steps.append(Step(f"remove the user {USER}", _has_user(), lambda: _call("userdel", USER)))
    return steps


def perform(steps: list[Step]) -> None:
    """Do what is needed. Raises PacelineError; what was done before stays, and the next call goes on from there."""
    for step in steps:
        if step.needed:
            try:
                step.do()
            except OSError as error:
                raise StorageError(f"cannot {step.about}: {error.filename or ''}: {error.strerror}") from None


def reading(config: AgentConfig) -> dict[str, object]:
    """Return what the meter shows now: its source and watts, or why there are none."""
    if config.meter.source == "none":
        return {
            "meter": "none",
            "watts": None,
            "why": "no [meter] in agent.toml; `paceline-agent meter scan` tells more",
        }
    try:
        with opened(config.meter, {}) as meter, meter.window() as window:
            time.sleep(READING_S)
        return {"meter": meter.source, "watts": window.result.power_w, "why": meter.trouble}
    except PacelineError as error:
        return {"meter": config.meter.source, "watts": None, "why": str(error)}


def unit_text(where: Places) -> str:
    """Return the unit for a board: of the groups, those that it has."""
    values = {
        "@PROGRAM@": str(where.program), "@CONFIG@": str(where.config), "@USER@": USER,
        "@GROUPS@": " ".join(groups_here()),
    }  # fmt: skip
    text = TEMPLATE.read_text(encoding="utf-8")
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _is_to_change(config: AgentConfig, where: Places, wish: Wish) -> bool:
    """Tell whether agent.toml names another host. Refuse a board that is another one already, or another host's."""
    name = Path(config.key_file).stem
    if name != wish.name:
        raise KeyFileError(
            f"this board is {name} already, by {where.config}; use that name, or uninstall the agent first"
        )
    _, host_key = config.keys(where.etc)
    is_other = host_key != wish.host_key
    if is_other and not wish.take_over:
        raise KeyFileError(
            f"this board serves another host already, whose key has fingerprint {fingerprint(host_key)} "
            f"({config.host.endpoint}); remove it there first, or take it from that host with --take-over"
        )
    if not is_other and config.host.endpoint != wish.endpoint:
        there, wanted = config.host.endpoint, wish.endpoint
        raise SettingsError(
            [f"{where.config} says host.endpoint = {there!r}, not {wanted!r}; correct it there, or --endpoint"]
        )
    return is_other


def _taken_over(where: Places, wish: Wish) -> str:
    """Return agent.toml with another [host], all else as its owner has it."""
    lines, table = [], ""
    for line in where.config.read_text(encoding="utf-8").splitlines():
        table = line.strip() if line.lstrip().startswith("[") else table
        key = line.partition("=")[0].strip()
        value = {"endpoint": wish.endpoint, "public_key": wish.host_key}.get(key) if table == "[host]" else None
        lines.append(line if value is None else f"{key} = {toml.inline(value)}")
    text = "\n".join([*lines, ""])
    host = load(text, AgentConfig, where=f"the new {where.config}").host
    if (host.endpoint, host.public_key) != (wish.endpoint, wish.host_key):
        raise SettingsError([f"{where.config}: its [host] has another form than expected; change the two keys there"])
    return text


def _settings(where: Places, wish: Wish) -> str:
    """Return the text of an agent.toml, once it is known to be a sound one."""
    keys = {} if wish.meter else _own_meter() if where.unit is None else _meter_of(USER)
    meter = wish.meter or "\n".join(f"{key} = {toml.inline(value)}" for key, value in keys.items())
    text = (
        "# Written by `paceline-agent install`; it is never overwritten. `paceline-agent config show` lists all keys.\n"
        f"key_file = {toml.inline(f'{wish.name}.key')}\n"
        f"state_dir = {toml.inline(where.state)}\n"
        f"data_dir = {toml.inline(where.state / 'data')}\n"
        "\n[host]\n"
        f"endpoint = {toml.inline(wish.endpoint)}\n"
        f"public_key = {toml.inline(wish.host_key)}\n"
        + (f"\n[meter]\n{meter}\n" if meter else "\n# no [meter]: `paceline-agent meter scan` found none\n")
    )
    load(text, AgentConfig, where="the agent.toml to be written")
    return text


def _own_meter() -> dict[str, object]:
    """Return the keys of the meter that sees most; none: there is none."""
    with suppress(PacelineError):
        found = best(Where())
        return {"source": found.source, **found.settings}
    return {}


def _meter_of(user: str) -> dict[str, object]:
    """Return the same of what `user` may read: root reads more than the agent will."""
    try:
        findings = json.loads(ask_as(user, "meter", "scan", "--json"))["findings"]
    except (ValueError, KeyError):
        return {}
    usable = (each for each in findings if each["usable"] and each["kind"] == "meter")
    return next((dict(each["settings"]) for each in usable), {})


def _has_pair(secret: Path) -> bool:
    return secret.exists() and secret.with_suffix(".pub").exists()


def _make_pair(secret: Path) -> None:
    """Make the pair; half of one is of an installation that was interrupted, and no host knows it."""
    _unlink([secret, secret.with_suffix(".pub")])
    write_pair(secret.parent, secret.stem, new_pair())


def _key_files(where: Places) -> Iterator[Path]:
    """Yield the pair that agent.toml names, when it lies beside it: only that is known to be the agent's own."""
    with suppress(PacelineError):
        secret = where.etc / load_config(where.config).key_file
        if secret.parent == where.etc:
            yield from (secret, secret.with_suffix(".pub"))


def _is_release(path: Path) -> bool:
    is_begun = path.name.startswith(".new-")  # and was interrupted
    return path.is_dir() and not path.is_symlink() and (is_begun or (path / "manifest.json").exists())


def _drop(links: list[Path], releases: list[Path]) -> None:
    _unlink(links)
    for release in releases:
        shutil.rmtree(release)


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _tidy(where: Places) -> None:
    with suppress(OSError):
        (where.prefix / ".lock").unlink()
    for folder in (where.etc, where.prefix):
        with suppress(OSError):
            folder.rmdir()


def _folder(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), 0o644)  # nothing secret, and the agent's user reads it
        os.fsync(file.fileno())
    new.replace(path)


def _write_unit(where: Places, text: str) -> None:
    assert where.unit is not None
    _folder(where.unit.parent, 0o755)
    _write(where.unit, text)
    if Path("/run/systemd/system").is_dir():
        systemctl("daemon-reload")
        systemctl("enable", UNIT)


def _remove_unit(unit: Path) -> None:
    is_live = Path("/run/systemd/system").is_dir()
    if is_live:
        systemctl("disable", UNIT, check=False)
    unit.unlink()
    if is_live:
        systemctl("daemon-reload")


def _has_user() -> bool:
    with suppress(KeyError):
        pwd.getpwnam(USER)
        return True
    return False


def _is_owner(path: Path) -> bool:
    return path.exists() and _has_user() and path.stat().st_uid == pwd.getpwnam(USER).pw_uid


def _own(path: Path) -> None:
    user = pwd.getpwnam(USER)
    os.chown(path, user.pw_uid, user.pw_gid)


def _state(path: Path) -> None:
    _folder(path, 0o700)
    _own(path)


def _make_user() -> None:
    _call("useradd", "--system", "--home-dir", "/", "--shell", "/usr/sbin/nologin", USER)


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunError(f"{command[0]} is missing on this board; install the package that has it") from None
    if done.returncode:
        raise RunError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
