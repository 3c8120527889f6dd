# SPDX-License-Identifier: Apache-2.0
"""The closed form against the pace that boards keep, step by step; and the profile it reads."""

from __future__ import annotations

import itertools
import re
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import SettingsError
from paceline_agent.pace import Pace, Pacer
from paceline_host.closed_form import ideal_seconds, round_seconds, run_seconds, slice_seconds
from paceline_host.profile import SHIPPED, BoardProfile, load_profile

PROFILE = load_profile("eleven-boards")


def board(speed: float = 1.0, **rest: float) -> BoardProfile:
    return BoardProfile("b", speed, 1.0, 2.0, **rest)  # type: ignore[arg-type]


def stepwise(profile: BoardProfile, samples: int, batch: int, reference_s: float) -> float:
    """Return the seconds of a slice as a board without noise keeps them."""
    pace = Pace(profile.speed, profile.step_fixed_s, 0.0, profile.throttle_after_s, profile.throttle_factor)
    pacer, now_s = Pacer(pace, reference_s, 1), 0.0
    pacer.begin(now_s)
    for begin in range(0, samples, batch):
        now_s = pacer.step(min(batch, samples - begin), now_s)
    return now_s


@given(
    speed=st.floats(0.05, 20),
    fixed=st.sampled_from([0.0, 0.0005, 0.004]),
    after=st.sampled_from([0.0, 0.0237, 0.5, 1e6]),
    factor=st.sampled_from([1.0, 1.6, 3.0]),
    samples=st.integers(0, 3000),
    batch=st.integers(1, 64),
)
def test_the_closed_form_is_the_sum_over_steps(
    speed: float, fixed: float, after: float, factor: float, samples: int, batch: int
) -> None:
    profile = board(speed, step_fixed_s=fixed, throttle_after_s=after, throttle_factor=factor)
    step_s = fixed + batch * 0.001 / speed
    if after and abs(after / step_s - round(after / step_s)) < 1e-6:
        return  # a step that begins exactly when throttling does: rounding decides
    assert slice_seconds(profile, samples, batch, 0.001) == pytest.approx(stepwise(profile, samples, batch, 0.001))


def test_worked_example() -> None:
    throttled = board(2.0, step_fixed_s=0.01, throttle_after_s=0.13, throttle_factor=3.0)
    # steps of 10: 0.01 + 10 * 0.005 = 0.06 s; they begin at 0, 0.06, 0.12 (cool), 0.18 (hot: 0.16 s), then 5 hot
    assert slice_seconds(throttled, 45, 10, 0.01) == pytest.approx(3 * 0.06 + 0.16 + 0.01 + 5 * 0.015)
    assert slice_seconds(board(), 7, 8, 0.5) == pytest.approx(3.5)
    assert slice_seconds(board(step_fixed_s=1.0), 0, 8, 0.5) == 0.0


def test_a_round_lasts_as_long_as_its_slowest_board_and_a_run_is_the_sum_of_its_rounds() -> None:
    boards = [board(1.0), board(4.0)]
    assert round_seconds(boards, [10, 10], 1, 0.1) == pytest.approx(1.0)
    assert round_seconds(boards, [2, 18], 1, 0.1) == pytest.approx(0.45)
    assert run_seconds(boards, [[10, 10], [2, 18]], 1, 0.1) == pytest.approx(1.45)
    with pytest.raises(ValueError, match="zip"):
        round_seconds(boards, [1], 1, 0.1)


def test_no_split_is_better_than_the_ideal_one() -> None:
    boards = [board(1.0, step_fixed_s=0.002), board(3.0), board(2.0, throttle_after_s=0.05, throttle_factor=2.0)]
    splits = [(a, b, 60 - a - b) for a, b in itertools.product(range(61), repeat=2) if a + b <= 60]
    best = min(round_seconds(boards, split, 4, 0.01) for split in splits)
    assert ideal_seconds(boards, 60, 4, 0.01) == pytest.approx(best)


# The shipped profile ------------------------------------------------------------------------------------------------


def test_the_shipped_profile_is_eleven_boards_of_three_architectures_one_of_which_throttles() -> None:
    assert len(PROFILE.boards) == 11
    assert {each.architecture for each in PROFILE.boards} == {"aarch64", "riscv64", "x86_64"}
    assert sum(each.throttle_after_s > 0 for each in PROFILE.boards) == 1
    assert all(each.step_fixed_s > 0 and each.noise > 0 for each in PROFILE.boards)


def test_every_figure_of_the_shipped_profile_names_its_source_or_is_assumed() -> None:
    text = (SHIPPED / "eleven-boards.toml").read_text()
    figures = [line for line in text.splitlines() if re.match(r"\w+ = [0-9.]", line)]
    assert len(figures) == 11 * 5 + 2
    for line in figures:
        assert re.search(r"# .*(SBC \d+|assumed)", line), line


def test_an_equal_split_spreads_as_widely_as_in_the_papers() -> None:
    shares = [12_000 // 11] * 11
    seconds = [slice_seconds(each, share, 8, 0.0025) for each, share in zip(PROFILE.boards, shares, strict=True)]
    assert 0.8 <= statistics.pstdev(seconds) / statistics.mean(seconds) <= 1.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"\nboards = []', "boards: expected an array"),
        ('name = "x"\n[[boards]]\nname = "a"\nspeed = 1\nactive_w = 2', "idle_w is missing"),
        ('name = "x"\n[[boards]]\nname = "a"\nspeed = 0\nidle_w = 1\nactive_w = 2', "boards #1.speed: expected"),
        ('name = "x"\n[[boards]]\nname = "a"\nsped = 1\nidle_w = 1\nactive_w = 2', "did you mean speed?"),
        ('name = "x"\n[[boards]]\nname = "a"\nspeed = 1\nidle_w = 3\nactive_w = 2', "is below idle_w"),
        ('name = "x"\n[[boards]]\nname = "a/b"\nspeed = 1\nidle_w = 1\nactive_w = 2', "names a folder"),
        ('name = "x"\n' + 2 * '[[boards]]\nname = "a"\nspeed = 1\nidle_w = 1\nactive_w = 2\n', "more than once: a"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_profile(str(path))
    assert words in str(caught.value)


def test_an_unknown_profile_says_which_there_are() -> None:
    with pytest.raises(SettingsError, match="did you mean eleven-boards"):
        load_profile("eleven-board")
