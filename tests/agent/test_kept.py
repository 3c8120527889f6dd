# SPDX-License-Identifier: Apache-2.0
"""The record of the last result: what was written is read again, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.machine import Kept, Measured
from paceline_agent.kept import RECORD, Shelf

UPDATE = b"update" * 20
PLAIN = Kept("demo-001/time", 3, 1, 0, 1 << 33, ((0, 5, 9), (1, 0, 3)), "base", 7, 2, 1500, 0, 0, len(UPDATE),
             hashlib.sha256(UPDATE).hexdigest())  # fmt: skip


@pytest.fixture
def update(tmp_path: Path) -> Path:
    path = tmp_path / "update"
    path.write_bytes(UPDATE)
    return path


@pytest.mark.parametrize(
    "energy", [None, Measured(1 << 33, 1000, 10, "modelled", 0), Measured(1 << 33, None, None, "none", 1)]
)
def test_a_record_comes_back_as_it_was(tmp_path: Path, update: Path, energy: Measured | None) -> None:
    said: list[str] = []
    shelf = Shelf(tmp_path, said.append)
    shelf.save(replace(PLAIN, run="a-much-longer-name-of-a-run-than-the-next-one/time"))
    shelf.save(replace(PLAIN, energy=energy))  # a shorter one over a longer one
    shelf.close()
    assert Shelf(tmp_path, said.append).load(update) == replace(PLAIN, energy=energy)
    assert said == []


@pytest.mark.parametrize("harm", ["no record", "cut", "other keys", "other update", "shorter update", "no update"])
def test_what_is_not_whole_is_no_result(tmp_path: Path, update: Path, harm: str) -> None:
    Shelf(tmp_path, print).save(PLAIN)
    record = tmp_path / RECORD
    if harm == "no record":
        record.unlink()
    elif harm == "cut":
        record.write_bytes(record.read_bytes()[:40])
    elif harm == "other keys":
        record.write_text('{"run": 5}', encoding="utf-8")
    elif harm == "other update":
        update.write_bytes(UPDATE[:-1] + b"x")
    elif harm == "shorter update":
        update.write_bytes(UPDATE[:-1])
    else:
        update.unlink()
    assert Shelf(tmp_path, print).load(update) is None


def test_a_record_that_cannot_be_written_is_told_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / RECORD).mkdir()
    said: list[str] = []
    Shelf(tmp_path, said.append).save(PLAIN)
    assert "would be computed again" in said[0]
