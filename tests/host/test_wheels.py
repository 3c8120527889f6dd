# SPDX-License-Identifier: Apache-2.0
"""Wheels for boards of other kinds: what the cross compiler made, as binutils' readelf sees it, and what names it."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from paceline.errors import RunError, SettingsError, StorageError
from paceline_host.onboard import elf, wheel

CALLED = {"aarch64": "AArch64", "riscv64": "RISC-V", "armv7l": "ARM"}  # by readelf


@functools.cache
def cross(arch: str) -> bytes:
    """Return the extension for a kind of board."""
    compiler, packages = wheel.COMPILERS[arch]
    if shutil.which(compiler) is None or shutil.which("readelf") is None:
        pytest.skip(f"{compiler} is missing: apt-get install {packages}")
    with TemporaryDirectory() as work:
        return wheel.compiled(arch, Path(work))


@pytest.mark.in_turn  # a compiler takes seconds
@pytest.mark.parametrize("arch", CALLED)
def test_what_a_library_says_of_itself_is_what_readelf_says(arch: str, tmp_path: Path) -> None:
    extension = cross(arch)
    file = tmp_path / "made.so"
    file.write_bytes(extension)
    said = subprocess.run(["readelf", "-hdVW", "--dyn-syms", file], capture_output=True, text=True, check=True).stdout
    found = elf.read(extension)
    assert found.arch == arch
    assert re.search(rf"Machine: +{CALLED[arch]}$", said, re.MULTILINE)
    assert list(found.needs) == re.findall(r"\(NEEDED\) +Shared library: \[(.*)\]", said)
    versions = [tuple(int(part) for part in pair) for pair in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", said)]
    assert found.glibc == max(versions)
    assert "PyInit__core" in said
    lacking = re.findall(r"GLOBAL +DEFAULT +UND (\S+)", said)
    assert lacking
    assert [name for name in lacking if not name.startswith(("Py", "_Py")) and "@GLIBC" not in name] == []
    major, minor = max(found.glibc, (2, 17))
    assert wheel.platform_of(extension, arch) == f"manylinux_{major}_{minor}_{arch}"
    with pytest.raises(RunError, match=f"built for x86_64 is for {arch}"):
        wheel.platform_of(extension, "x86_64")


@pytest.mark.in_turn
def test_a_wheel_for_another_kind_of_board_is_this_machines_but_for_the_extension(tmp_path: Path) -> None:
    extension = cross("riscv64")
    work = tmp_path / "work"
    work.mkdir()
    made = wheel.build("riscv64", work)
    assert made.name.endswith("_riscv64.whl")
    with zipfile.ZipFile(made) as theirs, zipfile.ZipFile(next(work.glob("*.whl"))) as ours:
        files = {name: theirs.read(name) for name in theirs.namelist()}
        differ = {name for name, content in files.items() if name not in ours.namelist() or content != ours.read(name)}
        assert {*ours.namelist()} == {*files}
    assert {Path(name).name for name in differ} == {"_core.abi3.so", "WHEEL", "RECORD"}
    assert files[wheel.EXTENSION] == extension, "the same sources give the same bytes"
    assert [name for name in files if name.endswith(".so")] == [wheel.EXTENSION]
    (record,) = (content.decode() for name, content in files.items() if name.endswith("/RECORD"))
    rows = [line.rsplit(",", 2) for line in record.splitlines()]
    assert {name for name, _, _ in rows} == {*files}
    for name, digest, size in rows:
        if digest:
            whole = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={whole}", len(files[name]))
    (about,) = (content.decode() for name, content in files.items() if name.endswith("/WHEEL"))
    assert re.findall(r"^Tag: (.*)$", about, re.MULTILINE) == [made.stem.split("-", 2)[2]]


def test_a_missing_compiler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"riscv64-linux-gnu-gcc is missing .*: apt-get install gcc-riscv64-linux"):
        wheel.compiled("riscv64", tmp_path)
    with pytest.raises(SettingsError, match="no compiler is known for it, only for x86_64, aarch64"):
        wheel.compiled("pdp11", tmp_path)


def test_what_is_no_library_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    compiler, packages = wheel.COMPILERS["riscv64"]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is missing: apt-get install {packages}")
    source, made = tmp_path / "a.c", tmp_path / "a.so"
    source.write_text("#include <stdlib.h>\nvoid *one(void) { return malloc(1); }\n", encoding="ascii")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    extension = made.read_bytes()
    assert elf.read(extension).needs == ("libc.so.6",)
    for cut in (0, 3, 16, 40, 63, len(extension) // 2, len(extension) - 1):
        with pytest.raises(StorageError, match="no library for a Linux board"):
            elf.read(extension[:cut])
    soft = bytearray(extension)
    soft[48] &= 0xFB  # the flag that doubles travel in registers
    with pytest.raises(StorageError, match="machine 243, type 3"):
        elf.read(bytes(soft))
