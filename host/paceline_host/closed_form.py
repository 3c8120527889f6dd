# SPDX-License-Identifier: Apache-2.0
"""What a profile alone predicts: declared pace and shares -> seconds. Pure; shares no code with the pace that boards
keep.

A board's slice is sum over its steps of (fixed + batch * seconds per sample), with mean noise (that is 1) and the
throttling schedule: seconds per sample are multiplied from the first step that begins after `throttle_after_s` of
work. A synchronised round lasts as long as its slowest board (DECISIONS 40). Transfer, host and meter are in no
prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from paceline_host.profile import BoardProfile


def slice_seconds(board: BoardProfile, samples: int, batch: int, reference_seconds_per_sample: float) -> float:
    """Return the compute seconds of one slice."""
    per_sample_s = reference_seconds_per_sample / board.speed
    full_steps, rest = divmod(samples, batch)
    steps = full_steps + (1 if rest else 0)
    cool_steps = steps  # steps that begin before the board throttles
    if board.throttle_after_s > 0.0:
        cool_steps = min(steps, math.ceil(board.throttle_after_s / (board.step_fixed_s + batch * per_sample_s)))
    cool_samples = min(samples, cool_steps * batch)
    hot_samples = samples - cool_samples
    return steps * board.step_fixed_s + per_sample_s * (cool_samples + board.throttle_factor * hot_samples)


def round_seconds(
    boards: Sequence[BoardProfile], shares: Sequence[int], batch: int, reference_seconds_per_sample: float
) -> float:
    """Return the makespan of one synchronised round; shares[i] are the samples of boards[i]."""
    seconds = [
        slice_seconds(board, samples, batch, reference_seconds_per_sample)
        for board, samples in zip(boards, shares, strict=True)
    ]
    return max(seconds, default=0.0)


def run_seconds(
    boards: Sequence[BoardProfile],
    shares_by_round: Iterable[Sequence[int]],
    batch: int,
    reference_seconds_per_sample: float,
) -> float:
    """Return the makespan of a whole run with the executed shares of each round."""
    return sum(round_seconds(boards, shares, batch, reference_seconds_per_sample) for shares in shares_by_round)


def ideal_seconds(
    boards: Sequence[BoardProfile], budget: int, batch: int, reference_seconds_per_sample: float
) -> float:
    """Return the least makespan of a round over all ways to share `budget` samples out."""
    ordered = [(board, batch, reference_seconds_per_sample) for board in boards]
    low, high = 0.0, min(slice_seconds(board, budget, batch, reference_seconds_per_sample) for board in boards)
    for _ in range(60):  # bisection on the deadline: 2^-60 of it is far below a microsecond
        middle = (low + high) / 2.0
        if sum(_samples_within(*each, middle, budget) for each in ordered) >= budget:
            high = middle
        else:
            low = middle
    return high


def _samples_within(board: BoardProfile, batch: int, reference_s: float, deadline_s: float, budget: int) -> int:
    """Return how many samples, at most `budget`, a board can do until a deadline."""
    low, high = 0, budget
    while low < high:
        middle = (low + high + 1) // 2
        if slice_seconds(board, middle, batch, reference_s) <= deadline_s:
            low = middle
        else:
            high = middle - 1
    return low
