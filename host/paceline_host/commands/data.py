# SPDX-License-Identifier: Apache-2.0
"""`paceline data`: data sets into the cache, and a training set dealt to clients."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import foreign
from paceline.commandline import Program
from paceline.data.cache import NAMES
from paceline.data.partitioning import METHODS, Partition
from paceline.data.sources import IMPORTED, KINDS
from paceline.errors import DataError, StorageError
from paceline.talk import Talk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.data.dataset import Part

SHAPES = {  # options that say how uneven -> the methods that have them
    "classes_per_client": ("dirichlet-classes",),
    "alpha": ("dirichlet", "dirichlet-classes"),
    "shards_per_client": ("shards",),
    "column": ("natural",),
}
MANY_CLASSES = 20  # from which on a table says how many classes a client has, not how many samples of each


def add(program: Program) -> None:
    """Register the group and its commands."""
    program.group("data", "data sets: fetch, import, partition")
    _add_fetch(program)
    _add_import(program)
    _add_partition(program)


def _add_fetch(program: Program) -> None:
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


def _add_import(program: Program) -> None:
    parser = program.command(
        "data import",
        _import,
        "prepare files of your own that cannot be trained on as they are",
        about=f"{'; '.join(f'{name}: {what}' for name, what in IMPORTED.items())}. What is made lies in FOLDER, which"
        " [data] folder of an experiment and agent.toml then name. IDX and CIFAR files need no import.",
        examples=[
            ("paceline data import era5 point.csv --out era5-mine", "hourly, columns valid_time and t2m, and others"),
            ("paceline data import imdb aclImdb --out imdb-mine", "the unpacked original"),
        ],
        exits=(3, 10),
    )
    parser.add_argument("name", metavar="NAME", choices=tuple(IMPORTED), help=", ".join(IMPORTED))
    parser.add_argument("source", metavar="FROM", type=Path, help="file or folder")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="where; it is made")


def _add_partition(program: Program) -> None:
    parser = program.command(
        "data partition",
        _partition,
        "deal a training set to clients, and show who holds what",
        about="The same seed gives the same partition on every machine. mild and severe are Extended Dirichlet with 5 "
        "and 2 classes a client and alpha 3.",
        examples=[
            ("paceline data partition cifar10 --clients 16 --method severe", "two classes a client, as a table"),
            ("paceline data partition mnist --clients 16 --method shards --picture who.svg", "and as a picture"),
            ("paceline data partition mnist --clients 16 --save clients.partition", "kept"),
            ("paceline data partition mnist --load runs/gpsl_severe-001/clients.partition", "who held what in a run"),
        ],
        exits=(3, 10),
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(KINDS))
    parser.offers = {"name": tuple(KINDS), "method": METHODS}
    parser.add_argument("--clients", type=int, metavar="K", help="how many (natural: left out, one a value)")
    parser.add_argument("--method", metavar="METHOD", help=f"{', '.join(METHODS)} (default iid)")
    parser.add_argument("--classes-per-client", type=int, metavar="C", help="of dirichlet-classes (2)")
    parser.add_argument("--alpha", type=float, metavar="A", help="of the Dirichlet shares (default 3)")
    parser.add_argument("--shards-per-client", type=int, metavar="S", help="of shards (default 2)")
    parser.add_argument("--column", metavar="FILE", help="of natural: a text file, a line a sample")
    parser.add_argument("--seed", type=int, metavar="N", help="of the draws (default 1)")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="the first so many samples (default all)")
    parser.add_argument("--folder", metavar="FOLDER", help="a folder of your own with the data set's files")
    parser.add_argument("--save", metavar="FILE", help="write the partition here, compact")
    parser.add_argument("--load", metavar="FILE", help="show this partition, in place of dealing one")
    parser.add_argument("--picture", metavar="FILE", help="draw it: a name that ends in .svg or .png")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


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


def _import(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.data import open_dataset, reviews, series

    out: Path = arguments.out
    try:
        out.mkdir(parents=True, exist_ok=True)
        {"era5": series.from_file, "imdb": reviews.from_folder}[arguments.name](arguments.source, out)
    except OSError as error:
        raise StorageError(f"{out}: cannot be written: {error.strerror}") from None
    talk.info(open_dataset(arguments.name, out).label)
    print(out)
    return 0


def _partition(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline.data import open_dataset, partition

    _check(arguments)
    data = open_dataset(arguments.name, Path(arguments.folder) if arguments.folder else None)
    if arguments.load:
        dealt, labels = _loaded(Path(arguments.load), data.train)
    else:
        if arguments.samples > data.train.samples:
            text = f"{arguments.name} has {data.train.samples} training samples"
            raise DataError(f"--samples {arguments.samples}: {text}")
        labels = data.train.head(arguments.samples).labels()
        dealt = partition(
            labels, arguments.clients, arguments.method or "iid", column=_column(arguments.column),
            seed=1 if arguments.seed is None else arguments.seed,
            **{key: value for key in SHAPES if key != "column" and (value := getattr(arguments, key)) is not None},
        )  # fmt: skip
    table = dealt.table(labels, data.classes)
    options = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in dealt.options.items())
    how = f"{dealt.method} ({options})" if options else dealt.method
    title = f"{arguments.name}, {dealt.clients} clients: {how}, seed {dealt.seed}"
    if arguments.json:
        print(json.dumps(_as_json(arguments.name, data.label, dealt, table)))
    else:
        print("\n".join(_lines(title, data.label, table)))
    if arguments.save:
        _write(Path(arguments.save), dealt.to_bytes())
        talk.info(f"saved in {arguments.save}")
    if arguments.picture:
        from paceline_host.plot_partition import draw_partition

        draw_partition(table, title, Path(arguments.picture))
        talk.info(f"drawn in {arguments.picture}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what would be left aside without a word, and what would be refused only after the work."""
    if arguments.picture and Path(arguments.picture).suffix.lower() not in (".svg", ".png"):
        raise DataError(f"--picture {arguments.picture}: a picture ends in .svg or .png")
    if arguments.load:
        for key in ("clients", "method", "seed", "samples", *SHAPES):
            left_out = 0 if key == "samples" else None
            if getattr(arguments, key) != left_out:
                raise DataError(f"--{key.replace('_', '-')} is for dealing; --load shows what was dealt: leave one out")
        return
    if not 0 <= (arguments.seed or 0) < 1 << 64:
        raise DataError(f"--seed {arguments.seed}: expected a whole number from 0 to 2^64 - 1")
    if arguments.samples < 0:
        raise DataError(f"--samples {arguments.samples}: expected 0 (all) or more")
    method = arguments.method or "iid"
    if arguments.clients is None and method != "natural":
        raise DataError(f"--clients is missing: --method {method} needs to know how many there are")
    for key, methods in SHAPES.items():
        if getattr(arguments, key) is not None and method not in methods:
            option = key.replace("_", "-")
            raise DataError(f"--{option} is for --method {', '.join(methods)}, not for {method}; leave it out")


def _loaded(path: Path, train: Part) -> tuple[Partition, NDArray[Any]]:
    """Return a saved partition and its samples' labels. Raises DataError where it is not of this data."""
    try:
        content = foreign.read_bytes(path, foreign.MOST_RECORD_BYTES)
    except OSError as error:
        raise DataError(f"--load {path}: cannot be read: {error.strerror}") from None
    try:
        samples = len(Partition.from_bytes(content).owner)
        if samples > train.samples:
            raise DataError(f"it deals {samples} samples, this data has {train.samples}")
        labels = train.head(samples).labels()
        return Partition.from_bytes(content, labels), labels
    except DataError as error:
        raise DataError(f"--load {path}: {error}") from None


def _column(name: str | None) -> list[str] | None:
    if name is None:
        return None
    try:
        return foreign.read_text(Path(name), foreign.MOST_RECORD_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--column {name}: cannot be read as text: {error}") from None


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StorageError(f"{path}: the partition cannot be written: {error.strerror}") from None


def _as_json(name: str, label: str, dealt: Partition, table: list[list[int]]) -> dict[str, object]:
    return {
        "schema": "paceline-partition-table-1",
        "data": name,
        "label": label,
        "method": dealt.method,
        "options": dict(dealt.options),
        "seed": dealt.seed,
        "clients": [{"client": k, "samples": sum(row), "classes": row} for k, row in enumerate(table)],
    }


def _lines(title: str, label: str, table: list[list[int]]) -> list[str]:
    """Return the table: a client a line, its samples of each class, or how many classes it has where there are many."""
    classes = len(table[0])
    few = classes <= MANY_CLASSES
    heads = [f"{c:>6}" for c in range(classes)] if few else [" classes", " largest class"]
    lines = [title, f"data: {label}", "", f"{'client':>6} {'samples':>8}  {''.join(heads)}"]
    lines.append("-" * len(lines[-1]))
    totals = [sum(column) for column in zip(*table, strict=True)]
    for name, row in [*((str(k), row) for k, row in enumerate(table)), ("all", totals)]:
        if name == "all":
            lines.append(lines[4])
        if few:
            cells = "".join(f"{count or '-':>6}" for count in row)
        else:
            cells = f"{sum(count > 0 for count in row):>8}{100 * max(row) / max(1, sum(row)):>12.1f} %"
        lines.append(f"{name:>6} {sum(row):>8}  {cells}")
    return lines
