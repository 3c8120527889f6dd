# SPDX-License-Identifier: Apache-2.0
"""Completion scripts for bash, zsh and fish, written from a program's parsers. Pure: a tree of parsers in, text out.

A script knows the whole tree and calls nothing: it finds the command by the words before the cursor (" data fetch"),
then offers what may follow there. What has the metavar FILE or FOLDER is completed from the disk.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from paceline.commandline import CommandParser, Program

DISK = ("FILE", "FOLDER")


@dataclass(frozen=True)
class Option:
    """An option. `words`: its known values; `disk`: FILE, FOLDER or nothing."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    words: tuple[str, ...]
    disk: str


@dataclass
class Place:
    """A command by its path, and what may follow it: commands, or words of its own, or something on the disk."""

    path: str
    commands: dict[str, str] = field(default_factory=dict)  # name -> help
    options: list[Option] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    disk: str = ""


def places(parser: CommandParser, path: str = "") -> Iterator[Place]:
    """Yield a parser's place, and all below it."""
    place = Place(path)
    below: list[tuple[str, CommandParser]] = []
    for action in parser._actions:
        words = tuple(str(word) for word in action.choices or parser.offers.get(action.dest, ()))
        disk = action.metavar if isinstance(action.metavar, str) and action.metavar in DISK else ""
        if isinstance(action, argparse._SubParsersAction):
            place.commands = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += action.choices.items()
        elif action.option_strings:
            flags = tuple(action.option_strings)
            place.options.append(Option(flags, action.help or "", action.nargs != 0, words, disk))
        else:
            place.words += words
            place.disk = place.disk or disk
    yield place
    for name, each in below:
        yield from places(each, f"{path} {name}")


def script(shell: str, program: Program) -> str:
    """Return the script for a shell of commandline.SHELLS."""
    function = "_" + program.name.replace("-", "_")
    return _SCRIPTS[shell](program.name, function, list(places(program.parser)))


# bash ---------------------------------------------------------------------------------------------------------------

_BASH = """\
# Completion for bash, made by: {name} completion bash
{function}_words() {{
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}}
{function}_disk() {{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}}
{function}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} at="" options="" words="" disk="" i
    COMPREPLY=()
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${{COMP_WORDS[i]}}" in
            {paths}) at="$at ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$at:$prev" in
{values}    esac
    case "$at" in
{here}    esac
    if [[ $cur == -* || -z $words$disk ]]; then
        {function}_words "$options"
    elif [[ -n $disk ]]; then
        {function}_disk "$disk"
    else
        {function}_words "$words"
    fi
}}
complete -F {function} {name}
"""


def _bash(name: str, function: str, tree: list[Place]) -> str:
    kinds = {"FILE": "-f", "FOLDER": "-d", "": ""}

    def value(option: Option) -> str:
        if option.disk:
            return f"{function}_disk {kinds[option.disk]}; "
        return f"{function}_words {shlex.quote(' '.join(option.words))}; " if option.words else ""

    here = (
        f"        {shlex.quote(place.path)}) options={shlex.quote(' '.join(_flags(place)))}; "
        f"words={shlex.quote(' '.join([*place.commands, *place.words]))}; disk={kinds[place.disk]} ;;\n"
        for place in tree
    )
    values = (f"        {_patterns(place, option)}) {value(option)}return ;;\n" for place, option in _valued(tree))
    return _BASH.format(name=name, function=function, paths=_paths(tree), values="".join(values), here="".join(here))


# zsh ----------------------------------------------------------------------------------------------------------------

_ZSH = """\
#compdef {name}
# Completion for zsh, made by: {name} completion zsh
{function}() {{
    local at="" cur="${{words[CURRENT]}}" prev="${{words[CURRENT-1]}}" i
    local -a options commands values disk
    if [[ $cur == --*=* ]]; then
        prev="${{cur%%=*}}"
        compset -P '*='
    fi
    for ((i = 2; i < CURRENT; i++)); do
        case "$at ${{words[i]}}" in
            {paths}) at="$at ${{words[i]}}" ;;
        esac
    done
    case "$at:$prev" in
{values}    esac
    case "$at" in
{here}    esac
    if [[ $cur == -* ]] || (( ! $#commands && ! $#values && ! $#disk )); then
        _describe -o option options
    elif (( $#commands )); then
        _describe command commands
    elif (( $#disk )); then
        $disk
    else
        compadd -- $values
    fi
}}
if [[ $funcstack[1] == {function} ]]; then
    {function} "$@"
else
    compdef {function} {name}
fi
"""


def _zsh(name: str, function: str, tree: list[Place]) -> str:
    kinds = {"FILE": "_files", "FOLDER": "_files -/", "": ""}

    def value(option: Option) -> str:
        if option.disk:
            return f"{kinds[option.disk]}; "
        return f"compadd -- {shlex.join(option.words)}; " if option.words else ""

    here = (
        f"        {shlex.quote(place.path)})\n"
        f"            options=({shlex.join(f'{flag}:{each.help}' for each in place.options for flag in each.flags)})\n"
        f"            commands=({shlex.join(f'{each}:{text}' for each, text in place.commands.items())})\n"
        f"            values=({shlex.join(place.words)})\n"
        f"            disk=({kinds[place.disk]})\n"
        "            ;;\n"
        for place in tree
    )
    values = (f"        {_patterns(place, option)}) {value(option)}return ;;\n" for place, option in _valued(tree))
    return _ZSH.format(name=name, function=function, paths=_paths(tree), values="".join(values), here="".join(here))


# fish ---------------------------------------------------------------------------------------------------------------

_FISH = """\
# Completion for fish, made by: {name} completion fish
function _{function}_at
    set -l at ""
    set -l words (commandline -opc)
    for word in $words[2..]
        switch "$at $word"
            case {paths}
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
complete -c {name} -f
{lines}
"""


def _fish(name: str, function: str, tree: list[Place]) -> str:
    def lines(place: Place) -> Iterator[str]:
        begin = f"complete -c {name} -n {_fish_quoted(f'_{function}_at {_fish_quoted(place.path)}')}"
        for command, text in place.commands.items():
            yield f"{begin} -a {command} -d {_fish_quoted(text)}"
        for word in place.words:
            yield f"{begin} -a {_fish_quoted(word)}"
        if place.disk:
            yield f"{begin} {kinds[place.disk]}"
        for each in place.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in each.flags)
            value = ""
            if each.takes_value:
                words = f"-x -a {_fish_quoted(' '.join(each.words))}" if each.words else "-x"
                value = f" -r {kinds[each.disk]}" if each.disk else f" {words}"
            yield f"{begin} {flags}{value} -d {_fish_quoted(each.help)}"

    kinds = {"FILE": "-F", "FOLDER": "-f -a '(__fish_complete_directories)'"}
    paths = " ".join(_fish_quoted(place.path) for place in tree if place.path)
    text = "\n".join(line for place in tree for line in lines(place))
    return _FISH.format(name=name, function=function, paths=paths, lines=text)


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# What the scripts share -----------------------------------------------------------------------------------------------


def _flags(place: Place) -> list[str]:
    return [flag for option in place.options for flag in option.flags]


def _valued(tree: Iterable[Place]) -> Iterator[tuple[Place, Option]]:
    return ((place, option) for place in tree for option in place.options if option.takes_value)


def _paths(tree: Iterable[Place]) -> str:
    return "|".join(shlex.quote(place.path) for place in tree if place.path)


def _patterns(place: Place, option: Option) -> str:
    return "|".join(shlex.quote(f"{place.path}:{flag}") for flag in option.flags)


_SCRIPTS: dict[str, Callable[[str, str, list[Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
