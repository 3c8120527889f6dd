# SPDX-License-Identifier: Apache-2.0
"""The bundle's own installer, where a board's power goes, its disk is full, or the bundle is for another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_host.onboard import board_install
from paceline_host.onboard.board_install import fits, machine

from .test_storage import small_disk

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(300)]  # a release is synced to disk each time
BASE = str(getattr(sys, "_base_executable", sys.executable))
MINOR = sys.version_info[1]
# Runs install.py; names on disk are changed one by one, and at the n-th change the power goes: no handler runs, nothing
# is flushed. 0: it runs to its end and tells the changes.
POWER = """
import atexit, json, os, runpy, sys
left, seen = int(sys.argv[1]), []
NAMES = {"os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir"}
def look(event, args):
    if event in NAMES:
        seen.append(f"{event} {args[1] if event == 'os.rename' else args[0]}")
        if len(seen) == left:
            os._exit(137)
sys.addaudithook(look)
atexit.register(lambda: left or print(json.dumps(seen)))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def unpacked(bundle: Path, tmp_path: Path) -> Path:
    """Return the folder of an unpacked bundle."""
    subprocess.run(["tar", "xzf", bundle, "-C", tmp_path], check=True, timeout=60)
    (folder,) = tmp_path.glob("paceline-*/")
    return folder


def install(folder: Path, prefix: Path, *more: str, power: int | None = None) -> subprocess.CompletedProcess[str]:
    begin = [BASE] if power is None else [BASE, "-c", POWER, str(power)]
    command = [*begin, str(folder / "install.py"), "--prefix", str(prefix), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def renamed(unpacked: Path, release: str) -> Path:
    """Return the same bundle as another release."""
    folder = unpacked.with_name(release)
    shutil.copytree(unpacked, folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "release": release}), encoding="utf-8")
    return folder


def works(prefix: Path) -> str:
    """Return the release that is current, which must work; empty: there is none."""
    release = board_install.current(prefix)
    if not release:
        assert not (prefix / "current").is_symlink(), "a link that leads nowhere"
        return ""
    shown = subprocess.run([prefix / "current/bin/paceline-agent", "--version"], capture_output=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return release


def test_wherever_the_power_goes_the_old_or_the_new_release_is_there(unpacked: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    for release in ("1.0-oldest", "2.0-old"):
        assert install(renamed(unpacked, release), prefix).returncode == 0
    newer = renamed(unpacked, "3.0-new")
    shutil.copytree(prefix, tmp_path / "counted", symlinks=True)
    changes = json.loads(install(newer, tmp_path / "counted", power=0).stdout.splitlines()[-1])
    renames = [number for number, change in enumerate(changes, 1) if change.startswith("os.rename")]
    assert len(renames) == 4, "release, previous, current, what is cleared away"
    seen = {}
    for power in sorted({1, renames[0] // 2, *renames, *(number + 1 for number in renames), len(changes)}):
        trial = tmp_path / f"trial-{power}"
        shutil.copytree(prefix, trial, symlinks=True)
        gone = install(newer, trial, power=power)
        assert gone.returncode == 137, gone.stderr
        seen[power] = works(trial)
        again = install(newer, trial)
        assert again.returncode == 0, again.stderr
        assert works(trial) == "3.0-new"
        assert {path.name for path in trial.iterdir()} == {".lock", "current", "previous", "2.0-old", "3.0-new"}
        shutil.rmtree(trial)
    assert [seen[power] for power in renames] == ["2.0-old", "2.0-old", "2.0-old", "3.0-new"]


def test_a_full_disk_and_one_that_may_not_be_written_are_told_apart(unpacked: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        full = install(unpacked, disk / "prefix")
        assert full.returncode == 10
        assert "MB free" in full.stderr
        assert "are needed: free some" in full.stderr
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=30)
        fixed = install(unpacked, disk / "prefix")
        assert fixed.returncode == 10
        assert "cannot be written" in fixed.stderr
        assert list(disk.iterdir()) == []


def test_a_dry_run_says_what_would_be_taken_from_where(unpacked: Path, tmp_path: Path) -> None:
    (lacking,) = (unpacked / "wheels").glob("pyzmq-*")
    manifest = json.loads((unpacked / "manifest.json").read_text(encoding="utf-8"))
    del manifest["files"][f"wheels/{lacking.name}"]
    (unpacked / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    planned = install(unpacked, tmp_path / "prefix", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "would take pyzmq from the board (apt-get install python3-zmq)" in planned.stderr
    assert "would take msgpack from the bundle" in planned.stderr
    assert not (tmp_path / "prefix").exists()


def test_a_bundle_for_another_machine_is_refused_by_the_board_too(unpacked: Path, tmp_path: Path) -> None:
    manifest = json.loads((unpacked / "manifest.json").read_text(encoding="utf-8"))
    manifest["arch"] = "riscv64"
    (unpacked / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    refused = install(unpacked, tmp_path / "prefix")
    assert refused.returncode == 6
    assert "this bundle is for riscv64, the board is" in refused.stderr


def test_without_a_release_before_there_is_no_way_back(unpacked: Path, tmp_path: Path) -> None:
    assert install(unpacked, tmp_path / "prefix").returncode == 0
    back = install(unpacked, tmp_path / "prefix", "--rollback")
    assert back.returncode == 9
    assert "there is no release before" in back.stderr
    assert os.readlink(tmp_path / "prefix/current") == works(tmp_path / "prefix")


@pytest.mark.parametrize(
    ("wheel", "is_one"),
    [
        ("smbus2-0.6.1-py2.py3-none-any", True),
        ("paceline-0.1.0-cp311-abi3-linux_{here}", True),
        (f"paceline-0.1.0-cp3{MINOR + 1}-abi3-linux_{{here}}", False),
        (f"msgpack-1.2-cp3{MINOR}-cp3{MINOR}-manylinux_2_17_{{here}}.manylinux2014_{{here}}", True),
        (f"msgpack-1.2-cp3{MINOR - 1}-cp3{MINOR - 1}-manylinux_2_17_{{here}}", False),
        (f"msgpack-1.2-cp3{MINOR}-cp3{MINOR}-manylinux_2_99_{{here}}", False),
        (f"msgpack-1.2-cp3{MINOR}-cp3{MINOR}-musllinux_1_2_{{here}}", False),
        (f"msgpack-1.2-cp3{MINOR}-cp3{MINOR}-manylinux_2_17_s390x", False),
        ("old-1.0-py2-none-any", False),
    ],
)
def test_a_wheel_is_taken_where_its_name_fits(wheel: str, is_one: bool) -> None:
    assert fits(f"{wheel.format(here=machine())}.whl") == is_one
