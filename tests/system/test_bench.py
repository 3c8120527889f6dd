# SPDX-License-Identifier: Apache-2.0
"""The transfer benchmark between two real processes; what it measures is not asserted, what it carries is."""

from __future__ import annotations

from paceline.one_way import KINDS
from paceline_host import bench_transfer


def test_what_the_transfer_benchmark_sends_comes_back_by_every_kind() -> None:
    """It raises where a byte differs."""
    found = bench_transfer.measure(lambda text: None, repeats=1)
    assert sorted(found) == sorted(
        (kind, way) for kind in KINDS for way in (bench_transfer.TO_AGENT, bench_transfer.TO_HOST)
    )
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found.values())
