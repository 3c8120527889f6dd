# SPDX-License-Identifier: Apache-2.0
"""Completion as the shells do it: each loads the script that the program printed and is asked what may follow."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import paceline_agent.commands
import paceline_host.commands
from paceline.commandline import SHELLS, Program
from paceline.completion import places, script

PROGRAMS: dict[str, Callable[[], Program]] = {
    "paceline": paceline_host.commands.program, "paceline-agent": paceline_agent.commands.program
}  # fmt: skip
COMPLETE = {
    # A shell without a terminal completes nothing by itself; bash's variables and zsh's words are set as it would.
    "bash": """
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        {function}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        compset() {{ PREFIX=${{cur#*=}} }}
        compadd() {{ shift; print -l -- ${{(M)@:#${{PREFIX}}*}} }}
        _describe() {{ local -a all; all=(${{(P)@[-1]}}); print -l -- ${{(M)${{all%%:*}}:#${{PREFIX}}*}} }}
        _files() {{ local -a all; [[ $1 == -/ ]] && all=(${{PREFIX}}*(N/)) || all=(${{PREFIX}}*(N)); print -l -- $all }}
        words=({words}); CURRENT=$#words; PREFIX=${{words[CURRENT]}}
        {function}
    """,
    "fish": "complete -C {line}",
}
CASES = [
    ("paceline ru", {"run", "runs"}),
    ("paceline data ", {"fetch", "import", "partition"}),
    ("paceline data fetch --so", {"--source"}),
    ("paceline run --lo", {"--log-level", "--log-json"}),
    ("paceline run --log-level ", {"debug", "info", "warning", "error"}),
    ("paceline run --log-level w", {"warning"}),
    ("paceline --log-level error ru", {"run", "runs"}),
    ("paceline run own", {"own.toml", "own folder"}),
    ("paceline run --runs-dir own", {"own folder"}),
    ("paceline run own.toml --set ", set()),
    ("paceline run own.toml --qui", {"--quiet"}),
    ("paceline report own", {"own folder"}),
    (
        "paceline bench ",
        {
            "allocate",
            "controller",
            "sampler",
            "schedule",
            "aggregate",
            "agent",
            "round",
            "join",
            "link",
            "transfer",
            "simulator",
            "ddp",
            "energy",
            "meter",
        },
    ),
    ("paceline config show --or", {"--origin"}),
    ("paceline completion ", set(SHELLS)),
    ("paceline-agent c", {"config", "completion"}),
    ("paceline-agent run --config own.", {"own.toml"}),
    ("paceline-agent keys --dir own", {"own folder"}),
]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, needs_tool: Callable[[str, str], Path]) -> str:
    name = str(request.param)
    needs_tool(name, name)
    return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder of the shells, with a file and a folder to be found in it."""
    (tmp_path / "own.toml").touch()
    (tmp_path / "own folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "own folder"))  # no settings of whoever runs this
    return tmp_path


def completed(shell: str, line: str, folder: Path) -> set[str]:
    """Return what a shell offers with the cursor at the end of `line`."""
    name, *_ = line.split()
    source = folder / "script"
    source.write_text(script(shell, PROGRAMS[name]()), encoding="utf-8")
    words = " ".join(shlex.quote(word) for word in line.split(" "))
    function = "_" + name.replace("-", "_")
    ask = COMPLETE[shell].format(words=words, function=function, line=shlex.quote(line))
    begin = f"compdef() {{ }}\nsource {source}" if shell == "zsh" else f"source {source}"
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *options, "-c", f"{begin}\n{ask}"], capture_output=True, text=True, cwd=folder, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{shell}: {done.stderr}"
    return {each.split("\t")[0].rstrip("/").replace("\\ ", " ") for each in done.stdout.splitlines() if each}


@pytest.mark.parametrize(("line", "offered"), CASES, ids=[case[0] for case in CASES])
def test_a_shell_offers_what_may_follow(shell: str, line: str, offered: set[str], folder: Path) -> None:
    assert completed(shell, line, folder) == offered


def test_an_option_with_an_equals_sign_is_completed_too(shell: str, folder: Path) -> None:
    line = "paceline run --log-level = w" if shell == "bash" else "paceline run --log-level=w"  # as bash splits it
    assert {each.rpartition("=")[2] for each in completed(shell, line, folder)} == {"warning"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_script_is_sound_and_holds_the_whole_tree(shell: str, name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]()
    text = script(shell, program)
    path = tmp_path / "script"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for place in places(program.parser):
        for option in place.options:
            for flag in option.flags:
                wanted = flag if shell != "fish" else f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                assert wanted in text
        for command in place.commands:
            assert command in text
