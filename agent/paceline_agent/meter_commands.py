# SPDX-License-Identifier: Apache-2.0
"""The commands of `paceline-agent meter`: their arguments and help. What they do is in meter_tool."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.commandline import CommandParser, Program
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register them."""
    program.group("meter", "the sensors of this board: scan, watch, record, replay, selftest")
    for each in (_add_scan, _add_watch, _add_record, _add_replay, _add_selftest):
        each(program)


def _add_scan(program: Program) -> None:
    parser = program.command(
        "meter scan",
        _scan,
        "tell which sensors are here, which can be used, why not, and what to do about it",
        about="Nothing is written to any chip. For each meter that can be used the lines for agent.toml are shown.",
        examples=[
            ("paceline-agent meter scan", "all buses, chips, trees and ports"),
            ("paceline-agent meter scan --json", "for a program"),
            ("paceline-agent meter scan --i2c-bus 1", "of the I2C buses, number 1 only"),
        ],
        exits=(7,),
    )
    _add_where(parser)


def _add_watch(program: Program) -> None:
    parser = program.command(
        "meter watch",
        _watch,
        "show volts, amperes, watts, joules and coverage as they come",
        about="Ctrl-C, or the end of --seconds, shows the whole window and ends with status 0.",
        examples=[
            ("paceline-agent meter watch", "the sensor that sees most of this board"),
            ("paceline-agent meter watch --source hwmon --rail VDD_IN", "one rail"),
            ("paceline-agent meter watch --config agent.toml --seconds 10 --json", "one object a line, for a program"),
        ],
        exits=(3, 7),
    )
    _add_source(parser)
    _add_seconds(parser)
    parser.add_argument("--every", type=_positive, default=1.0, metavar="S", help="seconds between lines (default: 1)")


def _add_record(program: Program) -> None:
    parser = program.command(
        "meter record",
        _record,
        "write down what a sensor reads, as a trace",
        about="Ctrl-C, or the end of --seconds, ends it with status 0. An existing file is not overwritten.",
        examples=[
            ("paceline-agent meter record load.trace", "until Ctrl-C"),
            (
                "paceline-agent meter record load.trace --source rapl --seconds 60",
                "a minute of the processor's counters",
            ),
        ],
        exits=(3, 7, 10),
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the trace: one JSON object a line")
    _add_source(parser)
    _add_seconds(parser)


def _add_replay(program: Program) -> None:
    parser = program.command(
        "meter replay",
        _replay,
        "integrate a trace again: joules, coverage, gaps, flags, uncertainties",
        about='A board replays one with [meter] source = "replay" and trace = "FILE".',
        examples=[
            ("paceline-agent meter replay load.trace", "all of it"),
            ("paceline-agent meter replay load.trace --begin 10 --end 20 --json", "ten seconds of it"),
        ],
        exits=(7,),
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what `paceline-agent meter record` wrote")
    parser.add_argument("--begin", type=_seconds, default=0.0, metavar="S", help="seconds from its start (default: 0)")
    parser.add_argument("--end", type=_seconds, metavar="S", help="seconds from its start (default: its end)")
    _add_json(parser)


def _add_selftest(program: Program) -> None:
    parser = program.command(
        "meter selftest",
        _selftest,
        "compare two sensors of this board, or one with a known load",
        about="Both run over the same window. Told is the ratio of their mean powers, and in which range their"
        " uncertainties would put it if both saw the same load; further from 1 than --within allows is status 7. So is"
        " a value that never moves: then this board is made to work and rest by turns, to see whether it does.",
        examples=[
            ("paceline-agent meter selftest --source rapl --against hwmon", "the processor's part of the board"),
            ("paceline-agent meter selftest --against hwmon --against-rail ch2 --within 3", "two rails, 3 percent"),
            ("paceline-agent meter selftest --known-w 5.02", "a load of 5.02 W"),
        ],
        exits=(3, 7),
    )
    _add_source(parser)
    _add_seconds(parser, 10.0)
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--against", metavar="SOURCE", help="the other sensor, as in [meter] source")
    other.add_argument("--known-w", type=_positive, metavar="W", help="watts that the load is known to draw")
    parser.add_argument("--against-rail", action="append", default=[], metavar="NAME", help="rail of the other one")
    parser.add_argument(
        "--within", type=_positive, metavar="PERCENT", help="how far the ratio may be from 1 (default: anything)"
    )


def _add_where(parser: CommandParser) -> None:
    parser.add_argument(
        "--sysfs-root", type=Path, metavar="DIR", help="the kernel's tree, for a test or container (default: /sys)"
    )
    parser.add_argument("--i2c-bus", default="", metavar="BUS", help="number or path of the one I2C bus to use")
    _add_json(parser)


def _add_source(parser: CommandParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--config", type=Path, metavar="FILE", help="take [meter] of this agent.toml; what other options say wins"
    )
    choice.add_argument("--source", default="auto", metavar="SOURCE", help="as in [meter] (default: what sees most)")
    parser.add_argument("--rail", action="append", default=[], metavar="NAME", help="hwmon: a rail; several add up")
    parser.add_argument("--period-ms", type=int, metavar="MS", help="milliseconds between readings (default: chosen)")
    _add_where(parser)


def _add_seconds(parser: CommandParser, default: float | None = None) -> None:
    shown = "until Ctrl-C" if default is None else f"{default:g}"
    parser.add_argument(
        "--seconds", type=_positive, default=default, metavar="S", help=f"length of the window (default: {shown})"
    )


def _add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _positive(text: str) -> float:
    number = _seconds(text)
    if number == 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r}")
    return number


def _scan(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent import meter_tool

    return meter_tool.scan(arguments, talk)


def _watch(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent import meter_tool

    return meter_tool.watch(arguments, talk)


def _record(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent import meter_tool

    return meter_tool.record(arguments, talk)


def _replay(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent import meter_tool

    return meter_tool.replay(arguments, talk)


def _selftest(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_agent import meter_tool

    return meter_tool.selftest(arguments, talk)
