# SPDX-License-Identifier: Apache-2.0
"""Why a board had its samples in a round of regime async: it took slices as fast as it was done with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.errors import RunError
from paceline_host.ledger import Ledger
from paceline_host.mixing.law import Mixing
from paceline_host.records import Mix

FACTORS = {
    "constant": "1, whatever the age",
    "polynomial": "(age + 1) ^ -{a:g}",
    "hinge": "1 up to age {b:g}, then 1 / ({a:g} (age - {b:g}) + 1)",
}


def explain(folder: Path, round_: int) -> dict[str, Any]:
    """Return a round's facts, and `boards`, one entry for each that gave updates. Raises RunError for no such one."""
    with Ledger(folder) as ledger:
        run, names = ledger.run, {board.board: board.name for board in ledger.boards()}
        rounds = [row.round for row in ledger.rounds()]
        accepted = ledger.contributions(round_, "accepted")
        rows = {row.slice: row for row in ledger.mixes() if row.round == round_}
    if round_ not in rounds:
        raise RunError(f"{folder}: there is no round {round_}; rounds 1 to {max(rounds, default=0)} were begun")
    if not accepted:
        raise RunError(f"{folder}: no update of round {round_} is counted yet")
    own: dict[int, list[tuple[int, int, Mix]]] = defaultdict(list)
    for c in accepted:
        own[c.board].append((c.samples, c.compute_us, rows[c.slice]))
    boards = [
        {
            "board": names[board], "updates": len(parts), "samples": sum(n for n, _, _ in parts),
            "seconds_per_sample": sum(us for _, us, _ in parts) * 1e-6 / sum(n for n, _, _ in parts),
            "age": fmean(mix.age for *_, mix in parts), "age_most": max(mix.age for *_, mix in parts),
            "weight": fmean(mix.weight for *_, mix in parts),
        }
        for board, parts in sorted(own.items())
    ]  # fmt: skip
    return {
        "run": run.run_id, "policy": run.policy, "kind": "async", "round": round_, "budget": run.budget,
        "samples": sum(c.samples for c in accepted), "mixing": dict(run.mixing), "boards": boards,
    }  # fmt: skip


def words(facts: dict[str, Any], entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return a round's facts as sentences, of the boards of `entries`."""
    mixing = Mixing.read(facts["mixing"])
    lines = [
        f"{facts['run']}, round {facts['round']}: {facts['samples']} of {facts['budget']} samples are counted, in "
        f"slices of {mixing.slice}",
        "each board takes the next slice when it has delivered the last; nobody waits, and no policy divides samples",
        f"an update's weight is {mixing.alpha:g} x s, s = {FACTORS[mixing.kind].format(a=mixing.a, b=mixing.b)}",
    ]
    for entry in entries:
        share = 100 * entry["samples"] / facts["samples"]
        lines += [
            "",
            f"{entry['board']}: {entry['samples']} samples in {entry['updates']} updates ({share:.1f} %), at "
            f"{entry['seconds_per_sample'] * 1e3:.4g} ms a sample",
            f"  their age {entry['age']:.1f} on average, {entry['age_most']} at most; weight {entry['weight']:.3g}",
        ]
    return lines
