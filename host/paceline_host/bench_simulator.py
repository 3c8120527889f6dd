# SPDX-License-Identifier: Apache-2.0
"""What a simulation costs, in CPU time: 100 rounds of eleven boards, a round of many, a round of the controller alone.

Differences between two lengths of run give a round's time; what is paid once is in the first figure alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline_host.simulation.fleet import Fleet
from paceline_host.simulation.run import run_alone, run_policy
from paceline_host.simulation.scenario import Scenario

Row = tuple[str, str, list[float]]
IN_FULL = {1_000: 3, 10_000: 1}  # boards: repeats
ALONE = {100_000: 3, 1_000_000: 1}


def measure(say: Callable[[str], None]) -> Iterator[Row]:
    """Yield (name, unit, values) of each figure."""
    say("simulator: 100 rounds of 11 boards")
    eleven = Fleet(Scenario(rounds=100), None)
    with tempfile.TemporaryDirectory(prefix="paceline-bench-", dir=Path.cwd()) as folder:
        homes = (Path(folder) / str(i) / "time" for i in range(100))
        yield "simulate 100 rounds of 11 boards, no journal", "s", [_full(eleven, None) for _ in range(5)]
        yield "simulate 100 rounds of 11 boards, journal", "s", [_full(eleven, next(homes)) for _ in range(5)]
    for boards, repeats in IN_FULL.items():
        say(f"simulator: {boards:,} boards")
        one, three = (Fleet(Scenario(rounds=rounds, boards=boards), None) for rounds in (1, 3))
        values = [(_full(three, None) - _full(one, None)) / 2 for _ in range(repeats)]
        yield f"simulate a round of {boards:,} boards, full protocol", "s", values
    for boards, repeats in ALONE.items():
        say(f"simulator: {boards:,} boards, controller only")
        yield f"simulate a round of {boards:,} boards, controller only", "s", _alone(boards, repeats)


def _full(fleet: Fleet, folder: Path | None) -> float:
    began_s = time.process_time()
    run_policy(fleet, "time", folder, lambda: False, lambda round_: None)
    return time.process_time() - began_s


def _alone(boards: int, repeats: int) -> list[float]:
    took: list[float] = []
    fleet = Fleet(Scenario(rounds=1 + repeats, boards=boards), None)
    run_alone(fleet, "time", lambda round_, took_s, cpu_s: took.append(cpu_s))
    return took[1:]  # the first is equal for all, and plans nothing
