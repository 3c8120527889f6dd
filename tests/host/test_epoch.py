# SPDX-License-Identifier: Apache-2.0
"""The number of a host's life."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.errors import StorageError
from paceline_host.epoch import FILE, MOST, next_epoch


def test_it_grows_with_each_start_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = time.time_ns() // 1_000_000
    first = next_epoch(tmp_path)
    assert first >= now_ms
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # the clock has no battery: it is 1970
    assert next_epoch(tmp_path) == first + 1
    assert next_epoch(tmp_path) == first + 2
    monkeypatch.setattr(time, "time_ns", lambda: (first + 500) * 1_000_000)
    assert next_epoch(tmp_path) == first + 500


@pytest.mark.parametrize("content", ["", "x", "-5", str(MOST * 4), "1e9"])
def test_what_is_no_number_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content, encoding="ascii")
    epoch = next_epoch(tmp_path)
    assert 0 < epoch < MOST
    assert next_epoch(tmp_path) > epoch


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*host\.epoch"):
        next_epoch(tmp_path / "none")
