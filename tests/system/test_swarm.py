# SPDX-License-Identifier: Apache-2.0
"""Protocol-only participants over real sockets: many join one host, and a host does not grow from round to round."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_host import bench_swarm

LIMIT_S = 120
GROWTH_MIB = 8.0
# 150 rounds of four updates of 60 kB; a process of its own, since memory that others have left free hides a leak.
FLAT = """
from paceline_host.bench_swarm import measure_flatness
{planted}
first, last = measure_flatness(print, 150, 30, participants=4, ballast=15_000)
print(first.round, last.round, last.resident_mib - first.resident_mib, last.descriptors - first.descriptors)
"""
LEAK = """
import os
from paceline_host.reducer import Reducer
add, kept = Reducer.add, []
def leaky(self, index, samples, update):
    kept.append((bytes(update), os.dup(0)))
    add(self, index, samples, update)
Reducer.add = leaky
"""


def test_sixty_participants_join_and_finish_a_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It raises where the round lacks one of them."""
    monkeypatch.chdir(tmp_path)
    joined, done, _ = bench_swarm.measure_joining(print, 60, 1)
    assert 0 < joined[0] < done[0]
    assert not list(tmp_path.iterdir())


def test_the_rounds_benchmark_takes_its_kinds_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = bench_swarm.measure_rounds(print, blocks=2, rounds=3)
    assert {name: len(values) for name, values in found.items()} == {
        bench_swarm.FLOOR: 6, bench_swarm.NO_FSYNC: 4, bench_swarm.FSYNC: 4,
    }  # fmt: skip


@pytest.mark.parametrize(("planted", "is_flat"), [("", True), (LEAK, False)], ids=["as it is", "with a leak planted"])
def test_a_host_keeps_nothing_of_its_rounds(planted: str, is_flat: bool, tmp_path: Path) -> None:
    code = FLAT.format(planted=planted)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    begun, ended, grown_mib, more_files = (json.loads(value) for value in done.stdout.split())
    assert 30 < begun < ended <= 150
    assert (grown_mib < GROWTH_MIB) == is_flat, done.stdout
    assert (more_files == 0) == is_flat, done.stdout


def test_too_few_descriptors_are_told_with_what_to_do(tmp_path: Path) -> None:
    code = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, 300)); from paceline_host import bench_swarm as b;"
    done = subprocess.run([sys.executable, "-c", code + "b.room_for(100)"], capture_output=True, text=True)
    assert "356 file descriptors are needed, this session allows 300; raise" in done.stderr
