# SPDX-License-Identifier: Apache-2.0
"""Measuring what a meter costs: its sensors are read as real ones are. The costs themselves are not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline_agent.meter_cost import BESIDE, _child, lay_out


def printed(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("source", "bytes_a_reading"),
    [("rapl", None), ("hwmon", None), ("ina219", 4 * 5), ("ina3221", 4 * 5)],  # flag, shunt, bus, configuration ...
)
def test_each_source_reads_its_simulated_sensor(source: str, bytes_a_reading: float | None, tmp_path: Path) -> None:
    lay_out(tmp_path)
    found = printed("-m", "paceline_agent.meter_cost", source, str(tmp_path), "1")
    assert found["readings_a_second"] > 2
    assert found["cpu_percent"] > 0
    if bytes_a_reading is None:
        assert found["bytes_a_reading"] is None
        assert found["us_a_measurement"] > 0
    else:
        assert found["bytes_a_reading"] >= bytes_a_reading  # ... and what is polled in between


@pytest.mark.parametrize("tool", ["codecarbon", "pyjoules"])
def test_a_tool_that_is_not_there_is_told_as_not_installed(tool: str, tmp_path: Path) -> None:
    assert printed(str(BESIDE), tool, str(tmp_path)) == {"why_not": "not installed"}


@pytest.mark.parametrize(("python", "said"), [("/nope", "/nope cannot be run: No such file"), ("true", "is no Python")])
def test_what_is_no_python_is_told_beside_the_figures(python: str, said: str) -> None:
    assert said in _child(python, str(BESIDE), "codecarbon", "/")["why_not"]
