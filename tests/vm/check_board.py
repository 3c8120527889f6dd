# SPDX-License-Identifier: Apache-2.0
"""A RISC-V board from nothing to a run beside an x86 one, and with its power cut. On demand: `make test-board`.

The agent comes by `paceline boards install` over a real sshd, as a bundle that was cross-built here; it meters over
/dev/i2c, trains with numpy, takes part over a network. Everything is emulated: seconds say nothing of a real board's.
"""

from __future__ import annotations

import json
import shutil
import socket
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.system.fleet_tools import Bench, Declared, Program, until

from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline_host.onboard import wheel

from . import guest, kernel, riscv64
from .board import HOST, Board

WATTS = 4.5  # what the load below draws
LOAD = "echo 1000000 900000 5000 > /sys/kernel/debug/paceline_bench/40/load"
METER = 'source = "ina219"\nbus = 0\naddress = 0x40\nshunt_ohm = 0.1\nidle_s = 2.0'
HOME = "/root/.local/paceline"
INSTALL_S, RUN_S = 600.0, 600.0
TRAIN, TEST = 512, 64

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def with_kernel() -> kernel.Kernel:
    try:
        guest.emulator("riscv64")
        return riscv64.ready(fetch=True)
    except kernel.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def board(with_kernel: kernel.Kernel, tmp_path: Path) -> Iterator[Board]:
    """Yield a board with nothing on it, and its power on."""
    folder = tmp_path / "board"
    folder.mkdir()
    made = Board(with_kernel, folder)
    try:
        print(f"bare guest: sshd answers after {made.up():.1f} s")
        assert made.call(LOAD) == ""
        yield made
    finally:
        made.cut()
        made.disk.unlink(missing_ok=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path / "bench") as made:
        yield made


@pytest.fixture
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


def install(bench: Bench, board: Board, port: int, *more: str | Path) -> Program:
    """Start an installation on the board."""
    return bench.start(
        f"install-{len(bench.programs)}", "paceline", "boards", "install", "rv=root@127.0.0.1", *board.options,
        "--user", "--listen", f"tcp://127.0.0.1:{port}", "--endpoint", f"tcp://{HOST}:{port}", "--meter", METER,
        "--json", *more,
    )  # fmt: skip


def row(program: Program) -> dict[str, Any]:
    """Return the row of the one board of a recap."""
    (found,) = json.loads(program.out)["boards"]
    return dict(found)


def digits(folder: Path) -> list[Path]:
    """Make a small data set in the form of MNIST; return its files."""
    source = np.random.default_rng(1)
    shapes = source.integers(0, 200, (10, 8, 8))
    folder.mkdir()
    for (images, labels), count in ((FILES[:2], TRAIN), (FILES[2:], TEST)):
        classes = np.arange(count) % 10
        noisy = shapes[classes] + source.integers(0, 56, (count, 8, 8))
        write_idx(folder / images, (count, 8, 8), noisy.astype(np.uint8).tobytes())
        write_idx(folder / labels, (count,), classes.astype(np.uint8).tobytes())
    return [folder / name for name in FILES]


def test_a_bare_board_is_installed_meters_and_trains_beside_another_kind(board: Board, bench: Bench, port: int) -> None:
    assert bench.call("paceline", "keys", "--dir", "keys").ends() == 0
    began = time.monotonic()
    made = install(bench, board, port)
    assert made.ends(INSTALL_S) == 0, made.err
    first = row(made)
    print(
        f"bare guest to first reading: {time.monotonic() - began:.1f} s, bundle {first['bundle_bytes']} bytes, "
        f"{first['meter']} {first['watts']:.3f} W, taken {first['taken']}"
    )
    assert (first["state"], first["arch"]) == ("installed", "riscv64")
    assert first["watts"] == pytest.approx(WATTS, rel=0.02)
    assert set(first["taken"].values()) == {"board"}, "Debian has all that it needs"

    files = digits(bench.folder / "digits")
    for path in files:
        put = f"mkdir -p {HOME}/state/data && cat > {HOME}/state/data/{path.name}"
        assert board.call(put, send=path.read_bytes()) == ""
    bench.call("paceline-agent", "keys", "--dir", bench.folder / "pc", "--name", "pc")
    shutil.copy(bench.folder / "pc" / "pc.pub", bench.folder / "keys" / "boards" / "pc.pub")
    fleet = {"kind": "boards", "keys": "keys", "listen": f"tcp://127.0.0.1:{port}"}
    settings = {"rounds": 2, "budget": 256, "policies": ["equal"], "patience_s": 60.0}
    task = {"name": "mnist", "batch": 8}
    more = f'[data]\nfolder = "{bench.folder / "digits"}"'
    host = bench.host(bench.experiment("mixed", settings, task=task, fleet=fleet, more=more))
    config = bench.write_agent("pc", f"tcp://127.0.0.1:{port}", Declared())
    config.write_text(f'data_dir = "{bench.folder / "digits"}"\n' + config.read_text("utf-8"), encoding="utf-8")
    bench.start("pc", "paceline-agent", "run", "--config", config)
    assert host.ends(RUN_S) == 0, host.err + str(bench.call("paceline", "boards", "logs", "rv").out)
    assert "rv trains with numpy 2.2.4" in host.err
    assert "every sample counted exactly once" in host.out
    ledger = bench.ledger("mixed-001/equal")
    assert ledger is not None
    with ledger:
        rv = next(each.board for each in ledger.boards() if each.name == "rv")
        done = [each for each in ledger.contributions() if each.board == rv]
        assert [each.samples for each in done] == [128, 128]
        windows = [each for each in ledger.energy() if each.board == rv]
    assert windows
    assert windows[-1].source.startswith("ina219")
    assert windows[-1].total_uj is not None
    watts = windows[-1].total_uj / windows[-1].span_us
    print(
        f"joules of the run: {windows[-1].total_uj / 1e6:.3f} J over {windows[-1].span_us / 1e6:.3f} s, {watts:.3f} W"
    )
    assert watts == pytest.approx(WATTS, rel=0.05)

    looked = bench.start("doctor", "paceline", "boards", "doctor", "rv")
    assert looked.ends(INSTALL_S) == 4, "nobody listens now, and that is all that is bad"
    assert "numpy" in looked.out
    assert "without it numpy trains MLPs on images" in looked.out
    gone = bench.start("remove", "paceline", "boards", "remove", "rv")
    assert gone.ends(INSTALL_S) == 0, gone.err
    assert board.call("ls -A /root/.local") == ""


def test_a_power_cut_leaves_the_old_agent_or_the_new_one(board: Board, bench: Bench, port: int) -> None:
    """In the midst of an installation, where none was before, it leaves none, and the next installation works."""
    assert bench.call("paceline", "keys", "--dir", "keys").ends() == 0
    first, second = releases = bundles(bench)
    begun = install(bench, board, port, "--bundle", releases[first])
    until("the board to unpack", lambda: board.call(f"ls -d {HOME}/.new-*"), INSTALL_S)
    restart(board, begun)
    assert board.call(f"readlink {HOME}/current || true") == "", "the release was not whole yet"
    begin_s = time.monotonic()
    again = install(bench, board, port, "--bundle", releases[first])
    assert again.ends(INSTALL_S) == 0, again.err
    takes_s = time.monotonic() - begin_s

    came = [first]
    for part in (0.3, 0.5, 0.7, 0.85):  # of the time that an installation takes
        update = install(bench, board, port, "--bundle", releases[second if came[-1] == first else first])
        with suppress(AssertionError):
            update.ends(part * takes_s)  # wherever it is then
        restart(board, update)
        came += (board.call(f"readlink {HOME}/current") or "none").split()
        assert came[-1] in releases
        agent = f"{HOME}/current/bin/paceline-agent"
        assert board.call(f"{agent} service status --prefix {HOME}") == "running (background)\n", (
            "it begins with the board"
        )
    print(f"power cut while updating, and what then ran: {came}")
    last = install(bench, board, port, "--bundle", releases[second])
    assert last.ends(INSTALL_S) == 0, last.err
    assert row(last)["state"] in ("updated", "unchanged")
    assert board.call(f"ls -d {HOME}/.new-* 2>/dev/null || true") == "", "what was begun is gone"


def bundles(bench: Bench) -> dict[str, Path]:
    """Make two bundles that differ in one module; return release -> file."""
    made: dict[str, Path] = {}
    wheels = bench.folder / "wheels"
    wheels.mkdir()
    for name in ("first", "second"):
        out = bench.folder / f"{name}.tar.gz"
        program = bench.start(
            name, "paceline", "boards", "bundle", "--arch", "riscv64", "--out", out, "--wheels", wheels, "--json"
        )
        assert program.ends(INSTALL_S) == 0, program.err
        made[json.loads(program.out)["release"]] = out
        with tarfile.open(out) as archive:
            member = next(each for each in archive.getmembers() if each.name.endswith(".whl"))
            file = archive.extractfile(member)
            assert file is not None
            with zipfile.ZipFile(file) as packed:
                files = {entry.filename: packed.read(entry) for entry in packed.infolist()}
        files["paceline_agent/agent.py"] += b"\n# second\n"
        wheel.pack(wheels / Path(member.name).name, files.items())
    return made


def restart(board: Board, working: Program) -> None:
    """Cut the power in the midst of what a program does there, and switch it on again."""
    board.cut()
    working.ends(INSTALL_S)
    board.up()
    assert board.call(LOAD) == ""
