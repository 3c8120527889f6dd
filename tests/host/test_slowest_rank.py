# SPDX-License-Identifier: Apache-2.0
"""What the slowest rank of a step costs in experiments/ddp.toml without sockets and clocks: by declared paces, schedule
and controller alone. So what a real run shows above it is the machine's (docs/results/ddp.md).
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

from paceline import Controller
from paceline.uneven import Deal, imbalance
from paceline_agent.pace import Pace, Pacer
from paceline_agent.workers.psl import BACKWARD, FORWARD
from paceline_host.experiment import load_experiment
from paceline_host.profile import BoardProfile, load_profile

EXPERIMENT = load_experiment(Path(__file__).parents[2] / "experiments" / "ddp.toml")
RUN, BOARDS = EXPERIMENT.run, load_profile(EXPERIMENT.fleet.profile).boards
REFERENCE_S = float(str(EXPERIMENT.task["reference_seconds_per_sample"]))


def pace_of(board: BoardProfile, seed: int, noise: bool, throttle: bool) -> Pace:
    after_s, factor = (board.throttle_after_s, board.throttle_factor) if throttle else (0.0, 1.0)
    return Pace(board.speed, board.step_fixed_s, board.noise if noise else 0.0, after_s, factor, seed)


def slowest(*, noise: bool, throttle: bool, deadband: float = 0.05, rounds: int = 60) -> float:
    """Return the median over rounds >= 2 of the sum of the slowest ranks over the ideal."""
    controller = Controller(len(BOARDS), RUN.budget, w_energy=0.0, minimum=RUN.steps, deadband=deadband)
    paces = [pace_of(board, seed, noise, throttle) for seed, board in enumerate(BOARDS)]
    ratios = []
    for number in range(rounds):
        shares = controller.allocate()
        deal, columns = Deal(shares, RUN.steps), []
        for rank, pace in enumerate(paces):
            pacer, ends = Pacer(pace, REFERENCE_S, number), [0.0]
            pacer.begin(0.0)
            for step in range(RUN.steps):
                own, _ = deal.counts(step, rank)
                pacer.step(own, 0.0, FORWARD, ends=False)
                ends.append(pacer.step(own, 0.0, BACKWARD))
            columns.append([end - begin for begin, end in pairwise(ends)])
            controller.observe(rank, ends[-1], None, shares[rank])
        ratios.append(imbalance(list(zip(*columns, strict=True)), shares).ratio or 0.0)
    return statistics.median(ratios[1:])


def test_schedule_and_controller_alone_stay_within_a_twentieth_of_the_ideal() -> None:
    assert slowest(noise=False, throttle=False) < 1.04
    assert slowest(noise=False, throttle=False, deadband=0.0) < 1.03


def test_what_is_declared_of_the_boards_is_above_it() -> None:
    assert 1.04 < slowest(noise=True, throttle=False) < 1.07
    assert slowest(noise=True, throttle=True) > slowest(noise=True, throttle=False) + 0.015
