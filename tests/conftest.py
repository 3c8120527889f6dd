# SPDX-License-Identifier: Apache-2.0
"""What all tests share: tools that may be missing, and the switches of continuous integration.

PACELINE_NO_SKIP=1 turns each skip into a failure with the reason it would have had. PACELINE_IN_TURN=K/N runs each Nth
of the tests that are marked `in_turn`, from the Kth on; without it all run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # no test asserts how long something takes
settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parent.parent
VENV_BIN = ROOT / ".venv" / "bin"
NO_SKIP = os.environ.get("PACELINE_NO_SKIP") == "1"
FIRST, EVERY = (int(part) for part in os.environ.get("PACELINE_IN_TURN", "0/1").split("/"))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def needs_tool() -> Callable[[str, str], Path]:
    """Return a function (program, Debian package) -> path; where the program is missing, the test is skipped."""

    def find(program: str, package: str) -> Path:
        path = shutil.which(program) or shutil.which(program, path=str(VENV_BIN))
        if path is None:
            pytest.skip(f"{program} is missing: apt-get install {package}")
        return Path(path)

    return find


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out those whose turn it is not: continuous integration takes the longest tests in turn."""
    marked = [item for item in items if item.get_closest_marker("in_turn")]
    left_out = [item for number, item in enumerate(marked) if number % EVERY != FIRST % EVERY]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        ids = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in ids]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skipped test fail under the switch; an expected failure is none of its business."""
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = _why(report.longrepr)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a module that skips itself as a whole fail under the switch."""
    report = yield
    if NO_SKIP and report.skipped:
        report.outcome = "failed"
        report.longrepr = _why(report.longrepr)
    return report


def _why(skipped: object) -> str:
    """Return the text of a failure that was a skip, whose longrepr is (file, line, reason)."""
    file, line, reason = skipped if isinstance(skipped, tuple) else ("", "", str(skipped))
    return f"{file}:{line}: skipped, which PACELINE_NO_SKIP=1 forbids: {reason}"
