# SPDX-License-Identifier: Apache-2.0
"""The part of the page that is one run's: boards, events, rounds in numbers, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from paceline_host.details import BoardFigures, Details
from paceline_host.figures import RunFigures
from paceline_host.markup import Markup, join, table, tag
from paceline_host.records import Run
from paceline_host.report import UNKNOWN

EVENTS_SHOWN = 300  # a phone must still open the page; the journal keeps them all
ROUNDS_SHOWN = 1000


def section(run: RunFigures, found: Details, title: str) -> Markup:
    """Return everything that is said of one run alone."""
    return tag(
        "section",
        tag("h2", title),
        tag("p", _energy_sentence(run), class_="soft"),
        tag("h3", "Boards"),
        _boards(run, found.boards),
        tag("h3", "Events"),
        _happenings(found),
        _rounds(run),
        _configuration(run),
    )


def _energy_sentence(run: RunFigures) -> str:
    joules = run.joules
    if joules.total_j is None:
        return "The joules of this run are unknown: no board has readings."
    coverage = "an unknown share" if joules.coverage is None else f"{100 * joules.coverage:.1f} %"
    bound = ""
    if joules.label != "modelled":  # a model has no instrument
        amount = UNKNOWN if joules.bound_j is None else f"{joules.bound_j:.3g} J either way"
        bound = f"; bound of the instruments: {amount}"
        amount = UNKNOWN if joules.sampling_j is None else f"{joules.sampling_j:.3g} J either way"
        bound += f"; uncertainty of sampling, 95 %: {amount}"
    bound += f"; the split by purpose is an estimate on {', '.join(joules.estimated)}" if joules.estimated else ""
    missing = f" Unknown, wholly or for a time, on {', '.join(joules.unknown)}." if joules.unknown else ""
    return f"Joules are {joules.label}; readings cover {coverage} of the time{bound}.{missing}"


def _boards(run: RunFigures, boards: Sequence[BoardFigures]) -> Markup:
    late = any(board.late for board in boards)
    uncounted = any(board.uncounted for board in boards)
    architecture = {
        str(one.get("name")): str(one.get("architecture", "")) for one in run.run.declared.get("boards", ())
    }
    kinds = any(architecture.values())
    columns = ["board", "samples", "share", "ms a sample", "mJ a sample", "joules, whole run", "joules from"]
    waiting = run.joules.waiting_w
    columns += ["W waiting"] * bool(waiting)
    columns += ["late steps"] * late + ["not counted"] * uncounted + ["architecture"] * kinds + ["agent"]
    rows = []
    for board in boards:
        share = f"{100 * board.samples / run.samples:.1f} %" if run.samples else UNKNOWN
        total = UNKNOWN if board.total_j is None else f"{'≥ ' if board.gaps else ''}{board.total_j:,.1f} J"
        cells = [board.name, f"{board.samples:,}", share, plain(board.seconds_per_sample, ",.3f", 1e3),
                 plain(board.joules_per_sample, ",.3f", 1e3), total, board.source or "no meter"]  # fmt: skip
        cells += [plain(waiting.get(board.name), ",.3f")] * bool(waiting)
        cells += [UNKNOWN if board.late is None else f"{100 * board.late:.1f} %"] * late
        cells += [f"{board.uncounted:,}"] * uncounted + [architecture.get(board.name, "")] * kinds
        rows.append([*cells, board.version or UNKNOWN])
    shown = table("seconds and joules a sample: of computing alone, counted work only", columns, rows)
    return join(shown, _models(boards)) if run.split is None else shown


def _models(boards: Sequence[BoardFigures]) -> Markup | None:
    """Return both models of each board's seconds, and how far off each was a round ahead."""
    rows = [
        [board.name, plain(board.proportional[0], ",.3f", 1e3), plain(board.proportional[1], ".1f", 100, " %"),
         plain(board.affine[0], ",.2f", 1e3), plain(board.affine[1], ",.3f", 1e3),
         plain(board.affine[2], ".1f", 100, " %"), "fixed part" if board.is_affine else "proportional"]
        for board in boards
        if board.affine is not None and board.proportional is not None
    ]  # fmt: skip
    if not rows:
        return None
    columns = ["board", "ms a sample", "off by", "fixed ms", "and ms a sample", "off by", "foretells better"]
    caption = "proportional, and with a fixed part; off by: relative, one round ahead"
    return tag("details", tag("summary", "Two models of each board's seconds"), table(caption, columns, rows))


def _happenings(found: Details) -> Markup:
    shown = found.happenings[:EVENTS_SHOWN]
    if not shown:
        return tag("p", "None: no board was lost, no update was refused.", class_="none")
    rows = [
        [f"{one.at_s:,.2f} s", one.kind, "" if one.round is None else one.round, one.board or "", one.text]
        for one in shown
    ]
    more = len(found.happenings) - len(shown)
    rest = tag("p", f"{more:,} more are in the journal.", class_="none") if more else None
    return join(
        table("seconds since the run began", ["at", "what", "round", "board", "said"], rows, numbers_from=9), rest
    )


def _rounds(run: RunFigures) -> Markup | None:
    rows = [
        [row.round, seconds(row.makespan_s), seconds(row.predicted_s), plain(row.compute_cv, ".1f", 100, " %"),
         plain(row.joules, ",.1f", 1, " J"), plain(row.accuracy, ".2f", 100, " %"), plain(row.loss, ".4f"),
         ", ".join(f"{name} {count:,}" for name, count in row.samples.items())]
        for row in run.rounds[:ROUNDS_SHOWN]
    ]  # fmt: skip
    if not rows:
        return None
    columns = ["round", "makespan", "closed form", "CV of compute", "joules so far", "accuracy", "loss", "shares"]
    more = len(run.rounds) - len(rows)
    rest = tag("p", f"{more:,} more rounds are in the journal.", class_="none") if more else None
    return tag("details", tag("summary", "Rounds, in numbers"),
               table("what the charts show", columns, rows), rest)  # fmt: skip


def _configuration(run: RunFigures) -> Markup:
    left_out = {"options", "machine", "versions", "declared", "ended"}
    facts: list[tuple[str, object]] = [
        (f.name, getattr(run.run, f.name)) for f in fields(Run) if f.name not in left_out
    ]
    facts += _flat("task", run.run.options) + _flat("machine", run.run.machine) + _flat("version", run.run.versions)
    if run.run.declared:
        facts.append(("profile of the emulated fleet", run.run.declared.get("profile", UNKNOWN)))
    facts.append(("state", run.state))
    settings = Path(run.folder) / "run.toml"
    try:
        effective = join(tag("h3", "run.toml, the effective settings"),
                         tag("pre", settings.read_text(encoding="utf-8", errors="replace"), tabindex=0))  # fmt: skip
    except OSError:
        effective = Markup()
    return tag(
        "details", tag("summary", "Configuration, versions, machine"),
        table("as the journal keeps them", ["key", "value"], facts, numbers_from=9), effective,
    )  # fmt: skip


def _flat(prefix: str, values: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(f"{prefix}: {key}", str(value)) for key, value in values.items()]


def seconds(value: float | None) -> str:
    """Return seconds or milliseconds; None is unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def plain(value: float | None, digits: str, times: float = 1.0, unit: str = "") -> str:
    """Return a number in a format; None is unknown."""
    return UNKNOWN if value is None else f"{value * times:{digits}}{unit}"
