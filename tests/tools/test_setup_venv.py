# SPDX-License-Identifier: Apache-2.0
"""The set-up script names each missing thing, before it does anything, with the Debian package that brings it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup_venv.py"


@pytest.fixture(scope="module")
def setup_venv() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("setup_venv", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("before", "search_path", "sentence"),
    [
        pytest.param(
            "import sys; sys.version_info = (3, 9, 2)", None, "this python3 is 3.9.2, paceline needs 3.11", id="old"
        ),
        pytest.param("", "/nowhere", "apt-get install gcc libc6-dev", id="no compiler"),
        pytest.param("import sys; sys.modules['ensurepip'] = None", None, "apt-get install python3-venv", id="no venv"),
        pytest.param(
            "import sysconfig; sysconfig.get_path = lambda name: '/nowhere'",
            None,
            "the C headers of this python3 are missing (/nowhere/Python.h): apt-get install python3-dev",
            id="no headers",
        ),
    ],
)
def test_a_missing_thing_is_named_with_its_package(
    before: str, search_path: str | None, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "tools")  # the root of the set-up is the folder above the script's
    code = f"import runpy\n{before}\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    environment = {"PATH": search_path} if search_path else None
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]


@pytest.mark.parametrize(
    ("version", "fitting"),
    [("2.4.0", True), ("2.13.0+cpu", True), ("3.0", True), ("2.3.1", False), ("x", False), (None, False)],
)
def test_a_torch_fits_from_2_4_on(setup_venv: ModuleType, version: str | None, fitting: bool) -> None:
    assert setup_venv.fits(version) is fitting


def test_a_torch_that_is_there_brings_its_own_dependencies(setup_venv: ModuleType) -> None:
    assert "torch==" in setup_venv.pinned(with_torch=True)
    without = setup_venv.pinned(with_torch=False)
    assert "torch" not in without
    assert "sympy" not in without
    assert "numpy==" in without
    assert "pyzmq==" in without
