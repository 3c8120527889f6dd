# SPDX-License-Identifier: Apache-2.0
"""Our own wheel from this checkout, for boards of any kind for which a compiler is here. Runs nothing of the board's.

The extension is built against the stable ABI, so that one wheel serves every Python from 3.11 on. A wheel's name tells
of the processor and the oldest glibc that its extension can do with, as read in the extension itself.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from paceline.errors import RunError, SettingsError
from paceline_host.onboard import elf

ROOT = Path(__file__).resolve().parents[3]  # of a checkout
# `uname -m` -> Debian's compiler for it, and the package that brings it.
COMPILERS = {
    "x86_64": ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu libc6-dev-amd64-cross"),
    "aarch64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    "riscv64": ("riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"),
    "armv7l": ("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"),
}
ALSO_CALLED = {"armhf": "armv7l", "arm64": "aarch64", "amd64": "x86_64"}  # Debian's names
EXTENSION = "paceline/_core.abi3.so"
# What a board's Python brings with it; a library beyond these would be one that the board may lack.
AT_HOME = ("libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-aarch64.so.1", "ld-linux-armhf.so.3",
           "ld-linux-riscv64-lp64d.so.1", "ld-linux-x86-64.so.2")  # fmt: skip
OLDEST_GLIBC = (2, 17)  # below it, names of wheels have other forms
# The same sources give the same wheel, and so the same release: no instants, no debug data, which names folders.
SAME_BYTES = {"SOURCE_DATE_EPOCH": "315532800", "CFLAGS": "-g0"}
SOURCES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "core_c", "common", "agent", "host")
# What Python's headers ask about the machine that they are compiled for, answered by the compiler and not by this
# machine's Python: its own pyconfig.h is of this machine.
PYCONFIG = """
#define _GNU_SOURCE 1
#define HAVE_SSIZE_T 1
#define HAVE_STDINT_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_UNISTD_H 1
#define HAVE_STDDEF_H 1
#define HAVE_WCHAR_H 1
#define STDC_HEADERS 1
#define WITH_THREAD 1
#define SIZEOF_SHORT __SIZEOF_SHORT__
#define SIZEOF_INT __SIZEOF_INT__
#define SIZEOF_LONG __SIZEOF_LONG__
#define SIZEOF_LONG_LONG __SIZEOF_LONG_LONG__
#define SIZEOF_VOID_P __SIZEOF_POINTER__
#define SIZEOF_SIZE_T __SIZEOF_SIZE_T__
#define SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__
#define SIZEOF_UINTPTR_T __SIZEOF_POINTER__
#define SIZEOF_OFF_T __SIZEOF_POINTER__
"""


def build(arch: str, work: Path) -> Path:
    """Compile and pack our wheel for boards of an architecture, in `work`. Raises PacelineError."""
    if not (ROOT / "setup.py").exists():
        raise SettingsError(
            [f"no wheel of paceline for {arch}, and this is no checkout of paceline: run `make wheels ARCH={arch}` "
             "in one, and name dist/wheels with --wheels"]
        )  # fmt: skip
    extension = None if arch == platform.machine() else compiled(arch, work)
    wheel = _of_this_machine(work)
    with zipfile.ZipFile(wheel) as archive:
        files = {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
    if extension is not None:
        files[EXTENSION] = extension
    tag = f"cp311-abi3-{platform_of(files[EXTENSION], arch)}"
    name, version, _ = wheel.name.split("-", 2)
    about = f"{name}-{version}.dist-info/WHEEL"
    lines = [line for line in files[about].decode().splitlines() if line and not line.startswith("Tag: ")]
    files[about] = "\n".join([*lines, f"Tag: {tag}", ""]).encode()
    return pack(work / "made" / f"{name}-{version}-{tag}.whl", files.items())


def platform_of(extension: bytes, arch: str) -> str:
    """Return the platform in a wheel's name. Raises RunError for a library that boards of `arch` could not load."""
    found = elf.read(extension)
    foreign = [name for name in found.needs if name not in AT_HOME]
    if found.arch != arch or foreign:
        lacks = f", and needs {', '.join(foreign)}" if foreign else ""
        raise RunError(f"the extension built for {arch} is for {found.arch}{lacks}: is that compiler whole?")
    major, minor = max(found.glibc, OLDEST_GLIBC)
    return f"manylinux_{major}_{minor}_{arch}"


def pack(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write a wheel: the files, and their RECORD in the folder that tells of the wheel."""
    record, info = [], ""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files):
            folder = name.partition("/")[0]
            info = folder if folder.endswith(".dist-info") else info
            if name == f"{info}/RECORD":
                continue
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(record) + f"{info}/RECORD,,\n")
    return path


def compiled(arch: str, work: Path) -> bytes:
    """Return the extension, cross-compiled. Raises SettingsError where there is no compiler for it."""
    if arch not in COMPILERS:
        raise SettingsError([f"--arch {arch}: no compiler is known for it, only for {', '.join(COMPILERS)}"])
    compiler, packages = COMPILERS[arch]
    if shutil.which(compiler) is None:
        raise SettingsError(
            [f"no wheel of paceline for {arch} in --wheels, and {compiler} is missing to build one: "
             f"apt-get install {packages}"]
        )  # fmt: skip
    headers, source, out = work / "headers", work / "_core.c", work / "_core.abi3.so"
    shutil.copytree(sysconfig.get_path("include"), headers)
    (headers / "pyconfig.h").write_text(PYCONFIG, encoding="ascii")
    core = ROOT / "core_c"
    with redirect_stdout(io.StringIO()):  # it tells of each file on stdout, which belongs to our answers
        _declared(core).emit_c_code(str(source))
    flags = (core / "flags.txt").read_text(encoding="utf-8").split()
    command = [compiler, "-shared", "-fPIC", "-O2", "-g0", "-s", *flags, "-DPy_LIMITED_API=0x030b0000"]
    command += [f"-ffile-prefix-map={folder}=" for folder in (work, ROOT)]  # no folder's name in the bytes
    command += ["-Werror=implicit-function-declaration"]  # it would be a symbol that no board has
    command += [f"-I{core / 'include'}", f"-I{headers}", str(source)]
    command += [*(str(path) for path in sorted((core / "src").glob("*.c"))), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"the C core does not build for {arch}:\n{done.stderr.strip()}")
    return out.read_bytes()


def _declared(core: Path) -> Any:
    """Return what core_c/build_ffi.py declares."""
    spec = importlib.util.spec_from_file_location("build_ffi", core / "build_ffi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi


def _of_this_machine(work: Path) -> Path:
    """Compile and pack the wheel for this machine."""
    source = work / "source"  # a copy: what earlier builds left in the checkout would be packed too
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_core.c", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(work), str(source)],
        capture_output=True, text=True, check=False, env={**os.environ, **SAME_BYTES},
    )  # fmt: skip
    built = sorted(work.glob("paceline-*.whl"))
    if done.returncode or not built:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RunError(f"the wheel could not be built; `make venv` says what is missing:\n{last}")
    return built[0]
