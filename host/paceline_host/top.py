# SPDX-License-Identifier: Apache-2.0
"""A status document as one page of text that fits a terminal: how the run stands, a table of boards, waits, events.

Pure: knows documents and text; how large the page may be is told. What does not fit is left out from the right, and of
lists the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paceline.talk import shown
from paceline_host.clocks import clock_fault, span
from paceline_host.progress import BAR, quantity
from paceline_host.status import when

Row = dict[str, Any]

NAME = 20
DOING = 34  # letters of what a board does that are worth more than a further column
WAITS = 4  # of a run, in lines of their own: the table has them all
EVENTS = 8  # shown where the page has no end
_UNKNOWN = "-"


def _cost(key: str, unit: str) -> Callable[[Row], str]:
    return lambda row: _UNKNOWN if row.get(key) is None else quantity(row[key], unit).strip()


def _number(key: str, form: str) -> Callable[[Row], str]:
    return lambda row: _UNKNOWN if row.get(key) is None else format(row[key], form)


# Title, letters, what stands there; the more important, the further left, but for the last, which gets what is left.
_COLUMNS: tuple[tuple[str, int, Callable[[Row], str]], ...] = (
    ("done/share", 13, lambda row: f"{row['done']}/{row['share']}" if "share" in row else _UNKNOWN),
    ("s/sample", 9, _cost("seconds_per_sample", "s")),
    ("watts", 7, _number("power_w", ".2f")),
    ("joules", 9, _number("energy_j", ".1f")),
    ("J/sample", 9, _cost("energy_per_sample_j", "J")),
    ("meter", 14, lambda row: str(row.get("energy_source") or _UNKNOWN)),
)


def page(document: Row, clock_s: float, columns: int, lines: int | None = None) -> list[str]:
    """Return the page. `clock_s`: seconds since midnight, where it is read; `lines` None: the page has no end."""
    top = [*_head(document), *_waits(document, clock_s), ""]
    events = [_event(event, clock_s) for event in document.get("events", [])]
    boards = document["boards"]
    room = len(boards) if lines is None else max(1, lines - len(top) - 3 - min(len(events), 3))
    table = _table(boards[:room], columns)
    if len(boards) > room:
        table.append(f"... and {len(boards) - room} more boards")
    left = EVENTS if lines is None else lines - len(top) - len(table) - 1
    last = ["", *events[-left:]] if events and left > 0 else []
    return [shown(line)[:columns].rstrip() for line in [*top, *table, *last][:lines]]


def _head(document: Row) -> Iterator[str]:
    host, active = document.get("host"), document["active"]
    if host is not None:
        yield f"paceline host {host['endpoint']}, up {span(host['up_s'])}"
        if host.get("draining"):
            yield f"{host['draining']}: admits nothing, ends when the open round is over"
    if active is None:
        yield "no experiment is active"
        return
    yield f"{active['ticket']}{_where(active)}"
    if active.get("stopping"):
        yield active["stopping"]
    share = sum(row.get("share", 0) for row in document["boards"])
    done = min(share, sum(row.get("done", 0) for row in document["boards"]))
    if share:
        bar = ("#" * (BAR * 2 * done // share)).ljust(BAR * 2, ".")
        yield f"round {active['round']}/{active['rounds']}  {bar}  {done} of {share} samples"
    if active.get("written_s") is not None and not active["over"]:
        yield f"journal written {span(active['written_s'])} ago"


def _where(active: Row) -> str:
    return f", {active['policy']}: {active['phase']}" if active["policy"] else ": is being prepared"


def _waits(document: Row, clock_s: float) -> Iterator[str]:
    waits = document["active"]["waits"] if document["active"] is not None else []
    for wait in waits[:WAITS]:
        who = "" if wait["who"] == "the run" else f"{wait['who']} "
        yield f"{who}waits for {wait['for']}{when(wait, clock_s)}"
    if len(waits) > WAITS:
        yield f"and for {len(waits) - WAITS} more"
    for place, ticket in enumerate(document.get("queue", ()), start=1):
        yield f"queue {place}. {ticket['ticket']} of {ticket['by']}"
    for stranger in document.get("pending", ()):
        yield f"refused: unknown key {stranger['fingerprint']} from {stranger['address']}, {stranger['times']} times"


def _table(boards: Sequence[Row], columns: int) -> list[str]:
    """Return the boards' table with as many columns as leave room to say what each board does."""
    name = min(NAME, max([len(row["name"]) for row in boards], default=0))
    name = max(name, len("board"))
    shown_columns, used = [], name + 2
    for column in _COLUMNS:
        if used + column[1] + 2 + DOING > columns:
            break
        shown_columns.append(column)
        used += column[1] + 2
    head = "  ".join(["board".ljust(name), *(title.rjust(width) for title, width, _ in shown_columns), "doing"])
    return [
        head,
        *("  ".join([row["name"][:name].ljust(name), *_cells(row, shown_columns), _doing(row)]) for row in boards),
    ]


def _cells(row: Row, columns: Sequence[tuple[str, int, Callable[[Row], str]]]) -> Iterator[str]:
    for _, width, text in columns:
        yield text(row)[:width].rjust(width)


def _doing(row: Row) -> str:
    state = "" if row["state"] in ("", "connected") else f"{row['state']}: "
    since = f", {span(row['since_s'])}" if row.get("since_s") is not None else ""
    fault = clock_fault(row.get("clock_off_s"))
    return f"{state}{row['doing']}{since}" + (f"; {fault}" if fault else "")


def _event(event: Row, clock_s: float) -> str:
    second = int(clock_s - event["ago_s"]) % 86_400
    at = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{at}  {event['kind']}: {event['text']}"
