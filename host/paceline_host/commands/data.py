# SPDX-License-Identifier: Apache-2.0
"""`paceline data fetch`: data sets into the cache."""

from __future__ import annotations

import argparse
import json

from paceline.commandline import Program
from paceline.data.cache import NAMES
from paceline.talk import Talk


def add(program: Program) -> None:
    """Register the group and its command."""
    program.group("data", "data sets: fetch")
    parser = program.command(
        "data fetch",
        _fetch,
        "download, verify and cache a data set",
        about="What is in the cache already is verified and not fetched again. The folder is printed.",
        examples=[
            ("paceline data fetch mnist", "get the data set, once"),
            ("paceline data fetch mnist --json", "where it lies and what it holds, for a program"),
        ],
        exits=(3,),
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    parser.offers = {"name": NAMES}
    parser.add_argument(
        "--source", default="", metavar="SOURCE", help="take it from this source only (see the error for their names)"
    )
    parser.add_argument("--json", action="store_true", help="print what was got as JSON")


def _fetch(arguments: argparse.Namespace, talk: Talk) -> int:
    from dataclasses import asdict

    from paceline.data import fetch

    got = fetch(arguments.name, source=arguments.source, progress=talk)
    if arguments.json:
        print(json.dumps({"schema": "paceline-data-1", **asdict(got)}, default=str, indent=1))
    else:
        print(got.folder)
        talk.info(f"{got.label}: {got.train} + {got.test} samples, {got.bytes:,} bytes; {got.terms}")
    return 0
