# SPDX-License-Identifier: Apache-2.0
"""pyproject.toml, constraints.txt and the packages agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paceline.version import VERSION

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def plain(name: str) -> str:
    """Return a distribution's name as pip compares it, without version and extras."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name.strip())[0]).lower()  # type: ignore[index]


def test_the_version_is_stated_once_for_programs_and_once_for_pip(project: dict[str, Any]) -> None:
    assert project["version"] == VERSION


def test_each_requirement_is_pinned(project: dict[str, Any]) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {plain(line) for line in lines if "==" in line}
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    assert {plain(each) for each in wanted} - {"paceline"} - pinned == set()


@pytest.mark.parametrize("package", ["common/paceline", "agent/paceline_agent", "host/paceline_host"])
def test_each_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
