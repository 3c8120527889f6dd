# SPDX-License-Identifier: Apache-2.0
"""A RISC-V board without a board: Debian's kernel and Python for it, our module and C core cross-built. Boots nothing.

On demand (`make test-vm ARCH=riscv64`, `make test-board`): fetches 210 MB into build/vm/riscv64, installs nothing, and
leaves the machine's own apt as it is. These kernels have neither powercap nor INA drivers: chips over /dev/i2c-N are
left.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from paceline_host.onboard import wheel

from . import kernel
from .kernel import FETCH_S, ROOT, Kernel, Missing, _built, _deb, _run, _stock, _unpack

CACHE = kernel.CACHE / "riscv64"
SUITE = "trixie"  # the first release of Debian with riscv64
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
COMPILER = "riscv64-linux-gnu-gcc"
BOARD = ["python3", "python3-cffi-backend", "python3-smbus2", "python3-serial", "python3-msgpack", "python3-zmq"]
BOARD += [
    "coreutils",
    "dash",
    "python3-numpy",
    "openssh-server",
    "tar",
    "gzip",
    "grep",
    "procps",
    "passwd",
    "hostname",
    "sed",
]
WHOLE = " ".join(BOARD)  # what stands in the file "complete": a cache that was fetched before this list grew is not
OF_A_BOARD = ("crc32c_generic", "ext4", "virtio_blk", "virtio_net")  # a disk and a network; and what these need:
NEEDED = ("crc16", "mbcache", "jbd2", "failover", "net_failover")
TOOLS = {COMPILER: "gcc-riscv64-linux-gnu", "make": "make", "apt-get": "apt", "dpkg-deb": "dpkg"}


def ready(fetch: bool) -> Kernel:
    """Return kernel, modules, a root with Python, and in `share` this checkout with its C core. Raises Missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is missing: apt-get install --no-install-recommends {package}")
    kept = sorted(
        (path.stat().st_mtime_ns, path.parent) for path in CACHE.glob("*/complete") if path.read_text() == WHOLE
    )
    if not kept and not fetch:
        raise Missing("the RISC-V guest is not in build/vm yet: make test-vm ARCH=riscv64 fetches it (210 MB)")
    place = kept[-1][1] if kept else _fetched()
    module = _built(place, kernel.MODULE_SOURCE, "paceline_bench", "ARCH=riscv", f"CC={COMPILER}")
    return Kernel(
        place.name, place / "boot" / f"vmlinux-{place.name}", place / "usr" / "bin" / "busybox",
        (*_stock(place, (*kernel.STOCK, *OF_A_BOARD)), module), "riscv64", place / "root", _staged(place),
    )  # fmt: skip


def _fetched() -> Path:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        scratch = Path(folder)
        place, debs = scratch / "unpacked", scratch / "debs"
        debs.mkdir()
        conf = {**os.environ, "APT_CONFIG": str(_apt(scratch))}
        _run(["apt-get", "-q", "update"], FETCH_S, env=conf)
        said = _run(["apt-cache", "depends", "linux-image-riscv64"], 60, env=conf)
        found = re.search(r"Depends: linux-image-(\S+-riscv64)$", said, re.MULTILINE)
        if found is None:
            raise Missing(f"apt finds no kernel for riscv64 in {SUITE}")
        version = found[1]
        series = version.removesuffix("-riscv64")
        names = [f"linux-image-{version}:riscv64", f"linux-headers-{version}:riscv64", "busybox-static:riscv64"]
        names += [f"linux-headers-{series}-common", f"linux-kbuild-{series}:amd64", "libc6:amd64"]
        _run(["apt-get", "-q", "download", *names], FETCH_S, cwd=debs, env=conf)
        _run(["apt-get", "-q", "-y", "install", "--download-only", *BOARD], FETCH_S, env=conf)
        _unpack(_deb(debs, f"linux-image-{version}"), place, lambda name: _is_wanted(name, version))
        for name in (f"linux-headers-{version}", f"linux-headers-{series}-common", f"linux-kbuild-{series}"):
            _unpack(_deb(debs, name), place, lambda name: "/src/" in name or "/lib/linux-kbuild" in name)
        _unpack(_deb(debs, "busybox-static"), place, lambda name: name.endswith("bin/busybox"))
        _unpack(_deb(debs, "libc6"), place / "glibc", lambda name: "/lib/" in name)
        for deb in (scratch / "cache" / "archives").glob("*.deb"):
            _unpack(deb, place / "root", lambda name: "/share/doc/" not in name and not name.endswith(".a"))
        for name in ("bin", "lib"):
            (place / "root" / name).symlink_to(f"usr/{name}")
        for name in ("proc", "sys", "dev", "tmp"):
            (place / "root" / name).mkdir()
        _mend_headers(place, version, series)
        (place / "complete").write_text(WHOLE, encoding="ascii")
        shutil.rmtree(CACHE / version, ignore_errors=True)
        place.rename(CACHE / version)
    return CACHE / version


def _apt(scratch: Path, arch: str = "riscv64") -> Path:
    """Return the file that makes apt work in `scratch`, for another architecture, from this machine's own mirror."""
    mirrors = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian"], 60).split()
    if not mirrors:
        raise Missing("apt has no mirror of Debian on this machine (or apt-get update was never run)")
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirrors[0]} {SUITE} main\n", encoding="ascii")
    conf = scratch / "apt.conf"
    conf.write_text(
        f'APT::Architecture "{arch}";\nAPT::Architectures {{ "{arch}"; "amd64"; }};\n'
        'APT::Install-Recommends "false";\nAcquire::Languages "none";\nAPT::Sandbox::User "root";\n'
        f'Dir::State::lists "{scratch}/lists";\nDir::State::status "{scratch}/status";\nDir::Cache "{scratch}/cache";\n'
        f'Dir::Etc::sourcelist "{scratch}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n',
        encoding="ascii",
    )
    return conf


def _is_wanted(name: str, version: str) -> bool:
    folders = {"virtio", "9p", "netfs", "fscache", "overlayfs", "i2c"}
    *above, module = name.split("/")
    is_module = module.endswith((".ko", ".ko.xz"))
    return name == f"./boot/vmlinux-{version}" or (
        is_module and (bool({*above} & folders) or module.partition(".")[0] in (*OF_A_BOARD, *NEEDED))
    )


def _mend_headers(place: Path, version: str, series: str) -> None:
    """Let the headers be where they are, and their modpost run on a machine whose C library is older than theirs."""
    headers = place / "usr" / "src" / f"linux-headers-{version}"
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace(" /usr/src/", " ../"))
    (headers / "vmlinux").unlink(
        missing_ok=True
    )  # with it, types would be written for debuggers by a tool that is not here
    modpost = place / "usr" / "lib" / f"linux-kbuild-{series}" / "scripts" / "mod" / "modpost"
    modpost.write_text(
        '#!/bin/sh\nhere=$(dirname "$0")\nlib=$here/../../../../../glibc/usr/lib/x86_64-linux-gnu\n'
        'exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$here/modpost.real-lsb-64" "$@"\n',
        encoding="ascii",
    )
    modpost.chmod(0o755)


def _staged(place: Path) -> Path:
    """Return a copy of what runs in the guest, with the C core cross-built from this checkout."""
    stage = place / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    without = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for part in ("common", "agent", "tests/vm"):
        shutil.copytree(ROOT / part, stage / part, ignore=without)
    with tempfile.TemporaryDirectory() as folder:
        extension = wheel.compiled("riscv64", Path(folder))
    (stage / "common" / "paceline" / "_core.abi3.so").write_bytes(extension)
    return stage


if __name__ == "__main__":
    print(ready(fetch=True))
