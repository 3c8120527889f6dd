# SPDX-License-Identifier: Apache-2.0
"""Why a board gave its samples in an epoch of split learning: no policy divides them, a method says who gives what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import RunError
from paceline_host.ledger import Ledger

METHODS = {
    "gpsl": "each step's batch is drawn over all samples that are left, as central sampling would; costs have no say",
    "fls": "in each step a client gives the same fixed number, the batch over the clients, until it has none left",
    "fpls": "in each step a client gives a fixed number in proportion to what it holds, until it has none left",
    "central": "all samples lie on the first board, which gives every step's whole batch",
}


def explain(folder: Path, round_: int) -> dict[str, Any]:
    """Return an epoch's facts, and `boards`, one entry for each that holds samples. Raises RunError for no such one."""
    with Ledger(folder) as ledger:
        run, names = ledger.run, {board.board: board.name for board in ledger.boards()}
        closed = {epoch.round: epoch for epoch in ledger.epochs()}
        slices = ledger.slices(round_) if round_ in closed else ()
        given = {part.board: part for part in ledger.contributions(round_)} if round_ in closed else {}
    if round_ not in closed:
        what = f"epoch {round_} has not ended" if 0 < round_ <= run.rounds else f"there is no epoch {round_}"
        ended = f"epochs 1 to {max(closed)} have ended" if closed else "none has ended yet"
        raise RunError(f"{folder}: {what}; {ended}")
    epoch, held = closed[round_], sum(part.samples for part in slices)
    boards = []
    for part in slices:
        own = given.get(part.board)
        boards.append({
            "board": names[part.board], "samples_held": part.samples, "samples": own.samples if own else 0,
            "steps": own.steps if own else 0, "expected_a_step": min(run.batch, held) * part.samples / held,
        })  # fmt: skip
    return {
        "run": run.run_id, "policy": run.policy, "kind": "psl", "round": round_, "batch": run.batch,
        "steps": epoch.steps, "voided": epoch.voided, "left": epoch.left, "samples": held, "boards": boards,
        "holding_none": sorted(set(names.values()) - {entry["board"] for entry in boards}),
    }  # fmt: skip


def words(facts: dict[str, Any], entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return an epoch's facts as sentences, of the boards of `entries`."""
    lines = [
        f"{facts['run']}, epoch {facts['round']}: {facts['samples']} samples by method {facts['policy']}, "
        f"{facts['batch']} a step",
        METHODS[facts["policy"]],
        f"it took {facts['steps']} steps"
        + (f"; {facts['voided']} more were void, as a board was lost in them" if facts["voided"] else "")
        + (f"; {facts['left']} samples were left out, as their boards were gone" if facts["left"] else ""),
    ]
    for entry in entries:
        share = entry["samples_held"] / facts["samples"]
        expects = f", so {entry['expected_a_step']:.1f} a step are expected" if facts["policy"] == "gpsl" else ""
        lines += [
            "",
            f"{entry['board']}: holds {entry['samples_held']} samples ({100 * share:.1f} %){expects}",
            f"  gave {entry['samples']} in {entry['steps']} of {facts['steps']} steps",
        ]
    return lines
