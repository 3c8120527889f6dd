# SPDX-License-Identifier: Apache-2.0
"""The commands of both programs as trees: each leaf explains itself, in lines that fit, with examples that parse."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline_agent.commands
import paceline_host.commands
from paceline.commandline import CommandParser, Program
from paceline.errors import EXITS

PROGRAMS = {"paceline": paceline_host.commands.program(), "paceline-agent": paceline_agent.commands.program()}


def tree(parser: CommandParser) -> Iterator[CommandParser]:
    """Yield a parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from tree(below)


EVERY = [parser for program in PROGRAMS.values() for parser in tree(program.parser)]
LEAVES = [parser for parser in EVERY if parser.get_default("handler")]


def named(parser: CommandParser) -> str:
    return parser.prog


def test_the_walk_finds_what_is_there() -> None:
    assert {"paceline", "paceline run", "paceline data", "paceline data fetch"} <= {named(parser) for parser in EVERY}
    assert {"paceline-agent run", "paceline-agent keys"} <= {named(parser) for parser in LEAVES}
    assert "paceline data" not in {named(parser) for parser in LEAVES}


@pytest.mark.parametrize("parser", EVERY, ids=named)
def test_help_tells_what_how_and_which_exit_statuses(parser: CommandParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = parser.format_help()
    before, _, examples = shown.partition("\nexamples:\n")
    assert before.startswith(f"usage: {parser.prog} ")
    assert parser.description
    assert parser.description in before
    assert [line for line, _ in parser.examples if f"  {line}\n" not in examples] == []
    assert all(line.startswith(parser.prog) for line, _ in parser.examples)
    assert parser.examples
    assert "\nexit status: 0 ok, 2 usage" in examples
    assert [line for line in shown.splitlines() if len(line) >= 80] == []


@pytest.mark.parametrize("parser", LEAVES, ids=named)
def test_each_example_is_a_command_line_of_its_command(
    parser: CommandParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no file of an example is there, and none is needed to parse it
    assert parser.examples
    for line, what in parser.examples:
        assert what
        name, *words = shlex.split(line.partition(" 2>")[0])
        assert line.startswith(f"{parser.prog}")
        arguments = PROGRAMS[name].parser.parse_args(words)
        assert arguments.handler is parser.get_default("handler")


def test_each_argument_has_help_and_says_what_it_takes() -> None:
    for parser in LEAVES:
        for action in parser._actions:
            assert action.help, f"{parser.prog}: {action.dest}"
            takes = action.nargs != 0 and action.choices is None
            assert not takes or action.metavar is not None, f"{parser.prog}: {action.dest}"


def test_a_command_tells_only_of_exit_statuses_that_have_a_meaning() -> None:
    program = Program("x", "1", "about")
    with pytest.raises(KeyError):
        program.command("y", lambda arguments, talk: 0, "do y", examples=[("x y", "y")], exits=(77,))
    assert 77 not in EXITS
