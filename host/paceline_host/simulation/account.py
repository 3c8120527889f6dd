# SPDX-License-Identifier: Apache-2.0
"""A simulated board's joules by purpose: what a perfect meter would say. Pure; instants in microseconds.

Between two marks a board draws the watts of computing or of idling, so each stretch is exact. A meter that dies makes
unknown whatever it does not see, and with it the total, as on a real board. The agent's own ledger is not used: it is
made for readings that come late and between edges, and the host may not know the agent.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.wire import ENERGY_FLAGS, Energy

CATEGORIES = ("compute", "wait", "transfer", "wasted", "other")
VERDICTS = 4  # leases whose verdict may still come
SOURCE = "modelled"

Watts = Callable[[int, int], tuple[float, float]]  # idle and active, from an instant on, for a span


class Account:
    """One life of a board's agent. `watts` is asked whenever a stretch ends: change it right after `settle`."""

    def __init__(self, watts: Watts) -> None:
        self._watts = watts
        self.metered = True
        self._is_open = False

    def open(self, t_us: int) -> None:
        """Open the window of a run."""
        self._is_open = True
        self._at_us = self._begin_us = t_us
        self._category, self._lease = "other", 0
        self._joules = dict.fromkeys(CATEGORIES, 0)  # microjoules
        self._spans = dict.fromkeys(CATEGORIES, 0)
        self._unknown: set[str] = set()
        self._covered_us = 0
        self._leases: dict[int, tuple[int, int, bool]] = {}  # (microjoules, microseconds, known) of compute
        self._void: set[int] = set()

    def mark(self, t_us: int, category: str, lease: int) -> None:
        """From t_us on time is spent on `category`."""
        if self._is_open:
            self.settle(t_us)
            self._category, self._lease = category, lease

    def settle(self, t_us: int) -> None:
        """Count the time up to t_us."""
        if not self._is_open or t_us <= self._at_us:
            return
        span_us, self._at_us = t_us - self._at_us, t_us
        idle_w, active_w = self._watts(t_us - span_us, span_us)
        computing = self._category == "compute"
        energy_uj = round((active_w if computing else idle_w) * span_us)
        self._covered_us += span_us if self.metered else 0
        if not computing or self._lease in self._void:
            self._add("wasted" if computing else self._category, energy_uj, span_us, self.metered)
            return
        joules, us, known = self._leases.get(self._lease, (0, 0, True))
        self._leases[self._lease] = joules + energy_uj, us + span_us, known and self.metered
        if len(self._leases) > VERDICTS:
            self._add("compute", *self._leases.pop(next(iter(self._leases))))

    def void(self, lease: int) -> None:
        """What was, and will be, computed under a lease is wasted."""
        if self._is_open:
            self._void.add(lease)
            if lease in self._leases:
                self._add("wasted", *self._leases.pop(lease))

    def computed_uj(self, lease: int) -> int | None:
        """Return what a lease's computing has taken so far; None: unknown."""
        joules, _, known = self._leases.get(lease, (0, 0, False)) if self._is_open else (0, 0, False)
        return joules if known else None

    def split(self, run: str, round_: int, t_us: int) -> Energy:
        """Return the cumulative split as of t_us, as it travels."""
        self.settle(t_us)
        joules, spans, unknown = dict(self._joules), dict(self._spans), set(self._unknown)
        for energy_uj, span_us, known in self._leases.values():
            joules["compute"] += energy_uj
            spans["compute"] += span_us
            unknown |= set() if known else {"compute"}
        compute, wait, transfer, wasted, other = (
            None if name in unknown else joules[name] for name in CATEGORIES
        )  # fmt: skip
        total = None if unknown else sum(joules.values())
        flags = ENERGY_FLAGS["unknown"] if unknown else 0
        return Energy(
            1, 1, run, round_, compute, wait, transfer, wasted, other, total, None if unknown else 0,
            self._at_us - self._begin_us, self._covered_us, SOURCE, flags,
            None if unknown else 0, None if "compute" in unknown else 0, spans["wait"],
        )  # fmt: skip

    def _add(self, category: str, energy_uj: int, span_us: int, known: bool) -> None:
        self._joules[category] += energy_uj
        self._spans[category] += span_us
        if not known:
            self._unknown.add(category)
