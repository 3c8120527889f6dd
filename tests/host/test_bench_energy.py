# SPDX-License-Identifier: Apache-2.0
"""Rows of the energy benchmarks become tables and pages; what does not hold is said there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline_host import bench_energy, bench_meter


def row(**other: Any) -> dict[str, Any]:
    return {
        "sensor": "hwmon", "condition": "10 % missed", "load": "bursty", "told": 200, "error_median_percent": 0.031,
        "error_95_percent": 12.34, "sampling_percent": 14.0, "covered_percent": 96.5, "width": 1.25,
        "bound_percent": 3.4, "bound_held_percent": 100.0, "both_held_percent": 99.0, "broken": [], **other,
    }  # fmt: skip


def sweep(what: str, x: float) -> dict[str, Any]:
    return row(sweep=what, x=x)


def test_a_row_that_breaks_a_claim_is_named_in_table_and_verdict() -> None:
    rows = [row(), row(load="sine", covered_percent=80.0, broken=["covers"])]
    assert "99.0, covers: NO" in bench_energy.text_table(rows)
    said = bench_energy.verdict(rows)
    assert said.startswith("1 of 2 rows keep all claims.")
    assert "in the worst row in 80.0" in said
    assert said.endswith("Broken: hwmon, 10 % missed, sine: covers.")
    assert "Broken" not in bench_energy.verdict(rows[:1])


def test_the_page_has_its_command_and_its_picture(tmp_path: Path) -> None:
    sweeps = [sweep(what, x) for what in ("rate", "missed", "bursts", "late") for x in (0.1, 1.0)]
    page = bench_energy.write_page(tmp_path, {"rows": [row()], "sweeps": sweeps}, trials=200, seed=3)
    text = page.read_text(encoding="utf-8")
    assert "paceline bench energy --trials 200 --seed 3 --out docs/results" in text
    assert "| hwmon | 10 % missed | bursty | 0.031 | 12.3 | 14.0 | 96.5 | 1.25 | 3.4 | 100 | 99.0 |" in text
    assert (tmp_path / "energy_error.png").read_bytes().startswith(b"\x89PNG")


OWN = {
    "source": "ina219", "readings_a_second": 14.5, "cpu_percent": 0.62, "us_a_reading": 430.0, "rss_kib": 4700,
    "start_ms": 80.0, "bytes_a_reading": 21.3,
}  # fmt: skip
BESIDE = {"tool": "pyjoules", "version": "0.5.1", "us_a_measurement": 8.8, "rss_kib": 2700, "start_ms": 50.0}


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"tool": "codecarbon", "why_not": "not installed"}, "not installed"),
        ({**BESIDE, "every_s": None}, "when it is told to"),
        ({**BESIDE, "every_s": 15.0}, "every 15 s"),
    ],
)
def test_costs_are_shown_beside_those_of_tools_that_are_there(
    beside: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = {"own": [OWN, {"source": "hwmon", "why_not": "no such chip"}], "beside": [beside]}
    shown = bench_meter.text_tables(found)
    assert said in shown
    assert "no such chip" in shown
    page = bench_meter.write_page(tmp_path, found, {"cpus": 2}, seconds=10.0).read_text(encoding="utf-8")
    assert "| ina219 | 14.5 | 0.62 | 430 | - | 21.3 | 4700 | 80 |" in page
    assert "Machine: cpus 2." in page
