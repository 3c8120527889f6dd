# SPDX-License-Identifier: Apache-2.0
"""One archive with all that a board of one architecture needs: our wheel, wheels of what it depends on, the installer.

The core is compiled here, once; nothing compiles on a board. Dependencies come from a folder of wheels, for boards of
this machine's kind also from this program's own environment; what is in neither, a board must have of its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.errors import RunError, SettingsError, StorageError
from paceline.version import VERSION
from paceline_host.onboard.shell import BoardError

SCHEMA = "paceline-bundle-1"
INSTALLER = Path(__file__).with_name("board_install.py")
# What an agent imports -> what to do on a board for which there is no wheel.
NEEDS = {
    "cffi": "apt-get install python3-cffi-backend",
    "msgpack": "apt-get install python3-msgpack",
    "pyserial": "apt-get install python3-serial",
    "pyzmq": "apt-get install python3-zmq",
    "smbus2": "apt-get install python3-smbus2",
}
# The same sources give the same wheel, and so the same release: no instants, no debug data, which names folders.
SAME_BYTES = {"SOURCE_DATE_EPOCH": "315532800", "CFLAGS": "-g0"}
SOURCES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "core_c", "common", "agent", "host")


@dataclass(frozen=True)
class Bundle:
    """An archive that was made. `wheels`: the dependencies in it."""

    path: Path
    release: str  # VERSION-DIGEST: a folder of that name on the board
    arch: str  # as `uname -m` says it
    wheels: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def make_bundle(arch: str, out: Path, wheels: Path | None = None) -> Bundle:
    """Make the bundle for boards of an architecture. Raises PacelineError."""
    if wheels is not None and not wheels.is_dir():
        raise StorageError(f"--wheels {wheels}: there is no such folder")
    with TemporaryDirectory(prefix="paceline-bundle-") as name:
        work = Path(name)
        taken = {_project(path): path for path in _given(wheels, arch)}
        if arch == platform.machine():
            taken = {_project(path): path for path in _repacked(work, taken.keys())} | taken
        if "paceline" not in taken:
            taken["paceline"] = _built(arch, work)
        files = {f"wheels/{path.name}": path.read_bytes() for _, path in sorted(taken.items())}
        files["install.py"] = INSTALLER.read_bytes()
        return _archive(arch, out, files)


def bundles(folder: Path, given: Bundle | None, make: Callable[[str, Path], Bundle]) -> Callable[[str], Bundle]:
    """Return a function architecture -> bundle that makes each once, whoever asks; `given` is the only one then."""
    made: dict[str, Bundle] = {}
    lock = threading.Lock()

    def bundle_for(arch: str) -> Bundle:
        if given is not None:
            if given.arch != arch:
                raise BoardError(6, f"{given.path} is for {given.arch}, the board is {arch}: name a bundle for that")
            return given
        with lock:
            if arch not in made:
                made[arch] = make(arch, folder / f"paceline-{arch}.tar.gz")
            return made[arch]

    return bundle_for


def read_bundle(path: Path) -> Bundle:
    """Return what a bundle says of itself. Raises StorageError for anything else."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            name = next(name for name in archive.getnames() if name.endswith("/manifest.json"))
            file = archive.extractfile(name)
            assert file is not None
            manifest = json.load(file)
        if manifest["schema"] != SCHEMA:
            raise ValueError("another schema")
        wheels = tuple(Path(name).name for name in manifest["files"] if name.endswith(".whl"))
        return Bundle(path, str(manifest["release"]), str(manifest["arch"]), wheels)
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, StopIteration) as error:
        raise StorageError(f"{path} is no bundle ({error}); `paceline boards bundle` makes one") from None


def _archive(arch: str, out: Path, files: dict[str, bytes]) -> Bundle:
    """Write the archive: the same content gives the same bytes."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    release = f"{VERSION}-{hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:8]}"
    manifest = {
        "schema": SCHEMA, "version": VERSION, "release": release, "arch": arch, "python": ">=3.11", "needs": NEEDS,
        "files": digests,
    }  # fmt: skip
    files = {"manifest.json": json.dumps(manifest, indent=1).encode() + b"\n", **files}
    new = out.with_name(f"{out.name}.new")
    try:
        with (
            new.open("wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for name, content in files.items():
                entry = tarfile.TarInfo(f"paceline-{release}-{arch}/{name}")
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
        new.replace(out)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror}") from None
    return Bundle(out, release, arch, tuple(Path(name).name for name in digests if name.endswith(".whl")))


def _given(wheels: Path | None, arch: str) -> Iterator[Path]:
    """Yield the wheels of a folder that boards of an architecture can have."""
    for path in sorted(wheels.glob("*.whl")) if wheels is not None else ():
        tags = path.stem.rpartition("-")[2].split(".")
        if any(tag == "any" or tag.endswith(f"_{arch}") for tag in tags):
            yield path


def _project(wheel: Path) -> str:
    return re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()


def _built(arch: str, work: Path) -> Path:
    """Compile and pack our own wheel from this checkout."""
    root = Path(__file__).resolve().parents[3]
    if arch != platform.machine() or not (root / "setup.py").exists():
        where = (
            "this is no checkout of paceline" if arch == platform.machine() else f"this machine is {platform.machine()}"
        )
        raise SettingsError(
            [f"no wheel of paceline for {arch}, and {where}: run `pip wheel --no-deps .` on such a board, "
             "and name its folder with --wheels"]
        )  # fmt: skip
    source = work / "source"  # a copy: what earlier builds left in the checkout would be packed too
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_core.c", "*.egg-info")
    for name in SOURCES:
        if (root / name).is_dir():
            shutil.copytree(root / name, source / name, ignore=ignored)
        elif (root / name).exists():
            shutil.copy2(root / name, source / name)
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


def _repacked(work: Path, taken: Collection[str]) -> Iterator[Path]:
    """Make wheels again of what this environment has installed, beyond what is taken: the same files, for boards like
    this machine.
    """
    for name in sorted(NEEDS.keys() - taken):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        said = found.read_text("WHEEL") or ""
        tags = re.findall(r"^Tag: (\S+)$", said, re.MULTILINE)
        if not tags or found.files is None:
            continue  # a distribution's own package, not one of pip's
        parts = zip(
            *(tag.split("-") for tag in tags), strict=True
        )  # Pythons, ABIs, platforms: as pip's own names have it
        tag = "-".join(".".join(dict.fromkeys(part)) for part in parts)
        path = work / f"{name}-{found.version}-{tag}.whl"
        record = []
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(found.files, key=str):
                inside = not file.is_absolute() and ".." not in file.parts and "__pycache__" not in file.parts
                if not inside or file.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
                    continue
                content = Path(str(found.locate_file(file))).read_bytes()
                archive.writestr(zipfile.ZipInfo(file.as_posix()), content, zipfile.ZIP_DEFLATED)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                record.append(f"{file.as_posix()},sha256={digest},{len(content)}\n")
            info = next(file.parts[0] for file in found.files if file.parts[0].endswith(".dist-info"))
            archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(record) + f"{info}/RECORD,,\n")
        yield path
