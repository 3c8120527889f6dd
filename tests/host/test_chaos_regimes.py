# SPDX-License-Identifier: Apache-2.0
"""The simulation of faults under the regimes whose boards step together: they keep their promises, and bugs that are
planted in them are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline.wire import Answer, Failed
from paceline_host.commands import program
from paceline_host.ddp.leases import DEAL, STEPS
from paceline_host.ddp.machine import RankMachine
from paceline_host.ddp.plan import RoundPlan
from paceline_host.hfl.ranks import SiloRanks
from paceline_host.hfl.store import SiloStore
from paceline_host.psl import store as split_store
from paceline_host.psl.machine import SplitMachine
from paceline_host.psl.plan import _GlobalDraws
from paceline_host.psl.steps import StepCommitted, StorePart
from paceline_host.simulation.chaos import psl
from paceline_host.simulation.chaos.plan import HOSTILE, KINDS, RANK_KINDS, drawn
from paceline_host.simulation.chaos.world import run
from paceline_host.steps import ResultStored, StoreSlices

FIRST, SEEDS = 10_001, 40
WITHIN = 100  # seeds, until a planted bug is found
STEPPING = {  # regime -> the kinds of faults that it meets
    "ddp": {*KINDS, *RANK_KINDS, *HOSTILE} - {"corrupt"},
    "hfl": {*KINDS, *RANK_KINDS, *HOSTILE} - {"corrupt"},
    "psl": {*KINDS, *HOSTILE} - {"memory"},
}

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("regime", STEPPING)
def test_the_promises_hold_under_faults_of_every_kind(regime: str) -> None:
    faults: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + SEEDS):
        verdict = run(drawn(seed, regime))
        assert verdict.ok, f"{verdict.broken}\nto see it again: paceline simulate --regime {regime} --chaos {seed}"
        faults += verdict.faults
    assert not STEPPING[regime] - faults.keys(), "some kinds never happen"


@pytest.mark.parametrize("regime", STEPPING)
def test_a_seed_is_the_same_run_every_time(regime: str) -> None:
    plan = replace(drawn(FIRST, regime), kinds=("kill-board", "cut", "kill-trainer"), every_s=1.0)
    assert run(plan) == run(plan)


# Planted bugs: ranks ------------------------------------------------------------------------------------------------


def whoever_is_first_leads_a_group(patch: Patch) -> None:
    """Some ranks came through a step and others did not, and the state of one that is ahead becomes everybody's."""
    form = RankMachine._form

    def careless(self: RankMachine, now_s: float) -> None:
        form(self, now_s)
        if self.stage == DEAL:
            self._order = sorted(self._work, key=lambda i: (not self._work[i].here.state, i))  # type: ignore[union-attr]

    patch.setattr(RankMachine, "_form", careless)


def a_round_that_begins_anew_keeps_what_was_counted(patch: Patch) -> None:
    """The state is lost, and steps that it had are still credited."""
    begin = RoundPlan.begin_anew

    def lax(self: RoundPlan, divide: Any) -> Any:
        counted = list(self.counted)
        fresh = begin(self, divide)
        self.counted += counted
        return fresh

    patch.setattr(RoundPlan, "begin_anew", lax)


def ranks_hear_that_their_part_counts_before_it_does(patch: Patch) -> None:
    """The lease is answered when the round is complete, not when it is on disk."""
    close = RankMachine._close_if_complete

    def hasty(self: RankMachine, now_s: float) -> None:
        close(self, now_s)
        if self.phase == "closing":
            for index, member in self._work.items():
                session = self.boards[index].session
                if session is not None and session.lease == member.hold.number:
                    self._send(index, Answer(session.nonce, member.hold.number, "accepted", "", 0))

    patch.setattr(RankMachine, "_close_if_complete", hasty)


def a_trainer_that_was_started_anew_is_taken_to_hold_the_state(patch: Patch) -> None:
    """Who held the state before its trainer died is believed to hold it still."""
    for name in ("_is_ready", "_is_gone", "_work_failed"):
        old = getattr(RankMachine, name)

        def trusting(self: RankMachine, index: int, *rest: Any, old: Any = old) -> None:
            held = self._states.get(index)
            old(self, index, *rest)
            if held is not None:
                self._states[index] = held

        patch.setattr(RankMachine, name, trusting)
    patch.setitem(RankMachine._MESSAGES, Failed, RankMachine._work_failed)


def nobody_minds_a_group_that_stands_still(patch: Patch) -> None:
    """A rank that hangs holds up all others for ever."""
    patch.setattr(RankMachine, "_wakes", lambda self: [m.hold.stalls_s for m in self._work.values()])
    passed = RankMachine._time_passed
    patch.setattr(RankMachine, "_time_passed", lambda self, now_s: None if self.stage == STEPS else passed(self, now_s))


def a_state_is_not_synced(patch: Patch) -> None:
    """The round's row is committed, the state that it names is not."""
    write = split_store.write_state
    from paceline_host.ddp import store

    patch.setattr(store, "write_state", lambda *args, fsync: write(*args, fsync=False))


# Planted bugs: split learning ----------------------------------------------------------------------------------------


def a_void_step_has_used_its_samples(patch: Patch) -> None:
    """What is drawn for a step that nobody does is never drawn again."""
    patch.setattr(_GlobalDraws, "void", _GlobalDraws.commit)


def boards_compute_with_an_older_client_part(patch: Patch) -> None:
    """Each step sends the part that the epoch began with."""
    patch.setattr(
        split_store.SplitStore, "outgoing",
        lambda self, board, what: self._split_part0 if what == "model" else self.gradients[board], raising=True,
    )  # fmt: skip
    slices = split_store.SplitStore._slices

    def first(self: Any, job: Any) -> Any:
        self._split_part0 = self.part
        return slices(self, job)

    patch.setitem(psl.ChaosSplitStore._JOBS, StoreSlices, first)


def what_a_lost_board_gave_is_forgotten(patch: Patch) -> None:
    """A board is lost while the host sums the step that it has given to, and its samples are nobody's."""
    committed = SplitMachine._committed

    def forgetful(self: SplitMachine, event: Any, now_s: float) -> None:
        lost = set(self._lost)
        before = {index: replace(self._totals[index]) for index in lost if index in self._totals}
        committed(self, event, now_s)
        self._totals.update(before)

    patch.setitem(SplitMachine._HANDLERS, StepCommitted, forgetful)


def an_account_is_on_disk_before_its_epoch(patch: Patch) -> None:
    """A board is told that its part counts while the epoch is open, and a killed host does it anew (this was a bug)."""
    part = split_store.SplitStore._part

    def hasty(self: Any, job: Any) -> Any:
        part(self, job)
        row, lease = self._parts.pop()
        self._journal.add_contributions([(row, None)] if row.samples else [])
        return [ResultStored(row.board, lease)]

    patch.setitem(psl.ChaosSplitStore._JOBS, StorePart, hasty)


# Planted bugs: silos -------------------------------------------------------------------------------------------------


def the_first_silo_is_all(patch: Patch) -> None:
    """The next round begins with what one silo has left."""
    go_on = SiloStore._go_on_from
    patch.setattr(SiloStore, "_go_on_from", lambda self, state: go_on(self, min(self._states.items())[1]))


def memory_travels_between_silos(patch: Patch) -> None:
    """The next round begins with the mean model, and the optimiser's memory of one silo."""
    go_on = SiloStore._go_on_from

    def remember(self: SiloStore, state: bytes) -> None:
        size = len(self._weights)
        go_on(self, state[:size] + min(self._states.items())[1][size:])

    patch.setattr(SiloStore, "_go_on_from", remember)


def a_silo_that_nobody_comes_back_to_is_waited_for(patch: Patch) -> None:
    """A silo without boards does not give its round up."""
    patch.setattr(SiloRanks, "_give_up", lambda self: setattr(self, "_alone_s", None))


BUGS: list[tuple[str, Callable[[Patch], None], str]] = [  # and what the witness says of it
    ("ddp", whoever_is_first_leads_a_group, "P3 state"),
    ("ddp", a_round_that_begins_anew_keeps_what_was_counted, "P"),
    ("ddp", ranks_hear_that_their_part_counts_before_it_does, "P1 acknowledged"),
    ("ddp", a_trainer_that_was_started_anew_is_taken_to_hold_the_state, "P3 state"),
    ("ddp", nobody_minds_a_group_that_stands_still, "P7"),
    ("ddp", a_state_is_not_synced, "P3 resume"),
    ("hfl", the_first_silo_is_all, "P3 state"),
    ("hfl", memory_travels_between_silos, "P3 state"),
    ("hfl", a_silo_that_nobody_comes_back_to_is_waited_for, "P7"),
    ("psl", a_void_step_has_used_its_samples, "P"),
    ("psl", boards_compute_with_an_older_client_part, "P3 base"),
    ("psl", what_a_lost_board_gave_is_forgotten, "P"),
    ("psl", an_account_is_on_disk_before_its_epoch, "P1 acknowledged"),
]
OFTEN: dict[Callable[[Patch], None], tuple[str, ...]] = {  # what shows a bug soon that needs two things at once
    a_round_that_begins_anew_keeps_what_was_counted: ("kill-board", "kill-trainer", "group-breaks"),
    a_trainer_that_was_started_anew_is_taken_to_hold_the_state: ("slow-disk", "kill-trainer", "kill-board"),
    a_state_is_not_synced: ("power-host",),
    what_a_lost_board_gave_is_forgotten: ("slow-disk", "kill-board"),
}


@pytest.mark.parametrize(("regime", "plant", "promise"), BUGS, ids=[plant.__name__ for _, plant, _ in BUGS])
def test_a_planted_bug_is_found(regime: str, plant: Callable[[Patch], None], promise: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(FIRST, FIRST + WITHIN):
        plan = drawn(seed, regime)
        verdict = run(replace(plan, kinds=OFTEN[plant], every_s=0.5) if plant in OFTEN else plan)
        if not verdict.ok:
            print(f"{plant.__name__}: found by seed {seed - FIRST + 1} of at most {WITHIN}: {verdict.broken[-300:]}")
            assert promise in verdict.broken, verdict.broken
            return
    raise AssertionError(f"not found by {WITHIN} seeds")


# The command --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", STEPPING)
def test_the_command_tells_the_story_of_a_seed_under_a_regime(regime: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program().run(["simulate", "--chaos", "7", "--regime", regime]) == 0
    out = capsys.readouterr().out
    assert f"simulated, seed 7, {regime}:" in out
    assert "all promises were kept" in out


def test_a_seed_that_breaks_a_promise_is_named_with_its_regime(
    capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    the_first_silo_is_all(monkeypatch)
    assert program().run(["simulate", "--chaos", "10001-10002", "--regime", "hfl"]) == 9
    assert "to see it again: paceline simulate --chaos 10001 --regime hfl" in capsys.readouterr().out


def test_a_regime_is_for_chaos_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert program().run(["simulate", "--regime", "ddp"]) == 2
    assert "--regime is for --chaos" in capsys.readouterr().err
