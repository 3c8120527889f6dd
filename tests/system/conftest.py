# SPDX-License-Identifier: Apache-2.0
"""Gives each system test a bench of its own, which ends everything that the test started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .fleet_tools import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Yield a bench; afterwards none of its processes may be left."""
    with Bench(tmp_path) as made:
        yield made
