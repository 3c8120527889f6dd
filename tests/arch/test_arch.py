# SPDX-License-Identifier: Apache-2.0
"""The same bits on every instruction set, and a core that fits a small board."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.arch import targets


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.name)
def test_every_vector_is_the_same_here(target: targets.Target, tmp_path: Path) -> None:
    if reason := targets.missing(target):
        pytest.skip(reason)
    done = targets.execute(target, targets.build(target, tmp_path))
    assert done.stdout.split("\n")[-2].strip() == "vectors: ok", done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.name)
def test_every_structure_draws_the_one_schedule_here(target: targets.Target, tmp_path: Path) -> None:
    """All structures and instructions that the machine has; without an operating system the Fenwick tree alone."""
    if reason := targets.missing(target):
        pytest.skip(reason)
    done = targets.execute(target, targets.build(target, tmp_path, name="test_engine"))
    wanted = {"aarch64": "instructions: 1 5", "riscv64": "instructions: 1", "armhf": "instructions: 1"}
    assert wanted.get(target.name, "the Fenwick tree alone") in done.stdout, done.stdout
    assert "engine: ok" in done.stdout or "tree alone): ok" in done.stdout, done.stdout
    assert done.returncode == 0


def test_a_fused_build_does_not_pass(tmp_path: Path) -> None:
    """The vectors see what -ffp-contract=off is for; without this the test above would prove less."""
    target = next(target for target in targets.TARGETS if target.name == "aarch64")
    if reason := targets.missing(target):
        pytest.skip(reason)
    done = targets.execute(target, targets.build(target, tmp_path, "-ffp-contract=fast"))
    assert "costs are the replica's, bit for bit" in done.stdout
    assert done.returncode == 1


def test_the_core_fits_a_cortex_m3(tmp_path: Path) -> None:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc missing: apt-get install gcc-arm-none-eabi picolibc-arm-none-eabi")
    measured = targets.sizes(tmp_path)
    print(targets.table(measured))
    for name, budget in targets.APART.items():
        assert measured.text.pop(name) <= budget
    assert sum(measured.text.values()) <= targets.TEXT_BUDGET
    assert measured.writable == 0
    assert max(measured.stack.values()) <= targets.STACK_BUDGET, measured.stack
    assert max(measured.frontier_stack.values()) <= targets.FRONTIER_STACK_BUDGET, measured.frontier_stack
    assert set(measured.state) == set(targets.STATES)
