# SPDX-License-Identifier: Apache-2.0
"""The operators' desk: one active ticket, the others in order; who watches hears of every change and of the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from paceline_host import operator_wire as w
from paceline_host.desk import HOST_ENDS, Caller, Desk, End, Keep, Say
from paceline_host.desk import Action as DeskAction
from paceline_host.tickets import Ticket

ANN, BOB = Caller("ann", b"1"), Caller("bob", b"2")


def ticket(number: int, **changes: object) -> Ticket:
    values = {"name": f"demo-{number:03d}", "number": number, "by": "ann", "submitted": "2026-01-01T00:00:00Z"}
    return Ticket(**{**values, **changes})  # type: ignore[arg-type]


def desk(tickets: int = 0, *, over: Iterable[Ticket] = ()) -> Desk:
    """Return a desk with tickets 1 to `tickets`, the first of them active, and some that are over."""
    made = Desk(lambda name: next((each for each in over if each.name == name), None))
    for number in range(1, tickets + 1):
        list(made.submit(ANN, number, ticket(number)))
    list(made.begin())
    return made


def said(actions: Iterable[DeskAction]) -> list[tuple[Caller, w.Message]]:
    return [(action.to, action.message) for action in actions if isinstance(action, Say)]


def test_a_submission_is_told_how_many_come_first() -> None:
    made = desk()
    assert said(made.submit(ANN, 4, ticket(1))) == [(ANN, w.Queued(4, "demo-001", 0))]
    assert [type(action) for action in made.begin()] == [Keep]
    assert said(made.submit(BOB, 5, ticket(2))) == [(BOB, w.Queued(5, "demo-002", 1))]
    assert said(made.submit(BOB, 6, ticket(3))) == [(BOB, w.Queued(6, "demo-003", 2))]


def test_one_is_active_and_the_next_begins_when_it_is_over() -> None:
    made = desk(2)
    assert made.active == ticket(1, state="active")
    assert list(made.begin()) == []
    assert list(made.over(True, "", {})) == [Keep(ticket(1, state="finished"))]
    assert list(made.begin()) == [Keep(ticket(2, state="active"))]
    assert list(made.over(False, "no board", {})) == [Keep(ticket(2, state="failed", reason="no board"))]
    assert list(made.begin()) == []


def test_stop_ends_the_active_one_and_who_watches_hears_why() -> None:
    made = desk(1)
    list(made.watch(BOB, 9, ""))
    assert list(made.stop(ANN, 2, "")) == [End("stopped by ann"), Say(ANN, w.Stopping(2, "demo-001", "active"))]
    assert made.stopping == "stopped by ann"
    ended = ticket(1, state="stopped", reason="stopped by ann")
    assert list(made.over(False, "interrupted", {"text": "t"})) == [
        Keep(ended),
        Say(BOB, w.Ended(9, "demo-001", False, "stopped by ann", document={"text": "t"})),
    ]
    assert made.stopping == ""


def test_stop_takes_another_one_from_the_queue() -> None:
    made = desk(3)
    list(made.watch(BOB, 9, "demo-002"))
    ended = ticket(2, state="stopped", reason="stopped by ann")
    assert list(made.stop(ANN, 2, "demo-002")) == [
        Keep(ended),
        Say(ANN, w.Stopping(2, "demo-002", "queued")),
        Say(BOB, w.Ended(9, "demo-002", False, "stopped by ann")),
    ]
    assert made.queue == [ticket(3)]


def test_what_is_not_there_is_refused_in_words() -> None:
    over = ticket(7, state="finished")
    made = desk(over=[over])
    cases = [("", "no experiment is active"), ("demo-099", "this host has no ticket demo-099")]
    for name, text in cases:
        for actions in (made.stop(ANN, 1, name), made.watch(ANN, 1, name)):
            ((caller, refusal),) = said(actions)
            assert (caller, isinstance(refusal, w.Refused)) == (ANN, True)
            assert text in refusal.document["errors"][0]
    ((_, refusal),) = said(made.stop(ANN, 1, "demo-007"))
    assert refusal.document["errors"] == ["demo-007 is over already (finished)"]


def test_a_watch_of_what_is_over_ends_at_once_with_how_it_ended() -> None:
    made = desk(over=[ticket(7, state="finished"), ticket(8, state="failed", reason="no board")])
    assert said(made.watch(ANN, 1, "demo-007")) == [(ANN, w.Ended(1, "demo-007", True, "finished"))]
    assert said(made.watch(ANN, 1, "demo-008")) == [(ANN, w.Ended(1, "demo-008", False, "no board"))]


def test_who_watches_hears_news_of_that_ticket_alone_until_he_leaves() -> None:
    made = desk(2)
    assert said(made.watch(ANN, 1, "")) == [(ANN, w.News(1, "demo-001"))]
    assert said(made.watch(BOB, 2, "demo-002")) == [(BOB, w.News(2, "demo-002", document={"before": 1}))]
    assert said(made.news({"say": "x"})) == [(ANN, w.News(1, "demo-001", document={"say": "x"}))]
    assert said(made.beat()) == [
        (ANN, w.News(1, "demo-001")),
        (BOB, w.News(2, "demo-002", document={"before": 1})),
    ]
    made.unwatch(BOB, 1)  # not his
    assert [caller for caller, _ in said(made.news({}))] == [ANN]
    made.unwatch(ANN, 1)
    assert not made.is_watched
    made.lose(lambda caller: caller == BOB)
    assert list(made.beat()) == []


def test_the_hosts_end_is_told_and_changes_no_ticket() -> None:
    made = desk(2)
    list(made.watch(ANN, 1, ""))
    list(made.watch(BOB, 2, "demo-002"))
    assert list(made.close()) == [
        Say(ANN, w.Ended(1, "demo-001", False, HOST_ENDS)),
        Say(BOB, w.Ended(2, "demo-002", False, HOST_ENDS)),
    ]


def test_what_was_left_is_taken_up_in_order_or_let_go() -> None:
    left = [ticket(1, state="active"), ticket(2), ticket(3)]
    made = desk()
    assert list(made.recover(left, resume=True)) == []
    assert made.queue == left
    made = desk()
    (kept,) = made.recover(left, resume=False)
    assert isinstance(kept, Keep)
    assert (kept.ticket.name, kept.ticket.state) == ("demo-001", "stopped")
    assert made.queue == left[1:]


def take(made: Desk, step: str, number: int, submitted: int) -> list[DeskAction]:
    """Let something happen; `submitted`: how many tickets there were so far."""
    steps: dict[str, Callable[[], Iterable[DeskAction]]] = {
        "submit": lambda: made.submit(ANN, number, ticket(submitted + 1)),
        "begin": made.begin,
        "over": lambda: made.over(True, "", {}),
        "fail": lambda: made.over(False, "why", {}),
        "stop": lambda: made.stop(ANN, number, ""),
        "stop last": lambda: made.stop(ANN, number, f"demo-{submitted:03d}"),
        "watch": lambda: made.watch(BOB, number, ""),
        "beat": made.beat,
    }
    return list(steps[step]())


STEPS = ("submit", "begin", "over", "fail", "stop", "stop last", "watch", "beat")


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_whatever_happens_every_ticket_ends_once_and_in_the_order_of_the_queue(steps: list[str]) -> None:
    made, submitted, begun, ended, watches, ends = desk(), 0, [], [], 0, 0
    for number, step in enumerate(steps):
        actions = take(made, step, number, submitted)
        submitted += step == "submit"
        for action in actions:
            if isinstance(action, Keep) and action.ticket.over:
                ended.append(action.ticket.number)
            elif isinstance(action, Keep):
                begun.append(action.ticket.number)
        watches += step == "watch" and any(isinstance(m, w.News) for _, m in said(actions))
        ends += sum(isinstance(m, w.Ended) for _, m in said(actions))
    for _ in range(submitted + 1):
        actions = [*made.begin(), *made.over(True, "", {})]
        ended += [a.ticket.number for a in actions if isinstance(a, Keep) and a.ticket.over]
        ends += sum(isinstance(m, w.Ended) for _, m in said(actions))
    assert begun == sorted(begun)
    assert sorted(ended) == list(range(1, submitted + 1))
    assert ends == watches, "each watch ends once"


def test_what_was_stopped_or_failed_can_be_queued_again_and_nothing_else() -> None:
    over = [ticket(7, state="failed", reason="no board came back"), ticket(8, state="finished")]
    made = desk(1, over=over)
    assert list(made.resume(ANN, 2, "demo-007")) == [
        Keep(ticket(7, state="queued")), Say(ANN, w.Queued(2, "demo-007", 1)),
    ]  # fmt: skip
    for name, why in [("demo-008", "finished"), ("demo-001", "active"), ("demo-007", "queued"), ("demo-009", "")]:
        ((_, answer),) = said(made.resume(BOB, 3, name))
        assert isinstance(answer, w.Refused)
        assert why in str(answer.document["errors"])
    assert [each.name for each in made.queue] == ["demo-007"]


def test_a_drained_desk_admits_and_begins_nothing_and_tells_who_asked_when_the_host_ends() -> None:
    made = desk(2)
    assert list(made.drain(ANN, 5)) == [End("drained by ann", after_round=True), Say(ANN, w.News(5, "demo-001"))]
    assert list(made.drain(BOB, 6)) == [Say(BOB, w.News(6, "demo-001"))], "once is enough"
    (refused,) = said([made.refuse(BOB, 7)])
    assert isinstance(refused[1], w.Refused)
    assert "takes no experiment any more (drained by ann)" in refused[1].document["errors"][0]
    assert said(made.beat()) == [(ANN, w.News(5, "demo-001")), (BOB, w.News(6, "demo-001"))]
    made.unwatch(BOB, 6)
    list(made.over(True, "", {}))
    assert list(made.begin()) == []
    assert list(made.close()) == [Say(ANN, w.Ended(5, "", True, "drained by ann"))]


def test_a_drain_leaves_a_ticket_that_is_being_stopped_to_its_end() -> None:
    made = desk(1)
    list(made.stop(ANN, 1, ""))
    assert list(made.drain(ANN, 2)) == [Say(ANN, w.News(2, "demo-001"))]
