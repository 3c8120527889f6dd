# SPDX-License-Identifier: Apache-2.0
"""The partition that a comparison's folder keeps: what runs go on with is what they were begun with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.data import Partition
from paceline.errors import DataError, SettingsError
from paceline.tasks import SplitTask, make, splittable
from paceline_host.experiment import SplitSettings
from paceline_host.psl.run import PARTITION, keep_partition

from ..system.conftest import write_pictures

SETTINGS = SplitSettings(clients=6, partition="severe", seed=4)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> SplitTask:
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return splittable(make("mnist", {"model": "cnn", "cut": "conv1"}, 1, folder))


def test_it_is_written_once_and_holds_who_has_what(tmp_path: Path, task: SplitTask) -> None:
    keep_partition(tmp_path, SETTINGS, task)
    first = (tmp_path / PARTITION).stat()
    keep_partition(tmp_path, SETTINGS, task)
    assert (tmp_path / PARTITION).stat() == first
    dealt = Partition.from_bytes((tmp_path / PARTITION).read_bytes(), task.labels())
    assert (dealt.clients, dealt.seed, dict(dealt.options)) == (6, 4, {"classes_per_client": 2, "alpha": 3.0})
    assert sum(dealt.sizes()) == task.samples


@pytest.mark.parametrize("other", [{"seed": 5}, {"partition": "mild"}, {"clients": 7}])
def test_runs_do_not_go_on_with_another_one(tmp_path: Path, task: SplitTask, other: dict[str, int | str]) -> None:
    keep_partition(tmp_path, SETTINGS, task)
    kept = (tmp_path / PARTITION).read_bytes()
    with pytest.raises(SettingsError, match="another partition than the one that the runs here were begun with"):
        keep_partition(tmp_path, replace(SETTINGS, **other), task)  # type: ignore[arg-type]
    assert (tmp_path / PARTITION).read_bytes() == kept


def test_a_damaged_file_is_named(tmp_path: Path, task: SplitTask) -> None:
    keep_partition(tmp_path, SETTINGS, task)
    whole = (tmp_path / PARTITION).read_bytes()
    (tmp_path / PARTITION).write_bytes(whole[:-9])
    with pytest.raises(DataError, match=PARTITION):
        keep_partition(tmp_path, SETTINGS, task)


def test_boards_own_data_leave_nothing_to_keep(tmp_path: Path, task: SplitTask) -> None:
    keep_partition(tmp_path, SplitSettings(partition="own"), task)
    assert not (tmp_path / PARTITION).exists()
