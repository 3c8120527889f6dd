# SPDX-License-Identifier: Apache-2.0
"""Where a run of regime async stood, from its journal: what was dealt, what is counted, and the model again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from paceline.tensors import Manifest
from paceline_host.ledger import Ledger
from paceline_host.mixing.steps import Standing
from paceline_host.records import Mix, Round
from paceline_host.reducer import mixed
from paceline_host.steps import Reopened


def standing(ledger: Ledger) -> Standing:
    """Return where a run stands; rounds are closed in order."""
    closed = sum(row.closed_s is not None for row in ledger.rounds())
    counted = defaultdict[int, Counter[int]](Counter)
    for row in ledger.contributions(verdict="accepted"):
        if row.round > closed:
            counted[row.round][row.board] += row.samples
    dealt = sum(item.samples for item in ledger.slices() if item.redealt_from is None)
    return Standing(len(ledger.mixes()), dealt, closed, counted)


def reopened(ledger: Ledger, lives: int, last_s: float) -> Reopened:
    """Return what a machine goes on from. `last_s`: the last instant that was journaled."""
    rounds, slices, rows = ledger.rounds(), ledger.slices(), ledger.contributions()
    accepted = {row.slice for row in rows if row.verdict == "accepted"}
    gone = accepted | {item.redealt_from for item in slices}
    return Reopened(
        round=rounds[-1].round if rounds else 0, closed=not rounds or rounds[-1].closed_s is not None,
        open_slices=tuple(item for item in slices if item.index not in gone),
        lost=frozenset(row.slice for row in rows) - accepted, next_index=len(slices), done=(),
        counted=frozenset((row.round, row.slice) for row in rows if row.verdict == "accepted"), lives=lives,
        elapsed_s=max(0.0, last_s - _opened_s(rounds)), round_seconds=tuple(makespans(rounds)),
    )  # fmt: skip


def _opened_s(rounds: Sequence[Round]) -> float:
    """Return when the round that is to be closed next began to count."""
    closed = [row.closed_s for row in rounds if row.closed_s is not None]
    return max([*closed, *(row.planned_s for row in rounds[len(closed) : len(closed) + 1])], default=0.0)


def makespans(rounds: Sequence[Round]) -> list[float]:
    """Return the makespans of closed rounds, of any regime: where rounds overlap, from the close of the one before."""
    found, before_s = [], 0.0
    for row in rounds:
        if row.closed_s is not None:
            found.append(row.closed_s - max(row.planned_s, before_s))
            before_s = row.closed_s
    return found


def remixed(ledger: Ledger, manifest: Manifest, model: bytes, rows: Sequence[Mix]) -> bytes:
    """Return a model with the journaled updates of these rows mixed in, in their order. Raises DamagedError."""
    accepted = {(row.round, row.slice): row for row in ledger.contributions(verdict="accepted")}
    for row in rows:
        model = mixed(manifest, model, ledger.update(accepted[row.round, row.slice]), row.weight)
    return model
