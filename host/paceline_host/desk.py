# SPDX-License-Identifier: Apache-2.0
"""The operators' desk: a queue of tickets of which one is active, and who watches which. Pure: what operators ask and
what becomes of runs goes in, what to say and to do comes out; knows no socket, file, thread or clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.wire import clip
from paceline_host import operator_wire as w
from paceline_host.tickets import State, Ticket

HOST_ENDS = "the host has been stopped; it goes on when the host is started again"


@dataclass(frozen=True)
class Caller:
    """An operator's connection."""

    name: str
    route: bytes


@dataclass(frozen=True)
class Say:
    """Send a message to an operator."""

    to: Caller
    message: w.Message


@dataclass(frozen=True)
class Keep:
    """Put a ticket on disk as it is now."""

    ticket: Ticket


@dataclass(frozen=True)
class End:
    """Stop the active ticket's run, or `after_round`, when its round is over."""

    reason: str
    after_round: bool = False


Action = Say | Keep | End


class Desk:
    """`recover` what was left, then `submit`, `stop`, `watch`, `unwatch` as operators ask, `begin` and `over` as runs
    go by. `find` returns tickets that are over, by name.
    """

    def __init__(self, find: Callable[[str], Ticket | None]) -> None:
        self._find = find
        self.queue: list[Ticket] = []
        self.active: Ticket | None = None
        self.stopping = ""  # why the active one is being stopped
        self.draining = ""  # why nothing is admitted or begun any more: the host ends after the active one's round
        self._drainers: list[tuple[Caller, int]] = []
        self._watchers: dict[tuple[Caller, int], str] = {}

    def recover(self, left: Sequence[Ticket], *, resume: bool) -> Iterator[Action]:
        """Take up what an earlier life left, in order; without `resume` only what had not begun."""
        for ticket in left:
            if ticket.state == "queued" or (ticket.state == "active" and resume):
                self.queue.append(ticket)
            elif ticket.state == "active":
                yield Keep(replace(ticket, state="stopped", reason="the host ended in it, and resume is off"))

    # What operators ask ---------------------------------------------------------------------------------------------

    def submit(self, caller: Caller, request: int, ticket: Ticket) -> Iterator[Action]:
        """Queue a ticket that is on disk already."""
        before = len(self.queue) + (self.active is not None)
        self.queue.append(ticket)
        yield Say(caller, w.Queued(request, ticket.name, before))

    def stop(self, caller: Caller, request: int, name: str) -> Iterator[Action]:
        """End the active ticket, or take one from the queue."""
        if self.active is not None and name in ("", self.active.name):
            self.stopping = f"stopped by {caller.name}"
            yield End(self.stopping)
            yield Say(caller, w.Stopping(request, self.active.name, "active"))
            return
        for ticket in [each for each in self.queue if each.name == name]:
            self.queue.remove(ticket)
            ended = replace(ticket, state="stopped", reason=f"stopped by {caller.name}")
            yield Keep(ended)
            yield Say(caller, w.Stopping(request, name, "queued"))
            yield from self._end_watches(ended, {})
            return
        yield self._no_such(caller, request, name)

    def resume(self, caller: Caller, request: int, name: str) -> Iterator[Action]:
        """Queue a ticket again that was stopped or has failed."""
        known = [*([self.active] if self.active else []), *self.queue]
        ticket = next((each for each in known if each.name == name), None) or self._find(name)
        if ticket is None:
            yield self._no_such(caller, request, name)
        elif not ticket.over or ticket.state == "finished":
            text = f"{name} is {ticket.state}; only what was stopped or has failed can be taken up again"
            yield Say(caller, w.Refused(request, 9, document={"errors": [text]}))
        else:
            again = replace(ticket, state="queued", reason="")
            yield Keep(again)
            yield from self.submit(caller, request, again)

    def drain(self, caller: Caller, request: int) -> Iterator[Action]:
        """Admit and begin nothing any more; the active ticket's run ends after its round, and goes on at a next start.

        The caller is told when the host ends.
        """
        self._drainers.append((caller, request))
        if not self.draining:
            self.draining = f"drained by {caller.name}"
            if self.active is not None and not self.stopping:
                yield End(self.draining, after_round=True)
        yield Say(caller, w.News(request, self.active.name if self.active is not None else ""))

    def refuse(self, caller: Caller, request: int) -> Action:
        """Refuse what would be queued while the host is drained."""
        text = f"this host takes no experiment any more ({self.draining}); submit it when it has been started again"
        return Say(caller, w.Refused(request, 9, document={"errors": [text]}))

    def watch(self, caller: Caller, request: int, name: str) -> Iterator[Action]:
        """Tell a caller how a ticket goes, from now on until it ends."""
        waiting = [*([self.active] if self.active else []), *self.queue]
        for ticket in waiting:
            if name in ("", ticket.name):
                self._watchers[caller, request] = ticket.name
                yield Say(caller, w.News(request, ticket.name, document=self._place(ticket)))
                return
        ticket_then = self._find(name) if name else None
        if ticket_then is not None:
            yield Say(caller, _ended(request, ticket_then, {}))
        else:
            yield self._no_such(caller, request, name)

    def unwatch(self, caller: Caller, request: int) -> None:
        """No more of it."""
        self._watchers.pop((caller, request), None)
        self._drainers = [each for each in self._drainers if each != (caller, request)]

    def lose(self, gone: Callable[[Caller], bool]) -> None:
        """Forget what callers watch who are gone."""
        self._watchers = {watch: name for watch, name in self._watchers.items() if not gone(watch[0])}
        self._drainers = [each for each in self._drainers if not gone(each[0])]

    # What becomes of runs -------------------------------------------------------------------------------------------

    def begin(self) -> Iterator[Action]:
        """Make the next ticket active, when there is one and none is active, unless the host is being drained."""
        if self.active is None and self.queue and not self.draining:
            self.active, self.stopping = replace(self.queue.pop(0), state="active"), ""
            yield Keep(self.active)
            yield from self.beat()

    def over(self, ok: bool, reason: str, document: w.Document) -> Iterator[Action]:
        """The active ticket is over."""
        if self.active is None:
            return
        state: State = "finished" if ok else "stopped" if self.stopping else "failed"
        ended = replace(self.active, state=state, reason="" if ok else self.stopping or reason)
        self.active, self.stopping = None, ""
        yield Keep(ended)
        yield from self._end_watches(ended, document)

    def close(self) -> Iterator[Action]:
        """The host ends: tickets stay as they are on disk, to be taken up again; who watches is told."""
        for ticket in [*([self.active] if self.active else []), *self.queue]:
            yield from self._end_watches(replace(ticket, state="failed", reason=HOST_ENDS), {})
        for caller, request in self._drainers:
            yield Say(caller, w.Ended(request, "", True, clip(self.draining)))

    def news(self, document: w.Document) -> Iterator[Action]:
        """Something happened in the active ticket's runs."""
        for (caller, request), name in self._watchers.items():
            if self.active is not None and name == self.active.name:
                yield Say(caller, w.News(request, name, document=document))

    def beat(self) -> Iterator[Action]:
        """Give a sign of life to all who watch."""
        for ticket in [*([self.active] if self.active else []), *self.queue]:
            for (caller, request), name in self._watchers.items():
                if name == ticket.name:
                    yield Say(caller, w.News(request, name, document=self._place(ticket)))
        for caller, request in self._drainers:
            yield Say(caller, w.News(request, self.active.name if self.active is not None else ""))

    @property
    def is_watched(self) -> bool:
        """Somebody watches the active ticket."""
        return self.active is not None and self.active.name in self._watchers.values()

    def _place(self, ticket: Ticket) -> w.Document:
        if ticket is self.active:
            return {}
        return {"before": self.queue.index(ticket) + (self.active is not None)}

    def _end_watches(self, ticket: Ticket, document: w.Document) -> Iterator[Action]:
        for (caller, request), name in list(self._watchers.items()):
            if name == ticket.name:
                del self._watchers[caller, request]
                yield Say(caller, _ended(request, ticket, document))

    def _no_such(self, caller: Caller, request: int, name: str) -> Say:
        then = self._find(name) if name else None
        if not name:
            text = "no experiment is active or queued; submit one with: paceline run FILE --host WHERE"
        elif then is not None:
            text = f"{name} is over already ({then.state})"
        else:
            text = f"this host has no ticket {name}; paceline runs lists them, paceline status what is queued"
        return Say(caller, w.Refused(request, 9, document={"errors": [text]}))


def _ended(request: int, ticket: Ticket, document: w.Document) -> w.Ended:
    reason = ticket.reason or ticket.state
    return w.Ended(request, ticket.name, ticket.state == "finished", clip(reason), document=document)
