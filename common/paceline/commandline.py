# SPDX-License-Identifier: Apache-2.0
"""A program's commands: parsers whose help has examples and exit statuses, and the way from argv to an exit status.

A command is one function that registers its parser and names its handler; nothing else knows of it:

    def add(program: Program) -> None:
        parser = program.command("runs", _runs, "list what was run", examples=[("paceline runs", "all of them")])
        parser.add_argument("--json", action="store_true", help="print JSON")
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from paceline.errors import EXITS, PacelineError
from paceline.talk import LEVELS, Talk

WIDTH = 79  # of help: what any terminal shows unbroken
SHELLS = ("bash", "zsh", "fish")  # that completion knows
ALWAYS = (0, 2, 130, 143)  # exit statuses of every command

Handler = Callable[[argparse.Namespace, Talk], int]
Examples = Sequence[tuple[str, str]]  # (command line, what it does)


class UsageError(Exception):
    """A command line that no parser takes; the text is what argparse says of it."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with examples and exit statuses.

    `offers`: words to complete a positional with that has no choices.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **arguments)
        self.examples: Examples = ()
        self.exits = {status: EXITS[status] for status in ALWAYS}
        self.offers: Mapping[str, Sequence[str]] = {}

    def format_help(self) -> str:
        """Return the help. Its texts are laid out here, since most calls of a program ask for none."""
        shown = "".join(f"  {line}\n      {what}\n" for line, what in self.examples)
        statuses = ", ".join(f"{status} {text}".replace(" ", _TIED) for status, text in sorted(self.exits.items()))
        self.epilog = f"examples:\n{shown}\n{_filled(f'exit status: {statuses}').replace(_TIED, ' ')}"
        self.description = _filled(self.description or "")
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Leave what to do about it, and in which form to say it, to Program.run."""
        raise UsageError(f"{self.format_usage().strip()}\n{self.prog}: error: {message}")


class Program:
    """A program: its commands by their path ("runs", "data fetch"), and `run`."""

    def __init__(self, name: str, version: str, about: str) -> None:
        self.name = name
        self.parser = CommandParser(prog=name, description=about)
        self.parser.add_argument("--version", action="version", version=f"{name} {version}")
        _add_talk(self.parser)
        self._groups = {"": _Group(self.parser, "COMMAND")}

    def group(self, path: str, summary: str) -> None:
        """Make a command that has commands of its own."""
        self._groups[path] = _Group(self._add(path, summary, f"{_sentence(summary)}."), "ACTION")

    def command(
        self, path: str, handler: Handler, summary: str, *, about: str = "", examples: Examples,
        exits: Sequence[int] = (),
    ) -> CommandParser:  # fmt: skip
        """Make a command, and return its parser for the arguments. `exits`: its statuses beyond those of all."""
        parser = self._add(path, summary, f"{_sentence(summary)}. {about}".strip())
        parser.set_defaults(handler=handler)
        parser.examples = examples
        parser.exits |= {status: EXITS[status] for status in exits}
        _add_talk(parser)
        for above in {"", path.rpartition(" ")[0]}:
            self._groups[above].tell(parser)
        return parser

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run the command that argv names; return the exit status."""
        if sys.stderr is None:  # closed by the caller: talk goes nowhere, least of all to stdout
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        words = sys.argv[1:] if argv is None else list(argv)
        talk = Talk(self.name, as_json="--log-json" in words)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is caught below
            arguments = self.parser.parse_args(words)
            talk = Talk(self.name, getattr(arguments, "log_level", "info"), as_json="log_json" in arguments)
            status: int = arguments.handler(arguments, talk)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where it can still be told that it failed
            return status
        except UsageError as error:
            talk.error(str(error), event="usage") if talk.as_json else print(error, file=sys.stderr)
            return 2
        except PacelineError as error:
            talk.error(str(error), event="failed")
            return error.exit_code
        except KeyboardInterrupt:
            return 130
        except OSError as error:  # of our own output: files of a run raise StorageError
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter's end fails at it again
            if isinstance(error, BrokenPipeError):  # the reader of a pipe has seen enough
                return 0
            talk.error(f"cannot write the output: {error.strerror}", event="failed")
            return 10
        except Exception:
            if not talk.as_json:
                raise
            import traceback

            talk.error(traceback.format_exc(), event="bug")
            return 1

    def _add(self, path: str, summary: str, about: str) -> CommandParser:
        above, _, name = path.rpartition(" ")
        return self._groups[above].table.add_parser(name, help=summary, description=about)


def add_completion(program: Program) -> None:
    """Register the command that prints a completion script."""
    name = program.name

    def show(arguments: argparse.Namespace, talk: Talk) -> int:
        from paceline.completion import script

        print(script(arguments.shell, program), end="")
        return 0

    parser = program.command(
        "completion",
        show,
        "print a completion script for a shell",
        about="Commands, options, their values and files are completed. The script itself calls no program.",
        examples=[
            (f"{name} completion bash", f'for bash, in ~/.bashrc: eval "$({name} completion bash)"'),
            (f"{name} completion zsh", f"for zsh: save it as _{name} in a folder of $fpath"),
            (f"{name} completion fish", f"for fish: save it as ~/.config/fish/completions/{name}.fish"),
        ],
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


class _Group:
    """A parser with commands below it; its help shows the first example of each."""

    def __init__(self, parser: CommandParser, metavar: str) -> None:
        self.parser = parser
        self.table = parser.add_subparsers(required=True, metavar=metavar, title=f"{metavar.lower()}s")

    def tell(self, parser: CommandParser) -> None:
        """Show one more command."""
        self.parser.examples = [*self.parser.examples, *parser.examples[:1]]
        self.parser.exits |= parser.exits


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help of one width, whatever the terminal's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH - 1)


_TIED = "\0"  # a space that no line is broken at


def _add_talk(parser: CommandParser) -> None:
    """Let --log-level and --log-json stand before or after the command: no default, or the later one would win."""
    talk = parser.add_argument_group("talk on stderr")
    talk.add_argument(
        "--log-level", choices=LEVELS, default=argparse.SUPPRESS, metavar="LEVEL",
        help=f"say nothing below this: {', '.join(LEVELS)} (default: info)",
    )  # fmt: skip
    talk.add_argument(
        "--log-json", action="store_true", default=argparse.SUPPRESS, help="one JSON object a line, for programs"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _filled(text: str) -> str:
    import textwrap

    return textwrap.fill(text, WIDTH - 1, break_long_words=False, break_on_hyphens=False)
