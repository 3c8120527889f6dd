# SPDX-License-Identifier: Apache-2.0
"""A folder of four IDX files -> verified, mapped images and labels. Knows no network; numpy comes with the arrays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.data.idx import Idx, read_idx
from paceline.data.sources import FILES, SOURCES, Source
from paceline.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CLASSES = 10
PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Part:
    """Images and labels that belong together; `pixels` per image, each 0..255."""

    samples: int
    pixels: int
    image_items: memoryview
    label_items: memoryview

    def images(self) -> NDArray[np.uint8]:
        """Return (samples, pixels), without a copy."""
        import numpy as np

        return np.frombuffer(self.image_items, np.uint8).reshape(self.samples, self.pixels)

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
    train: Part
    test: Part


def open_dataset(name: str, folder: Path | None) -> Dataset:
    """Return the data set in `folder` (its four files, or a folder of data sets); None: in the cache.

    The label follows from the content: files whose sha256 are those of a known source carry its name, others are "own
    files". Raises DataError: missing, damaged, not what the folder's provenance says, images and labels that do not
    match.
    """
    folder = _resolve(name, folder)
    files = [read_idx(_file(folder, file), 3 if "images" in file else 1) for file in FILES]
    hashes = tuple(hashlib.sha256(file.content).hexdigest() for file in files)
    source = next((source for source in SOURCES if source.sha256 == hashes), None)
    _check_claim(folder, source, hashes)
    train, test = _part(folder, "training", files[0], files[1]), _part(folder, "test", files[2], files[3])
    if train.pixels != test.pixels:
        raise DataError(
            f"{folder}: training images have {train.pixels} pixels, test images {test.pixels}; they must be of one size"
        )
    label = source.label if source else f"own files in {folder.name} ({train.samples:,} + {test.samples:,})"
    return Dataset(name, source.key if source else "own", label, train, test)


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
    raise DataError(
        f"there is no data set {name!r} in the cache; run `paceline data fetch {name}`, "
        f"or point `folder` at a folder with {', '.join(FILES)} (raw or .gz)"
    )


def _file(folder: Path, name: str) -> Path:
    """Return the path of a file under any of its usual names."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give a folder with {', '.join(FILES)} (raw or .gz)")
    dotted = name.replace("-idx", ".idx")
    for candidate in (name, f"{name}.gz", dotted, f"{dotted}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(f"{folder} has no {name} (raw or .gz); expected there: {', '.join(FILES)}")


def _check_claim(folder: Path, source: Source | None, hashes: tuple[str, ...]) -> None:
    """A folder that `fetch` made must hold what it was fetched as."""
    try:
        claimed = json.loads((folder / PROVENANCE).read_text())["source"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder / PROVENANCE} cannot be read; remove {folder} and run `paceline data fetch mnist`"
        ) from None
    if source is not None and source.key == claimed:
        return
    expected = next((known.sha256 for known in SOURCES if known.key == claimed), ("unknown source",) * len(FILES))
    for file, found, wanted in zip(FILES, hashes, expected, strict=True):
        if found != wanted:
            raise DataError(
                f"{folder / file} has sha256 {found}, expected {wanted} for {claimed}; "
                f"remove {folder} and run `paceline data fetch mnist`"
            )


def _part(folder: Path, what: str, images: Idx, labels: Idx) -> Part:
    samples, pixels = images.shape[0], images.shape[1] * images.shape[2]
    if samples != labels.shape[0]:
        raise DataError(
            f"{folder}: {samples} {what} images but {labels.shape[0]} labels; the files do not belong together"
        )
    highest = max(labels.items)
    if highest >= CLASSES:
        raise DataError(f"{folder}: a {what} label is {highest}; expected 0 to {CLASSES - 1}")
    return Part(samples, pixels, images.items, labels.items)
