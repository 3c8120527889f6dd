# SPDX-License-Identifier: Apache-2.0
"""Debian's Python of another architecture, unpacked below build/foreign and run by qemu-user. Nothing is installed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.vm import riscv64
from tests.vm.kernel import FETCH_S, ROOT, Missing, _run, _unpack

CACHE = ROOT / "build" / "foreign"
NAMES = {"aarch64": ("arm64", "qemu-aarch64-static"), "armv7l": ("armhf", "qemu-arm-static"),
         "riscv64": ("riscv64", "qemu-riscv64-static")}  # fmt: skip  # uname -m -> Debian's name, emulator
PACKAGES = ("python3", "python3-cffi-backend")


def python(arch: str) -> list[str]:
    """Return the command that runs its Python. Fetches 15 MB the first time. Raises Missing."""
    debian, emulator = NAMES[arch]
    for tool, package in ((emulator, "qemu-user-static"), ("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is missing: apt-get install --no-install-recommends {package}")
    root = CACHE / debian
    if not root.exists():
        _fetch(debian, root)
    return [emulator, "-L", str(root), "-E", f"PYTHONHOME={root}/usr", f"{root}/usr/bin/python3"]


def _fetch(debian: str, root: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        scratch, place = Path(folder), Path(folder, "root")
        conf = {**os.environ, "APT_CONFIG": str(riscv64._apt(scratch, debian))}
        _run(["apt-get", "-q", "update"], FETCH_S, env=conf)
        _run(["apt-get", "-q", "-y", "install", "--download-only", *PACKAGES], FETCH_S, env=conf)
        for deb in (scratch / "cache" / "archives").glob("*.deb"):
            _unpack(deb, place, lambda name: "/share/doc/" not in name)
        (place / "lib").symlink_to("usr/lib")
        place.rename(root)
