# SPDX-License-Identifier: Apache-2.0
"""What a script's controller refuses by itself, before a host is asked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.errors import CoreError
from paceline_host.host_controller import HostController


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *[({"name": name}, "expected 1 to 90 letters") for name in ("", "my training", "a\nb", "x" * 91, 5, None)],
        ({"participants": 0}, "participants is 0; expected a whole number, at least 1"),
        ({"participants": 1.5}, "participants is 1.5"),
        ({"budget": math.nan}, "budget is nan"),
        ({"minimum": -1}, "minimum is -1"),
    ],
)
def test_what_no_host_can_be_asked_is_refused_at_the_start(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CoreError, match=said):
        HostController(**{"name": "x" * 90, "participants": 2, "budget": 100, **changes})


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ((2, 1.0, None, 5), "there is no rank 2; expected 0 to 1"),
        ((-1, 1.0, None, 5), "the rank is -1"),
        *[((0, seconds, None, 5), "expected seconds above 0") for seconds in (math.nan, math.inf, 0.0, -1.0)],
        *[((0, 1.0, joules, 5), "0 or more or None") for joules in (math.nan, math.inf, -1.0)],
        ((1, 1.0, None, 0), "rank 1's samples is 0"),
        ((1, 1.0, None, 1.5), "rank 1's samples is 1.5"),
    ],
)
def test_what_is_no_measurement_is_refused(report: tuple[Any, ...], said: str) -> None:
    with pytest.raises(CoreError, match=said):
        HostController("mine", 2, 100).observe(*report)
