# SPDX-License-Identifier: Apache-2.0
"""The cross-built extension in that architecture's own Python, run by qemu-user: it loads, and computes the same.

On demand: `make test-board`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.vm.kernel import Missing

from paceline.errors import SettingsError
from paceline_host.onboard import wheel

from . import foreign

COMPUTE = """
import sys, zlib
sys.path.insert(0, sys.argv[1])
from paceline import Controller, GlobalSampler, batch_schedule
from paceline.core import permutation
controller = Controller(3, 1000)
shares = controller.allocate()
order = permutation(2**40 + 7, 3, 5000)
sampler = GlobalSampler([40, 7, 0, 53], seed=9)
print(list(shares), batch_schedule([5, 9, 2], 2), zlib.crc32(bytes(memoryview(order).cast("B"))), sampler.draw(8))
"""


@pytest.mark.parametrize("arch", foreign.NAMES)
def test_the_extension_loads_in_that_kinds_python_and_computes_the_same(arch: str, tmp_path: Path) -> None:
    try:
        command = foreign.python(arch)
        made = wheel.build(arch, tmp_path)
    except (Missing, SettingsError) as missing:
        pytest.skip(str(missing))
    place = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", made, place], check=True, timeout=60)
    here = subprocess.run(
        [sys.executable, "-c", COMPUTE, "/nowhere"], capture_output=True, text=True, check=True, timeout=60
    )
    there = subprocess.run(
        [*command, "-c", COMPUTE, str(place)], capture_output=True, text=True, check=False, timeout=100
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout
