# SPDX-License-Identifier: Apache-2.0
"""All waits that follow from the one knob `patience_s` (DECISIONS 56). Pure arithmetic; machines hold to it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_host.machine import UNSAID
from paceline_host.muster import FIRST_LEASE

HEARTBEAT_S = 2.0  # at most between two signs of life: often enough to be seen at work, for next to nothing


@dataclass(frozen=True)
class Patience:
    """Seconds each; the words say what happens then."""

    patience_s: float

    @property
    def waits(self) -> dict[str, tuple[float, str]]:
        """Return {name: (seconds, meaning)}."""
        patience_s = self.patience_s
        return {
            "heartbeat_s": (min(HEARTBEAT_S, patience_s / 6), "a board gives a sign of life at least so often"),
            "lost_s": (patience_s, "without a sign of life: the board, or the host, is lost"),
            "lease_s": (patience_s, "added to twice the predicted time of a board's work: its lease"),
            "first_lease_s": (FIRST_LEASE * patience_s, "its lease while its speed is unknown; progress renews it"),
            "transfer_s": (patience_s, "a transfer without progress fails"),
            "unsaid_s": (UNSAID * patience_s, "work that is done must be announced within that, or its lease ends"),
            "hung_s": (patience_s, "a trainer that does not let go of cancelled work is killed by its agent"),
            "group_s": (3 * patience_s, "ranks of which none makes progress form their group anew (ddp, hfl)"),
            "alone_s": (patience_s, "no board is left: the run waits so long for one to come back"),
            "goodbye_s": (patience_s / 6, "the end of a run waits so long for the last words of the boards"),
        }
