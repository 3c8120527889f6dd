# SPDX-License-Identifier: Apache-2.0
"""The C core gives the same bits on the boards' instruction sets: its vectors, cross-built, run under qemu-user."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MACHINES = {
    # qemu-user's name: (compiler's prefix, Debian's name of the machine)
    "aarch64": ("aarch64-linux-gnu", "arm64"),
    "arm": ("arm-linux-gnueabihf", "armhf"),
    "riscv64": ("riscv64-linux-gnu", "riscv64"),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("optimised", ["-O0", "-O2"])
def test_the_vectors_hold_on(
    machine: str, optimised: str, root: Path, tmp_path: Path, needs_tool: Callable[[str, str], Path]
) -> None:
    prefix, debian = MACHINES[machine]
    compiler = needs_tool(f"{prefix}-gcc", f"gcc-{prefix} libc6-dev-{debian}-cross")
    emulator = needs_tool(f"qemu-{machine}-static", "qemu-user-static")
    program = tmp_path / "vectors"
    flags = (root / "core_c" / "flags.txt").read_text(encoding="utf-8").split()
    sources = [*sorted((root / "core_c" / "src").glob("*.c")), root / "tests" / "core_c" / "test_vectors.c"]
    include = root / "core_c" / "include"
    command = [str(each) for each in (compiler, *flags, optimised, "-static", "-I", include, "-o", program, *sources)]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([emulator, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
