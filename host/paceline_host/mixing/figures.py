# SPDX-License-Identifier: Apache-2.0
"""How old updates were when they were mixed in, from a run's journal: what the report says of regime async."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from paceline_host.ledger import Ledger
from paceline_host.mixing.law import Mixing


@dataclass(frozen=True)
class MixFigures:
    """All updates of a run."""

    mixing: Mixing
    ages: Mapping[int, int]  # updates by age: the histogram of staleness
    weight: float  # mean alpha_t

    @property
    def updates(self) -> int:
        return sum(self.ages.values())

    @property
    def by_octave(self) -> dict[str, int]:
        """Return updates by ages 0, 1, 2-3, 4-7, 8-15, ..., where there are any."""
        found = Counter[int]()
        for age, count in self.ages.items():
            found[age.bit_length()] += count
        spans = {bits: (1 << bits >> 1, (1 << bits) - 1) for bits in sorted(found)}
        return {f"{low}-{high}" if high > low else f"{low}": found[bits] for bits, (low, high) in spans.items()}

    @property
    def age(self) -> float:
        """Median."""
        return statistics.median(Counter(self.ages).elements())


def mix_figures(ledger: Ledger) -> MixFigures | None:
    """Return the figures; None of another regime, or before the first update."""
    rows = ledger.mixes()
    if not rows:
        return None
    ages = dict(sorted(Counter(row.age for row in rows).items()))
    return MixFigures(Mixing.read(ledger.run.mixing), ages, statistics.fmean(row.weight for row in rows))
