# SPDX-License-Identifier: Apache-2.0
"""`paceline boards flash`: a firmware's image onto a chip, by the tool that the chip's makers keep, or by a copy.

What is to be done is a plan, made and checked before anything is touched; then it is shown, or done and verified.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DataError, LinkError, RunError, StorageError
from paceline.talk import Talk, printable
from paceline_host.onboard.images import Image, check_chip, read_image

VERSION_S = 60.0
TOOL_S = 300.0  # flash of 16 MB over 115200 baud is the user's own wish
LEAVES_S = 10.0  # a bootloader's folder goes away when the board starts the new firmware
SWD, OPENOCD = "swd", "openocd:"
INSTALL = {
    "esptool": "`pip install esptool`",
    "picotool": "`apt-get install picotool`, or copy to the folder that the board shows in BOOTSEL: --port FOLDER",
    "probe-rs": "https://probe.rs/docs/getting-started/installation/, or use --port openocd:INTERFACE.cfg,TARGET.cfg",
    "openocd": "`apt-get install openocd`",
}


@dataclass(frozen=True)
class Plan:
    """Commands in their order; or, with none, a copy of the image into `folder`."""

    image: Image
    port: str
    commands: tuple[tuple[str, ...], ...] = ()
    folder: Path | None = None

    def steps(self) -> list[str]:
        """Return it for a person, a line for each step."""
        if self.folder is not None:
            return [f"copy {self.image.path} to {self.folder}, and see it accepted"]
        return [shlex.join(command) for command in self.commands]


def flash(arguments: argparse.Namespace, talk: Talk) -> int:
    """Plan, then show or do."""
    plan = make_plan(read_image(arguments.image), arguments.port, arguments.chip, arguments.offset)
    verdict = "" if arguments.dry_run else _do(plan, talk)
    told = {"image": str(plan.image.path), "kind": plan.image.kind, "chip": arguments.chip or plan.image.chip}
    if arguments.json:
        row = {**told, "port": plan.port, "steps": plan.steps(), "done": not arguments.dry_run, "verdict": verdict}
        print(json.dumps({"schema": "paceline-flash-1", **row}))
        return 0
    talk.info(f"{told['image']}: {told['kind']}, for {told['chip']}, {len(plan.image.data)} bytes")
    print("\n".join(plan.steps()) if arguments.dry_run else verdict)
    return 0


def make_plan(image: Image, port: str, chip: str, offset: int) -> Plan:
    """Return what is to be done. Raises DataError (the wrong image), LinkError (the port), RunError (no tool)."""
    if chip:
        check_chip(image, chip)
    path = str(image.path.resolve())
    if image.kind == "uf2":
        if port == "usb":
            return Plan(image, port, ((_tool("picotool"), "load", "--verify", "--execute", path),))
        return Plan(image, port, folder=_bootloader(image, Path(port)))
    if image.kind == "esp":
        _check_serial(port)
        write = ("--chip", image.chip, "--port", port, _esptool_write(), hex(offset), path)
        return Plan(image, port, ((_tool("esptool", "esptool.py"), *write),))  # it compares a hash of what it wrote
    if port.startswith(OPENOCD):
        if set("{}\\") & set(path):
            raise DataError(f"--image {image.path}: openocd takes no braces or backslashes in a path; rename it")
        files = [word for name in port.removeprefix(OPENOCD).split(",") for word in ("-f", name)]
        program = f"program {{{path}}} verify reset exit"
        return Plan(image, port, ((_tool("openocd"), *files, "-c", program),))
    if port == SWD or re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}(:\S+)?", port):
        if not chip:
            raise DataError(
                f"--image {path} is ELF for {image.chip}, which tells no chip: add --chip, as probe-rs has it"
            )
        which = ("--chip", chip, *(("--probe", port) if port != SWD else ()))
        tool = _tool("probe-rs")
        return Plan(image, port, ((tool, "download", *which, "--verify", path), (tool, "reset", *which)))
    raise LinkError(
        f"--port {port}: an ELF goes over a debug probe: expected swd, VENDOR:PRODUCT[:SERIAL] of a probe, or "
        "openocd:INTERFACE.cfg,TARGET.cfg"
    )


# The parts of a plan ---------------------------------------------------------------------------------------------


def _tool(*names: str) -> str:
    found = next((name for name in names if shutil.which(name)), "")
    if not found:
        raise RunError(f"{names[0]} is not installed, and it is what flashes this chip: {INSTALL[names[0]]}")
    return found


def _esptool_write() -> str:
    """Return its word for writing, which changed with version 5."""
    tool = _tool("esptool", "esptool.py")
    major = re.search(r"(?:^|v)(\d+)\.\d", _called((tool, "version"), VERSION_S).stdout, re.MULTILINE)
    return "write-flash" if major and int(major.group(1)) >= 5 else "write_flash"


def _bootloader(image: Image, folder: Path) -> Path:
    """A folder that a UF2 bootloader shows, of a board for which the image is."""
    try:
        info = (folder / "INFO_UF2.TXT").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise LinkError(
            f"--port {folder}: it is no UF2 bootloader's folder (no INFO_UF2.TXT there): expected where the board is "
            "mounted that was plugged in with BOOTSEL held, or usb for picotool"
        ) from None
    board = re.search(r"^Board-ID:\s*(\S+)", info, re.MULTILINE)
    name = board.group(1) if board else "without a Board-ID"
    if not re.sub(r"[^a-z0-9]", "", name.lower()).startswith(_board(image.chip)):
        raise DataError(f"--image {image.path} is for {image.chip}, and the board at {folder} is {printable(name)}")
    return folder


def _board(chip: str) -> str:
    """Return how the Board-ID of a chip's boot ROM begins."""
    return {"rp2040": "rpirp2"}.get(chip, chip)


def _check_serial(port: str) -> None:
    """Open it as nobody else may have it, and give it back. Raises LinkError, one sentence."""
    try:
        line = os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        reasons = {
            errno.ENOENT: "it is not there; is the board plugged in? `ls /dev/serial/by-id` shows what is",
            errno.EACCES: "you may not open it: `sudo usermod -aG dialout $USER`, then log in anew",
            errno.EBUSY: f"another program uses it: `fuser -v {port}` names it; end it (an agent's meter?)",
        }
        raise LinkError(f"--port {port}: {reasons.get(error.errno or 0, error.strerror)}") from None
    try:
        if not os.isatty(line):
            raise LinkError(f"--port {port}: it is no serial port; expected one, as /dev/ttyACM0")
        fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LinkError(
            f"--port {port}: another program uses it: `fuser -v {port}` names it; end it (an agent's meter?)"
        ) from None
    finally:
        os.close(line)


# Doing it --------------------------------------------------------------------------------------------------------


def _do(plan: Plan, talk: Talk) -> str:
    """Do what is planned; return what is known of it then. Raises LinkError when it did not come to its end."""
    if plan.folder is not None:
        talk.info(plan.steps()[0])
        return copy(plan.image, plan.folder)
    for command in plan.commands:
        talk.info(shlex.join(command))
        _run(plan, command)
    return f"flashed and verified by {plan.commands[0][0]}"


def _called(command: tuple[str, ...], most_s: float) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end. Raises RunError."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=most_s, check=False,
        )  # fmt: skip
    except OSError as error:
        raise RunError(f"{command[0]} is there and does not run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RunError(
            f"{shlex.join(command)} did not end within {most_s:.0f} s: is the board there, and alive?"
        ) from None


def _run(plan: Plan, command: tuple[str, ...]) -> None:
    done = _called(command, TOOL_S)
    if done.returncode == 0:
        return
    if plan.port.startswith("/") and not Path(plan.port).exists():
        raise LinkError(f"{plan.port} went away while {command[0]} wrote: it was unplugged; {_half(plan.image)}")
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "it said nothing")
    raise LinkError(f"{command[0]} ended with status {done.returncode}: {printable(last.strip())}; {_half(plan.image)}")


def _half(image: Image) -> str:
    again = "hold its BOOT button while it is plugged in, and " if image.kind != "elf" else ""
    return f"the board may hold half an image: {again}flash it again"


def copy(image: Image, folder: Path, leaves_s: float = LEAVES_S) -> str:
    """Copy an image to a bootloader, which takes it block by block and goes away when it has all. Raises LinkError."""
    target = folder / image.path.name
    written = False
    try:
        with target.open("wb", buffering=0) as file:
            view = memoryview(image.data)
            while view:
                view = view[file.write(view) :]
            written = True
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StorageError(f"--port {folder}: there is not room for {len(image.data)} bytes") from None
        if written:  # a boot ROM starts the firmware with the last block, before the directory is written
            return "copied; the board went away meanwhile: it took the image, or was unplugged; does the meter speak?"
        raise LinkError(
            f"--port {folder}: the copy broke off ({error.strerror}): was it unplugged? {_half(image)}"
        ) from None
    ends_s = time.monotonic() + leaves_s
    while time.monotonic() < ends_s:
        if not (folder / "INFO_UF2.TXT").exists():
            return "copied; the board took it and left its bootloader"
        time.sleep(0.05)
    try:
        same = target.read_bytes() == image.data
    except OSError:
        same = False
    kept = "what is there is what was copied" if same else "what is there is not what was copied"
    raise LinkError(
        f"--port {folder}: the board is in its bootloader still, {leaves_s:g} s after the copy; {kept}; "
        "is the image for this board? (A folder that was mounted by hand may look so when the board is gone.)"
    )
