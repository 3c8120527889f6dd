# SPDX-License-Identifier: Apache-2.0
"""Whoever reads a file that somebody else made refuses what is no regular file, and what is larger than it may be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import foreign
from paceline.data import reviews, series
from paceline.data.cifar import read_cifar
from paceline.data.idx import read_idx
from paceline.errors import PacelineError
from paceline.keys import read_pair, read_public
from paceline.sheet import Sheet
from paceline_agent.meters.replay import read_trace
from paceline_host.bench_compare import read_saved
from paceline_host.host_config import load_host
from paceline_host.onboard.bundle import read_bundle
from paceline_host.onboard.images import read_image
from paceline_host.onboard.inventory import FILE, Inventory
from paceline_host.simulation.traces import Trace

Reader = Callable[[Path], object]


def _review(path: Path) -> object:
    """Read it as the first of a folder's reviews."""
    place = path.parent / "train" / "neg"
    place.mkdir(parents=True)
    (place / "1_8.txt").symlink_to(path)
    reviews.from_folder(path.parent, path.parent)
    return place


def _inventory(path: Path) -> object:
    (path.parent / FILE).symlink_to(path)
    return Inventory(path.parent)


def _cifar(path: Path) -> object:
    for name in ("train.bin", "test.bin"):
        (path.parent / name).symlink_to(path)
    return read_cifar(path.parent, "cifar100")


READERS: dict[str, Reader] = {
    "review": _review,
    "series": lambda path: series.from_file(path, path.parent),
    "idx": lambda path: read_idx(path, 1),
    "cifar": _cifar,
    "settings": Sheet.read,
    "host": load_host,
    "public": read_public,
    "inventory": _inventory,
    "replay": read_trace,
    "trace": Trace,
    "saved figures": read_saved,
    "bundle": read_bundle,
    "image": read_image,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, reader: Reader) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PacelineError, match=r"it is no regular file|has no train\.bin"):
        reader(tmp_path / "pipe")


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_device_is_refused_behind_a_link_too(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "device").symlink_to("/dev/null")  # of the kind of /dev/zero, which would be read without end
    with pytest.raises(PacelineError, match=r"it is no regular file|has no train\.bin"):
        reader(tmp_path / "device")


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_file_of_a_tebibyte_is_refused_and_not_read(tmp_path: Path, reader: Reader) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PacelineError):
        reader(tmp_path / "hole")


def test_a_secret_key_may_be_no_pipe_either(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.key", 0o600)
    (tmp_path / "x.pub").write_text("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n")
    with pytest.raises(PacelineError, match=r"x\.key: it is no regular file"):
        read_pair(tmp_path / "x.key")


def test_what_is_read_is_all_of_it_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\r\nb")
    assert foreign.read_bytes(path, 4) == b"a\r\nb"
    assert foreign.read_text(path) == path.read_text("utf-8")
    with pytest.raises(OSError, match="it has more than 3 bytes"):
        foreign.read_bytes(path, 3)
    assert foreign.read_bytes(Path("/proc/self/status"), 1 << 20).startswith(b"Name:")  # whose size is told as 0
    with pytest.raises(IsADirectoryError):
        foreign.read_bytes(tmp_path, 3)
