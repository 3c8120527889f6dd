# SPDX-License-Identifier: Apache-2.0
"""What is done on one board, step by step, and on several side by side: one that fails stops no other.

Order on a board: look, copy and install beside what is there, enrol its key, start, wait for its HELLO. If a new
release does not come to that, the board goes back to the one before.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import PacelineError
from paceline.keys import fingerprint, is_public
from paceline.talk import printable
from paceline_host.onboard.bundle import Bundle
from paceline_host.onboard.greeting import HELLO_S, Greeting
from paceline_host.onboard.inventory import Inventory, Place
from paceline_host.onboard.shell import BoardError, Shell

AT_ONCE = 8  # boards side by side: more only share this machine's line
SYSTEM, PRIVATE = "/opt/paceline", ".local/paceline"
SKEW_S = 300  # of clocks, above which logs of host and board can hardly be read together
COPY_S, START_S = 1800.0, 180.0
SLOWEST_BPS = 1 << 20

LOOK = """
echo "paceline:arch=$(uname -m)"
echo "paceline:python=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
echo "paceline:now=$(date +%s)"
echo "paceline:uid=$(id -u)"
echo "paceline:user=$(id -un)"
echo "paceline:sudo=$(sudo -n true 2>/dev/null && echo yes)"
echo "paceline:from=${SSH_CONNECTION%% *}"
echo "paceline:home=$HOME"
echo "paceline:systemd=$([ -d /run/systemd/system ] && echo yes)"
P=${2:-$HOME/.local/paceline}
echo "paceline:current=$(readlink "$P/current" 2>/dev/null)"
echo "paceline:endpoint=$(sed -n 's/^endpoint *= *"\\(.*\\)" *$/\\1/p' "${3:-$P/etc}/agent.toml" 2>/dev/null)"
echo "paceline:serves=$(sed -n 's/^public_key *= *"\\(.*\\)" *$/\\1/p' "${3:-$P/etc}/agent.toml" 2>/dev/null)"
"""
# A tar that breaks off, or a step that fails, leaves nothing behind but what install.py made whole.
PUT = """
set -e
T=$(mktemp -d "${TMPDIR:-/var/tmp}/paceline-XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT PIPE TERM
cd "$T"
tar xzf - 2>/dev/null || { echo 'the bundle did not come through whole, or /var/tmp is full; try again' >&2; exit 4; }
$1 "$2" ./*/install.py --prefix "$3"
"""


@dataclass(frozen=True)
class Wish:
    """What is to be on all boards named. `home`: "system", "user", or a folder; it and `python` empty: as the board has
    it already, else "system" and python3. `endpoint` empty: this machine, as seen from the board, with `port`.
    """

    home: str
    host_key: str
    port: int
    endpoint: str = ""
    python: str = ""
    meter: str = ""
    dry_run: bool = False
    take_over: bool = False  # also a board that serves another host
    update: bool = False  # what is there works and may not become worse; its own endpoint stays
    window_s: float = HELLO_S


@dataclass
class Outcome:
    """The row of one board in the recap."""

    name: str
    address: str
    state: str = "failed"  # planned, installed, updated, unchanged, removed, running, ...
    trouble: str = ""
    exit_code: int = 0
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)  # release, arch, python, meter, watts, ...


def tried(name: str, work: Callable[[str], Outcome], address: str) -> Outcome:
    """Do `work` for a name; return the outcome, which a PacelineError becomes as well."""
    begin_s = time.monotonic()
    try:
        outcome = work(name)
    except PacelineError as error:
        outcome = Outcome(name, address, "failed", str(error), error.exit_code)
    except Exception as error:  # a bug here is told as that board's, and the others still end in order
        outcome = Outcome(name, address, "failed", f"a bug of paceline: {error!r}", 1)
    return replace(outcome, seconds=round(time.monotonic() - begin_s, 2))


def side_by_side(names: Sequence[str], work: Callable[[str], Outcome], shells: Mapping[str, Shell]) -> list[Outcome]:
    """Do `work` for each name, some at a time; return the outcomes in order."""
    found: dict[str, Outcome] = {}
    free = threading.Semaphore(AT_ONCE)

    def one(name: str) -> None:
        with free:
            found[name] = tried(name, work, shells[name].address)

    threads = [threading.Thread(target=one, args=(name,), name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[name] for name in names]


@dataclass
class Crew:
    """Installs on boards. `bundle_for`: architecture -> bundle, made when first asked for."""

    wish: Wish
    bundle_for: Callable[[str], Bundle]
    inventory: Inventory
    greeting: Greeting | None  # None: a dry run
    say: Callable[..., None]

    def install(self, name: str, shell: Shell) -> Outcome:
        """Bring the agent to a board, start it, hear of it. Raises PacelineError."""
        wish = self._wish_of(name)
        prefix = "" if wish.home == "user" else SYSTEM if wish.home == "system" else wish.home
        facts = _facts(shell.run(LOOK, wish.python, prefix, "/etc/paceline" if wish.home == "system" else ""))
        prefix = prefix or f"{facts['home']}/{PRIVATE}"
        root = self._root(wish.home, facts)
        arch = _checked(facts, wish)
        if wish.update and not facts["current"]:
            raise BoardError(9, f"there is no agent in {prefix} to update: `paceline boards install` brings one")
        endpoint = wish.endpoint or wish.update * facts.get("endpoint", "") or f"tcp://{_host_of(facts)}:{wish.port}"
        bundle = self.bundle_for(arch)
        outcome = Outcome(name, shell.address, "planned")
        outcome.facts = {
            "arch": arch, "python": facts["python"], "release": bundle.release, "was": facts["current"],
            "prefix": prefix, "endpoint": endpoint, "bundle_bytes": bundle.size, **_skew(facts),
        }  # fmt: skip
        if wish.dry_run:
            return outcome
        self.say(f"{name}: {arch}, Python {facts['python']}; sending {bundle.size / 1e6:.1f} MB", board=name)
        patience_s = COPY_S + bundle.size / SLOWEST_BPS
        place = Place(
            shell.address, shell.options, prefix, wish.home != "system", wish.python, arch, bundle.release,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )  # fmt: skip
        agent = f"{root} {shlex.quote(prefix)}/current/bin/paceline-agent".strip()
        below = "" if wish.home == "system" else f"--prefix {shlex.quote(prefix)}"
        wanted = shlex.join(
            ["--name", name, "--endpoint", endpoint, "--host-key", wish.host_key, "--meter", wish.meter]
        ) + " --take-over" * wish.take_over  # fmt: skip
        enrol = f"{agent} install --json {wanted} {below}"
        sees = wish.update and _told(shell.run(enrol, timeout_s=START_S))["watts"] is not None
        put = _told(shell.run(PUT, root, wish.python, prefix, file=bundle.path, timeout_s=patience_s))
        try:
            made = _told(shell.run(enrol, timeout_s=START_S))
            if sees and made["watts"] is None:
                raise BoardError(7, f"the new release has no readings where the old one has them: {made['why']}")
            self.inventory.enrol(name, str(made["public_key"]))
            self.inventory.put(name, place)
            assert self.greeting is not None
            self.greeting.admit(name, str(made["public_key"]))
            as_it_was = put["was"] == put["release"] and not made["steps"]
            if not as_it_was or self.greeting.hurries or not _runs(shell, f"{agent} service status {below}"):
                self.say(f"{name}: {put['release']} is there, its key is enrolled; starting it", board=name)
                shell.run(f"{agent} service start {below}", timeout_s=START_S)
            if not self.greeting.wait(name, wish.window_s):
                said = shell.run(f"{agent} service logs --lines 1 {below}")
                raise BoardError(4, _silent(endpoint, said, wish.window_s))
            if wish.update and not _runs(shell, f"{agent} service status {below}"):
                raise BoardError(
                    9, "the agent has greeted this host, and then ended: `paceline boards logs` tells more"
                )
        except PacelineError as error:
            if put["was"] in ("", put["release"]):
                raise
            back = _back(place, shell)
            if name in self.inventory.boards:
                self.inventory.put(name, replace(place, release=str(put["was"])))
            raise BoardError(error.exit_code, f"{error}; {back}") from None
        outcome.state = "installed" if not put["was"] else "unchanged" if put["was"] == put["release"] else "updated"
        outcome.facts |= {key: made[key] for key in ("meter", "watts", "why")} | {"taken": put["taken"]}
        return outcome

    def _wish_of(self, name: str) -> Wish:
        known = self.inventory.boards.get(name)
        home = known.prefix if known is not None and known.private else "system"
        python = known.python if known is not None else "python3"
        return replace(self.wish, home=self.wish.home or home, python=self.wish.python or python)

    def _root(self, home: str, facts: Mapping[str, str]) -> str:
        """Return what a command for the whole board begins with."""
        if home != "system" or facts["uid"] == "0":
            return ""
        if facts["sudo"] != "yes":
            raise BoardError(
                5, f"{facts['user']} may not use sudo there without a password: log in as root, or"
                f" --user for an agent of {facts['user']} alone"
            )  # fmt: skip
        return "sudo -n"


def act(place: Place, shell: Shell, command: str, *, has_prefix: bool = True, timeout_s: float = START_S) -> str:
    """Run a command of the agent on a board that is in the inventory; return what it printed. Raises BoardError."""
    program = f"{_as_root(place)} {shlex.quote(place.prefix)}/current/bin/paceline-agent".strip()
    below = f" --prefix {shlex.quote(place.prefix)}" if place.private and has_prefix else ""
    return shell.run(f"{program} {command}{below}", timeout_s=timeout_s)


def roll_back(place: Place, shell: Shell) -> str:
    """Go back to the release before; return its name. Raises BoardError."""
    there, python = shlex.quote(place.prefix), shlex.quote(place.python)
    told = _told(shell.run(f"{_as_root(place)} {python} {there}/current/install.py --prefix {there} --rollback"))
    act(place, shell, "service start")
    return str(told["release"])


def _back(place: Place, shell: Shell) -> str:
    """Go back after an update that did not come to life; return what came of it."""
    try:
        return f"{roll_back(place, shell)}, the release before, is back and runs"
    except PacelineError as error:
        return f"going back failed too: {error}"


def _as_root(place: Place) -> str:
    return "" if place.private else '$([ "$(id -u)" = 0 ] || echo sudo -n)'


def _facts(text: str) -> dict[str, str]:
    lines = (line.removeprefix("paceline:").partition("=") for line in text.splitlines() if line[:9] == "paceline:")
    facts = {key: printable(value) for key, _, value in lines}
    if not {"arch", "python", "uid", "current"} <= facts.keys():
        raise BoardError(9, "its shell does not answer as a POSIX system's: is this a Linux board?")
    return facts


def _checked(facts: Mapping[str, str], wish: Wish) -> str:
    """Return the architecture of a board on which the agent can live."""
    version = facts["python"]
    if not version:
        raise BoardError(6, f"there is no {wish.python} on it: apt-get install python3, or name another with --python")
    if tuple(int(part) for part in version.split(".")[:2]) < (3, 11):
        raise BoardError(
            6, f"its {wish.python} is {version}, paceline needs 3.11 or newer: name a newer one with --python, or use"
            " Debian 12 or later"
        )  # fmt: skip
    other = facts.get("serves", "")
    if is_public(other) and other != wish.host_key and not wish.take_over:
        raise BoardError(
            5, f"this board serves another host already, whose key has fingerprint {fingerprint(other)}; remove it"
            " there first, or take it from that host with --take-over"
        )  # fmt: skip
    return facts["arch"]


def _host_of(facts: Mapping[str, str]) -> str:
    """Return this machine's address as the board sees it: where its ssh session comes from."""
    address = facts["from"]
    if not address:
        raise BoardError(2, "it does not tell where this ssh session comes from: name this host with --endpoint")
    return f"[{address}]" if ":" in address else address


def _skew(facts: Mapping[str, str]) -> dict[str, str]:
    skew_s = int(facts["now"] or 0) - int(time.time())
    return {"clock": f"{skew_s:+d} s off this machine's: timedatectl set-ntp true"} if abs(skew_s) > SKEW_S else {}


def _told(text: str) -> dict[str, Any]:
    """Return the JSON object that a program there has printed last."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise BoardError(9, "it did not answer as expected; try again, then look with `paceline boards logs`")


def _runs(shell: Shell, question: str) -> bool:
    try:
        shell.run(question)
    except BoardError as error:
        if error.exit_code == 4:
            raise
        return False
    return True


def _silent(endpoint: str, log: str, wait_s: float) -> str:
    said = log.strip().splitlines()[-1:] or ["nothing"]
    return (
        f"the agent runs, but no HELLO came to {endpoint} within {wait_s:g} s: does a firewall close the port, or is"
        f" another address needed (--endpoint)? it says: {said[0]}"
    )
