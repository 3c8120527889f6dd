# SPDX-License-Identifier: Apache-2.0
"""Gives each system test a bench of its own, which ends everything that the test started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paceline.data.idx import write_idx
from paceline.data.sources import FILES

from .fleet_tools import BIN, TEST, TRAIN, Bench

BUILD_S = 100.0  # compiling the core takes a few seconds, on a busy machine more


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Yield a bench; afterwards none of its processes may be left."""
    with Bench(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write pictures of 8 x 8 pixels in ten classes; return their folder."""
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a bundle for boards of this machine's kind, once."""
    path = tmp_path_factory.mktemp("bundle") / "own.tar.gz"
    subprocess.run([BIN / "paceline", "boards", "bundle", "--out", path], check=True, timeout=BUILD_S)
    return path


def write_pictures(folder: Path) -> None:
    """Write a small data set in the form of MNIST."""
    source = np.random.default_rng(1)
    shapes = source.integers(0, 200, (10, 8, 8))
    for (images, labels), count in zip((FILES[:2], FILES[2:]), (TRAIN, TEST), strict=True):
        classes = np.arange(count) % 10
        noisy = shapes[classes] + source.integers(0, 56, (count, 8, 8))
        write_idx(folder / images, (count, 8, 8), noisy.astype(np.uint8).tobytes())
        write_idx(folder / labels, (count,), classes.astype(np.uint8).tobytes())
