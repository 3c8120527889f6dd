# SPDX-License-Identifier: Apache-2.0
"""Installs the bundle that it lies in, on the board: a release beside the old one, then one link is switched.

Runs on the board as install.py, by that board's Python: standard library only, nothing from an index, no compiler, no
pip. Whenever the power goes, PREFIX/current leads to a whole release, the old or the new one: a release is built under
another name, tried, written to disk and renamed before the link is replaced, which is one step of the file system.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
USAGE, CONFIGURATION, VERSION, FAILED, STORAGE = 2, 3, 6, 9, 10  # exit statuses, as those of paceline itself
OLDEST = (3, 11)
ROOM = 3  # times the bundle: what lies in it packed, with place to spare
ROOM_MORE = 32 << 20
TRIED = """
import _cffi_backend, msgpack, serial, smbus2, zmq
import paceline_agent.agent, paceline_agent.commands
from paceline import Controller
assert sum(Controller(2, 10).allocate()) == 10
assert zmq.has("curve"), "this libzmq has no CURVE"
"""
LAUNCHER = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""
GLIBC = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


class InstallError(Exception):
    """A sentence for the user, and the exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def main() -> int:
    """Install, or roll back; return the exit status. Talk goes to stderr, one JSON object to stdout."""
    parser = argparse.ArgumentParser(description="Installs paceline's agent from this bundle.")
    parser.add_argument("--prefix", type=Path, default=Path("/opt/paceline"), help="default: /opt/paceline, as root")
    parser.add_argument("--dry-run", action="store_true", help="check, say what would be done, and do nothing")
    parser.add_argument("--rollback", action="store_true", help="go back to the release before")
    arguments = parser.parse_args()
    prefix = arguments.prefix.expanduser().absolute()
    os.umask(0o022)  # the agent's user reads what root installs
    try:
        told = roll_back(prefix) if arguments.rollback else install(prefix, arguments.dry_run)
    except InstallError as error:
        say(str(error))
        return error.status
    except OSError as error:
        say(f"cannot write {error.filename or prefix}: {error.strerror}; what was there before is as it was")
        return STORAGE
    print(json.dumps(told))
    return 0


def install(prefix: Path, dry_run: bool) -> dict[str, object]:
    """Bring the bundle's release to `prefix` and switch to it; a second time changes nothing."""
    manifest = checked(HERE)
    release = str(manifest["release"])
    was = current(prefix)
    wheels = [name for name in sorted(manifest["files"]) if name.endswith(".whl") and fits(Path(name).name)]
    taken = {
        need: "bundle" if any(Path(name).name.startswith(f"{need}-") for name in wheels) else "board"
        for need in manifest["needs"]
    }
    room(prefix, sum((HERE / name).stat().st_size for name in wheels))
    told: dict[str, object] = {"schema": "paceline-release-1", "release": release, "was": was, "taken": taken}
    if dry_run:
        say(f"would make {prefix / release} and switch {prefix / 'current'} to it (now: {was or 'none'})")
        for need, where in taken.items():
            say(f"would take {need} from the {where}" + ("" if where == "bundle" else f" ({manifest['needs'][need]})"))
        return told
    prefix.mkdir(parents=True, exist_ok=True)
    with (prefix / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError(FAILED, f"another installation works in {prefix}; wait for its end") from None
        for left in prefix.glob(".new-*"):  # of one that was interrupted
            shutil.rmtree(left)
        if trouble(prefix / release):
            build(prefix, release, wheels, manifest)
        if was != release:
            switch(prefix, "previous", was)
            switch(prefix, "current", release)
        clean(prefix)
    say(f"{prefix / 'current'} is {release}" + (" already" if was == release else ""))
    return told


def checked(folder: Path) -> dict:  # type: ignore[type-arg]  # what JSON gives
    """Return the manifest of a bundle that is whole, and for this machine."""
    here = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < OLDEST:
        raise InstallError(
            VERSION, f"this board's {sys.executable} is {here}, paceline needs 3.11 or newer: name another"
        )
    try:
        manifest: dict = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))  # type: ignore[type-arg]
        for name, digest in manifest["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise InstallError(
                    CONFIGURATION, f"the bundle is damaged: {name} is not what its manifest says; send it anew"
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InstallError(CONFIGURATION, f"the bundle is not whole ({error}); send it anew") from None
    if manifest["arch"] != machine():
        raise InstallError(
            VERSION, f"this bundle is for {manifest['arch']}, the board is {machine()}: send one for that"
        )
    return manifest


def machine() -> str:
    """Return the architecture of this Python, which may be the 32-bit one of a 64-bit kernel."""
    name = platform.machine()
    return {"aarch64": "armv7l", "x86_64": "i686"}.get(name, name) if struct.calcsize("P") == 4 else name


def fits(wheel: str) -> bool:
    """Tell whether this Python can use a wheel, by its name."""
    python, abi, platforms = wheel[: -len(".whl")].split("-")[-3:]
    minor = sys.version_info[1]
    is_python = any(
        tag in ("py3", "py2.py3") or tag == f"cp3{minor}"
        or (abi == "abi3" and tag[:3] == "cp3" and tag[3:].isdecimal() and int(tag[3:]) <= minor)
        for tag in python.split(".")
    )  # fmt: skip
    return is_python and any(_is_platform(tag) for tag in platforms.split("."))


def _is_platform(tag: str) -> bool:
    if tag == "any":
        return True
    if not tag.endswith(f"_{machine()}"):
        return False
    family = tag[: -len(machine()) - 1]
    needs = GLIBC.get(family)
    if family.startswith("manylinux_"):
        needs = (int(family.split("_")[1]), int(family.split("_")[2]))
    return family == "linux" or (needs is not None and glibc() >= needs)


def glibc() -> tuple[int, ...]:
    """Return the C library's version; (0,): it is another one."""
    with suppress(OSError, ValueError):
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
        return tuple(int(part) for part in text.rpartition(" ")[2].split("."))
    return (0,)


def room(prefix: Path, packed: int) -> None:
    """Refuse a place that cannot be written, or that is too small."""
    there = next(path for path in (prefix, *prefix.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK) or os.statvfs(there).f_flag & os.ST_RDONLY:
        raise InstallError(STORAGE, f"{there} cannot be written: use root, name another --prefix, or mount it writable")
    free, needed = shutil.disk_usage(there).free, ROOM * packed + ROOM_MORE
    if free < needed:
        raise InstallError(STORAGE, f"{there} has {free >> 20} MB free, {needed >> 20} MB are needed: free some")


def build(prefix: Path, release: str, wheels: list[str], manifest: dict) -> None:  # type: ignore[type-arg]
    """Make a release: an environment that sees the board's own packages too, the wheels in it; try it; rename it."""
    new, final = prefix / f".new-{release}", prefix / release
    base = Path(getattr(sys, "_base_executable", "") or sys.executable)
    site = new / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (new / "bin").mkdir()
    (new / "bin" / "python").symlink_to(base)
    (new / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = true\nversion = {platform.python_version()}\n",
        encoding="utf-8",
    )
    for name in wheels:
        unpack(HERE / name, site, new / "bin", final / "bin" / "python")
    for name in ("manifest.json", "install.py"):
        shutil.copyfile(HERE / name, new / name)
    why = trouble(new)
    if why:
        shutil.rmtree(new)
        lacking = [text for need, text in manifest["needs"].items() if need in why or text in why]
        raise InstallError(
            FAILED, f"the new release does not work here: {why}" + f" ({', '.join(lacking)})" * bool(lacking)
        )
    if final.exists():  # it was there, and no longer works
        final.rename(prefix / f".new-broken-{release}")
    os.sync()
    new.rename(final)


def unpack(wheel: Path, site: Path, programs: Path, python: Path) -> None:
    """Unpack a wheel, and write its programs as they are called where the release will be."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = Path(entry.filename).parts
            if entry.is_dir() or ".." in parts or Path(entry.filename).is_absolute():
                continue
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            path = site.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(entry))
        listed = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        text = archive.read(listed[0]).decode() if listed else ""
    for line in text.partition("[console_scripts]")[2].partition("[")[0].splitlines():
        name, equals, target = line.partition("=")
        if equals and name.strip().startswith("paceline"):
            module, _, function = target.strip().partition(":")
            program = programs / name.strip()
            program.write_text(LAUNCHER.format(python=python, module=module, function=function), encoding="utf-8")
            program.chmod(0o755)


def trouble(release: Path) -> str:
    """Return why a release does not work here; empty: it does."""
    python = release / "bin" / "python"
    if not python.exists() or not (release / "manifest.json").exists():
        return "it is not there"
    done = subprocess.run(
        [str(python), "-I", "-c", TRIED], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", check=False
    )
    if done.returncode == -signal.SIGILL:
        return "illegal instruction: something in it is built for other processors"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"it ended with {done.returncode}"


def current(prefix: Path, link: str = "current") -> str:
    """Return the release that a link leads to; empty: none."""
    try:
        name = os.readlink(prefix / link)
    except OSError:
        return ""
    return name if (prefix / name).is_dir() else ""


def switch(prefix: Path, link: str, release: str) -> None:
    """Let a link lead to a release, from one instant to the next."""
    if not release:
        return
    new = prefix / f".{link}.new"
    with suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(release)
    os.replace(new, prefix / link)
    descriptor = os.open(prefix, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def clean(prefix: Path) -> None:
    """Remove releases that neither link leads to."""
    kept = {current(prefix), current(prefix, "previous")}
    for path in list(prefix.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in kept and (path / "manifest.json").exists():
            gone = path.with_name(f".new-gone-{path.name}")  # under this name the next installation finds what is left
            path.rename(gone)
            shutil.rmtree(gone)


def roll_back(prefix: Path) -> dict[str, object]:
    """Switch back to the release before."""
    now, before = current(prefix), current(prefix, "previous")
    if not before:
        raise InstallError(FAILED, f"there is no release before {now or 'the first'} in {prefix} to go back to")
    switch(prefix, "current", before)
    switch(prefix, "previous", now)
    say(f"{prefix / 'current'} is {before} again")
    return {"schema": "paceline-release-1", "release": before, "was": now}


def say(text: str) -> None:
    """Tell the user."""
    print(f"install: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
