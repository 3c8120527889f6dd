# SPDX-License-Identifier: Apache-2.0
"""The declared pace, in virtual time."""

from __future__ import annotations

import itertools

import pytest

from paceline_agent.pace import Pace, Pacer


def run(pace: Pace, steps: int, batch: int = 8, lease: int = 1, own_s: float = 0.0) -> tuple[float, Pacer]:
    """Return the seconds of a slice whose steps take own_s each when nobody waits."""
    pacer, now_s = Pacer(pace, 0.01, lease), 100.0
    pacer.begin(now_s)
    for _ in range(steps):
        now_s = pacer.step(batch, now_s + own_s)
    return now_s - 100.0, pacer


def test_steps_are_due_at_the_declared_pace() -> None:
    seconds, pacer = run(Pace(speed=2.0, step_fixed_s=0.003), 50)
    assert seconds == pytest.approx(50 * (0.003 + 8 * 0.005))
    assert (pacer.overruns, pacer.late_s) == (0, 0.0)


def test_the_last_step_may_be_partial() -> None:
    pacer = Pacer(Pace(speed=1.0), 0.01, 1)
    pacer.begin(0.0)
    assert pacer.step(8, 0.0) == pytest.approx(0.08)
    assert pacer.step(3, 0.08) == pytest.approx(0.11)


def test_noise_has_mean_one_and_the_declared_spread_and_belongs_to_board_and_lease() -> None:
    def steps(seed: int, lease: int) -> list[float]:
        pacer = Pacer(Pace(speed=1.0, noise=0.1, seed=seed), 0.01, lease)
        pacer.begin(0.0)
        dues = [0.0, *(pacer.step(1, 0.0) for _ in range(20_000))]
        return [100 * (after - before) for before, after in itertools.pairwise(dues)]

    relative = steps(3, 1)
    mean = sum(relative) / len(relative)
    assert mean == pytest.approx(
        1.0, abs=4 * 0.1 / 20_000**0.5
    )  # four standard errors; the draws are fixed by the seed
    assert (sum((x - mean) ** 2 for x in relative) / len(relative)) ** 0.5 == pytest.approx(0.1, rel=0.03)
    assert min(relative) > 0.0
    assert steps(3, 1) == relative
    assert steps(3, 2) != relative
    assert steps(4, 1) != relative


def test_a_late_step_is_counted_and_never_caught_up() -> None:
    pacer = Pacer(Pace(speed=1.0), 0.01, 1)
    pacer.begin(0.0)
    assert pacer.step(1, 0.5) == 0.5  # due at 0.01
    assert pacer.step(1, 0.5) == pytest.approx(0.51)
    assert pacer.overruns == 1
    assert pacer.late_s == pytest.approx(0.49)


def test_an_overloaded_machine_is_seen_at_every_step() -> None:
    seconds, pacer = run(Pace(speed=1.0), 10, batch=1, own_s=0.02)
    assert seconds == pytest.approx(0.2)
    assert pacer.overruns == 10


def test_throttling_begins_with_the_first_step_after_its_time_and_ends_with_the_slice() -> None:
    pace = Pace(speed=1.0, throttle_after_s=0.35, throttle_factor=3.0)
    assert run(pace, 5, batch=10)[0] == pytest.approx(4 * 0.1 + 0.3)
    assert run(pace, 4, batch=10)[0] == pytest.approx(4 * 0.1)
