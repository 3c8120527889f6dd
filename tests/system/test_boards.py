# SPDX-License-Identifier: Apache-2.0
"""`paceline boards` against a real sshd: the agent comes, works, is updated, survives what goes wrong, and goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from .board_sshd import KEYS, Board
from .fleet_tools import BIN, Bench, Program, until
from .test_storage import small_disk

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(300)]
METER = 'source = "modelled"\nidle_w = 2.0\nactive_w = 4.0\nidle_s = 0.0'
AT_MOST_S = 150.0


@pytest.fixture
def board(bench: Bench) -> Iterator[Board]:
    """Yield a board, and a host with keys that is not started; afterwards end what the board still does."""
    made = Board(bench)
    assert bench.call("paceline", "keys", "--dir", "keys").ends() == 0
    yield made
    for pid in made.agents():
        os.kill(pid, signal.SIGTERM)
    until("the agents to end", lambda: not made.agents())


@pytest.fixture
def disk(board: Board) -> Iterator[Path]:
    """Yield a disk of the board that is too small."""
    with small_disk(board.folder / "disk") as made:
        yield made


@pytest.fixture
def endpoint() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def boards(bench: Bench, *argv: str | Path) -> Program:
    """Run `paceline boards` to its end."""
    program = bench.start(f"boards-{len(bench.programs)}", "paceline", "boards", *argv)
    program.ends(AT_MOST_S)
    return program


def install(board: Board, bundle: Path, endpoint: str, *more: str, name: str = "pi") -> Program:
    return boards(
        board.bench, "install", f"{name}={board.address}", *board.options, "--user", "--bundle", bundle,
        "--listen", endpoint, "--meter", METER, "--json", *more,
    )  # fmt: skip


def update(board: Board, bundle: Path, endpoint: str, *more: str) -> Program:
    return boards(board.bench, "update", "--bundle", bundle, "--listen", endpoint, "--json", *more)


def row(program: Program) -> dict[str, Any]:
    """Return the row of the one board of a recap."""
    (found,) = json.loads(program.out)["boards"]
    return dict(found)


def rebuilt(bundle: Path, folder: Path, module: str, change: Callable[[str], str]) -> Path:
    """Return a bundle whose wheel of ours has another text in one module."""
    folder.mkdir()
    subprocess.run(["tar", "xzf", bundle, "-C", folder], check=True, timeout=60)
    (wheel,) = folder.glob("*/wheels/paceline-*.whl")
    before = wheel.rename(folder / "before")
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            new.writestr(entry, change(content.decode()).encode() if entry.filename == module else content)
    out = folder / "changed.tar.gz"
    subprocess.run(
        [BIN / "paceline", "boards", "bundle", "--out", out, "--wheels", wheel.parent], check=True, timeout=AT_MOST_S
    )
    return out


def followed(more: str) -> Callable[[str], str]:
    """Return a change of a module: `more` at its end."""
    return lambda text: text + more


def test_an_agent_is_installed_works_and_leaves_nothing(board: Board, bundle: Path, endpoint: str) -> None:
    bench = board.bench
    looked = install(board, bundle, endpoint, "--dry-run")
    assert looked.ends() == 0, looked.err
    assert row(looked)["state"] == "planned"
    assert board.files() == [], "a dry run changes nothing"

    made = install(board, bundle, endpoint)
    assert made.ends() == 0, made.err
    first = row(made)
    assert (first["state"], first["meter"], first["watts"]) == ("installed", "modelled", pytest.approx(2.0, abs=0.2))
    home = board.home / ".local" / "paceline"
    assert os.readlink(home / "current") == first["release"]
    secret = home / "etc" / "pi.key"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (bench.folder / "keys/boards/pi.pub").read_bytes() == (home / "etc/pi.pub").read_bytes()
    assert not list((bench.folder / "keys").rglob("pi.key")), "the secret stays on the board"
    assert board.is_tidy()

    fleet = {"kind": "boards", "keys": "keys", "listen": endpoint}
    host = bench.host(bench.experiment("own", {"rounds": 2, "budget": 64, "policies": ["equal"]}, fleet=fleet))
    assert host.ends(AT_MOST_S) == 0, host.err
    assert "every sample counted exactly once" in host.out

    assert len(board.agents()) == 1
    again = boards(bench, "install", "pi", "--bundle", bundle, "--listen", endpoint, "--json")
    assert (again.ends(), row(again)["state"], row(again)["prefix"]) == (0, "unchanged", str(home)), again.err
    assert [path.name for path in home.glob("0*")] == [first["release"]]
    asked = boards(bench, "status", "--json")
    assert (asked.ends(), row(asked)["state"]) == (0, "running (background)"), asked.err
    assert "connecting to" in boards(bench, "logs", "pi").out
    (listed,) = json.loads(boards(bench, "list", "--json").out)["boards"]
    assert (listed["name"], listed["address"], listed["release"]) == ("pi", board.address, first["release"])

    gone = boards(bench, "remove", "pi")
    assert gone.ends() == 0, gone.err
    assert board.agents() == []
    assert board.files() in ([], ["home/.local"]), "only the folder that others use, too"
    assert list((bench.folder / "keys" / "boards").iterdir()) == []
    assert json.loads((bench.folder / "keys/boards.json").read_text(encoding="utf-8"))["boards"] == {}


FAULTS = {
    "host key": (5, "its ssh host key is not the one in known_hosts"),
    "unknown host": (5, "its ssh host key is not known yet: log in once with"),
    "user": (5, "it takes no key that this ssh offers"),
    "port": (4, "nothing listens on that port"),
    "name": (4, "no such name is known"),
    "python": (6, "there is no python9.9 on it"),
    "old python": (6, "is 3.9.2, paceline needs 3.11 or newer: name a newer one with --python"),
    "place": (10, "cannot be written"),
    "full": (10, "MB free"),
    "architecture": (6, "is for riscv64, the board is"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_sentence_and_changes_nothing(
    fault: str, board: Board, bundle: Path, endpoint: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address, options, home = board.address, board.options, ["--user"]
    if fault == "host key":
        other = (board.folder / "id.pub").read_text(encoding="ascii")
        board.known_hosts.write_text(f"[127.0.0.1]:{board.port} {other}", encoding="ascii")
    elif fault == "unknown host":
        board.known_hosts.write_text("", encoding="ascii")
    elif fault == "user":
        address = "nobody-of-that-name@127.0.0.1"
    elif fault == "port":
        board.sshd.process.terminate()
        board.sshd.ends()
    elif fault == "name":
        address = "root@no-such-board.invalid"
    elif fault == "python":
        options = [*options, "--python", "python9.9"]
    elif fault == "old python":
        old = board.folder / "python3.9"
        old.write_text("#!/bin/sh\necho 3.9.2\n", encoding="ascii")
        old.chmod(0o755)
        options = [*options, "--python", str(old)]
    elif fault == "full":
        home = ["--prefix", f"{request.getfixturevalue('disk')}/below"]
    elif fault == "place":
        (board.folder / "file").write_text("", encoding="ascii")
        home = ["--prefix", f"{board.folder}/file/below"]
    else:
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        (wheels / "paceline-0.1.0-cp311-abi3-linux_riscv64.whl").write_bytes(b"")
        bundle = tmp_path / "rv.tar.gz"
        made = boards(board.bench, "bundle", "--arch", "riscv64", "--wheels", wheels, "--out", bundle)
        assert made.ends() == 0, made.err
    failed = boards(
        board.bench, "install", f"pi={address}", *options, *home, "--bundle", bundle, "--listen", endpoint, "--json"
    )
    status, sentence = FAULTS[fault]
    assert failed.ends() == status, failed.err
    assert sentence in failed.err
    assert len(failed.err.splitlines()) <= 2
    assert (row(failed)["exit_code"], row(failed)["state"]) == (status, "failed")
    assert board.is_tidy()
    assert board.files() == []
    assert list((board.bench.folder / "keys" / "boards").iterdir()) == []


CUT = """
import os, select, socket, sys
port, left = int(sys.argv[1]), int(sys.argv[2])
with socket.create_connection(("127.0.0.1", port)) as line:
    while left > 0:
        for ready in select.select([line, sys.stdin], [], [])[0]:
            if ready is line:
                os.write(1, line.recv(65536))
            else:
                data = os.read(0, min(65536, left))
                left -= len(data)
                line.sendall(data)
"""


def test_a_copy_that_is_cut_leaves_nothing_and_the_next_one_works(board: Board, bundle: Path, endpoint: str) -> None:
    cut = board.folder / "cut.py"
    cut.write_text(CUT, encoding="ascii")
    half = bundle.stat().st_size // 2
    failed = install(
        board, bundle, endpoint, "--ssh-option", f"ProxyCommand={sys.executable} {cut} {board.port} {half}"
    )
    assert failed.ends() == 4, failed.err
    assert board.is_tidy()
    assert board.files() == []
    made = install(board, bundle, endpoint)
    assert (made.ends(), row(made)["state"]) == (0, "installed"), made.err


BAD = (
    ("dead", "agent", "\nAgent.run = lambda _: 9\n", 9, "the agent ended with status 9"),
    ("deaf", "link", "\nAgentLink.send = lambda *_: True\n", 4, "within 1 s: does a firewall close the port"),
    ("blind", "installing", """
def reading(config: AgentConfig) -> dict[str, object]:
    return {"meter": "modelled", "watts": None, "why": "it was dropped"}
""", 7, "the new release has no readings where the old one has them: it was dropped"),
)  # fmt: skip


def test_an_update_that_does_not_work_leaves_the_agent_as_it_was(
    board: Board, bundle: Path, endpoint: str, tmp_path: Path
) -> None:
    made = install(board, bundle, endpoint)
    assert made.ends() == 0, made.err
    release = row(made)["release"]
    home = board.home / ".local" / "paceline"
    (agent,) = board.agents()

    lame = rebuilt(bundle, tmp_path / "lame", "paceline_agent/agent.py", followed("\nraise OSError('lame')\n"))
    failed = install(board, lame, endpoint)
    assert failed.ends() == 9, failed.err
    assert "the new release does not work here: OSError: lame" in failed.err
    assert (os.readlink(home / "current"), board.agents()) == (release, [agent])

    for name, module, change, status, why in BAD:
        bad = rebuilt(bundle, tmp_path / name, f"paceline_agent/{module}.py", followed(change))
        failed = update(board, bad, endpoint, "--window", "1")
        assert failed.ends() == status, failed.err
        assert why in failed.err
        assert f"{release}, the release before, is back and runs" in failed.err
        assert os.readlink(home / "current") == release
        until("the old agent to run again", board.agents)

    better = rebuilt(bundle, tmp_path / "better", "paceline_agent/agent.py", followed("\n# better\n"))
    updated = update(board, better, endpoint)
    assert (updated.ends(), row(updated)["state"]) == (0, "updated"), updated.err
    assert os.readlink(home / "previous") == release
    back = boards(board.bench, "rollback", "pi")
    assert back.ends() == 0, back.err
    assert os.readlink(home / "current") == release
    (listed,) = json.loads(boards(board.bench, "list", "--json").out)["boards"]
    assert listed["release"] == release


def test_for_the_whole_board_the_agent_is_a_user_of_its_own(bench: Bench, bundle: Path, endpoint: str) -> None:
    board = Board(bench, whole=True)
    assert bench.call("paceline", "keys", "--dir", "keys").ends() == 0
    made = boards(
        bench, "install", f"pi={board.address}", *board.options, "--python", system_python(), "--bundle", bundle,
        "--listen", endpoint, "--meter", METER, "--json",
    )  # fmt: skip
    assert made.ends() == 0, made.err
    assert (row(made)["state"], row(made)["prefix"]) == ("installed", "/opt/paceline")
    places = [board.root / path for path in PLACES]
    assert [path.exists() for path in places] == [True] * len(places)
    users = (board.root / "etc/passwd").read_text(encoding="utf-8")
    (user,) = [line.split(":") for line in users.splitlines() if line.startswith("paceline-agent:")]
    secret = (board.root / "etc/paceline/pi.key").stat()
    assert (secret.st_uid, secret.st_mode & 0o777) == (int(user[2]), 0o600)
    looked = boards(bench, "doctor", "pi")
    assert looked.ends() == 4, "nobody listens now, and that is all that is bad"
    assert "the rest is seen with the rights of paceline-agent" in looked.out
    assert looked.out.count("\n  bad ") == looked.out.count("\n  bad   host ") == 1
    gone = boards(bench, "remove", "pi")
    assert gone.ends() == 0, gone.err
    assert [str(path) for path in places if path.exists()] == []
    assert "paceline-agent" not in (board.root / "etc/passwd").read_text(encoding="utf-8")


PLACES = (
    "opt/paceline/current", "etc/paceline/agent.toml", "etc/systemd/system/paceline-agent.service",
    "var/lib/paceline-agent",
)  # fmt: skip


def test_who_may_not_use_sudo_there_is_told_what_else_there_is(bench: Bench, bundle: Path, endpoint: str) -> None:
    board = Board(bench, whole=True)
    assert bench.call("paceline", "keys").ends() == 0
    with (board.root / "etc/passwd").open("a", encoding="ascii") as users:
        users.write("plain:x:47110:47110::/:/bin/sh\n")
    (board.root / KEYS[1:]).write_bytes((board.folder / "id.pub").read_bytes())
    failed = boards(
        bench, "install", "pi=plain@127.0.0.1", *board.options, "--python", system_python(), "--bundle", bundle,
        "--listen", endpoint,
    )  # fmt: skip
    assert failed.ends() == 5, failed.err
    assert "plain may not use sudo there without a password: log in as root, or --user" in failed.err
    assert len(failed.err.splitlines()) == 1
    assert not (board.root / PLACES[0]).exists()


def system_python() -> str:
    """Return a Python that a user without a home can read, and of which the bundle has wheels."""
    for path in ("/usr/bin/python3", str(getattr(sys, "_base_executable", sys.executable))):
        ask = [path, "-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"]
        is_readable = all(folder.stat().st_mode & 0o001 for folder in Path(path).resolve().parents)
        if Path(path).exists() and is_readable and subprocess.run(ask, check=False).returncode == 0:
            return path
    pytest.skip(f"there is no python3 of version {sys.version_info[:2]} outside of homes: apt-get install python3")


def test_one_of_two_boards_fails_and_the_other_does_not_mind(board: Board, bundle: Path, endpoint: str) -> None:
    made = boards(
        board.bench, "install", f"pi={board.address}", "gone=root@no-such-board.invalid", *board.options, "--user",
        "--bundle", bundle, "--listen", endpoint, "--meter", METER, "--json",
    )  # fmt: skip
    assert made.ends() == 8, made.err
    states = {each["name"]: (each["state"], each["exit_code"]) for each in json.loads(made.out)["boards"]}
    assert states == {"pi": ("installed", 0), "gone": ("failed", 4)}


def test_a_daemon_hears_of_the_board_and_another_host_does_not_get_it(
    board: Board, bundle: Path, endpoint: str
) -> None:
    bench = board.bench
    assert bench.call("paceline", "host", "--init", "h").ends() == 0
    (bench.folder / "h/host.toml").write_text(f'listen = "{endpoint}"\n', encoding="utf-8")
    operator = bench.folder / "h/operator.toml"
    operator.write_text(operator.read_text("utf-8").replace("tcp://127.0.0.1:5570", endpoint), "utf-8")
    bench.start("daemon", "paceline", "host", "--config", "h/host.toml").says("listening on")
    there: list[str | Path] = [
        f"pi={board.address}",
        *board.options,
        "--user",
        "--bundle",
        bundle,
        "--meter",
        METER,
        "--json",
    ]
    made = boards(bench, "install", *there, "--host", "h")
    assert made.ends() == 0, made.err
    (agent,) = board.agents()
    again = boards(bench, "install", *there, "--host", "h")
    assert (again.ends(), row(again)["state"]) == (0, "unchanged"), again.err
    assert board.agents() == [agent], "an agent that works for a daemon is not disturbed"
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        other = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    stolen = boards(bench, "install", *there, "--keys", "keys", "--listen", other)
    assert stolen.ends() == 5, stolen.err
    assert "this board serves another host already, whose key has fingerprint" in stolen.err
    assert "sending" not in stolen.err, "nothing is touched"
    assert board.agents() == [agent]
    taken = boards(bench, "install", *there, "--keys", "keys", "--listen", other, "--take-over")
    assert taken.ends() == 0, taken.err
    settings = (board.home / ".local/paceline/etc/agent.toml").read_text(encoding="utf-8")
    assert other in settings
    assert METER in settings, "what is the board's own stays"
    assert (bench.folder / "keys/boards/pi.pub").exists()


def test_a_bundle_is_the_same_bytes_again_and_a_damaged_one_is_refused(bundle: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar.gz"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    subprocess.run(["tar", "xzf", bundle, "-C", tmp_path], check=True, timeout=60)
    (unpacked,) = tmp_path.glob("paceline-*/")
    for wheel in (unpacked / "wheels").iterdir():
        shutil.copy(wheel, wheels)
    command: list[str | Path] = [BIN / "paceline", "boards", "bundle", "--out", again, "--wheels", wheels]
    subprocess.run(command, check=True, timeout=AT_MOST_S)
    assert again.read_bytes() == bundle.read_bytes()
    with next((unpacked / "wheels").glob("msgpack-*")).open("ab") as file:
        file.write(b"x")
    damaged = subprocess.run(
        [sys.executable, unpacked / "install.py", "--prefix", tmp_path / "p"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert damaged.returncode == 3
    assert "the bundle is damaged: wheels/msgpack-" in damaged.stderr
    assert not (tmp_path / "p").exists()
