# SPDX-License-Identifier: Apache-2.0
"""What README.md says is there is there: folders, links, commands, and library code that runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE_HERE = {"build", "dist", "runs"}  # .gitignore has them; nothing of them belongs into a map


def mapped() -> list[str]:
    """Return the folders of the table below "Map"."""
    return re.findall(r"^\| `([^`]+)/` \|", README.partition("## Map")[2], re.MULTILINE)


def test_the_map_lists_what_exists() -> None:
    assert mapped()
    assert [folder for folder in mapped() if not (ROOT / folder).is_dir()] == []


def test_each_folder_is_on_the_map() -> None:
    present = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    present = {name for name in present if name not in MADE_HERE and not name.endswith((".egg-info", "__pycache__"))}
    assert present - {folder.partition("/")[0] for folder in mapped()} == set()


def test_links_and_named_files_exist() -> None:
    named = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    named += re.findall(r"\b(?:experiments|docs|tests|tools)/[\w./-]*\w", README)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_each_make_target_of_the_readme_is_one() -> None:
    targets = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


LIBRARY_USE = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
HOLDS = {
    "from paceline import Controller": "assert sum(shares) == 900 and len(shares) == 3, shares",
    "from paceline_agent.meters import open_meter": "assert w.energy_j > 0 and 0 < w.coverage <= 1, w.result",
}


def test_each_library_use_is_one_that_is_checked() -> None:
    assert sorted(code.partition("\n")[0] for code in LIBRARY_USE) == sorted(HOLDS)


@pytest.mark.parametrize("code", LIBRARY_USE, ids=lambda code: code.partition("\n")[0])
def test_the_library_use_runs_as_it_stands(code: str, tmp_path: Path) -> None:
    code += f"\n{HOLDS[code.partition(chr(10))[0]]}\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
