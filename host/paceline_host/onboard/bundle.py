# SPDX-License-Identifier: Apache-2.0
"""One archive with all that a board of one architecture needs: our wheel, wheels of what it depends on, the installer.

The core is compiled here, once; nothing compiles on a board. Dependencies come from a folder of wheels, of which
there may be one for each Python, for boards of this machine's kind also from this program's own environment; what is in
neither, a board must have of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import json
import platform
import re
import tarfile
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline import foreign
from paceline.errors import StorageError
from paceline.version import VERSION
from paceline_host.onboard import wheel
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
LEFT_OUT = ("INSTALLER", "REQUESTED", "direct_url.json")  # how a wheel came to be here


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
    arch = wheel.ALSO_CALLED.get(arch, arch)
    if wheels is not None and not wheels.is_dir():
        raise StorageError(f"--wheels {wheels}: there is no such folder")
    with TemporaryDirectory(prefix="paceline-bundle-") as name:
        work = Path(name)
        taken = list(_given(wheels, arch))
        given = {_project(path) for path in taken}
        if arch == platform.machine():
            taken += _repacked(work, given)
        if "paceline" not in given:
            taken.append(wheel.build(arch, work))
        files = {f"wheels/{path.name}": path.read_bytes() for path in sorted(taken, key=lambda each: each.name)}
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
        with foreign.opened(path) as raw, tarfile.open(fileobj=raw, mode="r:gz") as archive:
            name = next(name for name in archive.getnames() if name.endswith("/manifest.json"))
            file = archive.extractfile(name)
            assert file is not None
            manifest = json.loads(file.read(foreign.MOST_TEXT_BYTES))
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


def _project(path: Path) -> str:
    return re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()


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
        files = [
            (file.as_posix(), Path(str(found.locate_file(file))).read_bytes())
            for file in found.files
            if not file.is_absolute() and not {"..", "__pycache__"} & {*file.parts} and file.name not in LEFT_OUT
        ]
        yield wheel.pack(work / f"{name}-{found.version}-{tag}.whl", files)
