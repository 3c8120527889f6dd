# SPDX-License-Identifier: Apache-2.0
"""What synchronised steps cost beside plain DistributedDataParallel, and how fast groups form, on this machine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from paceline.errors import RunError

RANKS = 2  # of the steps: more share the processors of a small machine
GROUP = 4  # ranks of the first group that forms; each next one has lost a rank
TURNS = 2000
BLOCK = 200  # turns of which one ratio is taken
WARM = 200  # of them, until caches and buckets are what they stay
WAYS = {"plain": "as it is", "rank": "a run's", "hook": "with SampleMean"}
PROGRAM = "paceline_agent.workers.group_cost"


def measure(turns: int = TURNS, warm: int = WARM) -> Iterator[tuple[str, str, list[float]]]:
    """Yield name, unit and values of each figure. Raises RunError."""
    found = _ranks(RANKS, turns)
    series = {name: values[warm:] for name, values in found.items()}
    for way, text in WAYS.items():
        yield f"DDP, a step of {RANKS} ranks: {text}", "ms", [us * 1e-3 for us in series[way]]
    for way, text in list(WAYS.items())[1:]:
        yield f"DDP, time: {text} / as it is", "x", list(_ratios(series[way], series["plain"]))
        yield f"DDP, processors' time: {text} / as it is", "x", list(_ratios(series[f"{way}_cpu"], series["plain_cpu"]))
    found = _ranks(GROUP, 0)
    yield f"DDP, {GROUP} ranks and fewer: until a group has formed", "ms", [us * 1e-3 for us in found["form"]]
    yield "DDP: from a loss to the next group's first step", "ms", [us * 1e-3 for us in found["again"]]


def _ratios(ours: list[int], theirs: list[int]) -> Iterator[float]:
    """Yield the ratios of the medians of BLOCK turns."""
    for begin in range(0, len(ours), BLOCK):
        block = slice(begin, begin + BLOCK)
        yield statistics.median(ours[block]) / statistics.median(theirs[block])


def _ranks(world: int, turns: int) -> dict[str, list[int]]:
    """Let ranks measure; return what rank 0 says, in microseconds."""
    with ExitStack() as life:
        ranks = []
        for rank in range(world):
            command = [sys.executable, "-m", PROGRAM, str(rank), str(world), str(turns)]
            ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            life.callback(_end, ranks[-1])
        first, others = ranks[0], ranks[1:]
        assert first.stdout is not None
        found: dict[str, list[int]] = {}
        for line in first.stdout:
            if line.startswith("{"):
                found |= json.loads(line)
                continue
            for one in others:
                assert one.stdin is not None
                if one.poll() is None:
                    one.stdin.write(line)
                    one.stdin.flush()
    if found:
        return found
    raise RunError("the benchmark's ranks ended without figures; what they said stands above")


def _end(rank: subprocess.Popen[str]) -> None:
    rank.kill()
    for pipe in (rank.stdin, rank.stdout):
        assert pipe is not None
        pipe.close()
    rank.wait()
