# SPDX-License-Identifier: Apache-2.0
"""Fills real run folders through the Journal alone, for the tests of everything that reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline_host.journal import Journal
from paceline_host.records import PARTS, Board, Contribution, Energy, Round, Run
from paceline_host.regimes.pma import Pma


def run_row(**changes: object) -> Run:
    """Return a small run."""
    row = Run(
        run_id="small-001/time", policy="time", regime="pma", seed=7, budget=100, rounds=3, samples=70, batch=10,
        task="linear", data_label="synthetic", energy_required=False, boards=3,
    )  # fmt: skip
    return replace(row, **changes)  # type: ignore[arg-type]


def boards_of(count: int, source: str | None = "modelled", names: Sequence[str] = ()) -> list[Board]:
    """Return boards named board-0, board-1, ..., or as told."""
    return [Board(i, names[i] if names else f"board-{i}", energy_source=source) for i in range(count)]


def model_hash(round_: int) -> str:
    """Return what stands for the hash of the model that a round left (0: the first one)."""
    return hashlib.sha256(f"model {round_}".encode()).hexdigest()


@dataclass
class Story:
    """A run to be told to a journal: what each board's seconds and watts are, and how rounds are shared out."""

    run: Run = field(default_factory=run_row)
    shares: Sequence[Sequence[int]] = ((40, 30, 30), (60, 20, 20), (60, 20, 20))
    seconds_per_sample: Sequence[float] = (0.01, 0.03, 0.03)
    active_w: Sequence[float | None] = (5.0, 3.0, 3.0)
    source: str = "modelled"
    names: Sequence[str] = ()
    accuracy: Sequence[float | None] = (0.5, 0.8, 0.9)
    overruns: int = 0
    update_bytes: int = 0
    in_two: bool = False  # as ranks whose round was dealt anew in its middle: measured as a whole, in the last slice

    def tell(self, folder: Path, *, ended: bool = True) -> None:
        """Write the whole run into a new folder."""
        count = len(self.seconds_per_sample)
        with Journal.create(folder, self.run, boards_of(count, self.source, self.names)) as journal:
            now_s, spent = 0.0, [[0] * 5 for _ in range(count)]
            regime = Pma(self.run.samples, self.run.budget)
            for number, shares in enumerate(self.shares, start=1):
                now_s = self._round(journal, number, shares, regime, now_s, spent) + 0.5
            if ended:
                journal.end(ok=True, reason="finished", at_s=now_s)

    def _round(
        self, journal: Journal, number: int, shares: Sequence[int], regime: Pma, now_s: float, spent: list[list[int]]
    ) -> float:
        slices = regime.plan(number, list(enumerate(shares)))
        journal.add_plan(Round(number, now_s, model_hash(number - 1), allocate_s=10e-6), slices)
        seconds = {s.board: s.samples * self.seconds_per_sample[s.board] for s in slices}
        batch: list[tuple[Contribution, bytes | None]] = []
        for s in slices:
            update = bytes([s.board]) * self.update_bytes
            watts = self.active_w[s.board]
            row = Contribution(
                number, s.index, 0, lease=100 * number + s.index, board=s.board, verdict="accepted",
                at_s=now_s + seconds[s.board], samples=s.samples, steps=-(-s.samples // 10),
                compute_us=round(seconds[s.board] * 1e6),
                compute_uj=None if watts is None else round(seconds[s.board] * watts * 1e6), compute_bound_uj=0,
                energy_source=self.source, overruns=self.overruns, update_sha256=hashlib.sha256(update).hexdigest(),
                update_norm=1.0, update_bytes=len(update),
            )  # fmt: skip
            if self.in_two and s.samples > 1:
                half = [(s.board, s.samples // 2), (s.board, s.samples - s.samples // 2)]
                first, last = regime.on_lost(s, half, len(slices) + 2 * s.index)
                journal.add_slices([first, last])
                unmeasured = replace(row, slice=first.index, samples=first.samples, compute_us=0, compute_uj=None)
                batch.append((unmeasured, None))
                row = replace(row, slice=last.index, lease=row.lease + 50, samples=last.samples)
            batch.append((row, update or None))
        assert all(journal.add_contributions(batch))
        end_s = now_s + max(seconds.values())
        with journal.transaction():
            for board, compute_s in seconds.items():
                journal.set_energy(self._energy(number, board, compute_s, end_s - now_s, spent[board]))
        journal.close_round(
            number, closed_s=end_s, model_sha256=model_hash(number), evaluation_s=0.1, loss=1.0 / number,
            accuracy=self.accuracy[number - 1], metric="cross-entropy",
        )  # fmt: skip
        return end_s

    def _energy(self, number: int, board: int, compute_s: float, round_s: float, spent: list[int]) -> Energy:
        watts = self.active_w[board]
        span_us = round(1e6 * number * round_s)
        if watts is None:
            return Energy(number, board, "s0", None, None, None, None, None, None, span_us, 0, None, "no meter")
        parts = (watts * compute_s, 1.0 * (round_s - compute_s), 0.1, 0.05 * (board == 1), 0.02)
        for i, joules in enumerate(parts):
            spent[i] += round(joules * 1e6)
        known = dict(zip((f"{name}_uj" for name in PARTS), spent, strict=True))
        return Energy(
            number, board, "s0", **known, total_uj=sum(spent), span_us=span_us, covered_us=span_us, bound_uj=1000,
            source=self.source,
        )  # fmt: skip
