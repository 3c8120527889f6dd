# SPDX-License-Identifier: Apache-2.0
"""What an operator asks of a host: `paceline status`, `stop`, `drain`, `watch`, and its side of `run` and `runs`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import foreign
from paceline.commandline import Program, UsageError
from paceline.errors import SettingsError
from paceline.talk import Talk

if TYPE_CHECKING:
    from paceline_host.operator_calls import Operator
    from paceline_host.operator_wire import Queued

FINDS = "Which host: --host, else $PACELINE_HOST, else ~/.config/paceline/operator.toml."
_EXITS = (3, 4, 5, 6, 9)


def add(program: Program) -> None:
    """Register the commands."""
    status = program.command(
        "status",
        _status,
        "what a host daemon does, and whom each wait is for",
        about=f"Active run, queue, boards: known, gone, pending; each wait with since when and until when. {FINDS}",
        examples=[("paceline status", "of the usual host"), ("paceline status --json", "the same for a program")],
        exits=_EXITS,
    )
    stop = program.command(
        "stop",
        _stop,
        "end an experiment of a host daemon, or take it from the queue",
        about=f"The run ends in order; what was finished stays. {FINDS}",
        examples=[("paceline stop", "end the active one"), ("paceline stop demo-003", "that one")],
        exits=_EXITS,
    )
    drain = program.command(
        "drain",
        _drain,
        "let a host daemon end when the open round is over",
        about="No experiment is admitted or begun any more. The round that is open is finished, then the daemon ends"
        " with status 0; what is left goes on when it is started again, where it stood. Returns when it has ended;"
        f" Ctrl-C ends this wait alone. {FINDS}",
        examples=[("paceline drain", "before an upgrade of the host"), ("paceline drain --detach", "do not wait")],
        exits=_EXITS,
    )
    drain.add_argument("--detach", action="store_true", help="do not wait for the end")
    watch = program.command(
        "watch",
        _watch,
        "look on while a host daemon works",
        about="Until the experiment is over; then its report. Ctrl-C ends the watch and not the run. With --json one"
        f" object a line. {FINDS}",
        examples=[("paceline watch", "the active experiment, else the next"), ("paceline watch demo-003", "that one")],
        exits=_EXITS,
    )
    for parser in (stop, watch):
        parser.add_argument("ticket", nargs="?", type=_ticket, metavar="TICKET", help="as `paceline status` names it")
    for parser in (status, stop, drain, watch):
        add_host(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a host daemon."""
    parser.add_argument(
        "--host", metavar="WHERE", help="the host daemon: its operator.toml, the folder of that, or tcp://ADDRESS:PORT"
    )


def _ticket(text: str) -> str:
    """Return a ticket's name; an empty one is refused, because without a name the active experiment is meant."""
    from paceline_host.operator_wire import is_name

    if not is_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no ticket; `paceline status` and `paceline runs` name them")
    return text


def submit(arguments: argparse.Namespace, talk: Talk) -> int:
    """`paceline run --host`: hand the experiment over, and watch it unless told otherwise."""
    if not arguments.host:
        raise UsageError("paceline run: error: --detach needs --host: without a daemon nobody would go on")
    if arguments.replay_reports is not None:
        raise UsageError("paceline run: error: --replay-reports is for runs without --host: it names a folder here")
    if arguments.runs_dir is not None:
        raise UsageError("paceline run: error: --runs-dir is for runs without --host: a daemon has its own")
    from paceline_host.operator_wire import DOCUMENT_BYTES

    path: Path = arguments.experiment
    try:
        text = foreign.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: cannot read it: {getattr(error, 'strerror', '') or error}"]) from None
    most = DOCUMENT_BYTES // 2  # JSON may need more room than the text
    if len(text) > most:
        raise SettingsError([f"{path}: has {len(text)} characters; an experiment file has at most {most}"])
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("._-")[:90] or "experiment"
    with host_of(arguments) as host:
        return _queued(host, host.submit(name, text, arguments.set), arguments, talk)


def resume(arguments: argparse.Namespace, talk: Talk) -> int:
    """`paceline resume --host`: queue a ticket again, and watch it unless told otherwise."""
    if not arguments.host:
        raise UsageError("paceline resume: error: --detach needs --host: without a daemon nobody would go on")
    if arguments.replay_reports is not None:
        raise UsageError("paceline resume: error: --replay-reports is for runs without --host: it names a folder here")
    try:
        ticket = _ticket(str(arguments.run))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"paceline resume: error: {error}") from None
    with host_of(arguments) as host:
        return _queued(host, host.resume(ticket), arguments, talk)


def _queued(host: Operator, queued: Queued, arguments: argparse.Namespace, talk: Talk) -> int:
    place = f"queued behind {queued.before}" if queued.before else "next"
    talk(f"{queued.ticket} is {place}; paceline watch {queued.ticket}, paceline stop {queued.ticket}")
    if arguments.detach:
        ticket = {"schema": "paceline-ticket-1", "ticket": queued.ticket, "before": queued.before}
        print(json.dumps(ticket) if arguments.json else queued.ticket)
        return 0
    return _follow(host, queued.ticket, talk, quiet=arguments.quiet, as_lines=False, as_json=arguments.json)


def runs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of `paceline runs --host`."""
    if arguments.runs_dir is not None:
        raise UsageError("paceline runs: error: --runs-dir is for this machine's runs: a daemon has its own")
    with host_of(arguments) as host:
        rows: list[dict[str, Any]] = host.runs()["runs"]
        return rows


def _status(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.status import render

    with host_of(arguments) as host:
        status = host.status()
    now = time.localtime()
    clock_s = now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec
    print(json.dumps(status, indent=1) if arguments.json else render(status, clock_s))
    return 0


def _stop(arguments: argparse.Namespace, talk: Talk) -> int:
    with host_of(arguments) as host:
        stopping = host.stop(arguments.ticket or "")
    if arguments.json:
        print(json.dumps({"schema": "paceline-stop-1", "ticket": stopping.ticket, "was": stopping.was}))
    elif stopping.was == "active":
        talk(f"{stopping.ticket} ends; what it has finished stays")
    else:
        talk(f"{stopping.ticket} is no longer in the queue")
    return 0


def _drain(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.operator_wire import Ended

    with host_of(arguments) as host, closing(host.drain()) as all_news:
        news, ticket, ended = next(all_news), "", False
        ticket = news.ticket
        talk(f"{ticket} goes on to the end of its round, then the host ends" if ticket else "the host ends")
        try:
            while not ended and not arguments.detach:
                ended = isinstance(next(all_news), Ended)
        except KeyboardInterrupt:
            talk("no longer waiting; the host ends all the same")
            return 130
    if arguments.json:
        print(json.dumps({"schema": "paceline-drain-1", "ticket": ticket, "ended": ended}))
    elif ended:
        talk("the host has ended; what is left goes on when it is started again")
    return 0


def _watch(arguments: argparse.Namespace, talk: Talk) -> int:
    with host_of(arguments) as host:
        return _follow(host, arguments.ticket or "", talk, quiet=False, as_lines=arguments.json, as_json=arguments.json)


def _follow(host: Operator, ticket: str, talk: Talk, *, quiet: bool, as_lines: bool, as_json: bool) -> int:
    """Show how a ticket goes until it ends; return the exit status."""
    from paceline_host import operator_wire as w
    from paceline_host.progress import BoardView, Header, Progress

    progress, name, before = Progress(sys.stderr), ticket, -1
    talk.lines_to(progress.say)
    try:
        with closing(host.watch(ticket)) as all_news:
            for news in all_news:
                name, document = news.ticket, news.document
                if as_lines:
                    print(json.dumps(_line(news)), flush=True)
                if isinstance(news, w.Ended):
                    progress.done()
                    talk(f"{name}: {'finished' if news.ok else f'ended: {news.reason}'}")
                    if not as_lines and "text" in document:
                        print(json.dumps(document.get("report"), indent=1) if as_json else document["text"])
                    return 0 if news.ok else 9
                if "say" in document and not as_lines:
                    talk(str(document["say"]))
                elif "view" in document and not (quiet or as_lines or talk.as_json):
                    view = document["view"]
                    progress.show(Header(**view["header"]), [BoardView(**board) for board in view["boards"]])
                elif document.get("before", before) != before and not quiet:
                    before = document["before"]
                    talk(f"{name} waits in the queue, behind {before}")
    except KeyboardInterrupt:
        progress.done()
        talk(f"no longer watching; {name} goes on: paceline watch {name}, and to end it: paceline stop {name}")
        return 130
    raise AssertionError("unreachable: a watch ends with an end or an error")


def _line(news: Any) -> dict[str, Any]:
    from paceline_host import operator_wire as w

    if isinstance(news, w.Ended):
        ended = {"ticket": news.ticket, "ok": news.ok, "reason": news.reason, "report": news.document.get("report")}
        return {"schema": "paceline-watch-1", "event": "ended", **ended}
    event = next((key for key in ("say", "view", "before") if key in news.document), "alive")
    return {"schema": "paceline-watch-1", "event": event, "ticket": news.ticket, **news.document}


@contextmanager
def host_of(arguments: argparse.Namespace) -> Iterator[Operator]:
    """Connect to the host daemon that the arguments name. Raises PacelineError."""
    from paceline_host.host_config import load_operator
    from paceline_host.operator_calls import connected

    with connected(load_operator(arguments.host)) as host:
        yield host
