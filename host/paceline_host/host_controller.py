# SPDX-License-Identifier: Apache-2.0
"""A controller that a running `paceline host` is: for `paceline.torch.RoundReporter`, in place of one in the script.

controller = HostController("my-training", sampler.world, sampler.budget, minimum=sampler.least_share)
reporter = RoundReporter(model, sampler, controller)
"""

from __future__ import annotations

import math
import uuid
from operator import index
from typing import Any

from paceline.errors import CoreError
from paceline_host import operator_wire as w
from paceline_host.host_config import load_operator
from paceline_host.operator_calls import connected

Report = tuple[float, float | None, int]


class HostController:
    """`observe` a round's reports, then `allocate`. The reporter calls it on rank 0 alone, and no other rank connects.

    `policy`: as experiments name them. `host`: as `paceline status --host`; None: $PACELINE_HOST, or the usual place.
    """

    def __init__(
        self, name: str, participants: int, budget: int, *, policy: str = "time", minimum: int = 1,
        host: str | None = None,
    ) -> None:  # fmt: skip
        """Raises CoreError for what no host can be asked."""
        if type(name) is not str or not w.is_name(name) or len(name) > w.NAME_LETTERS:
            raise CoreError(
                f"HostController: name is {name!r:.60}; expected 1 to {w.NAME_LETTERS} letters, digits, dots, dashes "
                "and underscores, a letter or a digit first"
            )
        participants, budget = _whole("participants", participants, 1), _whole("budget", budget, 1)
        minimum = _whole("minimum", minimum, 0)
        self._name, self._host = name, host
        self._terms = {
            "policy": policy, "ranks": participants, "budget": budget, "minimum": minimum, "life": uuid.uuid4().hex,
        }  # fmt: skip
        self._reports: list[Report | None] = [None] * participants
        self._round = 1

    def observe(self, i: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Take what rank i took for its samples of the round. Raises CoreError for what is no measurement."""
        if _whole("the rank", i, 0) >= len(self._reports):
            raise CoreError(f"HostController: there is no rank {i}; expected 0 to {len(self._reports) - 1}")
        if not (0 < seconds < math.inf and (energy_j is None or 0 <= energy_j < math.inf)):
            raise CoreError(
                f"HostController: rank {i} took {seconds} s and {energy_j} J; expected seconds above 0, and joules of "
                "0 or more or None"
            )
        samples = _whole(f"rank {i}'s samples", samples, 1)
        self._reports[i] = seconds, energy_j, samples

    def allocate(self) -> list[int]:
        """Tell the host, and return the next round's shares. Raises PacelineError: the host's sentence, or the link's.

        A script that goes on with the shares it has may ask again after the next round: that one's reports are enough.
        """
        self._round += 1
        reports, self._reports = self._reports, [None] * len(self._reports)
        with connected(load_operator(self._host)) as host:
            told = host.divide(self._name, self._round, {**self._terms, "reports": reports})
        shares = told.get("shares")
        if not isinstance(shares, list) or len(shares) != len(reports):
            raise CoreError(f"{self._name}: the host's shares are {shares!r:.60}; expected {len(reports)} counts")
        return [int(share) for share in shares]


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise CoreError(f"HostController: {name} is {value!r:.60}; expected a whole number, at least {least}")
    return number
