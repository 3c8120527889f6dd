# SPDX-License-Identifier: Apache-2.0
"""What the core takes, as tables: code on each instruction set, stack of its functions, instructions of operations.

`python -m tests.arch.sizes` from the root prints those of docs/results/core_size.md; what lacks its tool is named.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.arch.targets import CORE, FLAGS, FRONTIER, INCLUDE, SMALL, SOURCES

# Name, compiler and its flags: the core for a small board, for size.
SETS = (
    ("Cortex-M3", "arm-none-eabi-gcc", ("-mcpu=cortex-m3", "-mthumb")),
    ("rv32imac", "riscv64-unknown-elf-gcc", ("-march=rv32imac", "-mabi=ilp32")),
    ("riscv64", "riscv64-linux-gnu-gcc", ()),
    ("AArch64", "aarch64-linux-gnu-gcc", ()),
    ("ARMv7", "arm-linux-gnueabihf-gcc", ()),
    ("x86-64", "gcc", ()),
)
PARTS = {
    "rng, permutation": ("pl_rng", "pl_permutation"),
    "allocation, controller": ("pl_common", "pl_allocate", "pl_controller"),
    "sampler, local draw": ("pl_sampler", "pl_local"),
    "schedule": ("pl_schedule",),
    "energy, sensors": ("pl_energy", "pl_sensors"),
    "frontier": ("pl_frontier",),
}
OPERATIONS = {
    "ina219": "decode an INA219's two registers",
    "point": "take a power at an instant",
    "interval": "take a mean power, the next of its kind",
    "counter": "take a counter",
    "window": "energy of a window, 64 knots",
    "allocate": "divide among 11 boards",
    "draw": "a step of 64 samples from 100 clients",
    "permute": "an order of 1,000",
}
FEW, MANY = 100, 1100


def code(folder: Path) -> list[str]:
    """Return a row of the table for each instruction set: bytes of code and constants by part, deepest function."""
    rows = []
    for name, compiler, flags in SETS:
        if shutil.which(compiler) is None:
            rows.append(f"| {name} | {compiler} is missing |")
            continue
        text: dict[str, int] = {}
        stack: list[tuple[int, str]] = []  # of a function's frame; the frontier's apart
        frontier: list[tuple[int, str]] = []
        for source in SMALL:
            made = folder / f"{Path(source).stem}.o"
            common = [*FLAGS, "-DPL_SMALL", "-Os", "-ffreestanding", "-fstack-usage", INCLUDE]
            subprocess.run([compiler, *common, *flags, "-c", source, "-o", str(made)], check=True)
            size = [compiler.removesuffix("gcc") + "size", str(made)]
            told = subprocess.run(size, capture_output=True, text=True, check=True).stdout
            text[Path(source).stem] = int(told.splitlines()[1].split()[0])
            for line in made.with_suffix(".su").read_text(encoding="utf-8").splitlines():
                place, used, _ = line.split("\t")
                frames = frontier if Path(source).name == FRONTIER else stack
                frames.append((int(used), place.rpartition(":")[2]))
        parts = [sum(text.get(stem, 0) for stem in stems) for stems in PARTS.values()]
        cells = [f"{part:,}" for part in (*parts, sum(text.values()))]
        cells += [f"{used} `{function}`" for used, function in (max(stack), max(frontier))]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def instructions(folder: Path) -> list[str]:
    """Return a row for each operation: instructions of one, counted on this x86-64 by callgrind."""
    if shutil.which("valgrind") is None:
        return ["| (valgrind is missing) | |"]
    program = folder / "pl_count"
    source = str(CORE / "bench" / "pl_count.c")
    subprocess.run(["gcc", *FLAGS, "-O2", INCLUDE, source, *SOURCES, "-o", str(program)], check=True)

    def counted(name: str, times: int) -> int:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'out'}", str(program), name]
        told = subprocess.run([*command, str(times)], capture_output=True, text=True, check=True).stderr
        found = re.search(r"Collected : (\d+)", told)
        assert found is not None, told
        return int(found.group(1))

    each = {name: (counted(name, MANY) - counted(name, FEW)) / (MANY - FEW) for name in OPERATIONS}
    return [f"| {what} | {each[name]:,.0f} |" for name, what in OPERATIONS.items()]


def main() -> int:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        heads = [*PARTS, "all", "largest stack frame", "of the frontier"]
        print(f"| bytes, `-Os`, `PL_SMALL` | {' | '.join(heads)} |")
        print(f"|{'---|' * (len(heads) + 1)}")
        print("\n".join(code(Path(folder))))
        print("\n| operation | instructions |\n|---|---|")
        print("\n".join(instructions(Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
