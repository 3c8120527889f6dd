# SPDX-License-Identifier: Apache-2.0
"""The instruction sets that libpaceline is proven on here: how to build for each, how to run, how to measure size.

`python -m tests.arch.targets` from the root builds and runs the vectors on every target whose tools are there, and
prints the sizes of the core on a Cortex-M3.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core_c"
SOURCES = sorted(str(path) for path in (CORE / "src").glob("*.c"))
SMALL = [source for source in SOURCES if not Path(source).name.startswith("pl_engine")]  # the core without the server's
FLAGS = (CORE / "flags.txt").read_text(encoding="utf-8").split()
INCLUDE = f"-I{CORE / 'include'}"

TEXT_BUDGET = 12 * 1024  # bytes of code and constants on a Cortex-M3, everything linked in ...
SENSORS_BUDGET = 448  # ... but the decoding of sensors' registers, which only a board that reads such a sensor links in
SENSORS = "pl_sensors.c"
LOCAL_BUDGET = 224  # ... and a client's local draw, which only a client of split learning links in
LOCAL = "pl_local.c"
FRONTIER_BUDGET = 21 * 512  # ... and the frontier, which belongs where a round is planned; bare metal may leave it out
FRONTIER = "pl_frontier.c"
WIDE_BUDGET = 5 * 512  # ... and allocation for many, which PL_SMALL leaves out
WIDE = "pl_allocate_wide.c"
SUMS_BUDGET = 832  # ... and sums over models, which only who averages them links in
SUMS = "pl_sums.c"
APART = {
    SENSORS: SENSORS_BUDGET, LOCAL: LOCAL_BUDGET, FRONTIER: FRONTIER_BUDGET, WIDE: WIDE_BUDGET, SUMS: SUMS_BUDGET
}  # fmt: skip
STACK_BUDGET = 320  # bytes of any one function there ...
FRONTIER_STACK_BUDGET = 1152  # ... but in the frontier: counts of 256 digits, while boards are sorted
STATES = (
    "rng", "seat", "participant", "group", "controller", "knot", "integrator", "sampler", "local", "pace", "lane", "fit"
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One instruction set: compiler and its flags, emulator and what stands before the program's name."""

    name: str
    compiler: str
    flags: tuple[str, ...]
    run: tuple[str, ...]
    packages: str  # Debian's, for the reason of a skip
    after: tuple[str, ...] = ()  # what stands behind the program's name
    bare: bool = False  # no operating system: without the server's sources


def _bare(start: str, ram: str) -> tuple[str, ...]:
    """Return picolibc's linking with semihosting: code from `start`, data from `ram`."""
    sizes = {
        "__flash": start,
        "__flash_size": "0x400000",
        "__ram": ram,
        "__ram_size": "0x10000",
        "__stack_size": "0x1000",
    }
    symbols = tuple(f"-Wl,--defsym={name}={value}" for name, value in sizes.items())
    return ("--specs=picolibc.specs", "--oslib=semihost", "--crt0=hosted", *symbols)


SEMIHOSTING = ("-nographic", "-semihosting-config", "enable=on,target=native")
M3 = ("-mcpu=cortex-m3", "-mthumb")
TARGETS = (
    Target("riscv64", "riscv64-linux-gnu-gcc", ("-static",), ("qemu-riscv64-static",),
           "qemu-user-static gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"),
    Target("aarch64", "aarch64-linux-gnu-gcc", ("-static",), ("qemu-aarch64-static",),
           "qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    Target("armhf", "arm-linux-gnueabihf-gcc", ("-static",), ("qemu-arm-static",),
           "qemu-user-static gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"),
    Target("rv32imac, bare metal", "riscv64-unknown-elf-gcc",
           ("-march=rv32imac", "-mabi=ilp32", "-mcmodel=medany", *_bare("0x80000000", "0x80400000")),
           ("qemu-system-riscv32", "-M", "virt", "-m", "64", "-bios", "none", "-kernel"),
           "qemu-system-misc gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf", SEMIHOSTING, bare=True),
    Target("Cortex-M3, bare metal", "arm-none-eabi-gcc", (*M3, *_bare("0", "0x20000000")),
           ("qemu-system-arm", "-M", "mps2-an385", "-kernel"),
           "qemu-system-arm gcc-arm-none-eabi picolibc-arm-none-eabi", SEMIHOSTING, bare=True),
)  # fmt: skip


def missing(target: Target) -> str:
    """Return why a target cannot be tried on this machine; empty when it can."""
    lacks = [tool for tool in (target.compiler, target.run[0]) if shutil.which(tool) is None]
    if lacks:
        return f"{' and '.join(lacks)} missing: apt-get install {target.packages}"
    probe = [target.compiler, *target.flags, "-fsyntax-only", "-x", "c", "-"]
    if subprocess.run(probe, input=b"#include <stdio.h>\n", capture_output=True, check=False).returncode:
        return f"{target.compiler} finds no C library: apt-get install {target.packages}"
    return ""


def build(target: Target, folder: Path, *more: str, name: str = "test_vectors") -> Path:
    """Build a C test, the vectors by default, with the core for a target."""
    program = folder / f"{name}.elf"
    test = str(ROOT / "tests" / "core_c" / f"{name}.c")
    sources = ["-DBARE", *SMALL] if target.bare else SOURCES
    command = [target.compiler, *FLAGS, "-O2", *more, INCLUDE, test, *sources, *target.flags, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def execute(target: Target, program: Path) -> subprocess.CompletedProcess[str]:
    """Run a program on a target; the emulator's status is that of main, and semihosting speaks on its stderr."""
    return subprocess.run(
        [*target.run, str(program), *target.after],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


@dataclass(frozen=True)
class Sizes:
    """What the core takes on a Cortex-M3, in bytes."""

    text: dict[str, int]  # code and constants by source
    writable: int  # initialised and zeroed globals together
    stack: dict[str, int]  # by function
    frontier_stack: dict[str, int]
    state: dict[str, int]  # by struct


def sizes(folder: Path) -> Sizes:
    """Compile the core for size and measure it."""
    text, writable = {}, 0
    stack: dict[str, int] = {}
    frontier_stack: dict[str, int] = {}
    for source in SMALL:
        object_ = folder / (Path(source).stem + ".o")
        flags = [*FLAGS, *M3, "-DPL_SMALL", "-Os", "-ffreestanding", "-fstack-usage", INCLUDE]
        subprocess.run(["arm-none-eabi-gcc", *flags, "-c", source, "-o", str(object_)], check=True)
        measured = _output("arm-none-eabi-size", str(object_)).splitlines()[1].split()
        text[Path(source).name] = int(measured[0])
        writable += int(measured[1]) + int(measured[2])
        for line in object_.with_suffix(".su").read_text(encoding="utf-8").splitlines():
            place, used, _ = line.split("\t")
            where = frontier_stack if Path(source).name == FRONTIER else stack
            where[place.rpartition(":")[2]] = int(used)
    probe = folder / "states.c"
    lines = [f"char size_of_{name}[sizeof(pl_{name})];" for name in STATES]
    probe.write_text('#include "paceline.h"\n' + "\n".join(lines) + "\n", encoding="utf-8")
    object_ = folder / "states.o"
    subprocess.run(["arm-none-eabi-gcc", *FLAGS, *M3, INCLUDE, "-c", str(probe), "-o", str(object_)], check=True)
    found = re.findall(r"^\S+ (\S+) \S size_of_(\w+)$", _output("arm-none-eabi-nm", "-S", str(object_)), re.MULTILINE)
    return Sizes(text, writable, stack, frontier_stack, {name: int(size, 16) for size, name in found})


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(measured: Sizes) -> str:
    """Return the sizes as text."""
    apart = {name: measured.text[name] for name in APART}
    rest = sum(measured.text.values()) - sum(apart.values())
    lines = ["Cortex-M3, -Os, bytes", f"  text (budget {TEXT_BUDGET}): {rest}"]
    lines += [f"  and of {name} (budget {APART[name]}): {size}" for name, size in apart.items()]
    lines += [f"    {name:20} {size:6}" for name, size in measured.text.items()]
    deepest = sorted(measured.stack.items(), key=lambda item: -item[1])[:6]
    lines += [f"  globals: {measured.writable}", f"  stack of a function (budget {STACK_BUDGET}), the largest:"]
    lines += [f"    {name:26} {size:6}" for name, size in deepest]
    lines += [f"  and in {FRONTIER} (budget {FRONTIER_STACK_BUDGET}): {max(measured.frontier_stack.values())}"]
    lines += ["  state:", *(f"    pl_{name:15} {size:6}" for name, size in measured.state.items())]
    return "\n".join(lines)


def main() -> int:
    """Try every target and print the sizes. Returns an exit status."""
    status = 0
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            reason = missing(target)
            if reason:
                print(f"{target.name}: not tried: {reason}")
                continue
            done = execute(target, build(target, Path(folder)))
            print(f"{target.name}: {done.stdout.strip()}")
            status |= done.returncode
    if shutil.which("arm-none-eabi-gcc"):
        with tempfile.TemporaryDirectory() as folder:
            print(table(sizes(Path(folder))))
    return status


if __name__ == "__main__":
    sys.exit(main())
