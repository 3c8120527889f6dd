# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: Debian's own, and the modules that are built for it, kept below build/vm. Boots nothing.

Nothing is installed: the distribution's packages are fetched by apt (which checks them) and unpacked below build/vm.
The first call fetches about 225 MB, of which 140 MB are the kernel's source for two drivers that Debian leaves out.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "vm"
MODULE_SOURCE = Path(__file__).with_name("module")
DRIVERS = ("ina2xx", "ina3221")  # drivers/hwmon/*.c, which Debian's configuration leaves out
STOCK = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "i2c-dev")  # modules of Debian's that load
FETCH_S, UNPACK_S, BUILD_S = 600, 300, 300  # no part takes a tenth of it on a machine that is free
_FOLDERS = ("virtio", "9p", "netfs", "fscache", "overlayfs", "i2c", "char")  # where they and what they need lie


class Missing(Exception):
    """What the guest needs is not here; the text says what, and what to do."""


@dataclass(frozen=True)
class Kernel:
    """What a boot needs. `modules` are in the order in which they load."""

    version: str
    image: Path
    busybox: Path
    modules: tuple[Path, ...]
    machine: str = "x86_64"
    root: Path = Path("/")  # of the guest's files
    share: Path | None = None  # what stands in the guest where the checkout is here; None: the checkout


def ready(fetch: bool) -> Kernel:
    """Return the kernel with all its modules built. fetch: packages may be fetched, else only what is here is used.

    Raises Missing.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = sorted((path.stat().st_mtime_ns, path.parent) for path in CACHE.glob("*/complete"))
    if not kept and not fetch:
        raise Missing("the guest's kernel is not in build/vm yet: make test-vm fetches and builds it (225 MB)")
    place = kept[-1][1] if kept else _fetched()
    version = place.name
    modules = _stock(place) + [_built(place, place / "hwmon", name) for name in DRIVERS]
    modules.append(_built(place, MODULE_SOURCE, "paceline_bench"))
    return Kernel(version, place / "boot" / f"vmlinuz-{version}", place / "bin" / "busybox", tuple(modules))


def content(module: Path) -> bytes:
    """Return a module as it loads; Debian compresses those of newer kernels."""
    return lzma.open(module).read() if module.suffix == ".xz" else module.read_bytes()


def _fetched() -> Path:
    """Fetch and unpack; return the folder, which is put in place as a whole."""
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is missing: the guest's kernel comes from Debian's packages")
    version = _depends("linux-image-amd64", r"linux-image-(\d\S*-amd64)")
    series = ".".join(version.split(".")[:2])
    headers = f"linux-headers-{version}"
    names = [f"linux-image-{version}", headers, "busybox-static", f"linux-source-{series}"]
    names += [_depends(headers, r"(linux-headers-\S+-common)"), _depends(headers, r"(linux-kbuild-\S+)")]
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        debs, place = Path(scratch, "debs"), Path(scratch, "unpacked")
        debs.mkdir()
        _run(["apt-get", "-q", "download", *names], FETCH_S, cwd=debs)
        _unpack(_deb(debs, names[0]), place, lambda name: _is_wanted(name, version))
        _unpack(_deb(debs, "busybox-static"), place, lambda name: name.endswith("bin/busybox"))
        for name in (headers, *names[4:]):
            _unpack(_deb(debs, name), place, lambda name: "/src/" in name or "/lib/linux-kbuild" in name)
        _unpack_drivers(_deb(debs, f"linux-source-{series}"), place / "hwmon")
        makefile = place / "usr" / "src" / headers / "Makefile"
        makefile.write_text(makefile.read_text().replace(" /usr/src/", " ../"))
        (place / "complete").touch()
        place.rename(CACHE / version)
    return CACHE / version


def _depends(package: str, pattern: str) -> str:
    """Return what `pattern` finds among the dependencies of a package."""
    found = re.search(rf"Depends: {pattern}$", _run(["apt-cache", "depends", package], 60), re.MULTILINE)
    if found is None:
        raise Missing(f"apt knows no {package} as Debian has it: apt-get update (other distributions do not serve)")
    return found[1]


def _deb(folder: Path, package: str) -> Path:
    return next(folder.glob(f"{package}_*.deb"))


def _is_wanted(name: str, version: str) -> bool:
    parts = name.split("/")
    return name == f"./boot/vmlinuz-{version}" or (name.endswith((".ko", ".ko.xz")) and bool({*parts} & {*_FOLDERS}))


@contextmanager
def _contents(deb: Path) -> Iterator[tarfile.TarFile]:
    """Open the files of a package as a stream."""
    with tempfile.TemporaryFile() as plain:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], stdout=plain, check=True, timeout=UNPACK_S)
        plain.seek(0)
        with tarfile.open(fileobj=plain) as tar:
            yield tar


def _unpack(deb: Path, place: Path, wanted: Callable[[str], bool]) -> None:
    with _contents(deb) as tar:
        tar.extractall(place, [member for member in tar if wanted(member.name)], filter="tar")


def _unpack_drivers(deb: Path, place: Path) -> None:
    """Take the drivers out of the kernel's source, and let them be built."""
    place.mkdir(parents=True)
    with _contents(deb) as tar:
        inner = next(member for member in tar if re.search(r"linux-source-[\d.]+\.tar\.xz$", member.name))
        stream = tar.extractfile(inner)
        assert stream is not None
        with tarfile.open(fileobj=stream, mode="r|xz") as source:
            left = {f"drivers/hwmon/{name}.c" for name in DRIVERS}
            for member in source:
                if (name := member.name.partition("/")[2]) in left:
                    driver = source.extractfile(member)
                    assert driver is not None
                    (place / Path(name).name).write_bytes(driver.read())
                    left.remove(name)
                if not left:
                    break
    (place / "Kbuild").write_text("".join(f"obj-m += {name}.o\n" for name in DRIVERS))


def _stock(place: Path, names: tuple[str, ...] = STOCK) -> list[Path]:
    """Return those modules of Debian's, in the order in which they load, those first that others need."""
    there = {_plain(path): path for path in place.rglob("*.ko*") if "kernel" in path.parts}
    ordered: list[Path] = []

    def add(name: str) -> None:
        path = there.get(name)  # what is not there is built into the kernel
        if path is None or path in ordered:
            return
        depends = re.search(rb"\0depends=([^\0]*)\0", content(path))
        for needed in depends[1].decode().split(",") if depends else ():
            add(needed.replace("-", "_"))
        ordered.append(path)

    for name in names:
        add(name.replace("-", "_"))
    return ordered


def _plain(module: Path) -> str:
    return module.name.partition(".")[0].replace("-", "_")


def _built(place: Path, source: Path, name: str, *variables: str) -> Path:
    """Return a module of `source`, built anew when a source file has changed."""
    files = sorted(path for path in source.iterdir() if path.suffix in (".c", ".h") or path.name == "Kbuild")
    digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:16]
    kept = place / "built" / f"{source.name}-{digest}"
    if not (kept / f"{name}.ko").exists():
        for tool in ("make", "gcc"):
            if shutil.which(tool) is None:
                raise Missing(f"{tool} is missing, which builds modules for the guest: apt-get install make gcc")
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            for path in files:
                shutil.copy(path, scratch)
            headers = place / "usr" / "src" / f"linux-headers-{place.name}"
            command = ["make", "-C", str(headers), f"M={scratch}", f"-j{os.cpu_count()}", *variables, "modules"]
            made = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
            if made.returncode:  # a fault of the source, not something that is missing
                raise RuntimeError(f"{name} does not build:\n{made.stderr}")
            kept.mkdir(parents=True, exist_ok=True)
            for built in Path(scratch).glob("*.ko"):
                shutil.copy(built, kept)
    return kept / f"{name}.ko"


def _run(command: list[str], limit_s: int, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return the standard output. Raises Missing with the last lines of what a failing command said."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command[:3])}: not done after {limit_s} s") from None
    if done.returncode:
        said = "; ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise Missing(f"{' '.join(command[:3])} failed: {said}")
    return done.stdout


if __name__ == "__main__":
    print(ready(fetch=True))
