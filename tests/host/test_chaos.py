# SPDX-License-Identifier: Apache-2.0
"""The simulation of faults: production keeps its promises, and each of a dozen bugs that are planted in it is found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import machine as am
from paceline.session import Session
from paceline.wire import Answer, Begin, Commit, Ping
from paceline_host import checkpoint, epoch, peers, recovery
from paceline_host import machine as rm
from paceline_host.commands import program
from paceline_host.journal import Journal
from paceline_host.peers import Heard, Peers
from paceline_host.reducer import Reducer
from paceline_host.simulation.chaos import world
from paceline_host.simulation.chaos.host import ChaosStore
from paceline_host.simulation.chaos.plan import HOSTILE, KINDS, drawn
from paceline_host.simulation.chaos.world import run

FIRST, SEEDS = 10_001, 100
WITHIN = 100  # seeds, until a planted bug is found

Patch = pytest.MonkeyPatch


def test_the_promises_hold_under_faults_of_every_kind() -> None:
    faults: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + SEEDS):
        verdict = run(drawn(seed))
        assert verdict.ok, f"{verdict.broken}\nto see it again: paceline simulate --chaos {seed}"
        faults += verdict.faults
    assert not {*KINDS, *HOSTILE} - faults.keys(), "some kinds never happen"


def test_a_seed_is_the_same_run_every_time() -> None:
    one, two = run(drawn(FIRST)), run(drawn(FIRST))
    assert one == two
    assert one.story != run(drawn(FIRST + 1)).story


# Planted bugs -------------------------------------------------------------------------------------------------------


def acknowledged_before_it_is_on_disk(patch: Patch) -> None:
    """The board hears `accepted` while its result is on the way to the store."""
    commit = rm.RoundMachine._commit

    def hasty(self: rm.RoundMachine, index: int, message: Any, now_s: float) -> None:
        commit(self, index, message, now_s)
        if message.lease in self._judging:
            self._send(index, Answer(message.session, message.lease, "accepted", "", 0))

    patch.setattr(rm.RoundMachine, "_commit", hasty)
    patch.setitem(rm.RoundMachine._MESSAGES, Commit, hasty)


def an_update_is_not_synced(patch: Patch) -> None:
    """The journal's row is committed, the bytes that it names are not."""
    patch.setattr(Journal, "_sync_spool", lambda self: None)


def a_checkpoint_is_not_synced(patch: Patch) -> None:
    """The round's row is committed, the model that it names is not."""
    save = checkpoint.save
    patch.setattr(checkpoint, "save", lambda *args, **more: save(*args, **{**more, "fsync": False}))


def a_plan_is_given_out_before_it_is_on_disk(patch: Patch) -> None:
    """Work begins under a plan that a crash forgets."""
    plan = rm.RoundMachine._plan

    def hasty(self: rm.RoundMachine, now_s: float) -> None:
        plan(self, now_s)
        for action in list(self._out):
            if isinstance(action, rm.StoreSlices):
                self._stored(rm.SlicesStored(action.slices), now_s)

    patch.setattr(rm.RoundMachine, "_plan", hasty)


def older_sessions_are_not_fenced(patch: Patch) -> None:
    """Messages of a life of the board that another one has replaced count."""
    accept = Session.accept
    patch.setattr(
        Session, "accept", lambda self, message, now_s: accept(self, _with(message, session=self.nonce), now_s)
    )


def older_leases_are_not_fenced(patch: Patch) -> None:
    """Messages under a lease that is over count as of the present one."""
    accept = Session.accept

    def lax(self: Session, message: Any, now_s: float) -> None:
        if self.lease and getattr(message, "lease", 0):
            message.__dict__["lease"] = self.lease
        accept(self, message, now_s)

    patch.setattr(Session, "accept", lax)


def _with(message: Any, **values: object) -> Any:
    message.__dict__.update(values)
    return message


def a_judged_result_is_dealt_again(patch: Patch) -> None:
    """The board of a result in the store's hands is lost, and the slice is dealt to others as well."""

    def unload(self: rm.RoundMachine, index: int, verdict: Any, reason: str, now_s: float) -> None:
        board = self.boards[index]
        queued, lease = list(board.queue), board.lease
        board.queue.clear()
        board.lease, board.hold_end_s = None, float("inf")
        if lease is not None:
            self._lose(index, lease, verdict, reason, now_s)
        for item in queued:
            self._redeal(item, now_s, without=index)

    patch.setattr(rm.RoundMachine, "_unload", unload)


def progress_renews_no_lease(patch: Patch) -> None:
    """A slow board that tells of its progress loses its lease."""
    ping = rm.RoundMachine._ping

    def deaf(self: rm.RoundMachine, index: int, message: Any, now_s: float) -> None:
        ping(self, index, replace(message, samples=0), now_s)

    patch.setitem(rm.RoundMachine._MESSAGES, Ping, deaf)


def a_new_session_waits_for_the_old_one_to_end(patch: Patch) -> None:
    """No handover: a board that comes back is not heard while the host believes in its last life."""
    hello = Peers._hello

    def polite(self: Peers, board: str, *rest: Any) -> Heard:
        return Heard(current=False) if board in self._peers else hello(self, board, *rest)

    patch.setattr(Peers, "_hello", polite)


def a_resume_forgets_a_result(patch: Patch) -> None:
    """Of the open round one accepted slice is given out once more."""
    reopened = recovery._reopened

    def forgetful(ledger: Any, rounds: Any, open_round: int) -> Any:
        found = reopened(ledger, rounds, open_round)
        left = {item.index for item in found.open_slices}
        again = [s for s in ledger.slices(open_round) if (s.round, s.index) in found.counted and s.index not in left]
        return replace(found, open_slices=(*found.open_slices, *again[:1])) if open_round else found

    patch.setattr(recovery, "_reopened", forgetful)


def a_lost_slice_counts_as_delivered(patch: Patch) -> None:
    """The budget is that of the plan, whatever came of it."""

    def lose(self: rm.RoundMachine, index: int, lease: Any, verdict: Any, reason: str, now_s: float) -> None:
        self._out.append(rm.StoreLoss(index, lease.slice, lease.number, verdict, reason))
        self._open.pop(lease.slice.index, None)
        self._close_if_complete(now_s)

    patch.setattr(rm.RoundMachine, "_lose", lose)


def a_damaged_base_is_trained_from(patch: Patch) -> None:
    """A board does not look at the hash of the model that came in."""
    ready = am.AgentMachine._base_ready
    patch.setitem(
        am.AgentMachine._HANDLERS, am.BaseReady,
        lambda self, event, now_s: ready(self, replace(event, matches=True), now_s),
    )  # fmt: skip


def an_update_is_believed_unseen(patch: Patch) -> None:
    """The host does not compare an update with its hash."""
    sha = checkpoint.sha256
    patch.setattr(ChaosStore, "_result", _trusting(ChaosStore._result, sha))
    patch.setitem(ChaosStore._JOBS, rm.StoreResult, _trusting(ChaosStore._result, sha))


def _trusting(result: Callable[..., Any], sha: Callable[..., str]) -> Callable[..., Any]:
    def trusting(self: Any, job: Any) -> Any:
        stated = job.action.result.update_sha256
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "sha256", lambda data: stated)
            return result(self, job)

    return trusting


def a_host_that_comes_back_opens_another_window(patch: Patch) -> None:
    """A board's joules of one run are cut in two when the host is started anew."""
    begin = am.AgentMachine._begin

    def forgetful(self: am.AgentMachine, message: Any, now_s: float) -> None:
        self._window_run = ""
        begin(self, message, now_s)

    patch.setitem(am.AgentMachine._MESSAGES, Begin, forgetful)


def unknown_joules_are_none_at_all(patch: Patch) -> None:
    """A meter that tells nothing is taken for one that tells 0."""
    measured = am.AgentMachine._measured
    patch.setitem(
        am.AgentMachine._HANDLERS, am.Measured,
        lambda self, event, now_s: measured(self, replace(event, energy_uj=event.energy_uj or 0), now_s),
    )  # fmt: skip


def a_host_is_numbered_by_its_clock(patch: Patch) -> None:
    """The number of a host's life is the time, and clocks go backwards."""
    numbered = epoch.next_epoch

    def by_clock(runs_dir: Path) -> int:
        (runs_dir / epoch.FILE).unlink(missing_ok=True)
        return numbered(runs_dir)

    patch.setattr(world, "next_epoch", by_clock)


def a_lease_ends_at_the_host_only(patch: Patch) -> None:
    """An agent whose lease is not renewed works on."""
    tick = am.AgentMachine._tick

    def stubborn(self: am.AgentMachine, event: Any, now_s: float) -> None:
        if self._assign is not None and now_s >= self._lease_end_s:
            self._lease_end_s = now_s + self._session.patience_s
        tick(self, event, now_s)

    patch.setitem(am.AgentMachine._HANDLERS, am.Tick, stubborn)


def updates_are_added_as_they_come(patch: Patch) -> None:
    """The order of arrival is in the model's last bits."""

    def enter(self: Reducer, slice_index: int, entry: Any) -> None:
        if entry is not None:
            self._accumulate(*entry)

    patch.setattr(Reducer, "_enter", enter)


def a_result_in_the_stores_hands_is_called_counted(patch: Patch) -> None:
    """A board that comes back meanwhile lets go of it, and the host may still die (this was a bug)."""
    patch.setattr(rm.RoundMachine, "_load", rm.RoundMachine.__mro__[1]._load)  # type: ignore[attr-defined]
    patch.setattr(
        rm.RoundMachine, "_is_counted",
        lambda self, kept: kept in self._counted
        or kept in {(lease.slice.round, lease.slice.index) for _, lease in self._judging.values()},
    )  # fmt: skip


def a_session_goes_on_over_any_connection(patch: Patch) -> None:
    """What was under way when a connection ended is missing, and nobody asks (this was a bug)."""
    hear = Peers.hear
    patch.setattr(Peers, "hear", lambda self, board, header, now_s, route: hear(self, board, header, now_s))


def a_late_hello_is_taken_for_a_new_one(patch: Patch) -> None:
    """A hello that was held up fences the session that its agent has opened since (this was a bug)."""
    patch.setattr(peers, "is_older", lambda nonce, other: False)


BUGS: list[tuple[Callable[[Patch], None], str]] = [  # and what the witness, or production itself, says of it
    (acknowledged_before_it_is_on_disk, "P1 acknowledged"),
    (an_update_is_not_synced, "P3 resume"),
    (a_checkpoint_is_not_synced, "P1 checkpoint"),
    (a_plan_is_given_out_before_it_is_on_disk, "P3 plan"),
    (older_sessions_are_not_fenced, "L fencing"),
    (older_leases_are_not_fenced, "L fencing"),
    (a_judged_result_is_dealt_again, "is in this round's model already"),
    (progress_renews_no_lease, "L lost"),
    (a_new_session_waits_for_the_old_one_to_end, "L handover"),
    (a_resume_forgets_a_result, "is in this round's model already"),
    (a_lost_slice_counts_as_delivered, "is missing"),
    (a_damaged_base_is_trained_from, "P3 update"),
    (an_update_is_believed_unseen, "P3 model"),
    (a_host_that_comes_back_opens_another_window, "P6 window"),
    (unknown_joules_are_none_at_all, "P6 joules"),
    (a_host_is_numbered_by_its_clock, "L epoch"),
    (a_lease_ends_at_the_host_only, "L lease"),
    (updates_are_added_as_they_come, "P3 model"),
    (a_result_in_the_stores_hands_is_called_counted, "P1 acknowledged"),
    (a_session_goes_on_over_any_connection, "P4 plan"),
    (a_late_hello_is_taken_for_a_new_one, "L handover"),
]
OFTEN = {  # what shows a bug soon that needs two or three things at once
    an_update_is_not_synced: ("power-host",),
    an_update_is_believed_unseen: ("corrupt",),
    a_checkpoint_is_not_synced: ("power-host",),
    a_lease_ends_at_the_host_only: ("hang-trainer", "one-way", "half-open"),
    a_result_in_the_stores_hands_is_called_counted: ("slow-disk", "cut", "kill-board"),
    a_session_goes_on_over_any_connection: ("half-open", "kill-board"),
    a_late_hello_is_taken_for_a_new_one: ("one-way", "half-open"),
}


@pytest.mark.parametrize(("plant", "promise"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], promise: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(FIRST, FIRST + WITHIN):
        plan = drawn(seed)
        verdict = run(replace(plan, kinds=OFTEN[plant], every_s=0.5) if plant in OFTEN else plan)
        if not verdict.ok:
            print(f"{plant.__name__}: found by seed {seed - FIRST + 1} of at most {WITHIN}")
            assert promise in verdict.broken, verdict.broken
            return
    raise AssertionError(f"not found by {WITHIN} seeds")


# The command --------------------------------------------------------------------------------------------------------


def test_the_command_tells_the_story_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert program().run(["simulate", "--chaos", "7"]) == 0
    out = capsys.readouterr().out
    assert "simulated, seed 7" in out
    assert "all promises were kept" in out


def test_the_command_sums_up_many_seeds_and_names_those_that_break_a_promise(
    capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    a_host_is_numbered_by_its_clock(monkeypatch)
    assert program().run(["simulate", "--chaos", "10001-10040", "--json"]) == 9
    told = json.loads(capsys.readouterr().out)
    broken = [one["seed"] for one in told["runs"] if not one["ok"]]
    assert (told["seeds"], told["broken"]) == (40, len(broken))
    assert program().run(["simulate", "--chaos", f"{broken[0]}-{broken[0] + 1}"]) == 9
    assert f"to see it again: paceline simulate --chaos {broken[0]}" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "x", "5-1", "1-", "1-99999999"])
def test_seeds_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program().run(["simulate", "--chaos", text]) == 3
    assert "for instance 7 or 1-500" in capsys.readouterr().err


def test_what_a_seed_decides_is_not_asked_for_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert program().run(["simulate", "--chaos", "7", "--rounds", "3", "--fault", "board=1 round=2 leave"]) == 2
    assert "leave out --fault, --rounds" in capsys.readouterr().err
