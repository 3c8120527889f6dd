# SPDX-License-Identifier: Apache-2.0
"""The report as one file that needs nothing else: no network, no script. Says what `report` and `details` hold.

What comes out of a journal becomes text through `markup`, and the file itself forbids scripts and loads.
The same journals give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import StorageError
from paceline.version import VERSION
from paceline_host import pictures, run_section
from paceline_host.charts import COLOURS, swatch
from paceline_host.details import Details, details
from paceline_host.figures import RunFigures
from paceline_host.journal import JOURNAL
from paceline_host.markup import Markup, join, table, tag
from paceline_host.report import UNKNOWN, Report, notes, policies, rows_of
from paceline_host.run_section import plain, seconds
from paceline_host.style import STYLE

PAGE = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FAULTS_SHOWN = 50


def write_html(report: Report, path: Path) -> Path:
    """Write the report of a comparison or of one run and return its path. Raises StorageError."""
    found = [details(Path(run.folder)) for run in report.runs]
    try:
        path.write_text("<!DOCTYPE html>\n" + page(report, found) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: the report cannot be written: {error.strerror}") from None
    return path


def write_pages(report: Report, folder: Path) -> Path:
    """Write report.html into a comparison's folder and into that of each of its runs; return the first one's path."""
    for run in report.runs if len(report.runs) > 1 or not (folder / JOURNAL).exists() else ():
        write_html(Report(run.run.run_id, (run,), (*report.runs, *report.beside)), Path(run.folder) / PAGE)
    return write_html(report, folder / PAGE)


def page(report: Report, found: Sequence[Details]) -> Markup:
    """Return the whole document; found[i] are the details of report.runs[i]."""
    name = _name(report)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{name}: paceline"),
        tag("link", rel="icon", href="data:,"),
        Markup(f"<style>{STYLE}</style>"),
    )
    titles = [f"Run {one}" for one in policies(report.runs)] if len(report.runs) > 1 else ["The run"]
    body = tag(
        "body",
        _header(report, name),
        tag("main", _headline(report), _notes(report), pictures.section(report), _figures(report),
            [run_section.section(*each) for each in zip(report.runs, found, titles, strict=True)]),
        tag("footer", tag("p", f"Written by paceline {VERSION} from the journals of its runs. Joules that are "
            "modelled follow from declared watts and the time spent at them; measured ones come from a meter. "
            "Makespan is the time from a committed plan to its last counted result; evaluation is left out.",
            class_="soft")),
    )  # fmt: skip
    return tag("html", head, body, lang="en")


def _name(report: Report) -> str:
    return report.name if len(report.runs) > 1 else report.runs[0].run.run_id


# Above the fold -------------------------------------------------------------------------------------------------------


def _header(report: Report, name: str) -> Markup:
    first = report.runs[0]
    run = first.run
    facts = (
        f"{run.regime}, {run.task}, {run.rounds:,} rounds x {run.budget:,} samples, {len(first.boards):,} boards, "
        f"seed {run.seed}"
    )
    data = "; ".join(sorted({one.run.data_label for one in report.runs}))
    started = f"; started {run.started}" if run.started else ""
    return tag("header", tag("h1", name), tag("p", facts, class_="soft"),
               tag("p", f"data: {data}{started}", class_="soft"))  # fmt: skip


def _headline(report: Report) -> Markup:
    cards = [
        _card(report, run, name, i)
        for i, (run, name) in enumerate(zip(report.runs, policies(report.runs), strict=True))
    ]
    said = [_against_equal(report, run) for run in report.runs]
    return join(said, tag("div", cards, class_="cards"), _proof(report))


def _against_equal(report: Report, run: RunFigures) -> Markup | None:
    """Return the run's result in one sentence, or nothing where there is nothing to compare."""
    change = report.change(run)
    if change is None:
        return None
    who = tag("b", run.run.policy)
    if change.makespan is None:
        return tag("p", who, f": no percentages against equal: {change.why_not}.", class_="lede")
    spent: list[object] = [tag("b", _less(change.makespan)), " time"]
    if change.joules is None:
        spent += [f"; no percentage of joules: {change.why_not.removeprefix('none for joules, which are ')}"]
    else:
        spent += [" and ", tag("b", _less(change.joules)), f" joules ({run.joules.label})"]
    return tag("p", who, " against equal: ", spent, ", for the same number of samples.", class_="lede")


def _less(value: float) -> str:
    return f"{100 * abs(value):.1f} % {'less' if value < 0 else 'more'}"


def _card(report: Report, run: RunFigures, name: str, index: int) -> Markup:
    change = report.change(run)
    joules = run.joules
    total = UNKNOWN if joules.total_j is None else f"{'' if joules.complete else '≥ '}{joules.total_j:,.1f} J"
    quality = "accuracy" if run.accuracy is not None else "loss"
    value = f"{100 * run.accuracy:.2f} %" if run.accuracy is not None else plain(run.loss, ".4f")
    rows: list[tuple[str, str, str]] = [
        ("makespan", seconds(run.makespan_s), _signed(change.makespan, "time") if change else ""),
        ("", "", f"closed form: {seconds(run.predicted_s)}" if run.run.declared else ""),
        ("joules", total, "" if joules.total_j is None else joules.label),
        ("", "", _signed(change.joules, "joules") if change else ""),
        (quality, value, ""),
        ("rounds", f"{len(run.rounds):,} of {run.run.rounds:,}", "" if run.state == "finished" else run.state),
    ]
    pairs = [
        (tag("dt", what), tag("dd", tag("b", big) if big else None, tag("span", small) if small else None))
        for what, big, small in rows
        if what or small
    ]
    style = f"--c:var(--c{index % COLOURS})"
    return tag("article", tag("h3", swatch(index), tag("span", name)), tag("dl", pairs), class_="card", style=style)


def _signed(value: float | None, what: str) -> str:
    return f"{what} against equal: not stated" if value is None else f"{100 * value:+.1f} % against equal"


def _proof(report: Report) -> Markup:
    """Return the lines that say whether every sample was counted exactly once, and how that is known."""
    lines = [_proof_line(run, name) for run, name in zip(report.runs, policies(report.runs), strict=True)]
    how = (
        "Checked over the accepted results of all closed rounds: that no place of the stream of samples is missing "
        "or double, that each round began from the model that the one before it left, and that the parts of each "
        "board's joules are their total."
    )
    bad = any(run.faults for run in report.runs)
    return tag("div", tag("ul", lines), tag("p", how, class_="soft"), class_="proof bad" if bad else "proof")


def _proof_line(run: RunFigures, name: str) -> Markup:
    if run.faults:
        more = len(run.faults) - FAULTS_SHOWN
        faults = [*run.faults[:FAULTS_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]
        text = tag("b", f"✗ {name}: NOT proven that every sample was counted exactly once")
        return tag("li", text, tag("ul", [tag("li", fault) for fault in faults]), class_="bad")
    if not run.rounds:
        return tag("li", tag("b", f"○ {name}: unknown, no round is closed"), class_="open")
    counted = f": {run.samples:,} samples, {len(run.rounds):,} rounds of {run.run.budget:,}"
    if run.left_out:
        said = f"○ {name}: no sample counted twice, {run.left_out:,} left out as their boards were gone"
        return tag("li", tag("b", said), counted, class_="open")
    return tag("li", tag("b", f"✓ {name}: every sample counted exactly once"), counted)


def _notes(report: Report) -> Markup | None:
    said = notes(report)
    return tag("ul", [tag("li", one) for one in said], class_="notes") if said else None


def _figures(report: Report) -> Markup:
    rows = [
        [tag("span", name.strip(), class_="sub") if name.startswith(" ") else name,
         *(cell(report, run) for run in report.runs)]
        for name, cell in rows_of(report)
    ]  # fmt: skip
    return tag(
        "section", tag("h2", "Figures"),
        table("one column for each run; joules with their five-way split", ["", *policies(report.runs)], rows),
    )  # fmt: skip
