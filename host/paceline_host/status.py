# SPDX-License-Identifier: Apache-2.0
"""Whom each wait is for, since when, until when: from a machine's state to rows of plain data. Reads, changes nothing.

A row of a wait: who waits, `for` whom or what, since_s and until_s (durations: no instant travels), and the `limit`
that ends the wait. until_s is null where nothing is waited for, and where a wait has no limit; `limit` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.session import State
from paceline.talk import shown
from paceline_host import machine as m
from paceline_host.boards import GroupWait, StepWait
from paceline_host.clocks import clock_fault, span
from paceline_host.muster import Muster
from paceline_host.server import Presence

Row = dict[str, Any]

NO_LIMIT = "none: the host's own disk"
OWN_WORK = "none: the host's own work"
_HOSTS_PART = "the host's part of the step"
_AT_WORK = {
    State.ASSIGNED: "takes the model",
    State.UPLOADING: "sends its update",
    State.JUDGING: "waits for the host's verdict",
}


def run_waits(machine: Muster, phase_since_s: float, now_s: float) -> list[Row]:
    """Return whom the run as a whole waits for."""
    usable = [board for board in machine.boards if board.usable]
    if machine.phase == "starting":
        late = [board for board in machine.boards if not board.usable and not board.hopeless]
        return [
            _wait("the run", _missing(board), board.since_s, machine.wake_s(), "start deadline", now_s)
            for board in late
        ]
    if machine.phase == "ending":
        owing = [b for b in machine.boards if b.session is not None and b.begun and b.energies_owed]
        return [
            _wait("the run", f"{board.name}: its last joules", phase_since_s, machine.wake_s(), "end deadline", now_s)
            for board in owing
        ]
    at_work = [board for board in machine.boards if board.lease is not None]
    if machine.phase == "working" and at_work:
        step = machine.step_wait()
        if step is not None:
            return _step_waits(machine, step, now_s)
        groups = machine.waiting_groups()
        done = {machine.boards[index].name for group in groups for index in group.boards}
        busy = [_lease_wait("the run", board, now_s) for board in at_work if board.name not in done]
        return [*(_group_wait(group.who, group, now_s) for group in groups), *busy]
    if not usable and machine.phase in ("planning", "working"):
        return [_wait("the run", "any board to come back", phase_since_s, machine.wake_s(), "patience", now_s)]
    if machine.phase == "finished":
        return []
    return [_wait("the run", "the host's disk", phase_since_s, None, NO_LIMIT, now_s)]


def board_rows(
    names: Sequence[str], machine: Muster | None, presence: Mapping[str, Presence], start_s: float,
    now_s: float, idle_s: float = 0.0,
) -> list[Row]:  # fmt: skip
    """Return a row for each known board. `start_s`: when the host began to listen; `idle_s`: its last run ended."""
    in_run = {board.name: board for board in machine.boards} if machine is not None else {}
    rows = []
    for name in names:
        seen = presence.get(name)
        if seen is None:
            row = _row(name, "absent", "has not been here since the host started", start_s, now_s)
        elif not seen.here:
            row = _row(name, "gone", seen.why, seen.since_s, now_s)
        elif machine is None:
            row = _row(name, "connected", "idle, no run is active", max(seen.since_s, idle_s), now_s)
        elif name not in in_run:
            row = _row(name, "connected", "takes part from the next experiment on", seen.since_s, now_s)
        else:
            row = _busy_row(machine, in_run[name], now_s)
        if machine is not None and name in in_run:
            ready = in_run[name].ready
            row |= {**_figures(machine, in_run[name]), "library": ready.library if ready is not None else ""}
        if seen is not None and seen.version:
            row |= {"version": seen.version, "clock_off_s": seen.clock_off_s}
        rows.append(row)
    return rows


def _figures(machine: Muster, board: m.Board) -> Row:
    """Return what a board has of the round, and what it costs. None: unknown."""
    return {
        "share": board.share + sum(item.samples for item in board.queue),
        "done": board.done + (board.lease.samples if board.lease is not None else 0),
        "seconds_per_sample": machine.seconds_per_sample(machine.boards.index(board)),
        "energy_per_sample_j": board.energy_per_sample_j, "energy_j": board.energy_j, "power_w": board.power_w,
        "energy_source": board.ready.energy_source if board.ready is not None else "",
    }  # fmt: skip


def _busy_row(machine: Muster, board: m.Board, now_s: float) -> Row:
    """Return the row of a board that is connected and in the run."""
    session, lease = board.session, board.lease
    if board.barred:
        return _row(board.name, "connected", "gets no more work in this run, after failures", board.since_s, now_s)
    if session is None:
        return _row(board.name, "connected", "greets the host", board.since_s, now_s)
    for group in machine.waiting_groups():
        if any(machine.boards[index] is board for index in group.boards):
            wait = _group_wait(board.name, group, now_s)
            doing = f"waits for {wait['for']}"
            return {**_row(board.name, "connected", doing, group.since_s, now_s), **_limits(wait)}
    if lease is not None:
        step, index = machine.step_wait(), machine.boards.index(board)
        if step is not None and index in step.given:
            since_s = step.given[index]
            wait = _given_wait(machine, board.name, step, since_s, now_s)
            return {**_row(board.name, "connected", f"waits for {wait['for']}", since_s, now_s), **_limits(wait)}
        since_s = lease.granted_s if step is None else step.owed[index]
        wait = _lease_wait(board.name, board, now_s)
        return {**_row(board.name, "connected", _doing(board), since_s, now_s), **_limits(wait)}
    if board.ready is None:
        starting = machine.phase == "starting"
        until_s, limit = (machine.wake_s(), "start deadline") if starting else (session.silent_at_s, "patience")
        wait = _wait(board.name, "its trainer to load", board.since_s, until_s, limit, now_s)
    else:
        wait = _idle_wait(machine, board, now_s)
    return {**_row(board.name, "connected", f"waits for {wait['for']}", board.since_s, now_s), **_limits(wait)}


def _idle_wait(machine: Muster, board: m.Board, now_s: float) -> Row:
    """Return whom a board that is ready and without work waits for."""
    since_s = board.since_s
    if machine.phase == "starting":
        late = [b.name for b in machine.boards if not b.usable and not b.hopeless]
        return _wait(board.name, _names(late), since_s, machine.wake_s(), "start deadline", now_s)
    others = [(other.name, other.lease.end_s) for other in machine.boards if other.lease is not None]
    if others and machine.phase == "working":
        if (step := machine.step_wait()) is not None:
            return _given_wait(machine, board.name, step, since_s, now_s)
        names, ends = zip(*others, strict=True)
        return _wait(board.name, _names(names), since_s, max(ends), "lease", now_s)
    if machine.phase == "ending":
        return _wait(board.name, "the end of the run", since_s, machine.wake_s(), "end deadline", now_s)
    return _wait(board.name, "the next plan", since_s, None, NO_LIMIT, now_s)


def _group_wait(who: str, group: GroupWait, now_s: float) -> Row:
    return _wait(who, _names(group.names), group.since_s, group.until_s, "patience", now_s)


def _step_waits(machine: Muster, step: StepWait, now_s: float) -> list[Row]:
    """Return whom the run waits for where boards step together."""
    if not step.owed:
        return [_given_wait(machine, "the run", step, max(step.given.values()), now_s)]
    return [_lease_wait("the run", machine.boards[i], now_s, since_s) for i, since_s in step.owed.items()]


def _given_wait(machine: Muster, who: str, step: StepWait, since_s: float, now_s: float) -> Row:
    """Return whom one waits for who has all that others may give, or has given it."""
    leases = [board.lease for i, board in enumerate(machine.boards) if i in step.owed]
    ends = [lease.end_s for lease in leases if lease is not None]
    if not ends:
        return _wait(who, _HOSTS_PART, since_s, None, OWN_WORK, now_s)
    return _wait(who, _names([machine.boards[i].name for i in step.owed]), since_s, max(ends), "lease", now_s)


def _lease_wait(who: str, board: m.Board, now_s: float, since_s: float | None = None) -> Row:
    """`since_s`: where it is not the lease's beginning."""
    assert board.lease is not None
    since_s = board.lease.granted_s if since_s is None else since_s
    judged = board.session is not None and board.session.state is State.JUDGING
    until_s, limit = (None, NO_LIMIT) if judged else (board.lease.end_s, "lease")  # a judged result cannot lose it
    return _wait(who, f"{board.name}: {_doing(board)}", since_s, until_s, limit, now_s)


def _doing(board: m.Board) -> str:
    if board.lease is None or board.session is None:
        return ""
    trains = f"trains, {board.lease.samples} of {board.lease.slice.samples} samples"
    return _AT_WORK.get(board.session.state, trains)


def _missing(board: m.Board) -> str:
    return f"{board.name}: {'to connect' if board.session is None else 'its trainer to load'}"


def _names(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _wait(who: str, what: str, since_s: float, until_s: float | None, limit: str, now_s: float) -> Row:
    left = None if until_s is None or until_s == float("inf") else round(max(0.0, until_s - now_s), 3)
    return {"who": who, "for": what, "since_s": _ago(since_s, now_s), "until_s": left, "limit": limit}


def _row(name: str, state: str, doing: str, since_s: float, now_s: float) -> Row:
    return {
        "name": name, "state": state, "doing": doing, "since_s": _ago(since_s, now_s), "until_s": None,
        "limit": "none: nobody waits",
    }  # fmt: skip


def _limits(wait: Row) -> Row:
    return {key: wait[key] for key in ("until_s", "limit")}


def _ago(since_s: float, now_s: float) -> float:
    return round(max(0.0, now_s - since_s), 3)


# As text ------------------------------------------------------------------------------------------------------------


def render(status: Row, clock_s: float) -> str:
    """Return a status document as text. `clock_s`: seconds since midnight, now, where it is read."""
    return "\n".join(map(shown, _lines(status, clock_s)))


def _lines(status: Row, clock_s: float) -> Iterator[str]:
    host, active, boards = status["host"], status["active"], status["boards"]
    yield (
        f"host     {host['endpoint']}, paceline {host['version']}, pid {host['pid']}, up {span(host['up_s'])}, "
        f"key {host['fingerprint']}"
    )
    if host.get("draining"):
        yield f"         {host['draining']}: admits nothing, ends when the open round is over"
    if active is None:
        yield "active   nothing"
    else:
        at = f", {active['policy']}: round {active['round']}/{active['rounds']}, {active['phase']}"
        ends = f"; {active['stopping']}" if active["stopping"] else ""
        where = at if active["policy"] else ", is being prepared"
        yield f"active   {active['ticket']} of {active['by']}{where}{ends}"
        for wait in active["waits"]:
            who = "" if wait["who"] == "the run" else f"{wait['who']} "
            yield f"         {who}waits for {wait['for']}{when(wait, clock_s)}"
    for place, ticket in enumerate(status["queue"], start=1):
        yield f"queue    {place}. {ticket['ticket']} of {ticket['by']}"
    here = sum(board["state"] == "connected" for board in boards)
    yield f"boards   {len(boards)} known, {here} connected"
    width = max((len(board["name"]) for board in boards), default=0)
    for board in boards:
        by = f", by {board['library']}" if board.get("library", "").startswith("numpy") else ""
        yield f"         {board['name']:<{width}}  {board['state']:<9}  {board['doing']}{when(board, clock_s)}{by}"
        if fault := clock_fault(board.get("clock_off_s")):
            yield f"         {'':<{width}}  {fault}"
    for script in status.get("scripts", ()):
        shares = ", ".join(str(share) for share in script["shares"])
        yield (
            f"script   {script['name']} of {script['by']}, {script['policy']}: round {script['round']}, "
            f"shares {shares}, asked {span(script['last_s'])} ago"
        )
    for stranger in status["pending"]:
        yield (
            f"pending  unknown key {stranger['fingerprint']} from {stranger['address']}, {stranger['times']} times, "
            f"last {span(stranger['last_s'])} ago; if it is your board's, copy its NAME.pub to {host['boards']}, "
            f"or paceline boards accept NAME {stranger['fingerprint']}"
        )


def when(wait: Row, clock_s: float) -> str:
    """Return since when a wait lasts, and until when it may; "": not known."""
    if wait["since_s"] is None:
        return ""
    text = f", since {_clock(clock_s - wait['since_s'])} ({span(wait['since_s'])})"
    if wait["until_s"] is not None:
        text += f", until {_clock(clock_s + wait['until_s'])} ({span(wait['until_s'])}, {wait['limit']})"
    return text


def _clock(second_of_day: float) -> str:
    second = int(second_of_day) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
